"""Per-group quantization of samples in plain PyTorch: groups inside a sample, bits per sample.

Tensors are (N, C, P): samples, channels, positions, in either layout. A sample is read channel by
channel (NCHW order, whatever the layout) and cut into groups of `group` neighbours, a multiple of
32; groups never cross samples, and the last one of a sample may have fewer elements.

    offset, scale   a grid per group that covers its range, in bf16 (N, groups)
    codes           2**bits[n] points for every group of sample n, rounded stochastically
    decoded         offset + code * scale

The code stream holds one sample after the other, one group after the other, each group packed as
`bits.pack` does; a last group is filled up with zero codes to a multiple of eight. A sample takes
bits[n] * ceil(C * P / 8) bytes, so the length of the stream depends on the sum of the bits alone.
A group with a non-finite element is stored with NaN metadata and comes back as NaN.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from division import bits as bitpack
from division import quantize


def is_transposed(x: Tensor) -> bool:
    """Tell whether a dense (N, C, P) tensor has the channel as its fastest dimension."""
    return not x.is_contiguous() and x.transpose(1, 2).is_contiguous()


def group_count(size: int, group: int) -> int:
    """Return into how many groups a sample of `size` elements is cut."""
    return -(-size // group)


def sample_bytes(size: int) -> int:
    """Return the bytes that one bit of every code of a sample takes."""
    return -(-size // 8)


def check_stream(bits: Tensor, total: int) -> None:
    """Raise ValueError unless the bits of the samples add up to what the stream is made for."""
    found = int(bits.sum())
    if found != total or int(bits.min()) < 1 or int(bits.max()) > 8:
        raise ValueError(
            f"bits must be from 1 to 8 for every sample and add up to {total}; "
            f"got {int(bits.min())} to {int(bits.max())}, {found} together"
        )


def group_ranges(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return minimum and maximum of every group (N, groups), NaN where one is not finite."""
    grouped = _grouped(x, group)
    bad = ~grouped.isfinite().all(2)
    nan = torch.tensor(float("nan"), device=x.device)
    # + 0.0: which zero is smaller, -0 or +0, must not depend on who looks
    low, high = (edge + 0.0 for edge in (grouped.amin(2), grouped.amax(2)))
    return torch.where(bad, nan, low), torch.where(bad, nan, high)


def split_samples(
    x: Tensor,
    bits: Tensor,
    total: int,
    group: int,
    seed: int,
    low: Tensor | None,
    high: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compress (N, C, P) with bits (N,) uint8 that add up to `total`: codes, offset, scale.

    `low` and `high` are what `group_ranges` says of x, where it has been asked already.
    """
    check_stream(bits, total)
    if low is None or high is None:
        low, high = group_ranges(x, group)
    grouped = _grouped(x, group)
    n, groups, _ = grouped.shape
    size = x.shape[1] * x.shape[2]
    noise = quantize.dither(n * groups, group, seed, x.device).view(n, groups, group)
    codes = torch.empty(total * sample_bytes(size), dtype=torch.uint8, device=x.device)
    offset = torch.empty((n, groups), dtype=torch.bfloat16, device=x.device)
    scale = torch.empty_like(offset)
    for width, rows, places in _by_width(bits, size):
        edges = low[rows], high[rows]
        offset[rows], scale[rows] = quantize.grid(*edges, width, edges[0].isnan())
        distance = grouped[rows] - offset[rows].float()[:, :, None]
        found = quantize.encode(
            distance.flatten(0, 1), scale[rows].flatten(), width, noise[rows].flatten(0, 1)
        )
        codes[places] = _pack(found.view(-1, groups * group)[:, :size], width, group)
    return codes, offset, scale


def merge_samples(
    codes: Tensor,
    bits: Tensor,
    offset: Tensor,
    scale: Tensor,
    channels: int,
    positions: int,
    group: int,
    dtype: torch.dtype,
    transposed: bool,
) -> Tensor:
    """Rebuild the tensor (N, channels, positions) that was split, up to rounding."""
    n, size = bits.shape[0], channels * positions
    check_stream(bits, codes.shape[0] // sample_bytes(size))
    y = torch.empty((n, size), dtype=dtype, device=codes.device)
    for width, rows, places in _by_width(bits, size):
        code = _unpack(codes[places], width, group, size).float()
        base, step = (
            part[rows].float().repeat_interleave(group, 1)[:, :size] for part in (offset, scale)
        )
        decoded = base + code * step
        y[rows] = quantize.to_bf16(decoded) if dtype == torch.bfloat16 else decoded.to(dtype)
    y = y.view(n, channels, positions)
    return y.transpose(1, 2).contiguous().transpose(1, 2) if transposed else y


def _grouped(x: Tensor, group: int) -> Tensor:
    """Return x as (N, groups, group) fp32; what a last group lacks is its last element."""
    flat = x.float().flatten(1)
    missing = group_count(flat.shape[1], group) * group - flat.shape[1]
    if missing:
        flat = torch.cat([flat, flat[:, -1:].expand(-1, missing)], 1)
    return flat.view(len(flat), -1, group)


def _by_width(bits: Tensor, size: int) -> list[tuple[int, Tensor, Tensor]]:
    """Return, for every width in use, its samples and where the stream keeps each of them."""
    length = sample_bytes(size)
    start = (bits.to(torch.int64).cumsum(0) - bits) * length
    found = []
    for width in range(1, 9):
        rows = (bits == width).nonzero().flatten()
        if len(rows):
            inside = torch.arange(width * length, device=bits.device)
            found.append((width, rows, start[rows][:, None] + inside))
    return found


def _pack(codes: Tensor, bits: int, group: int) -> Tensor:
    """Pack the codes of samples (rows, size), group by group."""
    whole = codes.shape[1] // group * group
    head = bitpack.pack(codes[:, :whole].unflatten(1, (-1, group)), bits).flatten(1)
    rest = codes[:, whole:]
    rest = F.pad(rest, (0, -rest.shape[1] % 8))
    return torch.cat([head, bitpack.pack(rest, bits)], 1)


def _unpack(packed: Tensor, bits: int, group: int, size: int) -> Tensor:
    """Undo `_pack`."""
    whole = size // group * group
    split = whole * bits // 8
    head = packed[:, :split].unflatten(1, (whole // group, group * bits // 8))
    codes = bitpack.unpack(head, bits, group).flatten(1)
    rest = bitpack.unpack(packed[:, split:], bits, (size - whole + 7) // 8 * 8)
    return torch.cat([codes, rest[:, : size - whole]], 1)
