"""Which backend computes: chosen by device, or forced for a while with `use`."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType

import torch

from division.codec import check_choice
from division.kernels import cpu, gpu, reference

BACKENDS = ("reference", "cpu", "gpu")
_MODULES = {"reference": reference, "cpu": cpu, "gpu": gpu}
_USUAL = {"cpu": "cpu", "cuda": "gpu"}  # by type of device; any other has the definition
_forced: ContextVar[str | None] = ContextVar("division_kernels", default=None)


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Force a backend inside the context.

    "reference" is plain PyTorch, "cpu" Numba and "gpu" Triton, which takes CPU tensors only where
    it interprets kernels: with TRITON_INTERPRET=1 in the environment.
    """
    check_choice("backend", backend, BACKENDS)
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


def active(device: torch.device) -> str:
    """Return the name of the backend that serves tensors on a device."""
    forced = _forced.get()
    if forced == "reference":
        return forced
    backend = forced or _USUAL.get(device.type)
    if backend is None:
        return "reference"
    trouble = _trouble(backend, device)
    if trouble and forced:
        raise RuntimeError(f"the {forced} kernels cannot be used: {trouble}")
    if trouble:
        _say_once(backend, trouble)
        return "reference"
    return backend


def takes_byte_masks(device: torch.device) -> bool:
    """Tell whether masks are best given to the backward of a layer as bytes.

    A GPU casts what an operator reads inside its loop; a CPU would make a whole cast copy first.
    """
    return (_forced.get() or _USUAL.get(device.type)) == "gpu"


def _trouble(backend: str, device: torch.device) -> str | None:
    if backend == "gpu":
        return gpu.usable(device)
    return cpu.usable() if device.type == "cpu" else f"the tensor is on {device}"


def backend_for(device: torch.device) -> ModuleType:
    """Return the module that computes for a device."""
    return _MODULES[active(device)]


@functools.cache
def _say_once(backend: str, trouble: str) -> None:
    warnings.warn(
        f"plain PyTorch stands in for the fast {backend.upper()} kernels (several times slower):"
        f" {trouble}",
        RuntimeWarning,
        stacklevel=2,
    )
