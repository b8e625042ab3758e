"""Schemas and fakes of the error-bounded coders.

What packing returns depends on the data, so a fake of it needs symbolic sizes (torch.compile); a
codec that is asked for sizes without data has to assume them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from division.fixedlength import index_type
from division.huffman import chunk_of

_OPTIONS = "float error_bound, bool dither, int seed"
_LAYOUT = "int[] shape, bool channels_last"
SCHEMAS = {
    "pack_bounded": f"(Tensor x, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
    "unpack_bounded": "(Tensor headers, Tensor words, Tensor index, Tensor values,"
    f" {_LAYOUT}, {_OPTIONS}) -> Tensor",
    "pack_huffman": f"(Tensor x, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "unpack_huffman": "(Tensor lengths, Tensor words, Tensor offsets, Tensor apart,"
    f" Tensor left_apart, Tensor index, Tensor values, {_LAYOUT}, {_OPTIONS}) -> Tensor",
}


def _fake_pack_bounded(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    context = torch.library.get_ctx()
    words, missing = context.new_dynamic_size(), context.new_dynamic_size()
    return (
        x.new_empty(-(-x.numel() // 32), dtype=torch.uint8),
        x.new_empty(words, dtype=torch.int32),
        x.new_empty(missing, dtype=index_type(x.numel())),
        x.new_empty(missing),
    )


def _fake_pack_huffman(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    context = torch.library.get_ctx()
    lengths, words, apart, missing = (context.new_dynamic_size() for _ in range(4))
    chunks = -(-x.numel() // max(1, chunk_of(list(x.shape))))
    kind = index_type(x.numel())
    return (
        x.new_empty(lengths, dtype=torch.uint8),
        x.new_empty(words, dtype=torch.int32),
        x.new_empty(chunks, dtype=kind),
        x.new_empty(apart, dtype=kind),
        x.new_empty(apart, dtype=torch.int32),
        x.new_empty(missing, dtype=kind),
        x.new_empty(missing),
    )


def _fake_unpack(values: Tensor, shape: list[int], channels_last: bool) -> Tensor:
    if channels_last:
        return values.new_empty((shape[0], *shape[2:], shape[1])).movedim(-1, 1)
    return values.new_empty(shape)


def _fake_unpack_bounded(
    headers: Tensor, words: Tensor, index: Tensor, values: Tensor, *layout: Any
) -> Tensor:
    return _fake_unpack(values, *layout[:2])


def _fake_unpack_huffman(
    lengths: Tensor,
    words: Tensor,
    offsets: Tensor,
    apart: Tensor,
    left_apart: Tensor,
    index: Tensor,
    values: Tensor,
    *layout: Any,
) -> Tensor:
    return _fake_unpack(values, *layout[:2])


FAKES: dict[str, Callable[..., Any]] = {
    "pack_bounded": _fake_pack_bounded,
    "unpack_bounded": _fake_unpack_bounded,
    "pack_huffman": _fake_pack_huffman,
    "unpack_huffman": _fake_unpack_huffman,
}
