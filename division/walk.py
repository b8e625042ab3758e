"""One training step, watched: the bytes that are alive after every operator.

A dispatch mode sees the results of each operator, and a weak reference tells when a storage is
freed. Under FakeTensorMode, where tensors have no memory, the count is the same as that of a real
step. What an operator allocates inside itself, the scratch space of a convolution for instance, is
not seen.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Loss = Callable[[Any, Tensor], Tensor]
PHASES = ("forward", "backward", "optimizer")


class Live(TorchDispatchMode):
    """Counts the storages that are alive, each once.

    Attributes:
        now: bytes alive.
        levels: what `now` was after each allocation, in order.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.levels: list[int] = []
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensors: Iterable[object]) -> int:
        """Count tensors that are there; return the bytes that were new."""
        before = self.now
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self._count(tensor.untyped_storage())
        return self.now - before

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or not size:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, freed)
        self.now += size
        self.levels.append(self.now)

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.add(result if isinstance(result, tuple | list) else (result,))
        return result


@dataclass(frozen=True)
class Walk:
    """What a training step held, in bytes.

    Attributes:
        batch: samples in the batch.
        weights: parameters and buffers.
        optimizer: the optimizer's state.
        inputs: the batch itself, and a label a sample.
        held: all that is alive between forward and backward, the above included.
        output: what the model returned, and the loss.
        gradients: of the parameters, after backward.
        levels: bytes alive after each allocation of the step.
        ends: how many of the allocations belong to the forward, and to forward and backward.
    """

    batch: int
    weights: int
    optimizer: int
    inputs: int
    held: int
    output: int
    gradients: int
    levels: tuple[int, ...]
    ends: tuple[int, int]

    @property
    def peak(self) -> int:
        """The most that was alive at any time."""
        return max(self.levels)

    @property
    def peak_in(self) -> str:
        """The phase of the step that the peak is in."""
        at = self.levels.index(self.peak)
        return PHASES[sum(at >= end for end in self.ends)]


def ready(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Have an optimizer make its state, as the first step of a run would."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def walk(
    model: nn.Module,
    inputs: Sequence[Tensor],
    loss: Loss,
    optimizer: torch.optim.Optimizer,
) -> Walk:
    """Take one training step, of real or of fake tensors, and count; gradients are freed after.

    Args:
        model: as it is trained, with its method.
        inputs: of the model; the first has the batch as its first dimension.
        loss: from what the model returns, and labels of zeros, to the number to go down.
        optimizer: of the model's parameters; `ready`.
    """
    labels = torch.zeros(len(inputs[0]), dtype=torch.int64, device=inputs[0].device)
    live = Live()
    weights = live.add([*model.parameters(), *model.buffers()])
    state = live.add(t for each in optimizer.state.values() for t in each.values())
    batch = live.add([*inputs, labels])
    live.add(p.grad for p in model.parameters())  # left from before, if they are accumulated
    start = len(live.levels) - 1  # the last level of what was there before the step
    with live:
        output = model(*inputs)
        value = loss(output, labels)
        held, forward = live.now, len(live.levels)
        value.backward()
        backward = len(live.levels)
        gradients = _bytes(p.grad for p in model.parameters())
        optimizer.step()
    optimizer.zero_grad()
    return Walk(
        batch=len(inputs[0]),
        weights=weights,
        optimizer=state,
        inputs=batch,
        held=held,
        output=_bytes([*tensors_of(output), value]),
        gradients=gradients,
        levels=tuple(live.levels[start:]),
        ends=(forward - start, backward - start),
    )


def tensors_of(output: object) -> list[Tensor]:
    """Return the tensors in what a model returned, however it is nested."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor | None]) -> int:
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors if t is not None
    }
    return sum(storages.values())
