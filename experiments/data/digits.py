"""scikit-learn's handwritten digits: 1,797 real images that need no download."""

import hashlib
from pathlib import Path

import numpy as np
import torch

from experiments.data.dataset import Data, check_image_size
from experiments.data.memory import Augment, InMemory, resize

TEST_IMAGES = 500
BRIGHTEST = 16  # the images hold counts of 0 to 16


def load(
    root: str | Path | None = None,
    image_size: int | None = None,
    seed: int = 0,
    padding: int = 4,
    flip: bool = False,
    cutout: int = 0,
) -> Data:
    """1,297 training and 500 test images, the same for every seed; grey, in three channels.

    8 x 8 pixels are scaled to 32 (or `image_size`), so `padding=4` moves a digit by one pixel of
    the original. A mirrored digit is another sign or none: no flip unless asked for.
    """
    # Half a second to import: only the runs on digits pay for it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    image_size = 32 if image_size is None else image_size
    check_image_size(image_size)
    counts, labels = load_digits(return_X_y=True)
    small = np.rint(counts * (255 / BRIGHTEST)).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=TEST_IMAGES, stratify=labels, random_state=0
    )
    sha256 = hashlib.sha256(small[train].tobytes() + labels[train].tobytes())
    sha256.update(small[test].tobytes() + labels[test].tobytes())

    images = resize(torch.from_numpy(small), image_size)
    shades = images[torch.from_numpy(train)].double() / 255
    mean = (round(shades.mean().item(), 4),) * 3
    std = (round(shades.std(correction=0).item(), 4),) * 3
    augment = Augment(padding, flip, cutout)

    def part(chosen: np.ndarray) -> InMemory:
        index = torch.from_numpy(chosen)
        three = images[index].expand(-1, 3, -1, -1)
        return InMemory(three, torch.from_numpy(labels)[index], mean, std, augment)

    shape = (3, image_size, image_size)
    return Data("digits", part(train), part(test), 10, shape, mean, std, sha256.hexdigest())
