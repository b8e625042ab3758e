"""Nodes that only a GPU builds, on fake CUDA tensors: what they save is kept as the table says."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import division
from division.fused import FUSED
from division.ledger import Row

aten = torch.ops.aten
N, HEADS, T, D = 3, 4, 64, 32
BYTES = N * HEADS * T * D * 2

pytestmark = pytest.mark.filterwarnings("ignore:plain PyTorch stands in:RuntimeWarning")


@pytest.fixture(autouse=True)
def _without_data() -> Iterator[None]:
    if not torch.backends.cuda.is_built():
        pytest.skip("this build of torch knows no CUDA operators")
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda", requires_grad=True)


def flash(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=0.3)[0]


def efficient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    operator = aten._scaled_dot_product_efficient_attention
    return operator(q, k, v, bias, True, dropout, False, scale=0.3)[0]


def cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True, dropout, False)[0]


KINDS = {
    "ScaledDotProductFlashAttentionBackward0": flash,
    "ScaledDotProductEfficientAttentionBackward0": efficient,
    "ScaledDotProductCudnnAttentionBackward0": cudnn,
}
Kind = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def test_every_kind_of_the_table_is_tried() -> None:
    assert KINDS.keys() == {name for name in FUSED if "ForCpu" not in name}


def back(y: Tensor) -> list[Tensor | None]:
    """Return the gradients of the last node alone: the engine asks for a real device."""
    with torch.no_grad():
        found = y.grad_fn(torch.empty_like(y))
    return list(found) if isinstance(found, tuple) else [found]


def attend(
    kind: Kind, bias: Tensor | None = None, dropout: float = 0.0
) -> tuple[list[Tensor], dict[str, Row]]:
    """Forward and backward under capture; return gradients and the rows of the node by slot."""
    inputs = [on_gpu(N, HEADS, T, D) for _ in range(3)]
    with division.capture("division") as ledger:
        y = kind(*inputs, bias, dropout)
    name = y.grad_fn.name()
    return back(y), {row.slot: row for row in ledger.rows if row.node == name}


@pytest.mark.parametrize("node", KINDS)
def test_attention_keeps_q_k_and_v_and_makes_the_rest_again(node: str) -> None:
    gradients, rows = attend(KINDS[node])
    for slot in ("query", "key", "value"):
        assert rows[slot].codec == "division"
        assert 0 < rows[slot].bytes_after < BYTES / 3
    for slot in FUSED[node].outputs:
        assert (rows[slot].codec, rows[slot].bytes_after) == ("rebuilt", 0)
    assert rows["output"].bytes_before == BYTES
    for gradient in gradients[:3]:
        assert (gradient.shape, gradient.device.type) == ((N, HEADS, T, D), "cuda")


@pytest.mark.parametrize("node", KINDS)
def test_the_operator_is_called_again_with_its_own_arguments(
    node: str,
) -> None:
    """What the backward gets is what the same operator makes of the stored q, k and v."""
    calls: list[tuple[Any, ...]] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            if operator.name().startswith("aten::_scaled") and "backward" not in operator.name():
                options = {k: v for k, v in (kwargs or {}).items() if v is not None}
                plain = [a for a in args if not isinstance(a, Tensor)]
                calls.append((operator.name(), [tuple(a.shape) for a in args[:3]], plain, options))
            return operator(*args, **(kwargs or {}))

    with Watch():
        attend(KINDS[node])
    assert len(calls) == 2
    forward, again = (_padded(call) for call in calls)
    assert forward == again


def _padded(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without the trailing arguments that have their default value."""
    name, shapes, plain, options = call
    while plain and plain[-1] is False:
        plain = plain[:-1]
    return name, shapes, plain, options


@pytest.mark.parametrize("node", KINDS)
def test_attention_with_dropout_stays_stock(node: str) -> None:
    _, rows = attend(KINDS[node], dropout=0.2)
    wanted = ("query", "key", "value", *FUSED[node].outputs)
    assert {rows[slot].codec for slot in wanted} == {"stock"}
    assert all("noise is not kept" in rows[slot].why for slot in wanted)


@pytest.mark.parametrize("kind", [efficient, cudnn])
def test_a_bias_of_the_scores_is_counted_and_kept(kind: Kind) -> None:
    bias = torch.empty(N, HEADS, T, T, dtype=torch.bfloat16, device="cuda")
    _, rows = attend(kind, bias)
    assert rows["attn_bias"].codec == "stock"
    assert rows["attn_bias"].bytes_after == math.prod(bias.shape) * 2
    assert rows["query"].codec == "division"


def test_batch_norm_of_cudnn() -> None:
    x, (weight, bias) = on_gpu(4, 16, 32, 32), (on_gpu(16, dtype=torch.float32) for _ in range(2))
    mean, variance = (torch.empty(16, device="cuda") for _ in range(2))
    with division.capture("division") as ledger:
        y, *_ = aten.cudnn_batch_norm(x * 2, weight, bias, mean, variance, True, 0.1, 1e-5)
    gradient, *_ = back(y)
    row = next(row for row in ledger.rows if row.node == "CudnnBatchNormBackward0")
    assert (row.slot, row.codec) == ("input", "division")
    assert gradient.shape == x.shape


def test_dropout_is_one_bit() -> None:
    x = on_gpu(4, 16, 32, 32)
    with division.capture("division") as ledger:
        y = F.dropout(x, 0.2)
    assert y.grad_fn.name() == "NativeDropoutBackward0"
    (gradient,) = back(y)
    (row,) = (row for row in ledger.rows if row.slot == "result1")
    assert (row.codec, row.bytes_after) == ("mask", x.numel() // 8)
    assert gradient.dtype == x.dtype
