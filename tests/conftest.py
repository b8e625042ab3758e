"""Shared fixtures: fixed seeds, and small networks that meet every row of the slot table."""

import copy
import os
from collections.abc import Callable
from pathlib import Path

# The GPU kernels are interpreted in the tests, unless a machine with a GPU says otherwise; Triton
# asks only once, when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from made_up_cifar import make_up
from torch import Tensor, nn

import division
from division.ledger import Ledger

IMAGE = (4, 3, 32, 32)
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, or where its kernels are interpreted."""
    why = ""
    if not torch.cuda.is_available():
        why = "needs a GPU, and torch finds none here"
    elif os.environ["TRITON_INTERPRET"] == "1":
        why = "needs compiled kernels: make test-gpu"
    for item in items:
        if why and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> torch.memory_format:
    return LAYOUTS[request.param]


@pytest.fixture
def data_dir() -> Path:
    """The folder with real data, where the machine has one."""
    folder = os.environ.get("DATA_DIR")
    if not folder or not Path(folder).is_dir():
        pytest.skip("DATA_DIR names no folder with data")
    return Path(folder)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for data, and no other."""
    monkeypatch.delenv("DATA_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "store"


@pytest.fixture(params=["cifar10", "cifar100"])
def made_up(request: pytest.FixtureRequest, places: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return make_up(request.param, places, monkeypatch)


@pytest.fixture
def made_up10(places: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return make_up("cifar10", places, monkeypatch)


class Residual(nn.Module):
    """conv-bn-relu twice with a downsampling shortcut; in place where PyTorch allows it."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).relu_()
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return torch.nn.functional.relu(y, inplace=True)


def small_net() -> nn.Sequential:
    """A residual network with pooling, dropout and a classifier, for 32-pixel images."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(16, 32),
        nn.Dropout(0.2),
        Residual(32, 32, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def gradients(model: nn.Module, *inputs: Tensor, seed: int = 1) -> list[Tensor | None]:
    """Gradients of a plain loss, with dropout drawn from `seed`."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    output = model(*inputs)
    outputs = output.values() if isinstance(output, dict) else output
    parts = outputs if not isinstance(outputs, Tensor) else [outputs]
    torch.stack([part.float().square().mean() for part in parts]).sum().backward()
    return [p.grad for p in model.parameters()]


def assert_same(expected: list[Tensor | None], found: list[Tensor | None]) -> None:
    """Bit for bit, including which gradients are missing."""
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


def compare(build: Callable[[], nn.Module], *inputs: Tensor) -> Ledger:
    """Gradients under the identity method equal stock ones; returns the ledger of a forward."""
    model = build()
    twin = division.compress(copy.deepcopy(model), "identity")
    assert_same(gradients(model, *inputs), gradients(twin, *inputs))
    assert_same(list(model.buffers()), list(twin.buffers()))
    return division.measure(twin, *inputs)


class Lambda(nn.Module):
    """A function of its input and two convolutions."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.last = nn.Conv2d(16, 8, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))
