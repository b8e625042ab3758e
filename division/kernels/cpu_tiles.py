"""A small tool kit for writing loops over vectors in LLVM IR.

Numba has no vector type, and on rows as short as ours LLVM's own vectoriser spends more time on
alias checks than on work. Here a row is walked by tiles of `LANES` elements; LLVM lowers a tile to
whatever the machine has (one AVX-512, two AVX2 or four NEON registers). The last tile of a row is
moved back to end with the row; the tile of a row shorter than that runs over its end, and it is up
to the caller to have room there.

Nothing here allows LLVM to reorder, contract or approximate: results are the definition's, bit for
bit. Minimum and maximum are compare-and-select: one instruction each, and NaN need not pass.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from contextlib import contextmanager

from llvmlite import ir
from numba import types
from numba.core import cgutils

LANES = 16
WORD, INDEX = ir.IntType(32), ir.IntType(64)
BYTES = ir.VectorType(ir.IntType(8), LANES)
SHORTS = ir.VectorType(ir.IntType(16), LANES)
WORDS = ir.VectorType(WORD, LANES)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
IOTA = ir.Constant(WORDS, list(range(LANES)))
ZEROS = ir.Constant(WORDS, [0] * LANES)

# Argument kinds of the intrinsics.
F32 = types.Array(types.float32, 1, "C")
U32 = types.Array(types.uint32, 1, "C")
U16 = types.Array(types.uint16, 1, "C")
U8 = types.Array(types.uint8, 1, "C")
I64 = types.Array(types.int64, 1, "C")
INT, KEY, REAL = types.int64, types.uint32, types.float32
_VECTORS = {F32: FLOATS, U32: WORDS, U16: SHORTS, U8: BYTES, I64: ir.VectorType(INDEX, LANES)}


class Array:
    """A one-dimensional contiguous array argument, read and written by tiles.

    An array of uint16 holds bf16: its tiles are floats, widened and rounded on the way.
    """

    def __init__(self, context, builder, kind, value):
        """Take the array `value`, an argument of type `kind`."""
        self._builder = builder
        self._data = context.make_array(kind)(context, builder, value).data
        self._vector = _VECTORS[kind]

    def _element(self, index):
        return self._builder.gep(self._data, [index], source_etype=self._vector.element)

    def _tile(self, index):
        return self._builder.bitcast(self._element(index), self._vector.as_pointer())

    def load_one(self, index):
        """Load one element."""
        return self._builder.load(self._element(index), typ=self._vector.element)

    def store_one(self, value, index):
        """Store one element."""
        self._builder.store(value, self._element(index))

    def load(self, index):
        """Load the tile that starts at `index`."""
        value = self._builder.load(self._tile(index), align=1, typ=self._vector)
        return _widen(self._builder, value) if self._vector is SHORTS else value

    def store(self, value, index):
        """Store the tile that starts at `index`."""
        if self._vector is SHORTS:
            value = _narrow(self._builder, value)
        self._builder.store(value, self._tile(index), align=1)

    def prefetch(self, index):
        """Ask for the cache line at `index`, which need not exist."""
        address = self._builder.bitcast(self._tile(index), ir.IntType(8).as_pointer())
        arguments = [address.type, WORD, WORD, WORD]
        kind = ir.FunctionType(ir.VoidType(), arguments)
        name = "llvm.prefetch.p0"
        declared = cgutils.get_or_insert_function(self._builder.module, kind, name)
        for_reading, second_level, is_data = WORD(0), WORD(2), WORD(1)
        self._builder.call(declared, [address, for_reading, second_level, is_data])


def _widen(builder, shorts):
    words = builder.shl(builder.zext(shorts, WORDS), splat(builder, WORD(16)))
    return builder.bitcast(words, FLOATS)


def _narrow(builder, floats):
    """Round to nearest, ties to even; any NaN becomes one NaN: `quantize.to_bf16`."""
    words = builder.bitcast(floats, WORDS)
    half = splat(builder, WORD(16))
    odd = builder.and_(builder.lshr(words, half), splat(builder, WORD(1)))
    grown = builder.add(words, builder.add(odd, splat(builder, WORD(0x7FFF))))
    rounded = builder.lshr(grown, half)
    is_number = builder.fcmp_ordered("ord", floats, floats)
    return builder.trunc(builder.select(is_number, rounded, splat(builder, WORD(0x7FC0))), SHORTS)


def loop(emit, *kinds):
    """Describe an intrinsic: its arguments are of these kinds and `emit` writes its body."""

    def codegen(context, builder, signature, arguments):
        pairs = zip(signature.args, arguments, strict=True)
        emit(builder, *(Array(context, builder, k, v) if k in _VECTORS else v for k, v in pairs))
        return context.get_dummy_value()

    return types.void(*kinds), codegen


def float_kind(argument):
    """Return the kind of an argument that may be an array of fp32 or of bf16."""
    return U16 if argument.dtype == types.uint16 else F32


@contextmanager
def tiles(builder, count):
    """Loop over the start of each tile of a row of `count` elements."""
    last = builder.sub(count, INDEX(LANES))
    last = builder.select(builder.icmp_signed("<", last, INDEX(0)), INDEX(0), last)
    number = builder.lshr(builder.add(count, INDEX(LANES - 1)), INDEX(LANES.bit_length() - 1))
    with cgutils.for_range(builder, number) as tile:
        start = builder.mul(tile.index, INDEX(LANES))
        yield builder.select(builder.icmp_signed("<", start, last), start, last)


def splat(builder, scalar):
    """Repeat a scalar in every lane."""
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, scalar, WORD(0)), undefined, ZEROS
    )


def splat_word(builder, integer):
    """Repeat an int64 scalar in every lane, as 32-bit words."""
    return splat(builder, builder.trunc(integer, WORD))


def smaller(builder, x, y):
    """Return x where x < y and y elsewhere."""
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def larger(builder, x, y):
    """Return x where x > y and y elsewhere."""
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)
