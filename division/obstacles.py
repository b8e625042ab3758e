"""Why a saved tensor has to be left alone, whatever the method says."""

import torch
from torch import Tensor

SMALL = 4096  # bytes below which packing costs more than it frees


def off_limits() -> str:
    """Say why saved tensors must not be touched right now, or nothing."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "other saved-tensor hooks are active here (activation checkpointing or the like)"
    if torch._C._current_graph_task_id() != -1:
        return "built while a backward pass runs (re-entrant checkpointing or double backward)"
    return ""


def obstacle(tensor: Tensor) -> str:
    """Say why a tensor cannot be packed whatever its slot, or nothing."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"layout {tensor.layout} is not compressed"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a torch.func transform"
    if tensor.numel() * tensor.element_size() < SMALL:
        return f"small (under {SMALL} bytes)"
    if any(
        step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return "an expanded view, small in memory"
    return ""
