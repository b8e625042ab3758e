"""Masks that wait for the next layer: same bytes, nothing kept alive, no edit overlooked."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import division
from division.waiting import Waiting

SHAPE = (4, 8, 24, 24)


class Names(TorchDispatchMode):
    """The names of our operators, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.name()
        if name.startswith("division::"):
            self.seen.append(name.removeprefix("division::"))
        return operator(*args, **(kwargs or {}))


def compressed(*layers: nn.Module) -> nn.Module:
    return division.compress(nn.Sequential(nn.Conv2d(8, 8, 1), *layers), "division")


def kernels_of(net: nn.Module, x: Tensor) -> list[str]:
    with Names() as names:
        net(x)
    return names.seen


def test_one_pass_makes_the_mask_and_the_copy() -> None:
    x = torch.randn(SHAPE, requires_grad=True)
    net = compressed(nn.ReLU(), nn.Conv2d(8, 8, 3))
    assert kernels_of(net, x) == ["split_maps", "split_maps_masked"]
    last = net.to(memory_format=torch.channels_last)
    assert kernels_of(last, x.contiguous(memory_format=torch.channels_last)) == [
        "split_maps",
        "split_maps",
        "pack_mask",
    ]


@pytest.mark.parametrize("follower", [nn.MaxPool2d(2), nn.Identity(), nn.Flatten()])
def test_a_mask_that_nobody_takes_is_packed(follower: nn.Module) -> None:
    net = compressed(nn.ReLU(), follower)
    assert "pack_mask" in kernels_of(net, torch.randn(SHAPE, requires_grad=True))


@pytest.mark.parametrize("method", ["division", "actnn", "lossy", "pooling", "identity"])
def test_gradients_are_those_of_masks_that_do_not_wait(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    x, found = torch.randn(SHAPE), []
    for waits in (True, False):
        if not waits:
            monkeypatch.setattr(Waiting, "is_of", lambda self, tensor: False)
        division.compress(net, method)
        net.zero_grad()
        net(x).sum().backward()
        division.restore(net)
        found.append([p.grad.clone() for p in net.parameters()])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_a_backward_may_come_before_the_next_node() -> None:
    """The last node of a forward, and the capture still open."""
    x = torch.randn(SHAPE, requires_grad=True)
    with division.model.Capture(division.method.resolve("division")):
        y = x.relu()
        y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, (x > 0).float())


def test_a_dropped_tensor_is_freed_while_its_mask_waits() -> None:
    x = torch.randn(SHAPE, requires_grad=True)
    gc.disable()
    try:
        with division.model.Capture(division.method.resolve("division")):
            y = x.relu()
            storage = weakref.ref(y.untyped_storage())
            del y
            assert storage() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("next_node", [False, True])
def test_an_edit_before_the_mask_is_packed_is_refused(next_node: bool) -> None:
    """As by plain autograd: the mask would be that of other numbers."""
    x = torch.randn(SHAPE, requires_grad=True)
    with division.model.Capture(division.method.resolve("division")):
        y = x.relu()
        with torch.no_grad():
            y.neg_()
        z = F.conv2d(y, torch.randn(8, 8, 3, 3)) if next_node else y
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
