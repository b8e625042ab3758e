"""A sample in NCHW order, the ranges of its groups, and where its codes are.

Where the channel is the fastest dimension, or the elements are half floats, a sample is first
copied to fp32 in NCHW order: the groups are then the same code for every layout and element type.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

import numpy as np

from division.kernels.cpu_common import FLOAT, f32, widen
from division.kernels.cpu_compile import inlined
from division.kernels.cpu_copies import from_slab
from division.kernels.cpu_means import range_of
from division.kernels.cpu_vectors import block_poison

SHORTEST_SEGMENT = 8  # positions from which a pass over segments beats a transposition


@inlined
def room(size, is_needed):
    """Return room for a sample, or next to none."""
    return np.empty(size if is_needed else 1, f32)


@inlined
def load_sample(x, shorts, n, channels, positions, kind, transposed, wide, flat):
    """Return an fp32 array and where in it sample n begins, in NCHW order."""
    size = channels * positions
    source, start = x, n * size
    if kind != FLOAT:
        widen(shorts, start, wide, 0, size, kind)
        source, start = wide, 0
    if transposed:
        slab = source[start : start + size]
        from_slab(slab, channels, flat, 0, positions, 1, channels, positions)
        source, start = flat, 0
    return source, start


@inlined
def range_of_group(x):
    """Return minimum and maximum of a group, NaN where an element is not finite."""
    low, high, bad = range_of(x, x)
    if bad:
        return f32(np.nan), f32(np.nan)
    return f32(low + f32(0.0)), f32(high + f32(0.0))


@inlined
def common_segment(positions, group):
    """Return the longest length of which both a channel and a group are a multiple."""
    a, b = positions, group
    while b:
        a, b = b, a % b
    return a


@inlined
def ranges_by_lanes(x, start, channels, positions, segment, group, work, lows, highs):
    """Store the ranges of the groups of a sample whose channels lie side by side."""
    poison, low, high = work
    lows[:], highs[:] = f32(np.inf), f32(-np.inf)
    for first in range(0, positions, segment):
        corner = start + first * channels
        block_poison(x, corner, channels, 1, segment, 1, channels, poison, low, high)
        for c in range(channels):
            g = (c * positions + first) // group
            if poison[c] != poison[c]:
                lows[g], highs[g] = f32(np.nan), f32(np.nan)
            # A NaN in there stays: no comparison with it is true.
            lows[g] = low[c] if low[c] < lows[g] else lows[g]
            highs[g] = high[c] if high[c] > highs[g] else highs[g]
    for g in range(lows.shape[0]):
        lows[g], highs[g] = f32(lows[g] + f32(0.0)), f32(highs[g] + f32(0.0))


@inlined
def bytes_before(bits, n, size):
    """Return where the codes of sample n begin."""
    total = np.int64(0)
    for i in range(n):
        total += np.int64(bits[i])
    return total * ((size + 7) // 8)
