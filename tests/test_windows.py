"""Max-pooling indices: a byte gives the stock index back, for any geometry."""

import pytest
import torch
from torch.nn import functional as F

from division import windows

CASES = [
    # size, kernel, stride, padding, dilation
    ((12, 9), (2, 2), (2, 2), (0, 0), (1, 1)),
    ((12, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((15, 14), (3, 2), (1, 2), (1, 1), (2, 3)),
    ((6, 7, 8), (2, 3, 2), (1, 2, 2), (1, 1, 0), (1, 1, 2)),
]


@pytest.mark.parametrize("case", CASES)
def test_index_survives(case: tuple[tuple[int, ...], ...]) -> None:
    size, kernel, stride, padding, dilation = case
    pool = F.max_pool2d if len(size) == 2 else F.max_pool3d
    x = torch.randn(2, 3, *size)
    _, index = pool(x, kernel, stride, padding, dilation, return_indices=True)
    geometry = [list(part) for part in case]
    packed = windows.pack_window_index(index, *geometry)
    assert packed.dtype == torch.uint8
    assert torch.equal(windows.unpack_window_index(packed, *geometry), index)
