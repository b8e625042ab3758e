"""Error-bounded quantization in plain PyTorch: the definition of the integers that are coded.

Every finite x becomes an integer q on a grid of one step, and comes back as x' = q * step with
|x - x'| <= error_bound, without slack: what the decoder will make of q is computed here and
compared, and an element that misses the bound, is not finite or needs |q| >= 2**22 is *missing*
from the grid, to be kept verbatim beside it. Zero becomes q = 0 and comes back as +0.0.

The step of an fp32 tensor is twice the bound. The numbers of a 16-bit type lie powers of two apart;
on any other grid, rounding x' to the type would break the bound for up to half of the elements. So
there the step is the largest power of two up to twice the bound, and nothing has to be rounded.

With dither, x' = (round(x / step + u) - u) * step, where u is uniform in [-1/2, 1/2) and a hash of
seed and position (see `quantize`): the error no longer depends on x. Zero must stay zero, so it has
a code of its own, 0, and q >= 0 becomes q + 1: cheaper than a mask, which costs one bit an element.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from division import quantize

BLOCK = 32  # elements that share a hash block, and in `fixedlength` a bit width
LARGEST = 2**22  # beyond it a product with the step is too coarse, and sums lose their integers
SMALLEST_BOUND, LARGEST_BOUND = 1e-30, 1e30  # what keeps steps and their inverses normal in fp32


@dataclass(frozen=True)
class Grid:
    """A bound and the numbers that follow from it, all but the bound itself fp32 values."""

    bound: float
    step: float
    inverse: float
    bound_down: float  # the largest fp32 number up to the bound
    limit: float  # the largest finite number of the element type

    @classmethod
    def of(cls, error_bound: float, dtype: torch.dtype) -> "Grid":
        """Return the grid for tensors of a type."""
        if dtype == torch.float32:
            step = _fp32(2 * error_bound)
        else:
            step = 2.0 ** (math.frexp(2 * error_bound)[1] - 1)
        down = torch.tensor(error_bound, dtype=torch.float32)
        if float(down) > error_bound:
            down = torch.nextafter(down, torch.zeros_like(down))
        limit = torch.finfo(dtype).max
        return cls(error_bound, step, _fp32(1 / step), float(down), limit)


def _fp32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))


def uniform_noise(count: int, seed: int, device: torch.device) -> Tensor:
    """Return u in [-1/2, 1/2) for `count` elements, exact multiples of 2**-24."""
    noise = quantize.dither(-(-count // BLOCK), BLOCK, seed, device).flatten()[:count]
    return (noise >> 8).float() * 2.0**-24 - 0.5


def to_grid(flat: Tensor, error_bound: float, dither: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Return the codes (int32) of a flat tensor, zero where missing, and which are missing."""
    grid = Grid.of(error_bound, flat.dtype)
    x = flat.float()
    position = x * grid.inverse
    if dither:
        position = position + uniform_noise(flat.numel(), seed, flat.device)
    nearest = position.round()
    usable = nearest.abs() < LARGEST
    codes = torch.where(usable, nearest, 0.0).to(torch.int32)
    if dither:
        codes = torch.where(x == 0, 0, codes + (codes >= 0).int())
    rebuilt = from_grid(codes, error_bound, flat.dtype, dither, seed)
    kept = usable & ((flat.double() - rebuilt.double()).abs() <= error_bound)
    return torch.where(kept, codes, 0), ~kept


def from_grid(
    codes: Tensor, error_bound: float, dtype: torch.dtype, dither: bool, seed: int
) -> Tensor:
    """Return the elements that codes stand for."""
    step = Grid.of(error_bound, dtype).step
    if not dither:
        return (codes.float() * step).to(dtype)
    noise = uniform_noise(codes.numel(), seed, codes.device)
    nearest = codes - (codes > 0).int()
    rebuilt = (nearest.float() - noise) * step
    return torch.where(codes == 0, 0.0, rebuilt).to(dtype)
