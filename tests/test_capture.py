"""Capture: each trap that saved-tensor tricks fall into, one test each."""

import contextlib
import copy
import gc
import weakref

import pytest
import torch
from conftest import IMAGE, Lambda, Residual, assert_same, compare, gradients, small_net
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import division
from division.capture import Capture
from division.method import IdentityMethod


def test_a_small_network_is_bit_equal(layout: torch.memory_format) -> None:
    x = torch.randn(IMAGE).contiguous(memory_format=layout)
    ledger = compare(lambda: small_net().to(memory_format=layout), x)
    assert not ledger.left_in_full()


def test_a_saved_view_comes_back_with_its_own_strides() -> None:
    """Slices of a joint projection are not dense; a copy with other strides changes the bits."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.joint = nn.Linear(64, 192)

        def forward(self, x: Tensor) -> Tensor:
            a, b, c = self.joint(x).chunk(3, -1)
            return (a * b).transpose(0, 1) @ c

    compare(Gated, torch.randn(128, 64))


def test_later_in_place_edits_do_not_reach_what_was_packed() -> None:
    class Edits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.second = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.conv(x)
            out = self.second(hidden)
            with torch.no_grad():
                hidden.mul_(0)
            return out

    model = Edits()
    twin = division.compress(copy.deepcopy(model), "identity")
    x = torch.randn(IMAGE)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(model, x)

    class Stock(Edits):
        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.conv(x))

    model.__class__ = Stock
    assert_same(gradients(model, x), gradients(twin, x))


def test_address_reuse_is_not_taken_for_the_same_tensor() -> None:
    """Originals are freed at once, so that the next map often gets the very same address."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(12))

        def forward(self, x: Tensor) -> Tensor:
            for conv in self.convs:
                x = conv(x)
            return x

    ledger = compare(Chain, torch.randn(4, 8, 32, 32))
    assert not any("shared" in row.why for row in ledger.rows)


def test_a_shared_input_is_stored_once_and_only_with_share() -> None:
    x = torch.randn(4, 16, 16, 16)
    model = division.compress(Residual(16, 32), "division")
    shared = division.measure(model, x)
    assert [row.site for row in shared.rows if "shared with conv1" in row.why] == ["shortcut"]
    division.restore(model)
    division.compress(model, "division", share=False)
    apart = division.measure(model, x)
    assert apart.original_bytes == shared.original_bytes
    extra = division.codecs.get("division", bits=8).compress(x).nbytes  # data: fine_bits
    assert apart.saved_bytes - shared.saved_bytes == extra


def test_an_edited_tensor_is_not_shared_with_what_it_was() -> None:
    class Edited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Conv2d(16, 8, 1)
            self.b = nn.Conv2d(16, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            first = self.a(x)
            with torch.no_grad():
                x.mul_(2)
            return first + self.b(x)

    model = division.compress(Edited(), "identity")
    ledger = division.measure(model, torch.randn(4, 16, 16, 16))
    assert not any("shared" in row.why for row in ledger.rows)


def test_a_graph_that_never_runs_backward_is_freed() -> None:
    conv = nn.Conv2d(3, 8, 3)
    seen: list[weakref.ref] = []

    class Watching(IdentityMethod):
        def codec(self, site):
            codec = super().codec(site)
            return _Watched(codec, seen)

    class _Watched:
        def __init__(self, codec, seen):
            self.codec, self.seen, self.name = codec, seen, codec.name

        def compress(self, *args):
            packed = self.codec.compress(*args)
            self.seen.append(weakref.ref(packed))
            return packed

    gc.disable()
    try:
        with Capture(Watching()):
            y = conv(torch.randn(IMAGE))
            assert seen[0]() is not None
            del y
            assert seen[0]() is None  # even while the capture is open: its tables hold nothing
    finally:
        gc.enable()


def test_originals_are_freed_while_the_graph_lives() -> None:
    """A chain keeps the packed copies and none of the maps."""
    alive: list[weakref.ref] = []

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            alive.append(weakref.ref(x.untyped_storage()))
            return x

    def block(inputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, 8, 3, padding=1),
            Spy(),
            nn.BatchNorm2d(8),
            Spy(),
            nn.ReLU(),
            Spy(),
        ]

    model = division.compress(nn.Sequential(*block(3), *block(8), *block(8)), "division")
    output = model(torch.randn(IMAGE))
    gc.collect()
    assert len(alive) == 9
    held = [r for r in alive[:-1] if r() is not None]
    assert not held
    output.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_weights_are_never_taken_for_activations(dtype: torch.dtype) -> None:
    model = small_net()
    twin = division.compress(copy.deepcopy(model), "identity")
    x = torch.randn(IMAGE)
    with torch.autocast("cpu", dtype=dtype):
        expected, found = gradients(model, x), gradients(twin, x)
        ledger = division.measure(twin, x)
    assert_same(expected, found)
    shapes = {tuple(p.shape) for p in model.parameters() if p.dim() > 1}
    assert not [row for row in ledger.rows if row.shape in shapes]
    assert any("shared with 4.conv1" in row.why for row in ledger.rows if row.site == "4.shortcut")


