"""What the CPU kernels share: memory by address, half floats, the grid."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"
# mypy: disable-error-code="attr-defined"

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from division.kernels.cpu_compile import inlined
from division.quantize import SMALLEST_SCALE

FLOAT, BFLOAT, HALF = 0, 1, 2  # element kinds: fp32, bf16, fp16

f32, u8, u16, u32, i32 = np.float32, np.uint8, np.uint16, np.uint32, np.int32
_NAN_BF16 = u32(0x7FC0)
_INFINITY = f32(np.inf)
_SMALLEST_SCALE = f32(SMALLEST_SCALE)


@intrinsic
def _pointer(typing, address, like):
    """Turn an integer address into a pointer to elements of the type of `like`."""

    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), codegen


@inlined
def floats_at(address, count):
    """Return the fp32 array at an address."""
    return carray(_pointer(address, f32(0)), count)


@inlined
def shorts_at(address, count):
    """Return the uint16 array at an address: the bits of bf16 or fp16 elements."""
    return carray(_pointer(address, u16(0)), count)


@inlined
def words_at(address, count):
    """Return the uint32 array at an address."""
    return carray(_pointer(address, u32(0)), count)


@inlined
def longs_at(address, count):
    """Return the int64 array at an address."""
    return carray(_pointer(address, np.int64(0)), count)


@inlined
def bytes_at(address, count):
    """Return the uint8 array at an address."""
    return carray(_pointer(address, u8(0)), count)


@inlined
def bits_of(x):
    """Return the bits of an fp32."""
    return f32(x).view(np.uint32)


@inlined
def float_of(word):
    """Return the fp32 that has these bits."""
    return u32(word).view(np.float32)


@inlined
def from_bf16(short):
    """Widen the bits of a bf16 to fp32."""
    return float_of(u32(short) << u32(16))


@inlined
def to_bf16(x):
    """Round fp32 to the nearest bf16, as `quantize.to_bf16`; return its bits."""
    word = bits_of(x)
    rounded = u32(word + u32(0x7FFF) + ((word >> u32(16)) & u32(1))) >> u32(16)
    return u16(rounded if x == x else _NAN_BF16)


@inlined
def from_half(short):
    """Widen the bits of an fp16 to fp32, exactly; a NaN stays some NaN."""
    sign = u32(u32(short & u16(0x8000)) << u32(16))
    shifted = u32(u32(short & u16(0x7FFF)) << u32(13))
    exponent = u32(shifted & u32(0x0F800000))
    normal = u32(shifted + u32(112 << 23))
    special = u32(shifted + u32(224 << 23))  # infinity and NaN: the largest exponent in both
    # A subnormal fp16 is a normal fp32: let a subtraction of floats normalise it.
    small = bits_of(float_of(shifted + u32(113 << 23)) - f32(2.0**-14))
    magnitude = normal
    magnitude = special if exponent == u32(0x0F800000) else magnitude
    magnitude = small if exponent == u32(0) else magnitude
    return float_of(magnitude | sign)


@inlined
def to_half(x):
    """Round fp32 to the nearest fp16, ties to even; return its bits."""
    word = bits_of(x)
    sign = u32(word >> u32(16)) & u32(0x8000)
    magnitude = u32(word & u32(0x7FFFFFFF))
    odd = u32(magnitude >> u32(13)) & u32(1)
    normal = u32(magnitude - u32(112 << 23) + u32(0xFFF) + odd) >> u32(13)
    # Below 2**-14 the spacing is 2**-24, which is that of fp32 just above one half.
    small = u32(bits_of(float_of(magnitude) + f32(0.5)) - u32(0x3F000000))
    rounded = small if magnitude < u32(0x38800000) else normal
    rounded = u32(0x7C00) if magnitude >= u32(0x477FF000) else rounded
    rounded = u32(0x7E00) if magnitude > u32(0x7F800000) else rounded
    return u16(u32(rounded) | sign)


@inlined
def widen(source, start, out, out_start, count, kind):
    """Copy `count` half floats of the given kind to fp32."""
    shorts = source[start : start + count]
    wide = out[out_start : out_start + count]
    if kind == BFLOAT:
        for i in range(count):
            wide[i] = from_bf16(shorts[i])
    else:
        for i in range(count):
            wide[i] = from_half(shorts[i])


@inlined
def narrow(source, start, out, out_start, count, kind):
    """Round `count` fp32 elements to half floats of the given kind."""
    wide = source[start : start + count]
    shorts = out[out_start : out_start + count]
    if kind == BFLOAT:
        for i in range(count):
            shorts[i] = to_bf16(wide[i])
    else:
        for i in range(count):
            shorts[i] = to_half(wide[i])


@inlined
def grid(low, high, bits, bad):
    """Return offset and scale (bits of bf16), offset (fp32) and the inverse scale of the codes.

    As `quantize.grid`: the offset rounded down, the scale up, both NaN where `bad`.
    The inverse is zero where every code must be.
    """
    word = bits_of(low + f32(0.0))
    offset = u32(u32(word + u32(word >> u32(31)) * u32(0xFFFF)) >> u32(16))
    step = f32(f32(high - from_bf16(offset)) * f32(1.0 / (2**bits - 1)))
    word = bits_of(f32(0.0) if step < _SMALLEST_SCALE else step)
    scale = u32(u32(word + u32(0xFFFF)) >> u32(16))
    if bad or step != step:  # NaN
        scale = _NAN_BF16
    if bad:
        offset = _NAN_BF16
    wide = from_bf16(scale)
    usable = wide > f32(0.0) and wide < _INFINITY
    inverse = f32(f32(2 ** (31 - bits)) / wide) if usable else f32(0.0)
    return u16(offset), u16(scale), from_bf16(offset), inverse


@inlined
def block_starts(size, blocks):
    """Return the first position of each block and, at the end, `size`."""
    starts = np.empty(blocks + 1, np.int64)
    for i in range(blocks + 1):
        starts[i] = (i * size + blocks - 1) // blocks
    return starts


@inlined
def code_limit(bits):
    """Return the largest code in the fixed-point representation of the codes."""
    return f32((2**bits - 1) * 2 ** (31 - bits))


@inlined
def packed_size(count, bits):
    """Return how many bytes `count` codes take: `bits.packed_size`."""
    return (
        (count * (bits & 8) + 7) // 8
        + (count * (bits & 4) + 7) // 8
        + (count * (bits & 2) + 7) // 8
        + (count * (bits & 1) + 7) // 8
    )
