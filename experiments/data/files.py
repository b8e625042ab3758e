"""Where data is looked for, and the proof that a file is the one it claims to be."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

DEFAULT_ROOT = Path("data")
DOWNLOADS = ("cifar10", "cifar100", "imagenette")


def places(root: str | Path | None) -> list[Path]:
    """The folders that may hold data: `root` or else DATA_DIR, then ./data."""
    first = root or os.environ.get("DATA_DIR")
    return list(dict.fromkeys([Path(first), DEFAULT_ROOT] if first else [DEFAULT_ROOT]))


def find(name: str, folders: Iterable[str], root: str | Path | None) -> Path:
    """The first of `folders` that exists in a place where data may be."""
    candidates = [place / folder for place in places(root) for folder in folders]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"no {name} data: looked for {', '.join(map(str, candidates))}; "
        f"{advice(name)}, or set DATA_DIR to the folder that has it"
    )


def advice(name: str) -> str:
    """How to get the data."""
    if name in DOWNLOADS:
        return f"get it with `make data-{name}` or `python scripts/get_data.py {name} --root data`"
    return (
        f"{name} cannot be fetched by a script: lay it out as data/{name}/train/<class>/*.JPEG "
        f"and data/{name}/val/<class>/*.JPEG"
    )


def read(path: Path, name: str) -> bytes:
    """A file of a dataset whose folder is there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; {advice(name)}") from None


def check_size(content: bytes, expected: int, path: Path) -> None:
    """A cut-off file is told from a changed one."""
    if len(content) != expected:
        raise ValueError(f"{path} has {len(content)} bytes, expected {expected}: it is damaged")


def check_sum(content: bytes, expected: str, path: Path, kind: str) -> str:
    """The sum of `content` (kind "md5" or "sha256"), which must be the expected one."""
    seen = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if seen != expected:
        raise ValueError(f"{path} has {kind} {seen}, expected {expected}: it is damaged")
    return seen
