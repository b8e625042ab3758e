"""Attention: q, k and v through the codec, the rest rebuilt from them; bit-equal if exact."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from conftest import assert_same
from torch import Tensor, nn
from torch.nn import functional as F

import division
from division.ledger import Ledger

N, HEADS, T, D = 3, 4, 50, 16


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.randn(T, T, generator=torch.Generator().manual_seed(1))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def unfused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * D**-0.5, -1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Numbers whose product, or inverse, is not the same to the last bit."""
    return torch.softmax((q @ k.transpose(-2, -1)) / 48**0.5 * 0.3 * 0.7, -1) @ v


def shared_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Multi-query attention: the keys and values of all heads are views of one."""
    return F.scaled_dot_product_attention(q, k[:, :1].expand_as(q), v[:, :1].expand_as(q))


def masked_behind_the_graph(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    scores.detach().masked_fill_(torch.ones(T, T, dtype=torch.bool).triu(1), -1e9)
    return torch.softmax(scores, -1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = torch.linspace(0, 1, T)
    return torch.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)


FORMS = [fused, causal, masked, shared_keys, unfused, divided, biased, dropped]
FORMS.append(masked_behind_the_graph)
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def heads(x: Tensor, layer: nn.Linear) -> tuple[Tensor, ...]:
    """The views of a common projection that ViTs take: not dense."""
    return layer(x).view(N, T, 3, HEADS, D).permute(2, 0, 3, 1, 4).unbind(0)


def gradients(form: Form, method: str, **options: object) -> tuple[list[Tensor], Ledger]:
    torch.manual_seed(0)
    layer, x = nn.Linear(HEADS * D, 3 * HEADS * D), torch.randn(N, T, HEADS * D)
    x.requires_grad_()
    with division.capture(method, **options) as ledger:
        y = form(*heads(x, layer))
    y.square().sum().backward()
    return [x.grad, layer.weight.grad, layer.bias.grad], ledger


@pytest.mark.parametrize("form", FORMS)
def test_exact_copies_give_the_stock_gradients(form: Form) -> None:
    stock, _ = gradients(form, "vanilla")
    found, _ = gradients(form, "identity")
    assert_same(stock, found)


@pytest.mark.parametrize("form", [fused, causal, masked])
def test_output_and_statistics_are_rebuilt(form: Form) -> None:
    _, ledger = gradients(form, "division", bits=4)
    rows = {row.slot: row for row in ledger.rows if row.node.startswith("ScaledDot")}
    stored = rows["query, key, value"]  # parts of one projection: one copy
    assert stored.codec == "division"
    assert stored.bytes_before == 3 * N * HEADS * T * D * 4
    assert stored.bytes_after < stored.bytes_before / 6
    for slot in ("output", "logsumexp"):
        assert (rows[slot].codec, rows[slot].bytes_after) == ("rebuilt", 0)


def test_separate_inputs_have_copies_of_their_own() -> None:
    with division.capture("division") as ledger:
        fused(*(torch.randn(N, HEADS, T, D, requires_grad=True) for _ in range(3)))
    assert [row.slot for row in ledger.rows if row.compressed][-3:] == ["query", "key", "value"]


def test_all_five_agree_with_the_stored_inputs() -> None:
    """The gradient is the exact one of attention at the decompressed q, k and v."""
    inputs = [torch.randn(N, HEADS, T, D, requires_grad=True) for _ in range(3)]
    method = division.method.Division(bits=2)
    with division.capture(method):
        y = fused(*inputs)
    y.square().sum().backward()
    codec, packed = division.codecs.get("division", bits=2), []
    for number, x in enumerate(inputs, 1):
        seen = x.detach().transpose(1, 2).flatten(2)
        back = codec.decompress(codec.compress(seen, seed=number, channel=-1))
        packed.append(back.view(N, T, HEADS, D).transpose(1, 2).requires_grad_())
    z = fused(*packed)
    z.backward(2 * y.detach())
    for x, twin in zip(inputs, packed, strict=True):
        torch.testing.assert_close(x.grad, twin.grad)


def test_what_softmax_and_the_product_save_is_stored_once() -> None:
    _, ledger = gradients(biased, "division")
    softmax = next(row for row in ledger.rows if row.node == "SoftmaxBackward0")
    product = [row for row in ledger.rows if row.node == "BmmBackward0" and row.slot == "self"]
    assert softmax.codec == "division"
    assert softmax.bytes_after > 0
    assert [row.bytes_after for row in product if "shared" in row.why] == [0]
    assert all(row.compressed for row in product)


@pytest.mark.parametrize("form", [unfused, divided])
def test_weights_of_written_out_attention_are_rebuilt_from_q_and_k(form: Form) -> None:
    _, ledger = gradients(form, "division")
    weights = [row for row in ledger.rows if row.shape[-2:] == (T, T)]
    assert [row.node for row in weights] == ["SoftmaxBackward0", "BmmBackward0"]
    assert [row.bytes_after for row in weights] == [0, 0]
    assert weights[0].codec == "rebuilt"
    assert weights[0].bytes_before == N * HEADS * T * T * 4


def test_a_graph_can_be_used_twice() -> None:
    x = torch.randn(N, HEADS, T, D, requires_grad=True)
    with division.capture("division"):
        y = fused(x, x, x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


def test_nothing_outlives_the_graph() -> None:
    x = torch.randn(N, HEADS, T, D, requires_grad=True)
    with division.capture("division"):
        y = fused(x, x * 2, x * 3)
    output = weakref.ref(y.untyped_storage())
    del y
    gc.collect()
    assert output() is None


@pytest.mark.parametrize("weights", [False, True])
def test_multihead_attention(weights: bool) -> None:
    x = torch.randn(2, T, 64)
    results = []
    for method in ("vanilla", "identity"):
        torch.manual_seed(0)
        layer = division.compress(nn.MultiheadAttention(64, 4, batch_first=True), method)
        layer(x, x, x, need_weights=weights)[0].square().sum().backward()
        results.append([p.grad for p in layer.parameters()])
    assert_same(*results)


def test_small_attention_stays_stock() -> None:
    x = torch.randn(1, 1, 8, 8, requires_grad=True)
    with division.capture("division") as ledger:
        y = fused(x, x, x)
    y.sum().backward()
    assert {row.codec for row in ledger.rows} == {"stock"}
    assert all("small" in row.why for row in ledger.rows)
