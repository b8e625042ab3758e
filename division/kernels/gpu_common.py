"""What the GPU kernels share: element types, the hash, the grid, the code of one element.

Every floating-point operation stands alone, in the definition's order: kernels are launched without
contraction (`gpu_launch`), and divisions are `tl.div_rn`, since plain `/` is an approximation.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from division.quantize import SMALLEST_SCALE

FLOAT: tl.constexpr = tl.constexpr(0)  # element kinds: fp32, bf16 (as int16), fp16
BFLOAT: tl.constexpr = tl.constexpr(1)
HALF: tl.constexpr = tl.constexpr(2)
_SMALLEST_SCALE: tl.constexpr = tl.constexpr(SMALLEST_SCALE)
_NAN_BF16: tl.constexpr = tl.constexpr(0x7FC0)
_INFINITY: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def no_sum(SHAPE: tl.constexpr):
    """Return sums of nothing: -0, which changes no number that is added, not even -0.

    Made from its bits, because Triton takes a constant -0.0 for +0.0.
    """
    return tl.full(SHAPE, -(2**31), tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def whole(number, WIDE: tl.constexpr):
    """Return an integer argument as int64 if WIDE, else as int32; what is made of it follows."""
    return tl.full([], number, tl.int64 if WIDE else tl.int32)


@triton.jit
def from_bf16(short):
    """Widen the bits of bf16 to fp32."""
    return (short.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def widen(raw, KIND: tl.constexpr):
    """Return elements, as they are stored, as fp32."""
    if KIND == BFLOAT:
        return from_bf16(raw)
    return raw.to(tl.float32)


@triton.jit
def load_float(pointer, mask, KIND: tl.constexpr):
    """Load elements as fp32; what is masked is zero."""
    return widen(tl.load(pointer, mask=mask, other=0), KIND)


@triton.jit
def to_type(x, KIND: tl.constexpr):
    """Round fp32 to the nearest number of a type, and return it as fp32."""
    if KIND == BFLOAT:
        return from_bf16(nearest_bf16(x))
    if KIND == HALF:
        return x.to(tl.float16).to(tl.float32)
    return x


@triton.jit
def store_float(pointer, value, mask, KIND: tl.constexpr):
    """Round fp32 to nearest and store it."""
    if KIND == BFLOAT:
        tl.store(pointer, nearest_bf16(value), mask=mask)
    elif KIND == HALF:
        tl.store(pointer, value.to(tl.float16), mask=mask)
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def nearest_bf16(x):
    """Return the bits (int16) of the nearest bf16, ties to even; any NaN becomes one NaN."""
    word = x.to(tl.uint32, bitcast=True)
    rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
    return tl.where(x == x, rounded.to(tl.int32), _NAN_BF16).to(tl.int16)


@triton.jit
def outward_bf16(x, up: tl.constexpr):
    """Return the bits (int16) of x rounded up or down to bf16; any NaN becomes one NaN."""
    word = x.to(tl.uint32, bitcast=True)
    negative = word >> 31
    grow = (1 - negative if up else negative) * 0xFFFF
    rounded = (word + grow) >> 16
    return tl.where(x == x, rounded.to(tl.int32), _NAN_BF16).to(tl.int16)


@triton.jit
def take(values, item, there):
    """Return `values` (lanes by items) at items of the same lane, zero where none is there.

    A gather of one dimension: those of two do not always compile (Triton 3.8.0, issue 11600).
    """
    LANES: tl.constexpr = values.shape[0]
    index = tl.arange(0, LANES)[:, None] * values.shape[1] + tl.where(there, item, 0)
    flat = tl.reshape(values, [LANES * values.shape[1]])
    taken = tl.gather(flat, tl.reshape(index, [LANES * item.shape[1]]), 0)
    return tl.where(there, tl.reshape(taken, [LANES, item.shape[1]]), 0)


@triton.jit
def is_finite(x):
    """Tell which fp32 numbers are finite."""
    return tl.abs(x) < _INFINITY


@triton.jit
def hash32(counter, key0, key1):
    """Hash 32-bit counters to uniform 32-bit integers: `quantize.hash32`."""
    h = counter.to(tl.uint32) ^ key0.to(tl.uint32)
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ key1.to(tl.uint32)
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def noise_at(map_index, position, quarter, key0, key1):
    """Return the 32 random bits of positions in maps: `quantize.dither`."""
    turn = position // quarter
    h = hash32(map_index * quarter + (position - turn * quarter), key0, key1)
    left = (8 * turn).to(tl.uint32)
    return (h << left) | (h >> ((32 - left) & 31))


@triton.jit
def grid_of(low, high, bits, bad):
    """Return the bits (int16) of offset and scale: `quantize.grid`."""
    offset = outward_bf16(low + 0.0, False)
    levels = ((1 << bits) - 1).to(tl.float32)
    step = (high - from_bf16(offset)) * tl.div_rn(tl.full([], 1.0, tl.float32), levels)
    step = tl.where(step < _SMALLEST_SCALE, 0.0, step)
    scale = outward_bf16(step, True)
    nan = tl.full([], _NAN_BF16, tl.int16)
    return tl.where(bad, nan, offset), tl.where(bad, nan, scale)


@triton.jit
def inverse_of(scale, bits):
    """Return 2**(31 - bits) / scale (fp32), zero where a scale is zero or not finite."""
    usable = (scale > 0) & (scale < _INFINITY)
    one = ((158 - bits) << 23).to(tl.float32, bitcast=True)
    return tl.where(
        usable, tl.div_rn(one + tl.zeros_like(scale), tl.where(usable, scale, 1.0)), 0.0
    )


@triton.jit
def code_of(distance, inverse, noise, bits):
    """Round stochastically to codes of `bits` bits (int32): `quantize.encode`."""
    point = 31 - bits
    top = (((1 << bits) - 1) << point).to(tl.float32)
    fixed = tl.where(inverse > 0, distance * inverse, 0.0)
    fixed = tl.minimum(tl.maximum(fixed, 0.0), top).to(tl.int32)
    code = (fixed + (noise >> (bits + 1)).to(tl.int32)) >> point
    return tl.where(inverse > 0, code, 0)
