"""Rounding: metadata point outward, noise is uniform, the mean of many draws is the input."""

import math

import pytest
import torch

from division import quantize
from division.kernels import merge_maps, split_maps

DRAWS = 200


def test_bf16_rounding_points_where_it_says() -> None:
    x = torch.cat([torch.randn(10_000) * 10.0 ** torch.randint(-30, 30, (10_000,)), torch.zeros(1)])
    assert torch.equal(quantize.to_bf16(x), x.bfloat16())
    down, up = quantize.to_bf16(x, "down").float(), quantize.to_bf16(x, "up").float()
    assert bool((down <= x).all())
    assert bool((up >= x).all())
    exact = x.bfloat16().float()
    assert torch.equal(quantize.to_bf16(exact, "down").float(), exact)
    assert torch.equal(quantize.to_bf16(exact, "up").float(), exact)


def test_bf16_keeps_what_is_not_finite() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf])
    for rounding in ("nearest", "down", "up"):
        assert quantize.to_bf16(x, rounding).float().tolist()[1:] == [math.inf, -math.inf]
        assert bool(quantize.to_bf16(x, rounding)[0].isnan())


def test_noise_is_uniform_and_slots_are_uncorrelated() -> None:
    u = quantize.dither(64, 4096, seed=3, device=torch.device("cpu")).double() / 2**32
    count = u.numel()
    assert abs(u.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)
    assert abs((u**2).mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / count)
    quarters = u.view(64, 4, 1024).transpose(0, 1).flatten(1)
    correlation = torch.corrcoef(quarters) - torch.eye(4)
    assert correlation.abs().max() < 0.02  # rotated by a byte: 1/256 shared at most


def test_different_seeds_and_maps_get_different_noise() -> None:
    device = torch.device("cpu")
    a, b = (quantize.dither(2, 256, seed, device) for seed in (1, 2))
    high = quantize.dither(2, 256, 1 | 1 << 32, device)
    assert not torch.equal(a, b)
    assert not torch.equal(a, high)
    assert not torch.equal(a[0], a[1])


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_one_step_bounds_the_error(bits: int) -> None:
    """No element is further from its code than the stored scale, none is clipped."""
    x = torch.randn(4, 8, 19, 23) * torch.logspace(-4, 4, 8)[None, :, None, None]
    low, codes, offset, scale = split_maps(x, bits, 2, 2, 0, seed=5)
    y = merge_maps(low, codes, offset, scale, bits, 19, 23, torch.float32, False)
    rounding = 4 * torch.finfo(torch.float32).eps * x.abs().amax((2, 3), keepdim=True)
    assert bool(((x - y).abs() <= scale.float()[:, :, None, None] + rounding).all())


def _map_z(x: torch.Tensor, bits: int, draws: int, decode_scale: float = 1.0) -> torch.Tensor:
    """z of each map's mean error over draws: tells a bias that per-element z cannot see."""
    height, width = x.shape[2:]
    errors = []
    for seed in range(draws):
        low, codes, offset, scale = split_maps(x, bits, 2, 2, 0, seed)
        wrong = (scale.float() * decode_scale).to(torch.bfloat16) if decode_scale != 1 else scale
        y = merge_maps(low, codes, offset, wrong, bits, height, width, torch.float32, False)
        errors.append((y - x).double().mean((2, 3)).flatten())
    stacked = torch.stack(errors)
    return stacked.mean(0) / (stacked.std(0) / math.sqrt(draws))


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("kind", ["normal", "relu", "offset"])
def test_rounding_is_unbiased(bits: int, kind: str) -> None:
    x = torch.randn(8, 32, 16, 16)
    if kind == "relu":
        x = x.relu()
    elif kind == "offset":
        x = x + 37.3
    z = _map_z(x, bits, draws=DRAWS)
    # 256 maps: for unbiased rounding z is all but standard normal.
    assert z.abs().max() < 4.5
    assert abs(z.mean()) < 4.5 / math.sqrt(z.numel())
    assert 0.85 < z.std() < 1.15


def test_the_bias_test_notices_a_bias() -> None:
    """A scale that is off by one bf16 step, as when metadata are rounded after the codes."""
    z = _map_z(torch.randn(8, 32, 16, 16), 2, draws=DRAWS, decode_scale=1 + 2**-7)
    assert (z.abs() > 4.5).float().mean() > 0.01
