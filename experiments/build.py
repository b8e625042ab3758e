"""The one place where a config becomes objects."""

import math
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

import division
from experiments import data, models
from experiments.config import FOLDER, Optim


def options(node: DictConfig) -> tuple[str, dict[str, Any]]:
    """Split a group's config into the name and the keyword arguments."""
    values = OmegaConf.to_container(node, resolve=True)
    return values.pop("name"), values


def dataset(config: DictConfig) -> data.Data:
    """Load the data of a config."""
    name, keywords = options(config.dataset)
    return data.load(name, root=config.paths.data, **keywords)


def model(config: DictConfig, of: data.Data) -> nn.Module:
    """Build the network of a config with its method; the seed decides the weights."""
    torch.manual_seed(config.seed)
    name, keywords = options(config.model)
    network = models.build(name, classes=of.classes, image_size=of.image_shape[-1], **keywords)
    network = network.to(config.hardware.device)
    if config.hardware.channels_last:
        network = network.to(memory_format=torch.channels_last)
    method, keywords = options(config.method)
    if _gives_only_a_budget(method, keywords):
        del keywords["bits"]
    return division.compress(network, method, **{"seed": config.seed, **keywords})


def _gives_only_a_budget(method: str, keywords: dict[str, Any]) -> bool:
    """Tell whether bits beside a budget are those of the group's file, which nobody asked for."""
    if keywords.get("budget") is None and keywords.get("ratio") is None:
        return False
    return "bits" in keywords and keywords["bits"] == _of_the_file(method).get("bits")


def _of_the_file(method: str) -> DictConfig:
    return OmegaConf.load(FOLDER / "method" / f"{method}.yaml")


def optimizer(of: nn.Module, settings: Optim) -> torch.optim.Optimizer:
    """Build the optimizer; vectors (norms and biases) are not decayed."""
    parameters = [p for p in of.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    if settings.name == "sgd":
        momentum = {"momentum": settings.momentum, "nesterov": settings.nesterov}
        return torch.optim.SGD(groups, settings.lr, **momentum)
    if settings.name == "adamw":
        return torch.optim.AdamW(groups, settings.lr)
    raise ValueError(f"optim.name must be one of sgd, adamw; got {settings.name!r}")


def schedule(settings: Optim, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate at a step: a pure function, so nothing to save."""
    warmup = settings.warmup * steps

    def cosine(progress: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))

    def linear_then_cosine(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return cosine((step - warmup) / max(1.0, steps - warmup))

    def one_cycle(step: int) -> float:
        if step < warmup:
            return 0.04 + 0.96 * (1 - cosine(step / warmup))
        return cosine((step - warmup) / max(1.0, steps - warmup))

    shapes = {"cosine": linear_then_cosine, "onecycle": one_cycle, "constant": lambda step: 1.0}
    if settings.schedule not in shapes:
        raise ValueError(
            f"optim.schedule must be one of {', '.join(shapes)}; got {settings.schedule!r}"
        )
    return shapes[settings.schedule]
