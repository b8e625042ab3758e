"""The slot table: which saved tensor of which autograd node is kept in which form.

A rule looks at a node and one of its saved tensors and answers with
    Through     the method's codec decides (and may lose precision)
    a Codec     an exact surrogate: mask, window index or shape
    Keep        it stays stock, for the reason given
Slots that are in no rule stay stock: weights, statistics, and whatever we do not know.
Names are those of torch's derivatives.yaml, CPU and CUDA nodes alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from division.codec import Codec
from division.codecs.mask import Mask, ShapeOnly, WindowIndex
from division.forms import Form
from division.recognize import channel_of, shape_before_view
from division.site import Site
from division.windows import LARGEST_WINDOW


@dataclass(frozen=True)
class Through:
    """Goes through the method's codec, looked at in some form."""

    form: Form = field(default_factory=Form)


@dataclass(frozen=True)
class Keep:
    """Stays stock."""

    why: str


Decision = Through | Keep | Codec
Rule = Callable[[Any, Tensor, Site], Decision]


def through(node: Any, tensor: Tensor, site: Site) -> Decision:
    """A map, or tokens: the graph tells which dimension is the channel."""
    return Through(Form(channel_of(tensor)))


def tokens(node: Any, tensor: Tensor, site: Site) -> Decision:
    """A tensor with the channel last, as layer norm takes it."""
    return Through(Form(-1 if tensor.dim() >= 3 else 1))


