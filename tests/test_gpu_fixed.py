"""The GPU kernels of the error-bounded coder, interpreted, give the definition's bytes."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fixed_kernels import SHAPES, made
from test_kernels import CONTENTS, DTYPES, assert_same, torch_threads
from torch import Tensor

from division import fixedlength
from division.kernels import gpu

FEW = settings(deadline=None, derandomize=True, max_examples=30)
MANY = settings(deadline=None, derandomize=True, max_examples=300)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def check(x: Tensor, bound: float, dither: bool, seed: int) -> None:
    options = (bound, dither, seed)
    expected = fixedlength.pack_bounded(x, *options)
    layout = (list(x.shape), fixedlength.is_channel_last(x))
    found = gpu.pack_bounded(x, *options)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)
    back = gpu.unpack_bounded(*expected, *layout, *options)
    assert_same(back, fixedlength.unpack_bounded(*expected, *layout, *options))


CASES = given(
    shape=st.sampled_from(SHAPES)
    | st.tuples(
        st.integers(1, 3),
        st.sampled_from((1, 3, 16, 17, 32)),
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


def check_case(shape, dtype, content, channels_last, bound, dither, seed) -> None:
    check(made(shape, content, dtype, channels_last), bound, dither, seed)


@FEW
@CASES
def test_bytes_are_the_definitions(**case):
    check_case(**case)


@pytest.mark.slow
@MANY
@CASES
def test_many_more_tensors(**case):
    check_case(**case)


@pytest.mark.parametrize("content", sorted(CONTENTS))
@pytest.mark.parametrize("dither", [False, True])
def test_every_content(content, dither):
    for dtype in DTYPES:
        check(made((2, 5, 9, 13), content, dtype, dtype == torch.float16), 0.02, dither, 3)


def test_every_half_value():
    every = torch.arange(-(2**15), 2**15, 7).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        for dither in (False, True):
            check(every.view(dtype), 0.3, dither, 1)


def test_a_payload_of_the_wrong_length_is_refused():
    headers, words, index, values = gpu.pack_bounded(torch.randn(100), 0.01, False, 0)
    for wrong in (words[:-1], torch.cat([words, words[:1]])):
        with pytest.raises(ValueError, match=rf"{wrong.numel()} words.*ask for {words.numel()}"):
            gpu.unpack_bounded(headers, wrong, index, values, [100], False, 0.01, False, 0)
