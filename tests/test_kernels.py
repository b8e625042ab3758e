"""The CPU kernels give the definition's bytes, strides and dtypes, whatever they are given."""

import math
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from division import bits as bitpack
from division import frequency, windows
from division.codec import flatten_memory
from division.kernels import cpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SIZES = ((1, 1), (7, 7), (14, 14), (16, 16), (28, 28), (32, 32), (33, 5), (5, 33), (40, 24), (3, 1))
SEQUENCES = ((1, 31), (1, 256), (1, 600), (1, 1100))
MANY = settings(deadline=None, derandomize=True, max_examples=600)
FEW = settings(deadline=None, derandomize=True, max_examples=60)

CONTENTS = {
    "normal": lambda x: x,
    "relu": lambda x: x.relu(),
    "constant": lambda x: torch.full_like(x, 1.7),
    "zeros": torch.zeros_like,
    "signed zeros": lambda x: torch.where(x > 0, 0.0, -0.0),
    "huge": lambda x: x * 1e36,
    "overflowing": lambda x: x * 1.5e38,
    "tiny": lambda x: x * 1e-37,
    "subnormal": lambda x: x * 1e-41,
    "nan": lambda x: torch.where(x > 2.5, torch.nan, x),
    "infinite": lambda x: torch.where(x.abs() > 2.5, x.sign() * torch.inf, x),
}


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The definitions are many small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def meaningful_strides(x: Tensor) -> list[int]:
    """Leave out the strides that are never used: torch lets them be anything."""
    if x.numel() == 0:
        return []
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Compare bit for bit, so that NaNs and the signs of zeros count."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert meaningful_strides(ours) == meaningful_strides(theirs)
    assert not ours.requires_grad
    integer = INTEGERS[ours.element_size()]
    assert torch.equal(ours.view(integer), theirs.view(integer))


def maps(shape: tuple[int, ...], content: str, dtype: torch.dtype, channels_last: bool) -> Tensor:
    x = CONTENTS[content](torch.randn(shape)).to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def check_maps(x: Tensor, bits: int, rows: int, cols: int, seed: int, threads: int = 1) -> None:
    expected = frequency.split_maps(x, bits, rows, cols, 0, seed)
    arguments = (*expected, bits, *x.shape[2:], x.dtype, frequency.is_channels_last(x))
    with torch_threads(threads):
        found = cpu.split_maps(x, bits, rows, cols, 0, seed)
        merged = cpu.merge_maps(*arguments)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)
    assert_same(merged, frequency.merge_maps(*arguments))
    finish = finishing(x)
    with torch_threads(threads):
        finished = [cpu.merge_maps_affine(*arguments, *f) for f in (finish, (*finish[:2], None))]
    assert_same(finished[0], frequency.merge_maps_affine(*arguments, *finish))
    assert_same(finished[1], frequency.merge_maps_affine(*arguments, *finish[:2], None))


def finishing(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a scale and a shift for every channel, and a mask."""
    factor, term = torch.randn(2, x.shape[1], generator=torch.Generator().manual_seed(4))
    return factor, term, bitpack.pack_mask(flatten_memory(x), 0.0, math.nan)


@MANY
@given(
    n=st.integers(1, 4),
    c=st.sampled_from((1, 2, 3, 15, 16, 17, 33, 64, 65, 70)),
    size=st.sampled_from(SIZES + SEQUENCES) | st.tuples(st.integers(1, 40), st.integers(1, 40)),
    block=st.sampled_from((0, 2, 3, 4, 8, 16)),
    bits=st.integers(1, 8),
    dtype=st.sampled_from(DTYPES),
    content=st.sampled_from(sorted(CONTENTS)),
    channels_last=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_maps_are_the_definitions_bytes(
    n, c, size, block, bits, dtype, content, channels_last, seed
):
    rows, cols = (max(1, edge // block) for edge in size) if block else (0, 0)
    check_maps(maps((n, c, *size), content, dtype, channels_last), bits, rows, cols, seed)


@pytest.mark.parametrize("content", sorted(CONTENTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_content_in_every_layout(content, dtype, channels_last):
    for rows in (4, 0):
        x = maps((2, 33, 32, 32), content, dtype, channels_last)
        check_maps(x, 2, rows, rows, 5, threads=2)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(2, 20, 32, 32), (2, 20, 7, 7), (1, 3, 14, 14), (1, 99, 1, 256)])
def test_every_width_of_code(bits, shape):
    for channels_last in (False, True):
        x = maps(shape, "normal", torch.float32, channels_last)
        for rows, cols in ((1, max(1, shape[3] // 8)), (0, 0)):
            check_maps(x, bits, rows, cols, bits)


def test_a_large_map_has_smaller_slabs():
    for dtype in DTYPES:
        check_maps(maps((1, 40, 70, 66), "normal", dtype, True), 2, 8, 8, 0)


def test_counters_wrap_like_the_definitions():
    """More than 2**32 quads do not fit a test, but the seed's upper half does."""
    x = torch.randn(1, 3, 32, 32)
    packed = [cpu.split_maps(x, 2, 4, 4, 0, seed)[1] for seed in (1, 1 + 2**32, 2**64 - 1)]
    assert not torch.equal(packed[0], packed[1])
    assert_same(packed[2], frequency.split_maps(x, 2, 4, 4, 0, 2**64 - 1)[1])


def test_every_half_value_survives_8_bits_of_itself():
    """All 65536 bit patterns pass through the conversions, in both directions."""
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).view(256, 1, 1, 256)
        check_maps(x, 8, 0, 0, 3)
        check_maps(x, 8, 1, 32, 3)
        check_maps(x.reshape(256, 1, 16, 16), 8, 1, 1, 3)


