"""The shape of a training config: names, types and defaults of every setting."""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from experiments import batch
from experiments.device import check_device

FOLDER = Path(__file__).resolve().parent.parent / "configs"
_WITHOUT_GROUPS = ("benchmark", "benchmark_gpu", "table4")  # configs that are one file
# What may change without the result changing: left out of the hash that identifies a run.
_NOT_IN_HASH = ("paths", "logger", "progress", "resume", "force")


@dataclass
class Optim:
    """Optimizer, schedule and length of a run."""

    name: str = "sgd"  # sgd | adamw
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "cosine"  # cosine | onecycle | constant
    warmup: float = 0.0  # share of the schedule
    epochs: int = 6
    batch: Any = 128  # a number, or auto:2GiB for the largest batch within that memory
    accumulate: int = 1  # batches an optimizer step
    label_smoothing: float = 0.0
    clip: float = 0.0  # largest gradient norm; 0 does not clip
    ema: float = 0.0  # decay of averaged weights; 0 keeps none
    amp: str = "none"  # none | bfloat16 | float16


@dataclass
class Hardware:
    """Where it runs."""

    device: str = "cpu"
    threads: int = 0  # 0 leaves torch's choice
    channels_last: bool = True
    workers: int = 2  # loading processes, for image folders


@dataclass
class Logger:
    """A mirror of the metrics."""

    name: str = "none"
    project: str = "division-repro"
    mode: str = "offline"


@dataclass
class Paths:
    """Where things are."""

    results: str = "results"
    data: str | None = None  # DATA_DIR, then ./data
    checkpoints: str = "outputs/checkpoints"


@dataclass
class Train:
    """One training run."""

    method: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    dataset: dict[str, Any] = field(default_factory=dict)
    optim: Optim = field(default_factory=Optim)
    hardware: Hardware = field(default_factory=Hardware)
    logger: Logger = field(default_factory=Logger)
    paths: Paths = field(default_factory=Paths)
    name: str = "train"  # of the experiment: rows go to runs/<name>.jsonl
    scale: str = "reduced"
    seed: int = 0
    resume: str = "auto"  # auto | never
    force: bool = False  # run again what is recorded already
    progress: bool = True


@dataclass
class Errors(Train):
    """Gradient errors of many specs at some states of one vanilla training."""

    specs: dict[str, Any] = field(default_factory=dict)  # label: a method's name and its options
    at: dict[str, int] = field(default_factory=dict)  # label: step of the training; -1 is the end
    layers: list[str] = field(default_factory=list)  # specs with a row for every layer
    draws: int = 4  # of the rounding noise, on every batch
    batches: int = 3  # whose gradients are compared
    batch: int = 64  # images in each
    warmup: int = 40  # batches from which methods that learn do so first


ConfigStore.instance().store(name="train_schema", node=Train)
ConfigStore.instance().store(name="errors_schema", node=Errors)


def compose_train(overrides: list[str]) -> DictConfig:
    """Compose a training config as the command line would."""
    return _compose("train", overrides)


def compose_errors(overrides: list[str]) -> DictConfig:
    """Compose a config of gradient errors as the command line would."""
    return _compose("errors", overrides)


def compose_plan(overrides: list[str]) -> DictConfig:
    """Compose the config of a plan as the command line would."""
    return _compose("plan", overrides)


def _compose(name: str, overrides: list[str]) -> DictConfig:
    with initialize_config_dir(str(FOLDER), version_base="1.3"):
        return compose(name, overrides)


def check(config: DictConfig) -> None:
    """Raise ValueError for a setting that is out of range."""
    optim = config.optim
    for key, value, least in (
        ("optim.epochs", optim.epochs, 1),
        ("optim.accumulate", optim.accumulate, 1),
        ("hardware.threads", config.hardware.threads, 0),
    ):
        if value < least:
            raise ValueError(f"{key} must be at least {least}; got {value}")
    batch.check(optim.batch)
    for key, value in (("optim.warmup", optim.warmup), ("optim.ema", optim.ema)):
        if not 0 <= value < 1:
            raise ValueError(f"{key} must be in [0, 1); got {value}")
    if config.resume not in ("auto", "never"):
        raise ValueError(f"resume must be auto or never; got {config.resume!r}")
    check_device("hardware.device", config.hardware.device)


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn what a user can mend into one sentence and exit code 1; a traceback is for bugs."""
    try:
        yield
    except (OSError, ValueError, HydraException) as error:
        sys.exit(f"error: {error}")


def flatten(config: DictConfig) -> dict[str, object]:
    """Return the settings that decide a result, with dotted keys."""
    nested = OmegaConf.to_container(config, resolve=True)
    flat: dict[str, object] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            flat[prefix] = value

    walk("", {key: value for key, value in nested.items() if key not in _NOT_IN_HASH})
    return flat


def check_overrides(arguments: list[str], config: str = "train") -> None:
    """Leave with one sentence if a setting on the command line does not exist."""
    plain = [a for a in arguments if "=" in a and not a.startswith(("-", "+", "~", "hydra"))]
    try:
        parsed = OverridesParser.create().parse_overrides(plain)
        groups = [o for o in parsed if (FOLDER / o.key_or_group).is_dir()]
        groups = [] if config in _WITHOUT_GROUPS else groups
        base = _compose(config, [f"{g.key_or_group}={_first(g.value())}" for g in groups])
    except HydraException:
        return  # hydra itself says what is wrong, and lists the choices
    known = set(_keys(base)) | {o.key_or_group for o in groups}
    for override in parsed:
        key = override.key_or_group
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0)
            sys.exit(f"there is no setting {key!r}; did you mean {near[0]!r}?")


def _first(value: object) -> object:
    """Return the first value of a sweep."""
    choices = getattr(value, "list", None)
    return choices[0] if choices else value


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for key, value in config.items_ex(resolve=False):
        name = f"{prefix}{key}"
        keys.append(name)
        if isinstance(value, DictConfig):
            keys += _keys(value, f"{name}.")
    return keys
