"""Token maps: patches on their grid, class tokens apart, the channel found from the graph."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

import division
from division.codecs import Dual
from division.codecs.tokens import Tokens
from division.forms import Form, grid_of
from division.recognize import channel_of


def test_grids() -> None:
    assert grid_of(197, {196: (14, 14)}) == (1, (14, 14))
    assert grid_of(205, {196: (14, 14), 200: (10, 20)}) == (5, (10, 20))
    assert grid_of(35, {35: (5, 7)}) == (0, (5, 7))
    assert grid_of(49, {}) == (0, (7, 7))
    assert grid_of(128, {}) is None
    assert grid_of(197, {}) is None  # no convolution made a grid of 14 x 14: a sequence


@pytest.mark.parametrize("extra", [0, 1, 5])
@pytest.mark.parametrize("channels", [48, 37, 1])
def test_patches_are_maps_and_other_tokens_are_exact_to_bf16(extra: int, channels: int) -> None:
    x = torch.randn(3, extra + 8 * 12, channels)
    codec = Tokens(Dual(bits=2), extra, 8, 12)
    packed = codec.compress(x, seed=5, channel=-1)
    y = codec.decompress(packed)
    assert torch.equal(y[:, :extra], x[:, :extra].bfloat16().float())
    maps = x[:, extra:].reshape(3, 8, 12, channels).permute(0, 3, 1, 2).contiguous()
    expected = Dual(bits=2)
    back = expected.decompress(expected.compress(maps, seed=5))
    assert torch.equal(y[:, extra:], back.permute(0, 2, 3, 1).reshape(3, 96, channels))
    assert packed.nbytes <= 2 * x.numel()


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        (Form(), (2, 3, 4, 5)),
        (Form(-1, shape=(2, 7, 6)), (14, 6)),
        (Form(-1, heads=True), (2, 3, 7, 5)),
        (Form(-1, swapped=True), (4, 5, 6)),
    ],
    ids=str,
)
def test_a_form_can_be_undone(form: Form, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert torch.equal(form.unsee(form.see(x).contiguous(), x.shape), x)


def test_the_channel_is_found_from_the_graph() -> None:
    conv, linear = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 8)
    maps = conv(torch.randn(2, 8, 8))
    assert channel_of(F.gelu(maps)) == 1
    assert channel_of(maps.transpose(1, 2)) == -1
    assert channel_of(maps.transpose(1, 2).transpose(-1, -2)) == 1
    assert channel_of(maps.permute(0, 2, 1) + 1) == -1
    rows = linear(torch.randn(2, 8, 8))
    assert channel_of(rows * 2) == -1
    assert channel_of(rows.transpose(1, 2)) == 1
    assert channel_of(rows.permute(1, 0, 2)) == -1
    assert channel_of(torch.randn(2, 3, 4)) == 1


def test_a_vit_keeps_its_tokens_as_maps() -> None:
    model = VisionTransformer(
        img_size=(32, 48), patch_size=4, embed_dim=48, depth=1, num_heads=3, num_classes=5
    )
    ledger = division.measure(division.compress(model), torch.randn(4, 3, 32, 48))
    size = 4 * 48 * (96 * 4 // 8 + 1 * 1 * 2 + 4) + 4 * 48 * 2  # maps of 8 x 12, and a class token
    norm = next(r for r in ledger.rows if r.site == "blocks.0.norm1")
    assert norm.bytes_after == size
    linear = next(r for r in ledger.rows if r.site == "blocks.0.attn.qkv")
    assert linear.bytes_after == size
    attention = next(r for r in ledger.rows if r.slot == "query, key, value")
    assert attention.bytes_after == 3 * size


def test_tokens_have_more_bits_unless_told_otherwise() -> None:
    def sizes(**options: object) -> dict[str, int]:
        torch.manual_seed(0)
        conv = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
        model = nn.Sequential(conv, nn.Flatten(2), nn.LayerNorm(28 * 28), nn.Linear(28 * 28, 64))
        division.compress(model, **options)
        ledger = division.measure(model, torch.randn(4, 3, 32, 32))
        return {row.site: row.bytes_after for row in ledger.rows if row.codec == "division"}

    usual, two, four = sizes(), sizes(bits=2), sizes(bits=4)
    assert usual["0.1"] == two["0.1"] < four["0.1"]  # maps
    for site in ("2", "3"):
        assert usual[site] == four[site] > two[site]
    given = sizes(overrides={"3": {"block": 16}, "2": {"bits": 2}})
    assert (given["3"], given["2"]) == (usual["3"], two["2"])
