"""GPU twins of `division.samples`: prepares memory, starts kernels; imports without Triton."""

import torch
from torch import Tensor

from division import samples
from division.kernels.gpu_launch import KINDS, keys_of, launch, module, power_of_two, raw
from division.samples import check_stream, group_count, is_transposed, sample_bytes

STARTS = ("group_edges", "split_groups", "merge_groups")
LARGEST_GROUP = 4096  # elements: a program has at least one whole group in registers
_ON_CHIP = 4096


def group_ranges(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Return minimum and maximum of every group, as `samples.group_ranges`."""
    if group > LARGEST_GROUP:
        return samples.group_ranges(x, group)
    x, transposed = _dense(x)
    n, c, p = x.shape
    low = x.new_empty((n, group_count(c * p, group)), dtype=torch.float32)
    high = torch.empty_like(low)
    _launch("group_edges", (raw(x), low, high), (c, p), n, group, (), x.dtype, transposed)
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
    if group > LARGEST_GROUP:
        return samples.split_samples(x, bits, total, group, seed, low, high)
    _check(bits, total)
    x, transposed = _dense(x)
    n, c, p = x.shape
    codes = x.new_empty(total * sample_bytes(c * p), dtype=torch.uint8)
    offset = x.new_empty((n, group_count(c * p, group)), dtype=torch.bfloat16)
    scale = torch.empty_like(offset)
    known = low is not None and high is not None
    edges = (low.contiguous(), high.contiguous()) if known else (offset, scale)  # type: ignore[union-attr]
    tensors = (raw(x), bits.contiguous(), _starts(bits, c * p), *map(raw, edges))
    tensors = (*tensors, codes, raw(offset), raw(scale))
    keys = keys_of(seed)
    _launch("split_groups", tensors, (c, p), n, group, keys, x.dtype, transposed, KNOWN=int(known))
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
    if group > LARGEST_GROUP:
        parts = (codes, bits, offset, scale)
        return samples.merge_samples(*parts, channels, positions, group, dtype, transposed)
    n, size = bits.shape[0], channels * positions
    _check(bits, codes.shape[0] // sample_bytes(size))
    shape = (n, positions, channels) if transposed else (n, channels, positions)
    out = codes.new_empty(shape, dtype=dtype)
    stream = (codes.contiguous(), bits.contiguous(), _starts(bits, size))
    tensors = (*stream, raw(offset.contiguous()), raw(scale.contiguous()), raw(out))
    _launch("merge_groups", tensors, (channels, positions), n, group, (), dtype, transposed)
    return out.transpose(1, 2) if transposed else out


def _launch(
    name: str,
    tensors: tuple[Tensor, ...],
    sizes: tuple[int, int],
    n: int,
    group: int,
    keys: tuple[int, ...],
    dtype: torch.dtype,
    transposed: bool,
    **constants: int,
) -> None:
    features = sizes[0] * sizes[1]
    groups, size = group_count(features, group), power_of_two(group)
    wide = int(groups * group + size >= 2**31)
    lanes = groups_a_program(groups, group)
    launch(
        getattr(module("gpu_samples"), name),
        n * -(-groups // lanes),
        tensors,
        (*sizes, features, groups, group, *keys),
        warps=max(4, lanes * size // 512),
        **constants,
        KIND=KINDS[dtype],
        TRANSPOSED=int(transposed),
        WIDE=wide,
        GROUPS=lanes,
        SIZE=size,
    )


def groups_a_program(groups: int, group: int) -> int:
    """Return how many groups of a sample a program takes."""
    return min(power_of_two(groups), _ON_CHIP // power_of_two(group))


def _dense(x: Tensor) -> tuple[Tensor, bool]:
    transposed = is_transposed(x)
    return x.detach() if transposed else x.detach().contiguous(), transposed


def _starts(bits: Tensor, size: int) -> Tensor:
    """Return where the stream keeps each sample."""
    return (bits.to(torch.int64).cumsum(0) - bits) * sample_bytes(size)


def _check(bits: Tensor, total: int) -> None:
    """Check as `check_stream` does, but do not wait for a GPU: it stops itself."""
    if bits.is_cuda:
        sound = (bits.sum() == total) & (bits.min() >= 1) & (bits.max() <= 8)
        torch._assert_async(sound, f"bits must be from 1 to 8 and add up to {total}")
    elif not bits.is_meta:
        check_stream(bits, total)
