"""Compiles kernels for any NVIDIA architecture, with no GPU, and reads what they take of it."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from division.kernels.gpu_launch import Launch, compile_options

ARCHITECTURES = (75, 80, 90, 100)  # Turing, Ampere, Hopper, Blackwell
_TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.uint8: "*u8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Compiled:
    """What the assembler says of a kernel, and its PTX."""

    registers: int  # a thread
    spilled: int  # bytes a thread
    shared: int  # bytes a program
    ptx: str


def compile_for(call: Launch, architecture: int) -> Compiled:
    """Compile a kernel as its launch would on a GPU of an architecture (80 for sm_80)."""
    names = call.kernel.arg_names
    given = (*call.tensors, *call.settings)
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(call.constants)
    attributes = {}
    free = call.kernel.params
    for i, (name, value) in enumerate(zip(names, given, strict=False)):
        signature[name] = _type_of(value)
        if isinstance(value, int) and not free[i].do_not_specialize and value == 1:
            signature[name], constants[name] = "constexpr", 1
        elif not isinstance(value, float) and not free[i].do_not_specialize:
            aligned = value % 16 == 0 if isinstance(value, int) else True
            if aligned:
                attributes[(i,)] = [["tt.divisibility", 16]]
    signature |= dict.fromkeys(call.constants, "constexpr")
    source = ASTSource(call.kernel, signature, constexprs=constants, attrs=attributes)
    options = compile_options(call.warps)
    compiled = triton.compile(source, GPUTarget("cuda", architecture, 32), options)
    registers, stack, _, local = _resources(compiled.asm["cubin"])
    return Compiled(registers, stack + local, compiled.metadata.shared, compiled.asm["ptx"])


def _type_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    assert isinstance(value, int)
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _resources(cubin: bytes) -> tuple[int, int, int, int]:
    """Return registers, stack, static shared memory and local memory of the one kernel."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(tool), "--dump-resource-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _USAGE.search(text)
    if found is None:
        raise RuntimeError(f"cuobjdump gave no resource usage, but: {text!r}")
    registers, stack, shared, local = (int(number) for number in found.groups())
    return registers, stack, shared, local
