"""Which operators have GPU kernels, and who may use them."""

import os
import subprocess
import sys

import pytest
import torch
from test_kernels import assert_same

import division
from division import kernels
from division.kernels import gpu, ops, reference


def test_the_tables_name_every_operator_once():
    assert gpu.KERNELS.keys() | gpu.WITHOUT.keys() == ops._SCHEMAS.keys() == set(reference.__all__)
    assert not gpu.KERNELS.keys() & gpu.WITHOUT.keys()
    assert gpu.PARTLY.keys() <= gpu.KERNELS.keys()
    for name in gpu.WITHOUT:
        assert getattr(gpu, name) is getattr(reference, name)
    for name in gpu.KERNELS:
        assert getattr(gpu, name) is not getattr(reference, name)
    with pytest.raises(AttributeError, match="no attribute 'split_atoms'"):
        _ = gpu.split_atoms


def test_devices_have_their_own_kernels():
    assert kernels.active(torch.device("cpu")) == "cpu"
    assert kernels.active(torch.device("cuda")) == "gpu"
    assert kernels.active(torch.device("meta")) == "reference"


def test_gpu_kernels_can_be_forced_and_are_shown():
    x = torch.randn(2, 3, 16, 16)
    expected = kernels.split_maps(x, 2, 2, 2, 0, 1)
    model = division.compress(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)))
    with kernels.use("gpu"):
        found = kernels.split_maps(x, 2, 2, 2, 0, 1)
        assert division.measure(model, x).kernels == "gpu"
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, theirs)


def test_forcing_the_gpu_kernels_elsewhere_is_an_error():
    with kernels.use("gpu"), pytest.raises(RuntimeError, match="the tensor is on meta"):
        kernels.active(torch.device("meta"))


PROGRAM = """
import sys, torch, division
assert "triton" not in sys.modules
x = torch.randn(2, 3, 16, 16)
{before}
with division.kernels.use("gpu"):
    division.kernels.split_maps(x, 2, 2, 2, 0, 1)
"""


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("", "the tensor is on cpu, which needs TRITON_INTERPRET=1"),
        (
            'import os, triton.language; os.environ["TRITON_INTERPRET"] = "1"',
            "TRITON_INTERPRET has changed since Triton was imported",
        ),
        ('sys.modules["triton"] = None', "triton cannot be imported"),
    ],
)
def test_cpu_tensors_need_the_interpreter(before, message):
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-c", PROGRAM.format(before=before)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode != 0
    assert f"RuntimeError: the gpu kernels cannot be used: {message}" in run.stderr
