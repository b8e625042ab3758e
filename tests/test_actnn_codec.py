"""ActNN's quantizer: items 1 to 4 of the method's faithfulness plan."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from test_kernels import torch_threads
from torch import Tensor

import division
from baselines.actnn import ActNNCodec
from division import quantize, samples

DRAWS = 150


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Many small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def draws(codec: ActNNCodec, x: Tensor, number: int = DRAWS) -> Tensor:
    return torch.stack([codec.decompress(codec.compress(x, seed=s)) for s in range(number)])


def uniform(bits: int, group: int = 256) -> ActNNCodec:
    return ActNNCodec(bits, group, per_sample=False)


@pytest.mark.parametrize("bits", range(1, 9))
def test_packed_codes_come_back(bits: int) -> None:
    """Item 1: any number of features, whole groups or not."""
    for size in (1, 7, 8, 100, 255, 256, 257, 1000, 1024):
        codes = torch.randint(0, 2**bits, (3, size))
        packed = samples._pack(codes, bits, 256)
        assert packed.shape == (3, bits * -(-size // 8))
        assert torch.equal(samples._unpack(packed, bits, 256, size), codes.int())


@pytest.mark.parametrize("shape", [(1, 5, 13, 29), (3, 8, 16, 16), (7, 100), (777,)], ids=str)
@pytest.mark.parametrize("bits", [1, 1.25, 1.5, 2, 3.3, 8])
def test_size_is_the_formulas_whatever_the_data(shape: tuple[int, ...], bits: float) -> None:
    """Item 1: mixed bits, one sample, ragged samples: the size depends on the shape alone."""
    n = shape[0] if len(shape) > 1 else 1
    size = torch.Size(shape).numel() // n
    total = max(int(bits * n + 1e-6), n)
    for x in (torch.randn(shape), torch.randn(shape).mul(3).exp()):
        packed = ActNNCodec(bits).compress(x)
        assert packed.nbytes == total * -(-size // 8) + n * (4 * -(-size // 256) + 1)
        assert int(packed.tensors["bits"].sum()) == total


def test_samples_with_wider_ranges_have_more_bits() -> None:
    """Item 9 on tensors: monotone in the range, and equal samples get equal bits."""
    scale = torch.tensor([0.1, 1.0, 4.0, 30.0]).view(4, 1, 1, 1)
    packed = ActNNCodec(3).compress(torch.randn(1, 8, 16, 16) * scale)
    bits = packed.tensors["bits"].tolist()
    assert bits == sorted(bits)
    assert bits[0] < bits[-1]
    same = torch.randn(1, 8, 16, 16).expand(4, -1, -1, -1)
    assert ActNNCodec(3).compress(same).tensors["bits"].tolist() == [3] * 4


def test_weights_count_beside_the_ranges() -> None:
    x = torch.randn(1, 8, 16, 16).expand(4, -1, -1, -1)
    weights = (1.0, 1.0, 100.0, 1.0)
    bits = ActNNCodec(2, weights=weights).compress(x).tensors["bits"]
    assert bits.argmax() == 2
    tokens = x.reshape(4 * 8, 256)  # eight rows a sample
    bits = ActNNCodec(2, weights=weights).compress(tokens).tensors["bits"].view(4, 8)
    assert bool((bits[2] > bits[0]).all())
    regions = torch.randn(6, 256)  # no rows of the four samples: told apart by range alone
    found = ActNNCodec(2, weights=weights).compress(regions)
    assert torch.equal(found.tensors["bits"], ActNNCodec(2).compress(regions).tensors["bits"])


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_cover_the_group_and_no_more(bits: int) -> None:
    """Item 2: minimum is code 0, maximum the largest code; nothing outside the grid."""
    top = 2**bits - 1
    x = torch.rand(4, 600)
    x[:, 0::256], x[:, 1::256] = 0.0, 1.0
    x *= top  # range and scale are bf16 numbers: both ends lie on the grid
    for seed in range(5):
        packed = uniform(bits).compress(x, seed=seed)
        codes = samples._unpack(packed.tensors["codes"].view(4, -1), bits, 256, 600)
        assert int(codes.min()) == 0
        assert int(codes.max()) == top
        assert bool((codes[:, 0::256] == 0).all())
        assert bool((codes[:, 1::256] == top).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_element_is_within_a_step(dtype: torch.dtype) -> None:
    """Item 2: tiny and huge ranges, all types; the release overflows its codes here."""
    for factor, bits in itertools.product((1e-4, 1.0, 1e4), (1, 2, 4, 8)):
        x = (torch.randn(4, 700) * factor).to(dtype)
        packed = uniform(bits).compress(x)
        step = packed.tensors["scale"].float().repeat_interleave(256, 1)[:, :700]
        error = (uniform(bits).decompress(packed).float() - x.float()).abs()
        rounding = x.float().abs() * torch.finfo(dtype).eps
        assert bool((error <= step * 1.001 + rounding).all())


def test_a_constant_group_comes_back() -> None:
    """Item 2: exactly, if it is a bf16 number; no NaN for a range of 0."""
    for value in (0.0, 1.5, -3.0, 2.0**-100, 1e30):
        x = torch.full((2, 300), value).bfloat16().float()
        for codec in (ActNNCodec(2), uniform(8)):
            assert torch.equal(codec.decompress(codec.compress(x)), x)
    y = uniform(2).decompress(uniform(2).compress(torch.full((2, 300), 1.7)))
    assert bool(((y - 1.7).abs() < 1.7 * 2**-7).all())


def bias_over_noise(decoded: Tensor, x: Tensor) -> float:
    """K |mean - x|**2 / sum of variances: 1 for an unbiased quantizer."""
    noisy = decoded.var(0) > 0
    mean, variance = decoded.double().mean(0), decoded.double().var(0)
    return float(len(decoded) * (mean - x)[noisy].square().sum() / variance[noisy].sum())


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("content", ["normal", "relu"])
def test_unbiased_with_the_metadata_that_is_stored(bits: int, content: str) -> None:
    """Item 3."""
    x = torch.randn(4, 16, 16, 16)
    x = x.relu() if content == "relu" else x
    assert 0.9 < bias_over_noise(draws(uniform(bits), x), x) < 1.1


def test_the_releases_rounding_of_metadata_is_biased() -> None:
    """Item 3, the contrast: codes from fp32 metadata, decoded with their bf16 roundings."""
    x = torch.randn(16, 256)
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    scale = 255 / (high - low + 2e-6)
    decoded = []
    for _ in range(DRAWS):
        codes = ((x - low) * scale + torch.rand_like(x) - 0.5).clamp_min(0).round()
        decoded.append(codes / scale.bfloat16().float() + low.bfloat16().float())
    assert bias_over_noise(torch.stack(decoded), x) > 5
    assert bias_over_noise(draws(uniform(8), x), x) < 1.1


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_variance_of_an_element(bits: int) -> None:
    """Item 4: exactly p (1 - p) steps squared, p the place between two points of the grid."""
    x = torch.randn(8, 1024)
    packed = uniform(bits).compress(x)
    offset, scale = (
        packed.tensors[name].float().repeat_interleave(256, 1) for name in ("offset", "scale")
    )
    p = ((x - offset) / scale).frac()
    expected = (scale.square() * p * (1 - p)).sum()
    found = draws(uniform(bits), x, 300).double().var(0).sum()
    assert abs(found / expected - 1) < 0.03


@pytest.mark.parametrize(
    ("bits", "content", "expected"),
    [(1, "normal", 0.216), (2, "normal", 0.166), (4, "normal", 0.166), (2, "relu", 0.083)],
)
def test_mean_variance_in_steps(bits: int, content: str, expected: float) -> None:
    """Item 4: 1/6 is the assumption of the sensitivities; zeros after a ReLU have no noise."""
    x = torch.randn(64, 1024)
    x = x.relu() if content == "relu" else x
    steps = uniform(bits).compress(x).tensors["scale"].float().repeat_interleave(256, 1)
    found = (draws(uniform(bits), x, 60).var(0) / steps.square()).mean()
    assert abs(found / expected - 1) < 0.06


def test_layouts_make_the_same_bytes() -> None:
    x = torch.randn(3, 24, 14, 14)
    last = x.contiguous(memory_format=torch.channels_last)
    one, two = (ActNNCodec(2.5).compress(y, seed=3).tensors for y in (x, last))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_does_not_pay_is_kept_in_16_bits() -> None:
    x = torch.randn(64, 2)
    packed = ActNNCodec(8).compress(x)
    assert set(packed.tensors) == {"data"}
    assert torch.equal(ActNNCodec(8).decompress(packed), quantize.to_bf16(x).float())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0.5}, "bits must be a number from 1 to 8; got 0.5"),
        ({"bits": 9}, "bits must be a number from 1 to 8; got 9"),
        ({"bits": float("nan")}, "bits must be a number from 1 to 8; got nan"),
        ({"bits": "2"}, "bits must be a number from 1 to 8; got '2'"),
        ({"bits": 1.5, "per_sample": False}, "bits must be whole where all samples have the same"),
        ({"group": 100}, "group must be a multiple of 32 from 32 to 65536; got 100"),
        ({"group": 0}, "group must be a multiple of 32 from 32 to 65536; got 0"),
    ],
)
def test_bad_options_say_what_is_allowed(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        division.codecs.get("actnn", **options)
