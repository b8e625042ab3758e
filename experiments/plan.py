"""What fits: `python -m experiments.plan model=resnet50 image=224 budget=24GiB`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch
from matplotlib.figure import Figure
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

import division
from division.ledger import size_text
from division.planner import Entry, Plan, Spec
from experiments import build, models
from experiments.config import FOLDER, check_overrides, one_sentence

DTYPES = ("float32", "bfloat16", "float16", "float64")
PICTURES = (".png", ".pdf", ".svg")
GIB = 2**30


def plan_of(config: DictConfig) -> Plan:
    """Count what a config asks for."""
    if config.dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {config.dtype!r}")
    for key in ("batch", "image", "classes"):
        if not isinstance(config[key], int) or config[key] < 1:
            raise ValueError(f"{key} must be a whole number >= 1; got {config[key]!r}")
    name, options = build.options(config.model)
    found = division.plan(
        lambda: models.build(name, classes=config.classes, image_size=config.image, **options),
        (config.batch, 3, config.image, config.image),
        list(specs(config)),
        str(config.budget),  # 24 is no size: of what?
        dtype=getattr(torch, config.dtype),
        optimizer=config.optimizer,
    )
    counted = [entry.step for entry in found.values() if entry.max_batch is not None]
    if counted and not any(entry.max_batch for entry in found.values()):
        step = counted[0]
        fixed = step.weights + step.optimizer + step.gradients
        raise ValueError(
            f"budget={config.budget}: no batch of {name} fits under any of these methods: weights, "
            f"gradients and optimizer alone take {size_text(fixed)}"
        )
    return found


def specs(config: DictConfig) -> Iterator[Spec]:
    """Yield the methods of a config; an option that is null is not given."""
    methods = OmegaConf.to_container(config.methods, resolve=True)
    unknown = [label for label in config.only or () if label not in methods]
    if unknown:
        raise ValueError(f"only={unknown[0]} is none of the methods: {', '.join(methods)}")
    for label, options in methods.items():
        if config.only is None or label in config.only:
            given = {key: value for key, value in (options or {}).items() if value is not None}
            yield label, given.pop("name", label), given


def frame_of(found: Plan, config: DictConfig) -> pd.DataFrame:
    """Lay a plan out, a line a method, sizes in bytes."""
    common = {
        "model": config.model.name,
        "image": config.image,
        "batch": config.batch,
        "dtype": config.dtype,
        "optimizer": config.optimizer,
        "budget": found.budget,
    }
    lines = [common | _columns(entry) for entry in found.values()]
    return pd.DataFrame(lines).convert_dtypes()  # whole numbers stay whole beside gaps


def _columns(entry: Entry) -> dict[str, Any]:
    step = entry.step
    return {
        "label": entry.label,
        "method": entry.method,
        "options": json.dumps(entry.options),
        "saved": entry.saved_bytes,
        "saved_by_stock": entry.ledger.original_bytes if entry.ledger else None,
        "peak": entry.peak_bytes,
        "peak_in": step.peak_in if step else None,
        "weights": step.weights if step else None,
        "gradients": step.gradients if step else None,
        "optimizer_state": step.optimizer if step else None,
        "inputs": step.inputs if step else None,
        "max_batch": entry.max_batch,
        "note": entry.note,
    }


def figure_of(found: Plan, title: str) -> Figure:
    """Draw what a step needs and what fits, a line of bars a method."""
    entries = [entry for entry in found.values() if entry.step]
    labels = [entry.label for entry in entries]
    figure = Figure(figsize=(9, 1.6 + 0.36 * len(entries)), layout="constrained")
    needs, fits = figure.subplots(1, 2, sharey=True)
    peaks = [entry.peak_bytes / GIB for entry in entries]
    saved = [entry.saved_bytes / GIB for entry in entries]
    needs.barh(labels, peaks, color="0.8", label="peak of a training step")
    needs.barh(labels, saved, height=0.4, color="tab:blue", label="saved for backward")
    needs.set_xlabel(f"GiB at batch {entries[0].step.batch}")
    needs.invert_yaxis()
    figure.legend(*needs.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=9)
    bars = fits.barh(labels, [entry.max_batch for entry in entries], color="tab:green")
    fits.bar_label(bars, padding=3, fontsize=9)
    fits.margins(x=0.15)
    fits.set_xlabel(f"images in the largest batch within {size_text(found.budget)}")
    for axes in (needs, fits):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=11)
    return figure


def table_of(found: Plan) -> Table:
    """Lay a plan out for the screen; notes stand below."""
    heads, *lines = found.table()
    table = Table(title=found.title, caption_justify="left")
    for head in heads[:-1]:
        table.add_column(head, justify="left" if head in ("method", "peak in") else "right")
    for line in lines:
        table.add_row(*line[:-1])
    table.caption = "\n".join(f"{line[0]}: {line[-1]}" for line in lines if line[-1])
    return table


def check_paths(config: DictConfig) -> None:
    """Raise before the counting rather than after it if a file could not be written."""
    for key in ("csv", "plot"):
        path = Path(config[key]) if config[key] else None
        if path and not path.parent.is_dir():
            raise ValueError(f"{key}={path}: there is no folder {path.parent}")
        if path and key == "plot" and path.suffix not in PICTURES:
            raise ValueError(f"plot={path}: a picture ends in {', '.join(PICTURES)}")


def with_any_model(arguments: list[str]) -> list[str]:
    """Have `model=NAME` take names that have no config: those of timm and torchvision."""
    found = []
    for argument in arguments:
        key, _, name = argument.partition("=")
        if key == "model" and name and not (FOLDER / "model" / f"{name}.yaml").exists():
            found += ["~model", f"+model.name={name}"]
        else:
            found.append(argument)
    return found


@hydra.main(version_base="1.3", config_path="../configs", config_name="plan")
def main(config: DictConfig) -> None:
    """Count, print; write the files that were asked for."""
    console = Console()
    console.width = max(console.width, 100)
    with one_sentence():
        check_paths(config)
        with Console(stderr=True).status("counting"):
            found = plan_of(config)
        console.print(table_of(found))
        if config.csv:
            frame_of(found, config).to_csv(config.csv, index=False)
        if config.plot:
            figure_of(found, f"{config.model.name}, {found.title.partition(', ')[2]}").savefig(
                config.plot, dpi=150
            )


if __name__ == "__main__":
    sys.argv[1:] = with_any_model(sys.argv[1:])
    check_overrides(sys.argv[1:], "plan")
    main()
