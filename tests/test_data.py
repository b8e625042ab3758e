"""Datasets by name, and the batches of those that live in memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from experiments import data
from experiments.data.dataset import normalise
from experiments.data.memory import Augment, InMemory, resize

ROOT = Path(__file__).parent.parent
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def random_set(count: int = 50, size: int = 12, augment: Augment | None = None) -> InMemory:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return InMemory(images, torch.arange(count) % 7, MEAN, STD, augment)


def assert_equal_batches(one: list, other: list) -> None:
    assert len(one) == len(other)
    for (x, y), (u, v) in zip(one, other, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)


def test_unknown_names_and_options_list_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown dataset 'cifar'; known are cifar10, cifar100"):
        data.load("cifar")
    with pytest.raises(ValueError, match=r"digits has no option 'flipp'; it takes padding, flip"):
        data.load("digits", flipp=True)
    with pytest.raises(ValueError, match="image_size is 0"):
        data.load("digits", image_size=0)
    with pytest.raises(ValueError, match="padding is -1"):
        data.load("synthetic", padding=-1)


@pytest.mark.parametrize("name", data.names())
def test_every_dataset_has_a_config_of_options_that_it_takes(name: str) -> None:
    config = yaml.safe_load((ROOT / "configs" / "dataset" / f"{name}.yaml").read_text())
    assert config.pop("name") == name
    assert isinstance(config.pop("image_size"), int)
    assert set(config) <= set(data.option_names(name))


def test_every_config_is_a_dataset() -> None:
    assert sorted(p.stem for p in (ROOT / "configs" / "dataset").glob("**/*.yaml")) == data.names()


def slow_image(image: Tensor, augment: Augment, top: int, left: int, flip: bool) -> np.ndarray:
    pad = augment.padding
    wide = np.pad(image.numpy(), ((0, 0), (pad, pad), (pad, pad)))
    crop = wide[:, top : top + image.shape[1], left : left + image.shape[2]]
    return crop[:, :, ::-1] if flip else crop


def slow_normal(pixels: np.ndarray) -> np.ndarray:
    mean, std = np.array(MEAN)[:, None, None], np.array(STD)[:, None, None]
    return (pixels / 255 - mean) / std


@settings(max_examples=25, deadline=None)
@given(
    padding=st.integers(0, 5), flip=st.booleans(), cutout=st.integers(0, 9), seed=st.integers(0, 99)
)
def test_augmentation_equals_a_loop(padding: int, flip: bool, cutout: int, seed: int) -> None:
    split = random_set(20, 8, Augment(padding, flip, cutout))
    draws = split.draw(seed, 2)
    x = torch.cat([x for x, _ in split.batches(7, 2, seed, train=True)])
    for place, index in enumerate(draws.order.tolist()):
        top, left = int(draws.top[place]), int(draws.left[place])
        pixels = slow_image(split.images[index], split.augment, top, left, bool(draws.flip[place]))
        expected = slow_normal(pixels)
        row, column = draws.hole[:, place].tolist()
        for y in range(8):
            for z in range(8):
                near = -(cutout // 2) <= y - row < cutout - cutout // 2
                if near and -(cutout // 2) <= z - column < cutout - cutout // 2:
                    expected[:, y, z] = 0
        # Rounding of two float32 operations on numbers below 4.
        np.testing.assert_allclose(x[place].numpy(), expected, rtol=0, atol=1e-6)


def test_random_choices_are_uniform() -> None:
    draws = random_set(9000, 4, Augment(padding=1)).draw(0, 0)
    assert torch.equal(draws.order.sort().values, torch.arange(9000))
    for choice in (draws.top, draws.left):
        counts = choice.bincount(minlength=3)
        assert len(counts) == 3
        assert (counts - 3000).abs().max() < 300  # six standard deviations
    assert abs(int(draws.flip.sum()) - 4500) < 300
    assert (draws.hole.flatten().bincount(minlength=4) - 4500).abs().max() < 360


def test_same_seed_and_epoch_give_the_same_batches() -> None:
    split = random_set()
    one = list(split.batches(8, 3, 1, train=True))
    assert_equal_batches(one, list(split.batches(8, 3, 1, train=True)))
    for epoch, seed in ((4, 1), (3, 2), (1, 3)):
        other = list(split.batches(8, epoch, seed, train=True))
        assert not torch.equal(one[0][0], other[0][0])


def test_the_global_random_state_is_neither_read_nor_changed() -> None:
    split = random_set()
    torch.manual_seed(1)
    one = list(split.batches(8, 0, 0, train=True))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert_equal_batches(one, list(split.batches(8, 0, 0, train=True)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_starting_in_the_middle_gives_the_rest(train: bool, drop_last: bool) -> None:
    split = random_set(augment=Augment(cutout=3))
    whole = list(split.batches(8, 5, 0, train, drop_last=drop_last))
    steps = split.steps(8, train, drop_last)
    assert len(whole) == steps == (6 if drop_last else 7)
    for start in range(steps + 1):
        rest = list(split.batches(8, 5, 0, train, drop_last=drop_last, start=start))
        assert_equal_batches(whole[start:], rest)


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    plain, busy = random_set(augment=Augment(0, False)), random_set(augment=Augment(4, True, 3))
    labels = [torch.cat([y for _, y in s.batches(8, 1, 2, train=True)]) for s in (plain, busy)]
    labels.append(torch.cat([y for _, y in plain.batches(13, 1, 2, train=True)]))
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[0], labels[2])


def test_layouts_hold_the_same_numbers(layout: torch.memory_format) -> None:
    split = random_set()
    for train in (True, False):
        other = list(split.batches(8, 0, 0, train))
        found = list(split.batches(8, 0, 0, train, memory_format=layout))
        assert_equal_batches(other, found)
        assert all(x.is_contiguous(memory_format=layout) for x, _ in found)
        assert found[0][0].dtype == torch.float32
        assert found[0][1].dtype == torch.int64


def test_without_training_images_come_as_they_are() -> None:
    split = random_set()
    batches = list(split.batches(8, 9, 9, train=False))
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    expected = np.stack([slow_normal(image.numpy()) for image in split.images])
    np.testing.assert_allclose(x.numpy(), expected, rtol=0, atol=1e-6)
    assert torch.equal(y, split.labels)
    batches[0][1].fill_(99)
    assert split.labels.max() < 7  # a batch is the caller's own


def test_batches_that_cannot_be_made_are_refused_at_once() -> None:
    split = random_set()
    with pytest.raises(ValueError, match="batch_size 51 is larger than the training set of 50"):
        split.batches(51, 0, 0, train=True)
    with pytest.raises(ValueError, match="batch_size is 0"):
        split.steps(0, train=False)
    with pytest.raises(ValueError, match="start is 8, the epoch has steps 0 to 6"):
        split.batches(8, 0, 0, train=True, start=8)
    assert len(list(split.batches(51, 0, 0, train=False))) == 1


def test_wrong_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images are torch.float32 \(2, 3, 4, 4\)"):
        InMemory(torch.zeros(2, 3, 4, 4), torch.zeros(2).long(), MEAN, STD)
    with pytest.raises(ValueError, match=r"labels are torch.int64 \(3,\), wanted torch.int64 \(2"):
        InMemory(torch.zeros(2, 3, 4, 4).byte(), torch.zeros(3).long(), MEAN, STD)


def test_resize_keeps_constants_and_averages_when_it_shrinks() -> None:
    flat = torch.full((3, 1, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(resize(flat, 32), torch.full((3, 1, 32, 32), 77, dtype=torch.uint8))
    checkers = (torch.arange(8)[:, None] + torch.arange(8)).remainder(2).mul(200).byte()
    shrunk = resize(checkers[None, None], 2)
    assert (shrunk.float() - 100).abs().max() <= 2


def test_normalise_takes_any_number_of_channels() -> None:
    pixels = torch.arange(2 * 3 * 5 * 4, dtype=torch.uint8).view(2, 3, 5, 4)
    x = normalise(pixels, (0.5,) * 4, (0.25,) * 4)
    assert x.shape == (2, 4, 3, 5)
    torch.testing.assert_close(x, (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)


def test_digits_are_the_same_everywhere() -> None:
    one, other = data.load("digits"), data.load("digits", seed=7)
    assert one.sha256 == other.sha256
    assert (len(one.train), len(one.test), one.classes) == (1297, 500, 10)
    assert one.image_shape == (3, 32, 32)
    assert torch.equal(one.test.labels, other.test.labels)
    assert torch.equal(one.test.images, other.test.images)


def test_the_split_of_the_digits_is_stratified_and_apart() -> None:
    digits = data.load("digits", image_size=8)
    for split, count in ((digits.train, 1297), (digits.test, 500)):
        share = torch.bincount(split.labels, minlength=10) / count
        assert (share - 0.1).abs().max() < 0.01
    seen = {bytes(image.numpy().tobytes()) for image in digits.train.images}
    assert sum(bytes(i.numpy().tobytes()) in seen for i in digits.test.images) <= 2  # real twins


def test_digits_are_centred_and_scaled_over_the_training_set() -> None:
    digits = data.load("digits", padding=0)
    x = torch.cat([x for x, _ in digits.train.batches(256, 0, 0, train=False)])
    assert x.mean().abs() < 0.01
    assert abs(x.std() - 1) < 0.01


def test_synthetic_data_have_the_shape_asked_for_and_follow_the_seed() -> None:
    made = [data.load("synthetic", image_size=16, seed=seed, train_images=40) for seed in (0, 0, 1)]
    assert made[0].image_shape[-2:] == (16, 16)
    assert len(made[0].train) == 40
    assert torch.equal(made[0].train.images, made[1].train.images)
    assert not torch.equal(made[0].train.images, made[2].train.images)
    assert made[0].sha256 == made[1].sha256 != made[2].sha256
