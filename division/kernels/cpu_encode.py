"""Stochastic rounding of four positions at once: `quantize.encode` and `dither` in vector loops."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from llvmlite import ir
from numba.extending import intrinsic

from division.kernels.cpu_tiles import (
    BYTES,
    F32,
    FLOATS,
    INDEX,
    INT,
    IOTA,
    KEY,
    LANES,
    REAL,
    U8,
    U32,
    WORD,
    WORDS,
    ZEROS,
    float_kind,
    larger,
    loop,
    smaller,
    splat,
    splat_word,
    tiles,
)


def _hash(builder, counters, key0, key1):
    """Hash a tile of counters as `quantize.hash32` does."""

    def scramble(h, shift, factor):
        h = builder.xor(h, builder.lshr(h, splat(builder, WORD(shift))))
        return builder.mul(h, splat(builder, WORD(factor)))

    h = scramble(builder.xor(counters, splat(builder, key0)), 16, 0x7FEB352D)
    h = scramble(builder.xor(h, splat(builder, key1)), 15, 0x846CA68B)
    return builder.xor(h, builder.lshr(h, splat(builder, WORD(16))))


def _encode(builder, distances, inverse, counters, key0, key1, bits, top):
    """Return the codes (words) of four tiles whose noise comes from one tile of counters.

    A lane whose inverse scale is zero gets code 0: the noise alone never reaches a whole step.
    """
    h = _hash(builder, counters, key0, key1)
    bits = builder.trunc(bits, WORD)
    noise_shift = splat(builder, builder.add(bits, WORD(1)))
    point = splat(builder, builder.sub(WORD(31), bits))
    top = splat(builder, top)
    codes = []
    for slot, distance in enumerate(distances):
        fixed = larger(builder, builder.fmul(distance, inverse), ir.Constant(FLOATS, [0.0] * LANES))
        fixed = builder.fptosi(smaller(builder, fixed, top), WORDS)
        turned = h
        if slot:
            left = builder.shl(h, splat(builder, WORD(8 * slot)))
            turned = builder.or_(left, builder.lshr(h, splat(builder, WORD(32 - 8 * slot))))
        noise = builder.lshr(turned, noise_shift)
        codes.append(builder.lshr(builder.add(fixed, noise), point))
    return codes


def _store_codes(builder, codes, out, start, slot_step, packed):
    """Store four tiles of codes, either as they are or as one tile of bytes with 2-bit codes."""
    if packed:
        for slot in (1, 2, 3):
            codes[slot] = builder.shl(codes[slot], splat(builder, WORD(2 * slot)))
        both = [builder.or_(codes[0], codes[1]), builder.or_(codes[2], codes[3])]
        out.store(builder.trunc(builder.or_(*both), BYTES), start)
        return
    for slot, code in enumerate(codes):
        at = builder.add(start, builder.mul(slot_step, INDEX(slot)))
        out.store(builder.trunc(code, BYTES), at)


def _encode_map(packed):
    def emit(
        builder,
        distance,
        quarter,
        inverse,
        counter,
        key0,
        key1,
        bits,
        top,
        out,
        source,
        ahead,
        thin,
    ):
        inverse = splat(builder, inverse)
        with tiles(builder, quarter) as k:
            counters = builder.add(splat_word(builder, builder.add(counter, k)), IOTA)
            starts = [builder.add(k, builder.mul(quarter, INDEX(slot))) for slot in range(4)]
            distances = [distance.load(start) for start in starts]
            for start in starts:
                source.prefetch(builder.add(ahead, builder.lshr(start, thin)))
            codes = _encode(builder, distances, inverse, counters, key0, key1, bits, top)
            _store_codes(builder, codes, out, k, quarter, packed)

    return loop(emit, F32, INT, REAL, INT, KEY, KEY, INT, REAL, U8, F32, INT, INT)


@intrinsic
def encode_map(
    typing, distance, quarter, inverse, counter, key0, key1, bits, top, out, source, ahead, thin
):
    """Store one byte for each of the 4 * quarter codes of a map."""
    return _encode_map(packed=False)


@intrinsic
def encode_map_packed(
    typing, distance, quarter, inverse, counter, key0, key1, bits, top, out, source, ahead, thin
):
    """Store the 4 * quarter codes of a map, two bits each, in `quarter` bytes."""
    return _encode_map(packed=True)


def _encode_lanes(source, packed):
    def emit(
        builder, source, x0, x1, x2, x3, base, b0, b1, b2, b3, used, inverse, counters, k,
        key0, key1, bits, top, out, start, slot_step, lanes, ahead,
    ):  # fmt: skip
        quad = [(x0, b0), (x1, b1), (x2, b2), (x3, b3)]
        k = splat_word(builder, k)
        with tiles(builder, lanes) as lane:
            distances = []
            for x, b in quad:
                at = builder.add(x, lane)
                value = source.load(at)
                source.prefetch(builder.add(at, ahead))
                distances.append(builder.fsub(value, base.load(builder.add(b, lane))))
            counter = builder.add(counters.load(lane), k)
            codes = _encode(builder, distances, inverse.load(lane), counter, key0, key1, bits, top)
            for slot in (1, 2, 3):  # past the end of the map
                is_used = builder.icmp_signed(">", used, INDEX(slot))
                codes[slot] = builder.select(is_used, codes[slot], ZEROS)
            _store_codes(builder, codes, out, builder.add(start, lane), slot_step, packed)

    return loop(
        emit, float_kind(source), INT, INT, INT, INT, F32, INT, INT, INT, INT, INT, F32, U32, INT,
        KEY, KEY, INT, REAL, U8, INT, INT, INT, INT,
    )  # fmt: skip


@intrinsic
def encode_lanes(
    typing, source, x0, x1, x2, x3, base, b0, b1, b2, b3, used, inverse, counters, k,
    key0, key1, bits, top, out, start, slot_step, lanes, ahead,
):  # fmt: skip
    """Store the codes of four positions, a byte each; every lane is a map of its own.

    Position j of the quad is at source[xj:] and its base at base[bj:]; only the first `used`
    positions exist, the others get zeros. Its codes go to out[start + j * slot_step:].
    """
    return _encode_lanes(source, packed=False)


@intrinsic
def encode_lanes_packed(
    typing, source, x0, x1, x2, x3, base, b0, b1, b2, b3, used, inverse, counters, k,
    key0, key1, bits, top, out, start, slot_step, lanes, ahead,
):  # fmt: skip
    """Do as `encode_lanes`, but store the four 2-bit codes of a lane in one byte at out[start:]."""
    return _encode_lanes(source, packed=True)
