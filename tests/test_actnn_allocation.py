"""ActNN's bit allocation: items 9 and 10 of the faithfulness plan, as pure functions."""

import heapq
import itertools

import numpy as np
import pytest

from baselines.actnn.allocation import allocate_equal, allocate_weighted


def heap_greedy(costs: np.ndarray, weights: np.ndarray, budget: float) -> np.ndarray:
    """The paper's algorithm, word for word: pop the cheapest step down until the budget is met."""

    def step(i: int, b: int) -> tuple[float, int, int]:
        added = costs[i] / (2 ** (b - 1) - 1) ** 2 - costs[i] / (2**b - 1) ** 2
        return added / weights[i], -b, i

    bits = np.full(len(costs), 8)
    heap = [step(i, 8) for i in range(len(costs))]
    heapq.heapify(heap)
    while float(bits @ weights) > budget and heap:
        _, b, i = heapq.heappop(heap)
        bits[i] = -b - 1
        if bits[i] > 1:
            heapq.heappush(heap, step(i, int(bits[i])))
    return bits


def variance(costs: np.ndarray, bits: np.ndarray) -> float:
    return float((costs / (2.0**bits - 1) ** 2).sum())


def lognormal(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(sigma=2.0, size=count)


@pytest.mark.parametrize("average", [1, 1.25, 1.5, 2, 3, 7.5, 8])
def test_sorting_is_the_heap(average: float) -> None:
    """Item 9: parity with the heap on distinct values, equal sizes and different ones."""
    for seed in range(20):
        costs = lognormal(50, seed)
        total = int(average * 50)
        expected = heap_greedy(costs, np.ones(50), total)
        assert allocate_equal(costs, total).tolist() == expected.tolist()
        assert allocate_weighted(costs, np.ones(50), total).tolist() == expected.tolist()
        weights = np.random.default_rng(seed).integers(1, 1000, 50).astype(float)
        budget = average * float(weights.sum())
        expected = heap_greedy(costs, weights, budget)
        assert allocate_weighted(costs, weights, budget).tolist() == expected.tolist()


def test_the_budget_is_kept_and_used() -> None:
    """Item 9: sum(b w) in (budget - max w, budget], every b from 1 to 8."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        costs, weights = lognormal(40, seed), rng.integers(1, 100, 40).astype(float)
        budget = float(weights.sum()) * rng.uniform(1, 8)
        bits = allocate_weighted(costs, weights, budget)
        spent = float(bits @ weights)
        assert budget - weights.max() < spent <= budget
        assert bits.min() >= 1
        assert bits.max() <= 8
        total = int(rng.integers(40, 321))
        equal = allocate_equal(costs, total)
        assert int(equal.sum()) == total
        assert equal.min() >= 1
        assert equal.max() <= 8


def test_optimal_for_equal_sizes() -> None:
    """Item 9: no allocation of the same budget has less variance."""
    choices = np.array(list(itertools.product(range(1, 9), repeat=4)))
    for seed in range(20):
        costs = lognormal(4, seed)
        for total in (4, 7, 10, 16, 31):
            feasible = choices[choices.sum(1) <= total]
            best = (costs / (2.0**feasible - 1) ** 2).sum(1).min()
            assert variance(costs, allocate_equal(costs, total)) <= best * (1 + 1e-12)


def test_monotone_and_scale_invariant() -> None:
    """Item 9: a larger cost never has fewer bits, and only ratios count."""
    for seed in range(20):
        costs = np.sort(lognormal(64, seed))
        bits = allocate_equal(costs, 150)
        assert bool((np.diff(bits.astype(int)) >= 0).all())
        for scale in (1e-200, 1e-30, 1e30, 1e200):
            assert allocate_equal(costs * scale, 150).tolist() == bits.tolist()


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan, np.inf])
def test_equal_costs_get_equal_bits(value: float) -> None:
    """Item 9, a deviation: without sensitivities the release gives 8 bits to some and 1 to most."""
    costs = np.full(128, value)
    assert set(allocate_equal(costs, 256)) == {2}
    assert set(allocate_weighted(costs, np.ones(128), 256)) == {2}
    assert set(allocate_equal(costs, 300)) == {2, 3}


def test_no_items_and_one_item() -> None:
    assert allocate_equal(np.array([5.0]), 3).tolist() == [3]
    assert allocate_weighted(np.array([5.0]), np.array([7.0]), 21.0).tolist() == [3]
    assert allocate_weighted(np.array([5.0]), np.array([7.0]), 20.9).tolist() == [2]
    assert allocate_equal(np.array([]), 0).tolist() == []


@pytest.mark.parametrize("average", [1.25, 1.5, 2, 4])
def test_mixed_is_no_worse_than_uniform(average: float) -> None:
    """Item 10: on lognormal sensitivities, at the same budget."""
    for seed in range(20):
        costs = lognormal(200, seed)
        mixed = allocate_equal(costs, int(average * 200))
        # Uniform bits of a fractional average: the next lower whole number for some.
        plain = np.full(200, int(np.ceil(average)))
        plain[: int(plain.sum() - average * 200)] -= 1
        assert variance(costs, mixed) < variance(costs, plain)
