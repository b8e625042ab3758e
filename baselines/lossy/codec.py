"""Lossy: error-bounded compression, each element within `error_bound` of the original."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from division import kernels
from division.bounded import LARGEST_BOUND, SMALLEST_BOUND
from division.codec import Codec, Packed, check_choice

CODINGS = ("fixed", "huffman")
_NAMES = {
    "fixed": ("headers", "words", "index", "values"),
    "huffman": ("lengths", "words", "offsets", "apart", "left_apart", "index", "values"),
}


@dataclass(frozen=True)
class LossyCodec(Codec):
    """Rounds to a grid of twice the bound and codes the integers.

    |x - x'| <= error_bound holds for every finite element without slack, zero stays zero, NaN and
    Inf come back as they were. A tensor that coding would not make smaller is kept as it is.

    Attributes:
        error_bound: the largest error of an element.
        coding: "fixed", bit planes of blocks of 32, or "huffman", differences to neighbours in a
            Huffman code as in the paper: smaller and slower.
        dither: subtractive dither; the error no longer depends on the elements.
        assumed_ratio: how many times smaller than fp32 to assume the result is where there are
            no data to compress (planning).

    >>> x = torch.randn(4, 8, 16, 16).relu()
    >>> codec = LossyCodec(error_bound=0.01)
    >>> packed = codec.compress(x)
    >>> y = codec.decompress(packed)
    >>> bool((x.double() - y.double()).abs().max() <= 0.01), packed.nbytes < x.nbytes / 3
    (True, True)
    """

    error_bound: float = 1e-2
    coding: str = "fixed"
    dither: bool = False
    assumed_ratio: float = 6.0
    name: ClassVar[str] = "lossy"
    keeps_precision: ClassVar[bool] = True
    sized_by_data: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("error_bound", self.error_bound, SMALLEST_BOUND, LARGEST_BOUND)
        check_choice("coding", self.coding, CODINGS)
        check_number("assumed_ratio", self.assumed_ratio, 1.0, 1e6)

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        if isinstance(x, FakeTensor):
            return self._assumed(x)
        if x.numel() == 0:
            return {"data": x.clone()}
        seed &= 2**63 - 1  # what an int64 tensor holds
        pack = kernels.pack_bounded if self.coding == "fixed" else kernels.pack_huffman
        parts = pack(x, self.error_bound, self.dither, seed)
        tensors = dict(zip(_NAMES[self.coding], parts, strict=True))
        if self.dither:  # the decoder draws the same noise
            tensors["seed"] = torch.tensor(seed)
        if sum(tensor.nbytes for tensor in tensors.values()) < x.nbytes:
            return tensors
        return {"data": x.clone()}

    def _unpack(self, packed: Packed) -> Tensor:
        tensors = packed.tensors
        if "data" in tensors:
            return tensors["data"]
        parts = (tensors[name] for name in _NAMES[self.coding])
        unpack = kernels.unpack_bounded if self.coding == "fixed" else kernels.unpack_huffman
        is_real = self.dither and not isinstance(tensors["words"], FakeTensor)
        seed = int(tensors["seed"]) if is_real else 0
        channels_last = packed.memory_format != torch.contiguous_format
        layout = (list(packed.shape), channels_last)
        return unpack(*parts, *layout, self.error_bound, self.dither, seed)

    def _assumed(self, x: Tensor) -> dict[str, Tensor]:
        """Return empty tensors of the assumed size, as if all of it were words."""
        size = min(x.nbytes, int(4 * x.numel() / self.assumed_ratio))
        empty = {name: x.new_empty(0, dtype=torch.int32) for name in _NAMES[self.coding]}
        return {
            **empty,
            "words": x.new_empty(size // 4, dtype=torch.int32),
            "values": x.new_empty(0),
        }


def check_number(option: str, value: object, low: float, high: float) -> None:
    """Raise ValueError unless `value` is a finite number in [low, high]."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"{option} must be a number from {low:g} to {high:g}; got {value!r}")
