"""The option `samples`: gradient norms remembered by sample; item 13 of the faithfulness plan."""

import io
from collections.abc import Iterator

import pytest
import torch
from conftest import assert_same, gradients
from test_actnn_method import X, plain_net, train
from test_kernels import torch_threads
from torch import Tensor, nn

import baselines
import division


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def indexed(samples: int = 20) -> tuple[nn.Module, baselines.ActNN]:
    method = baselines.ActNN(samples=samples)
    return division.compress(plain_net(), method), method


def test_norms_of_samples_are_averaged_by_index() -> None:
    """Item 13: half the old, half the new; unseen samples count as the batch mean."""
    model, method = indexed()
    x = torch.randn(4, 3, 32, 32)
    for indices in ([3, 5, 7, 9], [9, 7, 0, 1]):
        method.set_indices(indices)
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        norms = (2 * y.detach()).square().sum(1)
        found = method.state_dict()["norms"]["averages"]["6 AddmmBackward0.mat1"]
        if indices[0] == 3:
            expected = torch.zeros(20)
            expected[indices] = 0.5 * norms
        else:
            expected[indices] = 0.5 * expected[indices] + 0.5 * norms
        assert torch.allclose(found, expected, rtol=1e-4)
    method.set_indices([9, 7, 12, 13])
    method.begin()
    weights = method._norms.weights("6 AddmmBackward0.mat1")
    mean = float(found[[9, 7]].mean()) + 1e-9
    assert weights == pytest.approx([*found[[9, 7]].tolist(), mean, mean])


def test_samples_with_larger_gradients_get_more_bits() -> None:
    """Item 13: what is remembered decides the allocation of the next epoch."""
    torch.manual_seed(0)
    model, method = indexed(8)
    weight = torch.tensor([1.0, 1.0, 1.0, 100.0, 1.0, 1.0, 1.0, 1.0])
    for _ in range(3):
        method.set_indices(range(8))
        (model(X).square().mean(1) * weight).sum().backward()
    kept = {}

    class Spy(baselines.ActNN):
        def stored(self, site, node, tensor, packed, shared):
            kept[site.path] = packed.tensors["bits"]
            super().stored(site, node, tensor, packed, shared)

    spy = Spy(samples=8)
    spy.load_state_dict(method.state_dict())
    twin = division.compress(division.restore(model), spy)
    spy.set_indices(range(8))
    twin(X)
    assert all(int(bits.argmax()) == 3 for bits in kept.values())


def test_missing_and_wrong_indices_raise() -> None:
    """Item 13."""
    model, method = indexed()
    with pytest.raises(ValueError, match="samples=20 needs set_indices"):
        model(X)
    for wrong, message in (
        ([0, 20], "indices must be from 0 to 19 .*; got 0 to 20"),
        ([-1, 2], "got -1 to 2"),
        ([0.5, 1.0], "indices must be a list of whole numbers"),
        ([[1, 2]], "indices must be a list of whole numbers"),
        ([], "indices must be a list of whole numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            method.set_indices(wrong)
    method.set_indices([1, 2, 3])
    with pytest.raises(ValueError, match="named 3 samples for a batch of 8"):
        model(X)
    method.set_indices(range(8))
    train(model, 1)
    with pytest.raises(ValueError, match="needs set_indices"):  # each batch has its own
        model(X)
    with torch.no_grad():
        model(X)
    with pytest.raises(ValueError, match="set_indices needs the option samples"):
        baselines.ActNN().set_indices([1])


def test_a_resumed_run_with_samples_is_bit_equal() -> None:
    """Item 13: averages and pending indices go through a file."""

    def steps(model: nn.Module, method: baselines.ActNN, batches: range) -> list[Tensor]:
        for i in batches:
            if i != batches[0]:
                method.set_indices([(8 * i + k) % 20 for k in range(8)])
            found = gradients(model, X)
        return found

    torch.manual_seed(0)
    model, method = indexed()
    method.set_indices(range(8))
    steps(model, method, range(3))
    method.set_indices([(24 + k) % 20 for k in range(8)])  # named, not used yet
    file = io.BytesIO()
    torch.save([model.state_dict(), method.state_dict()], file)
    expected = steps(model, method, range(3, 6))

    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again, resumed = indexed()
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert_same(expected, steps(again, resumed, range(3, 6)))
    other = baselines.ActNN(samples=7)
    with pytest.raises(ValueError, match="samples is 7, but the saved state is for 20"):
        other.load_state_dict(state)
