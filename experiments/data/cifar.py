"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the official binary files, or torchvision's pickles."""

import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.data import files
from experiments.data.dataset import Data, check_image_size
from experiments.data.memory import Augment, InMemory, resize

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Part:
    """A file of the binary layout and its twin in the pickle layout."""

    binary: str
    pickled: str
    count: int
    md5: str  # of the pickle, as published and as torchvision has it
    sha256: str | None = None  # of the binary file


@dataclass(frozen=True)
class Cifar:
    """What is known of a CIFAR set before its files are read."""

    classes: int
    binary_folder: str
    pickle_folder: str
    labels: tuple[str, ...]  # keys of the label bytes before each image; the last one is the class
    train: tuple[Part, ...]
    test: tuple[Part, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


CIFAR10_SUMS = {  # md5 of the pickle, sha256 of the binary file
    "data_batch_1": (
        "c99cafc152244af753f735de768cd75f",
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    ),
    "data_batch_2": (
        "d4bba439e000b95fd0a9bffe97cbabec",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    ),
    "data_batch_3": (
        "54ebc095f3ab1f0389bbae665268c751",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    ),
    "data_batch_4": (
        "634d18415352ddfa80567beed471001a",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    ),
    "data_batch_5": (
        "482c414d41f54cd18b22e5b47cb7c3cb",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ),
    "test_batch": (
        "40351d587109b95175f43aff81a1287e",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
}
CIFAR10_PARTS = tuple(
    Part(f"{name}.bin", name, 10_000, md5, sha256) for name, (md5, sha256) in CIFAR10_SUMS.items()
)
SETS = {
    "cifar10": Cifar(
        classes=10,
        binary_folder="cifar-10-batches-bin",
        pickle_folder="cifar-10-batches-py",
        labels=("labels",),
        train=CIFAR10_PARTS[:5],
        test=CIFAR10_PARTS[5:],
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    # Nobody publishes sums of the binary files of CIFAR-100: their size, the range of their labels
    # and the balance of their classes are checked instead.
    "cifar100": Cifar(
        classes=100,
        binary_folder="cifar-100-binary",
        pickle_folder="cifar-100-python",
        labels=("coarse_labels", "fine_labels"),
        train=(Part("train.bin", "train", 50_000, "16019d7e3df5f24257cddd939b257f8d"),),
        test=(Part("test.bin", "test", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}


def load(
    name: str,
    root: str | Path | None = None,
    image_size: int | None = None,
    seed: int = 0,
    padding: int = 4,
    flip: bool = True,
    cutout: int = 0,
) -> Data:
    """50,000 training and 10,000 test images, in official order; the files are checked first."""
    image_size = SIDE if image_size is None else image_size
    check_image_size(image_size)
    facts = SETS[name]
    augment = Augment(padding, flip, cutout)
    folder = files.find(name, (facts.binary_folder, facts.pickle_folder), root)
    sha256 = hashlib.sha256()

    def part(parts: tuple[Part, ...]) -> InMemory:
        pieces = [records(name, folder, part) for part in parts]
        for _, seen in pieces:
            sha256.update(seen.encode())
        table = torch.from_numpy(np.concatenate([piece for piece, _ in pieces]))
        images = table[:, len(facts.labels) :].reshape(-1, 3, SIDE, SIDE)
        labels = table[:, len(facts.labels) - 1].long()
        return InMemory(resize(images, image_size), labels, facts.mean, facts.std, augment)

    train, test = part(facts.train), part(facts.test)
    shape = (3, image_size, image_size)
    return Data(name, train, test, facts.classes, shape, facts.mean, facts.std, sha256.hexdigest())


def records(name: str, folder: Path, part: Part) -> tuple[np.ndarray, str]:
    """Rows of label bytes and pixel bytes, and their sha256: the same from either layout."""
    facts = SETS[name]
    if folder.name == facts.binary_folder:
        path = folder / part.binary
        content = files.read(path, name)
        files.check_size(content, part.count * (len(facts.labels) + PIXELS), path)
    else:
        path = folder / part.pickled
        content = pickled_records(files.read(path, name), facts, part, path)
    table = np.frombuffer(content, np.uint8).reshape(part.count, -1)
    if part.sha256 is not None:
        return table, files.check_sum(content, part.sha256, path, "sha256")
    check_balance(table[:, len(facts.labels) - 1], facts.classes, path)
    return table, hashlib.sha256(content).hexdigest()


def check_balance(labels: np.ndarray, classes: int, path: Path) -> None:
    """The classes of a whole file are equally large."""
    sizes = np.bincount(labels, minlength=classes)
    if len(sizes) != classes or np.ptp(sizes):
        raise ValueError(
            f"{path} has labels 0 to {labels.max()} with {sizes.min()} to {sizes.max()} images "
            f"each, expected {classes} classes of {len(labels) // classes}: it is damaged"
        )


def pickled_records(content: bytes, facts: Cifar, part: Part, path: Path) -> bytes:
    """The records of a pickle, which is opened only once its md5 is proven."""
    files.check_sum(content, part.md5, path, "md5")
    entry = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    columns = [np.asarray(entry[key.encode()], np.uint8)[:, None] for key in facts.labels]
    return np.hstack([*columns, entry[b"data"]]).tobytes()


class ArraysOnly(pickle.Unpickler):
    """Makes NumPy arrays and plain containers: a file is input, never code."""

    ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"a data file may not use {module}.{name}")
        # The files are older than the module's present name.
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)
