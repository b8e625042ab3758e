"""The dual-precision split in plain PyTorch: what DIVISION stores of a map.

A map is one (sample, channel) plane of H x W elements, cut into rows x cols blocks. Position y lies
in block `y * rows // H` (nearest-neighbour upsampling), and likewise along the width.

    low     mean of each block, in bf16
    codes   the residual x - low on a grid of 2**bits points per map, rounded stochastically
    decoded (low + offset) + code * scale

With `window == 0` a block averages exactly the positions it covers. With `window == B` block i
averages rows [i * B, i * B + B) whatever it covers, as the authors' release does; the two agree
where B divides the map. With rows == 0 there is no low part: plain per-map quantization.

Every sum runs down the rows of a block, then across its columns, one term at a time, in fp32: the
bytes do not depend on who computes them. A map with a non-finite block mean (or, without a low
part, a non-finite element) is stored with NaN metadata and comes back as NaN.
"""

import torch
from torch import Tensor

from division import bits as bitpack
from division import quantize


def is_channels_last(x: Tensor) -> bool:
    """Tell whether maps (N, C, H, W) have the channel as their fastest dimension.

    Positions and samples may lie further apart than in a dense tensor, as in a part of one.
    """
    _, channels, height, width = x.shape
    across, down = x.stride(3), x.stride(2)
    even = height == 1 or width == 1 or down == width * across
    apart = channels_last_steps(x)[0] >= channels
    return not x.is_contiguous() and x.stride(1) == 1 and even and apart


def channels_last_steps(x: Tensor) -> tuple[int, int]:
    """Return how many elements lie from one position to the next, and from sample to sample."""
    return x.stride(3) if x.shape[3] > 1 else x.stride(2), x.stride(0)


def block_starts(size: int, blocks: int) -> list[int]:
    """Return the first position of each block, and `size` at the end."""
    return [-(-i * size // blocks) for i in range(blocks + 1)]


def _sum_blocks(x: Tensor, dim: int, starts: list[int], stops: list[int]) -> Tensor:
    """Sum x over [start, stop) along a dimension, term by term in order."""
    first = torch.tensor(starts, device=x.device)
    length = torch.tensor(stops, device=x.device) - first
    total = x.index_select(dim, first)
    for step in range(1, int(length.max())):
        has_term = (length > step).nonzero().flatten()
        total.index_add_(dim, has_term, x.index_select(dim, first[has_term] + step))
    return total


def block_means(x: Tensor, rows: int, cols: int, window: int) -> Tensor:
    """Return the block means of fp32 maps (N, C, H, W) as bf16 (N, C, rows, cols)."""
    bounds = []
    for size, blocks in ((x.shape[2], rows), (x.shape[3], cols)):
        edges = block_starts(size, blocks)
        starts, stops = edges[:-1], edges[1:]
        if window:
            starts = [i * window for i in range(blocks)]
            stops = [start + min(window, size) for start in starts]
        bounds.append((starts, stops))
    total = _sum_blocks(_sum_blocks(x, 2, *bounds[0]), 3, *bounds[1])
    heights, widths = (
        torch.tensor([b - a for a, b in zip(*bound, strict=True)], dtype=torch.float64)
        for bound in bounds
    )
    share = (1.0 / (heights[:, None] * widths)).float().to(x.device)
    return quantize.to_bf16(total * share)


def spread(blocks: Tensor, height: int, width: int) -> Tensor:
    """Upsample (N, C, rows, cols) to (N, C, height, width), nearest neighbour."""
    rows, cols = blocks.shape[2:]
    y = torch.arange(height, device=blocks.device) * rows // height
    x = torch.arange(width, device=blocks.device) * cols // width
    return blocks[:, :, y][:, :, :, x]


def split_maps(
    x: Tensor, bits: int, rows: int, cols: int, window: int, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compress maps (N, C, H, W): return low, codes, offset, scale.

    Shapes are (N, C, rows, cols) bf16, (N, C, packed bytes) uint8, (N, C) and (N, C) bf16. Where
    the channel is the fastest dimension of x it is the fastest of low and codes too.
    """
    channel_fastest = is_channels_last(x)
    n, c, height, width = x.shape
    x = x.float()
    if rows:
        low = block_means(x, rows, cols, window)
        bad = ~low.isfinite().flatten(2).all(2)
        residual = x - spread(low.float(), height, width)
    else:
        low = x.new_empty((n, c, 0, 0), dtype=torch.bfloat16)
        bad = ~x.isfinite().flatten(2).all(2)
        residual = x
    offset, scale = quantize.grid(residual.amin((2, 3)), residual.amax((2, 3)), bits, bad)
    distance = x - _base(low, offset, height, width)
    noise = quantize.dither(n * c, height * width, seed, x.device)
    codes = quantize.encode(distance.reshape(n * c, -1), scale.flatten(), bits, noise)
    packed = bitpack.pack(codes.view(n, c, -1), bits)
    if channel_fastest:
        low = low.contiguous(memory_format=torch.channels_last)
        packed = packed.transpose(1, 2).contiguous().transpose(1, 2)
    return low, packed, offset, scale


def split_maps_masked(
    x: Tensor, bits: int, rows: int, cols: int, seed: int, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Do as `split_maps` with contiguous maps, and as `bits.pack_mask` with their elements."""
    return *split_maps(x, bits, rows, cols, 0, seed), bitpack.pack_mask(x.flatten(), low, high)


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
    """Rebuild the maps (N, C, height, width) that `split_maps` was given, up to rounding."""
    code = bitpack.unpack(codes, bits, height * width).float()
    code = code.view(*code.shape[:2], height, width)
    y = _base(low, offset, height, width) + code * scale.float()[:, :, None, None]
    y = quantize.to_bf16(y) if dtype == torch.bfloat16 else y.to(dtype)
    return y.contiguous(memory_format=torch.channels_last) if channels_last else y


def merge_maps_into(
    low: Tensor, codes: Tensor, offset: Tensor, scale: Tensor, bits: int, out: Tensor
) -> None:
    """Do as `merge_maps`, but write the maps where they belong: contiguous, or channel fastest."""
    last = is_channels_last(out)
    height, width = out.shape[2:]
    out.copy_(merge_maps(low, codes, offset, scale, bits, height, width, out.dtype, last))


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
    """Do as `merge_maps`; then scale and shift every channel, and zero what a mask excludes.

    `factor` and `term` (C) are fp32, and so is the arithmetic; `mask` holds one bit an element, in
    the order of the memory, as `bits.pack_mask` makes it.
    """
    kind = (height, width, torch.float32, channels_last)
    y = merge_maps(low, codes, offset, scale, bits, *kind)
    return finish_maps(y, channels_last, factor, term, mask).to(dtype)


def finish_maps(
    y: Tensor, channels_last: bool, factor: Tensor, term: Tensor, mask: Tensor | None
) -> Tensor:
    """Scale and shift every channel of fp32 maps, and zero what a mask excludes."""
    y = y * factor[:, None, None] + term[:, None, None]
    if mask is not None:
        inside = bitpack.unpack_mask(mask, y.numel(), 0.0, 1.0, torch.float32)
        order = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
        ordered = y.permute(order)
        y = torch.where(inside.view(ordered.shape) > 0, ordered, 0.0)
        y = y.permute(0, 3, 1, 2) if channels_last else y
    return y


def _base(low: Tensor, offset: Tensor, height: int, width: int) -> Tensor:
    """Return where code 0 lies: per map, or per element where there is a low part."""
    offset32 = offset.float()[:, :, None, None]
    if low.shape[2] == 0:
        return offset32
    return spread(low.float() + offset32, height, width)
