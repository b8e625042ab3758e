"""Datasets by name: one `load` for the sets that live in memory and for folders of images."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.data import cifar, digits, folder, synthetic
from experiments.data.dataset import Data, Split
from experiments.data.fetch import download
from experiments.data.folder import Folder
from experiments.data.memory import Augment, InMemory

__all__ = ["Augment", "Data", "Folder", "InMemory", "Split", "download", "load", "names"]

LOADERS: dict[str, Callable[..., Data]] = {
    "cifar10": partial(cifar.load, "cifar10"),
    "cifar100": partial(cifar.load, "cifar100"),
    "digits": digits.load,
    "imagenet": partial(folder.load, "imagenet"),
    "imagenette": partial(folder.load, "imagenette"),
    "synthetic": synthetic.load,
}
COMMON = ("name", "root", "image_size", "seed")


def names() -> list[str]:
    """Every dataset `load` knows."""
    return sorted(LOADERS)


def option_names(name: str) -> list[str]:
    """What `load` takes for one dataset beside what it takes for all."""
    return [key for key in inspect.signature(LOADERS[name]).parameters if key not in COMMON]


def load(
    name: str,
    root: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    **options: Any,
) -> Data:
    """The training and the test part of a dataset.

    Args:
        name: one of `names()`.
        root: where the files are; without it DATA_DIR, then ./data.
        image_size: pixels; without it the size the set comes in.
        seed: of the pixels of `synthetic`; every other set is the same for all seeds.
        options: what the loader of this set takes, such as `padding`, `flip` and `cutout`.
    """
    if name not in LOADERS:
        raise ValueError(f"unknown dataset {name!r}; known are {', '.join(names())}")
    for key in options:
        if key not in option_names(name):
            allowed = ", ".join(option_names(name))
            raise ValueError(f"{name} has no option {key!r}; it takes {allowed}")
    return LOADERS[name](root=root, image_size=image_size, seed=seed, **options)
