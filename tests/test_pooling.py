"""Pooled activations: the codec, the layers in scope, and what the published method saves."""

import copy

import pytest
import torch
from conftest import IMAGE, assert_same, gradients, small_net
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torchvision.models import resnet50

import baselines
import division
from baselines.pooling import PoolingCodec

PUBLISHED = {"align": "reference", "masks": False, "share": False}


def roundtrip(x: Tensor, **options: object) -> Tensor:
    codec = PoolingCodec(**options)
    return codec.decompress(codec.compress(x))


def weight_gradient(x: Tensor, conv: nn.Conv2d, method: str, **options: object) -> Tensor:
    conv.zero_grad()
    with division.capture(method, **options):
        y = conv(x)
    y.square().sum().backward()
    return conv.weight.grad.clone()


@pytest.mark.parametrize("block", [2, 4])
def test_a_block_comes_back_as_its_mean(block: int, layout: torch.memory_format) -> None:
    x = torch.randn(2, 3, 16, 24).contiguous(memory_format=layout)
    y = roundtrip(x, block=block)
    means = F.avg_pool2d(x, block)
    assert torch.equal(y, means.repeat_interleave(block, 2).repeat_interleave(block, 3))


@pytest.mark.parametrize("size", [(7, 7), (13, 29), (5, 4)], ids=str)
def test_ragged_maps_are_aligned_and_stored_in_whole_blocks(
    size: tuple[int, int], layout: torch.memory_format
) -> None:
    """Item 11: edge blocks average what they cover; ceil(H / b) * ceil(W / b) numbers a map."""
    x = torch.randn(2, 3, *size).contiguous(memory_format=layout)
    for block in (2, 3, 4):
        packed = PoolingCodec(block).compress(x)
        rows, cols = (-(-edge // block) for edge in size)
        assert packed.nbytes == 4 * 2 * 3 * rows * cols
        y = PoolingCodec(block).decompress(packed)
        for i in range(rows):
            for j in range(cols):
                spot = (
                    ...,
                    slice(i * block, i * block + block),
                    slice(j * block, j * block + block),
                )
                mean = x[spot].mean((2, 3), keepdim=True).expand_as(x[spot])
                torch.testing.assert_close(y[spot], mean)


def test_the_published_alignment_shifts_a_ragged_map_by_its_remainder() -> None:
    """Item 11: the remainder is dropped below and right, and zeros come in above and left."""
    x = torch.randn(1, 2, 7, 9)
    y = roundtrip(x, block=2, align="reference")
    kept = F.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(y[..., 1:, 1:], kept)
    assert not y[..., 0, :].any()
    assert not y[..., :, 0].any()
    even = torch.randn(1, 2, 8, 8)
    assert torch.equal(roundtrip(even), roundtrip(even, align="reference"))


def test_the_maximum_stands_for_the_block() -> None:
    x = torch.randn(2, 3, 8, 8)
    y = roundtrip(x, reduce="max")
    assert torch.equal(y, F.interpolate(F.max_pool2d(x, 2), (8, 8)))
    x[0, 0, 0, 0] = -torch.inf
    assert roundtrip(x, reduce="max")[0, 0, 0, 0].isnan()


def test_tokens_are_pooled_along_the_sequence() -> None:
    x = torch.randn(3, 10, 5)
    y = PoolingCodec(2)
    back = y.decompress(y.compress(x, channel=-1))
    torch.testing.assert_close(back[:, 0], (x[:, 0] + x[:, 1]) / 2)


def test_a_block_of_one_is_the_stock_layer() -> None:
    """Item 11."""
    model, x = small_net(), torch.randn(IMAGE)
    twin = division.compress(copy.deepcopy(model), "pooling", block=1)
    assert_same(gradients(model, x), gradients(twin, x))


@pytest.mark.parametrize("block", [2, 4, 8])
def test_maps_that_are_constant_in_blocks_give_exact_weight_gradients(block: int) -> None:
    """Item 11: for any block."""
    x = torch.randint(-9, 9, (4, 8, 32 // block, 32 // block)).float()  # whose means are exact
    x = x.repeat_interleave(block, 2).repeat_interleave(block, 3)
    conv = nn.Conv2d(8, 4, 3, padding=1)
    exact = weight_gradient(x, conv, "vanilla")
    assert torch.equal(weight_gradient(x, conv, "pooling", block=block), exact)


def test_the_gradient_of_a_pointwise_convolution_needs_pooled_maps_only() -> None:
    """Item 11: b^2 times the product of block means is what the upsampled map gives."""
    x, conv = torch.randn(4, 8, 16, 16), nn.Conv2d(8, 4, 1)
    found = weight_gradient(x, conv, "pooling", block=4)
    means = [F.avg_pool2d(t, 4).transpose(0, 1).flatten(1) for t in (2 * conv(x), x)]
    expected = 16 * means[0] @ means[1].T
    torch.testing.assert_close(found[..., 0, 0], expected, atol=1e-3, rtol=1e-4)


def test_only_weight_gradients_of_convolutions_are_touched() -> None:
    """Item 11: the gradients of input and bias are the stock ones, bit for bit."""
    conv, x = nn.Conv2d(3, 8, 3, padding=1), torch.randn(IMAGE, requires_grad=True)
    results = []
    for method in ("vanilla", "pooling"):
        conv.zero_grad()
        x.grad = None
        with division.capture(method):
            y = conv(x)
        y.square().mean().backward()
        results.append((x.grad, conv.bias.grad, conv.weight.grad))
    stock, pooled = results
    assert torch.equal(stock[0], pooled[0])
    assert torch.equal(stock[1], pooled[1])
    assert not torch.equal(stock[2], pooled[2])


def test_scopes() -> None:
    x = torch.randn(IMAGE)

    def pooled(scope: str) -> set[str]:
        ledger = division.measure(division.compress(small_net(), "pooling", scope=scope), x)
        return {row.node for row in ledger.rows if row.codec == "pooling"}

    assert pooled("conv") == {"ConvolutionBackward0"}
    assert pooled("all") == {"ConvolutionBackward0", "NativeBatchNormBackward0"}


def test_the_published_method_saves_nothing_against_plain_pytorch() -> None:
    """ReLU keeps the map whose pooled copy the convolution has; only 1-bit masks free it."""

    def saved(method: str, **options: object) -> int:
        with FakeTensorMode():
            model = division.compress(resnet50(), method, **options)
            return division.measure(model, torch.randn(8, 3, 224, 224)).saved_bytes

    plain = saved("vanilla")
    own_baseline = saved("pooling", block=1, **PUBLISHED)
    assert own_baseline > 1.4 * plain  # it copies every input of a convolution
    for block, low, high in ((2, 1.05, 1.15), (4, 0.97, 1.05)):
        published = saved("pooling", block=block, **PUBLISHED)
        assert low < published / plain < high
        assert 0.62 < published / own_baseline < 0.78  # the paper reports 29 % less
        assert saved("pooling", block=block) < 0.75 * plain


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block must be a whole number from 1"),
        ({"reduce": "sum"}, "reduce must be one of 'mean', 'max'; got 'sum'"),
        ({"scope": "linear"}, "scope must be one of 'conv', 'all'; got 'linear'"),
        ({"align": "left"}, "align must be one of 'area', 'reference'"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        baselines.Pooling(**options)


def test_a_block_larger_than_the_map_is_an_error() -> None:
    model = division.compress(small_net(), "pooling", block=64)
    with pytest.raises(ValueError, match="block must fit into the map: block=64, the map is 32 x"):
        model(torch.randn(IMAGE))
