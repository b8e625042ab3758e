"""ActNN as a method: levels, budget, what it learns, and how that survives."""

import copy
import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from conftest import assert_same, gradients, small_net
from test_kernels import torch_threads
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torchvision.models import resnet50

import baselines
import division
from baselines.actnn.sensitivity import Share

X = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LEVELS = ("L0", "L1", "L2", "L3")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Many small steps: on a busy machine threads make them far slower."""
    with torch_threads(1):
        yield


def plain_net() -> nn.Sequential:
    """Layers of very different width, no norms."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 16, 1),
        nn.Flatten(),
        nn.Linear(16 * 16 * 16, 10),
    )


def train(model: nn.Module, steps: int, x: Tensor = X) -> None:
    for _ in range(steps):
        gradients(model, x)


def bits_of(model: nn.Module) -> dict[str, float]:
    return division.method_of(model).state_dict()["bits"]


def stored_bits(model: nn.Module, x: Tensor = X) -> tuple[float, float]:
    """Bits an element that went through the codec, and what its metadata may take."""
    rows = [r for r in division.measure(model, x).rows if r.codec == "actnn" and r.bytes_after]
    shapes = [torch.Size(row.shape) for row in rows]
    elements = sum(shape.numel() for shape in shapes)
    metadata = sum(s[0] * (4 * -(-s[1:].numel() // 256) + 1) for s in shapes)
    return 8 * sum(r.bytes_after for r in rows) / elements, 8 * metadata / elements


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "L5"}, "level must be one of 'L0', 'L1', 'L2', 'L3'; got 'L5'"),
        ({"bits": 0.9}, "bits must be a number from 1 to 8; got 0.9"),
        ({"bits": 8.5}, "bits must be a number from 1 to 8; got 8.5"),
        ({"bits": 1.5, "level": "L1"}, "bits must be whole where all samples have the same"),
        ({"bits": 2.5, "level": "L2"}, "bits must be whole where all samples have the same"),
        ({"bits": 2, "level": "L0"}, "bits: level 'L0' quantizes nothing; got 2"),
        ({"group": 48}, "group must be a multiple of 32 from 32 to 65536; got 48"),
        ({"samples": -1}, "samples must be a whole number"),
        ({"samples": 9, "level": "L2"}, "samples: level 'L2' allocates nothing"),
    ],
)
def test_bad_options_say_what_is_allowed(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        division.compress(small_net(), "actnn", **options)


def test_levels_compress_what_they_say() -> None:
    rows = {}
    for level in LEVELS:
        model = division.compress(small_net(), baselines.ActNN(level=level))
        rows[level] = division.measure(model, X).rows
    kinds = {k: {r.node for r in v if r.codec == "actnn"} for k, v in rows.items()}
    assert kinds["L0"] == set()
    assert kinds["L1"] == {"ConvolutionBackward0"}
    assert kinds["L2"] == kinds["L3"] == {"ConvolutionBackward0", "NativeBatchNormBackward0"}
    assert all(any(r.codec == "mask" for r in found) for found in rows.values())
    sizes = [sum(r.bytes_after for r in rows[level]) for level in LEVELS]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("level", LEVELS)
def test_forward_is_the_stock_one(level: str) -> None:
    """Item 8: bit for bit at every level."""
    stock = small_net().eval()  # no dropout
    model = division.compress(copy.deepcopy(stock), "actnn", level=level)
    for _ in range(3):
        assert torch.equal(model(X), stock(X))
        train(model, 1)
        model.load_state_dict(stock.state_dict())


@pytest.mark.parametrize("level", LEVELS)
def test_masks_and_pools_are_exact(level: str) -> None:
    """Item 8: gradients of ReLU, dropout, max and average pooling; of equals the first wins."""

    def gradient(method: baselines.ActNN | None) -> Tensor:
        torch.manual_seed(3)
        x = torch.randn(4, 8, 32, 32).mul(3).round().requires_grad_()
        with division.capture(method or "vanilla"):
            y = F.dropout(F.relu(x), 0.3)
            y = F.avg_pool2d(F.max_pool2d(y, 3, 2, 1), 2)
        (y * torch.randn(y.shape)).sum().backward()
        return x.grad

    assert torch.equal(gradient(baselines.ActNN(level=level)), gradient(None))


def test_sizes_of_resnet50_at_batch_256() -> None:
    """The published figure is 10.5 to 11 times less (20.48 -> 1.94 GiB)."""
    with FakeTensorMode():
        model = division.compress(resnet50(), "actnn")
        report = division.measure(model, torch.randn(256, 3, 224, 224))
    assert abs(report.original_bytes / 2**30 - 20.48) < 0.01
    assert report.ratio > 11
    assert report.ratio < 13


@pytest.mark.parametrize("bits", [1, 1.25, 1.5, 2, 3])
def test_the_budget_is_kept_in_bytes(bits: float) -> None:
    """Item 11: batch norms included, whatever the layers were given."""
    model = division.compress(small_net(), baselines.ActNN(bits=bits))
    for _ in range(4):
        found, metadata = stored_bits(model)
        assert found <= bits + metadata + 1e-9
        assert found > bits + metadata - 0.3
        train(model, 1)
    if bits > 1:
        assert len(set(bits_of(model).values())) > 1
    assert f"the budget is {bits}" in division.method_of(model).report()


def test_uniform_until_there_are_sensitivities() -> None:
    model = division.compress(plain_net(), baselines.ActNN(bits=2))
    model(X)
    model(X)
    assert bits_of(model) == {}
    train(model, 1)
    model(X)
    assert len(set(bits_of(model).values())) > 1


def test_report_lists_the_layers_in_running_order() -> None:
    model = division.compress(plain_net(), baselines.ActNN())
    train(model, 2)
    report = division.method_of(model).report().splitlines()
    assert [line.split()[2] for line in report[1:-1]] == ["0", "2", "4", "6"]
    assert "100.0%" in report[-1]


def test_a_changed_batch_and_heads_with_more_rows() -> None:
    """Layers may see different numbers of samples, and the last batch may be smaller."""

    class Regions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.head = nn.Linear(256, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x).flatten()[: 256 * 333].view(333, 256)).sum(0)

    for build in (plain_net, Regions):
        model = division.compress(build(), baselines.ActNN(bits=1.5))
        for batch in (8, 8, 6, 8):
            train(model, 1, X[:batch])
            found, metadata = stored_bits(model, X[:batch])
            assert found <= 1.5 + metadata + 1e-9
        assert len(bits_of(model)) == len(list(model.parameters())) // 2


