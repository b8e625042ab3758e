"""Max-pooling indices on the GPU: positions in the plane to positions in the window, and back."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from division import windows
from division.kernels.gpu_launch import launch

STARTS = ("pack_windows", "unpack_windows")
_TILE = 1024


@triton.jit
def _origins(element, lanes, shape, stride, padding):
    """Return where the window of every output starts, along three axes."""
    place = element // lanes
    x = place % shape[2]
    y = place // shape[2] % shape[1]
    z = place // shape[2] // shape[1] % shape[0]
    return (
        z * stride[0] - padding[0],
        y * stride[1] - padding[1],
        x * stride[2] - padding[2],
    )


@triton.jit
def _elements(count, WIDE: tl.constexpr, TILE: tl.constexpr):
    program = tl.program_id(0).to(tl.int64) if WIDE else tl.program_id(0)
    element = program * TILE + tl.arange(0, TILE)
    return element, element < count


@triton.jit
def pack_windows(
    index, out, count, lanes, o0, o1, o2, n1, n2, k1, k2, s0, s1, s2, p0, p1, p2, d0, d1, d2,
    WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Count steps of the window from its origin, axis by axis."""
    element, there = _elements(count, WIDE, TILE)
    z0, y0, x0 = _origins(element, lanes, (o0, o1, o2), (s0, s1, s2), (p0, p1, p2))
    position = tl.load(index + element, mask=there, other=0)
    if not WIDE:
        position = position.to(tl.int32)
    line = position // n2
    plane = line // n1
    z = (plane - z0) // d0
    y = (line - plane * n1 - y0) // d1
    x = (position - line * n2 - x0) // d2
    tl.store(out + element, ((z * k1 + y) * k2 + x).to(tl.uint8), mask=there)


@triton.jit
def unpack_windows(
    packed, out, count, lanes, o0, o1, o2, n1, n2, k1, k2, s0, s1, s2, p0, p1, p2, d0, d1, d2,
    WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Walk those steps from the origin."""
    element, there = _elements(count, WIDE, TILE)
    z0, y0, x0 = _origins(element, lanes, (o0, o1, o2), (s0, s1, s2), (p0, p1, p2))
    offset = tl.load(packed + element, mask=there, other=0).to(tl.int32)
    line = offset // k2
    plane = line // k1
    z = z0 + plane * d0
    y = y0 + (line - plane * k1) * d1
    x = x0 + (offset - line * k2) * d2
    tl.store(out + element, ((z * n1 + y) * n2 + x).to(tl.int64), mask=there)


def _launch(kernel: object, source: Tensor, out: Tensor, geometry: tuple[list[int], ...]) -> bool:
    """Convert window indices, unless they lie in no order that has a kernel."""
    ndim = len(geometry[0])
    lanes = 1
    if not source.is_contiguous():
        if not source.movedim(-ndim - 1, -1).is_contiguous():
            return False
        lanes = source.shape[-ndim - 1]
    outputs = (1,) * (3 - ndim) + tuple(source.shape[-ndim:])
    # A missing axis has one position, and a window of one.
    size, window, stride, padding, dilation = (
        (fill,) * (3 - ndim) + tuple(given)
        for given, fill in zip(geometry, (1, 1, 1, 0, 1), strict=True)
    )
    count = source.numel()
    wide = max(count, math.prod(size)) + _TILE >= 2**31
    settings = (*outputs, *size[1:], *window[1:], *stride, *padding, *dilation)
    tensors, programs = (source, out), -(-count // _TILE)
    launch(kernel, programs, tensors, (count, lanes, *settings), WIDE=int(wide), TILE=_TILE)
    return True


def pack_window_index(
    index: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Turn positions in the plane into positions in the window: `windows.pack_window_index`."""
    geometry = (size, kernel, stride, padding, dilation)
    packed = torch.empty_like(index, dtype=torch.uint8)
    if _launch(pack_windows, index, packed, geometry):
        return packed
    return windows.pack_window_index(index, *geometry)


def unpack_window_index(
    packed: Tensor,
    size: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """Return the positions that were packed: `windows.unpack_window_index`."""
    geometry = (size, kernel, stride, padding, dilation)
    index = torch.empty_like(packed, dtype=torch.int64)
    if _launch(unpack_windows, packed, index, geometry):
        return index
    return windows.unpack_window_index(packed, *geometry)