def test_rounding_to_half_is_torchs():
    """Decoded values cover normal, subnormal, overflowing and tied results of fp16."""
    scale = torch.tensor([2.0**-26, 2.0**-24, 2.0**-15, 0.0625, 3.0, 260.0], dtype=torch.bfloat16)
    scale = torch.cat([scale, scale * 1.0078125])[None]
    offset = torch.tensor([-1.5, 0.0, 2.0**-25, 2048.0])[:, None].to(torch.bfloat16) * scale
    n, c = offset.shape
    codes = torch.arange(256, dtype=torch.uint8).expand(n, c, 256)
    low = torch.empty((n, c, 0, 0), dtype=torch.bfloat16)
    for dtype in DTYPES:
        arguments = (low, codes, offset, scale.expand(n, c), 8, 1, 256, dtype, False)
        assert_same(cpu.merge_maps(*arguments), frequency.merge_maps(*arguments))


def test_payloads_may_come_back_with_other_strides():
    x = torch.randn(2, 20, 16, 16).contiguous(memory_format=torch.channels_last)
    payload = cpu.split_maps(x, 2, 2, 2, 0, 1)
    expected = cpu.merge_maps(*payload, 2, 16, 16, torch.float32, True)
    dense = [tensor.contiguous() for tensor in payload]
    assert_same(cpu.merge_maps(*dense, 2, 16, 16, torch.float32, True), expected)


def test_threads_do_not_change_bytes():
    for channels_last in (False, True):
        x = maps((4, 64, 32, 32), "normal", torch.float32, channels_last)
        results = []
        for threads in (1, 2):
            with torch_threads(threads):
                payload = cpu.split_maps(x, 2, 4, 4, 0, 9)
                y = cpu.merge_maps(*payload, 2, 32, 32, torch.float32, channels_last)
                mask = cpu.pack_mask(y.flatten(), 0.0, 1.0)
                values = cpu.unpack_mask(mask, y.numel(), 0.0, 1.0, torch.float32)
                results.append((*payload, y, mask, values))
        for one, two in zip(*results, strict=True):
            assert_same(one, two)


