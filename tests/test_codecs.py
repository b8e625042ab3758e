"""The codec contract, sentence by sentence, for every registered codec."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import division
from division.codec import Codec

TYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = {
    "conv": (4, 16, 32, 32),
    "ragged": (2, 5, 13, 29),
    "small maps": (4, 24, 7, 7),
    "tiny maps": (4, 24, 2, 2),
    "1-D": (3, 6, 200),
    "3-D": (2, 3, 4, 9, 16),
    "rows": (32, 100),
    "flat": (777,),
    "one element": (1, 1, 1, 1),
    "scalar": (),
    "empty": (0, 4, 8, 8),
    "empty maps": (2, 3, 0, 4),
}


def codecs() -> list[Codec]:
    return [division.codecs.get(name) for name in division.codecs.names()]


@pytest.fixture(params=codecs(), ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    return request.param


def roundtrip(codec: Codec, x: Tensor, **options: Any) -> Tensor:
    packed = codec.compress(x, **options)
    y = codec.decompress(packed)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    assert packed.nbytes == sum(t.untyped_storage().nbytes() for t in packed.tensors.values())
    assert packed.nbytes <= (x.element_size() if codec.keeps_precision else 2) * x.numel()
    return y


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_shape_and_type_come_back(codec: Codec, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    y = roundtrip(codec, x)
    assert y.is_contiguous()
    assert bool(y.isfinite().all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_channels_last_comes_back(codec: Codec, dtype: torch.dtype) -> None:
    for shape, memory_format in (
        ((2, 24, 14, 14), torch.channels_last),
        ((4, 24, 2, 2), torch.channels_last),
        ((2, 6, 3, 9, 8), torch.channels_last_3d),
    ):
        x = torch.randn(shape).to(dtype).contiguous(memory_format=memory_format)
        y = roundtrip(codec, x)
        assert y.stride() == x.stride()


def test_layout_does_not_change_a_map(codec: Codec) -> None:
    """NCHW and channels_last decode to the same numbers, but for groups, which follow memory."""
    x = torch.randn(2, 24, 14, 14)
    last = x.contiguous(memory_format=torch.channels_last)
    same = torch.equal(roundtrip(codec, x, seed=3), roundtrip(codec, last, seed=3))
    assert same is (codec.name != "uniform")


def test_tokens_are_maps_with_the_channel_last(codec: Codec) -> None:
    x = torch.randn(3, 197, 48)
    y = roundtrip(codec, x, seed=2, channel=-1)
    if codec.name == "division":
        transposed = roundtrip(codec, x.transpose(1, 2).contiguous(), seed=2)
        assert torch.equal(y, transposed.transpose(1, 2))


def test_views_are_taken(codec: Codec) -> None:
    whole = torch.randn(4, 32, 20, 20)
    for x in (
        whole[:, ::2],
        whole[..., 3:17],
        whole.transpose(2, 3),
        whole[:1].expand(3, -1, -1, -1),
    ):
        same = codec.decompress(codec.compress(x.contiguous(), seed=1))
        assert torch.equal(roundtrip(codec, x, seed=1), same)


def test_same_seed_same_bytes(codec: Codec) -> None:
    x = torch.randn(2, 8, 19, 19)
    first, second = (codec.compress(x, seed=7).tensors for _ in range(2))
    for name in first:
        assert torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8))


def test_every_backend_makes_the_same_bytes(codec: Codec, layout: torch.memory_format) -> None:
    x = torch.randn(2, 8, 19, 33).contiguous(memory_format=layout)
    results = []
    for backend in division.kernels.BACKENDS:
        with division.kernels.use(backend):
            packed = codec.compress(x, seed=7)
            results.append((packed.tensors, codec.decompress(packed)))
    (expected, y), *others = results
    for tensors, z in others:
        assert torch.equal(y, z)
        assert all(torch.equal(expected[name], tensors[name]) for name in expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(2, 4, 16, 16), (4, 8, 2, 2), (8, 64)], ids=str)
def test_what_is_not_finite_never_comes_back_finite(
    codec: Codec, bad: float, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    x.view(-1)[5] = bad
    if codec.name == "mask":
        with pytest.raises(ValueError, match="NaN or Inf"):
            codec.compress(x)
        return
    y = codec.decompress(codec.compress(x))
    assert not bool(y.view(-1)[5].isfinite())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64, torch.float64])
def test_other_types_are_refused(codec: Codec, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=rf"{codec.name}.*takes.*got {dtype}"):
        codec.compress(torch.ones(8, 8).to(dtype))


def test_input_is_left_alone_and_not_kept(codec: Codec) -> None:
    x = torch.randn(2, 8, 16, 16, requires_grad=True)
    before = x.detach().clone()
    state = torch.get_rng_state()
    packed = codec.compress(x)
    assert torch.equal(x, before)
    assert torch.equal(state, torch.get_rng_state())
    storage = x.untyped_storage().data_ptr()
    for tensor in packed.tensors.values():
        assert tensor.untyped_storage().data_ptr() != storage
        assert not tensor.requires_grad


def test_sizes_are_exact_without_data(codec: Codec, layout: torch.memory_format) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    if codec.name == "mask":
        codec = division.codecs.get("mask", check=False)  # the check looks at the data
    for shape in SHAPES.values():
        x = torch.randn(shape)
        x = x.contiguous(memory_format=layout) if len(shape) == 4 else x
        real = codec.compress(x)
        with FakeTensorMode() as mode:
            fake = codec.compress(mode.from_tensor(x))
            back = codec.decompress(fake)
        assert back.shape == x.shape
        if codec.sized_by_data:
            assert fake.nbytes <= x.nbytes
            continue
        assert fake.nbytes == real.nbytes
        for name, tensor in real.tensors.items():
            assert fake.tensors[name].shape == tensor.shape
            assert fake.tensors[name].dtype == tensor.dtype


def test_codecs_are_values(codec: Codec) -> None:
    again = copy.deepcopy(codec)
    assert again == codec
    assert hash(again) == hash(codec)
    assert type(codec).__name__ in repr(codec)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("division", {"bits": 0}, "bits must be a whole number from 1 to 8; got 0"),
        ("division", {"bits": 9}, "bits must be a whole number from 1 to 8; got 9"),
        ("division", {"bits": 2.5}, "bits must be a whole number from 1 to 8; got 2.5"),
        ("division", {"block": 0}, "block must be a whole number from 2"),
        ("division", {"align": "left"}, "align must be one of 'area', 'reference'; got 'left'"),
        ("division", {"keep": "none"}, "keep must be one of 'both', 'low', 'high'"),
        ("division", {"bit": 2}, "codec 'division' has no option 'bit'; its options: bits, block"),
        ("uniform", {"group": 0}, "group must be a whole number"),
        ("cast", {"dtype": "int8"}, "dtype must be one of 'bfloat16', 'float16'; got 'int8'"),
        ("divsion", {}, "unknown codec 'divsion'; choose one of: actnn, cast, division, identity"),
    ],
)
def test_bad_options_say_what_is_allowed(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        division.codecs.get(name, **options)


@pytest.mark.parametrize("bits", range(1, 9))
def test_more_bits_less_error_exact_size(bits: int) -> None:
    x = torch.randn(4, 16, 32, 32)
    codec = division.codecs.get("division", bits=bits)
    packed = codec.compress(x, seed=1)
    assert packed.nbytes == 4 * 16 * (32 * 32 * bits // 8 + 2 * 4 * 4 + 2 + 2)
    error = (codec.decompress(packed) - x).square().mean().sqrt()
    step = (x.amax((2, 3)) - x.amin((2, 3))).mean() / (2**bits - 1)
    assert error < step


def test_ablations_keep_one_part_and_add_up() -> None:
    for shape in ((4, 16, 32, 32), (8, 24, 2, 2)):
        x = torch.randn(shape) + 1
        both, low, high = (
            division.codecs.get("division", keep=keep) for keep in ("both", "low", "high")
        )
        packed = {codec.keep: codec.compress(x, seed=1) for codec in (both, low, high)}
        assert set(packed["low"].tensors) == {"low"}
        assert set(packed["high"].tensors) == {"codes", "offset", "scale"}
        assert packed["low"].nbytes + packed["high"].nbytes == packed["both"].nbytes
        parts = low.decompress(packed["low"]) + high.decompress(packed["high"])
        assert torch.allclose(parts, both.decompress(packed["both"]), atol=1e-5)
        assert not torch.equal(low.decompress(packed["low"]), x)


def test_published_alignment_differs_only_on_ragged_maps() -> None:
    area, published = (division.codecs.get("division", align=a) for a in ("area", "reference"))
    for size, same in ((32, True), (14, False)):
        x = torch.randn(2, 3, size, size)
        results = [codec.decompress(codec.compress(x, seed=1)) for codec in (area, published)]
        assert torch.equal(*results) is same


@pytest.mark.parametrize("shape", [(4, 16, 32, 32), (4, 24, 2, 2)], ids=["maps", "groups"])
def test_nearest_rounding_errs_by_half_a_step_whatever_the_seed(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    nearest = division.codecs.get("division", bits=3, rounding="nearest")
    packed, again = nearest.compress(x, seed=1), nearest.compress(x, seed=2)
    assert all(torch.equal(t, again.tensors[name]) for name, t in packed.tensors.items())
    step = packed.tensors["scale"].float()
    worst = (nearest.decompress(packed) - x).abs()
    groups = worst.flatten(2) if shape[2] == 32 else worst.view(1, -1, 64)
    assert bool((groups.amax(2) <= 0.501 * step).all())
    drawn = division.codecs.get("division", bits=3)
    assert bool((drawn.decompress(drawn.compress(x)) - x).abs().max() > worst.max())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert nearest.compress(torch.empty(shape)).nbytes == packed.nbytes


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(ValueError, match="rounding must be one of 'stochastic', 'nearest'; got"):
        division.codecs.get("division", rounding="up")
