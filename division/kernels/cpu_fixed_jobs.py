"""How a tensor is cut into jobs of whole blocks, and how a job's elements are fetched and stored.

A job is a run of a contiguous tensor or, with `lanes` > 0, some channels of one sample of a
channels_last tensor; either way its elements follow each other in logical order.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-arg"

from division.kernels.cpu_common import FLOAT, narrow, widen
from division.kernels.cpu_compile import inlined
from division.kernels.cpu_copies import from_slab, to_slab

RUN = 32768  # elements of a job of a contiguous tensor
_PART = 1024  # elements that are coded at a time: their integers stay in the first-level cache


@inlined
def part_size():
    """Return how many elements are coded at a time."""
    return _PART


@inlined
def job_of(job, channels, size, count, lanes):
    """Return the first element of a job and how many it has."""
    if lanes == 0:
        return job * RUN, min(RUN, count - job * RUN)
    groups = (channels + lanes - 1) // lanes
    sample, group = job // groups, job % groups
    first = group * lanes
    return (sample * channels + first) * size, min(lanes, channels - first) * size


@inlined
def scratch_size(channels, size, lanes):
    """Return how many elements a job has at most."""
    return RUN if lanes == 0 else min(lanes, channels) * size


@inlined
def fetch(x, shorts, job, channels, size, count, lanes, kind, slab, out):
    """Copy the elements of a job to `out`, in logical order, as fp32."""
    first, number = job_of(job, channels, size, count, lanes)
    if lanes == 0:
        if kind == FLOAT:
            out[:number] = x[first : first + number]
        else:
            widen(shorts, first, out, 0, number, kind)
        return
    groups, used = (channels + lanes - 1) // lanes, number // size
    start = job // groups * channels * size + job % groups * lanes
    if kind == FLOAT:
        from_slab(x[start:], channels, out, 0, size, 1, used, size)
    else:
        for p in range(size):
            widen(shorts, start + p * channels, slab, p * used, used, kind)
        from_slab(slab, used, out, 0, size, 1, used, size)


@inlined
def deliver(values, job, channels, size, count, lanes, kind, slab, x, shorts):
    """Copy the elements of a job to where they belong, rounded to their type."""
    first, number = job_of(job, channels, size, count, lanes)
    if lanes == 0:
        if kind == FLOAT:
            x[first : first + number] = values[:number]
        else:
            narrow(values, 0, shorts, first, number, kind)
        return
    groups, used = (channels + lanes - 1) // lanes, number // size
    start = job // groups * channels * size + job % groups * lanes
    if kind == FLOAT:
        to_slab(values, 0, size, 1, x[start:], channels, used, size)
    else:
        to_slab(values, 0, size, 1, slab, used, used, size)
        for p in range(size):
            narrow(slab, p * used, shorts, start + p * channels, used, kind)
