"""How the CPU kernels are compiled, kept on disk and given threads."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload, attr-defined"
# mypy: disable-error-code="no-any-return"

import functools
import hashlib
import os
from contextlib import contextmanager
from pathlib import Path

import numba
import torch
from numba import njit

_OPTIONS = {"error_model": "numpy", "boundscheck": False, "nogil": True}


def inlined(function):
    """Compile a helper into its callers, where LLVM sees constants and array bounds."""
    return njit(forceinline=True, **_OPTIONS)(function)


def kernel(function=None, *, parallel=False):
    """Compile a kernel and keep the machine code on disk, where there is a place to keep it."""
    if function is None:
        return lambda function: kernel(function, parallel=parallel)
    try:
        compiled = njit(cache=True, parallel=parallel, **_OPTIONS)(function)
    except RuntimeError:  # no writable cache directory
        return njit(parallel=parallel, **_OPTIONS)(function)
    # Numba would look only at the kernel's own file to see whether the code on disk is stale.
    compiled._cache._cache_file._source_stamp = _sources_digest()
    return compiled


@functools.cache
def _sources_digest() -> str:
    """Return a digest of everything that is compiled into the kernels."""
    here = Path(__file__).parent
    files = [*sorted(here.glob("cpu_*.py")), here.parent / "bits.py", here.parent / "quantize.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@functools.cache
def most_threads() -> int:
    """Return how many threads a parallel kernel may use."""
    if not (os.environ.keys() & {"NUMBA_THREADING_LAYER", "NUMBA_THREADING_LAYER_PRIORITY"}):
        numba.config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]
    threads = torch.get_num_threads()
    numba.get_num_threads()  # starts the threads, which settles the layer
    torch.set_num_threads(threads)  # they share an OpenMP, and Numba has just set its own number
    if numba.threading_layer() == "workqueue":
        return 1  # this layer aborts the process if two Python threads enter it
    return numba.config.NUMBA_NUM_THREADS


@contextmanager
def limited_threads(threads: int):
    """Let parallel kernels use this many threads, then restore the caller's setting."""
    before = numba.get_num_threads()
    if before == threads:
        yield
        return
    numba.set_num_threads(threads)
    try:
        yield
    finally:
        numba.set_num_threads(before)
