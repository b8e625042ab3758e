"""The definitions under the names that every kernel backend provides."""

from division.bits import pack_mask, unpack_mask
from division.fixedlength import pack_bounded, unpack_bounded
from division.frequency import (
    merge_maps,
    merge_maps_affine,
    merge_maps_into,
    split_maps,
    split_maps_masked,
)
from division.huffman import pack_huffman, unpack_huffman
from division.samples import group_ranges, merge_samples, split_samples
from division.windows import pack_window_index, unpack_window_index

__all__ = [
    "group_ranges",
    "merge_maps",
    "merge_maps_affine",
    "merge_maps_into",
    "merge_samples",
    "pack_bounded",
    "pack_huffman",
    "pack_mask",
    "pack_window_index",
    "split_maps",
    "split_maps_masked",
    "split_samples",
    "unpack_bounded",
    "unpack_huffman",
    "unpack_mask",
    "unpack_window_index",
]
