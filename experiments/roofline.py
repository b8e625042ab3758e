"""What each method costs on a GPU that is not here: `python -m experiments.roofline gpu=rtx3090`.

A training step is walked without data under every method; each operator takes as long as its bytes
or its flops do, whichever is longer. What a method adds to the step is set against the step itself:
the published one of the same GPU where there is one, and the one that the roofline gives.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from division import kernels
from division.codec import check_choice
from division.dryrun import OPTIMIZERS, DryRun
from division.method import resolve
from experiments import models, record
from experiments.benchmark import plain
from experiments.config import check_overrides, flatten, one_sentence
from experiments.provenance import ROOT
from experiments.traffic import Meter, Work

UNITS = {"moved": "B", "flops": "1", "kernel_moved": "B", "step": "s", "extra": "s"}


def walks(config: DictConfig) -> dict[str, list[Work]]:
    """Return the work of a training step under every method."""
    check_choice("dtype", config.dtype, ("float32", "bfloat16"))
    check_choice("layout", config.layout, ("nchw", "channels_last"))
    network = models.build(**plain(config.model), classes=config.classes, image_size=config.image)
    if config.layout == "channels_last":
        network = network.to(memory_format=torch.channels_last)
    sample, dtype = (3, config.image, config.image), getattr(torch, config.dtype)
    run = DryRun(network, sample, dtype, None, OPTIMIZERS["momentum"], loss=None)
    found = {}
    for label, spec in specs(config).items():
        options = {key: value for key, value in spec.items() if key != "name"}
        # Tensors without data lie nowhere; `use` has them treated as those on a GPU are.
        method = resolve(str(spec["name"]), **options)
        with kernels.use("gpu"), run.under(method), Meter() as meter:
            run.walk(config.batch)
        found[label] = meter.work
    return found


def specs(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Return name and options of every method, vanilla among them."""
    chosen = {label: {"name": label, **spec} for label, spec in plain(config.methods).items()}
    if "vanilla" not in chosen:
        raise ValueError(f"methods must contain vanilla, the base of every ratio; got {[*chosen]}")
    return chosen


def seconds(work: Iterable[Work], config: DictConfig) -> float:
    """Return how long operators take one after the other."""
    bandwidth = config.gpu.bandwidth * config.reached.bandwidth
    total = 0.0
    for each in work:
        arithmetic = 0.0
        if each.flops:
            rate = config.gpu.flops[each.dtype] * config.reached.flops
            arithmetic = each.flops / rate
        total += max(each.moved / bandwidth, arithmetic) + config.launch
    return total


def published_step(config: DictConfig, method: str = "vanilla") -> float | None:
    """Return the seconds of a published step of the same network, batch and GPU, if there is one.

    Its precision was not published; see the notes of the table.
    """
    paper = pd.read_csv(ROOT / "results" / "paper" / "throughput.csv")
    here = paper[
        (paper["model"] == config.model.name)
        & (paper["method"] == method)
        & (paper["batch_size"] == config.batch)
        & (paper["device"] == config.gpu.name)
    ]
    is_like_it = len(here) and config.dtype == "float32" and config.image == 224
    return config.batch / float(here["images_per_s"].iloc[0]) if is_like_it else None


def rows_of(config: DictConfig) -> list[record.Row]:
    """Predict every method."""
    found, rows = walks(config), []
    plain = seconds(found["vanilla"], config)
    published = published_step(config)
    for label, spec in specs(config).items():
        work = found[label]
        step = seconds(work, config)
        ours = [each for each in work if each.name.startswith("division::")]
        values = {
            "moved": sum(each.moved for each in work),
            "flops": sum(each.flops for each in work),
            "kernel_moved": sum(each.moved for each in ours),
            "step": step,
            "extra": step - plain,
            "overhead_of_roofline": (step - plain) / plain,
        }
        if published is not None:
            values["overhead_of_published"] = (step - plain) / published
        for metric, value in values.items():
            rows.append(_row(config, label, spec, metric, value))
    return rows


def _row(
    config: DictConfig, label: str, spec: dict[str, Any], metric: str, value: float
) -> record.Row:
    return record.Row(
        experiment=config.experiment,
        method=str(spec["name"]),
        options={key: value for key, value in spec.items() if key != "name"},
        model=config.model.name,
        dataset=f"fake-{config.image}",
        seed=0,
        metric=metric,
        unit=UNITS.get(metric, "1"),
        value=value,
        scale="paper",
        config={**flatten(config), "label": label},
    )


def table_of(rows: list[record.Row], config: DictConfig) -> Table:
    """Lay rows out for the screen."""
    title = f"{config.model.name}, batch {config.batch}, {config.gpu.name}: predicted"
    heads = ("method", "step ms", "extra ms", "of the roofline's step", "of the published step")
    table = Table(*heads, title=title)
    found = {(str(row.config["label"]), row.metric): row.value for row in rows}
    for label in dict.fromkeys(str(row.config["label"]) for row in rows):
        published = found.get((label, "overhead_of_published"))
        table.add_row(
            label,
            f"{1e3 * found[label, 'step']:.0f}",
            f"{1e3 * found[label, 'extra']:.0f}",
            f"{100 * found[label, 'overhead_of_roofline']:+.1f} %",
            "" if published is None else f"{100 * published:+.1f} %",
        )
    return table


@hydra.main(version_base="1.3", config_path="../configs", config_name="roofline")
def main(config: DictConfig) -> None:
    """Predict, record, print."""
    with one_sentence():
        rows = record.measured(Path(config.paths.results), lambda: rows_of(config))
    Console().print(table_of(rows, config))


if __name__ == "__main__":
    check_overrides(sys.argv[1:], "roofline")
    main()
