"""Recipes: what a cheap layer can compute again is not stored, and is never silently wrong."""

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import division
from division.stored import Stored

IMAGES = (4, 3, 24, 24)


def conv_net(norm: Callable[[int], nn.Module], activation: nn.Module) -> nn.Sequential:
    """Norms with weights that are not their initial ones."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), norm(16), activation, nn.Conv2d(16, 16, 3, padding=1)
    )
    for parameter in net[1].parameters():
        nn.init.normal_(parameter)
    return net


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    net(x).square().mean().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def rebuilt(net: nn.Module, x: Tensor) -> dict[str, str]:
    return {row.site: row.why for row in division.measure(net, x).rows if row.codec == "rebuilt"}


def assert_close(found: list[Tensor], exact: list[Tensor]) -> None:
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    """A residual block written with operators."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=self.in_place)
        y = self.bn2(self.conv2(y))
        y = y.add_(x) if self.in_place else y + x
        return F.relu(y, inplace=self.in_place)


class Dense(nn.Module):
    """Two normed branches side by side, and a slice of them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.conv, self.last = nn.Conv2d(6, 8, 3), nn.Conv2d(4, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(x * 2)], 1)
        return self.conv(both) + self.last(both[:, 1:5])


NETS: dict[str, tuple[nn.Module, tuple[int, ...], set[str]]] = {
    "batch norm, relu": (conv_net(nn.BatchNorm2d, nn.ReLU()), IMAGES, {"3"}),
    "relu in place": (conv_net(nn.BatchNorm2d, nn.ReLU(inplace=True)), IMAGES, {"3"}),
    "silu": (conv_net(nn.BatchNorm2d, nn.SiLU()), IMAGES, {"2", "3"}),
    "hardswish": (conv_net(nn.BatchNorm2d, nn.Hardswish()), IMAGES, {"2", "3"}),
    "dropout": (conv_net(nn.BatchNorm2d, nn.Dropout(0.4)), IMAGES, {"3"}),
    "group norm": (conv_net(lambda c: nn.GroupNorm(4, c), nn.ReLU()), IMAGES, {"3"}),
    "no affine": (conv_net(lambda c: nn.BatchNorm2d(c, affine=False), nn.ReLU()), IMAGES, {"3"}),
    "eval": (conv_net(nn.BatchNorm2d, nn.ReLU()).eval(), IMAGES, {"3"}),
    "mlp": (
        nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 96), nn.GELU("tanh"), nn.Linear(96, 8)),
        (8, 33, 24),
        {"1", "3"},
    ),
    "residual": (
        nn.Sequential(nn.Conv2d(3, 8, 1), *(Block(in_place=False) for _ in range(3))),
        IMAGES,
        {"1.conv2", "2.conv2", "3.conv2", "2.conv1"},
    ),
    "residual in place": (
        nn.Sequential(nn.Conv2d(3, 8, 1), *(Block(in_place=True) for _ in range(3))),
        IMAGES,
        {"1.conv2", "2.conv2", "3.conv2", "2.conv1"},
    ),
    "concatenation": (Dense(), (4, 3, 40, 40), {"conv", "last"}),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", NETS)
def test_exact_copies_give_exact_gradients(name: str, layout: torch.memory_format) -> None:
    net, shape, sites = NETS[name]
    net, x = copy.deepcopy(net), torch.randn(shape, generator=torch.Generator().manual_seed(2))
    if len(shape) == 4:
        net, x = net.to(memory_format=layout), x.contiguous(memory_format=layout)
    x.requires_grad_()
    exact = gradients(net, x)
    division.compress(net, "identity", recompute="deep")
    assert set(rebuilt(net, x)) == sites
    assert_close(gradients(net, x), exact)
    assert_close(gradients(net, x), exact)  # nothing is left behind by the first pass


def test_residual_sums_are_rebuilt_only_if_asked_for() -> None:
    net, shape, sites = NETS["residual"]
    net = division.compress(copy.deepcopy(net), "division", recompute=True)
    assert set(rebuilt(net, torch.randn(shape))) == sites - {"2.conv1"}
    with pytest.raises(ValueError, match="recompute must be one of False, True, 'deep'; got 'all'"):
        division.compress(nn.Conv2d(3, 8, 3), "division", recompute="all")


def test_the_ledger_says_from_what_a_tensor_is_rebuilt() -> None:
    net = division.compress(conv_net(nn.BatchNorm2d, nn.ReLU()), "division", recompute=True)
    assert rebuilt(net, torch.randn(IMAGES)) == {"3": "rebuilt from what 1 stores"}


def test_a_rebuilt_input_is_the_norm_of_the_stored_one_under_the_exact_mask() -> None:
    """Lossy codes blur the values, but not where ReLU gave zero."""
    net, x = conv_net(nn.BatchNorm2d, nn.ReLU()), torch.randn(IMAGES)
    division.compress(net, "division", bits=4, recompute=True)
    out = net(x)
    inside, exact = out.grad_fn._saved_input, net[:3](x)
    assert torch.equal(inside == 0, exact == 0)
    assert not torch.allclose(inside, exact, rtol=1e-2)
    assert torch.corrcoef(torch.stack([inside.flatten(), exact.flatten()]))[0, 1] > 0.95


def test_memory_falls() -> None:
    for net, shape, _ in NETS.values():
        plain, spared = (
            division.measure(
                division.compress(copy.deepcopy(net), "division", recompute=recompute),
                torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_(),
            ).saved_bytes
            for recompute in (False, True)
        )
        assert spared < plain


class Edited(nn.Module):
    """Somebody writes to a tensor behind autograd's back."""

    def __init__(self, where: str, in_place: bool) -> None:
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.where, self.in_place = where, in_place

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        if self.where == "before relu":
            with torch.no_grad():
                y.add_(1)
        if self.where == "after norm":
            with torch.no_grad():
                y[0].mul_(3)
            return self.last(y)
        z = F.relu(y, inplace=self.in_place)
        out = self.last(z)
        if self.where == "after use":
            with torch.no_grad():
                z.zero_()
        return out


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("where", ["before relu", "after norm"])
def test_an_edit_on_the_way_is_seen(where: str, in_place: bool) -> None:
    net, x = Edited(where, in_place), torch.randn(IMAGES)
    exact = gradients(net, x)
    division.compress(net, "identity", recompute=True)
    assert "last" not in rebuilt(net, x)
    assert_close(gradients(net, x), exact)


