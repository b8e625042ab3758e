"""The training loop: linear, resumable bit for bit, the same for every method."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import division
from experiments import build, checkpoint
from experiments.config import Optim
from experiments.data import Data
from experiments.device import on_device, to_device


class Diverged(RuntimeError):
    """The loss is not a number any more."""


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured."""

    number: int
    loss: float
    top1: float  # percent, on the test set
    images_per_s: float
    loading_share: float  # of the epoch's time that went into making batches


@dataclass
class Trainer:
    """Everything a run consists of, and its state between epochs."""

    model: nn.Module
    data: Data
    optim: Optim
    seed: int
    device: str = "cpu"
    channels_last: bool = True
    path: Path | None = None  # of the checkpoint; None saves nothing

    def __post_init__(self) -> None:
        if self.optim.batch > len(self.data.train):
            raise ValueError(
                f"optim.batch {self.optim.batch} is larger than the training set of "
                f"{self.data.name} ({len(self.data.train)} images)"
            )
        self.batches = self.data.train.steps(self.optim.batch, train=True, drop_last=True)
        self.optimizer = build.optimizer(self.model, self.optim)
        updates = -(-self.batches // self.optim.accumulate) * self.optim.epochs
        self.factor = build.schedule(self.optim, updates)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.scaler = torch.amp.GradScaler(self.device, enabled=self.optim.amp == "float16")
        self.epoch = 0
        self.update = 0
        self.seconds = 0.0  # over all the processes that a run took
        self.history: list[Epoch] = []
        self.average: dict[str, torch.Tensor] | None = None
        if self.optim.ema:
            self.average = {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def resume(self) -> bool:
        """Take up the checkpoint, if there is one."""
        if self.path is None or not self.path.exists():
            return False
        state = checkpoint.load(self.path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.average = state["average"]
        self.epoch, self.update = state["epoch"], state["update"]
        self.seconds = state["seconds"]
        self.history = [Epoch(**values) for values in state["history"]]
        method = division.method_of(self.model)
        if method is not None:
            method.load_state_dict(state["method"])
        torch.set_rng_state(state["rng"])
        if self.device == "cuda":
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        return True

    def save(self) -> None:
        """Write the checkpoint."""
        if self.path is None:
            return
        method = division.method_of(self.model)
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": self.average,
            "epoch": self.epoch,
            "update": self.update,
            "seconds": self.seconds,
            "history": [vars(epoch) for epoch in self.history],
            "method": method.state_dict() if method is not None else {},
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if self.device == "cuda" else [],
        }
        checkpoint.save(self.path, state)

    def run(self, on_step: Callable[[float], None] = lambda loss: None) -> Iterator[Epoch]:
        """Train to the end, yielding each epoch once it is in the checkpoint."""
        while self.epoch < self.optim.epochs:
            started = time.perf_counter()
            loss, loading = self._train_epoch(on_step)
            seconds = time.perf_counter() - started
            images = self.batches * self.optim.batch
            self.epoch += 1
            speed, share = images / seconds, loading / seconds
            epoch = Epoch(self.epoch, loss, self.evaluate(), speed, share)
            self.history.append(epoch)
            self.seconds += time.perf_counter() - started
            self.save()
            yield epoch

    def _train_epoch(self, on_step: Callable[[float], None]) -> tuple[float, float]:
        """Return the mean loss, and the seconds that making batches took."""
        self.model.train()
        total = loading = 0.0
        made = self.data.train.batches(
            self.optim.batch, self.epoch, self.seed, train=True, drop_last=True
        )
        batches = on_device(made, self.device, self.channels_last)
        for number in range(1, self.batches + 1):
            started = time.perf_counter()
            x, y = next(batches)
            loading += time.perf_counter() - started
            last = number % self.optim.accumulate == 0 or number == self.batches
            whole_groups = self.batches - self.batches % self.optim.accumulate
            group = self.optim.accumulate if number <= whole_groups else self.batches - whole_groups
            loss = self._step(x, y, group, last)
            total += loss
            on_step(loss)
        return total / self.batches, loading

    def _step(self, x: torch.Tensor, y: torch.Tensor, group: int, update: bool) -> float:
        with self.autocast():
            output = self.model(x)
            loss = F.cross_entropy(output, y, label_smoothing=self.optim.label_smoothing)
        value = loss.item()
        if value != value:  # NaN
            raise Diverged(f"the loss is NaN in epoch {self.epoch + 1}")
        self.scaler.scale(loss / group).backward()
        if update:
            self._update()
        return value

    def _update(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.factor(self.update)
        if self.optim.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.optim.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.update += 1
        if self.average is not None:
            for name, value in self.model.state_dict().items():
                kept = self.average[name]
                if kept.is_floating_point():
                    kept.lerp_(value, 1 - self.optim.ema)
                else:
                    kept.copy_(value)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return top-1 on the test set in percent, with the averaged weights if there are."""
        trained = None
        if self.average is not None:
            trained = {k: v.clone() for k, v in self.model.state_dict().items()}
            self.model.load_state_dict(self.average)
        self.model.eval()
        right = 0
        size = max(self.optim.batch, 250)
        for x, y in self.data.test.batches(size, 0, self.seed, train=False):
            with self.autocast():
                right += int((self.model(self.to_device(x)).argmax(1).cpu() == y).sum())
        if trained is not None:
            self.model.load_state_dict(trained)
        return 100 * right / len(self.data.test)

    def to_device(self, x: torch.Tensor) -> torch.Tensor:
        """Move a batch to where the model is, in its layout."""
        return to_device(x, self.device, self.channels_last)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the model runs."""
        return autocast(self.optim.amp, self.device)


def autocast(amp: str, device: str) -> AbstractContextManager[object]:
    """Return the context of a precision, as `optim.amp` names it."""
    if amp == "none":
        return nullcontext()
    if amp not in ("bfloat16", "float16"):
        raise ValueError(f"optim.amp must be one of none, bfloat16, float16; got {amp!r}")
    return torch.autocast(device, dtype=getattr(torch, amp))
