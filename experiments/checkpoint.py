"""Checkpoints: written atomically, checksummed, loaded without executing anything in them."""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

_MAGIC = b"division-repro checkpoint\n"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a state; a crash leaves either the old file or the new one, never half of one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".part{os.getpid()}")
    with part.open("wb") as file:
        file.write(_MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n")
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def load(path: Path) -> dict[str, Any]:
    """Read a state; the checksum is compared before anything is unpickled."""
    content = path.read_bytes()
    head = len(_MAGIC) + 65
    expected, payload = content[len(_MAGIC) : head].strip(), content[head:]
    seen = hashlib.sha256(payload).hexdigest().encode()
    if not content.startswith(_MAGIC) or seen != expected:
        raise ValueError(
            f"checkpoint {path} is damaged (sha256 {seen.decode()[:12]}, expected "
            f"{expected.decode(errors='replace')[:12]}); delete it to start the run anew"
        )
    state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
    return state
