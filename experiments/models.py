"""Networks by name: ours, then any classifier of timm or torchvision; always untrained."""

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models import vgg

from experiments import networks

SMALL = 64  # up to this many pixels a network gets the stem and the patches for small images
STEMS = ("auto", "cifar", "imagenet")
Builder = Callable[..., nn.Module]


def names() -> list[str]:
    """The networks of the experiments; `build` takes timm's and torchvision's names too."""
    return sorted(OURS)


def build(name: str, classes: int = 10, image_size: int = 32, **options: Any) -> nn.Module:
    """An untrained classifier of RGB images.

    Args:
        name: one of `names()`, or any model name of timm or torchvision.
        classes: number of outputs.
        image_size: pixels; networks made for 224 are fitted to 32 where that is customary.
        options: what this network takes, such as `stem`, `patch` or `dropout`.
    """
    for key, value in (("classes", classes), ("image_size", image_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{key} is {value!r}, it must be a whole number >= 1")
    builder = OURS.get(name) or foreign(name)
    try:
        return builder(classes=classes, image_size=image_size, **options)
    except TypeError as error:
        if not any(words in str(error) for words in ("unexpected keyword", "multiple values")):
            raise
        raise ValueError(f"model {name} takes {takes(builder)}: {error}") from error


def takes(builder: Builder) -> str:
    """The options of a builder, for the message about one that it does not have."""
    kinds = {key: p.kind for key, p in inspect.signature(builder).parameters.items()}
    passed_on = [key for key, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD]
    own = [key for key in kinds if key not in ("classes", "image_size", *passed_on)]
    constructor = ["the arguments of its class in timm or torchvision"] if passed_on else []
    return ", ".join(own + constructor) or "no options"


def foreign(name: str) -> Builder:
    """A model of timm or torchvision; names that would reach for the network are unknown."""
    if timm.is_model(name):
        return partial(from_timm, name)
    classifiers = torchvision.models.list_models(module=torchvision.models)
    if name in classifiers:
        return partial(from_torchvision, name)
    known = sorted({*names(), *timm.list_models(), *classifiers})
    near = difflib.get_close_matches(name, known, n=5)
    hint = f"; did you mean {', '.join(near)}" if near else ""
    raise ValueError(
        f"unknown model {name!r}{hint}; ours are {', '.join(names())}, "
        "and every classifier of timm and torchvision is taken by its name there"
    )


def from_timm(name: str, classes: int, image_size: int, **options: Any) -> nn.Module:
    facts = timm.get_pretrained_cfg(name)
    if facts is not None and facts.fixed_input_size:
        options = {"img_size": image_size, **options}
    return timm.create_model(name, pretrained=False, num_classes=classes, **options)


def from_torchvision(name: str, classes: int, image_size: int, **options: Any) -> nn.Module:
    if name.startswith("vit_"):
        options = {"image_size": image_size, **options}
    if name == "googlenet":  # one output, as all the others have
        options = {"aux_logits": False, "init_weights": True, **options}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **options)


def is_small(stem: str, image_size: int) -> bool:
    """Whether to leave out the early downsampling that is made for photographs."""
    if stem not in STEMS:
        raise ValueError(f"stem is {stem!r}, it must be one of {', '.join(STEMS)}")
    return image_size <= SMALL if stem == "auto" else stem == "cifar"


def cifar_resnet(depth: int, classes: int, image_size: int) -> nn.Module:
    """He et al. 2015: with shortcuts of option A, as published, which need no parameters."""
    return networks.CifarResNet(networks.blocks_per_stage(depth, 6, 2), classes)


def preact_resnet(depth: int, classes: int, image_size: int, dropout: float = 0.0) -> nn.Module:
    """He et al. 2016: pre-activation bottlenecks."""
    blocks = networks.blocks_per_stage(depth, 9, 2)
    return networks.PreActResNet(networks.PreBottleneck, blocks, classes, 1, dropout)


def wide_resnet(
    depth: int, widen: int, classes: int, image_size: int, dropout: float = 0.0
) -> nn.Module:
    """Zagoruyko & Komodakis 2016: pre-activation basic blocks, `widen` times as wide."""
    blocks = networks.blocks_per_stage(depth, 6, 4)
    return networks.PreActResNet(networks.PreBasicBlock, blocks, classes, widen, dropout)


def resnet(
    name: str, classes: int, image_size: int, stem: str = "auto", **options: Any
) -> nn.Module:
    """torchvision's; the CIFAR stem is one 3 x 3 convolution and no max-pool."""
    model = from_torchvision(name, classes, image_size, **options)
    if is_small(stem, image_size):
        model.conv1 = networks.conv3x3(3, 64)
        networks.initialise(model.conv1)
        model.maxpool = nn.Identity()
    return model


def densenet(
    name: str, classes: int, image_size: int, stem: str = "auto", **options: Any
) -> nn.Module:
    """torchvision's, with the same CIFAR stem as the ResNets."""
    model = from_torchvision(name, classes, image_size, **options)
    if is_small(stem, image_size):
        model.features.conv0 = networks.conv3x3(3, model.features.conv0.out_channels)
        networks.initialise(model.features.conv0)
        model.features.pool0 = nn.Identity()
    return model


def alexnet(classes: int, image_size: int, stem: str = "auto", **options: Any) -> nn.Module:
    """torchvision's; for small images a 3 x 3 stem, a 3 x 3 last map and a classifier to match."""
    model = from_torchvision("alexnet", classes, image_size, **options)
    if is_small(stem, image_size):
        model.features[0] = nn.Conv2d(3, 64, 3, padding=1)
        model.avgpool = nn.AdaptiveAvgPool2d(3)
        model.classifier[1] = nn.Linear(256 * 3 * 3, 1024)
        model.classifier[4] = nn.Linear(1024, 1024)
        model.classifier[6] = nn.Linear(1024, classes)
    return model


def vgg16_bn(classes: int, image_size: int, stem: str = "auto", dropout: float = 0.5) -> nn.Module:
    """torchvision's; for small images one linear layer on the averaged last map, as is usual."""
    if not is_small(stem, image_size):
        return from_torchvision("vgg16_bn", classes, image_size, dropout=dropout)
    # Not torchvision's class: it would make and initialise 120 million weights to throw away.
    features = vgg.make_layers(vgg.cfgs["D"], batch_norm=True)
    networks.initialise(features)
    head = nn.Sequential(nn.Dropout(dropout), nn.Linear(512, classes))
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def patch_size(image_size: int, patch: int | None) -> int:
    """4 pixels for small images, else 16, unless the user says another."""
    chosen = patch or (4 if image_size <= SMALL else 16)
    if image_size % chosen:
        raise ValueError(f"image_size {image_size} is not a multiple of the patch of {chosen}")
    return chosen


def vit(
    name: str, classes: int, image_size: int, patch: int | None = None, **options: Any
) -> nn.Module:
    """timm's, with patches that suit the image."""
    size = patch_size(image_size, patch)
    return from_timm(name, classes, image_size, patch_size=size, **options)


def vit_micro(classes: int, image_size: int, patch: int | None = None, **options: Any) -> nn.Module:
    """Small enough to train on two cores."""
    return VisionTransformer(
        img_size=image_size,
        patch_size=patch_size(image_size, patch),
        embed_dim=96,
        depth=6,
        num_heads=3,
        num_classes=classes,
        **options,
    )


OURS: dict[str, Builder] = {
    "resnet20": partial(cifar_resnet, 20),
    "resnet56": partial(cifar_resnet, 56),
    "resnet164": partial(preact_resnet, 164),
    "wrn16_4": partial(wide_resnet, 16, 4),
    "wrn28_10": partial(wide_resnet, 28, 10),
    **{
        name: partial(resnet, name)
        for name in ("resnet18", "resnet34", "resnet50", "wide_resnet50_2")
    },
    "densenet121": partial(densenet, "densenet121"),
    "densenet161": partial(densenet, "densenet161"),
    "alexnet": alexnet,
    "vgg16_bn": vgg16_bn,
    "vit_micro": vit_micro,
    "vit_tiny": partial(vit, "vit_tiny_patch16_224"),
    "vit_small": partial(vit, "vit_small_patch16_224"),
    "deit_small": partial(vit, "deit_small_patch16_224"),
}
