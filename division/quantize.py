"""Stochastic rounding in plain PyTorch: the definition of codes, their metadata and their noise.

A *map* is the last dimension here: it shares one offset d and one scale s, both stored in bf16.
Metadata are rounded first and the codes made with the rounded values; d is rounded down and s up,
so that no element lies outside the grid and the expectation of `base + code * s` is the element.

The noise is a hash of (seed, position), never a generator's state: any backend, in any order, makes
the same bytes. One 32-bit hash serves four elements of a map (k, k + quarter, k + 2 * quarter,
k + 3 * quarter with quarter = ceil(size / 4)), each taking it rotated by another byte.
"""

import torch
from torch import Tensor

NEAREST = -1  # in the place of a seed: round to nearest, half up
SMALLEST_SCALE = 2.0**-90  # below it a map counts as constant: 2**30 / scale must stay finite
_U32 = 0xFFFFFFFF
_NAN_BF16 = 0x7FC0


def mix(h: int) -> int:
    """Scramble one 32-bit integer."""
    h ^= h >> 16
    h = (h * 0x7FEB352D) & _U32
    h ^= h >> 15
    h = (h * 0x846CA68B) & _U32
    return h ^ (h >> 16)


def seed_keys(seed: int) -> tuple[int, int]:
    """Turn a 64-bit seed into the two 32-bit keys of the hash."""
    first = mix((seed & _U32) ^ 0x9E3779B9)
    return first, mix((((seed >> 32) & _U32) + first) & _U32)


def hash32(counter: Tensor, keys: tuple[int, int]) -> Tensor:
    """Hash the low 32 bits of int64 counters to uniform 32-bit integers (held in int64)."""
    h = (counter & _U32) ^ keys[0]
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _U32
    h = h ^ keys[1]
    h = h ^ (h >> 15)
    h = (h * 0x846CA68B) & _U32
    return h ^ (h >> 16)


def dither(maps: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Return uniform 32-bit integers of shape (maps, size); for `NEAREST` half of their range."""
    if seed == NEAREST:
        return torch.full((1, 1), 2**31, device=device).expand(maps, size)
    quarter = -(-size // 4)
    counter = torch.arange(maps * quarter, device=device).view(maps, 1, quarter)
    h = hash32(counter, seed_keys(seed))
    turn = 8 * torch.arange(4, device=device).view(4, 1)
    rotated = ((h << turn) | (h >> (32 - turn))) & _U32
    return rotated.flatten(1)[:, :size]


def to_bf16(x: Tensor, rounding: str = "nearest") -> Tensor:
    """Round fp32 to bf16, to `nearest` (ties to even), `down` or `up`; any NaN becomes one NaN.

    Written on the bits because torch's own conversion knows only `nearest` and its NaN differs
    between devices.
    """
    word = x.view(torch.int32).to(torch.int64) & _U32
    negative = word >> 31
    if rounding == "nearest":
        grow = 0x7FFF + ((word >> 16) & 1)
    else:  # away from zero on the side the rounding points to, toward zero on the other
        grow = (negative if rounding == "down" else 1 - negative) * 0xFFFF
    rounded = torch.where(x.isnan(), _NAN_BF16, ((word + grow) >> 16) & 0xFFFF)
    return rounded.to(torch.uint16).view(torch.bfloat16)


def grid(low: Tensor, high: Tensor, bits: int, bad: Tensor) -> tuple[Tensor, Tensor]:
    """Return offset and scale (bf16) of the grid of `2**bits` points that covers [low, high].

    Where `bad` is set both are NaN, so that whatever is decoded from them is NaN.
    """
    offset = to_bf16(low + 0.0, "down")  # + 0.0 turns -0 into +0
    step = (high - offset.float()) * torch.tensor(1 / (2**bits - 1), dtype=torch.float32)
    step = torch.where(step < SMALLEST_SCALE, torch.zeros_like(step), step)
    scale = to_bf16(step, "up")
    nan = torch.tensor(float("nan"), dtype=torch.bfloat16, device=low.device)
    return torch.where(bad, nan, offset), torch.where(bad, nan, scale)


def encode(distance: Tensor, scale: Tensor, bits: int, noise: Tensor) -> Tensor:
    """Round `distance / scale` (maps, size) stochastically to codes of `bits` bits (int64).

    The fixed-point sum of distance and noise is exact: a code is right to 2**-29 of a step.
    Maps whose scale is zero or not finite get codes of zero.
    """
    point = 31 - bits
    usable = scale.float().isfinite() & (scale > 0)
    one = torch.tensor(float(2**point), device=scale.device)
    inverse = torch.where(usable, one / scale.float(), torch.zeros_like(one))
    fixed = distance * inverse[:, None]
    fixed = torch.where(usable[:, None], fixed, torch.zeros_like(one))
    fixed = fixed.clamp(0.0, float((2**bits - 1) * 2**point)).to(torch.int64)
    return torch.where(usable[:, None], (fixed + (noise >> (bits + 1))) >> point, 0)
