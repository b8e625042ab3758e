"""Gradients under ActNN: items 5, 6, 7 and 10 of the faithfulness plan."""

import copy
from collections.abc import Iterator

import pytest
import torch
from test_kernels import torch_threads
from torch import Tensor, nn

import baselines
import division
from baselines.actnn import ActNNCodec
from baselines.actnn.sensitivity import energies, layer_factor
from division.codecs import Uniform
from division.site import Site

LAYERS = {
    "linear": (nn.Linear(64, 24), (40, 64)),
    "conv": (nn.Conv2d(8, 12, 3, padding=1), (4, 8, 12, 12)),
    "strided": (nn.Conv2d(8, 12, 3, stride=2), (4, 8, 15, 13)),
    "dilated groups": (nn.Conv2d(8, 12, 3, dilation=2, groups=4), (4, 8, 12, 12)),
    "transposed": (nn.ConvTranspose2d(8, 12, 3, stride=2, padding=1), (4, 8, 12, 12)),
    "1-D": (nn.Conv1d(8, 12, 5), (4, 8, 100)),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Many small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def gradients_of(layer: nn.Module, x: Tensor, outer: Tensor | None = None) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    y = layer(x)
    outer = torch.ones_like(y) if outer is None else outer
    return torch.autograd.grad(y, (x, *layer.parameters()), outer)


@pytest.mark.parametrize(("layer", "shape"), LAYERS.values(), ids=LAYERS.keys())
def test_weight_gradients_are_unbiased_and_others_exact(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    """Item 5."""
    x = torch.randn(shape)
    outer = torch.randn(layer(x).shape)
    exact = gradients_of(layer, x, outer)
    compressed = division.compress(copy.deepcopy(layer), baselines.ActNN())
    draws = []
    for _ in range(200):
        inputs, weight, bias = gradients_of(compressed, x, outer)
        assert torch.equal(inputs, exact[0])
        assert torch.equal(bias, exact[2])
        draws.append(weight.double())
    found = torch.stack(draws)
    bias_over_noise = 200 * (found.mean(0) - exact[1]).square().sum() / found.var(0).sum()
    assert 0.75 < bias_over_noise < 1.25


def variances(
    layer: nn.Module, x: Tensor, outer: Tensor, bits: int, draws: int, channel: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the summed variance of the weight gradient, measured and by the formula."""
    codec = ActNNCodec(bits, per_sample=False)
    packed = codec.compress(x, channel=channel)
    y = layer(x)
    kind = "AddmmBackward0" if isinstance(layer, nn.Linear) else "ConvolutionBackward0"
    factor = layer_factor(Site("", None, kind, "input"), y.grad_fn, packed.shape)
    norms = outer.reshape(len(packed.tensors["bits"]), -1).square().sum(1).double()
    formula = (factor * norms * energies(packed, codec.group)).sum() / (2**bits - 1) ** 2
    found = []
    for seed in range(draws):
        noisy = codec.decompress(codec.compress(x, seed=seed, channel=channel))
        (gradient,) = torch.autograd.grad(layer(noisy), (layer.weight,), outer)
        found.append(gradient.double())
    return torch.stack(found).var(0).sum(), formula


def test_variance_of_a_linear_layer() -> None:
    """Item 6: exactly the sum of gradient**2 * variance of the element."""
    layer, x, outer = nn.Linear(256, 16), torch.randn(40, 256), torch.randn(40, 16)
    packed = ActNNCodec(2, per_sample=False).compress(x)
    offset, scale = (packed.tensors[name].float() for name in ("offset", "scale"))
    p = ((x - offset) / scale).frac()
    exact = (outer.square().sum(1, keepdim=True) * scale.square() * p * (1 - p)).sum()
    found, formula = variances(layer, x, outer, 2, 150)
    assert abs(found / exact - 1) < 0.05
    assert abs(found / formula - 1) < 0.05


def test_variance_of_a_linear_layer_on_tokens() -> None:
    """Item 6: every token is a sample, so that no other's range is in its group."""
    x, outer = torch.randn(8, 20, 64), torch.randn(8, 20, 24)
    x[:, 0] *= 1e-3
    found, formula = variances(nn.Linear(64, 24), x, outer, 2, 100, channel=-1)
    assert abs(found / formula - 1) < 0.06
    back = ActNNCodec().decompress(ActNNCodec().compress(x, channel=-1))
    assert float((back - x)[:, 0].abs().max()) < 0.01


@pytest.mark.parametrize(
    ("layer", "content", "expected"),
    [
        (nn.Conv2d(16, 16, 1), "normal", 1.0),
        (nn.Conv2d(16, 16, 3, padding=1), "normal", (1 - 2 / 48) ** 2),  # the border has no window
        (nn.Conv2d(16, 16, 3, padding=1, groups=16), "normal", (1 - 2 / 48) ** 2),
        (nn.Conv2d(16, 16, 3, stride=2, padding=1), "normal", (1 - 1 / 24) ** 2),
        (nn.ConvTranspose2d(16, 16, 2, stride=2), "normal", 1.0),
        (nn.Conv2d(16, 16, 3, padding=1), "relu", 0.46),  # zeros lie on the grid: no noise
    ],
    ids=str,
)
def test_variance_of_convolutions(layer: nn.Module, content: str, expected: float) -> None:
    """Item 6: measured over predicted."""
    x = torch.randn(8, 16, 16, 16)
    x = x.relu() if content == "relu" else x
    found, formula = variances(layer, x, torch.randn(layer(x).shape), 2, 100)
    assert abs(found / formula / expected - 1) < 0.06


def batch_norm_backward(x: Tensor, outer: Tensor, weight: Tensor, mean: Tensor, std: Tensor):
    """Gradients of input, weight and bias as the stock backward computes them from a copy of x."""
    return torch.ops.aten.native_batch_norm_backward(
        outer, x, weight, None, None, mean, 1 / std, True, 0.0, [True, True, True]
    )


def test_batch_norm() -> None:
    """Item 7: bias of the input gradient from one copy, as predicted; none from two copies."""
    n, c = 16, 64
    x, outer, weight = torch.randn(n, c, 2, 2), torch.randn(n, c, 2, 2), torch.rand(c) + 0.5
    mean, std = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0).sqrt()
    exact = batch_norm_backward(x, outer, weight, mean, std)
    codec = ActNNCodec(2, per_sample=False)
    copies = [codec.decompress(codec.compress(x, seed=s)) for s in range(1500)]
    per_channel = (1, c, 1, 1)
    scale = (weight / std).view(per_channel)
    count = n * 4

    one, two, weights = torch.zeros_like(x), torch.zeros_like(x), []
    for a, b in zip(copies, copies[1:] + copies[:1], strict=True):
        inputs, of_weight, of_bias = batch_norm_backward(a, outer, weight, mean, std)
        assert torch.equal(of_bias, exact[2])
        one += inputs / len(copies)
        weights.append(of_weight.double())
        first, second = ((y - mean.view(per_channel)) / std.view(per_channel) for y in (a, b))
        dot = (second * outer).sum((0, 2, 3)).view(per_channel)
        inputs = scale * (outer - outer.mean((0, 2, 3)).view(per_channel) - first * dot / count)
        two += inputs / len(copies)

    variance = torch.stack(copies).var(0)
    predicted = -scale / count * variance / std.square().view(per_channel) * outer
    found = [
        ((mean - exact[0]) * predicted).sum() / predicted.square().sum() for mean in (one, two)
    ]
    assert abs(found[0] - 1) < 0.05
    assert abs(found[1]) < 0.05
    drawn = torch.stack(weights)
    ratio = len(drawn) * (drawn.mean(0) - exact[1]).square().sum() / drawn.var(0).sum()
    assert 0.4 < ratio < 1.8  # 64 weights: a wide interval


class PerTensor(baselines.ActNN):
    """One grid for a whole tensor."""

    def codec(self, site: Site) -> Uniform:
        return Uniform(bits=2, group=65536)


class PerSample(baselines.ActNN):
    """Bits allocated to samples, not to layers."""

    def begin(self) -> None:
        super().begin()
        self._bits.clear()


def test_each_refinement_lowers_the_variance() -> None:
    """Item 10: per tensor > per group > and per sample > and per layer, at two bits each."""
    x = torch.randn(16, 16, 16, 16) * torch.randn(16, 1, 1, 1).mul(1.5).exp()
    net = nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 4, 1),
    )
    outer = torch.randn(16, 4, 16, 16)
    methods = (
        PerTensor(level="L2"),
        baselines.ActNN(bits=2, level="L2"),
        PerSample(),
        baselines.ActNN(),
    )
    found = []
    for method in methods:
        model = division.compress(copy.deepcopy(net), method)
        draws = []
        for _ in range(42):
            parts = gradients_of(model, x, outer)[1::2]
            draws.append(torch.cat([part.flatten() for part in parts]).double())
        found.append(float(torch.stack(draws[2:]).var(0).sum()))
    assert found == sorted(found, reverse=True)
    assert found[0] > 1.2 * found[1] > 1.2 * 1.2 * found[2]
    assert found[2] > 1.02 * found[3]
