"""Small sets: all images in memory as bytes, augmented a whole batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.data.dataset import Batch, check_start, count_steps, epoch_generator, normalise


@dataclass(frozen=True)
class Augment:
    """What training does to an image: a shifted crop, a mirror image, a hole."""

    padding: int = 4  # black pixels on each side, of which a random crop keeps some
    flip: bool = True  # left to right, for every second image on average
    cutout: int = 0  # side of the square that is replaced by the mean colour

    def __post_init__(self) -> None:
        for key in ("padding", "cutout"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{key} is {value!r}, it must be a whole number of pixels >= 0")
        if not isinstance(self.flip, bool):
            raise ValueError(f"flip is {self.flip!r}, it must be true or false")


@dataclass(frozen=True)
class Draws:
    """The random choices of an epoch, one entry per step of the order, not per image."""

    order: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor
    hole: Tensor  # (2, N): row and column of the centre

    def __getitem__(self, part: slice) -> "Draws":
        return Draws(
            self.order[part], self.top[part], self.left[part], self.flip[part], self.hole[:, part]
        )


class InMemory:
    """uint8 images (N, C, H, W) with int64 labels (N,)."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment: Augment | None = None,
    ) -> None:
        if images.dtype != torch.uint8 or images.dim() != 4:
            raise ValueError(
                f"images are {images.dtype} {tuple(images.shape)}, wanted torch.uint8 (N, C, H, W)"
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"labels are {labels.dtype} {tuple(labels.shape)}, "
                f"wanted torch.int64 ({len(images)},)"
            )
        # A pixel's channels side by side: a crop then moves pixels, not planes.
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = labels
        self.mean, self.std = mean, std
        self.augment = augment or Augment()

    def __len__(self) -> int:
        return len(self.labels)

    def steps(self, batch_size: int, train: bool, drop_last: bool = False) -> int:
        """Batches in an epoch."""
        return count_steps(len(self), batch_size, train, drop_last)

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
        """As `Split.batches` says; wrong arguments raise here, not at the first batch."""
        steps = self.steps(batch_size, train, drop_last)
        check_start(start, steps)
        draws = self.draw(seed, epoch) if train else None

        def generate() -> Iterator[Batch]:
            for step in range(start, steps):
                part = slice(step * batch_size, (step + 1) * batch_size)
                if draws is None:
                    x = normalise(self.images[part].permute(0, 2, 3, 1), self.mean, self.std)
                    y = self.labels[part].clone()
                else:
                    x = self.augmented(draws[part])
                    y = self.labels[draws.order[part]]
                yield x.contiguous(memory_format=memory_format), y

        return generate()

    def draw(self, seed: int, epoch: int) -> Draws:
        """The choices of a whole epoch at once: a batch is a slice, wherever it starts."""
        generator = epoch_generator(seed, epoch)
        count, (height, width) = len(self), self.images.shape[2:]
        # The order comes first: it does not depend on how the images are augmented.
        order = torch.randperm(count, generator=generator)
        top, left = torch.randint(2 * self.augment.padding + 1, (2, count), generator=generator)
        flip = torch.randint(2, (count,), generator=generator).bool() & self.augment.flip
        rows = torch.randint(height, (count,), generator=generator)
        columns = torch.randint(width, (count,), generator=generator)
        return Draws(order, top, left, flip, torch.stack([rows, columns]))

    def augmented(self, draws: Draws) -> Tensor:
        """Crop, flip, normalise, cut out: a few operations on the whole batch."""
        pixels = crop_and_flip(
            self.images.permute(0, 2, 3, 1)[draws.order],
            self.augment.padding,
            draws.top,
            draws.left,
            draws.flip,
        )
        x = normalise(pixels, self.mean, self.std)
        if self.augment.cutout:
            x.masked_fill_(holes(draws.hole, self.augment.cutout, *x.shape[2:]), 0.0)
        return x


def crop_and_flip(pixels: Tensor, padding: int, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
    """Windows of the padded images (N, H, W, C), as one gather of pixels."""
    count, height, width, channels = pixels.shape
    tall, wide = height + 2 * padding, width + 2 * padding
    padded = pixels.new_zeros(count, tall, wide, channels)
    padded[:, padding : padding + height, padding : padding + width] = pixels
    across = torch.arange(width)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.where(flip[:, None], across.flip(0), across)
    first = torch.arange(count) * (tall * wide)
    index = (first[:, None] + rows * wide)[:, :, None] + columns[:, None, :]
    return padded.view(-1, channels).index_select(0, index.view(-1)).view(pixels.shape)


def holes(centre: Tensor, size: int, height: int, width: int) -> Tensor:
    """True (N, 1, H, W) in a square around each centre; at the border the square is cut off."""
    first = (centre - size // 2)[:, :, None]

    def inside(axis: int, length: int) -> Tensor:
        place = torch.arange(length) - first[axis]
        return (place >= 0) & (place < size)

    return (inside(0, height)[:, :, None] & inside(1, width)[:, None, :])[:, None]


def resize(images: Tensor, image_size: int) -> Tensor:
    """Bytes (N, C, H, W) at another size: bilinear, averaged where it shrinks."""
    if images.shape[2:] == (image_size, image_size):
        return images
    out = images.new_empty(*images.shape[:2], image_size, image_size)
    # In pieces: the floats of a whole set would be four times the set.
    for piece, target in zip(images.split(1000), out.split(1000), strict=True):
        wide = torch.nn.functional.interpolate(
            piece.float(), (image_size, image_size), mode="bilinear", antialias=True
        )
        target.copy_(wide.round_().clamp_(0, 255))
    return out
