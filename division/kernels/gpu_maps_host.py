"""Prepares memory for the kernels on maps, and chooses tiles. Can be imported without Triton."""

import torch
from torch import Tensor

from division import bits as bitpack
from division.frequency import channels_last_steps, is_channels_last
from division.kernels.gpu_launch import KINDS, launch, module, power_of_two, raw, signed_keys
from division.quantize import seed_keys

STARTS = ("split_resident", "merge")  # the kernels of this module
ON_CHIP = 4096  # elements that a program keeps in registers
_MERGE_TILE = 1024  # bytes of codes that a program unpacks


def split_maps(
    x: Tensor, bits: int, rows: int, cols: int, window: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compress maps as `frequency.split_maps`; a window must tile the map or cover it."""
    n, c, height, width = x.shape
    channels_last = is_channels_last(x)
    x = x.detach() if channels_last else x.detach().contiguous()
    size = bitpack.packed_size(height * width, bits)
    low = empty_maps(x, n, c, rows, cols, torch.bfloat16, channels_last)
    if channels_last:
        codes = x.new_empty((n, size, c), dtype=torch.uint8).transpose(1, 2)
    else:
        codes = x.new_empty((n, c, size), dtype=torch.uint8)
    offset = x.new_empty((n, c), dtype=torch.bfloat16)
    scale = torch.empty_like(offset)
    lanes = lanes_for(c if channels_last else n * c, power_of_two(height * width), channels_last)
    settings = (n * c, c, height, width, rows, cols)
    edges = (-(-height // max(rows, 1)), -(-width // max(cols, 1)))
    steps = channels_last_steps(x) if channels_last else (1, n * c * height * width)
    launch(
        module("gpu_split").split_resident,
        n * -(-c // lanes) if channels_last else -(-n * c // lanes),
        (raw(x), raw(low), codes, raw(offset), raw(scale)),
        (*settings, *edges, *steps, size, *signed_keys(seed_keys(seed))),
        warps=8,
        BITS=bits,
        HAS_LOW=int(rows > 0),
        KIND=KINDS[x.dtype],
        LAST=int(channels_last),
        LANES=lanes,
        SIZE=power_of_two(height * width),
        LINES=power_of_two(rows * width),
        BLOCKS=power_of_two(rows * cols),
    )
    return low, codes, offset, scale


def lanes_for(maps: int, size: int, channels_last: bool) -> int:
    """Return how many maps of `size` positions a program takes."""
    fitting = max(1, ON_CHIP // size)
    return min(power_of_two(maps), fitting)


def merge_maps(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    channels_last: bool,
) -> Tensor:
    """Rebuild maps as `frequency.merge_maps`."""
    n, c = offset.shape
    out = empty_maps(codes, n, c, height, width, dtype, channels_last)
    merge_maps_into(low, codes, offset, scale, bits, out)
    return out


def merge_maps_into(
    low: Tensor, codes: Tensor, offset: Tensor, scale: Tensor, bits: int, out: Tensor
) -> None:
    """Rebuild maps where they belong, as `frequency.merge_maps_into`."""
    n, c, height, width = out.shape
    rows, cols = low.shape[2:]
    channels_last = is_channels_last(out)
    if channels_last:
        low = low.contiguous(memory_format=torch.channels_last)
        codes = codes.transpose(1, 2)
    else:
        low = low.contiguous()
    steps = channels_last_steps(out) if channels_last else (1, n * c * height * width)
    size = bitpack.packed_size(height * width, bits)
    widest = bitpack.planes(bits)[0][1]
    stride = -(-height * width * widest // 8)
    tile = min(_MERGE_TILE, power_of_two(stride))
    lanes = min(power_of_two(c if channels_last else n * c), _MERGE_TILE // tile)
    chunks = -(-stride // tile)
    tiles = n * -(-c // lanes) if channels_last else -(-n * c // lanes)
    tensors = (raw(low), codes.contiguous(), raw(offset.contiguous()), raw(scale.contiguous()))
    launch(
        module("gpu_maps").merge,
        tiles * chunks,
        (*tensors, raw(out)),
        (n * c, c, height, width, rows, cols, *steps, chunks, size),
        BITS=bits,
        HAS_LOW=int(rows > 0),
        KIND=KINDS[out.dtype],
        LAST=int(channels_last),
        LANES=lanes,
        TILE=tile,
    )


def empty_maps(
    like: Tensor, n: int, c: int, height: int, width: int, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    """Return new maps, with the strides that the fake operators promise."""
    if channels_last:
        return like.new_empty((n, height, width, c), dtype=dtype).permute(0, 3, 1, 2)
    return like.new_empty((n, c, height, width), dtype=dtype)
