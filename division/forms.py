"""How a saved tensor is looked at before it goes through a codec.

Codecs know samples, channels and space. What autograd saves has often lost one of them: a linear
layer flattens samples and tokens, attention has heads, a product of matrices saves a transpose. A
form brings the tensor into an order that codecs understand, and back.
"""

from dataclasses import dataclass
from math import isqrt

from torch import Tensor

MOST_EXTRA_TOKENS = 8  # class, distillation and register tokens beside the patches


@dataclass(frozen=True)
class Form:
    """One way to look at a tensor; the default is as it is, with the channel in dimension 1.

    Attributes:
        channel: 1, or -1 where the channel is the last dimension.
        shape: view the tensor as this shape first, which has its token axis; empty: leave it.
        heads: (N, heads, T, D) is looked at as (N, T, heads * D).
        swapped: the last two dimensions are exchanged.
    """

    channel: int = 1
    shape: tuple[int, ...] = ()
    heads: bool = False
    swapped: bool = False

    def see(self, tensor: Tensor) -> Tensor:
        """Return the tensor as the codec sees it."""
        if self.heads:
            return tensor.transpose(1, 2).flatten(2)
        if self.swapped:
            tensor = tensor.transpose(-1, -2)
        return tensor.view(self.shape) if self.shape else tensor

    def unsee(self, seen: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Undo `see`, given the shape of the original."""
        if self.heads:
            n, heads, length, size = shape
            return seen.view(n, length, heads, size).transpose(1, 2)
        if self.swapped:
            return seen.transpose(-1, -2)
        return seen.reshape(shape)


def grid_of(tokens: int, grids: dict[int, tuple[int, int]]) -> tuple[int, tuple[int, int]] | None:
    """Return how many tokens stand before a grid of patches, and its height and width.

    Args:
        tokens: length of the sequence.
        grids: the sizes of the maps that convolutions of this forward made, by their area.

    Returns:
        A grid that a convolution made, after at most `MOST_EXTRA_TOKENS` others; else a square;
        else None: the sequence is no grid.
    """
    for extra in range(MOST_EXTRA_TOKENS + 1):
        if tokens - extra in grids:
            return extra, grids[tokens - extra]
    edge = isqrt(tokens)
    return (0, (edge, edge)) if edge * edge == tokens else None
