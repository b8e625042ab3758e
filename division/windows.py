"""Max-pooling indices in plain PyTorch: from a position in the map to a position in the window.

Stock max-pooling keeps, for every output element, the flat int64 position of its maximum in the
input plane. The position inside the pooling window fits in one byte and gives it back exactly.
All geometry is per spatial dimension; the window index counts row by row.
"""

import math

import torch
from torch import Tensor

LARGEST_WINDOW = 256  # window positions that one byte can tell apart


def _origins(outputs: int, stride: int, padding: int, axis: int, ndim: int, like: Tensor) -> Tensor:
    """Return where the window of each output starts along one axis, shaped to broadcast."""
    start = torch.arange(outputs, device=like.device) * stride - padding
    return start.view([-1 if i == axis else 1 for i in range(ndim)])


def pack_window_index(
    index: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Turn int64 positions in an input plane of `size` into uint8 positions in the window."""
    ndim = len(size)
    outputs = index.shape[-ndim:]
    packed = torch.zeros_like(index)
    for axis in range(ndim):
        position = index // math.prod(size[axis + 1 :]) % size[axis]
        origin = _origins(outputs[axis], stride[axis], padding[axis], axis, ndim, index)
        packed = packed * kernel[axis] + (position - origin) // dilation[axis]
    return packed.to(torch.uint8)


def unpack_window_index(
    packed: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Return the int64 positions that `pack_window_index` was given."""
    ndim = len(size)
    outputs = packed.shape[-ndim:]
    offset = packed.to(torch.int64)
    index = torch.zeros_like(offset)
    for axis in range(ndim):
        step = offset // math.prod(kernel[axis + 1 :]) % kernel[axis]
        origin = _origins(outputs[axis], stride[axis], padding[axis], axis, ndim, packed)
        index = index * size[axis] + step * dilation[axis] + origin
    return index
