"""GPU twins (Triton) of the definitions: same signatures, same bytes.

This module says which operator has a kernel and imports it when it is first asked for; it can be
imported without Triton. Kernels run on CUDA tensors or, interpreted, on CPU tensors: Triton
interprets every kernel of a process whose environment has TRITON_INTERPRET=1 from the start.

Where the host has to wait for the GPU: nowhere but in `pack_bounded`, whose sizes depend on data.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

from division.kernels import reference
from division.kernels.gpu_launch import module

KERNELS = {  # operator: the module that starts its kernel
    "split_maps": "gpu_maps_host",
    "split_maps_masked": "gpu_maps_host",
    "merge_maps": "gpu_maps_host",
    "merge_maps_into": "gpu_maps_host",
    "merge_maps_affine": "gpu_maps_host",
    "group_ranges": "gpu_samples_host",
    "split_samples": "gpu_samples_host",
    "merge_samples": "gpu_samples_host",
    "pack_bounded": "gpu_fixed_host",
    "unpack_bounded": "gpu_fixed_host",
    "pack_mask": "gpu_masks",
    "unpack_mask": "gpu_masks",
    "pack_window_index": "gpu_windows",
    "unpack_window_index": "gpu_windows",
}
WITHOUT = {  # operator: why the definition computes it on a GPU, too
    "pack_huffman": "codes of any length follow one another: not written for tiles so far",
    "unpack_huffman": "as pack_huffman",
}
PARTLY = {  # operator: what its kernel leaves to the definition
    "split_maps": "a window (the published alignment); blocks of 2**24 elements or more",
    "group_ranges": "groups of more than 4096 elements",
    "split_samples": "groups of more than 4096 elements",
    "merge_samples": "groups of more than 4096 elements",
    "pack_mask": "64-bit elements",
    "unpack_mask": "64-bit elements",
    "pack_window_index": "indices that lie neither in order nor with the channel last",
    "unpack_window_index": "indices that lie neither in order nor with the channel last",
}


def __getattr__(name: str) -> Callable[..., Any]:
    """Return an operator, by the tables above."""
    if name in KERNELS:
        operator: Callable[..., Any] = getattr(module(KERNELS[name]), name)
        return operator
    if name in WITHOUT:
        definition: Callable[..., Any] = getattr(reference, name)
        return definition
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _import_trouble() -> str | None:
    try:
        module("gpu_common")
    except Exception as error:  # a broken install raises more than ImportError
        return f"triton cannot be imported ({error})."
    return None


@functools.cache
def interpreted() -> bool | None:
    """Tell whether kernels are interpreted; None if Triton and the kernels disagree about it."""
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction

    functions = (triton.language.max, module("gpu_common").hash32)
    kinds = {isinstance(function, InterpretedFunction) for function in functions}
    return kinds.pop() if len(kinds) == 1 else None


def usable(device: torch.device) -> str | None:
    """Return None if the kernels can serve a device, or one sentence that says why not."""
    if device.type not in ("cpu", "cuda"):
        return f"the tensor is on {device}."
    trouble = _import_trouble()
    if trouble:
        return trouble
    if interpreted() is None:
        return "TRITON_INTERPRET has changed since Triton was imported."
    if device.type == "cpu" and not interpreted():
        return f"the tensor is on {device}, which needs TRITON_INTERPRET=1 from the start."
    return None
