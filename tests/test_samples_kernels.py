"""The sample kernels give the definition's bytes, strides and dtypes, whatever they are given."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import CONTENTS, DTYPES, assert_same, torch_threads
from torch import Tensor

from division import kernels, samples
from division.kernels import cpu

MANY = settings(deadline=None, derandomize=True, max_examples=300)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def make(shape: tuple[int, ...], content: str, dtype: torch.dtype, transposed: bool) -> Tensor:
    x = CONTENTS[content](torch.randn(shape)).to(dtype)
    return x.transpose(1, 2).contiguous().transpose(1, 2) if transposed else x


def mixed_bits(n: int, seed: int) -> Tensor:
    return torch.randint(1, 9, (n,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def check(x: Tensor, bits: Tensor, group: int, seed: int, threads: int = 1) -> None:
    total = int(bits.sum())
    edges = samples.group_ranges(x, group)
    expected = samples.split_samples(x, bits, total, group, seed, *edges)
    codes, offset, scale = expected
    geometry = (*x.shape[1:], group, x.dtype, samples.is_transposed(x))
    with torch_threads(threads):
        ranges = cpu.group_ranges(x, group)
        known = cpu.split_samples(x, bits, total, group, seed, *edges)
        unknown = cpu.split_samples(x, bits, total, group, seed, None, None)
        merged = cpu.merge_samples(codes, bits, offset, scale, *geometry)
    for ours, theirs in zip((*ranges, *known, *unknown), (*edges, *expected * 2), strict=True):
        assert_same(ours, theirs)
    assert_same(merged, samples.merge_samples(codes, bits, offset, scale, *geometry))


@MANY
@given(
    n=st.integers(1, 5),
    channels=st.sampled_from((1, 2, 3, 15, 16, 17, 33, 64, 70)),
    positions=st.sampled_from((1, 4, 16, 49, 196, 256, 600, 1024)) | st.integers(1, 300),
    group=st.sampled_from((32, 64, 96, 256, 1024)),
    dtype=st.sampled_from(DTYPES),
    content=st.sampled_from(sorted(CONTENTS)),
    transposed=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_samples_are_the_definitions_bytes(
    n, channels, positions, group, dtype, content, transposed, seed
):
    """Item 1: any number of samples and features, mixed bits."""
    x = make((n, channels, positions), content, dtype, transposed)
    check(x, mixed_bits(n, seed % 2**32), group, seed)


@pytest.mark.parametrize("content", sorted(CONTENTS))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_every_content_in_every_layout(content, dtype, transposed):
    x = make((8, 20, 310), content, dtype, transposed)
    check(x, torch.arange(1, 9).to(torch.uint8), 256, 5, threads=2)


def test_threads_do_not_change_bytes():
    for transposed in (False, True):
        x = make((5, 64, 1024), "normal", torch.float32, transposed)
        check(x, mixed_bits(5, 1), 256, 9, threads=2)


def test_layouts_make_the_same_bytes():
    x = torch.randn(3, 24, 196)
    last = x.transpose(1, 2).contiguous().transpose(1, 2)
    bits = torch.tensor([1, 3, 8], dtype=torch.uint8)
    parts = [kernels.split_samples(y, bits, 12, 256, 4, None, None) for y in (x, last)]
    for one, two in zip(*parts, strict=True):
        assert_same(one, two)


@pytest.mark.parametrize("bits", [[2, 2], [0, 3], [9, 1], [1, 1]])
def test_bits_that_do_not_fit_the_stream_are_refused(bits):
    """The kernels write where the bits say: what does not add up must never reach them."""
    x = torch.randn(2, 3, 40)
    wrong = torch.tensor(bits, dtype=torch.uint8)
    for backend in kernels.BACKENDS:
        with kernels.use(backend), pytest.raises(ValueError, match="bits must be from 1 to 8"):
            kernels.split_samples(x, wrong, 3, 32, 0, None, None)


def test_operators_are_sized_without_data():
    """The fake operators promise the shapes, strides and dtypes that the real ones give."""
    bits = torch.tensor([1, 3, 2], dtype=torch.uint8)
    for transposed in (False, True):
        x = make((3, 5, 77), "normal", torch.bfloat16, transposed)
        low, high = kernels.group_ranges(x, 32)
        payload = kernels.split_samples(x, bits, 6, 32, 1, low, high)
        codes, offset, scale = payload
        merge = (codes, bits, offset, scale, 5, 77, 32, x.dtype, transposed)
        checks = ("test_schema", "test_faketensor")
        for operator, arguments in (
            (kernels.group_ranges, (x, 32)),
            (kernels.split_samples, (x, bits, 6, 32, 1, low, high)),
            (kernels.split_samples, (x, bits, 6, 32, 1, None, None)),
            (kernels.merge_samples, merge),
        ):
            torch.library.opcheck(operator, arguments, test_utils=checks)
