"""Peak memory of one real training step, in a process of its own.

On a CPU the peak is that of the resident set between two readings, so that what the interpreter and
the libraries hold is taken off. The ledger counts what autograd holds between forward and backward;
the peak has on top what a step needs for a moment: the map being computed, its gradient, a
decompressed copy, the convolution's scratch space.

The C library by default keeps freed blocks below some 32 MB for itself. Small packed tensors that
outlive the large maps beside them then pin the heap, and the resident set shows memory that nobody
uses. So the peak is measured with an allocator that gives every block back at once, for all methods
alike; `default_allocator=True` measures what a user sees who changes nothing.

On a GPU torch's own counters tell the peak: of the tensors, and of what its allocator reserves.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import division
from experiments import models
from experiments.device import peaks, reset_peaks
from experiments.loop import autocast
from experiments.provenance import ROOT


def measure_step(
    network: dict[str, object],
    method: dict[str, object],
    batch: int,
    image: int,
    place: dict[str, object] | None = None,
    default_allocator: bool = False,
) -> dict[str, int]:
    """Run one training step in a new process; return its peak and the ledger's bytes.

    Network and method are a name with options, as {"name": "division", "bits": 3}; the place has
    the keys device, amp and channels_last.
    """
    environment = dict(os.environ)
    if not default_allocator:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    arguments = [json.dumps(network), json.dumps(method), str(batch), str(image)]
    arguments.append(json.dumps(place or {}))
    done = subprocess.run(
        [sys.executable, "-m", "experiments.peak", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"the step of {network} under {method} failed: {last}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"the system reports no {field}")


def _step(model: torch.nn.Module, x: torch.Tensor, amp: str) -> None:
    y = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    with autocast(amp, x.device.type):
        loss = F.cross_entropy(model(x), y)
    loss.backward()


def _run(
    network: dict[str, Any], method: dict[str, Any], batch: int, image: int, place: dict[str, Any]
) -> None:
    kind, amp = place.get("device", "cpu"), place.get("amp", "none")
    last = place.get("channels_last", True)
    layout = torch.channels_last if last else torch.contiguous_format
    model = models.build(**network, classes=10, image_size=image)
    model = model.to(kind).to(memory_format=layout)
    division.compress(model, method.pop("name"), **method)

    def images(count: int) -> torch.Tensor:
        return torch.randn(count, 3, image, image).to(kind).contiguous(memory_format=layout)

    _step(model, images(2), amp)  # libraries load and kernels compile outside of the measurement
    x = images(batch)
    measure = _gpu_peaks if kind == "cuda" else _resident_peak
    found = measure(lambda: _step(model, x, amp))
    with autocast(amp, kind):
        ledger = division.measure(model, x)
    sizes = {"saved": ledger.saved_bytes, "original": ledger.original_bytes}
    print(json.dumps({**found, **sizes}))


def _resident_peak(step: Callable[[], None]) -> dict[str, int]:
    """Return how far the resident set rises during a step."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    step()
    return {"peak": _status("VmHWM") - before}


def _gpu_peaks(step: Callable[[], None]) -> dict[str, int]:
    """Return how far tensors rise during a step, and all that the allocator reserves for it."""
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    reset_peaks("cuda")
    step()
    torch.cuda.synchronize()
    found = peaks("cuda")
    peak = found["gpu_allocated_bytes"] - before
    return {"peak": peak, **{name.removesuffix("_bytes"): size for name, size in found.items()}}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One training step; prints its peak as JSON.")
    parser.add_argument("network", type=json.loads, help='as {"name": "resnet18"}')
    parser.add_argument("method", type=json.loads, help='as {"name": "division", "bits": 3}')
    parser.add_argument("batch", type=int)
    parser.add_argument("image", type=int)
    parser.add_argument("place", type=json.loads, help='as {"device": "cuda", "amp": "bfloat16"}')
    _run(*vars(parser.parse_args()).values())
