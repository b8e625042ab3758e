"""What every registered method owes: it trains, resumes bit for bit, copies, and can be undone."""

import copy
import gc
import inspect
import io
import pickle

import pytest
import torch
from conftest import assert_same, gradients, small_net
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import division
from division.method import resolve
from experiments import build
from experiments.config import FOLDER, compose_train

DESIGNED = [
    *("actnn", "autocast", "checkpoint", "division", "identity"),
    *("lossy", "offload", "pooling", "vanilla"),
]
X, Y = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


@pytest.fixture(params=DESIGNED)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_methods_are_those_of_the_design() -> None:
    assert division.methods() == DESIGNED


def test_it_trains(method: str) -> None:
    model = division.compress(small_net(), method)
    losses = train(model, sgd(model), 25)
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])


def test_a_run_that_is_resumed_ends_with_the_same_weights(method: str) -> None:
    """The state of the method goes through a file that is read with weights_only."""
    model = division.compress(small_net(), method)
    optimizer = sgd(model)
    train(model, optimizer, 3)
    kept = division.method_of(model)
    saved = io.BytesIO()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "method": kept.state_dict() if kept else {},
            "rng": torch.get_rng_state(),
        },
        saved,
    )
    train(model, optimizer, 3)

    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    again = division.compress(small_net(), method)
    again.load_state_dict(state["model"])
    optimizer = sgd(again)
    optimizer.load_state_dict(state["optimizer"])
    resumed = division.method_of(again)
    if resumed is not None:
        resumed.load_state_dict(state["method"])
    torch.set_rng_state(state["rng"])
    train(again, optimizer, 3)
    assert_same(list(model.parameters()), list(again.parameters()))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_trains_on_its_own(method: str, duplicate) -> None:
    model = division.compress(small_net(), method)
    train(model, sgd(model), 2)
    twin = duplicate(model)
    untouched = [p.detach().clone() for p in model.parameters()]
    random = torch.get_rng_state()
    train(twin, sgd(twin), 2)
    assert_same(untouched, list(model.parameters()))
    torch.set_rng_state(random)
    train(model, sgd(model), 2)
    assert_same(list(model.parameters()), list(twin.parameters()))


def test_measuring_leaves_no_trace(method: str) -> None:
    losses, stock = [], division.measure(small_net(), X).original_bytes
    for measured in (False, True):
        torch.manual_seed(0)
        model = division.compress(small_net(), method)
        optimizer = sgd(model)
        train(model, optimizer, 2)
        if measured:
            report = division.measure(model, X)
            assert report.original_bytes == stock
            assert 0 < report.saved_bytes <= report.original_bytes
        losses.append(train(model, optimizer, 2))
    assert losses[0] == losses[1]


def test_a_graph_that_is_dropped_frees_everything(method: str) -> None:
    """Also what is measured: no cycle through the graph keeps a map alive."""
    model = division.compress(small_net(), method)
    train(model, sgd(model), 1)
    maps: list[StorageWeakRef] = []
    model[1].register_forward_hook(
        lambda _m, _x, y: maps.append(StorageWeakRef(y.untyped_storage()))
    )
    for use in (model, lambda x: division.measure(model, x)):
        output = use(X)
        del output
    gc.collect()
    assert len(maps) >= 2
    assert all(ref.expired() for ref in maps)


def test_restoring_gives_the_stock_model_back(method: str) -> None:
    stock = small_net()
    model = division.compress(copy.deepcopy(stock), method)
    gradients(model, X)
    division.restore(model).load_state_dict(stock.state_dict())
    assert_same(gradients(stock, X), gradients(model, X))
    for module, twin in zip(stock.modules(), model.modules(), strict=True):
        assert module.__dict__.keys() == twin.__dict__.keys()
    assert not any(getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters())


def test_the_config_has_the_options_of_the_class(method: str) -> None:
    """Same names in Python and in configs/method, and every default there is taken."""
    assert (FOLDER / "method" / f"{method}.yaml").exists()
    name, options = build.options(compose_train([f"method={method}"]).method)
    built = resolve(name, **options)
    known = set(inspect.signature(type(built)).parameters)
    assert set(options) <= known
    assert built == type(built)()  # the config repeats the defaults, so that a reader sees them


def test_an_unknown_option_lists_the_known_ones(method: str) -> None:
    with pytest.raises(ValueError, match=f"method '{method}' has no option 'bitz'; its options: "):
        division.compress(small_net(), method, bitz=2)
