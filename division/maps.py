"""Tensors as maps (N, C, H, W): tokens, sequences and volumes seen as what map codecs work on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from division.codec import Packed


@dataclass(frozen=True)
class Maps:
    """How a dense tensor is seen as maps: their shape, and whether the channel is fastest.

    Sequences have a height of 1 and are `flat`; volumes are cut into slices.
    """

    shape: tuple[int, int, int, int]
    channels_last: bool
    flat: bool


def maps_of(shape: torch.Size, contiguous: bool, channel: int) -> Maps | None:
    """Return how a dense tensor is seen as maps, or None if it has no space dimension."""
    if not 3 <= len(shape) <= 5:
        return None
    n, c, *space = shape if channel == 1 else (shape[0], shape[-1], *shape[1:-1])
    channels_last = channel == -1 or not contiguous
    if len(space) == 3:  # slices: depth joins whichever of sample and channel is its neighbour
        depth = space.pop(0)
        n, c = (n * depth, c) if channels_last else (n, c * depth)
    height, width = (1, *space) if len(space) == 1 else space
    return Maps((n, c, height, width), channels_last, len(space) == 1)


def view_maps(x: Tensor, maps: Maps, channel: int) -> Tensor:
    """View a dense tensor as its maps."""
    n, c, height, width = maps.shape
    if not maps.channels_last:
        return x.view(maps.shape)
    channel_fastest = x if channel == -1 else x.movedim(1, -1)
    return channel_fastest.reshape(n, height, width, c).permute(0, 3, 1, 2)


def unview_maps(maps: Tensor, packed: Packed) -> Tensor:
    """View maps as the tensor that they were made of."""
    if packed.channel == 1 and packed.memory_format == torch.contiguous_format:
        return maps.view(packed.shape)
    flat = maps.permute(0, 2, 3, 1)
    if packed.channel == -1:
        return flat.reshape(packed.shape)
    n, c, *space = packed.shape
    return flat.reshape(n, *space, c).movedim(-1, 1)
