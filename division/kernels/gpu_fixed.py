"""Error-bounded fixed-length coding on the GPU: see `bounded` and `fixedlength`.

A program has BLOCKS blocks of 32 elements in their logical order, whatever the memory format. How
many words they take is known only when they are quantized, so packing reads the tensor twice:
`measure_blocks` says how long everything is, `write_blocks` writes it where it belongs.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from division.bounded import LARGEST
from division.fixedlength import SIGNED
from division.kernels.gpu_common import noise_at, store_float, to_type, widen

_LARGEST: tl.constexpr = tl.constexpr(float(LARGEST))
_ROUND: tl.constexpr = tl.constexpr(1.5 * 2**23)  # leaves no room for a fraction: half to even
_SIGNED: tl.constexpr = tl.constexpr(SIGNED)


@triton.jit
def _elements(count, BLOCKS: tl.constexpr, WIDE: tl.constexpr):
    """Return the blocks of this program, their elements, and which of those exist."""
    program = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    block = program * BLOCKS + tl.arange(0, BLOCKS)
    element = block[:, None] * 32 + tl.arange(0, 32)[None, :]
    return block, element, element < count


@triton.jit
def _place(element, channels, size, LAST: tl.constexpr):
    """Return where an element lies in memory."""
    if LAST:
        plane = element // size
        sample = plane // channels
        position = sample.to(tl.int64) * size + (element - plane * size)
        return position * channels + (plane - sample * channels)
    return element.to(tl.int64)


@triton.jit
def _noise(block, key0, key1):
    """Return u in [-1/2, 1/2) of every element of a block: `bounded.uniform_noise`."""
    h = noise_at(block[:, None], tl.arange(0, 32)[None, :], 8, key0, key1)
    return (h >> 8).to(tl.float32) * (2.0**-24) - 0.5


@triton.jit
def _dithered(code, noise, step):
    """Return the element that a code stands for, not yet rounded to its type."""
    nearest = tl.where(code > 0, code - 1, code).to(tl.float32)
    return tl.where(code == 0, 0.0, (nearest - noise) * step)


@triton.jit
def _quantize(
    x, block, step, inverse, bound, bound_down, limit, key0, key1,
    DITHER: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Return the codes (int32, zero where missing) and which elements miss the bound."""
    position = x * inverse
    if DITHER:
        noise = _noise(block, key0, key1)
        position = position + noise
    nearest = (position + _ROUND) - _ROUND
    usable = (tl.abs(position) <= _LARGEST) & (tl.abs(nearest) < _LARGEST)
    code = tl.where(usable, nearest, 0.0).to(tl.int32)
    if DITHER:
        code = tl.where(x == 0, 0, code + (code >= 0).to(tl.int32))
        rebuilt = to_type(_dithered(code, noise, step), KIND)
        exact = bound.to(tl.float64, bitcast=True)
        kept = usable & (tl.abs(x.to(tl.float64) - rebuilt.to(tl.float64)) <= exact)
    else:
        # Exact in fp32: the rebuilt value is 0, or the two are within a factor of two.
        rebuilt = nearest * step
        kept = usable & (tl.abs(x - rebuilt) <= bound_down) & (tl.abs(rebuilt) <= limit)
    return tl.where(kept, code, 0), kept == 0


@triton.jit
def _widths(code):
    """Return the bit width of every block, and whether it has negative codes (0 or 1)."""
    largest = tl.max(tl.abs(code), 1)
    exponent = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    width = tl.where(largest > 0, exponent, 0)
    return width, tl.max((code < 0).to(tl.int32), 1)


