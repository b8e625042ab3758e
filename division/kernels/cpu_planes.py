"""Bit planes of codes, in flat loops: `bits.pack` and `bits.unpack` for one map or many lanes."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

from division.kernels.cpu_common import u8
from division.kernels.cpu_compile import inlined


@inlined
def _pack_pairs(a, b, first, out):
    for k in range(out.shape[0]):
        low, high = u8(a[k] >> first), u8(b[k] >> first)
        out[k] = u8(low & u8(15)) | u8(high << u8(4))


@inlined
def _pack_quads(a, b, c, d, first, out):
    for k in range(out.shape[0]):
        low = u8(u8(a[k] >> first) & u8(3)) | u8(u8(u8(b[k] >> first) & u8(3)) << u8(2))
        high = u8(u8(u8(c[k] >> first) & u8(3)) << u8(4)) | u8(u8(d[k] >> first) << u8(6))
        out[k] = u8(low | high)


@inlined
def _pack_bits(a, b, c, d, e, f, g, h, first, out):
    one = u8(1)
    for k in range(out.shape[0]):
        byte = u8(u8(a[k] >> first) & one)
        byte |= u8(u8(u8(b[k] >> first) & one) << u8(1))
        byte |= u8(u8(u8(c[k] >> first) & one) << u8(2))
        byte |= u8(u8(u8(d[k] >> first) & one) << u8(3))
        byte |= u8(u8(u8(e[k] >> first) & one) << u8(4))
        byte |= u8(u8(u8(f[k] >> first) & one) << u8(5))
        byte |= u8(u8(u8(g[k] >> first) & one) << u8(6))
        byte |= u8(u8(u8(h[k] >> first) & one) << u8(7))
        out[k] = byte


@inlined
def pack_plane(codes, step, stride, first, width, out):
    """Pack `out.shape[0]` bytes of one plane.

    Byte k collects codes[k], codes[k + stride * step], codes[k + 2 * stride * step] and so on.
    """
    n = out.shape[0]
    jump = stride * step
    shift = u8(first)
    if width == 8:
        for k in range(n):
            out[k] = codes[k]
    elif width == 4:
        _pack_pairs(codes[:n], codes[jump : jump + n], shift, out)
    elif width == 2:
        _pack_quads(
            codes[:n],
            codes[jump : jump + n],
            codes[2 * jump : 2 * jump + n],
            codes[3 * jump : 3 * jump + n],
            shift,
            out,
        )
    else:
        _pack_bits(
            codes[:n],
            codes[jump : jump + n],
            codes[2 * jump : 2 * jump + n],
            codes[3 * jump : 3 * jump + n],
            codes[4 * jump : 4 * jump + n],
            codes[5 * jump : 5 * jump + n],
            codes[6 * jump : 6 * jump + n],
            codes[7 * jump : 7 * jump + n],
            shift,
            out,
        )


@inlined
def unpack_slot(packed, shift, width, first, codes, is_first_plane):
    """Add the field at `shift` of every packed byte to the codes, `first` bits up."""
    mask, shift, first = u8(2**width - 1), u8(shift), u8(first)
    if is_first_plane:
        for k in range(codes.shape[0]):
            codes[k] = u8(u8(packed[k] >> shift) & mask)
    else:
        for k in range(codes.shape[0]):
            codes[k] |= u8(u8(u8(packed[k] >> shift) & mask) << first)
