"""Fused attention, done again: from a node of the graph to the operator that made its outputs.

Every kind of fused attention saves q, k, v, its output and the log-sum-exp of every row. Without
dropout the same operator gives the last two again; with dropout it would draw other noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

INPUTS = ("query", "key", "value")
Again = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Fused:
    """One kind of fused attention.

    Attributes:
        build: returns what computes the output and the statistics of a node again.
        outputs: the slots of these two.
    """

    build: Callable[[Any], Again]
    outputs: tuple[str, str] = ("output", "logsumexp")

    def again(self, node: Any) -> Again | str:
        """Return what computes the outputs of a node again, or why that cannot be done."""
        if node._saved_dropout_p:
            return "attention with dropout: its noise is not kept"
        return self.build(node)


def _flash_for_cpu(node: Any) -> Again:
    mask, causal, scale = _constant(node, "attn_mask"), node._saved_is_causal, node._saved_scale

    def again(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask, scale=scale
        )
        return output, logsumexp

    return again


def _flash(node: Any) -> Again:
    causal, scale = node._saved_is_causal, node._saved_scale

    def again(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=scale
        )
        return output, logsumexp

    return again


def _with_bias(operator: Any) -> Callable[[Any], Again]:
    """The efficient and the cuDNN operator take the same arguments."""

    def build(node: Any) -> Again:
        bias, causal, scale = _constant(node, "attn_bias"), node._saved_is_causal, node._saved_scale

        def again(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            output, logsumexp, *_ = operator(
                query, key, value, bias, True, 0.0, causal, scale=scale
            )
            return output, logsumexp

        return again

    return build


def _constant(node: Any, slot: str) -> Tensor | None:
    """Return what a slot holds, cut from the graph: the node holds it as well, so it costs none."""
    tensor = getattr(node, f"_raw_saved_{slot}").data
    return tensor.detach() if isinstance(tensor, Tensor) else None


FUSED = {
    "ScaledDotProductFlashAttentionForCpuBackward0": Fused(_flash_for_cpu),
    "ScaledDotProductFlashAttentionBackward0": Fused(_flash),
    "ScaledDotProductEfficientAttentionBackward0": Fused(
        _with_bias(torch.ops.aten._scaled_dot_product_efficient_attention),
        ("output", "log_sumexp"),
    ),
    "ScaledDotProductCudnnAttentionBackward0": Fused(
        _with_bias(torch.ops.aten._scaled_dot_product_cudnn_attention)
    ),
}
