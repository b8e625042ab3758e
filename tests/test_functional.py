"""Code nobody wrote for us: functional style, lambdas, branches, reuse; compressed all the same."""

import copy
from collections.abc import Callable

import pytest
import torch
from conftest import assert_same, gradients
from torch import Tensor, nn
from torch.nn import functional as F

import division

X = torch.randn(4, 16, 32, 32)


class Block(nn.Module):
    """A residual block of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(16), nn.ReLU()
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class FunctionalBlock(nn.Module):
    """The same block with nothing but parameters, buffers and functions."""

    def __init__(self) -> None:
        super().__init__()
        for name, tensor in Block().state_dict().items():
            key = name.replace(".", "_")
            if "running" in name or "tracked" in name:
                self.register_buffer(key, tensor)
            else:
                self.register_parameter(key, nn.Parameter(tensor))

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.conv1_weight, padding=1)
        y = self.norm(y, "bn1")
        y = F.conv2d(torch.relu_(y), self.conv2_weight, padding=1)
        return F.relu(self.norm(y, "bn2").add_(x), inplace=True)

    def norm(self, x: Tensor, name: str) -> Tensor:
        parts = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(getattr(self, f"{name}_{p}") for p in parts), training=True)


class Function(nn.Module):
    """Any function, as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_a_functional_block_is_compressed_as_well_as_its_module_twin() -> None:
    blocks, twins = (nn.Sequential(kind(), kind()) for kind in (Block, FunctionalBlock))
    names = [name.replace(".", "_") for name in Block().state_dict()]
    for block, twin in zip(blocks, twins, strict=True):
        values = dict(zip(names, block.state_dict().values(), strict=True))
        twin.load_state_dict(values)
    sizes = [division.measure(division.compress(net), X).saved_bytes for net in (blocks, twins)]
    assert sizes[0] == sizes[1]
    found = [
        {name.replace(".", "_"): p.grad for name, p in net.named_parameters()}
        for net in (blocks, twins)
        if gradients(net, X)
    ]
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name])


def einops_like(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    patches = x.reshape(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1)
    return patches.reshape(n, h * w // 16, 16 * c).transpose(1, 2).reshape(n, c, h, w)


def branches(x: Tensor) -> Tensor:
    left, right = x.chunk(2, 1)
    return torch.cat([F.gelu(left), torch.sigmoid(right) * right], 1)


def rms_norm(x: Tensor) -> Tensor:
    rows = x.flatten(2).transpose(1, 2)
    return F.rms_norm(rows, (16,)).transpose(1, 2).reshape(x.shape)


FUNCTIONS = {
    "lambda": lambda x: x * torch.sigmoid(x),
    "in place": lambda x: F.leaky_relu_(x.mul_(2).add_(1)),
    "einops": einops_like,
    "branches": branches,
    "rms norm": rms_norm,
    "normalize": lambda x: F.normalize(x, dim=1),
    "unfused attention": lambda x: (x @ x.transpose(-1, -2)).softmax(-1) @ x,
    "group norm": lambda x: F.group_norm(x, 4),
    "layer norm": lambda x: F.layer_norm(x, (32, 32)),
    "softplus and tanh": lambda x: F.softplus(x).tanh(),
    "roots": lambda x: (x.square() + 0.1).pow(0.5) + (x.square() + 0.1).pow(-0.5),
    "maximum norm": lambda x: x / torch.linalg.vector_norm(x, float("inf"), dim=1, keepdim=True),
    "drop path": lambda x: x * (torch.rand(len(x), 1, 1, 1) > 0.5) * 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_between_layers(name: str) -> None:
    """Bit-equal with exact copies; whatever stays in full and is large has a reason."""
    conv = nn.Conv2d(16, 16, 3, padding=1)
    model = nn.Sequential(conv, Function(FUNCTIONS[name]), nn.Conv2d(16, 4, 1))
    twin = division.compress(copy.deepcopy(model), "identity")
    assert_same(gradients(model, X), gradients(twin, X))
    ledger = division.measure(division.compress(model), X)
    assert all(row.why for row in ledger.left_in_full())
    explained = [r for r in ledger.rows if r.compressed or r.why != "no rule for this slot"]
    assert sum(row.bytes_before for row in explained) >= 0.9 * ledger.original_bytes
    assert all(bool(gradient.isfinite().all()) for gradient in gradients(model, X))


def test_a_module_that_runs_several_times() -> None:
    conv = nn.Conv2d(16, 16, 3, padding=1)
    model = nn.Sequential(conv, nn.ReLU(), conv, nn.ReLU(), conv)
    twin = division.compress(copy.deepcopy(model), "identity")
    assert_same(gradients(model, X), gradients(twin, X))


def test_what_is_not_recognised_is_named_with_its_size() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            return 3 * ctx.saved_tensors[0] ** 2 * gradient

    model = nn.Sequential(nn.Conv2d(16, 16, 1), Function(lambda x: torch.cumsum(x, 1).exp()))
    ledger = division.measure(division.compress(model), X)
    row = next(r for r in ledger.left_in_full() if r.node == "ExpBackward0")
    assert (row.bytes_after, row.why) == (4 * 16 * 32 * 32 * 4, "no rule for this slot")
    model = division.compress(nn.Sequential(nn.Conv2d(16, 16, 1), Function(Cube.apply)), "identity")
    gradients(model, X)


def test_an_lstm_is_left_alone_and_says_so() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(32, 64, batch_first=True), nn.Linear(64, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0].mean(1))

    model, x = Classifier(), torch.randn(8, 100, 32)
    twin = division.compress(copy.deepcopy(model), "identity")
    assert_same(gradients(model, x), gradients(twin, x))
    ledger = division.measure(division.compress(model), x)
    assert all(row.why for row in ledger.left_in_full())
    assert any(row.module == "LSTM" for row in ledger.left_in_full())
