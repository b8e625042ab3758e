"""Blocks of 32 integers as bit planes: `fixedlength` for one block, in LLVM IR.

A vector of 32 comparisons is one word; LLVM makes it of two AVX-512 masks or four AVX2 ones.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from division.kernels.cpu_tiles import INDEX, U32, WORD

I32 = types.Array(types.int32, 1, "C")
_SIZE = 32
_UNROLLED_BITS = 2
_UNROLLED = 2**_UNROLLED_BITS  # planes written at a time
_BLOCK = ir.VectorType(WORD, _SIZE)
_BYTES = ir.VectorType(ir.IntType(8), _SIZE)
_NO_BYTES = ir.Constant(_BYTES, [0] * _SIZE)
_FLAGS = ir.VectorType(ir.IntType(1), _SIZE)
_ZERO = ir.Constant(_BLOCK, [0] * _SIZE)
_MISSING = ir.Constant(_BLOCK, [-(2**31)] * _SIZE)


def _splat(builder, word):
    undefined = ir.Constant(_BLOCK, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(undefined, word, WORD(0)), undefined, _ZERO
    )


def _data(context, builder, kind, array):
    return context.make_array(kind)(context, builder, array).data


def _place(builder, data, index):
    return builder.gep(data, [index], source_etype=WORD)


def _call(builder, name, result, *arguments):
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), list(arguments))


@intrinsic
def pack_block(typing, codes, start, words, at):
    """Write the planes of codes[start : start + 32] at words[at].

    Up to three words more than needed are written, and less than 24 in all: branches cost more.
    Returns the header byte, the number of words above it (8 bits on), and from bit 32 on which
    codes are missing.
    """

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        source = _data(context, builder, kinds[0], arguments[0])
        out = _data(context, builder, kinds[2], arguments[2])
        start, at = arguments[1], arguments[3]
        place = builder.bitcast(_place(builder, source, start), _BLOCK.as_pointer())
        codes = builder.load(place, align=4, typ=_BLOCK)
        missing = builder.icmp_signed("==", codes, _MISSING)
        codes = builder.select(missing, _ZERO, codes)
        negative = builder.icmp_signed("<", codes, _ZERO)
        magnitude = builder.select(negative, builder.sub(_ZERO, codes), codes)
        every = _call(builder, "llvm.vector.reduce.or.v32i32", WORD, magnitude)
        zeros = _call(builder, "llvm.ctlz.i32", WORD, every, ir.IntType(1)(0))
        width = builder.zext(builder.sub(WORD(32), zeros), INDEX)
        steps = builder.lshr(builder.add(width, INDEX(_UNROLLED - 1)), INDEX(_UNROLLED_BITS))
        with cgutils.for_range(builder, steps) as group:
            first = builder.shl(group.index, INDEX(_UNROLLED_BITS))
            shift = _splat(builder, builder.trunc(first, WORD))
            few = builder.trunc(builder.lshr(magnitude, shift), _BYTES)  # a word of flags at once
            for i in range(_UNROLLED):
                mask = ir.Constant(_BYTES, [2**i] * _SIZE)
                is_set = builder.icmp_unsigned("!=", builder.and_(few, mask), _NO_BYTES)
                target = _place(builder, out, builder.add(at, builder.add(first, INDEX(i))))
                builder.store(builder.bitcast(is_set, WORD), target)
        signs = builder.bitcast(negative, WORD)
        is_signed = builder.zext(builder.icmp_signed("!=", signs, WORD(0)), INDEX)
        with cgutils.for_range(builder, is_signed):
            builder.store(signs, _place(builder, out, builder.add(at, width)))
        header = builder.or_(width, builder.shl(is_signed, INDEX(7)))
        planes = builder.shl(builder.add(width, is_signed), INDEX(8))
        flags = builder.shl(builder.zext(builder.bitcast(missing, WORD), INDEX), INDEX(32))
        return builder.or_(builder.or_(header, planes), flags)

    return types.uint64(I32, types.int64, U32, types.int64), codegen


@intrinsic
def unpack_block(typing, words, at, width, is_signed, codes, start):
    """Write codes[start : start + 32] from the planes at words[at]."""

    def codegen(context, builder, signature, arguments):
        kinds = signature.args
        source = _data(context, builder, kinds[0], arguments[0])
        out = _data(context, builder, kinds[4], arguments[4])
        at, width, is_signed, start = (arguments[i] for i in (1, 2, 3, 5))
        total = cgutils.alloca_once_value(builder, _ZERO)

        def flags(index):
            word = builder.load(_place(builder, source, index), typ=WORD)
            return builder.bitcast(word, _FLAGS)

        with cgutils.for_range(builder, width) as plane:
            bit = _splat(builder, builder.shl(WORD(1), builder.trunc(plane.index, WORD)))
            is_set = flags(builder.add(at, plane.index))
            more = builder.select(is_set, bit, _ZERO)
            builder.store(builder.or_(builder.load(total), more), total)
        with cgutils.for_range(builder, is_signed):
            magnitude = builder.load(total)
            is_negative = flags(builder.add(at, width))
            negated = builder.sub(_ZERO, magnitude)
            builder.store(builder.select(is_negative, negated, magnitude), total)
        place = builder.bitcast(_place(builder, out, start), _BLOCK.as_pointer())
        builder.store(builder.load(total), place, align=4)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(U32, i64, i64, i64, I32, i64), codegen
