"""The split: block means against torch's pooling, alignment, what is not finite."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from division import frequency


def test_area_blocks_average_exactly_what_they_cover() -> None:
    x = torch.randn(2, 3, 28, 13)
    means = frequency.block_means(x, 3, 1, window=0).float()
    covered = torch.arange(28) * 3 // 28
    for block in range(3):
        expected = x[:, :, covered == block].mean((2, 3))
        assert torch.allclose(means[:, :, block, 0], expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 24), (32, 32)])
def test_the_two_alignments_agree_where_the_block_divides_the_map(height: int, width: int) -> None:
    x = torch.randn(2, 3, height, width)
    area = frequency.split_maps(x, 2, height // 8, width // 8, 0, seed=1)
    published = frequency.split_maps(x, 2, height // 8, width // 8, 8, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(area, published, strict=True))


def test_published_alignment_is_floor_pooling_stretched() -> None:
    """At 14 pixels the top-left corner stands for the whole map, as in the authors' release."""
    x = torch.randn(2, 3, 28, 14)
    means = frequency.block_means(x, 3, 1, window=8)
    assert torch.allclose(means.float(), F.avg_pool2d(x, 8), rtol=2**-8, atol=1e-3)
    stretched = frequency.spread(means.float(), 28, 14)
    assert torch.equal(stretched, F.interpolate(means.float(), size=(28, 14), mode="nearest"))


def test_upsampling_is_nearest_neighbour_for_every_size() -> None:
    for size in range(1, 200):
        blocks = max(1, size // 8)
        row = torch.arange(blocks).float().view(1, 1, 1, -1)
        expected = F.interpolate(row, size=(1, size), mode="nearest")
        assert torch.equal(frequency.spread(row, 1, size), expected)
        starts = frequency.block_starts(size, blocks)
        assert starts[0] == 0
        assert starts[-1] == size
        assert max(b - a for a, b in pairwise(starts)) < 16


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_map_with_a_bad_element_comes_back_bad(bad: float, rows: int) -> None:
    x = torch.randn(2, 2, 16, 16)
    x[0, 1, 3, 4] = bad
    parts = frequency.split_maps(x, 2, rows, rows, 0, seed=1)
    y = frequency.merge_maps(*parts, 2, 16, 16, torch.float32, False)
    assert bool(y[0, 1].isnan().all())
    assert bool(y[0, 0].isfinite().all())
    assert bool(y[1].isfinite().all())


def test_zeros_and_constants_come_back() -> None:
    x = torch.zeros(1, 3, 16, 16)
    x[:, 1] = 1.0
    x[:, 2] = -2.5
    parts = frequency.split_maps(x, 2, 2, 2, 0, seed=1)
    y = frequency.merge_maps(*parts, 2, 16, 16, torch.float32, False)
    assert torch.equal(x, y)
