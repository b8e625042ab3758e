"""Elements to integers and back within a bound, run by run: `bounded` in flat loops."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np

from division.kernels.cpu_common import (
    BFLOAT,
    FLOAT,
    HALF,
    f32,
    from_bf16,
    from_half,
    i32,
    to_bf16,
    to_half,
    u32,
)
from division.kernels.cpu_compile import inlined

MISSING = i32(-(2**31))  # the code of an element that is missing from the grid
_LARGEST = f32(2**22)
_ROUND = f32(1.5 * 2**23)  # adding it leaves no room for a fraction: rounds half to even


@inlined
def quantize_run(x, codes, grid):
    """Code elements without dither.

    The difference x - x' is exact in fp32: either x' is 0 or the two are within a factor of two.
    """
    step, inverse, _, bound, limit = grid
    for i in range(x.shape[0]):
        nearest = f32(f32(f32(x[i] * inverse) + _ROUND) - _ROUND)
        rebuilt = f32(nearest * step)
        kept = (
            (abs(f32(x[i] - rebuilt)) <= bound)
            & (abs(nearest) < _LARGEST)
            & (abs(rebuilt) <= limit)
        )
        codes[i] = i32(nearest) if kept else MISSING


@inlined
def dequantize_run(codes, step, out):
    """Rebuild elements without dither."""
    for i in range(out.shape[0]):
        out[i] = f32(f32(codes[i]) * step)


@inlined
def fill_noise(first_block, keys, noise):
    """Store u of whole blocks: `bounded.uniform_noise`."""
    for block in range(noise.shape[0] // 32):
        values = noise[32 * block : 32 * block + 32]
        for k in range(8):
            h = u32(u32((first_block + block) * 8 + k) ^ keys[0])
            h = u32(h ^ (h >> u32(16)))
            h = u32(h * u32(0x7FEB352D))
            h = u32(h ^ keys[1])
            h = u32(h ^ (h >> u32(15)))
            h = u32(h * u32(0x846CA68B))
            h = u32(h ^ (h >> u32(16)))
            for turn in range(4):
                low = u32(8 * turn)
                turned = u32(u32(h << low) | u32(h >> u32(32 - low))) if turn else h
                values[8 * turn + k] = f32(f32(turned >> u32(8)) * f32(2.0**-24)) - f32(0.5)


@inlined
def _dithered(code, u, step, kind):
    """Return the element that a code stands for, rounded to its type."""
    nearest = code - 1 if code > 0 else code
    rebuilt = f32(f32(f32(nearest) - u) * step)
    if code == 0:
        rebuilt = f32(0.0)
    if kind == BFLOAT:
        rebuilt = from_bf16(to_bf16(rebuilt))
    elif kind == HALF:
        rebuilt = from_half(to_half(rebuilt))
    return rebuilt


@inlined
def _quantize_dithered(x, noise, codes, grid, kind):
    step, inverse, bound, _, _ = grid
    for i in range(x.shape[0]):
        nearest = f32(f32(f32(f32(x[i] * inverse) + noise[i]) + _ROUND) - _ROUND)
        usable = abs(nearest) < _LARGEST
        code = i32(nearest) if usable else i32(0)
        code = i32(code + 1) if code >= 0 else code
        code = i32(0) if x[i] == f32(0.0) else code
        rebuilt = _dithered(code, noise[i], step, kind)
        kept = usable & (abs(np.float64(x[i]) - np.float64(rebuilt)) <= bound)
        codes[i] = code if kept else MISSING


@inlined
def quantize_dithered(x, noise, codes, grid, kind):
    """Code elements with dither; the comparison is done in fp64, as the definition does it."""
    if kind == FLOAT:
        _quantize_dithered(x, noise, codes, grid, FLOAT)
    elif kind == BFLOAT:
        _quantize_dithered(x, noise, codes, grid, BFLOAT)
    else:
        _quantize_dithered(x, noise, codes, grid, HALF)


@inlined
def dequantize_dithered(codes, noise, step, out):
    """Rebuild elements with dither, not yet rounded to their type."""
    for i in range(out.shape[0]):
        out[i] = _dithered(codes[i], noise[i], step, FLOAT)
