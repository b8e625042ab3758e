"""A network trained with the interpreted GPU kernels gets the CPU kernels' weights, bit for bit."""

from collections.abc import Iterator

import pytest
import torch
from test_kernels import assert_same, torch_threads

import division
from division import kernels
from experiments import models


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def trained(
    backend: str, method: str, layout: torch.memory_format, steps: int, **options
) -> dict[str, torch.Tensor]:
    """Train a small resnet20 for a few steps; return its state."""
    torch.manual_seed(0)
    model = models.build("resnet20").to(memory_format=layout)
    division.compress(model, method, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 3, 16, 16).contiguous(memory_format=layout)
    with kernels.use(backend):
        assert division.measure(model, x).kernels == backend
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), torch.arange(len(x))).backward()
            optimizer.step()
    return model.state_dict()


def check(method: str, layout: torch.memory_format, steps: int = 3, **options) -> None:
    expected, found = (trained(b, method, layout, steps, **options) for b in ("cpu", "gpu"))
    assert expected.keys() == found.keys()
    for name, theirs in expected.items():
        assert_same(found[name], theirs)
    untrained = models.build("resnet20").state_dict()
    assert not torch.equal(found["conv1.weight"], untrained["conv1.weight"])


@pytest.mark.slow
def test_division_trains_alike(layout):
    check("division", layout)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["actnn", "lossy", "pooling"])
def test_rivals_train_alike(method):
    check(method, torch.channels_last, steps=2)