def test_an_edit_after_use_changes_nothing_that_is_rebuilt() -> None:
    """Stock autograd would refuse; the copy was made before the edit."""
    net, x = Edited("after use", False), torch.randn(IMAGES)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(net, x)
    untouched = copy.deepcopy(net)
    untouched.where = ""
    division.compress(net, "identity", recompute=True)
    assert_close(gradients(net, x), gradients(untouched, x))


def test_weights_may_change_before_the_backward_pass() -> None:
    net, x = conv_net(nn.BatchNorm2d, nn.ReLU()), torch.randn(IMAGES)
    exact = gradients(net, x)[4]
    division.compress(net, "identity", recompute=True)
    net.zero_grad(set_to_none=True)
    loss = net(x).square().mean()
    with torch.no_grad():
        net[1].bias.add_(1)
    loss.backward()
    torch.testing.assert_close(net[3].weight.grad, exact, rtol=1e-5, atol=1e-6)


def test_a_dropped_graph_frees_its_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the garbage collector, and while the capture is still open."""
    copies: list[weakref.ref[Stored]] = []
    make = Stored.__init__

    def watched(self: Stored, *arguments: object) -> None:
        make(self, *arguments)
        copies.append(weakref.ref(self))

    monkeypatch.setattr(Stored, "__init__", watched)
    net = conv_net(nn.BatchNorm2d, nn.ReLU())
    gc.disable()
    try:
        with division.capture("identity", recompute=True):
            out = net(torch.randn(IMAGES))
            assert len(copies) == 3  # two inputs and a mask
            assert all(copy() is not None for copy in copies)
            del out
            assert all(copy() is None for copy in copies)
    finally:
        gc.enable()


@pytest.mark.parametrize("method", ["actnn", "lossy", "division"])
def test_recipes_belong_to_the_core(method: str) -> None:
    net, x = conv_net(nn.BatchNorm2d, nn.ReLU()), torch.randn(IMAGES)
    exact = gradients(net, x)
    plain = division.compress(copy.deepcopy(net), method)
    spared = division.compress(net, method, recompute=True)
    saved = [division.measure(each, x).saved_bytes for each in (plain, spared)]
    if method != "lossy":  # it leaves norm inputs alone, so there is nothing to rebuild from
        assert saved[1] < saved[0]
    for _ in range(3):
        found = gradients(spared, x)
    assert all(torch.isfinite(each).all() for each in found)
    assert sum((a - b).norm() for a, b in zip(found, exact, strict=True)) < sum(
        b.norm() for b in exact
    )
