"""The lossy method: which gradients it touches, memory, state, hooks, options."""

import copy
import gc
import io
import math
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import assert_same, gradients, small_net
from test_kernels import torch_threads
from test_lossy_adaptive import adaptive_run, bounds, smooth, step
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import baselines
import division
from division.site import Site


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def test_input_and_bias_gradients_are_untouched() -> None:
    """Item 7: only the weight gradient sees the error."""
    conv = nn.Conv2d(8, 16, 3, padding=1)
    x = torch.randn(4, 8, 16, 16, requires_grad=True)

    def run(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        return torch.autograd.grad(model(x).square().sum(), (x, conv.weight, conv.bias))

    exact = run(conv)
    rough = run(division.compress(conv, "lossy", error_bound=0.3))
    assert torch.equal(exact[0], rough[0])
    assert torch.equal(exact[2], rough[2])
    assert not torch.equal(exact[1], rough[1])


def test_bounds_from_tiny_to_huge() -> None:
    """Item 8: exact in the limit; no crash and no weight gradient where everything rounds to 0."""
    conv = nn.Conv2d(8, 16, 3, padding=1, bias=False)
    x = torch.randn(4, 8, 16, 16)
    (exact,) = gradients(copy.deepcopy(conv), x)
    for scope in ("conv", "all"):
        (fine,) = gradients(
            division.compress(copy.deepcopy(conv), "lossy", error_bound=1e-7, scope=scope), x
        )
        assert torch.allclose(fine, exact, rtol=1e-4, atol=1e-6)
    (rough,) = gradients(division.compress(copy.deepcopy(conv), "lossy", error_bound=1e6), x)
    assert not bool(rough.any())


def test_no_original_survives_the_forward() -> None:
    """Item 10: the conv input is freed; ReLU holds one bit an element."""
    found: dict[str, weakref.ref] = {}

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found["input"] = weakref.ref(x.untyped_storage())
            return x

    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), Watch(), nn.Conv2d(16, 16, 3))
    division.compress(model, "lossy", interval=1000)
    loss = model(torch.randn(4, 3, 32, 32)).sum()
    gc.collect()
    assert found["input"]() is None
    loss.backward()

    ledger = division.measure(model, torch.randn(4, 3, 32, 32))
    rows = {row.node: row for row in ledger.rows if row.compressed}
    relu = rows["ReluBackward0"]
    assert relu.bytes_after == math.prod(relu.shape) // 8
    assert all(row.codec == "lossy" for row in ledger.rows if row.node.startswith("Conv"))
    # Apart from the compressed slots autograd holds weights only.
    assert ledger.saved_bytes < ledger.original_bytes / 3


def test_scopes() -> None:
    """The paper compresses convolution inputs only; the rest of a network stays."""
    x = smooth(8, 3, 32, 32)
    conv, everything = (
        division.measure(division.compress(small_net(), "lossy", scope=scope), x)
        for scope in ("conv", "all")
    )
    kept = [row for row in conv.rows if "Norm" in row.node and row.slot == "input"]
    assert kept
    assert all(row.why == "lossy leaves it" for row in kept)
    assert all(row.codec == "lossy" for row in everything.rows if row.slot == "input")
    assert conv.ratio < everything.ratio


@pytest.mark.parametrize("scope", ["conv", "all"])
@pytest.mark.parametrize("dither", [False, True])
def test_a_resumed_run_is_bit_equal(scope: str, dither: bool) -> None:
    torch.manual_seed(3)
    data = [smooth(8, 3, 32, 32) for _ in range(12)]
    start = small_net().train()
    start[5].p = 0.0  # the dropout would draw from the global generator

    def train(model: nn.Module, part: list[Tensor]) -> None:
        for x in part:
            step(model, x, lr=0.01)

    through = division.compress(
        copy.deepcopy(start), baselines.Lossy(interval=4, scope=scope, dither=dither)
    )
    train(through, data[:6])
    file = io.BytesIO()
    torch.save((through.state_dict(), division.method_of(through).state_dict()), file)
    train(through, data[6:])

    file.seek(0)
    model_state, method_state = torch.load(file, weights_only=True)
    resumed = copy.deepcopy(start)
    resumed.load_state_dict(model_state)
    method = baselines.Lossy(interval=4, scope=scope, dither=dither)
    method.load_state_dict(method_state)
    division.compress(resumed, method)
    train(resumed, data[6:])
    assert_same(list(through.state_dict().values()), list(resumed.state_dict().values()))
    assert bounds(method) == bounds(division.method_of(through))
    assert len({*bounds(method)}) > 1


