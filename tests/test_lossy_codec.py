"""The error-bounded codec keeps its promises: the bound without slack, zeros, bytes, options."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import division
from baselines.lossy import LossyCodec

CODINGS = ("fixed", "huffman")
TYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((0, 4, 8, 8), (1,), (33,), (3, 5, 7, 9), (2, 32, 8, 8), (2, 3, 50), (40, 77))
MANY = settings(deadline=None, derandomize=True, max_examples=250)
CONTENTS = {
    "normal": lambda x: x,
    "relu": lambda x: x.relu(),
    "zeros": torch.zeros_like,
    "constant": lambda x: torch.full_like(x, -1.3),
    "negative": lambda x: -x.abs(),
    "huge": lambda x: x * 1e30,
    "denormal": lambda x: x * 1e-41,
    "ties": lambda x: (x * 8).round() / 8,
    "not finite": lambda x: torch.where(x > 1.5, math.inf, torch.where(x < -1.5, math.nan, x)),
}


def roundtrip(codec: LossyCodec, x: Tensor, seed: int = 0) -> Tensor:
    packed = codec.compress(x, seed=seed)
    assert packed.nbytes <= x.nbytes
    return codec.decompress(packed)


def assert_bounded(x: Tensor, y: Tensor, bound: float) -> None:
    finite = x.isfinite()
    error = (x.double() - y.double())[finite].abs()
    assert bool((error <= bound).all()), float(error.max())
    assert bool((y[x == 0] == 0).all())
    if not torch.equal(x, y):  # an exact copy has all signs, too
        assert not bool(y[x == 0].signbit().any())
    assert torch.equal(x[~finite].nan_to_num(7.0), y[~finite].nan_to_num(7.0))


@MANY
@given(
    coding=st.sampled_from(CODINGS),
    dither=st.booleans(),
    dtype=st.sampled_from(TYPES),
    shape=st.sampled_from(SHAPES),
    content=st.sampled_from(sorted(CONTENTS)),
    layout=st.sampled_from(("contiguous", "channels last", "strided")),
    power=st.floats(-6, 1),
    scale=st.floats(-3, 4),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_bound_holds_without_slack(
    coding, dither, dtype, shape, content, layout, power, scale, seed
):
    """Items 1 and 2: in fp64, for every type, shape, layout and content; zeros stay +0.0."""
    x = CONTENTS[content](torch.randn(shape) * 10**scale).to(dtype)
    if layout == "channels last" and len(shape) == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "strided":
        x = torch.stack([x, x], -1)[..., 0]
    codec = LossyCodec(10**power, coding, dither)
    assert_bounded(x, roundtrip(codec, x, seed), codec.error_bound)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("dither", [False, True])
def test_the_bound_holds_on_many_values(dtype: torch.dtype, dither: bool) -> None:
    """Item 1: a million values each, where naive fp32 misses the bound for some."""
    for bound, scale in ((1e-4, 3.0), (0.01, 1000.0), (0.0137, 3.0), (0.7, 2.0)):
        x = (scale * torch.randn(1_000_000)).to(dtype)
        assert_bounded(x, roundtrip(LossyCodec(bound, dither=dither), x), bound)


def test_negative_zero_and_small_numbers_become_zero() -> None:
    """Item 2: R never grows."""
    x = torch.tensor([-0.0, 0.0, 0.004, -0.009, 0.3] * 50)
    y = roundtrip(LossyCodec(0.01), x)
    assert not bool(y[x.abs() < 0.01].any())
    assert not bool(y[x == 0].signbit().any())
    assert y.count_nonzero() <= x.count_nonzero()


@pytest.mark.parametrize("coding", CODINGS)
def test_what_does_not_pay_is_kept_as_it_is(coding: str) -> None:
    """A bound far below the values' precision: the exact copy is smaller than any code."""
    x = 1e6 * torch.randn(4, 8, 16, 16)
    packed = LossyCodec(1e-6, coding).compress(x)
    assert set(packed.tensors) == {"data"}
    assert packed.nbytes == x.nbytes
    assert torch.equal(LossyCodec(1e-6, coding).decompress(packed), x)
    half = torch.randn(1000).to(torch.bfloat16)
    assert torch.equal(roundtrip(LossyCodec(1e-5, coding), half), half)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("dither", [False, True])
