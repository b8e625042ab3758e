"""Throughput and memory of a training step: `python -m experiments.benchmark`.

Every method has a process of its own, as in a training. Time is measured in alternating rounds and
reported as a ratio to vanilla. On a GPU (`--config-name benchmark_gpu`) it is that of the GPU's own
events.
"""

import functools
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn import functional as F

import division
from division.ledger import size_text
from division.method import resolve
from experiments import models, peak, record, timing
from experiments.apart import apart
from experiments.config import check_overrides, flatten, one_sentence
from experiments.device import check_device, gpu_seconds
from experiments.loop import autocast

Spec = dict[str, object]


@dataclass(frozen=True)
class Place:
    """Where and in which precision steps run."""

    device: str = "cpu"
    amp: str = "none"  # as optim.amp
    channels_last: bool = True

    @classmethod
    def of(cls, config: DictConfig) -> "Place":
        """Read it from a config; those of a CPU have only its defaults."""
        given = {name: config[name] for name in vars(cls()) if name in config}
        check_device("device", given.get("device", "cpu"))
        return cls(**given)

    def put(self, x: Any) -> Any:
        """Move images or a model there."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return x.to(self.device).to(memory_format=layout)


def throughput(
    config: DictConfig, methods: dict[str, Spec], batches: dict[str, int]
) -> list[dict[str, float]]:
    """Return the seconds of a training step under every method at its batch, per round."""
    network, place = plain(config.network), Place.of(config)
    where = (config.steps, network, config.image, config.seed, place)
    builders = {
        label: functools.partial(_timed_step, spec, batches[label], *where)
        for label, spec in methods.items()
    }
    with apart(builders) as tasks:
        measured = timing.alternate(tasks, config.rounds, config.warmup)
        return list(track(measured, "timing", config.rounds, console=Console(stderr=True)))


def _timed_step(
    spec: Spec, batch: int, steps: int, network: Spec, image: int, seed: int, place: Place
) -> Callable[[], float]:
    """Return what runs some training steps, one after the other, and tells the seconds of one."""
    torch.manual_seed(seed)
    model = place.put(models.build(**network, classes=10, image_size=image))
    x = place.put(torch.randn(batch, 3, image, image))
    y = torch.randint(0, 10, (batch,)).to(place.device)
    clock = gpu_seconds if place.device == "cuda" else timing.host_seconds
    step = _step(model, spec, x, y, place)
    return lambda: sum(clock(step) for _ in range(steps)) / steps


def methods_of(config: DictConfig) -> dict[str, Spec]:
    """Return the methods of a config by label, each with its name."""
    methods = {label: {"name": label, **spec} for label, spec in plain(config.methods).items()}
    if "vanilla" not in methods:
        raise ValueError(f"methods must contain vanilla, the base of every ratio; got {[*methods]}")
    for spec in methods.values():
        resolve(str(spec["name"]), **options_of(spec))  # a wrong one fails here, not in its process
    return methods


def plain(node: DictConfig) -> Spec:
    """Return a part of a config as plain values."""
    return dict(OmegaConf.to_container(node, resolve=True))


def _step(
    model: torch.nn.Module, spec: Spec, x: torch.Tensor, y: torch.Tensor, place: Place
) -> Callable[[], None]:
    division.compress(model, str(spec["name"]), **options_of(spec))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(place.device, enabled=place.amp == "float16")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(place.amp, place.device):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def options_of(spec: Spec) -> Spec:
    """Return a method's options, without its name."""
    return {key: value for key, value in spec.items() if key != "name"}


def is_done(config: DictConfig, results: Path) -> bool:
    """Tell whether this benchmark is recorded with the code as it is now."""
    wanted = flatten(config)
    mine = [r for r in record.load(results, config.experiment) if record.is_of_this_code(r)]
    return any({k: v for k, v in r.config.items() if k != "label"} == wanted for r in mine)


