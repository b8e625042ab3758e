"""How a kernel is started: which module, how many threads. Can be imported without Numba."""

import functools
import importlib
from types import ModuleType

import torch

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in cpu_common
_SERIAL_BELOW = 32768  # elements: less is done before a second thread has woken up


@functools.cache
def module(name: str) -> ModuleType:
    """Import kernels when they are first needed."""
    return importlib.import_module(f"division.kernels.{name}")


def launch(
    kernels: ModuleType, name: str, arguments: tuple[float, ...], items: int, work: int
) -> None:
    """Run a kernel over `items`, on one thread if there is little work.

    The module has `name_chunk(*arguments, begin, end)` and, parallel, `name(*arguments, items,
    chunks)`.
    """
    threads = min(torch.get_num_threads(), items) if work >= _SERIAL_BELOW else 1
    if threads > 1:
        threads = min(threads, module("cpu_compile").most_threads())
    if threads <= 1:
        getattr(kernels, name + "_chunk")(*arguments, 0, items)
    else:
        with module("cpu_compile").limited_threads(threads):
            getattr(kernels, name)(*arguments, items, threads)
