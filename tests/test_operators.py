"""The kernels as torch operators: schemas, fakes and real results agree; backends can be forced."""

import os
import warnings

import pytest
import torch

import division
from division import kernels
from division.kernels import cpu, dispatch

OPS = torch.ops.division


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("bits", [2, 3])
def test_split_and_merge_pass_opcheck(layout: torch.memory_format, bits: int, rows: int) -> None:
    x = torch.randn(2, 5, 16, 17).contiguous(memory_format=layout)
    torch.library.opcheck(OPS.split_maps.default, (x, bits, rows, rows, 0, 7))
    parts = kernels.split_maps(x, bits, rows, rows, 0, 7)
    last = layout == torch.channels_last
    torch.library.opcheck(OPS.merge_maps.default, (*parts, bits, 16, 17, torch.float32, last))


def test_masks_and_windows_pass_opcheck(layout: torch.memory_format) -> None:
    x = torch.randn(1000)
    torch.library.opcheck(OPS.pack_mask.default, (x, 0.0, 1.0))
    packed = kernels.pack_mask(x, 0.0, 1.0)
    torch.library.opcheck(OPS.unpack_mask.default, (packed, 1000, 0.0, 1.0, torch.bfloat16))
    image = torch.randn(2, 3, 12, 12).contiguous(memory_format=layout)
    _, index = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
    geometry = ([12, 12], [2, 2], [2, 2], [0, 0], [1, 1])
    torch.library.opcheck(OPS.pack_window_index.default, (index, *geometry))
    small = kernels.pack_window_index(index, *geometry)
    torch.library.opcheck(OPS.unpack_window_index.default, (small, *geometry))


def test_a_backend_is_forced_only_inside_the_context() -> None:
    device = torch.device("cpu")
    usual = kernels.active(device)
    with kernels.use("reference"):
        assert kernels.active(device) == "reference"
        with kernels.use("cpu"):
            assert kernels.active(device) == "cpu"
        assert kernels.active(device) == "reference"
    assert kernels.active(device) == usual == "cpu"


def test_forcing_the_cpu_kernels_elsewhere_is_an_error() -> None:
    with kernels.use("cpu"), pytest.raises(RuntimeError, match="cannot be used: the tensor is on"):
        kernels.active(torch.device("meta"))


def test_without_numba_pytorch_serves_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 16, 16)
    codec = division.codecs.get("division")
    expected = codec.decompress(codec.compress(x, seed=1))
    monkeypatch.setattr(cpu, "usable", lambda: "numba is not installed")
    dispatch._say_once.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = codec.decompress(codec.compress(x, seed=1))
    assert [str(w.message) for w in said if "numba is not installed" in str(w.message)] == [
        "plain PyTorch stands in for the fast CPU kernels (several times slower): "
        "numba is not installed"
    ]
    assert torch.equal(expected, found)
    with kernels.use("cpu"), pytest.raises(RuntimeError, match="numba is not installed"):
        codec.compress(x)


def test_a_forked_child_does_not_crash() -> None:
    x = torch.randn(4, 16, 64, 64)
    kernels.split_maps(x, 2, 8, 8, 0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        ok = kernels.active(torch.device("cpu")) == "reference"
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
