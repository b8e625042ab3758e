"""Copies between tensors and slabs: any layout, any element kind."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

from division.kernels.cpu_common import FLOAT, from_bf16, narrow, widen
from division.kernels.cpu_compile import inlined
from division.kernels.cpu_tiles import LANES
from division.kernels.cpu_transpose import transpose_tile


@inlined
def copy(source, start, lane_step, step, out, out_start, out_lane_step, out_step, count, used):
    """Copy `count` rows of `used` lanes, in whatever order either side keeps them."""
    for row in range(count):
        for lane in range(used):
            out[out_start + row * out_step + lane * out_lane_step] = source[
                start + row * step + lane * lane_step
            ]


@inlined
def _tiled(used, size):
    """Return how many of the lanes are copied by whole tiles."""
    return used // LANES * LANES if size >= LANES else 0


@inlined
def to_slab(maps, start, lane_step, step, slab, lanes, used, count):
    """Copy `count` elements of each map into (count, lanes), by tiles where there are whole ones.

    The last tile of a map ends with it.
    """
    tiled = _tiled(used, count) if lane_step != 1 else 0
    for lane in range(0, tiled, LANES):
        for tile in range(0, count, LANES):
            p = min(tile, count - LANES)
            at = start + lane * lane_step + p
            transpose_tile(maps, at, lane_step, slab, p * lanes + lane, lanes)
    start += tiled * lane_step
    copy(maps, start, lane_step, step, slab, tiled, 1, lanes, count, used - tiled)


@inlined
def from_slab(slab, lanes, maps, start, lane_step, step, used, count):
    """Copy (count, lanes) to where the maps are."""
    tiled = _tiled(used, count) if lane_step != 1 else 0
    for lane in range(0, tiled, LANES):
        for tile in range(0, count, LANES):
            p = min(tile, count - LANES)
            at = start + lane * lane_step + p
            transpose_tile(slab, p * lanes + lane, lanes, maps, at, lane_step)
    start += tiled * lane_step
    copy(slab, tiled, 1, lanes, maps, start, lane_step, step, count, used - tiled)


@inlined
def lanes_of(group, groups, channels, channels_last):
    """Return the channels [first, last) of a group: equal shares, or whole tiles."""
    if channels_last:
        return group * channels // groups, (group + 1) * channels // groups
    share = (channels + groups - 1) // groups
    share = (share + LANES - 1) // LANES * LANES
    return group * share, min((group + 1) * share, channels)


@inlined
def gather(x, shorts, start, lane_step, step, size, used, kind, wide, slab, lanes):
    """Copy a slab of `used` maps to (size, lanes) fp32; `wide` has room for maps in a row."""
    if lane_step != 1:
        source, at = x, start
        if kind != FLOAT:
            widen(shorts, start, wide, 0, used * size, kind)
            source, at = wide, 0
        to_slab(source, at, lane_step, step, slab, lanes, used, size)
    elif kind == FLOAT:
        copy(x, start, 1, step, slab, 0, 1, lanes, size, used)
    else:
        for p in range(size):
            widen(shorts, start + p * step, slab, p * lanes, used, kind)


@inlined
def scatter(slab, lanes, x, shorts, start, lane_step, step, size, used, kind, wide):
    """Copy a slab (size, lanes) fp32 to where its `used` maps belong."""
    if lane_step != 1:
        if kind == FLOAT:
            from_slab(slab, lanes, x, start, lane_step, step, used, size)
        else:
            from_slab(slab, lanes, wide, 0, lane_step, step, used, size)
            narrow(wide, 0, shorts, start, used * size, kind)
    elif kind == FLOAT:
        copy(slab, 0, 1, lanes, x, start, 1, step, size, used)
    else:
        for p in range(size):
            narrow(slab, p * lanes, shorts, start + p * step, used, kind)


@inlined
def fill_base(means, offsets, blocks, lanes, base):
    """Store mean + offset as (blocks, lanes), or the offset alone where there are no means."""
    for i in range(offsets.shape[0]):
        offset = from_bf16(offsets[i])
        if blocks == 0:
            base[i] = offset
        for b in range(blocks):
            base[b * lanes + i] = from_bf16(means[b * lanes + i]) + offset
