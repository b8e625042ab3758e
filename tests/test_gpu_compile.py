"""Every GPU kernel compiles for every architecture with no GPU: no spills, no contraction."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpu_cases
import pytest

from division.kernels import gpu

SHARED_LIMIT = {75: 64 << 10, 80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes a program
ALL = [pytest.param((number, False), marks=pytest.mark.slow) for number in SHARED_LIMIT]


@functools.cache
def compiled(architecture: int, quick: bool) -> dict[str, dict]:
    """What a process of its own says: in this one Triton interprets kernels."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, gpu_cases.__file__, str(architecture), *["quick"] * quick]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout)


@pytest.fixture(params=[(80, True), (100, True), *ALL], ids=str)
def report(request: pytest.FixtureRequest) -> dict[str, dict]:
    message = "Triton is not installed: nothing can be compiled"
    triton = pytest.importorskip("triton", reason=message)
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for tool in ("ptxas", "cuobjdump"):
        if shutil.which(tool, path=str(tools)) is None:
            pytest.skip(f"Triton came without {tool}: nothing can be compiled for a GPU")
    architecture, quick = request.param
    return {"architecture": architecture, "kernels": compiled(architecture, quick)}


def test_nothing_is_spilled_and_all_fits(report):
    limit = SHARED_LIMIT[report["architecture"]]
    for name, kernel in report["kernels"].items():
        assert kernel["spilled"] == 0, f"{name} spills {kernel['spilled']} bytes"
        assert 0 < kernel["registers"] <= 255, name
        assert kernel["shared"] <= limit, f"{name} takes {kernel['shared']} of {limit} bytes"


def test_arithmetic_is_rounded_term_by_term(report):
    """No fused multiply-add, no approximate division, no flushing of subnormal numbers."""
    for name, kernel in report["kernels"].items():
        for instruction in kernel["instructions"]:
            operation, *details = instruction.split(".")
            assert operation != "fma", f"{name}: {instruction}"
            assert not {"ftz", "approx", "full"} & set(details), f"{name}: {instruction}"


def test_every_kernel_is_among_the_cases():
    """A kernel that is not compiled here is not proven to compile."""
    quick, launched = (
        {call.kernel.__name__ for call in gpu_cases.launches(few).values()} for few in (True, False)
    )
    written = set()
    for name in set(gpu.KERNELS.values()):
        written |= set(gpu_cases.gpu_launch.module(name).STARTS)
    assert quick == launched == written
