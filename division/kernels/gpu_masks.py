"""One bit an element on the GPU: masks packed and unpacked in blocks of 512. See `bits`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from division import bits as bitpack
from division.kernels.gpu_common import load_float
from division.kernels.gpu_launch import KINDS, launch, raw

STARTS = ("pack_bits", "unpack_bits")
_SMALL = (torch.bool, torch.uint8)  # types that are compared as fp32, exactly
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_ROWS = 16  # blocks a program
_BLOCK: tl.constexpr = tl.constexpr(bitpack.MASK_BLOCK)


@triton.jit
def _blocks(count, ROWS: tl.constexpr):
    """Return the first element of every block of this program, and of them how many exist."""
    begin = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)) * _BLOCK
    return begin, tl.minimum(tl.maximum(count - begin, 0), _BLOCK).to(tl.int32)


@triton.jit
def pack_blocks(x, out, begin, rest, low, high, KIND: tl.constexpr):
    """Pack `not (x <= low or x >= high)` of the first `rest` elements of every block."""
    begin, rest = begin[:, None], rest[:, None]
    stride = (rest + 7) // 8
    item = tl.arange(0, _BLOCK // 8)[None, :]
    packed = tl.full([begin.shape[0], _BLOCK // 8], 0, tl.int32)
    for j in tl.static_range(8):
        position = item + j * stride
        there = (item < stride) & (position < rest)
        value = load_float(x + begin + position, there, KIND)
        outside = (value <= low) | (value >= high)
        packed |= tl.where(there & (outside == 0), 1 << j, 0)
    tl.store(out + begin // 8 + item, packed.to(tl.uint8), mask=item < stride)


@triton.jit
def pack_bits(x, out, count, low, high, KIND: tl.constexpr, ROWS: tl.constexpr):
    """Pack a mask, ROWS blocks a program."""
    begin, rest = _blocks(count, ROWS)
    pack_blocks(x, out, begin, rest, low, high, KIND)


@triton.jit(do_not_specialize=["outside", "inside"])
def unpack_bits(packed, out, count, outside, inside, ROWS: tl.constexpr):
    """Write the bits of one of two values for every element."""
    begin, rest = _blocks(count, ROWS)
    begin, rest = begin[:, None], rest[:, None]
    stride = (rest + 7) // 8
    item = tl.arange(0, _BLOCK // 8)[None, :]
    byte = tl.load(packed + begin // 8 + item, mask=item < stride, other=0).to(tl.int32)
    for j in tl.static_range(8):
        position = item + j * stride
        there = (item < stride) & (position < rest)
        value = tl.where(((byte >> j) & 1) != 0, inside, outside)
        tl.store(out + begin + position, value.to(out.dtype.element_ty), mask=there)


def bounds_of(low: float, high: float, dtype: torch.dtype) -> list[float]:
    """Return bounds as elements of a type are compared with them: rounded to it."""
    bounds: list[float] = torch.tensor((low, high), dtype=dtype).tolist()
    return bounds


def pack_mask(x: Tensor, low: float, high: float) -> Tensor:
    """Pack which elements lie inside, as `bits.pack_mask`."""
    x = x.detach().contiguous()
    if x.dtype not in (*KINDS, *_SMALL):
        return bitpack.pack_mask(x, low, high)
    bounds = bounds_of(low, high, torch.float32 if x.dtype in _SMALL else x.dtype)
    source = x.view(torch.uint8) if x.dtype in _SMALL else raw(x)
    count = x.numel()
    out = x.new_empty(-(-count // 8), dtype=torch.uint8)
    programs = -(-count // (_ROWS * bitpack.MASK_BLOCK))
    kind = KINDS.get(x.dtype, 0)
    launch(pack_bits, programs, (source, out), (count, *bounds), KIND=kind, ROWS=_ROWS)
    return out


def unpack_mask(
    packed: Tensor, count: int, outside: float, inside: float, dtype: torch.dtype
) -> Tensor:
    """Return the two values of a mask, as `bits.unpack_mask`."""
    if dtype.itemsize not in _INTEGERS:
        return bitpack.unpack_mask(packed, count, outside, inside, dtype)
    out = packed.new_empty(count, dtype=dtype)
    integer = _INTEGERS[dtype.itemsize]
    values = torch.tensor((outside, inside), dtype=dtype).view(integer).tolist()
    programs = -(-count // (_ROWS * bitpack.MASK_BLOCK))
    tensors = (packed.contiguous(), out.view(integer))
    launch(unpack_bits, programs, tensors, (count, *values), ROWS=_ROWS)
    return out