@triton.jit(do_not_specialize=["bound", "key0", "key1"])
def measure_blocks(
    x, headers, counts, count, channels, size, step, inverse, bound_down, limit, bound, key0, key1,
    DITHER: tl.constexpr, KIND: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write headers, and how many words and missing elements every program will have."""
    block, element, there = _elements(count, BLOCKS, WIDE)
    raw = tl.load(x + _place(element, channels, size, LAST), mask=there, other=0)
    code, missing = _quantize(
        widen(raw, KIND), block, step, inverse, bound, bound_down, limit, key0, key1, DITHER, KIND
    )
    width, signed = _widths(tl.where(there, code, 0))
    header = width + _SIGNED * signed
    tl.store(headers + block, header.to(tl.uint8), mask=block * 32 < count)
    program = tl.program_id(0)
    tl.store(counts + 2 * program, tl.sum(width + signed, 0).to(tl.int64))
    missing = tl.sum((there & missing).to(tl.int32), 1)
    tl.store(counts + 2 * program + 1, tl.sum(missing, 0).to(tl.int64))


@triton.jit
def _gather_bits(bits):
    """Return words of 32 bits, the first in the lowest place."""
    return tl.sum(bits << tl.arange(0, 32)[None, :], 1)


@triton.jit(do_not_specialize=["bound", "key0", "key1"])
def write_blocks(
    x, ends, counts, words, index, values, count, channels, size,
    step, inverse, bound_down, limit, bound, key0, key1,
    DITHER: tl.constexpr, KIND: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Write the planes of every block, and the missing elements with their positions."""
    block, element, there = _elements(count, BLOCKS, WIDE)
    raw = tl.load(x + _place(element, channels, size, LAST), mask=there, other=0)
    code, missing = _quantize(
        widen(raw, KIND), block, step, inverse, bound, bound_down, limit, key0, key1, DITHER, KIND
    )
    code = tl.where(there, code, 0)
    width, signed = _widths(code)
    planes = width + signed
    program = tl.program_id(0)
    first = tl.load(ends + 2 * program) - tl.load(counts + 2 * program)
    start = first + tl.cumsum(planes, 0) - planes
    magnitude = tl.abs(code)
    for plane in range(0, tl.max(width, 0)):
        word = _gather_bits((magnitude >> plane) & 1)
        tl.store(words + start + plane, word, mask=plane < width)
    tl.store(words + start + width, _gather_bits((code < 0).to(tl.int32)), mask=signed > 0)

    lacking = tl.load(counts + 2 * program + 1)
    before = tl.load(ends + 2 * program + 1) - lacking
    if lacking > 0:
        flag = tl.reshape((there & missing).to(tl.int32), [BLOCKS * 32])
        rank = before + tl.cumsum(flag, 0) - flag
        position = tl.reshape(element, [BLOCKS * 32]).to(index.dtype.element_ty)
        tl.store(index + rank, position, mask=flag > 0)
        tl.store(values + rank, tl.reshape(raw, [BLOCKS * 32]), mask=flag > 0)


@triton.jit
def _planes_of(headers, block, count):
    """Return width and sign of every block, from its header."""
    header = tl.load(headers + block, mask=block * 32 < count, other=0).to(tl.int32)
    return header & (_SIGNED - 1), header // _SIGNED


@triton.jit
def count_words(headers, counts, count, WIDE: tl.constexpr, BLOCKS: tl.constexpr):
    """Write how many words every program will read."""
    program = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    width, signed = _planes_of(headers, program * BLOCKS + tl.arange(0, BLOCKS), count)
    tl.store(counts + tl.program_id(0), tl.sum(width + signed, 0).to(tl.int64))


@triton.jit(do_not_specialize=["key0", "key1"])
def read_blocks(
    headers, ends, words, out, count, channels, size, available, step, key0, key1,
    DITHER: tl.constexpr, KIND: tl.constexpr, LAST: tl.constexpr, WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Rebuild the elements that are not missing; never read beyond the words there are."""
    block, element, there = _elements(count, BLOCKS, WIDE)
    width, signed = _planes_of(headers, block, count)
    planes = width + signed
    total = tl.sum(planes, 0)
    start = tl.load(ends + tl.program_id(0)) - total + tl.cumsum(planes, 0) - planes
    place = tl.arange(0, 32)[None, :]
    code = tl.full([BLOCKS, 32], 0, tl.int32)
    for plane in range(0, tl.max(width, 0)):
        known = (plane < width) & (start + plane < available)
        word = tl.load(words + start + plane, mask=known, other=0)
        code |= ((word[:, None] >> place) & 1) << plane
    known = (signed > 0) & (start + width < available)
    word = tl.load(words + start + width, mask=known, other=0)
    code = tl.where(((word[:, None] >> place) & 1) != 0, -code, code)
    if DITHER:
        value = _dithered(code, _noise(block, key0, key1), step)
    else:
        value = code.to(tl.float32) * step
    store_float(out + _place(element, channels, size, LAST), value, there, KIND)
