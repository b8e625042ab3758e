"""What is done to maps while they are still in the cache: a scale and a shift a channel, a mask."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

from division.bits import MASK_BLOCK
from division.kernels.cpu_common import bytes_at, f32, floats_at, u8
from division.kernels.cpu_compile import inlined

_BYTES = MASK_BLOCK // 8


@inlined
def _mask_piece(mask, place, count, values):
    """Zero what the mask excludes, up to the next multiple of 64; return how many were seen."""
    block, inner = place // MASK_BLOCK, place % MASK_BLOCK
    slot, first = inner // _BYTES, inner % _BYTES
    room = min(_BYTES - first, values.shape[0])
    if (block + 1) * MASK_BLOCK <= count:
        packed = mask[block * _BYTES + first : block * _BYTES + first + room]
        for k in range(room):
            is_set = (packed[k] >> u8(slot)) & u8(1)
            values[k] = values[k] if is_set else f32(0)
    else:  # the last block is not full: its bits lie closer together
        stride = (count - block * MASK_BLOCK + 7) // 8
        for k in range(room):
            byte = mask[block * _BYTES + (inner + k) % stride]
            is_set = (byte >> u8((inner + k) // stride)) & u8(1)
            values[k] = values[k] if is_set else f32(0)
    return room


@inlined
def _mask_run(mask, place, count, values):
    """Zero what the mask excludes of the elements from `place` on."""
    done = 0
    while done < values.shape[0]:
        done += _mask_piece(mask, place + done, count, values[done:])


@inlined
def finish_map(out, start, size, channel, finish):
    """Finish one contiguous map."""
    factor_address, term_address, mask_address, count, channels = finish
    factor = floats_at(factor_address, channels)[channel]
    term = floats_at(term_address, channels)[channel]
    values = out[start : start + size]
    for i in range(size):
        values[i] = values[i] * factor + term
    if mask_address != 0:
        _mask_run(bytes_at(mask_address, (count + 7) // 8), start, count, values)


@inlined
def finish_slab(out, start, step, size, first, used, finish):
    """Finish a slab whose lanes are the channels from `first` on, positions `step` apart."""
    factor_address, term_address, mask_address, count, channels = finish
    factors = floats_at(factor_address, channels)[first : first + used]
    terms = floats_at(term_address, channels)[first : first + used]
    for position in range(size):
        place = start + position * step
        values = out[place : place + used]
        for lane in range(used):
            values[lane] = values[lane] * factors[lane] + terms[lane]
        if mask_address != 0:
            _mask_run(bytes_at(mask_address, (count + 7) // 8), place, count, values)
