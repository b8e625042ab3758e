"""Huffman coding of bounded integers in plain PyTorch: the definition of every stored bit.

As cuSZ does it: the integers of `bounded`, in logical order, are predicted (`lorenzo`) inside each
H x W plane, and what the prediction leaves is coded with a canonical Huffman code of at most 16
bits. A tensor of fewer than four dimensions has no planes and is cut into lines of 4096. The symbol
of a difference d with |d| <= 508 is d + 512; others have symbol 0 and are kept apart, in full. A
Huffman code spends at least a bit on each symbol, so runs of zeros, in which activations abound,
are cut into runs of 128, 32 and 8, symbols 3, 2 and 1, largest first, and single zeros.

Whole planes, as many as fit in 4096 elements and at least one, make a chunk. A chunk starts with a
word of its own, which `offsets` has, so that chunks can be decoded at the same time. Bits fill a
word from the highest place down. Of the code only the lengths are kept: first those of symbols 0 to
3, then those of 512 - r to 512 + r, where r is the largest difference that occurs.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from division.bounded import from_grid, to_grid
from division.fixedlength import check_words, in_format, index_type
from division.lorenzo import difference, running_sum

SYMBOLS = 1024
ZERO = 512  # the symbol of a difference of zero
REACH = 508  # the largest difference that has a symbol
RUNS = (1, 8, 32, 128)  # elements that symbols 0 to 3 stand for; all others stand for one
LONGEST = 16  # bits of a code
LINE = 4096  # elements of a line, and of a chunk of small planes


def plane_of(shape: list[int]) -> tuple[int, int]:
    """Return height and width of the planes in which elements are predicted."""
    return (shape[-2], shape[-1]) if len(shape) >= 4 else (1, LINE)


def chunk_of(shape: list[int]) -> int:
    """Return how many elements a chunk has."""
    height, width = plane_of(shape)
    return max(1, LINE // max(1, height * width)) * height * width


def code_lengths(counts: Tensor, longest: int = LONGEST) -> Tensor:
    """Return the code length (uint8) of each symbol in the best code of at most `longest` bits.

    Package-merge: from the pairs of one level and the symbols the next is made, `longest` times;
    how many symbols are among the cheapest 2 n - 2 items, level by level down, gives the lengths.
    A symbol that does not occur has no code and length 0.
    """
    weights = counts.cpu().numpy()
    symbols = np.flatnonzero(weights)
    lengths = np.zeros(len(weights), np.uint8)
    lengths[symbols] = 1
    if len(symbols) > 2:
        symbols = symbols[np.argsort(weights[symbols], kind="stable")]
        leaves = weights[symbols]
        levels, level = [], leaves[:0]
        for _ in range(longest):
            pairs = level[: len(level) // 2 * 2].reshape(-1, 2).sum(1)
            merged = np.concatenate([leaves, pairs])
            order = np.argsort(merged, kind="stable")  # symbols come before pairs of equal weight
            level = merged[order]
            levels.append(order < len(leaves))
        lengths[symbols] = 0
        taken = 2 * len(leaves) - 2
        for is_leaf in reversed(levels):
            chosen = int(is_leaf[:taken].sum())
            lengths[symbols[:chosen]] += 1
            taken = 2 * (taken - chosen)
    return torch.from_numpy(lengths).to(counts.device)


def canonical_codes(lengths: Tensor) -> Tensor:
    """Return the code of each symbol: shorter ones first, in the order of the symbols."""
    wide = lengths.long()
    order = torch.where(wide == 0, LONGEST + 1, wide).argsort(stable=True)
    share = torch.where(wide == 0, 0, 1 << (LONGEST - wide))[order]
    codes = torch.zeros_like(wide)
    codes[order] = (share.cumsum(0) - share) >> (LONGEST - wide[order])
    return torch.where(wide == 0, 0, codes)


def trim(lengths: Tensor) -> Tensor:
    """Leave out the lengths of differences beyond the largest that occurs."""
    used = lengths[len(RUNS) :].nonzero().flatten() + len(RUNS) - ZERO
    reach = int(used.abs().max()) if used.numel() else 0
    return torch.cat([lengths[: len(RUNS)], lengths[ZERO - reach : ZERO + reach + 1]])


def untrim(trimmed: Tensor) -> Tensor:
    """Undo `trim`."""
    reach = (trimmed.numel() - len(RUNS)) // 2
    lengths = trimmed.new_zeros(SYMBOLS)
    lengths[: len(RUNS)] = trimmed[: len(RUNS)]
    lengths[ZERO - reach : ZERO + reach + 1] = trimmed[len(RUNS) :]
    return lengths


def decoding_table(lengths: Tensor) -> tuple[Tensor, int]:
    """Return symbol * 256 + length for each value of the next bits, and how many bits those are."""
    wide = lengths.long()
    peek = max(1, int(wide.max()))
    symbols = torch.where(wide == 0, LONGEST + 1, wide).argsort(stable=True)
    symbols = symbols[wide[symbols] > 0]
    own = wide[symbols]
    table = (symbols * 256 + own).repeat_interleave(1 << (peek - own))
    missing = (1 << peek) - table.numel()  # the other bit of a code with one symbol only
    if missing < 0:
        raise ValueError("the code lengths make no prefix code")
    return torch.cat([table, table.new_full((missing,), ZERO * 256 + 1)]), peek


def pack_huffman(
    x: Tensor, error_bound: float, dither: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Code a tensor within a bound.

    Returns the code lengths (uint8), words (int32), the first word of each chunk, positions and
    differences (int32) of what has no symbol, and positions and values of elements that are missing
    from the grid. Positions count elements in logical order.
    """
    flat = x.detach().contiguous().flatten()
    codes, missing = to_grid(flat, error_bound, dither, seed)
    left = _by_planes(codes, list(x.shape), difference)
    has_symbol = left.abs() <= REACH
    symbols = torch.where(has_symbol, left + ZERO, 0).long()
    chunk = chunk_of(list(x.shape))
    symbols, is_coded = _cut_runs(symbols, chunk)
    lengths = code_lengths(torch.bincount(symbols[is_coded], minlength=SYMBOLS))
    words, offsets = _write_bits(symbols, is_coded, lengths, chunk)
    apart = (~has_symbol).nonzero().flatten()
    index = missing.nonzero().flatten()
    kind = index_type(flat.numel())
    return (
        trim(lengths), words, offsets.to(kind), apart.to(kind), left[apart], index.to(kind),
        flat[index],
    )  # fmt: skip


