"""The lossy method's adaptive bound: the law of gradient errors, calibration, renewal."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import small_net
from test_kernels import torch_threads
from torch import Tensor, nn
from torch.nn import functional as F

import baselines
import division
from baselines.lossy.adaptive import bound_for, formula_sigma, rms

FIRST = "0:ConvolutionBackward0.input#0"


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def smooth(n: int, c: int, height: int, width: int, over: int = 5) -> Tensor:
    """White noise made smooth, as activations are, with unit standard deviation."""
    x = F.avg_pool2d(torch.randn(n, c, height + over - 1, width + over - 1), over, 1)
    return x / x.std()


def step(model: nn.Module, x: Tensor, scale: float = 1.0, lr: float = 0.0) -> list[Tensor]:
    """One step of plain SGD; returns the gradients."""
    model.zero_grad(set_to_none=True)
    (model(x).square().mean() * scale).backward()
    with torch.no_grad():
        for p in model.parameters() if lr else ():
            p -= lr * p.grad
    return [p.grad.clone() for p in model.parameters()]


def bounds(method: baselines.Lossy) -> list[float]:
    return [layer.bound for layer in method._layers.values()]


def adaptive_run(
    steps: int, scale: float = 1.0, interval: int = 10, **options: Any
) -> baselines.Lossy:
    torch.manual_seed(0)
    model, method = small_net(), baselines.Lossy(interval=interval, **options)
    division.compress(model, method)
    for i in range(steps):
        step(model, smooth(8, 3, 32, 32) + i / steps, scale)
    return method


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("groups", [1, 4])
def test_the_formula_holds_for_independent_errors(stride: int, kernel: int, groups: int) -> None:
    """Item 7: within 10 %."""
    conv = nn.Conv2d(16, 32, kernel, stride, groups=groups, bias=False)
    present = (torch.rand(16, 16, 30, 30) < 0.4).float()
    error = 0.1 * (2 * torch.rand(16, 16, 30, 30) - 1) * present
    output = conv(error)
    loss = torch.randn_like(output)
    measured = rms(torch.autograd.grad(output, conv.weight, loss)[0])
    rows = loss.numel() // 32
    expected = formula_sigma(0.1, float(present.mean()), rows, rms(loss))
    assert measured == pytest.approx(expected, rel=0.1)


def test_the_bound_inverts_the_formula() -> None:
    """Item 9: linear in the momentum, and in 1 / sqrt(R)."""
    bound = bound_for(0.3, 1.0, 0.5, 1000, 0.02)
    assert formula_sigma(bound, 0.5, 1000, 0.02) == pytest.approx(0.3)
    assert bound_for(0.6, 1.0, 0.5, 1000, 0.02) == pytest.approx(2 * bound)
    assert bound_for(0.3, 1.0, 0.125, 1000, 0.02) == pytest.approx(2 * bound)
    assert bound_for(0.3, 2.0, 0.5, 1000, 0.02) == pytest.approx(bound / 2)
    assert bound_for(0.3, 0.0, 0.5, 1000, 0.02) == math.inf


@pytest.mark.parametrize("coding", ["fixed", "huffman"])
def test_calibration_brings_sigma_to_the_target(coding: str) -> None:
    """Item 7: on smooth maps, where errors are far from independent, within 20 %."""
    x, weight = smooth(8, 4, 32, 32, over=15), smooth(8, 8, 30, 30, over=15)  # weight is L
    model = nn.Sequential(nn.Conv2d(4, 8, 3))
    options = {"coding": coding, "target": 0.3, "momentum": 0.0, "interval": 1}
    method = baselines.Lossy(error_bound=0.3, **options)

    def run(net: nn.Module) -> Tensor:
        net.zero_grad(set_to_none=True)
        (net(x) * weight).mean().backward()
        return net[0].weight.grad.clone()

    exact = run(model)
    target = 0.3 * float(exact.abs().mean())
    division.compress(model, method)
    sigmas, kappas = [], []
    for _ in range(12):
        sigmas.append(rms(run(model) - exact))
        kappas.append(method._layers[FIRST].kappa)
    assert max(kappas) > 1.5  # the formula alone would miss
    assert sigmas[-1] == pytest.approx(target, rel=0.2)


def test_bounds_change_only_at_multiples_of_the_interval() -> None:
    """Item 9."""
    model, method = small_net(), baselines.Lossy(interval=10)
    division.compress(model, method)
    seen = []
    for _ in range(31):
        step(model, smooth(8, 3, 32, 32), lr=0.01)
        seen.append(bounds(method))
    changes = [i for i in range(1, 31) if seen[i] != seen[i - 1]]
    assert changes == [10, 20, 30]
    assert all(bound == 0.01 for bound in seen[9])
    assert max(seen[10]) <= 0.04  # growth is limited


@pytest.mark.parametrize("scale", [1024.0, 1 / 8])
def test_scaled_losses_give_the_same_bounds(scale: float) -> None:
    """Item 9: loss scaling (AMP) and averaging over ranks (DDP) scale L and momentum alike."""
    plain, scaled = adaptive_run(21), adaptive_run(21, scale)
    assert bounds(scaled) == pytest.approx(bounds(plain), rel=1e-3)
    assert bounds(plain) != [0.01] * len(bounds(plain))


def test_a_gradient_that_overflowed_is_left_out() -> None:
    """Loss scaling tries scales that are too large: the average must not become NaN for good."""
    method = baselines.Lossy(interval=4)
    model = division.compress(nn.Sequential(nn.Conv2d(3, 8, 3)), method)
    x = smooth(8, 3, 32, 32)
    for scale in (1.0, math.inf, 1.0, math.inf, 1.0):
        step(model, x, scale)
    layer = method._layers[FIRST]
    assert bool(layer.average.isfinite().all())
    assert layer.bound == 0.01  # its one sample, at step 3, overflowed
    for _ in range(4):
        step(model, x)
    assert layer.bound != 0.01


def test_the_target_sets_the_bound() -> None:
    """Item 9: linear in the target, through the whole method."""
    small, large = (
        adaptive_run(17, interval=2, error_bound=1e-3, target=target)._layers[FIRST].bound
        for target in (0.0002, 0.0004)
    )
    assert large == pytest.approx(2 * small, rel=0.15)


def test_everything_gets_a_bound_with_scope_all() -> None:
    """Sites without a formula take the others' mean bound relative to the spread."""
    method = adaptive_run(21, scope="all")
    norms = [layer for key, layer in method._layers.items() if "Norm" in key]
    assert norms
    assert all(layer.bound != 0.01 and not layer.weight for layer in norms)
    relative = [layer.bound / layer.spread for layer in norms]
    assert max(relative) == pytest.approx(min(relative))


