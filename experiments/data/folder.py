"""ImageNet-like sets: a folder of images per class, decoded by DataLoader workers."""

import hashlib
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.data import files
from experiments.data.dataset import (
    Batch,
    Data,
    check_image_size,
    check_start,
    count_steps,
    epoch_generator,
    normalise,
)

FOLDERS = {"imagenet": ("imagenet",), "imagenette": ("imagenette", "imagenette-mini")}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
ASPECT = (3 / 4, 4 / 3)
Sample = tuple[str, int]


@dataclass(frozen=True)
class View:
    """How a photograph becomes a square."""

    image_size: int
    crop_scale: float = 0.08  # training: the smallest part of the area that a random crop keeps
    center: float = 0.875  # test: the part of the shorter side that the centre crop keeps
    flip: bool = True

    def __post_init__(self) -> None:
        check_image_size(self.image_size)
        for key in ("crop_scale", "center"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"{key} is {getattr(self, key)!r}, it must be in (0, 1]")

    def train(self, image: Image.Image, chance: random.Random) -> Image.Image:
        """Inception-style: any part of the photograph, stretched a little, maybe mirrored."""
        square = self._resized(image, random_box(*image.size, self.crop_scale, chance))
        if self.flip and chance.random() < 0.5:
            return square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return square

    def test(self, image: Image.Image) -> Image.Image:
        """Resize and centre crop, in one resampling."""
        return self._resized(image, center_box(*image.size, self.center))

    def _resized(self, image: Image.Image, box: tuple[float, ...]) -> Image.Image:
        size = (self.image_size, self.image_size)
        return image.resize(size, Image.Resampling.BILINEAR, box=box)


def random_box(
    width: int, height: int, crop_scale: float, chance: random.Random
) -> tuple[int, int, int, int]:
    """A crop of random area and aspect; the whole centre if ten tries do not fit."""
    for _ in range(10):
        area = width * height * chance.uniform(crop_scale, 1)
        aspect = math.exp(chance.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = chance.randint(0, width - w), chance.randint(0, height - h)
            return left, top, left + w, top + h
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def center_box(width: int, height: int, part: float) -> tuple[float, float, float, float]:
    """A centred square of `part` of the shorter side."""
    side = min(width, height) * part
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


class Photographs(Dataset):
    """What runs in a worker: Pillow and NumPy, no kernel and no global random state.

    An item is a whole batch: bytes (N, H, W, 3), or the sentence that says which file is broken,
    which the parent raises without a worker's traceback around it.
    """

    def __init__(self, samples: list[Sample], view: View, chance: str | None) -> None:
        self.samples, self.view, self.chance = samples, view, chance

    def __getitem__(self, indices: list[int]) -> Tensor | str:
        try:
            return torch.from_numpy(np.stack([self.image(index) for index in indices]))
        except ValueError as error:
            return str(error)

    def image(self, index: int) -> np.ndarray:
        path, _ = self.samples[index]
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{path} cannot be read as an image: {error}") from error
        if self.chance is None:
            return np.array(self.view.test(image))
        # Seeded by the image, not by the worker: the number of workers changes nothing.
        return np.array(self.view.train(image, random.Random(f"{self.chance} {index}")))


class Folder:
    """Images in class folders, in the order of their paths."""

    def __init__(self, samples: list[Sample], view: View, workers: int = 2) -> None:
        if not isinstance(workers, int) or workers < 0:
            raise ValueError(f"workers is {workers!r}, it must be a whole number >= 0")
        self.samples, self.view, self.workers = samples, view, workers
        self.labels = torch.tensor([label for _, label in samples])

    def __len__(self) -> int:
        return len(self.samples)

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
        generator = epoch_generator(seed, epoch)
        order = torch.arange(len(self))
        if train:
            order = torch.randperm(len(self), generator=generator)
        chosen = list(order.split(batch_size))[start:steps]
        photographs = Photographs(self.samples, self.view, f"{seed} {epoch}" if train else None)
        loader = DataLoader(
            photographs,
            batch_size=None,
            sampler=[indices.tolist() for indices in chosen],
            num_workers=min(self.workers, len(os.sched_getaffinity(0))),
            generator=generator,  # else the loader draws from the global random state
        )

        def generate() -> Iterator[Batch]:
            for indices, pixels in zip(chosen, loader, strict=True):
                if isinstance(pixels, str):
                    raise ValueError(pixels)
                x = normalise(pixels, MEAN, STD)
                yield x.contiguous(memory_format=memory_format), self.labels[indices]

        return generate()


def listing(folder: Path) -> tuple[list[str], list[Sample]]:
    """Class names and samples of an ImageFolder."""
    from torchvision.datasets import ImageFolder

    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing; expected {folder}/<class>/<image>")
    found = ImageFolder(str(folder))
    return found.classes, found.samples


def load(
    name: str,
    root: str | Path | None = None,
    image_size: int | None = None,
    seed: int = 0,
    workers: int = 2,
    crop_scale: float = 0.08,
    center: float = 0.875,
    flip: bool = True,
) -> Data:
    """<root>/<name>/train and <root>/<name>/val, at 224 pixels or `image_size`."""
    view = View(224 if image_size is None else image_size, crop_scale, center, flip)
    folder = files.find(name, FOLDERS[name], root)
    classes, train = listing(folder / "train")
    test_classes, test = listing(folder / "val")
    if classes != test_classes:
        different = sorted(set(classes) ^ set(test_classes))
        raise ValueError(f"{folder}: train and val differ in the classes {', '.join(different)}")
    # Names and sizes: reading all of ImageNet to hash it would take longer than an epoch.
    sha256 = hashlib.sha256()
    for path, _ in train + test:
        entry = f"{Path(path).relative_to(folder).as_posix()} {os.path.getsize(path)}\n"
        sha256.update(entry.encode())
    return Data(
        name,
        Folder(train, view, workers),
        Folder(test, view, workers),
        len(classes),
        (3, view.image_size, view.image_size),
        MEAN,
        STD,
        sha256.hexdigest(),
    )