def rows_of(config: DictConfig) -> list[record.Row]:
    """Measure what a config asks for."""
    methods = methods_of(config)
    rows: list[record.Row] = []

    def add(label: str, metric: str, unit: str, value: float, **spread: Any) -> None:
        rows.append(row_of(config, label, methods[label], metric, unit, value, **spread))

    measured = throughput(config, methods, dict.fromkeys(methods, config.batch))
    for label, ratio in timing.ratios(measured, "vanilla").items():
        add(label, "throughput_ratio", "1", ratio.p50, p20=ratio.p20, p80=ratio.p80, n=ratio.n)
        speed = timing.Quantiles.of([config.batch / r[label] for r in measured])
        add(label, "throughput", "images/s", speed.p50, p20=speed.p20, p80=speed.p80, n=speed.n)
    if config.peak_batch:
        where = (plain(config.network), config.peak_batch, config.image, vars(Place.of(config)))
        for label, spec in track(methods.items(), "memory", console=Console(stderr=True)):
            for metric, value in _memory(spec, *where, config.peak_default).items():
                add(label, f"{metric}_bytes", "B", value)
    return rows


def row_of(
    config: DictConfig, label: str, spec: Spec, metric: str, unit: str, value: float, **more: Any
) -> record.Row:
    """Return the row of one number of a method."""
    return record.Row(
        experiment=config.experiment,
        method=str(spec["name"]),
        options=options_of(spec),
        model=config.network.name,
        dataset=f"synthetic-{config.image}",
        seed=config.seed,
        metric=metric,
        unit=unit,
        value=value,
        scale=config.scale,
        config={**flatten(config), "label": label},
        **more,
    )


def _memory(
    spec: Spec, network: Spec, batch: int, image: int, place: Spec, default: bool
) -> dict[str, int]:
    found = peak.measure_step(network, spec, batch, image, place)
    if default:
        usual = peak.measure_step(network, spec, batch, image, place, default_allocator=True)
        found["peak_default"] = usual["peak"]
    return found


def _described(config: DictConfig) -> str:
    place = Place.of(config)
    parts = ["channels_last" if place.channels_last else "nchw"]
    parts += [part for part in (place.device, place.amp) if part not in ("cpu", "none")]
    return ", ".join(parts)


def table_of(rows: list[record.Row], config: DictConfig) -> Table:
    """Lay rows out for the screen."""
    found = {(str(r.config["label"]), r.metric): r for r in rows}
    table = Table(
        title=f"{config.network.name}, {config.image} px, {_described(config)}; "
        f"time at batch {config.batch}, memory at batch {config.peak_batch}"
    )
    for head in (
        "method",
        "images/s",
        "of vanilla",
        "(p20-p80)",
        "peak of a step",
        "saved (ledger)",
    ):
        table.add_column(head, justify="left" if head == "method" else "right")
    for label in dict.fromkeys(str(r.config["label"]) for r in rows):
        ratio = found[label, "throughput_ratio"]
        cells = [f"{found[label, 'throughput'].value:.1f}", f"{ratio.value:.3f}"]
        cells.append(f"{ratio.p20:.3f}-{ratio.p80:.3f}")
        for metric in ("peak_bytes", "saved_bytes"):
            row = found.get((label, metric))
            cells.append(size_text(row.value) if row else "")
        table.add_row(label, *cells)
    return table


def _config_name(arguments: list[str]) -> str:
    """Return the config that the command line chooses."""
    named = dict(itertools.pairwise(arguments))
    return named.get("--config-name", "benchmark")


@hydra.main(version_base="1.3", config_path="../configs", config_name="benchmark")
def main(config: DictConfig) -> None:
    """Measure, record, print."""
    with one_sentence():
        rows = record.measured(Path(config.paths.results), lambda: rows_of(config))
    console = Console()
    console.width = max(console.width, 100)
    console.print(table_of(rows, config))


if __name__ == "__main__":
    check_overrides(sys.argv[1:], _config_name(sys.argv[1:]))
    main()
