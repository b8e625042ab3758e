"""Random pixels of any shape, for benchmarks: nothing can be learned from them."""

import hashlib
from pathlib import Path

import torch

from experiments.data.dataset import Data, check_image_size
from experiments.data.memory import Augment, InMemory

MEAN, STD = 0.5, 0.2887  # of a uniform distribution


def load(
    root: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    channels: int = 3,
    classes: int = 10,
    train_images: int = 1024,
    test_images: int = 256,
    padding: int = 4,
    flip: bool = True,
    cutout: int = 0,
) -> Data:
    """`image_size` is a side or a (height, width) pair, 32 if not given."""
    size = 32 if image_size is None else image_size
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2:
        raise ValueError(f"image_size is {size!r}, it must be one number or two")
    for side in pair:
        check_image_size(side)
    height, width = pair
    numbers = (channels, classes, train_images, test_images)
    for key, value in zip(
        ("channels", "classes", "train_images", "test_images"), numbers, strict=True
    ):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{key} is {value!r}, it must be a whole number >= 1")

    generator = torch.Generator().manual_seed(seed)
    mean, std = (MEAN,) * channels, (STD,) * channels
    augment = Augment(padding, flip, cutout)
    sha256 = hashlib.sha256()

    def part(count: int) -> InMemory:
        shape = (count, channels, height, width)
        images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        labels = torch.randint(classes, (count,), generator=generator)
        sha256.update(images.numpy())
        sha256.update(labels.numpy())
        return InMemory(images, labels, mean, std, augment)

    train, test = part(train_images), part(test_images)
    shape = (channels, height, width)
    return Data("synthetic", train, test, classes, shape, mean, std, sha256.hexdigest())