def test_same_bytes_twice_and_in_both_layouts(coding: str, dither: bool) -> None:
    """Item 4."""
    x = torch.randn(2, 48, 9, 9)
    codec = LossyCodec(0.02, coding, dither)
    first, second, last = (
        codec.compress(t, seed=5).tensors
        for t in (x, x.clone(), x.contiguous(memory_format=torch.channels_last))
    )
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert torch.equal(tensor, last[name])


def uniformity(error: Tensor) -> float:
    """Kolmogorov-Smirnov statistic against U(-1, 1), times sqrt(n): above 1.95 in 1 of 1000."""
    ordered = error.double().flatten().sort().values
    count = len(ordered)
    expected = (ordered + 1) / 2
    steps = torch.arange(count + 1).double() / count
    gap = torch.maximum((steps[1:] - expected).abs(), (steps[:-1] - expected).abs()).max()
    return float(gap) * count**0.5


def test_errors_are_uniform() -> None:
    """Item 6: for white input; with dither for any input; no drift on ReLU maps."""
    white, bound = torch.randn(20000), 0.02
    assert uniformity((white - roundtrip(LossyCodec(bound), white)) / bound) < 1.95
    constant = torch.full((20000,), 0.3)
    assert uniformity((constant - roundtrip(LossyCodec(bound), constant)) / bound) > 50
    dithered = LossyCodec(bound, dither=True)
    for x in (white, constant, torch.linspace(0.001, 1, 20000)):
        assert uniformity((x - roundtrip(dithered, x, seed=3)) / bound) < 1.95
    maps = F.avg_pool2d(torch.randn(8, 16, 32, 32), 3, 1, 1).mul(3).relu()
    for codec in (LossyCodec(bound), dithered):
        error = (maps - roundtrip(codec, maps))[maps > 0]
        assert abs(float(error.mean())) / bound < 0.03


def test_dithers_of_two_seeds_are_independent() -> None:
    x = torch.full((20000,), 0.3)
    codec = LossyCodec(0.02, dither=True)
    a, b = ((x - roundtrip(codec, x, seed)) / 0.02 for seed in (1, 2))
    assert abs(float((a * b).mean())) < 0.01  # the variance of each is a third


def test_all_bytes_are_counted() -> None:
    x = torch.randn(2, 8, 16, 16)
    x[0, 0, 0, :3] = math.nan
    packed = LossyCodec(0.01).compress(x)
    sizes = {name: tensor.nbytes for name, tensor in packed.tensors.items()}
    assert sizes["headers"] == x.numel() // 32
    assert (sizes["index"], sizes["values"]) == (12, 12)
    assert packed.nbytes == sum(sizes.values())
    assert "seed" in LossyCodec(0.01, dither=True).compress(x).tensors
    names = {"lengths", "words", "offsets", "apart", "left_apart", "index", "values"}
    assert set(LossyCodec(0.01, "huffman").compress(x).tensors) == names


def test_sizes_without_data_are_those_assumed() -> None:
    with FakeTensorMode():
        x = torch.empty(8, 16, 32, 32)
        for coding in CODINGS:
            for dither in (False, True):
                codec = LossyCodec(coding=coding, dither=dither, assumed_ratio=8.0)
                packed = codec.compress(x)
                assert packed.nbytes == x.nbytes // 8
                half = codec.compress(x.to(torch.bfloat16))
                assert half.nbytes == x.nbytes // 8
                assert codec.decompress(half).dtype == torch.bfloat16


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf, "0.1", True, 1e-40])
def test_bad_bounds_are_refused(bound: object) -> None:
    with pytest.raises(ValueError, match="error_bound must be a number from 1e-30 to 1e\\+30; got"):
        division.codecs.get("lossy", error_bound=bound)


def test_bad_options_name_the_choices() -> None:
    with pytest.raises(ValueError, match="coding must be one of 'fixed', 'huffman'; got 'zip'"):
        division.codecs.get("lossy", coding="zip")
    with pytest.raises(ValueError, match="assumed_ratio must be a number from 1 to"):
        division.codecs.get("lossy", assumed_ratio=0.5)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_larger_bound_takes_less(coding: str) -> None:
    x = F.avg_pool2d(torch.randn(4, 16, 32, 32), 3, 1, 1).mul(3).relu()
    sizes = [LossyCodec(bound, coding).compress(x).nbytes for bound in (1e-3, 1e-2, 1e-1, 1.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] < x.nbytes / 4
