"""Groups: neighbours in memory quantized together, for tensors that have no maps to speak of."""

from torch import Tensor

from division import kernels
from division.codec import Packed, flatten_memory, unflatten_memory

NAMES = ("low", "codes", "offset", "scale")


def pack_groups(x: Tensor, size: int, bits: int, low: bool, seed: int) -> dict[str, Tensor]:
    """Quantize a dense tensor in groups of `size` neighbours, with or without their mean apart."""
    flat = flatten_memory(x)
    groups = -(-x.numel() // size)
    if groups * size != x.numel():
        padded = flat.new_empty(groups * size)
        padded[: x.numel()] = flat
        padded[x.numel() :] = flat[-1]  # a value of the group: it cannot widen the group's range
        flat = padded
    maps = flat.view(1, groups, 1, size)
    parts = kernels.split_maps(maps, bits, int(low), int(low), 0, seed)
    return dict(zip(NAMES, parts, strict=True))


def unpack_groups(packed: Packed, size: int, bits: int) -> Tensor:
    """Undo `pack_groups`."""
    parts = (packed.tensors[name] for name in NAMES)
    flat = kernels.merge_maps(*parts, bits, 1, size, packed.dtype, False).flatten()
    return unflatten_memory(flat[: packed.shape.numel()], packed.shape, packed.memory_format)
