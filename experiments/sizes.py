"""What autograd saves for the published networks, counted without data: `make benchmark-sizes`.

The real model runs under FakeTensorMode, where tensors have shapes but no memory: the ledger's
bytes are exact, and a batch of 256 takes a second on any machine.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode

import division
from experiments import models, record

GIB = 2**30
MODELS = ("resnet50", "wide_resnet50_2")
PUBLISHED: dict[str, object] = {"align": "reference", "share": False, "fine_bits": 2}
PUBLISHED_POOLING: dict[str, object] = {"align": "reference", "masks": False, "share": False}
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "vanilla": ("vanilla", {}),
    "division": ("division", {}),
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


def saved_bytes(model: str, method: str, options: dict[str, object], batch: int, image: int) -> int:
    """Return what the ledger counts for one forward of a training step."""
    with FakeTensorMode():
        network = models.build(model, classes=1000, image_size=image)
        division.compress(network, method, **options)
        return division.measure(network, torch.randn(batch, 3, image, image)).saved_bytes


def rows_of(batch: int, image: int) -> list[record.Row]:
    """Count every model under every method."""
    return [
        record.Row(
            experiment="sizes",
            method=method,
            options=options,
            model=model,
            dataset=f"fake-{image}",
            seed=0,
            metric="saved_bytes",
            unit="B",
            value=saved_bytes(model, method, options, batch, image),
            scale="paper",
            config={"label": label, "batch": batch, "image": image, **options},
        )
        for model in MODELS
        for label, (method, options) in METHODS.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=224, help="pixels")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where rows go")
    arguments = parser.parse_args()
    rows = record.complete(rows_of(arguments.batch, arguments.image))
    record.append(arguments.results, rows)
    table = Table("model", "method", "GiB saved", title=f"batch {arguments.batch}")
    for row in rows:
        table.add_row(row.model, str(row.config["label"]), f"{row.value / GIB:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
