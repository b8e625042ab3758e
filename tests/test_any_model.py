"""Whatever timm and torchvision contain: exact with exact copies, compressed, and explained.

One architecture a family. The fast tests take a few of them, `make test-slow` all.
"""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
import torchvision
from conftest import assert_same, gradients
from torch import Tensor, nn

import division

FAST = (
    "convnext_atto",
    "poolformer_s12",
    "mobilenetv4_conv_small",
    "pvt_v2_b0",
    "TransformerEncoder",
)
TIMM = {  # and the pixels they take
    "vit_tiny_patch16_224": 224,
    "deit3_small_patch16_224": 224,
    "swin_tiny_patch4_window7_224": 224,
    "beit_base_patch16_224": 224,
    "eva02_tiny_patch14_224": 224,
    "cait_xxs24_224": 224,
    "xcit_nano_12_p16_224": 224,
    "pvt_v2_b0": 96,
    "twins_svt_small": 224,
    "coatnet_0_rw_224": 224,
    "maxvit_rmlp_pico_rw_256": 256,
    "levit_128s": 224,
    "mobilevit_s": 96,
    "edgenext_xx_small": 96,
    "efficientformer_l1": 224,
    "poolformer_s12": 96,
    "convnext_atto": 96,
    "convmixer_768_32": 96,
    "mixer_s32_224": 224,
    "gmlp_s16_224": 224,
    "resmlp_12_224": 224,
    "efficientnet_b0": 96,
    "mobilenetv4_conv_small": 96,
    "regnety_004": 96,
    "densenet121": 96,
    "hrnet_w18_small": 96,
    "inception_v3": 96,
    "resnest14d": 96,
    "nfnet_l0": 96,
    "repvit_m0_9": 96,
}


class Detector(nn.Module):
    """The backbone of torchvision's detectors: a ResNet with a pyramid of features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torchvision.models.detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, trainable_layers=5
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.body(x).values())


class UNet(nn.Module):
    """Two levels, a skip connection, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = self.level(3, 16), self.level(16, 32)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 2, 2), self.level(32, 4)

    @staticmethod
    def level(inputs: int, outputs: int) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        deep = self.deep(nn.functional.max_pool2d(skip, 2))
        return self.last(torch.cat([skip, self.up(deep)], 1))


class Encoder(nn.Module):
    """nn.TransformerEncoder on pixels as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 4, 4)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.embed(x).flatten(2).transpose(1, 2))


OTHERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "fcn_resnet50": (
        partial(torchvision.models.segmentation.fcn_resnet50, weights=None, weights_backbone=None),
        64,
    ),
    "UNet": (UNet, 64),
    "detection backbone": (Detector, 64),
    "TransformerEncoder": (Encoder, 64),
}
NAMES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
    for name in (*TIMM, *OTHERS)
]


def build(name: str) -> tuple[nn.Module, Tensor]:
    if name in TIMM:
        model = timm.create_model(name, pretrained=False, num_classes=10)
        size = TIMM[name]
    else:
        make, size = OTHERS[name]
        model = make()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():  # a head that starts at zero makes all other gradients zero
                parameter.normal_(std=0.05)
    return model.train(), torch.randn(2, 3, size, size)


def test_there_are_enough_families() -> None:
    assert len(NAMES) >= 25
    assert len([name for name in FAST if name in TIMM or name in OTHERS]) == len(FAST)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_exact_compressed_and_explained(name: str) -> None:
    model, x = build(name)
    twin = division.compress(copy.deepcopy(model), "identity")
    assert_same(gradients(model, x), gradients(twin, x))

    ledger = division.measure(division.compress(model), x)
    # 95 % are compressed, or named with a reason that is more than that nobody thought of it.
    explained = [r for r in ledger.rows if r.compressed or r.why != "no rule for this slot"]
    assert sum(r.bytes_before for r in explained) >= 0.95 * ledger.original_bytes
    packed = [r for r in ledger.rows if r.compressed]
    assert sum(r.bytes_before for r in packed) > 4 * sum(r.bytes_after for r in packed)
    assert all(g is None or bool(g.isfinite().all()) for g in gradients(model, x))


@pytest.mark.parametrize("name", NAMES)
def test_recipes_are_exact_and_never_larger(name: str) -> None:
    model, x = build(name)
    exact = gradients(model, x)
    for recompute in (True, "deep"):
        twin = division.compress(copy.deepcopy(model), "identity", recompute=recompute)
        assert distance(gradients(twin, x), exact) < 1e-6
    plain = division.compress(copy.deepcopy(model))
    spared = division.compress(copy.deepcopy(model), "division", recompute=True)
    deep = division.compress(model, "division", recompute="deep")
    sizes = [division.measure(each, x).saved_bytes for each in (deep, spared, plain)]
    assert sizes == sorted(sizes)


def distance(found: list[Tensor | None], exact: list[Tensor | None]) -> float:
    """Return the relative error of all gradients together."""
    pairs = [(a, b) for a, b in zip(found, exact, strict=True) if a is not None and b is not None]
    assert len(pairs) == sum(b is not None for b in exact)
    error = sum(float((a - b).double().square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for _, b in pairs)
    assert size > 0
    return (error / size) ** 0.5
