"""Max-pooling indices of planes: `windows.pack_window_index` and back, in two dimensions.

A row is what shares one window origin along the height: (planes, h) rows of w windows if the
width is the fastest dimension, (n, h, w) rows of C lanes if the channel is. Indices are valid
positions of a plane with fewer than 2**31 elements.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np
from numba import prange

from division.kernels.cpu_common import bytes_at, i32, longs_at, u8
from division.kernels.cpu_compile import inlined, kernel


@inlined
def _divide(number, divisor, inverse):
    """Return number // divisor for a number >= 0: exact, and unlike a division it is a vector."""
    quotient = i32(np.float64(number) * inverse)
    rest = i32(number - i32(quotient * divisor))
    quotient = i32(quotient - i32(1)) if rest < i32(0) else quotient
    return i32(quotient + i32(1)) if rest >= divisor else quotient


@inlined
def _pack_row(index, out, origin_y, origin_x, step_x, in_width, kernel_width, dilation):
    """Pack one row; the window origin moves by `step_x` with each element."""
    dilation_y, dilation_x = dilation
    inverse = 1.0 / in_width
    inverse_y, inverse_x = 1.0 / dilation_y, 1.0 / dilation_x
    for i in range(out.shape[0]):
        position = i32(index[i])
        y = _divide(position, in_width, inverse)
        x = i32(position - i32(y * in_width))
        x = i32(x - i32(origin_x + i32(i32(i) * step_x)))
        y = _divide(i32(y - origin_y), dilation_y, inverse_y)
        out[i] = u8(i32(y * kernel_width) + _divide(x, dilation_x, inverse_x))


@inlined
def _unpack_row(packed, out, table, origin, step):
    for i in range(out.shape[0]):
        out[i] = table[packed[i]] + (origin + i * step)


@inlined
def _row_origin(row, out_height, out_width, lanes, stride, padding):
    """Return the window origin (y, x) of a row and how far x moves with each of its elements."""
    stride_y, stride_x = stride
    padding_y, padding_x = padding
    if lanes == 0:
        return row % out_height * stride_y - padding_y, -padding_x, stride_x
    y, x = row // out_width % out_height, row % out_width
    return y * stride_y - padding_y, x * stride_x - padding_x, 0


@kernel
def pack_chunk(
    index_address, out_address, lanes, out_height, out_width, in_width, kernel_width,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, kernel_height, begin, end,
):  # fmt: skip
    """Pack the rows [begin, end); `lanes` is the number of channels if they are fastest, or 0."""
    length = lanes if lanes else out_width
    index, out = longs_at(index_address, end * length), bytes_at(out_address, end * length)
    stride, padding = (stride_y, stride_x), (padding_y, padding_x)
    dilation = (i32(dilation_y), i32(dilation_x))
    for row in range(begin, end):
        y, x, step = _row_origin(row, out_height, out_width, lanes, stride, padding)
        part = slice(row * length, (row + 1) * length)
        _pack_row(
            index[part], out[part], i32(y), i32(x), i32(step), i32(in_width), i32(kernel_width),
            dilation,
        )  # fmt: skip


@kernel
def unpack_chunk(
    packed_address, out_address, lanes, out_height, out_width, in_width, kernel_width,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, kernel_height, begin, end,
):  # fmt: skip
    """Unpack the rows [begin, end)."""
    length = lanes if lanes else out_width
    packed, out = bytes_at(packed_address, end * length), longs_at(out_address, end * length)
    stride, padding = (stride_y, stride_x), (padding_y, padding_x)
    table = np.empty(256, np.int64)
    for code in range(256):
        y = code // kernel_width % kernel_height * dilation_y
        table[code] = y * in_width + code % kernel_width * dilation_x
    for row in range(begin, end):
        y, x, step = _row_origin(row, out_height, out_width, lanes, stride, padding)
        part = slice(row * length, (row + 1) * length)
        _unpack_row(packed[part], out[part], table, y * in_width + x, step)


@kernel(parallel=True)
def pack(
    index_address, out_address, lanes, out_height, out_width, in_width, kernel_width,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, kernel_height, rows, chunks,
):  # fmt: skip
    """Pack all rows, in chunks that threads share."""
    for chunk in prange(chunks):
        pack_chunk(
            index_address, out_address, lanes, out_height, out_width, in_width, kernel_width,
            stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, kernel_height,
            chunk * rows // chunks, (chunk + 1) * rows // chunks,
        )  # fmt: skip


@kernel(parallel=True)
def unpack(
    packed_address, out_address, lanes, out_height, out_width, in_width, kernel_width,
    stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, kernel_height, rows, chunks,
):  # fmt: skip
    """Unpack all rows, in chunks that threads share."""
    for chunk in prange(chunks):
        unpack_chunk(
            packed_address, out_address, lanes, out_height, out_width, in_width, kernel_width,
            stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, kernel_height,
            chunk * rows // chunks, (chunk + 1) * rows // chunks,
        )  # fmt: skip
