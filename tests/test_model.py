"""compress, restore, measure: what a user's model keeps, and what goes wrong loudly."""

import copy
import gc
import pickle
import threading

import pytest
import torch
from conftest import assert_same, gradients, small_net
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import division
from division.method import Division, Method

IMAGE = (4, 3, 32, 32)


def test_compress_is_in_place_and_keeps_everything() -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    parameters, state = list(model.parameters()), copy.deepcopy(model.state_dict())
    assert division.compress(model) is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert list(model.state_dict()) == list(state)
    assert_same(list(state.values()), list(model.state_dict().values()))
    before = parameters[0].detach().clone()
    gradients(model, torch.randn(IMAGE))
    optimizer.step()  # the optimizer's references still lead to the model's parameters
    assert not torch.equal(before, next(iter(model.parameters())))


def test_restore_gives_the_stock_model_back() -> None:
    model, x = small_net(), torch.randn(IMAGE)
    twin = copy.deepcopy(model)
    division.compress(twin)
    gradients(twin, x)
    twin.load_state_dict(model.state_dict())
    assert division.restore(twin) is twin
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in twin.modules())
    assert_same(gradients(model, x), gradients(twin, x))
    division.restore(twin)  # twice does no harm


def test_users_hooks_survive_restore() -> None:
    model = small_net()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    division.restore(division.compress(model))
    model(torch.randn(IMAGE))
    assert calls == [1]


def test_state_dicts_go_in_and_out() -> None:
    stock, packed = small_net(), division.compress(small_net())
    packed.load_state_dict(stock.state_dict())
    stock.load_state_dict(packed.state_dict())
    assert_same(list(stock.state_dict().values()), list(packed.state_dict().values()))


def test_training_goes_down_and_running_statistics_are_exact() -> None:
    model = division.compress(small_net())
    stock = division.restore(copy.deepcopy(model))
    x, y = torch.randn(16, 3, 32, 32), torch.arange(16) % 10
    torch.manual_seed(2)
    stock(x)
    torch.manual_seed(2)
    model(x)
    assert_same(list(stock.buffers()), list(model.buffers()))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_deep_copy_runs_its_own_weights() -> None:
    model = division.compress(small_net())
    twin = copy.deepcopy(model)
    assert division.method_of(twin) is not division.method_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    grads = gradients(twin, torch.randn(IMAGE))
    assert any(bool(g.any()) for g in grads)
    assert not any(bool(p.any()) for p in model.parameters())


def test_a_pickled_model_stays_compressed() -> None:
    model = division.compress(small_net(), bits=3)
    twin = pickle.loads(pickle.dumps(model))
    assert division.method_of(twin) == division.method_of(model)
    assert division.measure(twin, torch.randn(IMAGE)).ratio > 4


def test_two_models_in_one_process_do_not_meet() -> None:
    x = torch.randn(IMAGE)
    coarse, fine = division.compress(small_net(), bits=1), division.compress(small_net(), bits=8)
    stock = small_net()
    ledgers = [division.measure(net, x) for net in (coarse, fine, stock)]
    assert ledgers[0].saved_bytes < ledgers[1].saved_bytes < ledgers[2].saved_bytes
    nn.Sequential(coarse[:4], fine[4:])(x).sum().backward()  # one forward through both


def test_a_part_called_alone_is_compressed_too() -> None:
    model = division.compress(small_net())
    before = division.method_of(model).state_dict()
    model[:3](torch.randn(IMAGE))
    assert division.method_of(model).state_dict() != before


def test_same_seed_same_run_and_state_continues_it() -> None:
    x = torch.randn(IMAGE)
    start = small_net()
    a, b = (division.compress(copy.deepcopy(start), seed=4) for _ in range(2))
    first = [gradients(a, x), gradients(a, x)]
    assert not all(torch.equal(p, q) for p, q in zip(*first, strict=True))
    gradients(b, x)
    saved = division.method_of(b).state_dict()
    resumed = division.compress(copy.deepcopy(start), seed=4)
    division.method_of(resumed).load_state_dict(saved)
    assert_same(first[1], gradients(resumed, x))