def unpack_huffman(
    lengths: Tensor,
    words: Tensor,
    offsets: Tensor,
    apart: Tensor,
    left_apart: Tensor,
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
    symbols = _read_bits(words, offsets, untrim(lengths), count, chunk_of(shape))
    left = (symbols - ZERO).to(torch.int32)
    left[apart.long()] = left_apart
    codes = _by_planes(left, shape, running_sum)
    flat = from_grid(codes, error_bound, values.dtype, dither, seed)
    flat[index.long()] = values
    return in_format(flat.view(shape), channels_last)


def _by_planes(flat: Tensor, shape: list[int], function: Callable[[Tensor, int], Tensor]) -> Tensor:
    height, width = plane_of(shape)
    padding = -flat.numel() % max(1, height * width)
    planes = torch.nn.functional.pad(flat, (0, padding)).view(-1, height, width)
    return function(planes, 2).flatten()[: flat.numel()]


def _cut_runs(symbols: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Put symbols of runs in place of zeros; return what is coded at each place, and whether."""
    place = torch.arange(symbols.numel(), device=symbols.device)
    is_zero = symbols == ZERO
    in_chunk = place % max(1, chunk)
    begins = is_zero & ((in_chunk == 0) | ~is_zero.roll(1))
    ends = is_zero & ((in_chunk == chunk - 1) | (place == len(place) - 1) | ~is_zero.roll(-1))
    size = ends.nonzero().flatten() - begins.nonzero().flatten() + 1
    run = (begins.cumsum(0) - 1)[is_zero]
    offset = (place - begins.long().mul(place).cummax(0).values)[is_zero]
    rest, symbol, coded = size[run], symbols[is_zero], torch.ones_like(run, dtype=torch.bool)
    for number in (3, 2, 1):
        covered = rest // RUNS[number] * RUNS[number]
        inside = (offset >= 0) & (offset < covered)
        symbol = torch.where(inside, number, symbol)
        coded &= ~inside | (offset % RUNS[number] == 0)
        offset = torch.where(inside, -1, offset - covered)
        rest = rest - covered
    symbols, is_coded = symbols.clone(), torch.ones_like(is_zero)
    symbols[is_zero], is_coded[is_zero] = symbol, coded
    return symbols, is_coded


def _write_bits(
    symbols: Tensor, is_coded: Tensor, lengths: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return the words of all chunks and where each chunk starts."""
    width = torch.where(is_coded, lengths.long()[symbols], 0)
    chunks = -(-symbols.numel() // max(1, chunk))
    end = width.cumsum(0)
    first = torch.arange(chunks, device=symbols.device) * chunk
    before = (end - width)[first]  # bits of earlier chunks
    bits = torch.diff(before, append=end[-1:])
    sizes = (bits + 31) // 32
    offsets = sizes.cumsum(0) - sizes
    of = torch.arange(symbols.numel(), device=symbols.device) // max(1, chunk)
    place = (end - width - before[of] + 32 * offsets[of])[is_coded]
    symbols, width = symbols[is_coded], width[is_coded]
    words = place.new_zeros(int(sizes.sum()) + 1)
    # A code begins in one word and may end in the next: 48 bits have room for it.
    moved = canonical_codes(lengths)[symbols] << (48 - place % 32 - width)
    words.scatter_add_(0, place // 32, moved >> 16)
    words.scatter_add_(0, place // 32 + 1, (moved & 0xFFFF) << 16)
    return words[:-1].to(torch.int32), offsets


def _read_bits(words: Tensor, offsets: Tensor, lengths: Tensor, count: int, chunk: int) -> Tensor:
    """Return all symbols: one of every chunk, then the next of every chunk, and so on."""
    symbols = words.new_full((count + 1,), ZERO, dtype=torch.int64)
    if count == 0:
        return symbols[:0]
    table, peek = decoding_table(lengths)
    padded = torch.cat([words, words.new_zeros(2)]).long() & 0xFFFFFFFF
    place = 32 * offsets.long()
    at = torch.arange(offsets.numel(), device=words.device) * chunk
    last = (at + chunk).clamp(max=count)
    sizes = torch.ones(SYMBOLS, dtype=torch.int64, device=words.device)
    sizes[: len(RUNS)] = torch.tensor(RUNS, device=words.device)
    while bool((at < last).any()):
        is_open = at < last
        word = torch.where(is_open, place // 32, 0).clamp(max=words.numel())
        window = ((padded[word] << 16) | (padded[word + 1] >> 16)) >> (48 - place % 32 - peek)
        found = table[window & ((1 << peek) - 1)]
        symbol = found >> 8
        is_single = is_open & (sizes[symbol] == 1)
        symbols[torch.where(is_single, at, count)] = symbol
        at = at + torch.where(is_open, sizes[symbol], 0)
        place = place + torch.where(is_open, found & 255, 0)
    ends = torch.cat([offsets.long()[1:], offsets.new_tensor([words.numel()]).long()])
    if bool(((place + 31) // 32 != ends).any()) or bool((at != last).any()):
        check_words(int(place[-1] + 31) // 32, words)
        raise ValueError("the payload of a chunk is not as long as its offsets say")
    return symbols[:count]
