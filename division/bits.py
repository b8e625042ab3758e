"""Bit packing in plain PyTorch: the definition of every packed byte in this package.

Codes of `bits` bits are cut into *planes* whose widths are powers of two (5 bits = 4 + 1), lowest
bits first, so that every width from 1 to 8 is packed at exactly that many bits. Within a plane of
width w, `stride = ceil(count / (8 / w))` bytes hold `count` codes: byte k keeps code k in its
lowest bits, then code k + stride, k + 2 * stride and so on. Neighbouring codes stay in neighbouring
bytes, so a kernel packs and unpacks with flat loops and no shuffles.
"""

import torch
from torch import Tensor

MASK_BLOCK = 512  # elements per independently packed block of a mask: local enough for any cache


def planes(bits: int) -> list[tuple[int, int]]:
    """Return (first bit, width) of each plane of a code, e.g. 5 -> [(0, 4), (4, 1)]."""
    found = []
    first = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            found.append((first, width))
            first += width
    return found


def packed_size(count: int, bits: int) -> int:
    """Return how many bytes `pack` makes of `count` codes."""
    return sum(-(-count * width // 8) for _, width in planes(bits))


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack integer codes along the last dimension into uint8."""
    count = codes.shape[-1]
    packed = []
    for first, width in planes(bits):
        per_byte = 8 // width
        stride = -(-count // per_byte)
        plane = (codes >> first) & (2**width - 1)
        plane = torch.nn.functional.pad(plane, (0, stride * per_byte - count))
        plane = plane.unflatten(-1, (per_byte, stride))
        shifts = width * torch.arange(per_byte, device=codes.device)
        packed.append((plane << shifts[:, None]).sum(-2).to(torch.uint8))
    return torch.cat(packed, -1)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the `count` codes that `pack` was given, as int32."""
    codes = packed.new_zeros((*packed.shape[:-1], count), dtype=torch.int32)
    start = 0
    for first, width in planes(bits):
        per_byte = 8 // width
        stride = -(-count // per_byte)
        plane = packed[..., start : start + stride].to(torch.int32)
        shifts = width * torch.arange(per_byte, dtype=torch.int32, device=packed.device)
        fields = (plane[..., None, :] >> shifts[:, None]) & (2**width - 1)
        codes += fields.flatten(-2)[..., :count] << first
        start += stride
    return codes


def pack_mask(x: Tensor, low: float, high: float) -> Tensor:
    """Pack `not (x <= low or x >= high)` of a flat tensor, one bit an element.

    A NaN bound excludes nothing, and a NaN element counts as inside, which is how the stock
    backward of ReLU and hardtanh treats it. Blocks of `MASK_BLOCK` elements are packed separately.
    """
    inside = (~((x <= low) | (x >= high))).to(torch.int32)
    whole = x.numel() // MASK_BLOCK * MASK_BLOCK
    head = pack(inside[:whole].view(-1, MASK_BLOCK), 1).flatten()
    return torch.cat([head, pack(inside[whole:], 1)])


def unpack_mask(
    packed: Tensor, count: int, outside: float, inside: float, dtype: torch.dtype
) -> Tensor:
    """Return a flat tensor of `inside` where the bit is set and `outside` elsewhere."""
    whole = count // MASK_BLOCK * MASK_BLOCK
    head = unpack(packed[: whole // 8].view(-1, MASK_BLOCK // 8), 1, MASK_BLOCK).flatten()
    bit = torch.cat([head, unpack(packed[whole // 8 :], 1, count - whole)]).bool()
    values = torch.tensor([outside, inside], dtype=dtype, device=packed.device)
    return torch.where(bit, values[1], values[0])
