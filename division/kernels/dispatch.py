"""Which backend computes: chosen by device, or forced for a while with `use`."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch

from division.codec import check_choice
from division.kernels import cpu, reference

BACKENDS = ("reference", "cpu")
_forced: ContextVar[str | None] = ContextVar("division_kernels", default=None)


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Force a backend inside the context: "reference" (plain PyTorch) or "cpu" (Numba)."""
    check_choice("backend", backend, BACKENDS)
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


def active(device: torch.device) -> str:
    """Return the name of the backend that serves tensors on a device."""
    forced = _forced.get()
    if forced == "cpu":
        trouble = cpu.usable() if device.type == "cpu" else f"the tensor is on {device}"
        if trouble:
            raise RuntimeError(f"the cpu kernels cannot be used: {trouble}")
    if forced:
        return forced
    if device.type != "cpu":
        return "reference"
    trouble = cpu.usable()
    if trouble:
        _say_once(trouble)
        return "reference"
    return "cpu"


def backend_for(device: torch.device) -> ModuleType:
    """Return the module that computes for a device."""
    return cpu if active(device) == "cpu" else reference


@functools.cache
def _say_once(trouble: str) -> None:
    warnings.warn(
        f"plain PyTorch stands in for the fast CPU kernels (several times slower): {trouble}",
        RuntimeWarning,
        stacklevel=2,
    )
