"""How a Triton kernel is started. Can be imported without Triton."""

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from division.quantize import seed_keys

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in gpu_common

_REGISTERS = 65536  # of a multiprocessor, in every architecture since 2012


@dataclass(frozen=True)
class Launch:
    """One start of a kernel: everything that it was given."""

    kernel: Any
    programs: int
    tensors: tuple[Tensor, ...]
    settings: tuple[float, ...]
    warps: int
    constants: dict[str, int]


_recorded: ContextVar[list[Launch] | None] = ContextVar("division_launches", default=None)


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Write launches down instead of running them: what would be compiled, without a GPU."""
    launches: list[Launch] = []
    token = _recorded.set(launches)
    try:
        yield launches
    finally:
        _recorded.reset(token)


@functools.cache
def module(name: str) -> ModuleType:
    """Import kernels when they are first needed."""
    return importlib.import_module(f"division.kernels.{name}")


def raw(x: Tensor) -> Tensor:
    """View bf16 as int16: kernels widen and round it on the bits."""
    return x.view(torch.int16) if x.dtype == torch.bfloat16 else x


def keys_of(seed: int) -> tuple[int, int]:
    """Return the keys of the hash as int32, so that no seed asks for another compiled kernel."""
    first, second = (key - 2**32 if key >= 2**31 else key for key in seed_keys(seed))
    return first, second


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is no smaller than `size`."""
    return 1 << max(0, size - 1).bit_length()


def compile_options(warps: int) -> dict[str, int | bool]:
    """Return how kernels are compiled: without contraction, and with all the registers there are.

    Left to itself the assembler would sooner spill a few than let fewer programs run at once.
    """
    registers = min(255, _REGISTERS // (32 * warps))
    return {"num_warps": warps, "enable_fp_fusion": False, "maxnreg": registers}


def launch(
    kernel: Any,
    programs: int,
    tensors: tuple[Tensor, ...],
    settings: tuple[float, ...],
    warps: int = 4,
    **constants: int,
) -> None:
    """Run a kernel on the device of its tensors, with the options above."""
    if programs == 0:
        return
    recorded = _recorded.get()
    if recorded is not None:
        recorded.append(Launch(kernel, programs, tensors, settings, warps, constants))
        return
    with _place(tensors[0]):
        kernel[(programs,)](*tensors, *settings, **constants, **compile_options(warps))


@contextmanager
def _place(x: Tensor) -> Iterator[None]:
    if x.is_cuda:
        with torch.cuda.device(x.device):
            yield
        return
    with np.errstate(all="ignore"):  # interpreted: NumPy would warn where a GPU says nothing
        yield
