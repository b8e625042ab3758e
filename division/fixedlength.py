"""Fixed-length coding of bounded integers in plain PyTorch: the definition of every stored byte.

The elements are taken in their logical order (N, C, H, W), whatever the memory format: 32
neighbours of one channel are alike, and a dead channel costs next to nothing. A block of 32, which
may run across maps and samples, has one header byte: the bit width of its largest magnitude, plus
128 if one of its elements is negative. Its payload is `width` words of 32 bits, word p holding bit
p of every magnitude (element i in bit i), then a word of signs where the header says so. A block of
zeros is its header alone. Elements that are missing from the grid (see `bounded`) are kept in full,
with their position.
"""

import torch
from torch import Tensor

from division.bounded import BLOCK, from_grid, to_grid

SIGNED = 128  # header bit: the block has a plane of signs


def pack_bounded(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Code a tensor within a bound: headers (uint8), words (int32), missing positions and values.

    Positions count elements in logical order; int32 where that suffices.
    """
    flat = x.detach().contiguous().flatten()
    codes, missing = to_grid(flat, error_bound, dither, seed)
    index = missing.nonzero().flatten()
    count = flat.numel()
    blocks = torch.nn.functional.pad(codes, (0, -count % BLOCK)).view(-1, BLOCK)
    negative = blocks < 0
    magnitude = blocks.abs()
    width = bit_length(magnitude.amax(1)) if count else codes[:0]
    is_signed = negative.any(1)
    headers = (width + SIGNED * is_signed).to(torch.uint8)
    planes = width + is_signed
    starts = planes.cumsum(0) - planes
    words = codes.new_zeros(int(planes.sum()))
    for plane in range(int(width.max()) if count else 0):
        chosen = width > plane
        words[starts[chosen] + plane] = _to_words((magnitude[chosen] >> plane) & 1)
    words[(starts + width)[is_signed]] = _to_words(negative[is_signed])
    return headers, words, index.to(index_type(count)), flat[index]


def unpack_bounded(
    headers: Tensor,
    words: Tensor,
    index: Tensor,
    values: Tensor,
    shape: list[int],
    channels_last: bool,
    error_bound: float,
    dither: bool,
    seed: int,
) -> Tensor:
    """Return the tensor that was coded; its type is that of `values`."""
    count = torch.Size(shape).numel()
    width = (headers & (SIGNED - 1)).int()
    is_signed = headers >= SIGNED
    planes = width + is_signed
    check_words(int(planes.sum()), words)
    starts = planes.cumsum(0) - planes
    blocks = words.new_zeros((headers.numel(), BLOCK))
    for plane in range(int(width.max()) if count else 0):
        chosen = width > plane
        blocks[chosen] += _from_words(words[starts[chosen] + plane]) << plane
    negative = _from_words(words[(starts + width)[is_signed]])
    blocks[is_signed] *= 1 - 2 * negative
    flat = from_grid(blocks.flatten()[:count], error_bound, values.dtype, dither, seed)
    flat[index.long()] = values
    return in_format(flat.view(shape), channels_last)


def bit_length(x: Tensor) -> Tensor:
    """Return the number of bits of non-negative integers below 2**24 (frexp is exact there)."""
    return torch.frexp(x.float()).exponent


def _to_words(bits: Tensor) -> Tensor:
    """Gather 32 bits into an int32, the first in the lowest place."""
    shifts = torch.arange(BLOCK, device=bits.device)
    word = (bits.long() << shifts).sum(-1)
    return word.to(torch.int32)  # wraps: the 32nd bit is the sign


def _from_words(words: Tensor) -> Tensor:
    shifts = torch.arange(BLOCK, dtype=torch.int32, device=words.device)
    return (words[:, None] >> shifts) & 1


def index_type(count: int) -> torch.dtype:
    """Return the type of positions in a tensor of `count` elements."""
    return torch.int32 if count < 2**31 else torch.int64


def check_words(expected: int, words: Tensor) -> None:
    """Raise ValueError if a payload is not as long as its headers say."""
    if words.numel() != expected:
        raise ValueError(f"the payload has {words.numel()} words; its headers ask for {expected}")


def in_format(x: Tensor, channels_last: bool) -> Tensor:
    """Return x contiguous or, in any number of dimensions, with the channel last in memory."""
    if not channels_last:
        return x.contiguous()
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def is_channel_last(x: Tensor) -> bool:
    """Tell whether a tensor of 4 or 5 dimensions lies channel last, and not simply contiguous."""
    return x.dim() in (4, 5) and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
