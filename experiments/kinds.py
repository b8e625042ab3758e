"""What each kind of layer makes autograd save for ResNet-50, without data: rows for a figure.

python -m experiments.kinds
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import division
from division.ledger import Ledger
from experiments import models, record
from experiments.sizes import METHODS

MODEL = "resnet50"
LABELS = (
    "vanilla",
    "autocast",
    "pooling",
    "checkpoint",
    "pooling-all",
    "division-published",
    "division",
    "division-recompute",
    "division-recompute-deep",
    "actnn",
)
_KINDS = {  # by the start of the name of the autograd node
    "Convolution": "convolution",
    "NativeBatchNorm": "normalisation",
    "Relu": "ReLU",
    "MaxPool": "pooling",
    "checkpoint": "checkpointed block",
}


def kind_of(node: str) -> str:
    """Return the kind of layer that an autograd node belongs to."""
    return next((kind for start, kind in _KINDS.items() if node.startswith(start)), "other")


def bytes_by_kind(ledger: Ledger) -> dict[str, int]:
    """Add up what is held now; a tensor that two layers save counts for the first."""
    found: Counter[str] = Counter()
    for row in ledger.rows:
        found[kind_of(row.node)] += row.bytes_after
    return {kind: size for kind, size in found.items() if size}


def measured(label: str, batch: int, image: int) -> dict[str, int]:
    """Count one method, under FakeTensorMode."""
    method, options = METHODS[label]
    with FakeTensorMode():
        network = models.build(MODEL, classes=1000, image_size=image)
        division.compress(network, method, **options)
        return bytes_by_kind(division.measure(network, torch.randn(batch, 3, image, image)))


def rows_of(batch: int, image: int) -> list[record.Row]:
    """Count every method."""
    return [
        record.Row(
            experiment="kinds",
            method=METHODS[label][0],
            options=METHODS[label][1],
            model=MODEL,
            dataset=f"fake-{image}",
            seed=0,
            metric="saved_bytes",
            unit="B",
            value=value,
            scale="paper",
            config={"label": label, "batch": batch, "image": image, "kind": kind},
        )
        for label in LABELS
        for kind, value in measured(label, batch, image).items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--image", type=int, default=224, help="pixels")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where rows go")
    arguments = parser.parse_args()
    record.measured(arguments.results, lambda: rows_of(arguments.batch, arguments.image))


if __name__ == "__main__":
    main()
