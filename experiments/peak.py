"""Peak memory of one real training step, in a process of its own.

On a CPU the peak is that of the resident set between two readings, so that what the interpreter and
the libraries hold is taken off. The ledger counts what autograd holds between forward and backward;
the peak has on top what a step needs for a moment: the map being computed, its gradient, a
decompressed copy, the convolution's scratch space.

The C library by default keeps freed blocks below some 32 MB for itself. Small packed tensors that
outlive the large maps beside them then pin the heap, and the resident set shows memory that nobody
uses. So the peak is measured with an allocator that gives every block back at once, for all methods
alike; `default_allocator=True` measures what a user sees who changes nothing.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import division
from experiments import models
from experiments.provenance import ROOT


def measure_step(
    network: dict[str, object],
    method: dict[str, object],
    batch: int,
    image: int,
    default_allocator: bool = False,
) -> dict[str, int]:
    """Run one training step in a new process; return its peak and the ledger's bytes.

    Network and method are a name with options, as {"name": "division", "bits": 3}.
    """
    environment = dict(os.environ)
    if not default_allocator:
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    arguments = [json.dumps(network), json.dumps(method), str(batch), str(image)]
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


def _step(model: torch.nn.Module, x: torch.Tensor) -> None:
    y = torch.zeros(len(x), dtype=torch.int64)
    F.cross_entropy(model(x), y).backward()


def _run(network: dict[str, Any], method: dict[str, Any], batch: int, image: int) -> None:
    model = models.build(**network, classes=10, image_size=image)
    model = model.to(memory_format=torch.channels_last)
    division.compress(model, method.pop("name"), **method)

    def images(count: int) -> torch.Tensor:
        x = torch.randn(count, 3, image, image)
        return x.contiguous(memory_format=torch.channels_last)

    _step(model, images(2))  # libraries load and kernels compile outside of the measurement
    x = images(batch)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    _step(model, x)
    peak = _status("VmHWM") - before
    ledger = division.measure(model, x)
    sizes = {"saved": ledger.saved_bytes, "original": ledger.original_bytes}
    print(json.dumps({"peak": peak, **sizes}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One training step; prints its peak as JSON.")
    parser.add_argument("network", type=json.loads, help='as {"name": "resnet18"}')
    parser.add_argument("method", type=json.loads, help='as {"name": "division", "bits": 3}')
    parser.add_argument("batch", type=int)
    parser.add_argument("image", type=int)
    _run(*vars(parser.parse_args()).values())
