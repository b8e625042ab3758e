"""One launch of every GPU kernel at the sizes of a real network, and what it compiles to.

Run as a program in a process where Triton compiles: `python gpu_cases.py 80` prints a JSON object,
by case, of registers, spilled bytes, shared memory, and the floating-point instructions used.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from division.kernels import gpu, gpu_launch

MAPS = {  # name: shape, rows and columns of blocks, bits, type, channels last
    "56": ((256, 64, 56, 56), (7, 7), 2, torch.float32, False),
    "32": ((256, 64, 32, 32), (4, 4), 2, torch.float32, False),
    "14": ((256, 256, 14, 14), (1, 1), 2, torch.float32, False),
    "7 last": ((256, 512, 7, 7), (1, 1), 3, torch.float32, True),
    "32 bf16 last": ((256, 64, 32, 32), (4, 4), 2, torch.bfloat16, True),
    "32 last": ((256, 64, 32, 32), (4, 4), 2, torch.float32, True),
    "56 last": ((256, 64, 56, 56), (7, 7), 2, torch.float32, True),
    "112": ((256, 64, 112, 112), (14, 14), 2, torch.float32, False),
    "112 bf16 last": ((256, 64, 112, 112), (14, 14), 2, torch.bfloat16, True),
    "images": ((256, 3, 224, 224), (28, 28), 8, torch.float32, False),
    "groups": ((1, 100000, 1, 64), (1, 1), 2, torch.float32, False),
    "groups without means": ((1, 100000, 1, 256), (0, 0), 2, torch.float32, False),
    "large groups": ((1, 1000, 1, 65536), (0, 0), 3, torch.bfloat16, False),
    "16 fp16": ((256, 64, 16, 16), (2, 2), 8, torch.float16, False),
}


def empty(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool = False) -> Tensor:
    x = torch.empty(shape, dtype=dtype, device="meta")
    return x.contiguous(memory_format=torch.channels_last) if channels_last else x


def split_and_merge(shape, blocks, bits, dtype, channels_last) -> Callable[[], object]:
    def run() -> None:
        parts = gpu.split_maps(empty(shape, dtype, channels_last), bits, *blocks, 0, 1)
        gpu.merge_maps(*parts, bits, *shape[2:], dtype, channels_last)

    return run


def with_mask(dtype: torch.dtype) -> Callable[[], object]:
    def run() -> None:
        for size, blocks in ((56, (7, 7)), (14, (1, 1)), (7, (1, 1))):
            gpu.split_maps_masked(empty((256, 64, size, size), dtype), 2, *blocks, 1, 0.0, 6.0)

    return run


def finished(dtype: torch.dtype, channels_last: bool) -> Callable[[], object]:
    def run() -> None:
        low = empty((256, 64, 7, 7), torch.bfloat16, channels_last)
        codes = empty((256, 64, 784), torch.uint8)
        metadata, channels = empty((256, 64), torch.bfloat16), empty((64,), torch.float32)
        given = (low, codes, metadata, metadata, 2, 56, 56, dtype, channels_last)
        for mask in (None, empty((256 * 64 * 392,), torch.uint8)):
            gpu.merge_maps_affine(*given, channels, channels, mask)

    return run


def masks(dtype: torch.dtype) -> Callable[[], object]:
    def run() -> None:
        gpu.pack_mask(empty((1 << 20,), dtype), 0.0, 6.0)
        gpu.unpack_mask(empty((1 << 17,), torch.uint8), 1 << 20, 0.0, 1.0, dtype)

    return run


def pooling(channels_last: bool) -> Callable[[], object]:
    geometry = ([112, 112], [3, 3], [2, 2], [1, 1], [1, 1])

    def run() -> None:
        index = empty((256, 64, 56, 56), torch.int64, channels_last)
        gpu.unpack_window_index(gpu.pack_window_index(index, *geometry), *geometry)

    return run


def samples(size: tuple[int, int], dtype: torch.dtype, transposed: bool) -> Callable[[], object]:
    def run() -> None:
        x = empty((256, *size), dtype)
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if transposed else x
        low, high = gpu.group_ranges(x, 256)
        bits = empty((256,), torch.uint8)
        for edges in ((low, high), (None, None)):
            parts = gpu.split_samples(x, bits, 512, 256, 1, *edges)
        gpu.merge_samples(parts[0], bits, *parts[1:], *size, 256, dtype, transposed)

    return run


def coded(dtype: torch.dtype, dither: bool, channels_last: bool) -> Callable[[], object]:
    def run() -> None:
        # On the CPU: how long the words are is read from the counts, which stay zero here.
        x = torch.empty((2, 64, 28, 28), dtype=dtype)
        x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
        parts = gpu.pack_bounded(x, 0.01, dither, 1)
        gpu.unpack_bounded(*parts, list(x.shape), channels_last, 0.01, dither, 1)

    return run


def cases() -> dict[str, Callable[[], object]]:
    return {
        **{f"maps {name}": split_and_merge(*case) for name, case in MAPS.items()},
        **{f"with mask {dtype}": with_mask(dtype) for dtype in (torch.float32, torch.bfloat16)},
        **{f"finished {last}": finished(torch.float32, last) for last in (False, True)},
        "finished bf16": finished(torch.bfloat16, False),
        "samples": samples((64, 3136), torch.float32, False),
        "samples bf16 transposed": samples((64, 3136), torch.bfloat16, True),
        "coded": coded(torch.float32, False, False),
        "coded dithered": coded(torch.float32, True, False),
        "coded fp16 dithered last": coded(torch.float16, True, True),
        "coded bf16 last": coded(torch.bfloat16, False, True),
        **{f"mask {dtype}": masks(dtype) for dtype in (torch.float32, torch.bfloat16)},
        **{f"pooling {last}": pooling(last) for last in (False, True)},
    }


QUICK = ("maps 56", "maps 112", "maps 112 bf16 last", "samples", "coded dithered", "pooling False")
QUICK += (f"mask {torch.float32}", f"with mask {torch.float32}", "finished True")


def launches(quick: bool = False) -> dict[str, gpu_launch.Launch]:
    """Return every launch of every case (of few, which have every kernel), by name."""
    found = {}
    for name, run in cases().items():
        if quick and name not in QUICK:
            continue
        with gpu_launch.recording() as recorded:
            run()
        for i, call in enumerate(recorded):
            found[f"{call.kernel.__name__} ({i}): {name}"] = call
            if call.constants.get("WIDE") == 0 and not quick:
                constants = {**call.constants, "WIDE": 1}
                # A map that counts with 64 bits is too large for a program that is alone.
                warps = 8 if call.kernel.__name__ == "split_streamed" else call.warps
                wide = dataclasses.replace(call, constants=constants, warps=warps)
                found[f"{call.kernel.__name__} ({i}), wide: {name}"] = wide
    return found


def report(architecture: int, quick: bool) -> dict[str, object]:
    from division.kernels.gpu_compile import compile_for

    found = {}
    for name, call in launches(quick).items():
        made = compile_for(call, architecture)
        floating = sorted(set(re.findall(r"\b[a-z]+[\w.]*\.f(?:16|32|64)\b", made.ptx)))
        found[name] = {
            "registers": made.registers,
            "spilled": made.spilled,
            "shared": made.shared,
            "instructions": floating,
        }
    return found


if __name__ == "__main__":
    print(json.dumps(report(int(sys.argv[1]), quick="quick" in sys.argv)))
