"""Tensors of more than 2**31 elements: programs at both ends touch what is theirs, nothing else.

No such tensor exists here. Kernels are interpreted over addresses alone: what is loaded is zero,
what is stored is dropped, and every address is held against the tensor it should lie in.
"""

import numpy as np
import pytest
import torch
from gpu_cases import empty
from triton import language as tl
from triton.runtime import interpreter, jit
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, interpreter_builder

from division.kernels import gpu
from division.kernels.gpu_launch import Launch, recording


def touched(call: Launch, program: int) -> list[tuple[int, int]]:
    """Run one program; return first and last byte that it touches of every tensor."""
    pages: list[list[np.ndarray]] = [[] for _ in call.tensors]

    def note(pointers, mask) -> None:
        mask = np.broadcast_to(mask.data, pointers.data.shape)
        width = max(8, pointers.get_element_ty().primitive_bitwidth) // 8
        found = pointers.data[mask]
        for i, page in enumerate(pages):
            inside = found[(found >> np.uint64(48)) == i + 1].astype(np.int64) - ((i + 1) << 48)
            page += [inside - BEFORE, inside - BEFORE + width - 1]

    def load(self, pointers, mask, *rest):
        note(pointers, mask)
        kind = pointers.get_element_ty()
        zeros = np.zeros(pointers.data.shape, interpreter._get_np_dtype(kind))
        return TensorHandle(zeros, kind)

    def store(self, pointers, value, mask, *rest):
        note(pointers, mask)

    arguments = {}
    given = (*call.tensors, *call.settings)
    for i, (name, value) in enumerate(zip(call.kernel.arg_names, given, strict=False)):
        if isinstance(value, torch.Tensor):
            kind = tl.str_to_ty(jit.mangle_type(value), None)
            address = np.array([((i + 1) << 48) + BEFORE], dtype=np.uint64)
            arguments[name] = tl.tensor(TensorHandle(address, kind), kind)
        else:
            arguments[name] = interpreter._implicit_cvt(value)
    function = call.kernel.rewrite()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", load)
        patch.setattr(InterpreterBuilder, "create_masked_store", store)
        scope = interpreter._patch_lang(function)
        interpreter_builder.set_grid_dim(call.programs, 1, 1)
        interpreter_builder.set_grid_idx(program, 0, 0)
        try:
            with np.errstate(all="ignore"):
                function(**arguments, **call.constants)
        finally:
            scope.restore()
    ends = [np.concatenate(page) if page else np.array([], int) for page in pages]
    return [(int(end.min()), int(end.max())) if end.size else (0, -1) for end in ends]


BEFORE = 1 << 40  # room below a tensor, so that what is too low by 2**32 elements shows


def check(call: Launch, whole: tuple[int, ...]) -> None:
    """The first program begins every tensor in `whole`, the last ends it; none leaves one."""
    sizes = [tensor.untyped_storage().nbytes() for tensor in call.tensors]
    assert max(tensor.numel() for tensor in call.tensors) > 2**31
    first, last = (touched(call, program) for program in (0, call.programs - 1))
    for low, high in (*zip(first, sizes, strict=True), *zip(last, sizes, strict=True)):
        assert low[0] >= 0
        assert low[1] < high
    for i in whole:
        assert first[i][0] == 0
        assert last[i][1] == sizes[i] - 1


