"""The greedy choice against every choice that there is."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from division.allocation import allocate

Items = list[list[tuple[int, float]]]


def totals(items: Items, chosen: tuple[int, ...] | list[int]) -> tuple[int, float]:
    picked = [options[i] for options, i in zip(items, chosen, strict=True)]
    return sum(size for size, _ in picked), sum(error for _, error in picked)


def best(items: Items, limit: int) -> float:
    """The smallest error of all choices that fit."""
    found = (totals(items, each) for each in itertools.product(*(range(len(o)) for o in items)))
    return min(error for size, error in found if size <= limit)


def made_up(seed: int) -> Items:
    """Few items on the law of a uniform grid, with sizes of their own."""
    draw = random.Random(seed)
    items = []
    for _ in range(draw.randint(1, 4)):
        size, sensitivity = draw.randint(1, 9), draw.random() ** 4
        law = [(2**bits - 1) ** -2 for bits in range(1, 6)]
        items.append([(size * (i + 1), sensitivity * each) for i, each in enumerate(law)])
    return items


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_better_by_more_than_the_last_step(seed: int) -> None:
    """Greedy is optimal for the bytes that it spent when a step first did not fit."""
    items = made_up(seed)
    least, most = (sum(options[i][0] for options in items) for i in (0, -1))
    step = max(options[0][0] for options in items)
    for limit in range(least, most + 1):
        size, error = totals(items, allocate(items, limit))
        assert size <= limit
        assert error <= best(items, max(least, limit - step + 1)) + 1e-12
    assert totals(items, allocate(items, most))[1] == pytest.approx(best(items, most))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), min_size=1, max_size=5),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 60),
)
def test_any_options_at_all(items: Items, more: int) -> None:
    """Sizes that do not rise, errors that do not fall: still within the limit, never worse."""
    smallest = [min(options) for options in items]
    limit = sum(size for size, _ in smallest) + more
    size, error = totals(items, allocate(items, limit))
    assert size <= limit
    assert error <= sum(each for _, each in smallest) + 1e-12


def test_equals_are_served_in_order() -> None:
    assert allocate([[(1, 1.0), (2, 0.0)]] * 3, limit=5) == [1, 1, 0]


def test_a_limit_that_nothing_fits() -> None:
    with pytest.raises(ValueError, match="take 5 bytes, and there are 4"):
        allocate([[(2, 1.0)], [(3, 1.0), (4, 0.0)]], limit=4)
