"""The definitions under the names that every kernel backend provides."""

from division.bits import pack_mask, unpack_mask
from division.frequency import merge_maps, merge_maps_into, split_maps
from division.windows import pack_window_index, unpack_window_index

__all__ = [
    "merge_maps",
    "merge_maps_into",
    "pack_mask",
    "pack_window_index",
    "split_maps",
    "unpack_mask",
    "unpack_window_index",
]
