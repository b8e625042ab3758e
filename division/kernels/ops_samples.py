"""Operators on samples: schemas, and sizes without data. See `division.samples`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from division.samples import group_count, sample_bytes

SCHEMAS = {
    "group_ranges": "(Tensor x, int group) -> (Tensor, Tensor)",
    "split_samples": "(Tensor x, Tensor bits, int total, int group, int seed, Tensor? low,"
    " Tensor? high) -> (Tensor, Tensor, Tensor)",
    "merge_samples": "(Tensor codes, Tensor bits, Tensor offset, Tensor scale, int channels,"
    " int positions, int group, ScalarType dtype, bool transposed) -> Tensor",
}


def _fake_group_ranges(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    groups = group_count(x.shape[1] * x.shape[2], group)
    low = x.new_empty((x.shape[0], groups), dtype=torch.float32)
    return low, torch.empty_like(low)


def _fake_split_samples(
    x: Tensor,
    bits: Tensor,
    total: int,
    group: int,
    seed: int,
    low: Tensor | None,
    high: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    size = x.shape[1] * x.shape[2]
    codes = x.new_empty(total * sample_bytes(size), dtype=torch.uint8)
    offset = x.new_empty((x.shape[0], group_count(size, group)), dtype=torch.bfloat16)
    return codes, offset, torch.empty_like(offset)


def _fake_merge_samples(
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
    n = bits.shape[0]
    if transposed:
        return codes.new_empty((n, positions, channels), dtype=dtype).transpose(1, 2)
    return codes.new_empty((n, channels, positions), dtype=dtype)


FAKES: dict[str, Callable[..., Any]] = {
    "group_ranges": _fake_group_ranges,
    "split_samples": _fake_split_samples,
    "merge_samples": _fake_merge_samples,
}
