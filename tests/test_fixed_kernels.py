"""The fixed-length kernels give the definition's bytes, and read no further than the payload."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import CONTENTS, DTYPES, assert_same, torch_threads
from torch import Tensor

from division import bounded, fixedlength, kernels
from division.kernels import cpu

MANY = settings(deadline=None, derandomize=True, max_examples=300)
SHAPES = ((1,), (31,), (33,), (777,), (5, 100), (3, 6, 41), (2, 3, 4, 9, 16), (0, 4, 8, 8))
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """The definitions are many small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def made(shape: tuple[int, ...], content: str, dtype: torch.dtype, channels_last: bool) -> Tensor:
    x = CONTENTS[content](torch.randn(shape)).to(dtype)
    if channels_last and len(shape) in LAST:
        x = x.contiguous(memory_format=LAST[len(shape)])
    return x


def check(x: Tensor, bound: float, dither: bool, seed: int, threads: int = 1) -> None:
    options = (bound, dither, seed)
    expected = fixedlength.pack_bounded(x, *options)
    layout = (list(x.shape), fixedlength.is_channel_last(x))
    with torch_threads(threads):
        found = cpu.pack_bounded(x, *options)
        back = cpu.unpack_bounded(*expected, *layout, *options)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)
    assert_same(back, fixedlength.unpack_bounded(*expected, *layout, *options))


