"""How much the noise of a stored tensor matters: ranges, gradients, and what a layer makes of both.

A layer that keeps sample n of its input in b bits adds the variance C_n / (2**b - 1)**2 to its
weight gradient, with

    C_n = K / (6 I A) * |dL/dy_n|**2 * sum over groups of (elements in it) * range**2

K kernel positions, I input pixels, A channel groups of a convolution; all 1 for a linear layer,
where a sample is one row: a token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from baselines.actnn.allocation import allocate_weighted
from baselines.actnn.codec import sample_shape
from division.codec import Packed
from division.site import Site

MOST_ROWS = 256  # of a tensor that are looked at: a batch of token sequences has far more


@dataclass
class Share:
    """What is stored with the bits of one layer: its input, and the tensors that follow it.

    Attributes:
        elements: how many there are, in all samples.
        terms: layer, factor and energies of every layer that reads one of the tensors.
    """

    elements: int = 0
    terms: list[tuple[str, float, Tensor]] = field(default_factory=list)

    def costs(self, gradients: Mapping[str, Tensor]) -> np.ndarray | None:
        """Return C_n of the samples, or None if no gradient has been seen."""
        known = [term for term in self.terms if term[0] in gradients]
        if not known:
            return None
        count = len(known[0][2])
        total = np.zeros(count)
        for layer, factor, energies in known:
            gradient = gradients[layer].double().cpu()
            if gradient.dim() and len(gradient) != len(energies):
                gradient = gradient.mean()
            cost = (factor * gradient * energies).numpy()
            # A layer that ran on another number of samples is the same for all.
            total += cost if len(cost) == count else cost.mean()
        return total


def allocate_layers(
    shares: Mapping[str, Share], gradients: Mapping[str, Tensor], average: float
) -> dict[str, float]:
    """Return the mean bits of each share, so that all elements have `average` bits at most.

    A share without a gradient has the average.
    """
    costs = {key: share.costs(gradients) for key, share in shares.items()}
    known = {key: cost for key, cost in costs.items() if cost is not None}
    found = dict.fromkeys(shares, average)
    if known:
        weights = [np.full(len(c), shares[key].elements / len(c)) for key, c in known.items()]
        every, weight = np.concatenate(list(known.values())), np.concatenate(weights)
        bits = allocate_weighted(every, weight, average * float(weight.sum()))
        ends = np.cumsum([len(cost) for cost in known.values()])
        for key, part in zip(known, np.split(bits, ends[:-1]), strict=True):
            found[key] = float(part.mean())
    return found


def row_step(rows: int) -> int:
    """Return the distance between the rows of a tensor that are looked at."""
    return -(-rows // MOST_ROWS)


def energies(packed: Packed, group: int) -> Tensor:
    """Return the sum over groups of elements * range**2, for each row that is looked at."""
    step = row_step(len(packed.tensors["bits"]))
    points = 2.0 ** packed.tensors["bits"][::step].double() - 1
    squares = packed.tensors["scale"][::step].double().nan_to_num_(0.0, 0.0, 0.0).square_()
    shape = sample_shape(packed.shape, packed.channel)
    size = shape[1:].numel() if len(shape) > 1 else shape.numel()
    last = size - (squares.shape[1] - 1) * group
    summed = group * squares[:, :-1].sum(1) + last * squares[:, -1]
    return (summed * points.square_()).cpu()


def layer_factor(site: Site, node: Any, stored: torch.Size) -> float:
    """Return K / (6 I A) of a convolution or linear layer whose input is stored in some shape.

    I is the mean that the sum over positions leaves: of a transposed convolution, whose output has
    the pixels that its gradient is spread over, the pixels of the output.
    """
    if site.kind == "linear":
        return 1 / 6
    kernel = math.prod(node._saved_weight.shape[2:])
    shape = node._input_metadata[0].shape if node._saved_transposed else stored
    return kernel / (6 * math.prod(shape[2:]) * node._saved_groups)


def squared_norms(gradient: Tensor, rows: int) -> Tensor:
    """Return |dL/dy_n|**2 of `rows` equal parts of a gradient; one part is the whole."""
    wide = torch.float32 if gradient.element_size() < 4 else gradient.dtype
    if rows == 1:
        return torch.linalg.vector_norm(gradient, dtype=wide).square()
    parts = torch.linalg.vector_norm(gradient, dim=tuple(range(1, gradient.dim())), dtype=wide)
    return parts.square().view(rows, -1).sum(1)