def test_first_use_leaves_the_number_of_threads_alone():
    """Numba and torch may share one OpenMP, and Numba sets its number of threads at the start."""
    program = (
        "import torch; from division.kernels import cpu; torch.set_num_threads(1);"
        "cpu.pack_mask(torch.zeros(100_000), 0.0, 1.0); print(torch.get_num_threads())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.strip() == b"1"


def test_python_threads_may_call_at_once():
    x = torch.randn(8, 64, 32, 32)
    expected = cpu.split_maps(x, 2, 4, 4, 0, 1)[1]
    found = []
    workers = [
        threading.Thread(target=lambda: found.append(cpu.split_maps(x, 2, 4, 4, 0, 1)[1]))
        for _ in range(4)
    ]
    with torch_threads(2):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(found) == 4
    assert all(torch.equal(codes, expected) for codes in found)


def test_results_have_no_graph():
    x = torch.randn(2, 3, 32, 32, requires_grad=True)
    payload = cpu.split_maps(x, 2, 4, 4, 0, 1)
    assert not any(tensor.requires_grad for tensor in payload)
    with torch.inference_mode():
        inferred = cpu.split_maps(x + 0, 2, 4, 4, 0, 1)
        cpu.merge_maps(*inferred, 2, 32, 32, torch.float32, False)
    assert torch.equal(inferred[1], payload[1])
    assert not cpu.pack_mask(x.flatten(), 0.0, 1.0).requires_grad


@FEW
@given(
    count=st.sampled_from((0, 1, 7, 8, 9, 63, 511, 512, 513, 1024)) | st.integers(0, 70000),
    dtype=st.sampled_from((*DTYPES, torch.bool, torch.uint8, torch.float64)),
    bounds=st.sampled_from(
        ((0.0, torch.nan), (-1.0, 1.0), (0.1, 0.3), (torch.nan, torch.nan), (0.0, 6.0))
    ),
    values=st.sampled_from(((0.0, 1.0), (0.01, 1.0), (0.0, 1 / 0.9), (-torch.inf, torch.nan))),
    out_dtype=st.sampled_from((*DTYPES, torch.float64, torch.uint8)),
)
def test_masks_are_the_definitions_bytes(count, dtype, bounds, values, out_dtype):
    x = torch.randn(count).mul(8).round().div(10)  # ties with the bounds
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])[:count]
    x[: len(special)] = special if dtype.is_floating_point else 1.0
    x = (x if dtype.is_floating_point else x.abs()).to(dtype)
    packed = bitpack.pack_mask(x, *bounds)
    assert_same(cpu.pack_mask(x, *bounds), packed)
    if out_dtype == torch.uint8:
        values = (0.0, 1.0)
    expected = bitpack.unpack_mask(packed, count, *values, out_dtype)
    assert_same(cpu.unpack_mask(packed, count, *values, out_dtype), expected)


GEOMETRY = st.tuples(st.integers(2, 6), st.integers(1, 3), st.integers(0, 1), st.integers(1, 3))


@FEW
@given(
    size=st.tuples(st.integers(13, 40), st.integers(13, 40)),
    vertical=GEOMETRY,
    horizontal=GEOMETRY,
    c=st.sampled_from((1, 3, 20)),
    layout=st.sampled_from(("contiguous", "channels_last", "one plane", "one plane, last")),
)
def test_window_indices_are_the_definitions_bytes(size, vertical, horizontal, c, layout):
    kernel, stride, padding, dilation = map(list, zip(vertical, horizontal, strict=True))
    x = torch.randn(2, c, *size)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    _, index = F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)
    if layout.startswith("one plane"):
        index = index[0]
    if layout.endswith(", last"):
        index = index.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    geometry = (list(size), kernel, stride, padding, dilation)
    packed = windows.pack_window_index(index, *geometry)
    assert_same(cpu.pack_window_index(index, *geometry), packed)
    unpacked = cpu.unpack_window_index(packed, *geometry)
    assert_same(unpacked, windows.unpack_window_index(packed, *geometry))
    assert torch.equal(unpacked, index)


@pytest.mark.parametrize("ndim", [1, 3])
def test_window_indices_of_other_ranks(ndim):
    pool = F.max_pool1d if ndim == 1 else F.max_pool3d
    x = torch.randn(2, 3, *[9] * ndim)
    geometry = ([9] * ndim, [3] * ndim, [2] * ndim, [1] * ndim, [1] * ndim)
    _, index = pool(x, 3, 2, 1, return_indices=True)
    packed = cpu.pack_window_index(index, *geometry)
    assert_same(packed, windows.pack_window_index(index, *geometry))
    assert torch.equal(cpu.unpack_window_index(packed, *geometry), index)


def test_usable_is_cheap_and_refuses_a_fork():
    assert cpu.usable() is None
    calls = 2000
    best = min(_seconds(cpu.usable, calls) for _ in range(20)) / calls
    assert best < 1e-6

    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the very case
        child = os.fork()
    if child == 0:
        os.write(writer, str(cpu.usable()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    reason = os.read(reader, 1000).decode()
    assert "fork" in reason


def test_usable_says_that_numba_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    cpu._import_trouble.cache_clear()
    assert "numba" in str(cpu.usable())
    monkeypatch.undo()
    cpu._import_trouble.cache_clear()
    assert cpu.usable() is None


def test_maps_that_are_not_dense():
    x = torch.randn(2, 6, 40, 40)[:, ::2, 4:36, 4:36]
    check_maps(x, 2, 4, 4, 1)


def _seconds(function, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start