@MANY
@given(
    shape=st.sampled_from(SHAPES)
    | st.tuples(
        st.integers(1, 3),
        st.sampled_from((1, 3, 16, 17, 32, 64, 65, 96)),
        st.integers(1, 20),
        st.integers(1, 20),
    ),
    dtype=st.sampled_from(DTYPES),
    content=st.sampled_from(sorted(CONTENTS)),
    channels_last=st.booleans(),
    bound=st.floats(-6, 1).map(lambda power: 10**power) | st.sampled_from((0.5, 2.0**-7, 1e-30)),
    dither=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_bytes_are_the_definitions(shape, dtype, content, channels_last, bound, dither, seed):
    """Item 4: definition and kernel produce equal payloads."""
    check(made(shape, content, dtype, channels_last), bound, dither, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dither", [False, True])
def test_every_half_value_and_large_maps(dtype, dither):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).to(dtype)
    for bound in (1e-3, 0.3, 700.0):
        check(every, bound, dither, 1)
        check(made((1, 32, 65, 66), "normal", dtype, True), bound, dither, 2, threads=2)
        check(made((1, 32, 65, 65), "relu", dtype, True), bound, dither, 2, threads=2)


def test_threads_do_not_change_bytes(layout):
    x = torch.randn(4, 64, 32, 32).contiguous(memory_format=layout)
    results = []
    for threads in (1, 2):
        with torch_threads(threads):
            parts = cpu.pack_bounded(x, 1e-3, False, 0)
            y = cpu.unpack_bounded(*parts, list(x.shape), x.stride(1) == 1, 1e-3, False, 0)
            results.append((*parts, y))
    for one, two in zip(*results, strict=True):
        assert_same(one, two)


def test_layouts_have_the_same_bytes():
    """Values are coded in logical order: a channels_last tensor as if it were NCHW."""
    for shape in ((2, 48, 9, 9), (3, 64, 8, 8), (2, 3, 4, 8, 6)):
        x = torch.randn(shape)
        last = x.contiguous(memory_format=LAST[len(shape)])
        parts = zip(*(cpu.pack_bounded(t, 0.01, True, 3) for t in (x, last)), strict=True)
        assert all(torch.equal(a, b) for a, b in parts)


def test_a_block_costs_what_the_format_says():
    """A dead block is one byte; signs cost a word only where there are any."""
    x = torch.zeros(4, 32)
    x[1, 5], x[2, 7] = 1.0, -1.0  # 50 steps of 0.02: six bits
    headers, words, index, _ = cpu.pack_bounded(x, 0.01, False, 0)
    assert headers.tolist() == [0, 6, 6 + fixedlength.SIGNED, 0]
    assert words.numel() == 6 + 7
    assert index.numel() == 0


def test_integers_are_the_rounded_quotients():
    """Item 3: what is decoded is round(x / 2 eb) steps, except for what is kept verbatim."""
    x, bound = 3 * torch.randn(5000), 0.0123
    parts = cpu.pack_bounded(x, bound, False, 0)
    y = cpu.unpack_bounded(*parts, [5000], False, bound, False, 0)
    step = torch.tensor(2 * bound)
    steps = (x.double() / (2 * bound)).round()
    kept = torch.ones(5000, dtype=torch.bool)
    kept[parts[2].long()] = False
    near_tie = ((x.double() / (2 * bound)).frac().abs() - 0.5).abs() < 1e-4
    assert torch.equal(y[kept & ~near_tie], (steps.float() * step)[kept & ~near_tie])
    assert torch.equal(y[~kept], x[~kept])


def test_unpacking_is_an_operator(layout):
    x = torch.randn(2, 8, 9, 8).contiguous(memory_format=layout)
    parts = kernels.pack_bounded(x, 0.01, False, 0)
    arguments = (*parts, [2, 8, 9, 8], layout == torch.channels_last, 0.01, False, 0)
    torch.library.opcheck(torch.ops.division.unpack_bounded.default, arguments)


@pytest.mark.parametrize("backend", [cpu, fixedlength])
def test_a_payload_of_the_wrong_length_is_refused(backend):
    """Item 4: the decoder never reads past the payload."""
    headers, words, index, values = cpu.pack_bounded(torch.randn(100), 0.01, False, 0)
    for wrong in (words[:-1], torch.cat([words, words[:1]])):
        with pytest.raises(ValueError, match=rf"{wrong.numel()} words.*ask for {words.numel()}"):
            backend.unpack_bounded(headers, wrong, index, values, [100], False, 0.01, False, 0)


GUARDED = """
import ctypes, mmap, sys
import numpy as np
import torch
from division.kernels import cpu

page = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)


def at_the_edge(tensor):
    # A copy whose last byte is followed by memory that must not be read.
    size = tensor.nbytes
    pages = -(-max(size, 1) // page)
    area = mmap.mmap(-1, (pages + 1) * page)
    place = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.mprotect(ctypes.c_void_p(place + pages * page), page, 0) == 0
    whole = torch.frombuffer(area, dtype=torch.uint8)
    edge = whole[pages * page - size : pages * page].view(tensor.dtype)
    edge.copy_(tensor)
    keep.append(area)
    return edge


keep = []
for shape in ([3, 5, 9, 13], [2, 64, 8, 8], [1000]):
    x = 3 * torch.randn(shape)
    for name in ("bounded", "huffman"):
        pack, unpack = getattr(cpu, "pack_" + name), getattr(cpu, "unpack_" + name)
        parts = pack(x, 0.01, False, 0)
        layout = (shape, False, 0.01, False, 0)
        expected = unpack(*parts, *layout)
        found = unpack(*map(at_the_edge, parts), *layout)
        assert torch.equal(expected, found)
        last = pack(at_the_edge(x.flatten()).view(shape), 0.01, False, 0)
        assert all(torch.equal(a, b) for a, b in zip(parts, last))
import os
os._exit(0)
"""


def test_nothing_beyond_a_tensor_is_read():
    """Item 4, strictly: the page behind every part is out of bounds, and the process survives."""
    run = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_the_bound_is_checked_as_the_decoder_computes():
    """The step of a 16-bit type is a power of two: nothing is rounded, nothing is missing."""
    for dtype in (torch.bfloat16, torch.float16):
        x = (4 * torch.randn(20000)).to(dtype)
        for bound in (0.003, 0.01, 0.013, 0.11):
            grid = bounded.Grid.of(bound, dtype)
            assert bound < grid.step <= 2 * bound
            parts = cpu.pack_bounded(x, bound, False, 0)
            assert parts[2].numel() == 0
