"""Fast twins of the definitions, as torch operators; `use` forces a backend."""

from division.kernels.dispatch import BACKENDS, active, use
from division.kernels.ops import (
    merge_maps,
    merge_maps_into,
    pack_mask,
    pack_window_index,
    split_maps,
    unpack_mask,
    unpack_window_index,
)

__all__ = [
    "BACKENDS",
    "active",
    "merge_maps",
    "merge_maps_into",
    "pack_mask",
    "pack_window_index",
    "split_maps",
    "unpack_mask",
    "unpack_window_index",
    "use",
]
