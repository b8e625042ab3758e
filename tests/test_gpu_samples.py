"""The GPU kernels on samples, interpreted, give the definition's bytes, strides and dtypes."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import CONTENTS, DTYPES, assert_same, torch_threads
from test_samples_kernels import make, mixed_bits
from torch import Tensor

from division import samples
from division.kernels import gpu

FEW = settings(deadline=None, derandomize=True, max_examples=15)
MANY = settings(deadline=None, derandomize=True, max_examples=150)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def check(x: Tensor, bits: Tensor, group: int, seed: int) -> None:
    total = int(bits.sum())
    edges = samples.group_ranges(x, group)
    expected = samples.split_samples(x, bits, total, group, seed, *edges)
    codes, offset, scale = expected
    geometry = (*x.shape[1:], group, x.dtype, samples.is_transposed(x))
    ranges = gpu.group_ranges(x, group)
    known = gpu.split_samples(x, bits, total, group, seed, *edges)
    unknown = gpu.split_samples(x, bits, total, group, seed, None, None)
    merged = gpu.merge_samples(codes, bits, offset, scale, *geometry)
    for ours, theirs in zip((*ranges, *known, *unknown), (*edges, *expected * 2), strict=True):
        assert_same(ours, theirs)
    assert_same(merged, samples.merge_samples(codes, bits, offset, scale, *geometry))


CASES = given(
    n=st.integers(1, 4),
    channels=st.sampled_from((1, 2, 3, 15, 16, 17, 33)),
    positions=st.sampled_from((1, 4, 16, 49, 196, 256)) | st.integers(1, 300),
    group=st.sampled_from((32, 64, 96, 256, 1024, 8192)),
    dtype=st.sampled_from(DTYPES),
    content=st.sampled_from(sorted(CONTENTS)),
    transposed=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)


def check_case(n, channels, positions, group, dtype, content, transposed, seed) -> None:
    x = make((n, channels, positions), content, dtype, transposed)
    check(x, mixed_bits(n, seed % 2**32), group, seed)


@FEW
@CASES
def test_samples_are_the_definitions_bytes(**case):
    check_case(**case)


@pytest.mark.slow
@MANY
@CASES
def test_many_more_samples(**case):
    check_case(**case)


@pytest.mark.parametrize("content", sorted(CONTENTS))
def test_every_content(content):
    x = make((3, 3, 40), content, torch.float32, True)
    check(x, torch.tensor([2, 5, 8], dtype=torch.uint8), 64, 5)


def test_bits_that_do_not_fit_are_refused():
    x = torch.randn(2, 3, 40)
    for bits in ([1, 2], [0, 4], [9, 1]):
        with pytest.raises(ValueError, match="add up to 4"):
            gpu.split_samples(x, torch.tensor(bits).to(torch.uint8), 4, 32, 0, None, None)
