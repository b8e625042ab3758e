"""CIFAR: both layouts, the proof of every file, where it is looked for; the real CIFAR-10."""

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up_cifar import keep_only, make_up

from experiments import data
from experiments.data import cifar, files


def test_both_cifar_layouts_give_the_same_data(made_up: str, places: Path) -> None:
    facts = cifar.SETS[made_up]
    binary = data.load(made_up, root=places)
    keep_only(places, made_up, "pickle")
    pickled = data.load(made_up, root=places)
    assert len(binary.train) == sum(part.count for part in facts.train)
    assert len(binary.test) == sum(part.count for part in facts.test)
    assert binary.classes == facts.classes
    for one, other in ((binary.train, pickled.train), (binary.test, pickled.test)):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert one.labels.bincount().tolist() == [len(one) // facts.classes] * facts.classes
    assert binary.sha256 == pickled.sha256
    raw = (places / "elsewhere" / facts.test[0].binary).read_bytes()
    head = len(facts.labels)
    assert binary.test.labels[0] == raw[head - 1]
    assert binary.test.images[0].contiguous().view(-1).tolist() == list(raw[head : head + 3072])


def test_cifar_at_another_size(made_up10: str, places: Path) -> None:
    found = data.load(made_up10, root=places, image_size=16)
    assert found.image_shape == tuple(found.train.images.shape[1:]) == (3, 16, 16)


def test_a_changed_binary_file_names_file_and_sums(made_up10: str, places: Path) -> None:
    path = places / "cifar-10-batches-bin" / "data_batch_3.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    seen, expected = hashlib.sha256(content).hexdigest(), cifar.SETS["cifar10"].train[2].sha256
    with pytest.raises(
        ValueError, match=f"data_batch_3.bin has sha256 {seen}, expected {expected}"
    ):
        data.load("cifar10", root=places)


def test_a_cut_off_file_names_its_size(made_up: str, places: Path) -> None:
    path = keep_only(places, made_up, "binary") / cifar.SETS[made_up].test[0].binary
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    message = f"{path.name} has {len(whole) - 7} bytes, expected {len(whole)}"
    with pytest.raises(ValueError, match=message):
        data.load(made_up, root=places)


def test_binary_cifar100_without_published_sums_is_checked_by_its_labels(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_up("cifar100", places, monkeypatch)
    path = places / "cifar-100-binary" / "test.bin"
    content = bytearray(path.read_bytes())
    content[1] = (content[1] + 1) % 100
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"test.bin has .* 1 to 3 images each, expected 100 cl"):
        data.load("cifar100", root=places)


def test_a_missing_file_is_named(made_up: str, places: Path) -> None:
    path = keep_only(places, made_up, "pickle") / cifar.SETS[made_up].train[0].pickled
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path} is missing; get it with `make data-"):
        data.load(made_up, root=places)


class Evil:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.trace),)


def test_nothing_is_unpickled_before_its_md5_is_right(made_up10: str, places: Path) -> None:
    path = keep_only(places, "cifar10", "pickle") / "data_batch_1"
    path.write_bytes(pickle.dumps(Evil(places / "trace"), protocol=2))
    with pytest.raises(
        ValueError, match=r"data_batch_1 has md5 [0-9a-f]{32}, expected [0-9a-f]{32}"
    ):
        data.load("cifar10", root=places)
    assert not (places / "trace").exists()


def test_a_pickle_with_a_forged_md5_still_cannot_run_code(
    made_up10: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep_only(places, "cifar10", "pickle") / "data_batch_1"
    path.write_bytes(pickle.dumps(Evil(places / "trace"), protocol=2))
    facts = cifar.SETS["cifar10"]
    forged = replace(facts.train[0], md5=hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setitem(cifar.SETS, "cifar10", replace(facts, train=(forged,)))
    with pytest.raises(pickle.UnpicklingError, match=r"may not use \w+.mkdir"):
        data.load("cifar10", root=places)
    assert not (places / "trace").exists()


def test_missing_data_names_the_places_and_the_commands(places: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        data.load("cifar10", root=places)
    for part in (
        str(places / "cifar-10-batches-bin"),
        str(places / "cifar-10-batches-py"),
        "data/cifar-10-batches-bin",
        "make data-cifar10",
        "scripts/get_data.py cifar10",
        "DATA_DIR",
    ):
        assert part in str(caught.value)
    with pytest.raises(FileNotFoundError, match="imagenet cannot be fetched by a script: lay it"):
        data.load("imagenet")


def test_data_dir_then_the_data_folder_are_searched(
    made_up10: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        data.load("cifar10")
    monkeypatch.setenv("DATA_DIR", str(places))
    assert len(data.load("cifar10").test) == 20
    assert files.places("given") == [Path("given"), Path("data")]
    monkeypatch.delenv("DATA_DIR")
    places.rename("data")
    assert len(data.load("cifar10").test) == 20
    assert files.places("data") == files.places(None) == [Path("data")]


def test_real_cifar10(data_dir: Path) -> None:
    if not any((data_dir / f"cifar-10-batches-{kind}").is_dir() for kind in ("bin", "py")):
        pytest.skip("DATA_DIR has no CIFAR-10")
    found = data.load("cifar10", root=data_dir)
    assert (len(found.train), len(found.test)) == (50_000, 10_000)
    assert found.train.labels.bincount().tolist() == [5000] * 10
    assert found.test.labels.bincount().tolist() == [1000] * 10
    assert found.train.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert found.test.labels[:5].tolist() == [3, 8, 8, 0, 6]
    shades = found.train.images.permute(1, 0, 2, 3).reshape(3, -1)
    for plane, mean, std in zip(shades, found.mean, found.std, strict=True):
        counts = plane.bincount(minlength=256).double() / plane.numel()
        levels = torch.arange(256) / 255
        seen = float((counts * levels).sum())
        assert round(seen, 4) == mean
        assert round(float((counts * (levels - seen) ** 2).sum().sqrt()), 4) == std
    assert found.sha256 == "9a5bcfec531a52ec23c8b757ae038db2a9db1b0c869b7da8543f4cd0cfb14034"
