"""Prepares memory for the kernels on maps, and chooses tiles. Can be imported without Triton."""

from collections.abc import Sequence

import torch
from torch import Tensor

from division import bits as bitpack
from division.frequency import channels_last_steps, is_channels_last
from division.frequency import split_maps as split_by_definition
from division.kernels.gpu_launch import KINDS, keys_of, launch, module, power_of_two, raw

STARTS = ("split_resident", "split_streamed", "merge")  # the kernels of this module
ON_CHIP = 4096  # elements that a program keeps in registers
ON_CHIP_LAST = 8192  # the same where maps lie side by side: fewer would waste what a read brings
_LANES_LAST = 8  # neighbouring channels that a program reads at least: 32 bytes of fp32
_LONGEST_SUM = 32  # rows and columns of a block, from which exchanging registers costs too much
_LARGEST_BLOCK = 2**24  # elements: fp32 counts no further, and a mean is a sum times 1 / count
NEARBY = 16384  # elements of a map that its program reads a second time from a cache: see ALONE
ALONE = 32  # warps of a program that leaves no room for others: 64 KiB then fit in the L1 cache
_STREAM_TILE = 1024  # elements that a program has at a time
_MERGE_TILE = 1024  # bytes of codes that a program unpacks
_MERGE_LANES = 32  # of neighbouring channels, where maps lie side by side


