"""Specs: a method with its options, under a label; configs/specs/ has lists of them."""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from division.method import resolve


@dataclass(frozen=True)
class Spec:
    """A method with its options, under a label."""

    label: str
    method: str
    options: dict[str, Any]


def specs_of(config: DictConfig) -> list[Spec]:
    """Read the specs of a config; a method that does not exist is an error at once."""
    found = []
    for label, values in OmegaConf.to_container(config.specs, resolve=True).items():
        options = {"name": label, **values}
        spec = Spec(label, options.pop("name"), options)
        resolve(spec.method, **spec.options)
        found.append(spec)
    unknown = sorted(set(config.layers) - {spec.label for spec in found})
    if unknown:
        raise ValueError(f"layers names {unknown[0]!r}, which is no spec")
    return found
