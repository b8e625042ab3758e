"""Fast CPU twins of `division.samples`: prepares memory, starts kernels; needs no Numba itself."""

import torch
from torch import Tensor

from division.kernels.cpu_launch import KINDS, launch, module
from division.quantize import seed_keys
from division.samples import check_stream, group_count, is_transposed, sample_bytes


def group_ranges(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return minimum and maximum of every group, as `samples.group_ranges`."""
    transposed = is_transposed(x)
    x = x.detach() if transposed else x.detach().contiguous()
    n, c, p = x.shape
    low = torch.empty((n, group_count(c * p, group)), dtype=torch.float32)
    high = torch.empty_like(low)
    addresses = tuple(tensor.data_ptr() for tensor in (x, low, high))
    arguments = (*addresses, KINDS[x.dtype], c, p, group, int(transposed))
    launch(module("cpu_samples"), "ranges", arguments, n, x.numel())
    return low, high


def split_samples(
    x: Tensor,
    bits: Tensor,
    total: int,
    group: int,
    seed: int,
    low: Tensor | None,
    high: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compress samples as `samples.split_samples`."""
    check_stream(bits, total)
    transposed = is_transposed(x)
    x = x.detach() if transposed else x.detach().contiguous()
    n, c, p = x.shape
    groups = group_count(c * p, group)
    codes = torch.empty(total * sample_bytes(c * p), dtype=torch.uint8)
    offset = torch.empty((n, groups), dtype=torch.bfloat16)
    scale = torch.empty_like(offset)
    known = low is not None and high is not None
    edges = (low.contiguous(), high.contiguous()) if known else (offset, scale)  # type: ignore[union-attr]
    tensors = (x, bits.contiguous(), *edges, codes, offset, scale)
    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    settings = (KINDS[x.dtype], c, p, group, int(transposed), int(known), *seed_keys(seed))
    launch(module("cpu_samples"), "split", (*addresses, *settings), n, x.numel())
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
    """Rebuild samples as `samples.merge_samples`."""
    n, size = bits.shape[0], channels * positions
    check_stream(bits, codes.shape[0] // sample_bytes(size))
    shape = (n, positions, channels) if transposed else (n, channels, positions)
    out = torch.empty(shape, dtype=dtype)
    tensors = [tensor.contiguous() for tensor in (codes, bits, offset, scale)]
    addresses = tuple(tensor.data_ptr() for tensor in (*tensors, out))
    settings = (KINDS[dtype], channels, positions, group, int(transposed))
    launch(module("cpu_samples"), "merge", (*addresses, *settings), n, out.numel())
    return out.transpose(1, 2) if transposed else out
