"""What a GPU needs beside a name: batches that arrive while it computes, its clock, its memory."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from experiments.data.dataset import Batch


def check_device(key: str, device: str) -> None:
    """Raise one sentence unless a device is known and there."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"{key} must be cpu or cuda; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{key} is cuda, but torch finds no GPU here")


def to_device(x: Tensor, device: str, channels_last: bool = False) -> Tensor:
    """Move a tensor; to a GPU from pinned memory, so that the host need not wait."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    if device == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    moved = x.to(device, non_blocking=device == "cuda")
    return moved.contiguous(memory_format=layout) if x.dim() == 4 else moved


def on_device(batches: Iterable[Batch], device: str, channels_last: bool) -> Iterator[Batch]:
    """Yield batches where the model is; for a GPU each is under way before the last is used."""

    def moved(batch: Batch) -> Batch:
        x, y = batch
        return to_device(x, device, channels_last), to_device(y, device)

    if device == "cpu":
        yield from map(moved, batches)
        return
    waiting: Batch | None = None
    for batch in batches:
        following = moved(batch)
        if waiting is not None:
            yield waiting
        waiting = following
    if waiting is not None:
        yield waiting


def gpu_seconds(task: Callable[[], object]) -> float:
    """Return how long a task keeps the GPU busy, by the GPU's own clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    task()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


def peaks(device: str) -> dict[str, int]:
    """Return the most that tensors and the allocator held since `reset_peaks`; on a CPU nothing."""
    if device != "cuda":
        return {}
    return {
        "gpu_allocated_bytes": torch.cuda.max_memory_allocated(),
        "gpu_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def reset_peaks(device: str) -> None:
    """Have the peaks start from what is held now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
