"""Throughput and memory of a training step: `python -m experiments.benchmark`.

Time is measured for all methods in one process, in alternating rounds, and reported as a ratio to
vanilla; peak memory for each method in a process of its own.
"""

import copy
import sys
import time
from collections.abc import Callable
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
from experiments import models, peak, record, timing
from experiments.config import check_overrides, flatten, one_sentence

Spec = dict[str, object]


def throughput(
    config: DictConfig, methods: dict[str, Spec], batches: dict[str, int]
) -> list[dict[str, float]]:
    """Return the seconds of a training step under every method at its batch, per round."""
    torch.manual_seed(config.seed)
    start = models.build(**plain(config.network), classes=10, image_size=config.image)
    start = start.to(memory_format=torch.channels_last)
    most = max(batches.values())
    x = torch.randn(most, 3, config.image, config.image)
    x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (most,))
    steps = {
        label: _step(copy.deepcopy(start), spec, x[: batches[label]], y[: batches[label]])
        for label, spec in methods.items()
    }
    measured = timing.alternate(steps, config.rounds, config.warmup)
    return list(track(measured, "timing", config.rounds, console=Console(stderr=True)))


def methods_of(config: DictConfig) -> dict[str, Spec]:
    """Return the methods of a config by label, each with its name."""
    methods = {label: {"name": label, **spec} for label, spec in plain(config.methods).items()}
    if "vanilla" not in methods:
        raise ValueError(f"methods must contain vanilla, the base of every ratio; got {[*methods]}")
    return methods


def plain(node: DictConfig) -> Spec:
    """Return a part of a config as plain values."""
    return dict(OmegaConf.to_container(node, resolve=True))


def _step(
    model: torch.nn.Module, spec: Spec, x: torch.Tensor, y: torch.Tensor
) -> Callable[[], None]:
    division.compress(model, str(spec["name"]), **options_of(spec))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

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
        where = (plain(config.network), config.peak_batch, config.image)
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


def _memory(spec: Spec, network: Spec, batch: int, image: int, default: bool) -> dict[str, int]:
    found = peak.measure_step(network, spec, batch, image)
    if default:
        usual = peak.measure_step(network, spec, batch, image, default_allocator=True)
        found["peak_default"] = usual["peak"]
    return found


def table_of(rows: list[record.Row], config: DictConfig) -> Table:
    """Lay rows out for the screen."""
    found = {(str(r.config["label"]), r.metric): r for r in rows}
    table = Table(
        title=f"{config.network.name}, {config.image} px, channels_last; "
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


@hydra.main(version_base="1.3", config_path="../configs", config_name="benchmark")
def main(config: DictConfig) -> None:
    """Measure, record, print."""
    started = time.monotonic()
    with one_sentence():
        record.check_writable(Path(config.paths.results))
        rows = record.complete(rows_of(config), started)
        record.append(Path(config.paths.results), rows)
    console = Console()
    console.width = max(console.width, 100)
    console.print(table_of(rows, config))


if __name__ == "__main__":
    check_overrides(sys.argv[1:], "benchmark")
    main()
