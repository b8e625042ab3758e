"""What transformers save, and what that does to their gradients: `make benchmark-transformers`.

Untrained networks of timm on seeded noise, so that it needs no data: bytes of a batch of 32 as the
ledger counts them in a real forward, gradient error of a smaller batch against exact gradients.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.nn import functional as F

import division
from experiments import models, record

MODELS = ("vit_small_patch16_224", "swin_tiny_patch4_window7_224", "convnext_tiny")
METHODS: dict[str, dict[str, object]] = {
    "default": {},
    "2 bits": {"bits": 2},
    "4 bits": {"bits": 4},
    "2 bits, recompute": {"bits": 2, "recompute": True},
    "4 bits, recompute": {"bits": 4, "recompute": True},
}
IMAGE, DRAWS = 224, 3


def rows_of(batch: int, error_batch: int) -> Iterator[record.Row]:
    """Measure every network under every setting."""
    settings = [(model, label) for model in MODELS for label in METHODS]
    for name, label in track(settings, "networks"):
        options = METHODS[label]
        torch.manual_seed(0)
        network = models.build(name, classes=10, image_size=IMAGE)
        images = torch.randn(batch, 3, IMAGE, IMAGE)
        small = (images[:error_batch], torch.arange(error_batch) % 10)
        error = division.gradient_error(
            network, "division", small, F.cross_entropy, draws=DRAWS, **options
        )
        ledger = division.measure(division.compress(network, "division", **options), images)
        values = {
            "saved_bytes": (float(ledger.saved_bytes), "B"),
            "saved_ratio": (ledger.ratio, "x"),
            "gradient_error": (error.relative, "relative"),
        }
        for metric, (value, unit) in values.items():
            yield record.Row(
                experiment="transformers",
                method="division",
                options=options,
                model=name,
                dataset=f"noise-{IMAGE}",
                seed=0,
                metric=metric,
                unit=unit,
                value=value,
                n=DRAWS if metric == "gradient_error" else 1,
                scale="paper",
                config={"label": label, "batch": batch, "error_batch": error_batch, **options},
            )


def main() -> None:
    """Measure, record, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="of the bytes")
    parser.add_argument("--error-batch", type=int, default=4, help="of the gradient error")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where rows go")
    arguments = parser.parse_args()
    batches = (arguments.batch, arguments.error_batch)
    rows = record.measured(arguments.results, lambda: rows_of(*batches))
    table = Table("model", "setting", "metric", "value", title=f"batch {arguments.batch}")
    for row in rows:
        table.add_row(row.model, str(row.config["label"]), row.metric, f"{row.value:.4g}")
    Console().print(table)


if __name__ == "__main__":
    main()
