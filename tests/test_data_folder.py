"""Folders of images: sizes, order, workers, broken photographs."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_data import assert_equal_batches

from experiments import data
from experiments.data import folder

# From Python 3.12 on a fork beside torch's threads warns; the workers use Pillow and NumPy only.
workers_fork = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    chance = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(("cat", "dog", "eel")):
            target = tmp_path / "imagenette" / split / name
            target.mkdir(parents=True)
            for number in range(count):
                shape = (20 + 9 * label, 40 - 5 * number, 3)
                image = Image.fromarray(chance.integers(0, 256, shape, np.uint8))
                image.convert("L" if number == 1 else "RGB").save(target / f"{number}.jpg")
    return tmp_path


def test_folders_are_read_at_any_size(photographs: Path) -> None:
    found = data.load("imagenette", root=photographs, image_size=24, workers=0)
    assert (len(found.train), len(found.test), found.classes) == (12, 6, 3)
    assert found.image_shape == (3, 24, 24)
    batches = list(found.test.batches(4, 0, 0, train=False))
    assert [tuple(x.shape) for x, _ in batches] == [(4, 3, 24, 24), (2, 3, 24, 24)]
    assert torch.cat([y for _, y in batches]).tolist() == [0, 0, 1, 1, 2, 2]
    order = torch.cat([y for _, y in found.train.batches(5, 0, 0, train=True)])
    assert sorted(order.tolist()) == sorted([0, 1, 2] * 4)
    assert order.tolist() != sorted(order.tolist())
    with pytest.raises(ValueError, match="larger than the training set of 12"):
        found.train.batches(13, 0, 0, train=True)


@workers_fork
def test_folder_batches_do_not_depend_on_workers_or_start(
    photographs: Path, layout: torch.memory_format
) -> None:
    alone = data.load("imagenette", root=photographs, image_size=16, workers=0).train
    helped = data.load("imagenette", root=photographs, image_size=16, workers=2).train
    before = torch.get_rng_state()
    whole = list(alone.batches(5, 1, 2, train=True))
    assert_equal_batches(whole, list(helped.batches(5, 1, 2, True, memory_format=layout)))
    assert_equal_batches(whole[1:], list(helped.batches(5, 1, 2, train=True, start=1)))
    assert torch.equal(before, torch.get_rng_state())
    other = next(alone.batches(5, 2, 2, train=True))
    assert not torch.equal(whole[0][0], other[0])
    assert alone.steps(5, True, True) == len(list(alone.batches(5, 0, 0, True, drop_last=True)))
    (x, _) = next(alone.batches(5, 1, 2, True, memory_format=layout))
    assert x.is_contiguous(memory_format=layout)


@workers_fork
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_photograph_is_named_in_one_sentence(photographs: Path, workers: int) -> None:
    broken = photographs / "imagenette" / "val" / "dog" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    found = data.load("imagenette", root=photographs, image_size=16, workers=workers)
    with pytest.raises(ValueError, match=r"dog/1.jpg cannot be read as an image: ") as caught:
        list(found.test.batches(6, 0, 0, train=False))
    assert "Traceback" not in str(caught.value)


def test_folder_fingerprint_follows_names_and_sizes(photographs: Path) -> None:
    one = data.load("imagenette", root=photographs).sha256
    (photographs / "imagenette").rename(photographs / "imagenette-mini")
    assert data.load("imagenette", root=photographs).sha256 == one
    extra = photographs / "imagenette-mini" / "val" / "dog" / "9.jpg"
    Image.new("RGB", (9, 9)).save(extra)
    assert data.load("imagenette", root=photographs).sha256 != one


def test_folders_without_all_their_parts(photographs: Path) -> None:
    (photographs / "imagenette" / "val" / "cat").rename(photographs / "imagenette" / "val" / "cow")
    with pytest.raises(ValueError, match="train and val differ in the classes cat, cow"):
        data.load("imagenette", root=photographs)
    (photographs / "imagenette" / "val").rename(photographs / "imagenette" / "valid")
    with pytest.raises(FileNotFoundError, match=r"imagenette/val is missing; expected .*/<class>"):
        data.load("imagenette", root=photographs)
    with pytest.raises(ValueError, match=r"crop_scale is 0, it must be in \(0, 1\]"):
        data.load("imagenette", root=photographs, crop_scale=0)
    with pytest.raises(ValueError, match="workers is -1"):
        folder.Folder([], folder.View(16), workers=-1)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 900), st.integers(1, 900), st.floats(0.01, 1), st.integers(0, 2**32))
def test_random_crops_lie_inside(width: int, height: int, scale: float, seed: int) -> None:
    left, top, right, bottom = folder.random_box(width, height, scale, random.Random(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_center_crop_is_the_usual_one() -> None:
    assert folder.center_box(256, 256, 0.875) == (16, 16, 240, 240)
    assert folder.center_box(512, 256, 0.875) == (144, 16, 368, 240)
    chance = np.random.default_rng(0)
    image = Image.fromarray(chance.integers(0, 256, (256, 300, 3), np.uint8))
    seen = folder.View(224).test(image)
    assert np.array_equal(np.array(seen), np.array(image)[16:240, 38:262])