def test_autocast_copies_of_an_edited_source_are_not_shared() -> None:
    class Edited(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.BatchNorm2d(16)
            self.a = nn.Conv2d(16, 8, 1)
            self.b = nn.Conv2d(16, 8, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            out = self.a(x)
            with torch.no_grad():
                x[0, 0, 0, 0] += 1
            return out + self.b(x)

    model = division.compress(Edited(), "identity")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ledger = division.measure(model, torch.randn(4, 16, 16, 16))
    assert not any("shared" in row.why for row in ledger.rows)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["around", "inside"])
def test_checkpointing_is_left_alone_and_bit_equal(where: str, reentrant: bool) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 16, 3, padding=1)
            self.block = Residual(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.stem(x), use_reentrant=reentrant)

    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    x = torch.randn(4, 3, 16, 16, requires_grad=True)
    inner = Inside() if where == "inside" else nn.Sequential(nn.Conv2d(3, 16, 3), Residual(16, 16))
    twin = division.compress(copy.deepcopy(inner), "identity")
    wrap = Around if where == "around" else (lambda model: model)
    assert_same(gradients(wrap(inner), x), gradients(wrap(twin), x))
    if where == "inside" and not reentrant:
        ledger = division.measure(twin, x)
        notes = [row for row in ledger.rows if "other saved-tensor hooks" in row.why]
        assert notes
        assert not [row for row in ledger.rows if row.compressed and row.site.startswith("block")]


def test_user_hooks_around_the_model_are_left_alone() -> None:
    model = small_net()
    twin = division.compress(copy.deepcopy(model), "division")
    x = torch.randn(IMAGE)
    with torch.autograd.graph.save_on_cpu():
        assert_same(gradients(model, x), gradients(twin, x))


def test_double_backward_and_retained_graphs() -> None:
    model = Lambda(F.silu)
    twin = division.compress(copy.deepcopy(model), "identity")
    results = []
    for net in (model, twin):
        x = torch.randn(IMAGE, generator=torch.Generator().manual_seed(3), requires_grad=True)
        loss = net(x).square().mean()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        slope.square().sum().backward(retain_graph=True)
        loss.backward()
        results.append([x.grad, *(p.grad for p in net.parameters())])
    assert_same(*results)


def test_retain_graph_unpacks_the_same_values_twice() -> None:
    model = division.compress(small_net(), "division")
    loss = model(torch.randn(IMAGE)).square().mean()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    loss.backward()
    assert_same(first, [p.grad for p in model.parameters()])


@pytest.mark.parametrize("transform", ["no_grad", "inference", "eval"])
def test_nothing_is_stored_without_a_graph(transform: str) -> None:
    model = division.compress(small_net(), "division")
    context = {
        "no_grad": torch.no_grad(),
        "inference": torch.inference_mode(),
        "eval": contextlib.nullcontext(),
    }[transform]
    if transform == "eval":
        model.eval().requires_grad_(False)
    before = division.method_of(model).state_dict()
    with context:
        output = model(torch.randn(IMAGE))
    assert output.grad_fn is None
    assert division.method_of(model).state_dict() == before