def split_maps(
    x: Tensor, bits: int, rows: int, cols: int, window: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compress maps as `frequency.split_maps`; a window must tile the map or cover it."""
    if _has_too_large_blocks(x.shape, rows, cols):
        return split_by_definition(x, bits, rows, cols, window, seed)
    return _split(x, bits, rows, cols, seed, None, ())


def split_maps_masked(
    x: Tensor, bits: int, rows: int, cols: int, seed: int, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compress maps and pack a mask of them, as `frequency.split_maps_masked`."""
    if split_plan(x.shape, rows, cols, bits, False)[0] != "split_resident":
        mask = module("gpu_masks").pack_mask(x.flatten(), low, high)
        return *split_maps(x, bits, rows, cols, 0, seed), mask
    mask = x.new_empty(bitpack.packed_size(x.numel(), 1), dtype=torch.uint8)
    bounds = module("gpu_masks").bounds_of(low, high, x.dtype)
    return *_split(x, bits, rows, cols, seed, mask, bounds), mask


def _has_too_large_blocks(shape: torch.Size, rows: int, cols: int) -> bool:
    return bool(rows) and -(-shape[2] // rows) * -(-shape[3] // cols) >= _LARGEST_BLOCK


def _split(
    x: Tensor,
    bits: int,
    rows: int,
    cols: int,
    seed: int,
    mask: Tensor | None,
    bounds: Sequence[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Start the kernel that suits some maps; one that keeps them on chip may pack a mask, too."""
    n, c, height, width = x.shape
    edges = (-(-height // max(rows, 1)), -(-width // max(cols, 1)))
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
    steps = channels_last_steps(x) if channels_last else (1, n * c * height * width)
    name, lanes, warps, tiles = split_plan(x.shape, rows, cols, bits, channels_last)
    tensors: tuple[Tensor, ...] = (raw(x), raw(low), codes, raw(offset), raw(scale))
    numbers: tuple[float, ...] = (n * c, c, height, width, rows, cols, *edges, *steps, size)
    numbers += keys_of(seed)
    if name == "split_resident":
        tensors += (codes if mask is None else mask,)
        numbers += tuple(bounds or (0.0, 0.0))
        tiles["HAS_MASK"] = int(mask is not None)
    launch(
        getattr(module("gpu_split" if name == "split_resident" else "gpu_stream"), name),
        n * -(-c // lanes) if channels_last else -(-n * c // lanes),
        tensors,
        numbers,
        warps=warps,
        BITS=bits,
        HAS_LOW=int(rows > 0),
        KIND=KINDS[x.dtype],
        LAST=int(channels_last),
        LANES=lanes,
        **tiles,
    )
    return low, codes, offset, scale


def split_plan(
    shape: torch.Size, rows: int, cols: int, bits: int, channels_last: bool
) -> tuple[str, int, int, dict[str, int]]:
    """Return the kernel that suits some maps, its maps a program, its warps and its tiles."""
    n, c, height, width = shape
    maps = power_of_two(c if channels_last else n * c)
    size = power_of_two(height * width)
    blocks = power_of_two(rows * cols)
    needed = min(_LANES_LAST, maps) if channels_last else 1
    longest = -(-height // rows) + -(-width // cols) if rows else 0
    most = ON_CHIP_LAST if channels_last else ON_CHIP
    if needed * size <= most and longest <= _LONGEST_SUM:
        lanes = min(maps, max(needed, ON_CHIP // size))
        tiles = {"SIZE": size, "LINES": power_of_two(rows * width), "BLOCKS": blocks}
        return "split_resident", lanes, max(4, lanes * size // 512), tiles
    items = power_of_two(-(-height * width * bitpack.planes(bits)[0][1] // 8))
    lanes = min(maps, 32 if channels_last else max(1, 2 * _STREAM_TILE // items))
    room = max(1, _STREAM_TILE // lanes)
    wide = is_wide(height, width, rows, cols)
    warps = 4 << wide
    if not channels_last and lanes == 1 and height * width <= NEARBY:
        warps = ALONE
    tiles = {"BLOCKS": min(blocks, room), "ITEMS": min(items, room), "WIDE": wide}
    return "split_streamed", lanes, warps, tiles


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
    _merge(low, codes, offset, scale, bits, out, ())


def _merge(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    out: Tensor,
    finish: tuple[Tensor, ...],
) -> None:
    """Start the kernel that rebuilds maps; `finish` is a factor and a term a channel, a mask."""
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
    tile, lanes = merge_plan(n * c, c, stride, channels_last)
    chunks = -(-stride // tile)
    wide = is_wide(height, width, rows, cols)
    tiles = n * -(-c // lanes) if channels_last else -(-n * c // lanes)
    tensors = (raw(low), codes.contiguous(), raw(offset.contiguous()), raw(scale.contiguous()))
    launch(
        module("gpu_maps").merge,
        tiles * chunks,
        (*tensors, *finish, *(codes,) * (3 - len(finish)), raw(out)),
        (n * c, c, height, width, rows, cols, *steps, chunks, size),
        BITS=bits,
        HAS_LOW=int(rows > 0),
        FINISH=max(0, len(finish) - 1),
        KIND=KINDS[out.dtype],
        LAST=int(channels_last),
        WIDE=wide,
        LANES=lanes,
        TILE=tile,
    )


def merge_plan(maps: int, channels: int, stride: int, channels_last: bool) -> tuple[int, int]:
    """Return how many bytes of how many maps a program unpacks."""
    if channels_last:
        lanes = min(power_of_two(channels), _MERGE_LANES)
        return min(_MERGE_TILE // lanes, power_of_two(stride)), lanes
    tile = min(_MERGE_TILE, power_of_two(stride))
    return tile, min(power_of_two(maps), _MERGE_TILE // tile)


def is_wide(height: int, width: int, rows: int, cols: int) -> int:
    """Return 1 if 32 bits are too few to count inside a map."""
    largest = max(8 * height * width, height * (rows + 1), width * (cols + 1))
    return int(largest + 8 * _STREAM_TILE >= 2**31)


def empty_maps(
    like: Tensor, n: int, c: int, height: int, width: int, dtype: torch.dtype, channels_last: bool
) -> Tensor:
    """Return new maps, with the strides that the fake operators promise."""
    if channels_last:
        return like.new_empty((n, height, width, c), dtype=dtype).permute(0, 3, 1, 2)
    return like.new_empty((n, c, height, width), dtype=dtype)


def merge_maps_affine(
    low: Tensor,
    codes: Tensor,
    offset: Tensor,
    scale: Tensor,
    bits: int,
    height: int,
    width: int,
    dtype: torch.dtype,
    channels_last: bool,
    factor: Tensor,
    term: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """Rebuild maps and finish them in one pass, as `frequency.merge_maps_affine`."""
    n, c = offset.shape
    out = empty_maps(codes, n, c, height, width, dtype, channels_last)
    finish = tuple(part.contiguous() for part in (factor, term, mask) if part is not None)
    _merge(low, codes, offset, scale, bits, out, finish)
    return out