def test_linear_layers_have_the_formula() -> None:
    method = baselines.Lossy(interval=3, scope="all")
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10, bias=False))
    division.compress(model, method)
    for _ in range(4):
        step(model, torch.randn(256, 64))
    assert [key.split(":")[1] for key in method._layers] == [
        "AddmmBackward0.mat1#0",
        "MmBackward0.self#0",
    ]
    for layer in method._layers.values():
        assert layer.rows == 256
        assert layer.kappa == pytest.approx(1.0, rel=0.3)
        assert 0.01 < layer.bound <= 0.04


def test_transposed_grouped_and_other_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv1d(4, 16, 5, groups=2), nn.Unflatten(2, (12, 12)), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 2, 2), nn.Unflatten(2, (4, 6)), nn.ReLU(),
        nn.Conv3d(8, 4, 3, dilation=1, padding=1),
    )  # fmt: skip
    method = baselines.Lossy(interval=3)
    division.compress(model, method)
    for _ in range(4):
        step(model, torch.randn(16, 4, 148))
    assert [layer.rows for layer in method._layers.values()] == [16 * 144, 16 * 144, 16 * 576]
    assert all(0.5 < layer.kappa < 2 for layer in method._layers.values())


def test_a_shared_copy_has_the_smaller_bound() -> None:
    """conv1 and the shortcut of a residual block store their common input once."""
    method = adaptive_run(21)
    layers = method._layers
    shortcut = layers["4.shortcut:ConvolutionBackward0.input#0"]
    assert shortcut.copied == "4.conv1:ConvolutionBackward0.input#0"
    assert shortcut.bound == layers[shortcut.copied].bound
    assert "(copy of 4.conv1" in method.report()


def test_half_precision_and_autocast() -> None:
    method = baselines.Lossy(interval=3)
    model = division.compress(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), method)
    for _ in range(4):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(smooth(8, 3, 32, 32)).float().square().mean()
        loss.backward()
    assert all(layer.weight and layer.bound != 0.01 for layer in method._layers.values())


def test_linear_layers_on_tokens_get_bounds_of_their_own() -> None:
    layers = [nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)]
    model = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.Flatten(2), Transposed(), *layers)
    division.compress(model, "lossy", scope="all", interval=2)
    for _ in range(5):
        model.zero_grad()
        model(torch.randn(8, 3, 32, 32)).square().mean().backward()
    bounds = division.method_of(model).state_dict()["layers"]
    linear = {key: layer for key, layer in bounds.items() if key[0] in "35"}
    assert len(linear) == 2
    assert all(layer["kappa"] != 1.0 for layer in linear.values())
    assert all(layer["rows"] == 8 * 64 for layer in linear.values())


class Transposed(nn.Module):
    """From maps to tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def test_a_forward_without_backward_takes_no_turn_away() -> None:
    """A teacher pass or a validation in between: the layer whose turn it was is still due."""
    model = division.compress(small_net(), "lossy", interval=8)
    for _ in range(12):
        model(torch.randn(4, 3, 32, 32))
        model.zero_grad()
        model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    layers = division.method_of(model).state_dict()["layers"]
    assert len(layers) > 5
    assert all(layer["bound"] != 1e-2 for layer in layers.values())
