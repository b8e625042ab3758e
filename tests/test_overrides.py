"""Per-site choice: patterns of module paths with options of their own."""

import pytest
import torch
from conftest import small_net
from torch import nn

import division
from division.overrides import covers, most_specific

X = torch.randn(4, 3, 32, 32)


def bits_by_site(**options: object) -> dict[str, float]:
    ledger = division.measure(division.compress(small_net(), "division", **options), X)
    rows = [r for r in ledger.rows if r.node in ("ConvolutionBackward0",) and r.bytes_after]
    return {r.site: 8 * r.bytes_after / torch.Size(r.shape).numel() for r in rows}


def test_a_pattern_covers_what_is_below() -> None:
    assert covers("4", "4.conv1")
    assert covers("blocks.*.attn", "blocks.11.attn.qkv")
    assert covers("head", "head")
    assert not covers("head", "heads")
    assert not covers("*.attn", "blocks.0.attn")


def test_the_most_specific_wins() -> None:
    choices = {"*": 1, "blocks.*": 2, "blocks.0": 3, "blocks.*.attn": 4}
    paths = ("stem", "blocks.1.mlp", "blocks.0.mlp", "blocks.0.attn.qkv")
    assert [most_specific(choices, path, 0) for path in paths] == [1, 2, 3, 4]
    assert most_specific({"stem": 1}, "head", 0) == 0


def test_a_copy_of_other_bits_is_no_substitute() -> None:
    """Two readers of one tensor: each has the bits of its own override."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.stem(x)
            return self.a(y) + self.b(y)

    model = division.compress(Two(), "division", overrides={"b": {"bits": 8}})
    rows = {r.site: r for r in division.measure(model, X).rows if r.slot == "input"}
    assert rows["b"].bytes_after > 2 * rows["a"].bytes_after > 0


def test_capture_has_no_modules_to_override() -> None:
    with pytest.raises(ValueError, match="overrides name modules"):  # noqa: SIM117
        with division.capture("division", overrides={"a": None}):
            pass


def test_data_and_vectors_have_more_bits() -> None:
    bits = bits_by_site()
    assert bits["0"] > 8  # images
    assert bits["4.conv1"] < 3
    assert bits_by_site(fine_bits=2)["0"] < 3


def test_other_bits_for_some_modules_and_none_for_others() -> None:
    usual = bits_by_site()
    found = bits_by_site(overrides={"4": {"bits": 4}, "4.conv2": {"bits": 8}, "6": None})
    assert found["0"] == usual["0"]
    assert found["4.conv1"] == pytest.approx(usual["4.conv1"] + 2)
    assert found["4.conv2"] == pytest.approx(usual["4.conv2"] + 6)
    assert found["6.conv1"] == 32


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"layers.*": {"bits": 4}}, r"overrides: 'layers.\*' matches no module; there are 0, 1, "),
        ({"4": {"bit": 4}}, r"overrides\['4'\] has no option 'bit'; its options: bits, block"),
        ({"4": {"bits": 9}}, "bits must be a whole number from 1 to 8; got 9"),
    ],
)
def test_mistakes_are_named(overrides: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        division.compress(small_net(), "division", overrides=overrides)
