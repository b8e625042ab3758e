"""Fused attention: q, k and v are stored; its output and statistics are rebuilt from them.

The backward of attention uses q, k, v, the output and the log-sum-exp of every row. A stored output
beside lossy q, k, v would contradict them. Rebuilt from what is stored all five agree, and two of
them cost nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

INPUTS = ("query", "key", "value")
OUTPUTS = ("output", "logsumexp")


Again = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Unpackable(Protocol):
    """Something that gives a tensor back."""

    def unpack(self) -> Tensor:
        """Return the tensor."""


def flash_for_cpu(node: Any) -> Again | str:
    """Return what computes (output, logsumexp) again for a node, or why that cannot be done."""
    if node._saved_dropout_p:
        return "attention with dropout: its noise is not kept"
    mask, causal, scale = node._raw_saved_attn_mask.data, node._saved_is_causal, node._saved_scale

    def again(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return output, logsumexp

    return again


# Nodes of fused attention, and what computes their outputs again.
FUSED_ATTENTION = {"ScaledDotProductFlashAttentionForCpuBackward0": flash_for_cpu}


class Attention:
    """One call: hands out each of its five tensors, making all of them at once."""

    def __init__(self, inputs: Mapping[str, Unpackable], again: Again) -> None:
        self._inputs = inputs
        self._again = again
        self._ready: dict[str, Tensor] = {}

    def ticket(self, slot: str, tensor: Tensor) -> tuple["Attention", str]:
        """Return what a slot holds instead of its tensor."""
        return self, slot

    @staticmethod
    def redeem(ticket: tuple["Attention", str]) -> Tensor:
        """Return the tensor of a slot; the last of the five leaves nothing behind."""
        call, slot = ticket
        if slot not in call._ready:
            with torch.no_grad():
                inputs = [call._inputs[name].unpack() for name in INPUTS]
                outputs = call._again(*inputs)
            call._ready = dict(zip((*INPUTS, *OUTPUTS), (*inputs, *outputs), strict=True))
        return call._ready.pop(slot)
