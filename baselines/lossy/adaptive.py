"""The adaptive bound: how large an error of a layer's input its weight gradient can bear.

With errors uniform in [-eb, eb] on the non-zero elements of the input, independent of each other
and of the gradient L of the layer's output, each entry of the weight gradient gets an error with

    sigma^2 = eb^2 / 3 * R * rows * mean(L^2)

where R is the share of non-zero elements and `rows` the number of positions that are summed over
(N * Ho * Wo). Real errors are not independent: on smooth maps neighbours share their error. So
sigma is measured, from one weight gradient of the error map, and kappa = measured / formula
corrects the bound that the formula gives for the sigma we want. Kappa itself grows with the bound,
so a renewal goes only half of the way, on a logarithmic scale: the whole way would swing between
too far and not far enough wherever sigma grows faster than the square of the bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from division.site import Site

MOST_ENTRIES = 4096  # of a weight's gradient that are averaged
MOST_GROWTH = 4.0  # of a bound at one renewal
_PASSING = {  # from a weight as a layer uses it back to the parameter
    "TBackward0",
    "TransposeBackward0",
    "PermuteBackward0",
    "ViewBackward0",
    "ReshapeAliasBackward0",
    "ToCopyBackward0",
}
_WEIGHT_POSITION = {"AddmmBackward0": 2, "MmBackward0": 1}  # among the inputs of a node


def formula_sigma(bound: float, share: float, rows: int, loss_rms: float) -> float:
    """Return the standard deviation of the weight gradient's error, by the formula."""
    return bound / math.sqrt(3) * math.sqrt(share * rows) * loss_rms


def bound_for(sigma: float, kappa: float, share: float, rows: int, loss_rms: float) -> float:
    """Return the bound with which the weight gradient's error has standard deviation sigma."""
    per_unit = kappa * formula_sigma(1.0, share, rows, loss_rms)
    return sigma / per_unit if per_unit > 0 else math.inf


