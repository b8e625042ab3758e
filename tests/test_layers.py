"""Each row of the slot table: what a layer saves is kept in its form, and exactly so."""

import copy

import pytest
import torch
from conftest import IMAGE, Lambda, assert_same, compare, gradients, small_net
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import division

ACTIVATIONS = {
    "relu": F.relu,
    "relu_": lambda x: F.relu(x, inplace=True),
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "leaky_relu_": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "threshold_": lambda x: F.threshold(x, 0.1, 20.0, inplace=True),
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.2),
    "hardtanh_": lambda x: F.hardtanh(x, -0.3, 0.2, inplace=True),
    "hardsigmoid": F.hardsigmoid,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_piecewise_linear_activations_are_exact_at_one_bit(
    name: str, layout: torch.memory_format
) -> None:
    x = (3 * torch.randn(IMAGE)).contiguous(memory_format=layout)
    ledger = compare(lambda: Lambda(ACTIVATIONS[name]).to(memory_format=layout), x)
    row = next(r for r in ledger.rows if r.codec == "mask")
    assert row.bytes_after == 4 * 16 * 32 * 32 // 8


def test_a_relu_of_nan_passes_the_gradient_as_stock_does() -> None:
    x = torch.randn(4, 3, 32, 32, requires_grad=True)
    with torch.no_grad():
        x[0, 0, 0, 0] = float("nan")
    F.relu(x).sum().backward()
    stock, x.grad = x.grad, None
    with division.capture("identity"):
        y = F.relu(x)
    y.sum().backward()
    assert torch.equal(stock, x.grad)


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max dilated": lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 1), (2, 3)),
    "max ceil": lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, 5),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 7),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_exact(name: str, layout: torch.memory_format) -> None:
    x = torch.randn(IMAGE).contiguous(memory_format=layout)
    ledger = compare(lambda: Lambda(POOLS[name]).to(memory_format=layout), x)
    inputs = [r for r in ledger.rows if "Pool" in r.node and r.slot == "self"]
    assert all(r.bytes_after == 0 and r.codec == "shape only" for r in inputs)


def test_a_pooling_window_beyond_a_byte_stays_stock_and_says_so() -> None:
    ledger = compare(lambda: Lambda(lambda x: F.max_pool2d(x, 17, 1)), torch.randn(IMAGE))
    assert any("289 positions" in row.why for row in ledger.left_in_full())


def test_conv_1d_and_3d_and_transposed() -> None:
    compare(
        lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.MaxPool1d(2)),
        torch.randn(8, 4, 200),
    )
    volume = torch.randn(2, 4, 6, 16, 16)
    for memory_format in (torch.contiguous_format, torch.channels_last_3d):
        compare(
            lambda: nn.Sequential(
                nn.Conv3d(4, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2)
            ),
            volume.contiguous(memory_format=memory_format),
        )
    compare(lambda: nn.ConvTranspose2d(3, 8, 3, 2), torch.randn(IMAGE))


def test_dropout_noise_is_one_bit_and_other_constants_are_kept() -> None:
    noise = compare(lambda: Lambda(lambda x: F.dropout(x, 0.3)), torch.randn(IMAGE))
    assert next(r for r in noise.rows if r.node == "MulBackward0").codec == "mask"
    fixed = torch.randn(4, 16, 32, 32)
    constant = compare(lambda: Lambda(lambda x: x * fixed), torch.randn(IMAGE))
    row = next(r for r in constant.rows if r.node == "MulBackward0")
    assert (row.codec, "constant" in row.why) == ("stock", True)


def test_gates_stay_exact_and_gated_maps_are_packed() -> None:
    def gate(x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True).sigmoid() * x

    model = division.compress(Lambda(gate), "division")
    ledger = division.measure(model, torch.randn(64, 3, 32, 32))
    rows = {row.slot: row for row in ledger.rows if row.node == "MulBackward0"}
    assert rows["other"].codec == "division"
    assert rows["self"].codec == "stock"


def test_frozen_convolution_keeps_only_a_shape() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3))
    model[1].weight.requires_grad_(False)
    twin = division.compress(copy.deepcopy(model), "identity")
    x = torch.randn(IMAGE)
    assert_same(gradients(model, x), gradients(twin, x))
    rows = {row.site: row for row in division.measure(twin, x).rows}
    assert (rows["1"].codec, rows["1"].bytes_after) == ("shape only", 0)


def test_no_masks_leaves_relu_and_pooling_stock() -> None:
    model = division.compress(small_net(), "division", masks=False)
    ledger = division.measure(model, torch.randn(IMAGE))
    assert not [row for row in ledger.rows if row.codec in ("mask", "window index")]
    assert any("masks=False" in row.why for row in ledger.left_in_full())


def test_users_own_functions_stay_stock_and_are_named() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    ledger = compare(lambda: Lambda(Square.apply), torch.randn(IMAGE))
    row = next(r for r in ledger.left_in_full() if r.node.startswith("Square"))
    assert row.why == "no rule for this slot"


def test_scalars_are_no_obstacle_without_data() -> None:
    with FakeTensorMode():
        model = division.compress(Lambda(lambda x: x * 2.0 / 3.0 + x.mean()), "division")
        ledger = division.measure(model, torch.randn(IMAGE))
    assert any(row.compressed for row in ledger.rows)


def test_float64_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout()).double()
    twin = division.compress(copy.deepcopy(model), "division")
    x = torch.randn(IMAGE, dtype=torch.float64)
    assert_same(gradients(model, x), gradients(twin, x))
    assert any("float64 is not compressed" in row.why for row in division.measure(twin, x).rows)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_constant_factor_is_exact_on_either_side(side: str) -> None:
    fixed = torch.randn(4, 16, 32, 32)
    build = {"left": lambda x: fixed * x, "right": lambda x: x * fixed}[side]
    model = division.compress(Lambda(build), "division")
    rows = [row for row in division.measure(model, torch.randn(IMAGE)).rows if "Mul" in row.node]
    assert [row.codec for row in rows] == ["stock"]
