"""What autograd saves for the published networks, counted without data: `make benchmark-sizes`.

The planner's dry run counts: the ledger's bytes are exact, and a batch of 256 takes a second on any
machine.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from division.dryrun import OPTIMIZERS, DryRun
from division.method import resolve
from experiments import models, record

GIB = 2**30
MODELS = ("resnet50", "wide_resnet50_2")
PUBLISHED: dict[str, object] = {"align": "reference", "share": False, "fine_bits": 2}
PUBLISHED_POOLING: dict[str, object] = {"align": "reference", "masks": False, "share": False}
Variants = dict[str, tuple[str, dict[str, object]]]
METHODS: Variants = {
    "vanilla": ("vanilla", {}),
    "division": ("division", {}),
    "division-recompute": ("division", {"recompute": True}),
    "division-recompute-3": ("division", {"bits": 3, "recompute": True}),
    "division-recompute-deep": ("division", {"recompute": "deep"}),
    "division-published": ("division", PUBLISHED),
    "actnn": ("actnn", {}),
    "pooling": ("pooling", {}),
    "pooling-all": ("pooling", {"scope": "all"}),
    "pooling-published": ("pooling", PUBLISHED_POOLING),
    "pooling-published-4": ("pooling", {"block": 4, **PUBLISHED_POOLING}),
    "pooling-published-1": ("pooling", {"block": 1, **PUBLISHED_POOLING}),
    "checkpoint": ("checkpoint", {}),
    "autocast": ("autocast", {}),
}


def runs_of(model: str, variants: Variants, image: int) -> Iterator[tuple[str, DryRun]]:
    """Yield a dry run of a published network under each of the variants of the methods."""
    network = models.build(model, classes=1000, image_size=image)
    run = DryRun(network, (3, image, image), torch.float32, None, OPTIMIZERS["momentum"], loss=None)
    for label, (method, options) in variants.items():
        with run.under(resolve(method, **options)):
            yield label, run


def row_of(
    experiment: str,
    model: str,
    label: str,
    variant: tuple[str, dict[str, object]],
    counted: tuple[str, str, int],
    **config: object,
) -> record.Row:
    """Return the row of a metric, its unit and its value for one of the published networks."""
    (method, options), (metric, unit, value) = variant, counted
    return record.Row(
        experiment=experiment,
        method=method,
        options=options,
        model=model,
        dataset=f"fake-{config['image']}",
        seed=0,
        metric=metric,
        unit=unit,
        value=value,
        scale="paper",
        config={"label": label, **config, **options},
    )


def rows_of(batch: int, image: int) -> list[record.Row]:
    """Count every model under every method."""
    rows = []
    for model in MODELS:
        for label, run in runs_of(model, METHODS, image):
            counted = ("saved_bytes", "B", run.measure(batch).saved_bytes)
            settings = {"batch": batch, "image": image}
            rows.append(row_of("sizes", model, label, METHODS[label], counted, **settings))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=224, help="pixels")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where rows go")
    arguments = parser.parse_args()
    rows = record.measured(arguments.results, lambda: rows_of(arguments.batch, arguments.image))
    table = Table("model", "method", "GiB saved", title=f"batch {arguments.batch}")
    for row in rows:
        table.add_row(row.model, str(row.config["label"]), f"{row.value / GIB:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
