"""Fast twins of the definitions, as torch operators; `use` forces a backend."""

from division.kernels.dispatch import BACKENDS, active, takes_byte_masks, use
from division.kernels.ops import (
    group_ranges,
    merge_maps,
    merge_maps_affine,
    merge_maps_into,
    merge_samples,
    pack_bounded,
    pack_huffman,
    pack_mask,
    pack_window_index,
    split_maps,
    split_maps_masked,
    split_samples,
    unpack_bounded,
    unpack_huffman,
    unpack_mask,
    unpack_window_index,
)

__all__ = [
    "BACKENDS",
    "active",
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
    "takes_byte_masks",
    "unpack_bounded",
    "unpack_huffman",
    "unpack_mask",
    "unpack_window_index",
    "use",
]