def test_the_global_generator_is_not_touched() -> None:
    model = division.compress(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
    state = torch.get_rng_state()
    model(torch.randn(IMAGE, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert torch.equal(state, torch.get_rng_state())


def test_an_exception_in_forward_closes_the_capture() -> None:
    class Fails(nn.Module):
        def __init__(self, error: type[BaseException]) -> None:
            super().__init__()
            self.conv, self.error = nn.Conv2d(3, 8, 3), error

        def forward(self, x):
            y = self.conv(x)
            if self.error is not None:
                raise self.error("stop")
            return y

    for error in (ValueError, KeyboardInterrupt):  # torch runs no hooks after an interrupt
        model = division.compress(Fails(error))
        with pytest.raises(error):
            model(torch.randn(IMAGE))
        model.error = None
        model(torch.randn(IMAGE)).sum().backward()
        drawn = division.method_of(model).state_dict()
        weight = torch.randn(8, 3, 3, 3, requires_grad=True)
        nn.functional.conv2d(torch.randn(IMAGE), weight).sum().backward()
        assert division.method_of(model).state_dict() == drawn  # nothing outside is captured


def test_threads_do_not_mix() -> None:
    model = division.compress(small_net())
    failures = []

    def run() -> None:
        try:
            for _ in range(5):
                model(torch.randn(IMAGE)).sum().backward()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_measure_leaves_no_trace() -> None:
    model = division.compress(small_net())
    x = torch.randn(IMAGE)
    buffers = [b.clone() for b in model.buffers()]
    rng, drawn = torch.get_rng_state(), division.method_of(model).state_dict()
    first = division.measure(model, x)
    assert_same(buffers, list(model.buffers()))
    assert torch.equal(rng, torch.get_rng_state())
    assert division.method_of(model).state_dict() == drawn
    assert all(p.grad is None for p in model.parameters())
    assert str(first) == str(division.measure(model, x))
    stock = small_net()
    division.measure(stock, x)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in stock.modules())


def test_vanilla_is_the_stock_model() -> None:
    model, x = small_net(), torch.randn(IMAGE)
    twin = division.compress(copy.deepcopy(model), "vanilla")
    assert_same(gradients(model, x), gradients(twin, x))
    assert division.measure(twin, x).ratio == 1.0


def test_fake_tensors_give_the_same_ledger() -> None:
    model = division.compress(small_net())
    real = division.measure(model, torch.randn(IMAGE))
    with FakeTensorMode():
        fake_model = division.compress(small_net())
        fake = division.measure(fake_model, torch.randn(IMAGE))
    assert [r.bytes_after for r in fake.rows] == [r.bytes_after for r in real.rows]
    assert [r.bytes_before for r in fake.rows] == [r.bytes_before for r in real.rows]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: division.compress(nn.ReLU()), ValueError, "nothing to compress: ReLU"),
        (lambda: division.compress(nn.Sequential()), ValueError, "nothing to compress"),
        (
            lambda: division.compress(small_net().requires_grad_(False)),
            ValueError,
            "no parameter that requires a gradient",
        ),
        (
            lambda: division.compress(division.compress(small_net())),
            ValueError,
            "compressed already",
        ),
        (
            lambda: division.compress(nn.Sequential(division.compress(small_net()))),
            ValueError,
            "its part '0'",
        ),
        (lambda: division.compress("resnet18"), TypeError, "takes a torch.nn.Module; got str"),
        (
            lambda: division.compress(small_net(), "divison"),
            ValueError,
            "unknown method 'divison'; choose one of: actnn, autocast, checkpoint, division, ",
        ),
        (
            lambda: division.compress(small_net(), bit=2),
            ValueError,
            "method 'division' has no option 'bit'; its options:",
        ),
        (lambda: division.compress(small_net(), bits=0), ValueError, "from 1 to 8; got 0"),
        (lambda: division.compress(small_net(), bits=True), ValueError, "from 1 to 8; got True"),
        (lambda: division.compress(small_net(), block=0), ValueError, "block must be"),
        (lambda: division.compress(small_net(), seed=-1), ValueError, "seed must be"),
        (lambda: division.compress(small_net(), 3), TypeError, "name or a Method; got int"),
        (
            lambda: division.compress(small_net(), Division(), bits=3),
            ValueError,
            "options go into the method object",
        ),
        (lambda: division.kernels.use("cuda").__enter__(), ValueError, "'reference', 'cpu'"),
    ],
)
def test_bad_input_is_one_clear_sentence(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_measuring_nothing_is_an_error() -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(RuntimeError, match="nothing was saved for backward: Linear"):
        division.measure(model, torch.randn(2, 4))


def test_a_method_of_ones_own() -> None:
    class ConvOnly(Method):
        name = "conv only"

        def codec(self, site):
            if site.module_type == "Conv2d":
                return division.codecs.get("cast")
            return None

    model = division.compress(small_net(), ConvOnly())
    ledger = division.measure(model, torch.randn(IMAGE))
    assert {row.codec for row in ledger.rows if row.module == "Conv2d"} >= {"cast"}
    assert any(row.why == "conv only leaves it" for row in ledger.rows)


def test_nothing_is_left_behind_after_many_steps() -> None:
    """Tables and closures must not grow with the number of steps."""
    model = division.compress(small_net())
    kinds, counts = (torch.Tensor, division.Packed), []
    for _ in range(3):
        for _ in range(3):
            model(torch.randn(IMAGE)).sum().backward()
        gc.collect()
        counts.append(sum(issubclass(type(o), kinds) for o in gc.get_objects()))
    assert counts[0] == counts[1] == counts[2]


def test_measuring_a_whole_keeps_its_compressed_part_compressed() -> None:
    model = nn.Sequential(small_net()[:4], nn.Conv2d(16, 16, 3))
    division.compress(model[0])
    ledger = division.measure(model, torch.randn(IMAGE))
    assert division.method_of(model[0]) is not None
    assert division.method_of(model) is division.method_of(model[0])  # as under DDP
    assert ledger.ratio > 2
    assert {row.codec for row in ledger.rows if row.module == "Conv2d"} == {"division", "stock"}


def test_parts_with_methods_of_their_own_have_to_be_asked_one_by_one() -> None:
    model = nn.Sequential(division.compress(small_net()), division.compress(small_net(), "actnn"))
    with pytest.raises(ValueError, match="methods of their own: division, actnn; ask each part"):
        division.method_of(model)


def test_measure_puts_back_buffers_that_the_forward_replaces_or_adds() -> None:
    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            self.seen = torch.cat([self.seen, x.new_ones(1)])
            self.register_buffer("extra", x.new_zeros(2))
            return self.conv(x)

    model = division.compress(Queue())
    seen = model.seen
    division.measure(model, torch.randn(IMAGE))
    assert model.seen is seen
    assert list(dict(model.named_buffers())) == ["seen"]
