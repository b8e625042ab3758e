"""Cheap layers, done again: from a node of the graph to the function that it applied.

Statistics are those of the forward, exactly. Weights are copied, since the optimizer may change
them before the backward pass; the copies are counted in the ledger.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Index = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Layer:
    """What a node did to its input.

    Attributes:
        whole: does it to the whole input, out of place.
        affine: the scale and the shift of every channel, if that is all it does.
        some: does it to a few elements, given their index; None where others have a part in them.
        nbytes: what is kept for it beside the statistics that the node keeps anyway.
    """

    whole: Callable[[Tensor], Tensor]
    some: Callable[[Tensor, Index], Tensor] | None
    nbytes: int = 0
    affine: tuple[Tensor, Tensor] | None = None


def layer_of(node: Any, name: str, module: nn.Module | None) -> Layer | None:
    """Return what a node does, or None if it is not cheap or not known."""
    build = _LAYERS.get(name)
    return build(node, module) if build is not None else None


def _pointwise(function: Callable[[Tensor], Tensor]) -> Layer:
    return Layer(function, lambda x, index: function(x))


def _gelu(node: Any, module: nn.Module | None) -> Layer:
    approximate = node._saved_approximate
    return _pointwise(lambda x: torch.ops.aten.gelu(x, approximate=approximate))


def _batch_norm(node: Any, module: nn.Module | None) -> Layer | None:
    affine = _weight_and_bias(node, module)
    if affine is None:
        return None
    if node._saved_training:
        mean, scale = node._saved_result1.detach(), node._saved_result2.detach()
    else:
        epsilon = getattr(node, "_saved_eps", None) or node._saved_epsilon
        mean = node._saved_running_mean.detach()
        scale = (node._saved_running_var.detach() + epsilon).rsqrt()
    weight, bias = affine
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    dims = [1, -1] + [1] * (len(node._input_metadata[0].shape) - 2)
    factor, term = scale.view(dims), shift.view(dims)
    return Layer(
        lambda x: torch.addcmul(term, x, factor).to(x.dtype),
        lambda x, index: x * scale[index[1]] + shift[index[1]],
        scale.nbytes + shift.nbytes,
        (scale, shift),
    )


def _group_norm(node: Any, module: nn.Module | None) -> Layer | None:
    affine = _weight_and_bias(node, module)
    if affine is None:
        return None
    mean, scale = node._saved_result1.detach(), node._saved_result2.detach()
    shape, groups = tuple(node._input_metadata[0].shape), node._saved_group
    weight, bias = (None if each is None else each.clone() for each in affine)
    spread = [1, -1] + [1] * (len(shape) - 2)

    def whole(x: Tensor) -> Tensor:
        wide = x.reshape(shape[0], groups, -1)
        normal = ((wide - mean.unsqueeze(-1)) * scale.unsqueeze(-1)).view(shape)
        return _affine(normal, *(None if w is None else w.view(spread) for w in (weight, bias)))

    return Layer(whole, None, _size(weight) + _size(bias))


def _layer_norm(node: Any, module: nn.Module | None) -> Layer:
    mean, scale = node._saved_result1.detach(), node._saved_result2.detach()
    kept = (node._saved_weight, node._saved_bias)
    weight, bias = (None if each is None else each.detach().clone() for each in kept)
    shift = -mean * scale

    def whole(x: Tensor) -> Tensor:
        return _affine(torch.addcmul(shift, x, scale), weight, bias).to(x.dtype)

    return Layer(whole, None, _size(weight) + _size(bias) + shift.nbytes)


def _affine(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Scale and shift a fresh tensor."""
    if weight is None:
        return normal if bias is None else normal.add_(bias)
    return normal.mul_(weight) if bias is None else torch.addcmul(bias, normal, weight, out=normal)


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes


def _weight_and_bias(
    node: Any, module: nn.Module | None
) -> tuple[Tensor | None, Tensor | None] | None:
    """Return weight and bias of a norm, or None where they cannot be told.

    The node does not keep the bias: its edge leads to it, or the module has it.
    """
    weight = node._saved_weight
    edge: Any = node.next_functions[2][0] if len(node.next_functions) > 2 else None
    bias = getattr(edge, "variable", None)
    if edge is not None and bias is None:
        return None  # computed, from a cast copy for instance
    if edge is None and weight is not None:  # there is none, or it is frozen: the module tells
        own = getattr(module, "weight", None)
        if not isinstance(own, Tensor) or own.data_ptr() != weight.data_ptr():
            return None
        bias = getattr(module, "bias", None)
    return (
        None if weight is None else weight.detach(),
        None if bias is None else bias.detach(),
    )


_LAYERS: dict[str, Callable[[Any, nn.Module | None], Layer | None]] = {
    "NativeBatchNormBackward0": _batch_norm,
    "CudnnBatchNormBackward0": _batch_norm,
    "NativeGroupNormBackward0": _group_norm,
    "NativeLayerNormBackward0": _layer_norm,
    "GeluBackward0": _gelu,
    "SiluBackward0": lambda node, module: _pointwise(torch.ops.aten.silu),
    "MishBackward0": lambda node, module: _pointwise(torch.ops.aten.mish),
    "HardswishBackward0": lambda node, module: _pointwise(torch.ops.aten.hardswish),
}
