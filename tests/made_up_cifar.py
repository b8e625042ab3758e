"""Small CIFAR sets in both layouts, whose checksums the loader is told."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.data import cifar


def old_pickle(rows: np.ndarray, labels: dict[str, list[int]]) -> bytes:
    """What Python 2 and the NumPy of 2009 wrote: byte strings, and names that have since moved."""

    def text(value: str) -> bytes:
        return b"U" + bytes([len(value)]) + value.encode()

    def whole(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = rows.tobytes()
    dtype = b"cnumpy\ndtype\n(" + text("u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + text("|") + b"NNN" + whole(-1) + whole(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text("b") + b"tR"
    array += b"(K\x01(" + whole(rows.shape[0]) + whole(rows.shape[1]) + b"t" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    lists = [text(k) + b"](" + b"".join(map(whole, v)) + b"e" for k, v in labels.items()]
    return b"\x80\x02}(" + text("data") + array + b"".join(lists) + b"u."


def make_up(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both layouts of a set with few images per file, whose sums the loader is told."""
    facts = cifar.SETS[name]
    chance = np.random.default_rng(0)
    (store / facts.binary_folder).mkdir(parents=True)
    (store / facts.pickle_folder).mkdir()

    def small(part: cifar.Part) -> cifar.Part:
        count = 2 * facts.classes
        pixels = chance.integers(0, 256, (count, 3072), np.uint8)
        fine = chance.permutation(np.repeat(np.arange(facts.classes, dtype=np.uint8), 2))
        labels = np.stack([fine // 5, fine][-len(facts.labels) :])
        rows = np.hstack([labels.T, pixels]).tobytes()
        keys = dict(zip(facts.labels, labels.tolist(), strict=True))
        pickled = old_pickle(pixels, keys)
        (store / facts.binary_folder / part.binary).write_bytes(rows)
        (store / facts.pickle_folder / part.pickled).write_bytes(pickled)
        sha256 = hashlib.sha256(rows).hexdigest() if part.sha256 else None
        return replace(part, count=count, md5=hashlib.md5(pickled).hexdigest(), sha256=sha256)

    train, test = tuple(map(small, facts.train)), tuple(map(small, facts.test))
    monkeypatch.setitem(cifar.SETS, name, replace(facts, train=train, test=test))
    return name


def keep_only(store: Path, name: str, layout: str) -> Path:
    facts = cifar.SETS[name]
    chosen = {"binary": facts.binary_folder, "pickle": facts.pickle_folder}
    other = {"binary": facts.pickle_folder, "pickle": facts.binary_folder}
    (store / other[layout]).rename(store / "elsewhere")
    return store / chosen[layout]