def test_vanishing_and_unused_layers_do_not_block() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.unused = (
                nn.Conv2d(c, 16, 3, padding=1) for c in (3, 16, 16, 16)
            )
            self.take = "a"

        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x)
            self.unused(y.detach() + 1)  # never gets a gradient
            return getattr(self, self.take)(y.relu())

    model = division.compress(Branches(), baselines.ActNN(bits=1.5))
    train(model, 2)
    model.take = "b"
    train(model, 2)
    found = {key.split()[0]: bits for key, bits in bits_of(model).items()}
    assert set(found) == {"stem", "a", "b", "unused"}
    assert found["unused"] == 1.5
    assert len(set(found.values())) > 1


def test_a_shared_tensor_matters_to_all_its_layers() -> None:
    """Two layers of one input: one copy, whose sensitivity is the sum."""

    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.small, self.large = nn.Conv2d(16, 8, 1), nn.Conv2d(16, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.stem(x).relu()
            return self.small(y) * 1e-3 + self.large(y)

    model = division.compress(Fork(), baselines.ActNN())
    train(model, 1)
    shares = division.method_of(model).state_dict()["shares"]
    assert [key.split()[0] for key in shares] == ["stem", "small"]
    elements, terms = shares["small ConvolutionBackward0.input"]
    assert elements == 8 * 16 * 32 * 32
    assert [layer.split()[0] for layer in terms_of(terms)] == ["small", "large"]
    seen = division.method_of(model).state_dict()["gradients"]
    both, *alone = (
        Share(elements, terms).costs({layer: seen[layer] for layer in layers})
        for layers in (terms_of(terms), terms_of(terms[:1]), terms_of(terms[1:]))
    )
    assert both.tolist() == pytest.approx((alone[0] + alone[1]).tolist())
    assert alone[1].sum() > 1e4 * alone[0].sum()


def terms_of(terms: list[tuple[str, float, Tensor]]) -> list[str]:
    return [layer for layer, _, _ in terms]


def test_a_module_that_runs_twice_adds_up() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(self.body(self.stem(x)).relu())

    model = division.compress(Twice(), baselines.ActNN())
    train(model, 2)
    state = division.method_of(model).state_dict()
    elements, terms = state["shares"]["body ConvolutionBackward0.input"]
    assert elements == 2 * 8 * 16 * 32 * 32
    assert len(terms) == 2
    assert len(state["gradients"]) == 3


def test_a_graph_that_is_dropped_is_freed() -> None:
    """The watch on a node knows neither the node nor the tensor: no cycle, no leak."""
    found: list[weakref.ref] = []

    class Spy(baselines.ActNN):
        def stored(self, site, node, tensor, packed, shared):
            super().stored(site, node, tensor, packed, shared)
            found.extend((weakref.ref(packed), weakref.ref(tensor)))

    model = division.compress(plain_net(), Spy())
    gc.disable()
    try:
        loss = model(X).sum()
        assert sum(reference() is not None for reference in found) == 4
        del loss
        assert not any(reference() for reference in found)
    finally:
        gc.enable()


def test_two_models_learn_apart() -> None:
    one, two = (division.compress(plain_net(), "actnn") for _ in range(2))
    train(one, 2)
    assert bits_of(one)
    assert not bits_of(two)


def test_measuring_between_forward_and_backward_changes_nothing() -> None:
    results = []
    for measured in (False, True):
        torch.manual_seed(0)
        model = division.compress(plain_net(), "actnn")
        for _ in range(3):
            loss = model(X).square().mean()
            if measured:
                division.measure(model, X[:4])
            loss.backward()
        results.append((bits_of(model), [p.grad for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    assert_same(results[0][1], results[1][1])


def test_overflowing_gradients_are_not_learnt_from() -> None:
    model = division.compress(plain_net(), "actnn")
    train(model, 2)
    before = division.method_of(model).state_dict()["gradients"]
    (model(X).sum() * torch.inf).backward()
    after = division.method_of(model).state_dict()["gradients"]
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_a_foreign_state_is_refused() -> None:
    with pytest.raises(ValueError, match="no state of actnn: it lacks"):
        baselines.ActNN().load_state_dict({"drawn": 3})