def test_several_forwards_before_one_backward() -> None:
    model = small_net()
    twin = division.compress(copy.deepcopy(model), "identity")
    for net in (model, twin):
        torch.manual_seed(5)
        batches = [torch.randn(IMAGE) for _ in range(3)]
        sum(net(batch).square().mean() for batch in batches).backward()
        for batch in batches:  # and accumulate on top
            net(batch).square().mean().backward()
    assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_tied_modules_and_modules_used_twice() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.alias = self.conv
            self.bn = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.alias(F.relu(self.bn(self.conv(x)))))

    compare(Tied, torch.randn(IMAGE))


def test_capture_needs_no_model() -> None:
    weight = torch.randn(8, 3, 3, 3, requires_grad=True)
    x = torch.randn(IMAGE)
    F.conv2d(x, weight).relu().square().mean().backward()
    stock, weight.grad = weight.grad, None
    with division.capture("identity") as ledger:
        loss = F.conv2d(x, weight).relu().square().mean()
    loss.backward()
    assert torch.equal(stock, weight.grad)
    assert {row.codec for row in ledger.rows} >= {"identity", "mask"}


COMPILED = {
    "compressed, then compiled": lambda m: torch.compile(
        division.compress(m, "identity"), backend="aot_eager"
    ),
    "compiled, then compressed": lambda m: division.compress(
        torch.compile(m, backend="aot_eager"), "identity"
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_regions_are_left_alone_and_named(name: str) -> None:
    model = Residual(3, 16)
    twin = COMPILED[name](copy.deepcopy(model))
    x = torch.randn(IMAGE)
    assert_same(gradients(model, x), gradients(twin, x))
    ledger = division.measure(twin, x)
    assert {row.why for row in ledger.rows} == {"a region compiled by torch.compile, left as it is"}


# torch.compile itself asks an intermediate tensor for its gradient, and warns about it
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_what_is_around_a_compiled_part_is_compressed() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), Residual(16, 16))
    twin = division.compress(copy.deepcopy(model), "identity")
    for net in (model, twin):  # both, for compiled code may round in another way
        net[2] = torch.compile(net[2], backend="aot_eager")
    x = torch.randn(IMAGE)
    assert_same(gradients(model, x), gradients(twin, x))
    assert {"0", "1"} <= {row.site for row in division.measure(twin, x).rows if row.compressed}


def test_of_nested_captures_the_innermost_acts() -> None:
    conv, x = nn.Conv2d(3, 16, 3), torch.randn(IMAGE)
    with division.capture("vanilla") as outer:
        first = conv(x)
        with division.capture("identity") as inner:
            second = conv(x)
    (first + second).sum().backward()
    assert {row.codec for row in outer.rows} == {"stock"}
    assert {row.codec for row in inner.rows} == {"identity"}


def test_a_frozen_weight_is_no_activation() -> None:
    frozen = nn.Linear(512, 512).requires_grad_(False)
    first = nn.Linear(512, 512)
    with division.capture("division") as ledger:
        y = frozen(first(torch.randn(64, 512)).relu())
    y.sum().backward()
    assert (512, 512) not in {row.shape for row in ledger.rows}
    assert ledger.kernels == "cpu"


def test_a_copy_that_two_layers_read_is_decompressed_once() -> None:
    """It stays until the second has read it, or until another as large is decompressed."""
    torch.manual_seed(0)
    left, right = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
    wide, x = nn.Conv2d(4, 16, 1), torch.randn(4, 8, 24, 24)

    class Calls(torch.utils._python_dispatch.TorchDispatchMode):
        merged = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            self.merged += operator.name() == "division::merge_maps"
            return operator(*args, **(kwargs or {}))

    with division.capture("division"):
        y = left(x) + right(x)
    with Calls() as calls:
        y.sum().backward()
    assert calls.merged == 1
    with division.capture("division"):
        y = wide(left(x)).tanh().sum() + right(x).sum()
    with Calls() as calls:
        y.backward()
    assert calls.merged == 4  # x twice: the result of tanh is larger and comes in between