def test_measuring_leaves_no_trace() -> None:
    method = adaptive_run(8)
    model = division.compress(small_net(), method)
    for _ in range(3):
        before = pickle.dumps(_plain(method.state_dict()))
        division.measure(model, torch.randn(8, 3, 32, 32))
        assert pickle.dumps(_plain(method.state_dict())) == before
        step(model, torch.randn(8, 3, 32, 32))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, Tensor) else state


def test_copies_and_pickles_learn_on_their_own() -> None:
    method = baselines.Lossy(interval=3)
    model = division.compress(small_net(), method)
    x = smooth(8, 3, 32, 32)
    step(model, x)
    twins = (copy.deepcopy(model), pickle.loads(pickle.dumps(model)))
    for _ in range(3):
        step(model, x)
    for twin in twins:
        theirs = division.method_of(twin)
        assert theirs is not method
        assert bounds(theirs) == [0.01] * 7
        for _ in range(3):
            step(twin, x)
        assert bounds(theirs) != [0.01] * 7


def hooks(model: nn.Module) -> int:
    return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def test_restoring_takes_the_hooks_off() -> None:
    model = small_net()
    division.compress(model, "lossy")
    for _ in range(3):
        step(model, torch.randn(8, 3, 32, 32))
    assert hooks(model) == 7
    division.restore(model)
    assert hooks(model) == 0


def test_captures_leave_no_hooks_behind() -> None:
    """The method of a capture ends with it; the hooks go at the next backward."""
    model = small_net()
    for _ in range(3):
        with division.capture("lossy"):
            loss = model(torch.randn(8, 3, 32, 32)).sum()
        gc.collect()
        loss.backward()
    assert hooks(model) == 0


def test_a_graph_without_backward_is_freed() -> None:
    """A sampled layer keeps its error map no longer than its graph."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    method = baselines.Lossy(interval=1)  # every layer is sampled at every step
    division.compress(model, method)
    sizes = []
    for _ in range(3):
        loss = model(torch.randn(4, 3, 32, 32)).sum()
        held = [o for o in gc.get_objects() if type(o).__name__ == "Probe"]
        assert len(held) == 2
        del held, loss
        gc.collect()
        sizes.append(sum(type(o).__name__ == "Probe" for o in gc.get_objects()))
    assert sizes == [0, 0, 0]


def test_a_fixed_bound_stays_and_registers_nothing() -> None:
    method = baselines.Lossy(error_bound=0.05, adaptive=False, interval=2)
    model = division.compress(small_net(), method)
    for _ in range(5):
        step(model, torch.randn(8, 3, 32, 32))
    assert hooks(model) == 0
    assert method._layers == {}
    codec = method.codec(Site("", None, "ConvolutionBackward0", "input"))
    assert codec == baselines.lossy.LossyCodec(0.05)


def test_sizes_without_data() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = division.compress(small_net(), "lossy", scope="all", assumed_ratio=8.0)
        ledger = division.measure(model, torch.empty(8, 3, 32, 32))
    row = next(row for row in ledger.rows if row.codec == "lossy")
    assert row.bytes_before == pytest.approx(8 * row.bytes_after, rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"error_bound": 0.0}, "error_bound must be a number"),
        ({"coding": "sz"}, "coding must be one of 'fixed', 'huffman'"),
        ({"scope": "linear"}, "scope must be one of 'conv', 'all'"),
        ({"interval": 0}, "interval must be a whole number from 1"),
        ({"target": -1.0}, "target must be a number"),
        ({"momentum": 1.0}, "momentum must be a number from 0 to"),
        ({"adaptive": "yes"}, "adaptive must be one of True, False"),
    ],
)
def test_bad_options_say_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        division.compress(small_net(), "lossy", **options)


def test_training_with_it_learns() -> None:
    """Same seed, same data: the loss falls as it does without compression."""

    def losses(method: str, **options: Any) -> list[float]:
        torch.manual_seed(0)
        model = division.compress(small_net(), method, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        classes = F.interpolate(torch.randn(10, 3, 8, 8), 32, mode="bilinear")
        seen = []
        for _ in range(40):
            y = torch.randint(0, 10, (16,))
            x = classes[y] + 0.3 * torch.randn(16, 3, 32, 32)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    stock = losses("vanilla")
    compressed = losses("lossy", scope="all", interval=10)
    assert sum(compressed[-10:]) == pytest.approx(sum(stock[-10:]), rel=0.3)