@pytest.mark.parametrize(
    ("size", "channels_last"), [(16, False), (16, True), (72, False), (40, True)]
)
def test_maps(size, channels_last):
    """On chip, and streamed; an odd number of channels, so that the last tile is not full."""
    n = 2**31 // (1001 * size * size) + 2
    x = empty((n, 1001, size, size), torch.bfloat16, channels_last)
    with recording() as calls:
        parts = gpu.split_maps(x, 2, size // 8, size // 8, 0, 1)
        gpu.merge_maps(*parts, 2, size, size, torch.float16, channels_last)
        channels, mask = empty((1001,), torch.float32), empty((-(-x.numel() // 8),), torch.uint8)
        kind = (2, size, size, torch.float16, channels_last)
        gpu.merge_maps_affine(*parts, *kind, channels, channels, mask)
    split, merge, finish = calls
    check(split, whole=(0, 1, 2, 3, 4))
    check(merge, whole=(0, 1, 2, 3, 7))
    check(finish, whole=(0, 1, 2, 3, 6, 7))


def test_maps_with_their_mask():
    x = empty((2**31 // (1001 * 256) + 2, 1001, 16, 16), torch.bfloat16)
    with recording() as calls:
        gpu.split_maps_masked(x, 2, 2, 2, 1, 0.0, torch.nan)
    check(calls[0], whole=(0, 1, 2, 3, 4, 5))


def test_one_sample_may_be_that_large():
    x = empty((1, 2**26 + 5, 1, 40), torch.float32).transpose(1, 3).contiguous().transpose(1, 3)
    x = x.as_strided(x.shape, (x.numel(), 1, 40 * x.shape[1], x.shape[1]))
    with recording() as calls:
        parts = gpu.split_maps(x, 4, 0, 0, 0, 1)
        gpu.merge_maps(*parts, 4, 1, 40, torch.float32, True)
    split, merge = calls
    assert split.constants["LAST"] == merge.constants["LAST"] == 1
    check(split, whole=(0, 2, 3, 4))
    check(merge, whole=(1, 2, 3, 7))


def test_one_map_may_be_that_large():
    """Rebuilt only: one program would have to walk through all of it to compress it."""
    low = empty((1, 3, 0, 0), torch.bfloat16)
    codes = empty((1, 3, 2**29 + 9), torch.uint8)
    metadata = empty((1, 3), torch.bfloat16)
    with recording() as calls:
        gpu.merge_maps(low, codes, metadata, metadata, 2, 1, 2**31 + 36, torch.half, False)
    check(calls[0], whole=(1, 2, 3, 7))


def test_masks_and_windows():
    count = 2**32 + 12345
    with recording() as calls:
        gpu.unpack_mask(
            gpu.pack_mask(empty((count,), torch.bool), 0.0, 1.0), count, 0, 1, torch.half
        )
        geometry = ([4, 4], [2, 2], [2, 2], [0, 0], [1, 1])
        index = empty((count // 4096, 1024, 2, 2), torch.int64)
        gpu.unpack_window_index(gpu.pack_window_index(index, *geometry), *geometry)
    for call in calls:
        check(call, whole=(0, 1))


@pytest.mark.parametrize("shape", [(3, 1, 2**31 + 7), (2, 2**16 + 1, 2**15), (70000, 33, 1000)])
def test_samples(shape):
    x, bits = empty(shape, torch.bfloat16), empty(shape[:1], torch.uint8)
    with recording() as calls:
        edges = gpu.group_ranges(x, 256)
        parts = gpu.split_samples(x, bits, 2 * shape[0], 256, 1, *edges)
        gpu.merge_samples(parts[0], bits, *parts[1:], *shape[1:], 256, torch.half, False)
    ranges, split, merge = calls
    check(ranges, whole=(0, 1, 2))
    check(split, whole=(0, 3, 4, 6, 7))
    check(merge, whole=(3, 4, 5))


def test_coding():
    count = 2**31 + 77
    x = empty((count,), torch.half)
    blocks = -(-count // 32)
    host = gpu.module("gpu_fixed_host")
    kernels, options = gpu.module("gpu_fixed"), host._options(x.dtype, False, count, True)
    programs = -(-blocks // host.BLOCKS)
    assert options["WIDE"] == 1
    headers, counts = empty((blocks,), torch.uint8), empty((programs, 2), torch.int64)
    numbers = (1.0, 1.0, 0.5, 65504.0, host._bits_of(0.5), 3, 4)
    tensors = (x, headers, counts)
    call = Launch(kernels.measure_blocks, programs, tensors, (count, 1, 1, *numbers), 4, options)
    check(call, whole=(0, 1))
    tensors = (headers, counts[:, 0].contiguous(), empty((9,), torch.int32), x)
    settings = (count, 1, 1, 9, 1.0, 3, 4)
    check(Launch(kernels.read_blocks, programs, tensors, settings, 4, options), whole=(0, 1, 3))
