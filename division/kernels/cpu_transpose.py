"""Transposition of tiles of `LANES` x `LANES` elements in registers."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from division.kernels.cpu_tiles import F32, INDEX, INT, LANES, U8, WORDS, loop


def _transposed(builder, rows):
    """Swap, at distances 1, 2, 4 and 8, the elements above the diagonal with those below."""
    distance = 1
    while distance < LANES:
        upper = [i + LANES - distance if i & distance else i for i in range(LANES)]
        lower = [i + LANES if i & distance else i + distance for i in range(LANES)]
        for i in range(LANES):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                rows[i] = builder.shuffle_vector(*pair, ir.Constant(WORDS, upper))
                rows[i + distance] = builder.shuffle_vector(*pair, ir.Constant(WORDS, lower))
        distance *= 2
    return rows


@intrinsic
def transpose_tile(typing, source, start, step, out, out_start, out_step):
    """Copy a square tile: row i of it, at source[start + i * step], becomes column i in `out`."""

    def emit(builder, source, start, step, out, out_start, out_step):
        numbers = [INDEX(i) for i in range(LANES)]
        rows = [source.load(builder.add(start, builder.mul(step, i))) for i in numbers]
        for i, column in zip(numbers, _transposed(builder, rows), strict=True):
            out.store(column, builder.add(out_start, builder.mul(out_step, i)))

    kind = U8 if source.dtype == types.uint8 else F32
    return loop(emit, kind, INT, INT, kind, INT, INT)
