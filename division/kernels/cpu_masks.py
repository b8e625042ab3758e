"""Packed masks: `bits.pack_mask` and `bits.unpack_mask`, one block of `MASK_BLOCK` at a time."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np
from numba import prange

from division.bits import MASK_BLOCK
from division.kernels.cpu_common import (
    FLOAT,
    bytes_at,
    f32,
    floats_at,
    shorts_at,
    u8,
    u16,
    u32,
    widen,
    words_at,
)
from division.kernels.cpu_compile import inlined, kernel

_BYTES = MASK_BLOCK // 8


@inlined
def _is_inside(x, low, high):
    return u8(0) if x <= low or x >= high else u8(1)


@inlined
def _pack_block(x, low, high, out):
    """Pack one whole block: bit s of byte k is element s * 64 + k."""
    for k in range(_BYTES):
        byte = _is_inside(x[k], low, high)
        byte |= u8(_is_inside(x[k + _BYTES], low, high) << u8(1))
        byte |= u8(_is_inside(x[k + 2 * _BYTES], low, high) << u8(2))
        byte |= u8(_is_inside(x[k + 3 * _BYTES], low, high) << u8(3))
        byte |= u8(_is_inside(x[k + 4 * _BYTES], low, high) << u8(4))
        byte |= u8(_is_inside(x[k + 5 * _BYTES], low, high) << u8(5))
        byte |= u8(_is_inside(x[k + 6 * _BYTES], low, high) << u8(6))
        byte |= u8(_is_inside(x[k + 7 * _BYTES], low, high) << u8(7))
        out[k] = byte


@inlined
def _pack_rest(x, low, high, out):
    """Pack a last block that is not full."""
    stride = out.shape[0]
    out[:] = u8(0)
    for i in range(x.shape[0]):
        out[i % stride] |= u8(_is_inside(x[i], low, high) << u8(i // stride))


@kernel
def pack_chunk(x_address, out_address, kind, count, low, high, begin, end):
    """Pack the blocks [begin, end) of `count` elements."""
    x, shorts = floats_at(x_address, count), shorts_at(x_address, count)
    out = bytes_at(out_address, (count + 7) // 8)
    low, high = f32(low), f32(high)
    wide = np.empty(MASK_BLOCK, f32)
    for block in range(begin, end):
        first = block * MASK_BLOCK
        last = min(first + MASK_BLOCK, count)
        source = x[first:last]
        if kind != FLOAT:
            widen(shorts, first, wide, 0, last - first, kind)
            source = wide[: last - first]
        if last - first == MASK_BLOCK:
            _pack_block(source, low, high, out[block * _BYTES : (block + 1) * _BYTES])
        else:
            _pack_rest(source, low, high, out[block * _BYTES :])


@kernel(parallel=True)
def pack(x_address, out_address, kind, count, low, high, blocks, chunks):
    """Pack all blocks, in chunks that threads share."""
    for chunk in prange(chunks):
        begin, end = chunk * blocks // chunks, (chunk + 1) * blocks // chunks
        pack_chunk(x_address, out_address, kind, count, low, high, begin, end)


@inlined
def _unpack_block(packed, count, outside, flip, zero, out):
    """Write `outside`, flipped to the other value where the bit is set."""
    stride = packed.shape[0]
    for slot in range(8):
        values = out[slot * stride : min((slot + 1) * stride, count)]
        for k in range(values.shape[0]):
            is_set = (packed[k] >> u8(slot)) & u8(1)
            values[k] = outside ^ (flip if is_set else zero)


@kernel
def unpack_chunk(packed_address, out_address, is_wide, count, outside, inside, begin, end):
    """Unpack the blocks [begin, end) to elements of 4 bytes, or 2, with the given bits."""
    packed = bytes_at(packed_address, (count + 7) // 8)
    words, shorts = words_at(out_address, count), shorts_at(out_address, count)
    flip = outside ^ inside
    for block in range(begin, end):
        first = block * MASK_BLOCK
        last = min(first + MASK_BLOCK, count)
        source = packed[first // 8 : (last + 7) // 8]
        if is_wide:
            _unpack_block(source, last - first, u32(outside), u32(flip), u32(0), words[first:last])
        else:
            _unpack_block(source, last - first, u16(outside), u16(flip), u16(0), shorts[first:last])


@kernel(parallel=True)
def unpack(packed_address, out_address, is_wide, count, outside, inside, blocks, chunks):
    """Unpack all blocks, in chunks that threads share."""
    for chunk in prange(chunks):
        begin, end = chunk * blocks // chunks, (chunk + 1) * blocks // chunks
        unpack_chunk(packed_address, out_address, is_wide, count, outside, inside, begin, end)
