"""The GPU kernels on maps, interpreted, give the definition's bytes, strides and dtypes."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import CONTENTS, DTYPES, SEQUENCES, SIZES, assert_same, maps, torch_threads
from torch import Tensor

from division import frequency
from division.kernels import cpu, gpu

LARGE = ((70, 66), (48, 90), (1, 4500), (33, 40))  # streamed, in at least one of the layouts
FEW = settings(deadline=None, derandomize=True, max_examples=25)
MANY = settings(deadline=None, derandomize=True, max_examples=300)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def check_maps(x: Tensor, bits: int, rows: int, cols: int, seed: int) -> None:
    expected = frequency.split_maps(x, bits, rows, cols, 0, seed)
    arguments = (*expected, bits, *x.shape[2:], x.dtype, frequency.is_channels_last(x))
    found = gpu.split_maps(x, bits, rows, cols, 0, seed)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)
    assert_same(gpu.merge_maps(*arguments), frequency.merge_maps(*arguments))


def cases(most_samples: int, channels: tuple[int, ...], sizes: tuple[tuple[int, int], ...]):
    edge = st.integers(1, 40)
    return given(
        n=st.integers(1, most_samples),
        c=st.sampled_from(channels),
        size=st.sampled_from(sizes) | st.tuples(edge, edge),
        block=st.sampled_from((0, 2, 3, 4, 8, 16)),
        bits=st.integers(1, 8),
        dtype=st.sampled_from(DTYPES),
        content=st.sampled_from(sorted(CONTENTS)),
        channels_last=st.booleans(),
        seed=st.integers(0, 2**63 - 1),
    )


def check_case(n, c, size, block, bits, dtype, content, channels_last, seed) -> None:
    rows, cols = (max(1, edge // block) for edge in size) if block else (0, 0)
    check_maps(maps((n, c, *size), content, dtype, channels_last), bits, rows, cols, seed)


@FEW
@cases(2, (1, 3, 9), SIZES + SEQUENCES[:2])
def test_maps_are_the_definitions_bytes(**case):
    check_case(**case)


@pytest.mark.slow
@MANY
@cases(3, (1, 2, 3, 15, 16, 17, 33), SIZES + SEQUENCES + LARGE)
def test_many_more_maps(**case):
    check_case(**case)


@pytest.mark.parametrize("content", sorted(CONTENTS))
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_content_in_every_layout(content, channels_last):
    for dtype, rows in zip((*DTYPES, torch.float32), (1, 1, 1, 0), strict=True):
        check_maps(maps((1, 5, 9, 9), content, dtype, channels_last), 2, rows, rows, 5)


@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width_of_code(bits):
    for channels_last in (False, True):
        for shape in ((2, 3, 16, 16), (1, 5, 7, 7), (1, 3, 1, 70)):
            x = maps(shape, "normal", torch.float32, channels_last)
            check_maps(x, bits, 1, max(1, shape[3] // 8), bits)


@pytest.mark.parametrize("size", [*LARGE, (1, 64)])
@pytest.mark.parametrize("bits", [2, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_maps_that_are_read_twice(size, bits, channels_last):
    """Too large for a program's registers, or with blocks too long to sum in them."""
    blocks = [(0, 0), (1, size[1] // 64) if size[0] == 1 else (size[0] // 8, size[1] // 8)]
    for rows, cols in blocks:
        x = maps((1, 3, *size), "normal", torch.bfloat16, channels_last)
        check_maps(x, bits, rows, cols, 3)


def test_products_of_sizes_beyond_32_bits():
    """A block is found by position * blocks // size, which needs 64 bits long before a map does."""
    check_maps(torch.randn(1, 1, 1, 66000), 2, 1, 33000, 1)


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((2, 5, 16, 16), (2, 2)),
        ((3, 7, 56, 56), (7, 7)),
        ((2, 90, 7, 7), (1, 1)),
        ((5, 3, 14, 9), (1, 1)),
        ((2, 5, 12, 12), (0, 0)),
        ((1, 3, 70, 66), (8, 8)),  # not on chip: the mask has a pass of its own
        ((1, 1, 1, 3), (1, 1)),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_made_in_the_same_pass(shape, blocks, dtype):
    """Its blocks of 512 elements end where no map does."""
    x = maps(shape, "normal", dtype, False)
    for bounds in ((0.0, torch.nan), (-0.3, 0.3)):
        expected = frequency.split_maps_masked(x, 2, *blocks, 5, *bounds)
        for backend in (gpu, cpu):
            found = backend.split_maps_masked(x, 2, *blocks, 5, *bounds)
            for ours, theirs in zip(found, expected, strict=True):
                assert_same(ours, theirs)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "blocks", "bits"),
    [
        ((2, 5, 16, 16), (2, 2), 2),
        ((3, 7, 28, 28), (3, 3), 3),
        ((2, 9, 7, 7), (1, 1), 2),
        ((1, 3, 70, 66), (8, 8), 8),
        ((2, 50, 9, 5), (1, 1), 1),
        ((1, 3, 2, 3), (0, 0), 7),
    ],
)
def test_maps_are_scaled_shifted_and_masked_on_the_way(shape, blocks, bits, dtype, channels_last):
    x = maps(shape, "normal", torch.float32, channels_last)
    if dtype != torch.bfloat16:  # torch decides which of its NaNs
        x[0, 0] = torch.nan
    last = frequency.is_channels_last(x)
    parts = frequency.split_maps(x, bits, *blocks, 0, 7)
    factor, term = torch.randn(2, shape[1])
    bits_of_mask = gpu.pack_mask(torch.randn(x.numel()), 0.0, torch.nan)
    for mask in (None, bits_of_mask):
        given = (*parts, bits, *shape[2:], dtype, last, factor, term, mask)
        assert_same(gpu.merge_maps_affine(*given), frequency.merge_maps_affine(*given))
