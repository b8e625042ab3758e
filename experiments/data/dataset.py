"""What every dataset offers: the `Data` pair, the order of an epoch, and normalised batches."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Split(Protocol):
    """One part of a dataset. The same (seed, epoch) gives the same batches, bit for bit."""

    def __len__(self) -> int: ...

    def steps(self, batch_size: int, train: bool, drop_last: bool = False) -> int:
        """Batches in an epoch."""
        ...

    def batches(
        self,
        batch_size: int,
        epoch: int,
        seed: int,
        train: bool,
        memory_format: torch.memory_format = torch.channels_last,
        drop_last: bool = False,
        start: int = 0,
    ) -> Iterator[Batch]:
        """(float32 images, int64 labels) from step `start` of the epoch on.

        With `train` the order is shuffled and the images are augmented; without it the images
        come as they are, in the order in which they are stored.
        """
        ...


@dataclass(frozen=True, eq=False)
class Data:
    """A dataset, and the facts about it that models and records need."""

    name: str
    train: Split
    test: Split
    classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str


def count_steps(count: int, batch_size: int, train: bool, drop_last: bool) -> int:
    """Batches in an epoch of `count` images; a batch that training cannot fill is an error."""
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}, it must be at least 1")
    if train and batch_size > count:
        raise ValueError(f"batch_size {batch_size} is larger than the training set of {count}")
    return count // batch_size if drop_last else -(-count // batch_size)


def check_start(start: int, steps: int) -> None:
    """`start == steps` is an epoch that is already over: no batches, no error."""
    if not 0 <= start <= steps:
        raise ValueError(f"start is {start}, the epoch has steps 0 to {steps - 1}")


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator of its own for each (seed, epoch), so that resuming needs no stored state."""
    digest = hashlib.sha256(f"{seed} {epoch}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Bytes (N, H, W, C) to (N, C, H, W) floats in channels_last, as (x / 255 - mean) / std."""
    count, height, width, channels = pixels.shape
    scale = 1 / (255 * torch.tensor(std, dtype=torch.float64))
    shift = -torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)
    # A whole row against a tiled row: broadcasting over three channels alone is ten times slower.
    rows = pixels.reshape(count, height, width * channels).float()
    rows.mul_(scale.float().repeat(width)).add_(shift.float().repeat(width))
    return rows.view(count, height, width, channels).permute(0, 3, 1, 2)


def check_image_size(image_size: int) -> None:
    """An image size is a positive whole number of pixels."""
    if not isinstance(image_size, int) or isinstance(image_size, bool) or image_size < 1:
        raise ValueError(f"image_size is {image_size!r}, it must be a whole number of pixels >= 1")