@dataclass
class Layer:
    """What is known of one site: its bound, and what was measured since the last renewal.

    Attributes:
        bound: the error bound of its tensor.
        order: its place among the sites, by first sight.
        copied: the site whose copy serves, itself unless the tensor is shared.
        weight: the site that the average of its weight's gradient is kept at; "" without one.
        average: momentum of some entries of the weight's gradient.
        kappa: measured sigma over that of the formula.
        share: R, the share of non-zero elements.
        spread: standard deviation of the elements.
        rows: positions that the weight gradient sums over.
        loss_rms: root mean square of L.
        is_fresh: whether all this was measured since the last renewal.
    """

    bound: float
    order: int
    copied: str
    weight: str = ""
    average: Tensor | None = None
    kappa: float = 1.0
    share: float = 0.0
    spread: float = 0.0
    rows: int = 0
    loss_rms: float = 0.0
    is_fresh: bool = False

    def state(self) -> dict[str, Any]:
        """Return all fields, tensors copied."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v.clone() if isinstance(v, Tensor) else v for k, v in found.items()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Layer":
        """Undo `state`."""
        layer = cls(**state)
        if layer.average is not None:
            layer.average = layer.average.clone()
        return layer

    def accumulate(self, gradient: Tensor, momentum: float) -> None:
        """Take a gradient into the average; one that is not finite (loss scaling) is left out."""
        entries = _entries(gradient)
        if self.average is None or self.average.shape != entries.shape:
            self.average = torch.zeros_like(entries)
        new = momentum * self.average + entries
        self.average = torch.where(new.isfinite().all(), new, self.average)

    def note(self, rows: int, loss_rms: float, sigma: float, bound: float) -> None:
        """Take up what the backward pass of a sampled step showed."""
        expected = formula_sigma(bound, self.share, rows, loss_rms)
        if not (math.isfinite(sigma) and math.isfinite(expected)) or expected <= 0:
            return
        self.rows, self.loss_rms, self.kappa = rows, loss_rms, sigma / expected
        self.is_fresh = True


def _entries(gradient: Tensor) -> Tensor:
    """Return at most `MOST_ENTRIES` entries, a fixed and odd number apart, as fp32."""
    dense = gradient.detach()
    if gradient.is_contiguous() or gradient.movedim(1, -1).is_contiguous():
        flat = dense.as_strided((dense.numel(),), (1,))
    else:
        flat = dense.flatten()
    return flat[:: -(-flat.numel() // MOST_ENTRIES) | 1].float()


def renewed(layers: dict[str, Layer], target: float) -> dict[str, float]:
    """Return the new bound of every site that was measured.

    A site without a formula gets the bound that the others have relative to the spread of their
    tensors, in the geometric mean. A copy that serves several sites gets the smallest bound.
    """
    wanted: dict[str, float] = {}
    for key, layer in layers.items():
        average = layers[layer.weight].average if layer.weight in layers else None
        if layer.is_fresh and average is not None:
            sigma = target * float(average.abs().mean())
            bound = bound_for(sigma, layer.kappa, layer.share, layer.rows, layer.loss_rms)
            if bound > 0:
                before = layers[layer.copied].bound
                wanted[key] = before * min(math.sqrt(bound / before), MOST_GROWTH)
    relative = [math.log(b / layers[k].spread) for k, b in wanted.items() if layers[k].spread > 0]
    for key, layer in layers.items():
        if layer.is_fresh and not layer.weight and relative and layer.spread > 0:
            wanted[key] = math.exp(sum(relative) / len(relative)) * layer.spread
    bounds: dict[str, float] = {}
    for key, bound in wanted.items():
        copied = layers[key].copied
        bounds[copied] = min(bound, bounds.get(copied, math.inf))
    return bounds


def weight_of(site: Site, node: Any) -> Tensor | None:
    """Return the parameter that a layer multiplies with, or None."""
    if site.kind not in ("convolution", "linear"):
        return None
    edge = node.next_functions[_WEIGHT_POSITION.get(site.node, 1)][0]
    while edge is not None and edge.name() in _PASSING:
        edge = edge.next_functions[0][0]
    variable = getattr(edge, "variable", None)
    return variable if isinstance(variable, Tensor) else None


def weight_gradient_of(site: Site, node: Any) -> Callable[[Tensor, Tensor], tuple[Tensor, int]]:
    """Return a function of input and output gradient that gives the weight's gradient and `rows`.

    It knows the layer's geometry and keeps no reference to the node.
    """
    if site.kind == "linear":
        return lambda x, loss: (x.t() @ loss, loss.shape[0])
    shape = tuple(node._saved_weight.shape)
    is_transposed = bool(node._saved_transposed)
    options = (
        node._saved_stride,
        node._saved_padding,
        node._saved_dilation,
        is_transposed,
        node._saved_output_padding,
        node._saved_groups,
    )

    def gradient(x: Tensor, loss: Tensor) -> tuple[Tensor, int]:
        weight = loss.new_empty(1).expand(shape)  # only its shape is looked at
        mask = [False, True, False]
        found = torch.ops.aten.convolution_backward(loss, x, weight, None, *options, mask)[1]
        positions = x if is_transposed else loss
        return found, positions.numel() // positions.shape[1]

    return gradient


class Probe:
    """Looks at a sampled layer in the backward pass; a prehook of its node.

    Holds the error map, and nothing of the graph, until it is called or the graph is dropped.
    """

    def __init__(
        self,
        find: Callable[[], Layer | None],
        error: Tensor,
        bound: float,
        gradient: Callable[[Tensor, Tensor], tuple[Tensor, int]],
    ) -> None:
        self._find = find
        self._error: Tensor | None = error
        self._bound = bound
        self._gradient = gradient

    @torch.no_grad()
    def __call__(self, grad_outputs: tuple[Tensor | None, ...]) -> None:
        """Measure sigma and L."""
        error, self._error = self._error, None
        loss, layer = grad_outputs[0], self._find()
        if error is None or loss is None or layer is None:
            return
        loss = loss.detach().float()
        gradient, rows = self._gradient(error, loss)
        layer.note(rows, rms(loss), rms(gradient), self._bound)


def rms(x: Tensor) -> float:
    """Return the root mean square."""
    return float(x.square().mean().sqrt())