def rows(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The input of a linear layer, (samples * tokens, C): the view before it tells the tokens."""
    shape = shape_before_view(tensor)
    if len(shape) >= 3 and shape[-1] == tensor.shape[-1] and tensor.is_contiguous():
        return Through(Form(-1, shape=shape))
    return Through()


def matrices(node: Any, tensor: Tensor, site: Site) -> Decision:
    """A factor of batched matrix products, (N, T, C) or transposed."""
    transposed = tensor.stride(-1) != 1 and tensor.stride(-2) == 1
    return Through(Form(-1, swapped=transposed))


def convolution_input(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The weight gradient needs the input; a frozen weight needs only its shape."""
    return Through() if node.next_functions[1][0] is not None else ShapeOnly(tensor.device)


def computed_weight(node: Any, tensor: Tensor, site: Site) -> Decision:
    """Weights never get here; what does was made of weights (standardised, say) or takes part."""
    return Keep("stands where the weight does: computed by the model, kept exact")


def positive(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The backward asks only whether an element is above zero."""
    return Mask(check=False)


def positive_result(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The same of a result, which unlike an input may come back in another type."""
    return Mask(of_result=True, check=False)


def above_threshold(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The backward asks only whether an element is above the threshold."""
    limit = float(node._saved_threshold)
    return Mask(low=limit, outside=limit, inside=math.inf, check=False)


def between_bounds(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The backward asks only whether an element is strictly between two bounds."""
    low, high = float(node._saved_min_val), float(node._saved_max_val)
    middle = low / 2 + high / 2
    if not low < middle < high:
        return Keep(f"no number lies between the bounds {low} and {high}")
    return Mask(low, high, outside=low, inside=middle, check=False)


def linear_part(node: Any, tensor: Tensor, site: Site) -> Decision:
    """Hardsigmoid: the backward asks only whether an element is between -3 and 3."""
    return Mask(-3.0, 3.0, outside=-3.0, inside=0.0, check=False)


def shape_only(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The backward reads no more than the shape."""
    return ShapeOnly(tensor.device)


def kept_bits(node: Any, tensor: Tensor, site: Site) -> Decision:
    """A boolean mask."""
    return Mask(check=False)


def pooling_index(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The position of each maximum, told inside its window."""
    kernel = tuple(node._saved_kernel_size)
    if math.prod(kernel) > LARGEST_WINDOW:
        return Keep(f"a pooling window of {math.prod(kernel)} positions does not fit in a byte")
    size = tuple(node._raw_saved_self.data.shape[-len(kernel) :])
    stride = tuple(node._saved_stride) or kernel
    return WindowIndex(
        size, kernel, stride, tuple(node._saved_padding), tuple(node._saved_dilation)
    )


def _factor(position: int) -> Rule:
    """A factor of a product at some position among the node's inputs.

    It is needed for the gradient of the other factors. On the CPU, dropout's noise comes as one.
    """

    def rule(node: Any, tensor: Tensor, site: Site) -> Decision:
        if node.next_functions[position][0] is None:
            scale = _noise_scale(tensor, site)
            if scale is None:
                return Keep("a factor without gradient: a constant, which others may hold as well")
            return Mask(low=0.0, outside=0.0, inside=scale, check=False)
        if tuple(tensor.shape) != tuple(node._input_metadata[0].shape):
            return Keep("broadcast factor, smaller than the product")
        return Through(Form(channel_of(tensor)))

    return rule


def whole_power(node: Any, tensor: Tensor, site: Site) -> Decision:
    """A square or cube is smooth everywhere; a root is not where a lossy copy is below zero."""
    exponent = node._saved_exponent
    if exponent >= 2 and exponent == int(exponent):
        return Through(Form(channel_of(tensor)))
    return Keep(f"a power of {exponent}, which has no derivative where a lossy copy may lie")


def euclidean(node: Any, tensor: Tensor, site: Site) -> Decision:
    """The Euclidean norm is smooth; others ask for exact signs or maxima."""
    if node._saved_ord == 2:
        return Through(Form(channel_of(tensor)))
    return Keep(f"a norm of order {node._saved_ord}, whose derivative jumps")


def dividend(node: Any, tensor: Tensor, site: Site) -> Decision:
    """What is divided, needed for the gradient of the divisor; the divisor itself stays exact."""
    return Through(Form(channel_of(tensor)))


def _noise_scale(tensor: Tensor, site: Site) -> float | None:
    """Return the one value beside zero that a tensor holds, or None if it holds others."""
    if not tensor.is_floating_point():
        return None
    if isinstance(tensor, FakeTensor):  # no data to look at: believe the module
        return 1.0 if isinstance(site.module, nn.modules.dropout._DropoutNd) else None
    top = tensor.max()
    if bool(((tensor == 0) | (tensor == top)).all() & (top > 0)):
        return float(top)
    return None


_NORMS: dict[str, Rule] = {"input": through}
_TOKEN_NORMS: dict[str, Rule] = {"input": tokens}
_POOL: dict[str, Rule] = {"self": shape_only}
_INPUT: dict[str, Rule] = {"self": through}
_RESULT: dict[str, Rule] = {"result": through}

SLOTS: dict[str, dict[str, Rule]] = {
    # layers with weights
    "ConvolutionBackward0": {"input": convolution_input, "weight": computed_weight},
    "AddmmBackward0": {"mat1": rows, "mat2": computed_weight},
    "MmBackward0": {"self": rows, "mat2": computed_weight},
    "BmmBackward0": {"self": matrices, "mat2": matrices},
    "BaddbmmBackward0": {"batch1": matrices, "batch2": matrices},
    # normalisation; statistics stay exact
    "NativeBatchNormBackward0": _NORMS,
    "NativeBatchNormLegitBackward0": _NORMS,
    "NativeBatchNormLegitBackward1": _NORMS,
    "NativeBatchNormLegitNoTrainingBackward0": _NORMS,
    "BatchNormWithUpdateBackward0": _NORMS,
    "BatchNormNoUpdateBackward0": _NORMS,
    "CudnnBatchNormBackward0": _NORMS,
    "MiopenBatchNormBackward0": _NORMS,
    "NativeGroupNormBackward0": _NORMS,
    "NativeLayerNormBackward0": _TOKEN_NORMS,
    "FusedRmsNormBackward0": _TOKEN_NORMS,
    # piecewise linear: the backward asks which piece
    "ReluBackward0": {"result": positive_result},
    "LeakyReluBackward0": {"self": positive},
    "LeakyReluBackward1": {"result": positive_result},
    "ThresholdBackward0": {"self": above_threshold},
    "ThresholdBackward1": {"self": above_threshold},
    "HardtanhBackward0": {"self": between_bounds},
    "HardsigmoidBackward0": {"self": linear_part},
    "NativeDropoutBackward0": {"result1": kept_bits},
    # pooling; the index comes first because its rule looks at the input that the next rule drops
    "MaxPool2DWithIndicesBackward0": {"result1": pooling_index, "self": shape_only},
    "MaxPool3DWithIndicesBackward0": {"result1": pooling_index, "self": shape_only},
    "AdaptiveMaxPool2DBackward0": _POOL,
    "AdaptiveMaxPool3DBackward0": _POOL,
    "AvgPool2DBackward0": _POOL,
    "AvgPool3DBackward0": _POOL,
    "AdaptiveAvgPool2DBackward0": _POOL,
    "AdaptiveAvgPool3DBackward0": _POOL,
    # smooth activations
    "GeluBackward0": _INPUT,
    "SiluBackward0": _INPUT,
    "MishBackward0": _INPUT,
    "SoftplusBackward0": _INPUT,
    "HardswishBackward0": _INPUT,
    "EluBackward0": _INPUT,
    "EluBackward1": _RESULT,
    "PreluKernelBackward0": _INPUT,
    "SigmoidBackward0": _RESULT,
    "TanhBackward0": _RESULT,
    "SoftmaxBackward0": _RESULT,
    "SafeSoftmaxBackward0": _RESULT,
    # parts of norms that are composed of operators
    "PowBackward0": {"self": whole_power},
    "LinalgVectorNormBackward0": {"self": euclidean},
    # products of maps
    "MulBackward0": {"self": _factor(0), "other": _factor(1)},
    "DivBackward0": {"self": dividend},
    "AddcmulBackward0": {"tensor1": _factor(1), "tensor2": _factor(2)},
}
