"""The GPU kernels on masks and window indices, interpreted, give the definition's bytes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import DTYPES, GEOMETRY, assert_same

import division
from division import bits as bitpack
from division import kernels, windows
from division.kernels import gpu

FEW = settings(deadline=None, derandomize=True, max_examples=60)


@FEW
@given(
    count=st.sampled_from((0, 1, 7, 8, 9, 63, 511, 512, 513, 8192)) | st.integers(0, 20000),
    dtype=st.sampled_from((*DTYPES, torch.bool, torch.uint8, torch.float64)),
    bounds=st.sampled_from(
        ((0.0, torch.nan), (-1.0, 1.0), (0.1, 0.3), (torch.nan, torch.nan), (0.0, 6.0))
    ),
    values=st.sampled_from(((0.0, 1.0), (0.01, 1.0), (0.0, 1 / 0.9), (-torch.inf, torch.nan))),
    out_dtype=st.sampled_from((*DTYPES, torch.float64, torch.uint8)),
)
def test_masks_are_the_definitions_bytes(count, dtype, bounds, values, out_dtype):
    x = torch.randn(count).mul(8).round().div(10)  # ties with the bounds
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])[:count]
    x[: len(special)] = special if dtype.is_floating_point else 1.0
    x = (x if dtype.is_floating_point else x.abs()).to(dtype)
    packed = bitpack.pack_mask(x, *bounds)
    assert_same(gpu.pack_mask(x, *bounds), packed)
    if out_dtype == torch.uint8:
        values = (0.0, 1.0)
    expected = bitpack.unpack_mask(packed, count, *values, out_dtype)
    assert_same(gpu.unpack_mask(packed, count, *values, out_dtype), expected)


@FEW
@given(
    ndim=st.integers(1, 3),
    size=st.tuples(*[st.integers(13, 24)] * 3),
    axes=st.tuples(GEOMETRY, GEOMETRY, GEOMETRY),
    c=st.sampled_from((1, 3, 20)),
    layout=st.sampled_from(("contiguous", "last", "one plane", "one plane, last", "strided")),
)
def test_window_indices_are_the_definitions_bytes(ndim, size, axes, c, layout):
    size = size[:ndim]
    kernel, stride, padding, dilation = map(list, zip(*axes[:ndim], strict=True))
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[ndim - 1]
    x = torch.randn(2, c, *size)
    _, index = pool(x, kernel, stride, padding, dilation, return_indices=True)
    if layout.startswith("one plane"):
        index = index[0]
    if layout.endswith("last"):
        index = index.movedim(-ndim - 1, -1).contiguous().movedim(-1, -ndim - 1)
    if layout == "strided":
        index = index.repeat_interleave(2, 1)[:, ::2]
    geometry = (list(size), kernel, stride, padding, dilation)
    packed = windows.pack_window_index(index, *geometry)
    assert_same(gpu.pack_window_index(index, *geometry), packed)
    unpacked = gpu.unpack_window_index(packed, *geometry)
    assert_same(unpacked, windows.unpack_window_index(packed, *geometry))
    assert torch.equal(unpacked, index)


def test_results_have_no_graph():
    x = torch.randn(100, requires_grad=True)
    assert not gpu.pack_mask(x, 0.0, 1.0).requires_grad
    with torch.inference_mode():
        inferred = gpu.pack_mask(x + 0, 0.0, 1.0)
    assert torch.equal(inferred, gpu.pack_mask(x, 0.0, 1.0))


def test_planes_of_more_positions_than_32_bits_count():
    """Positions beyond 2**31 in one plane: 64-bit arithmetic, chosen by the size."""
    geometry = ([1, 2**32], [1, 3], [1, 2**29], [0, 0], [1, 1])
    packed = torch.randint(0, 3, (1, 1, 1, 7)).to(torch.uint8)
    index = windows.unpack_window_index(packed, *geometry)
    assert int(index.max()) > 2**31
    assert_same(gpu.unpack_window_index(packed, *geometry), index)
    assert_same(gpu.pack_window_index(index, *geometry), packed)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [F.relu, F.leaky_relu])
def test_a_backward_takes_bytes_for_a_result(layer, dtype, in_place):
    """What ReLU saves may come back as bytes: a quarter of what its backward reads of fp32."""
    x = torch.randn(3, 5, 40, 40).to(dtype).requires_grad_()
    gradient = torch.randn(3, 5, 40, 40).to(dtype)
    (expected,) = torch.autograd.grad(layer(x * 1, inplace=in_place), x, gradient)
    with kernels.use("gpu"):
        with division.capture("division"):
            y = layer(x * 1, inplace=in_place)
        saves_result = "_saved_result" in dir(y.grad_fn)
        saved = y.grad_fn._saved_result if saves_result else y.grad_fn._saved_self
        assert saved.dtype == (torch.uint8 if saves_result else dtype)
        (found,) = torch.autograd.grad(y, x, gradient)
    assert_same(found, expected)
