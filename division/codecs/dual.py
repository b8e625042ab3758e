"""Dual: DIVISION's dual-precision split of a map into low and high frequencies."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from division import kernels
from division.bits import packed_size
from division.codec import Codec, Packed, check_choice, check_range
from division.codecs.cast import Cast
from division.codecs.groups import NAMES, pack_groups, unpack_groups
from division.frequency import is_channels_last
from division.maps import Maps, maps_of, unview_maps, view_maps
from division.quantize import NEAREST

SMALLEST_MAP = 32  # a smaller map would spend more on its metadata than on its codes
GROUP = 64  # neighbours that share metadata where maps are too small


@dataclass(frozen=True)
class Blocks:
    """Maps cut into rows x cols blocks."""

    maps: Maps
    rows: int
    cols: int
    window: int  # 0, or the pooling window of the published alignment where it differs


@dataclass(frozen=True)
class Dual(Codec):
    """Keeps block means in bf16 and the residual in `bits` bits a map.

    Blocks are `block` x `block` in two dimensions and `block**2` long in one; three dimensions are
    slices of two. A ragged map has floor(size / block) blocks of nearly equal size: against
    one block more, that measured both fewer bytes and no larger error on the 28- and 14-pixel maps
    of a ResNet. Maps under 32 elements, and tensors without maps, are cut into groups of 64
    neighbours that share their metadata; what is too small even for that is kept in bf16.

    Args:
        bits: bits a high-frequency code, 1 to 8.
        block: edge of a low-frequency block.
        align: "area" averages exactly what a block covers; "reference" is the authors' release,
            whose blocks are shifted on maps that `block` does not divide.
        keep: "both", or for ablations only the "low" or the "high" frequencies.
        rounding: "stochastic", or for ablations "nearest", which is biased and has no kernel.

    >>> packed = Dual(bits=2, block=8).compress(torch.randn(4, 8, 32, 32), seed=1)
    >>> {name: tuple(t.shape) for name, t in packed.tensors.items()}
    {'low': (4, 8, 4, 4), 'codes': (4, 8, 256), 'offset': (4, 8), 'scale': (4, 8)}
    """

    bits: int = 2
    block: int = 8
    align: str = "area"
    keep: str = "both"
    rounding: str = "stochastic"
    name: ClassVar[str] = "division"
    uses_maps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_range("bits", self.bits, 1, 8)
        check_range("block", self.block, 2, 1024)
        check_choice("align", self.align, ("area", "reference"))
        check_choice("keep", self.keep, ("both", "low", "high"))
        check_choice("rounding", self.rounding, ("stochastic", "nearest"))

    def _pack(self, x: Tensor, seed: int, channel: int) -> dict[str, Tensor]:
        blocks = self._blocks(x.shape, x.is_contiguous(), channel)
        seed = NEAREST if self.rounding == "nearest" else seed
        if blocks is not None:
            maps = view_maps(x, blocks.maps, channel)
            cut = (blocks.rows, blocks.cols, blocks.window)
            parts = kernels.split_maps(maps, self.bits, *cut, seed)
            tensors = dict(zip(NAMES, parts, strict=True))
        elif self._groups_pay(x.numel()):
            dense = x.contiguous() if channel == -1 else x
            tensors = pack_groups(dense, GROUP, self.bits, low=True, seed=seed)
        else:
            return Cast()._pack(x.contiguous() if channel == -1 else x, seed, channel)
        kept = {"both": NAMES, "low": ("low",), "high": NAMES[1:]}[self.keep]
        return {name: tensors[name] for name in kept}

    def compress_masked(
        self, x: Tensor, seed: int, low: float, high: float
    ) -> tuple[Packed, Tensor] | None:
        """Pack the mask of contiguous maps in the pass that compresses them."""
        plain = x.is_contiguous() and self.keep == "both" and self.rounding == "stochastic"
        blocks = self._blocks(x.shape, True, 1) if plain and self.takes(x.dtype) else None
        if blocks is None or blocks.window:
            return None
        maps = view_maps(x.detach(), blocks.maps, 1)
        cut = (blocks.rows, blocks.cols)
        *parts, mask = kernels.split_maps_masked(maps, self.bits, *cut, seed, low, high)
        tensors = dict(zip(NAMES, parts, strict=True))
        return Packed(tensors, x.shape, x.dtype, torch.contiguous_format), mask

    def _unpack(self, packed: Packed) -> Tensor:
        contiguous = packed.memory_format == torch.contiguous_format
        blocks = self._blocks(packed.shape, contiguous, packed.channel)
        if blocks is None and not self._groups_pay(packed.shape.numel()):
            return Cast()._unpack(packed)
        packed = self._fill_in(packed, blocks)
        if blocks is None:
            return unpack_groups(packed, GROUP, self.bits)
        parts = (packed.tensors[name] for name in NAMES)
        size, channels_last = blocks.maps.shape[2:], blocks.maps.channels_last
        maps = kernels.merge_maps(*parts, self.bits, *size, packed.dtype, channels_last)
        return unview_maps(maps, packed)

    def decompress_into(self, packed: Packed, out: Tensor) -> None:
        """Write tokens where they belong, without a copy where they are stored as maps."""
        blocks = self._blocks(packed.shape, True, packed.channel) if self.keep == "both" else None
        target = view_maps(out, blocks.maps, -1) if blocks and packed.channel == -1 else None
        if target is None or not (target.is_contiguous() or is_channels_last(target)):
            super().decompress_into(packed, out)
            return
        kernels.merge_maps_into(*(packed.tensors[name] for name in NAMES), self.bits, target)

    def decompress_affine(
        self, packed: Packed, factor: Tensor, term: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Finish maps in the pass that rebuilds them."""
        contiguous = packed.memory_format == torch.contiguous_format
        blocks = self._blocks(packed.shape, contiguous, 1) if self.keep == "both" else None
        if blocks is None or len(packed.shape) != 4:
            return super().decompress_affine(packed, factor, term, mask)
        parts = (packed.tensors[name] for name in NAMES)
        size, channels_last = blocks.maps.shape[2:], blocks.maps.channels_last
        kind = (self.bits, *size, packed.dtype, channels_last)
        return kernels.merge_maps_affine(*parts, *kind, factor, term, mask)  # type: ignore[no-any-return]

    def takes_as_it_lies(self, x: Tensor, channel: int) -> bool:
        """Take tokens of any step: a part of longer rows, or of a longer sequence."""
        if channel != -1 or x.dim() not in (3, 4) or x.stride(-1) != 1:
            return False
        return x.dim() == 3 or x.stride(1) == x.shape[2] * x.stride(2)

    def _blocks(self, shape: torch.Size, contiguous: bool, channel: int) -> Blocks | None:
        """Return how a dense tensor is cut into blocks, or None if its maps are too small."""
        maps = maps_of(shape, contiguous, channel)
        if maps is None:
            return None
        n, c, height, width = maps.shape
        if height * width < SMALLEST_MAP:
            return None
        edge = self.block**2 if maps.flat else self.block
        published = self.align == "reference" and not maps.flat
        edge = min(edge, height) if published else edge
        rows, cols = max(1, height // edge), max(1, width // edge)
        window = edge if published and (height % edge or width % edge) else 0
        metadata = 2 * rows * cols + 4
        size = n * c * (metadata + packed_size(height * width, self.bits))
        pays = size < 2 * n * c * height * width
        return Blocks(maps, rows, cols, window) if pays else None

    def _groups_pay(self, count: int) -> bool:
        groups = -(-count // GROUP)
        return groups * (packed_size(GROUP, self.bits) + 6) < 2 * count

    def _fill_in(self, packed: Packed, blocks: Blocks | None) -> Packed:
        """Put zeros where an ablation stored nothing."""
        if self.keep == "both":
            return packed
        groups = -(-packed.shape.numel() // GROUP)
        shape = blocks.maps.shape if blocks else (1, groups, 1, GROUP)
        rows, cols = (blocks.rows, blocks.cols) if blocks else (1, 1)
        like = next(iter(packed.tensors.values()))
        fake = like.new_zeros(shape, dtype=packed.dtype)
        if blocks and blocks.maps.channels_last:
            fake = fake.contiguous(memory_format=torch.channels_last)
        zeros = dict(zip(NAMES, kernels.split_maps(fake, self.bits, rows, cols, 0, 0), strict=True))
        tensors = {**zeros, **packed.tensors}
        return Packed(tensors, packed.shape, packed.dtype, packed.memory_format, packed.channel)
