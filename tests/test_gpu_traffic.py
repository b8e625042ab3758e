"""The bytes that kernels move: what arithmetic says is what the interpreter counts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_kernels import maps
from triton.runtime.interpreter import InterpreterBuilder

from division import frequency, samples
from division.kernels import gpu, gpu_traffic
from division.kernels.gpu_traffic import Traffic


@dataclass
class Counted:
    """Bytes of all loads and stores that were not masked."""

    asked: int = 0
    written: int = 0
    loaded: list[np.ndarray] = field(default_factory=list)
    stored: list[np.ndarray] = field(default_factory=list)

    def distinct(self, places: list[np.ndarray]) -> int:
        """Bytes of different addresses."""
        together = np.concatenate(places)
        return len(np.unique(together))


@contextmanager
def counting() -> Iterator[Counted]:
    found = Counted()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def bytes_at(pointers, mask) -> np.ndarray:
        width = max(8, pointers.get_element_ty().primitive_bitwidth) // 8
        mask = np.broadcast_to(mask.data, pointers.data.shape)
        first = pointers.data[mask].astype(np.int64)
        return (first[:, None] + np.arange(width)).ravel()

    def counted_load(self, pointers, mask, *rest):
        found.loaded.append(bytes_at(pointers, mask))
        found.asked += found.loaded[-1].size
        return load(self, pointers, mask, *rest)

    def counted_store(self, pointers, value, mask, *rest):
        found.stored.append(bytes_at(pointers, mask))
        found.written += found.stored[-1].size
        return store(self, pointers, value, mask, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", counted_store)
        yield found


def assert_counted(found: Counted, said: Traffic, passes: int = 1) -> None:
    """Nothing is stored twice; what is asked for is read or near; what is read is new."""
    assert (found.asked, found.written) == (said.read + said.near, said.written)
    assert found.distinct(found.stored) == found.written
    if passes == 1:
        assert found.distinct(found.loaded) == said.read


SHAPES = {  # shape, rows and columns of blocks, bits, channels last: read once or twice
    "on chip": ((2, 5, 16, 16), (2, 2), 2, False, 1),
    "on chip, without means": ((3, 7, 1, 256), (0, 0), 4, False, 1),
    "on chip, ragged": ((2, 3, 14, 9), (1, 1), 3, False, 1),
    "on chip, channels last": ((2, 9, 28, 28), (3, 3), 2, True, 1),
    "streamed nearby": ((1, 2, 70, 66), (8, 8), 2, False, 1),
    "streamed nearby, three planes": ((1, 2, 1, 4500), (1, 70), 7, False, 1),
    "streamed": ((1, 2, 132, 130), (16, 16), 2, False, 2),
    "streamed, three planes": ((1, 1, 1, 17000), (1, 265), 7, False, 2),
    "streamed, channels last": ((1, 9, 40, 40), (5, 5), 2, True, 2),
    "groups": ((1, 9, 1, 64), (1, 1), 2, False, 2),
}


@pytest.mark.parametrize("name", SHAPES)
def test_maps(name):
    shape, blocks, bits, last, passes = SHAPES[name]
    x = maps(shape, "normal", torch.float32, last)
    with counting() as found:
        parts = gpu.split_maps(x, bits, *blocks, 0, 1)
    said = gpu_traffic.split_maps(x.shape, bits, *blocks, x.dtype, last)
    again = 2 if "streamed" in name else passes  # the means, and elements that a cache has
    assert_counted(found, said, again)
    assert said.read == passes * x.nbytes
    assert said.written == sum(part.nbytes for part in parts)
    with counting() as found:
        gpu.merge_maps(*parts, bits, *shape[2:], torch.bfloat16, frequency.is_channels_last(x))
    said = gpu_traffic.merge_maps(x.shape, bits, *blocks, torch.bfloat16, last)
    assert_counted(found, said)
    assert said.read == sum(part.nbytes for part in parts)
    assert said.written == x.nbytes // 2


@pytest.mark.parametrize(
    ("shape", "blocks", "passes"),
    [((3, 5, 28, 28), (3, 3), 1), ((1, 3, 56, 56), (7, 7), 1), ((2, 1, 70, 66), (8, 8), 2)],
)
def test_maps_with_their_mask(shape, blocks, passes):
    """On chip the mask costs no read; else it has a pass of its own."""
    x = maps(shape, "normal", torch.float32, False)
    with counting() as found:
        *parts, mask = gpu.split_maps_masked(x, 2, *blocks, 1, 0.0, torch.nan)
    said = gpu_traffic.split_maps_masked(x.shape, 2, *blocks, x.dtype)
    assert_counted(found, said, passes)
    assert said.read == passes * x.nbytes
    assert said.written == mask.nbytes + sum(part.nbytes for part in parts)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "name", ["on chip", "on chip, ragged", "on chip, channels last", "streamed"]
)
def test_maps_that_are_finished(name, masked):
    """The scale, the shift and the mask are read once, and nothing more is written."""
    shape, blocks, bits, last, _ = SHAPES[name]
    x = maps(shape, "normal", torch.float32, last)
    parts = frequency.split_maps(x, bits, *blocks, 0, 1)
    finish = [torch.randn(shape[1]), torch.randn(shape[1])]
    mask = gpu.pack_mask(torch.randn(x.numel()), 0.0, torch.nan) if masked else None
    with counting() as found:
        gpu.merge_maps_affine(*parts, bits, *shape[2:], torch.bfloat16, last, *finish, mask)
    said = gpu_traffic.merge_maps_affine(x.shape, bits, *blocks, torch.bfloat16, last, masked)
    assert_counted(found, said)
    packed = sum(part.nbytes for part in (*parts, *finish)) + (mask.nbytes if masked else 0)
    assert (said.read, said.written) == (packed, x.nbytes // 2)


@pytest.mark.parametrize("count", [1, 500, 512, 10_000])
def test_masks(count):
    x = torch.randn(count).half()
    with counting() as found:
        packed = gpu.pack_mask(x, 0.0, 1.0)
    assert_counted(found, gpu_traffic.pack_mask(count, x.dtype))
    assert found.asked + found.written == x.nbytes + packed.nbytes
    with counting() as found:
        gpu.unpack_mask(packed, count, 0.0, 1.0, torch.float32)
    assert_counted(found, gpu_traffic.unpack_mask(count, torch.float32))
    assert found.asked + found.written == packed.nbytes + 4 * count


def test_window_indices():
    _, index = F.max_pool2d(torch.randn(2, 3, 20, 20), 2, return_indices=True)
    geometry = ([20, 20], [2, 2], [2, 2], [0, 0], [1, 1])
    with counting() as found:
        packed = gpu.pack_window_index(index, *geometry)
    assert_counted(found, gpu_traffic.pack_window_index(index.numel()))
    with counting() as found:
        gpu.unpack_window_index(packed, *geometry)
    assert_counted(found, gpu_traffic.unpack_window_index(index.numel()))


@pytest.mark.parametrize("positions", [70, 1000])
def test_samples(positions):
    x = torch.randn(3, 5, positions)
    size, bits = 5 * positions, torch.tensor([1, 7, 2], dtype=torch.uint8)
    with counting() as found:
        edges = gpu.group_ranges(x, 256)
    assert_counted(found, gpu_traffic.group_ranges(3, size, 256, x.dtype))
    for known in (edges, (None, None)):
        with counting() as found:
            codes, *grids = gpu.split_samples(x, bits, 10, 256, 1, *known)
        is_known = known[0] is not None
        said = gpu_traffic.split_samples(3, size, 10, 256, x.dtype, is_known)
        assert_counted(found, said)
    assert found.written == codes.nbytes + sum(grid.nbytes for grid in grids)
    with counting() as found:
        gpu.merge_samples(codes, bits, *grids, 5, positions, 256, x.dtype, samples.is_transposed(x))
    assert_counted(found, gpu_traffic.merge_samples(3, size, 10, 256, x.dtype))


def test_error_bounded_coding():
    x = torch.randn(2, 3, 41, 40)
    x[0, 0, 0, :3] = torch.inf
    with counting() as found:
        parts = gpu.pack_bounded(x, 0.01, False, 0)
    _, words, index, _ = parts
    assert index.numel() == 3
    said = gpu_traffic.pack_bounded(x.numel(), x.dtype, words.numel(), index.numel())
    assert_counted(found, said, passes=2)
    with counting() as found:
        gpu.unpack_bounded(*parts, list(x.shape), False, 0.01, False, 0)
    assert_counted(found, gpu_traffic.unpack_bounded(x.numel(), x.dtype, words.numel()), passes=2)


def test_every_operator_is_counted():
    counted = {name for name in gpu.KERNELS if hasattr(gpu_traffic, name)}
    same_kernel = {"merge_maps_into"}  # as merge_maps
    assert counted == gpu.KERNELS.keys() - same_kernel
