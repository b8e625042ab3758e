"""The vector loops of the CPU kernels: block statistics, residuals, decoding.

Arguments that end in `start` or `step` count elements of the array before them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, call-arg"

import itertools

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from division.kernels.cpu_tiles import (
    F32,
    FLOATS,
    I64,
    INDEX,
    INT,
    REAL,
    U8,
    WORDS,
    float_kind,
    larger,
    loop,
    smaller,
    splat,
    splat_word,
    tiles,
)


def _block_statistics(add, builder, source, start, row_step, col_step, height, width, lanes, *out):
    """Reduce one block per lane; `add(builder, sum, x)` extends the running sum of a column."""
    total, low, high, column = (cgutils.alloca_once(builder, FLOATS) for _ in range(4))

    def column_sum(begin):  # down the rows, one term at a time: the order is part of the format
        with cgutils.for_range(builder, height) as row:
            x = source.load(builder.add(begin, builder.mul(row.index, row_step)))
            is_first = builder.icmp_signed("==", row.index, INDEX(0))
            extended = add(builder, builder.load(column), x)
            builder.store(builder.select(is_first, x, extended), column)
            builder.store(smaller(builder, x, builder.load(low)), low)
            builder.store(larger(builder, x, builder.load(high)), high)
        return builder.load(column)

    with tiles(builder, lanes) as lane:
        corner = builder.add(start, lane)
        first = source.load(corner)
        for variable in (low, high):
            builder.store(first, variable)
        builder.store(column_sum(corner), total)
        with cgutils.for_range(builder, width, start=INDEX(1)) as col:
            next_sum = column_sum(builder.add(corner, builder.mul(col.index, col_step)))
            builder.store(add(builder, builder.load(total), next_sum), total)
        for variable, array in zip((total, low, high), out, strict=True):
            array.store(builder.load(variable), lane)


@intrinsic
def block_sums(typing, source, start, row_step, col_step, height, width, lanes, total, low, high):
    """Store the sum, minimum and maximum of a block of height x width elements, for each lane.

    Lane i of the block starts at source[start + i]; its rows are `row_step` elements apart and its
    columns `col_step`.
    """

    def emit(builder, *arguments):
        _block_statistics(ir.IRBuilder.fadd, builder, *arguments)

    return loop(emit, float_kind(source), INT, INT, INT, INT, INT, INT, F32, F32, F32)


@intrinsic
def block_poison(
    typing, source, start, row_step, col_step, height, width, lanes, poison, low, high
):
    """Do as `block_sums`, but store NaN or not NaN: whether some element is not finite."""

    def emit(builder, *arguments):
        def add(builder, total, x):  # x - x is 0 or NaN
            return builder.fadd(builder.fsub(x, x), builder.fsub(total, total))

        _block_statistics(add, builder, *arguments)

    return loop(emit, float_kind(source), INT, INT, INT, INT, INT, INT, F32, F32, F32)


def _sum_blocks(chains):
    """Sum `chains` blocks of a row side by side: each sum waits for itself, not for the others."""

    def emit(builder, columns, origin, starts, first, sums):
        edges = [starts.load_one(builder.add(first, INDEX(i))) for i in range(chains + 1)]
        edges = [builder.sub(edge, origin) for edge in edges]
        sizes = [builder.sub(b, a) for a, b in itertools.pairwise(edges)]
        common = sizes[0]  # sizes differ by at most one
        for size in sizes[1:]:
            common = builder.select(builder.icmp_signed("<", size, common), size, common)
        totals = [cgutils.alloca_once_value(builder, columns.load_one(a)) for a in edges[:-1]]
        with cgutils.for_range(builder, common, start=INDEX(1)) as col:
            for total, begin in zip(totals, edges, strict=False):
                x = columns.load_one(builder.add(begin, col.index))
                builder.store(builder.fadd(builder.load(total), x), total)
        for i, (size, end) in enumerate(zip(sizes, edges[1:], strict=True)):
            total = builder.load(totals[i])
            longer = builder.fadd(total, columns.load_one(builder.sub(end, INDEX(1))))
            has_more = builder.icmp_signed(">", size, common)
            sums.store_one(builder.select(has_more, longer, total), builder.add(first, INDEX(i)))

    return loop(emit, F32, INT, I64, INT, F32)


@intrinsic
def sum_block(typing, columns, origin, starts, first, sums):
    """Sum the columns of block `first` in order; column i of the map is columns[i - origin]."""
    return _sum_blocks(1)


@intrinsic
def sum_four_blocks(typing, columns, origin, starts, first, sums):
    """Sum the columns of each of four blocks."""
    return _sum_blocks(4)


@intrinsic
def sum_eight_blocks(typing, columns, origin, starts, first, sums):
    """Sum the columns of each of eight blocks."""
    return _sum_blocks(8)


@intrinsic
def fill_tile(typing, out, start, value):
    """Store one value in a whole tile."""

    def emit(builder, out, start, value):
        out.store(splat(builder, value), start)

    return loop(emit, F32, INT, REAL)


@intrinsic
def subtract_rows(typing, source, start, base, out, out_start, step, height, width):
    """Store source - base for rows of `width` elements, `step` apart, that share a row of base."""

    def emit(builder, source, start, base, out, out_start, step, height, width):
        with tiles(builder, width) as lane:
            subtrahend = base.load(lane)
            with cgutils.for_range(builder, height) as row:
                at = builder.add(lane, builder.mul(row.index, step))
                x = source.load(builder.add(start, at))
                out.store(builder.fsub(x, subtrahend), builder.add(out_start, at))

    return loop(emit, float_kind(source), INT, F32, F32, INT, INT, INT, INT)


@intrinsic
def decode_rows(typing, codes, start, base, scale, out, out_start, step, height, width):
    """Store base + code * scale for rows of `width` elements, `step` apart, that share a base."""

    def emit(builder, codes, start, base, scale, out, out_start, step, height, width):
        factor = splat(builder, scale)
        with tiles(builder, width) as lane:
            summand = base.load(lane)
            with cgutils.for_range(builder, height) as row:
                at = builder.add(lane, builder.mul(row.index, step))
                code = builder.zext(codes.load(builder.add(start, at)), WORDS)
                product = builder.fmul(builder.sitofp(code, FLOATS), factor)
                out.store(builder.fadd(summand, product), builder.add(out_start, at))

    return loop(emit, U8, INT, F32, REAL, float_kind(out), INT, INT, INT, INT)


def _field(builder, codes, start, shift, mask, lane):
    """Return ((code >> shift) & mask) of a tile, as words."""
    word = builder.zext(codes.load(builder.add(start, lane)), WORDS)
    return builder.and_(builder.lshr(word, splat_word(builder, shift)), splat_word(builder, mask))


def _store_decoded(builder, code, base, base_start, scales, out, out_start, lane):
    product = builder.fmul(builder.sitofp(code, FLOATS), scales.load(lane))
    summand = base.load(builder.add(base_start, lane))
    out.store(builder.fadd(summand, product), builder.add(out_start, lane))


@intrinsic
def decode_lanes(
    typing, codes, start, shift, mask, base, base_start, scales, out, out_start, lanes
):
    """Store base + ((code >> shift) & mask) * scale; every lane has its own base and scale."""

    def emit(builder, codes, start, shift, mask, *arguments):
        rest, lanes = arguments[:-1], arguments[-1]
        with tiles(builder, lanes) as lane:
            code = _field(builder, codes, start, shift, mask, lane)
            _store_decoded(builder, code, *rest, lane)

    return loop(emit, U8, INT, INT, INT, F32, INT, F32, float_kind(out), INT, INT)


@intrinsic
def decode_planes(
    typing, codes, start0, shift0, mask0, start1, shift1, mask1, first1,
    start2, shift2, mask2, first2, base, base_start, scales, out, out_start, lanes,
):  # fmt: skip
    """Do as `decode_lanes` with the sum of three fields, two of them moved up by `first` bits."""

    def emit(builder, codes, *arguments):
        fields, rest, lanes = arguments[:11], arguments[11:-1], arguments[-1]
        with tiles(builder, lanes) as lane:
            code = _field(builder, codes, *fields[:3], lane)
            for *place, first in (fields[3:7], fields[7:11]):
                more = _field(builder, codes, *place, lane)
                code = builder.add(code, builder.shl(more, splat_word(builder, first)))
            _store_decoded(builder, code, *rest, lane)

    return loop(emit, U8, *[INT] * 11, F32, INT, F32, float_kind(out), INT, INT)
