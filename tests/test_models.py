"""Networks: sizes as published, shapes, both stems, and names that do not exist."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from experiments import models, networks

ROOT = Path(__file__).parent.parent
# One network of each family; the others run with the slow tests.
QUICK = ("resnet20", "resnet18", "wrn16_4", "alexnet", "vit_micro")

# Millions of parameters for ten classes, as the papers and the model zoos give them.
PUBLISHED = {
    ("resnet20", 32): 0.27,
    ("resnet56", 32): 0.85,
    ("resnet164", 32): 1.7,
    ("wrn16_4", 32): 2.7,
    ("wrn28_10", 32): 36.5,
    ("resnet18", 32): 11.17,
    ("resnet50", 32): 23.52,
    ("densenet121", 32): 6.96,
    ("densenet161", 32): 26.48,
    ("vgg16_bn", 32): 14.73,
    ("vit_micro", 32): 0.68,
    ("vit_tiny", 32): 5.36,
    ("vit_small", 32): 21.34,
}
# For a thousand classes at 224 pixels.
IMAGENET = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "wide_resnet50_2": 68_883_240,
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "alexnet": 61_100_840,
    "vgg16_bn": 138_365_992,
    "vit_tiny": 5_717_416,
    "vit_small": 22_050_664,
    "deit_small": 22_050_664,
}


def meta(name: str, **options: object) -> nn.Module:
    """Shapes without weights: large networks cost nothing."""
    with torch.device("meta"):
        return models.build(name, **options)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "size"), PUBLISHED)
def test_parameter_counts_as_published(name: str, size: int) -> None:
    published = PUBLISHED[name, size]
    digits = len(str(published).split(".")[1])
    assert round(count(meta(name, image_size=size)) / 1e6, digits) == published


@pytest.mark.parametrize("name", IMAGENET)
def test_parameter_counts_of_the_model_zoos(name: str) -> None:
    assert count(meta(name, classes=1000, image_size=224)) == IMAGENET[name]


@pytest.mark.parametrize("size", [32, 64, 224])
@pytest.mark.parametrize("name", models.names())
def test_one_score_per_class_at_every_size(name: str, size: int) -> None:
    model = meta(name, classes=7, image_size=size)
    assert model(torch.empty(2, 3, size, size, device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in models.names()],
)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = models.build(name, image_size=32).train().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    model(x).square().mean().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert bool(parameter.grad.isfinite().all()), key


def test_weights_follow_the_seed_alone() -> None:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return models.build("resnet20")

    one, same, other = build(0), build(0), build(1)
    pairs = zip(one.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


def test_the_stem_can_be_chosen() -> None:
    for name in ("resnet18", "wide_resnet50_2"):
        assert meta(name, image_size=32).conv1.stride == (1, 1)
        assert isinstance(meta(name, image_size=64).maxpool, nn.Identity)
        assert meta(name, image_size=65).conv1.stride == (2, 2)
        assert meta(name, image_size=32, stem="imagenet").conv1.kernel_size == (7, 7)
        assert meta(name, image_size=224, stem="cifar").conv1.kernel_size == (3, 3)
    assert meta("densenet121", image_size=32).features.conv0.stride == (1, 1)
    assert meta("densenet121", image_size=224).features.conv0.stride == (2, 2)
    with pytest.raises(ValueError, match="stem is 'big', it must be one of auto, cifar, imagenet"):
        models.build("resnet18", stem="big")


def test_patches_fit_the_image() -> None:
    assert meta("vit_tiny", image_size=32).patch_embed.num_patches == 64
    assert meta("vit_tiny", image_size=224).patch_embed.num_patches == 196
    assert meta("vit_micro", image_size=32, patch=8).patch_embed.num_patches == 16
    with pytest.raises(ValueError, match="image_size 30 is not a multiple of the patch of 4"):
        models.build("vit_micro", image_size=30)


def test_vit_micro_is_96_wide_and_6_deep() -> None:
    model = meta("vit_micro")
    assert model.embed_dim == 96
    assert len(model.blocks) == 6
    assert model.blocks[0].attn.num_heads == 3


def test_option_a_keeps_every_second_pixel_and_adds_zeros(layout: torch.memory_format) -> None:
    x = torch.randn(2, 3, 6, 6).contiguous(memory_format=layout)
    y = networks.Subsample(2, 2)(x)
    assert torch.equal(y[:, :3], x[:, :, ::2, ::2])
    assert torch.equal(y[:, 3:], torch.zeros(2, 2, 3, 3))
    assert y.is_contiguous(memory_format=layout)


def test_dropout_reaches_the_wide_networks() -> None:
    model = meta("wrn16_4", dropout=0.3)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.3] * 6
    assert not any(isinstance(m, nn.Dropout) for m in meta("wrn16_4").modules())
    assert len([m for m in meta("resnet164", dropout=0.1).modules() if isinstance(m, nn.Dropout)])


def test_depths_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"depth is 21, it must be 6n \+ 2"):
        networks.blocks_per_stage(21, 6, 2)


@pytest.mark.parametrize(
    "name",
    [
        "convnext_atto",
        "swin_tiny_patch4_window7_224",
        "mobilenet_v3_small",
        "vit_b_16",
        "googlenet",
    ],
)
def test_names_of_timm_and_torchvision_work_too(name: str) -> None:
    model = meta(name, classes=7, image_size=64)
    assert model(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 7)


def test_unknown_names_list_ours_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'resnet_20'; did you mean .*resnet20"):
        models.build("resnet_20")
    with pytest.raises(ValueError, match=r"ours are alexnet, .*wrn28_10"):
        models.build("%")
    with pytest.raises(ValueError, match="unknown model 'hf-hub:someone/something'"):
        models.build("hf-hub:someone/something")


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"resnet20 takes no options: .* argument 'stem'"):
        models.build("resnet20", stem="cifar")
    with pytest.raises(ValueError, match=r"wrn16_4 takes dropout: .* argument 'widen'"):
        models.build("wrn16_4", widen=2)
    with pytest.raises(ValueError, match="resnet18 takes stem, the arguments of its class"):
        models.build("resnet18", depth=3)
    with pytest.raises(ValueError, match="classes is 0, it must be a whole number >= 1"):
        models.build("resnet20", classes=0)
    with pytest.raises(ValueError, match="image_size is '32'"):
        models.build("resnet20", image_size="32")


@pytest.mark.parametrize("name", models.names())
def test_every_model_has_a_config_that_builds(name: str) -> None:
    config = yaml.safe_load((ROOT / "configs" / "model" / f"{name}.yaml").read_text())
    assert config.pop("name") == name
    assert count(meta(name, **config)) == count(meta(name))


def test_every_config_is_a_model() -> None:
    assert sorted(p.stem for p in (ROOT / "configs" / "model").glob("**/*.yaml")) == models.names()
