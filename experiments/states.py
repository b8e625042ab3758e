"""States of one vanilla training, at which methods are then compared on equal terms."""

from contextlib import suppress
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from experiments import build, checkpoint, provenance, record
from experiments.config import flatten
from experiments.data import Data
from experiments.loop import Trainer
from experiments.progress import Display

State = dict[str, Tensor]


class _Enough(Exception):
    """All states are there: the rest of the training need not run."""


# What is measured at the states does not change them.
_NOT_OF_THE_TRAINING = ("specs", "at", "layers", "draws", "batches", "batch", "warmup", "scale")


def settings(config: DictConfig) -> dict[str, object]:
    """Return the settings that decide the training, with dotted keys."""
    flat = flatten(config)
    return {k: v for k, v in flat.items() if k.split(".")[0] not in _NOT_OF_THE_TRAINING}


def last_step(config: DictConfig, data: Data) -> int:
    """Return how many optimizer steps the training has."""
    batches = data.train.steps(config.optim.batch, train=True, drop_last=True)
    return -(-batches // config.optim.accumulate) * config.optim.epochs


def steps(config: DictConfig, data: Data) -> dict[str, int]:
    """Return the step of every state that is asked for, by its label."""
    end = last_step(config, data)
    found = {}
    for label, step in config.at.items():
        if not -1 <= step <= end:
            raise ValueError(f"at.{label} must be a step from 0 to {end}, or -1; got {step}")
        found[str(label)] = end if step == -1 else int(step)
    return found


def states(config: DictConfig, data: Data) -> dict[str, State]:
    """Return the weights and buffers at every state: read from checkpoints, or trained."""
    wanted = steps(config, data)
    paths = {label: _path(config, step) for label, step in wanted.items()}
    if not all(path.exists() for path in paths.values()):
        _train(config, data, {wanted[label]: path for label, path in paths.items()})
    return {label: checkpoint.load(path)["model"] for label, path in paths.items()}


def at_state(config: DictConfig, data: Data, state: State) -> nn.Module:
    """Return the stock network with the weights of a state, in training mode."""
    model = build.model(config, data)
    model.load_state_dict(state)
    return model.train()


def _path(config: DictConfig, step: int) -> Path:
    # In the name: the settings and the code, as for the checkpoint of a run.
    label = f"{config.model.name}-{config.dataset.name}-seed{config.seed}"
    name = f"{label}-{record.config_hash(settings(config))}-{provenance.code()}-step{step}.pt"
    return Path(config.paths.checkpoints) / config.name / name


def _train(config: DictConfig, data: Data, paths: dict[int, Path]) -> None:
    """Train from the start and write the states on the way."""
    model = build.model(config, data)
    optim = OmegaConf.to_object(config.optim)
    place = (config.hardware.device, config.hardware.channels_last)
    trainer = Trainer(model, data, optim, config.seed, *place)

    def keep() -> None:
        if trainer.update in paths:
            checkpoint.save(paths[trainer.update], {"model": model.state_dict()})

    def step(loss: float) -> None:
        display.step(loss)
        keep()
        if trainer.update >= max(paths):
            raise _Enough

    keep()
    title = f"vanilla training of {config.model.name} on {data.name}"
    with Display(title, trainer, config.progress) as display, suppress(_Enough):
        for epoch in trainer.run(step):
            display.epoch(epoch)
