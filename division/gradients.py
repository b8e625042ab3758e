"""gradient_error: how far compressed gradients are from exact ones, and in which direction."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from division.codec import check_range
from division.method import Method, resolve
from division.model import check_trainable, compress, restore
from division.state import unchanged

_MOST_STEPS = 2000  # until a method that looks at gradients first is as it will be


@dataclass(frozen=True)
class LayerError:
    """Error of one parameter's gradient over several draws of the rounding noise.

    Attributes:
        name: the parameter.
        relative: root mean square of |g - g0| / |g0|.
        cosine: mean cosine between g and g0.
        bias: |mean of g - g0| / |g0|; for an unbiased method it falls as 1 / sqrt(draws).
    """

    name: str
    relative: float
    cosine: float
    bias: float


@dataclass(frozen=True)
class GradientError:
    """The error of the whole gradient, and of each parameter's."""

    relative: float
    cosine: float
    bias: float
    draws: int
    layers: tuple[LayerError, ...]

    def __str__(self) -> str:
        width = max(len(layer.name) for layer in self.layers)
        lines = [f"{'parameter':<{width}}  relative   cosine     bias"]
        for row in (*self.layers, LayerError("all", self.relative, self.cosine, self.bias)):
            values = f"{row.relative:9.4f}{row.cosine:9.4f}{row.bias:9.4f}"
            lines.append(f"{row.name:<{width}} {values}")
        lines.append(
            f"over {self.draws} draws; unbiased noise alone would leave a bias of about "
            f"{self.relative / self.draws**0.5:.4f}"
        )
        return "\n".join(lines)


def gradient_error(
    model: nn.Module,
    method: str | Method,
    batch: Sequence[Any],
    loss_fn: Callable[[Any, Any], Tensor],
    draws: int = 8,
    **options: object,
) -> GradientError:
    """Compare gradients under a method with exact ones on one batch.

    Args:
        model: compressed or not; it is copied and stays as it is.
        method: as for `compress`.
        batch: (inputs, targets); the loss is `loss_fn(model(inputs), targets)`.
        loss_fn: makes a scalar of output and targets.
        draws: how often the rounding noise is drawn anew.
        **options: the method's options.
    """
    check_range("draws", draws, 1, 1_000_000)
    check_trainable(model)
    inputs, targets = batch
    probe = restore(copy.deepcopy(model))
    noise = torch.get_rng_state()

    def gradients() -> dict[str, Tensor]:
        with unchanged(probe):  # the same buffers and the same dropout every time
            torch.set_rng_state(noise)
            probe.zero_grad(set_to_none=True)
            loss_fn(probe(inputs), targets).backward()
        found = {n: p.grad for n, p in probe.named_parameters() if p.grad is not None}
        return {name: gradient.detach().flatten().double() for name, gradient in found.items()}

    exact = gradients()
    resolved = copy.deepcopy(resolve(method, **options))
    compress(probe, resolved)
    resolved.hurry()
    for _ in range(_MOST_STEPS):  # a budget is shared out by the gradients of this batch
        if resolved.is_settled:
            break
        gradients()
    else:
        raise ValueError(f"{resolved!r} did not settle: the loss has no finite gradient")
    sums = {name: _Sums(gradient) for name, gradient in exact.items()}
    for _ in range(draws):
        for name, gradient in gradients().items():
            sums[name].add(gradient)
    layers = tuple(s.error(name, draws) for name, s in sums.items())
    whole = _Sums.joined(list(sums.values())).error("all", draws)
    return GradientError(whole.relative, whole.cosine, whole.bias, draws, layers)


class _Sums:
    """Running sums over draws, from which the three errors follow."""

    def __init__(self, exact: Tensor) -> None:
        self.exact = exact
        self.square = float(exact.square().sum())
        self.mean = torch.zeros_like(exact)
        self.errors: list[float] = []
        self.dots: list[float] = []
        self.norms: list[float] = []

    def add(self, gradient: Tensor) -> None:
        self.mean += gradient
        self.errors.append(float((gradient - self.exact).square().sum()))
        self.dots.append(float(gradient @ self.exact))
        self.norms.append(float(gradient.square().sum()))

    @classmethod
    def joined(cls, parts: list["_Sums"]) -> "_Sums":
        whole = cls(torch.cat([part.exact for part in parts]))
        whole.mean = torch.cat([part.mean for part in parts])
        for name in ("errors", "dots", "norms"):
            columns = zip(*(getattr(part, name) for part in parts), strict=True)
            setattr(whole, name, [sum(column) for column in columns])
        return whole

    def error(self, name: str, draws: int) -> LayerError:
        scale = self.square**0.5 or 1.0
        relative = (sum(self.errors) / draws) ** 0.5 / scale
        cosines = [
            dot / (norm**0.5 * scale) if norm else 0.0
            for dot, norm in zip(self.dots, self.norms, strict=True)
        ]
        bias = float((self.mean / draws - self.exact).norm()) / scale
        return LayerError(name, relative, sum(cosines) / draws, bias)
