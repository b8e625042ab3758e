"""Bit allocation: which item (a sample, a layer) gets how many of the bits that there are.

An item with sensitivity C that keeps b bits costs C / (2**b - 1)**2: the variance it adds. All
items start at 8 bits; the step down that adds the least cost for each bit it frees is taken until
the budget is met. An item's steps become dearer on the way down, so taking the cheapest again and
again is the same as sorting all steps once and cutting the list; equally dear steps are taken from
the widest items first, so that equal items get equal bits.
"""

import numpy as np
from numpy.typing import NDArray

FEWEST, MOST = 1, 8
_COST = 1.0 / (2.0 ** np.arange(FEWEST, MOST + 1) - 1.0) ** 2
_STEPS = (_COST[:-1] - _COST[1:])[::-1]  # added by 8 -> 7, 7 -> 6, ..., 2 -> 1

Floats = NDArray[np.float64]
Bits = NDArray[np.uint8]


def allocate_equal(costs: Floats, total: int) -> Bits:
    """Share out `total` bits among items of the same size."""
    count = len(costs)
    taken = np.zeros(len(_STEPS) * count, dtype=bool)
    number = min(MOST * count - total, len(taken))
    if number > 0:
        steps = np.outer(_STEPS, _usable(costs)).ravel()
        # All that cost less than the dearest step taken, and of the equals the first ones: this
        # needs no sorting, and a tensor of tokens has tens of thousands of rows.
        dearest = np.partition(steps, number - 1)[number - 1]
        taken = steps < dearest
        equals = np.flatnonzero(steps == dearest)
        taken[equals[: number - int(taken.sum())]] = True
    return (MOST - taken.reshape(len(_STEPS), count).sum(0)).astype(np.uint8)


def allocate_weighted(costs: Floats, weights: Floats, budget: float) -> Bits:
    """Share out `budget` among items where one bit takes `weights`: sum(bits * weights) <= budget.

    What is left over is less than the largest weight; no item gets less than one bit.
    """
    count = len(costs)
    excess = MOST * float(weights.sum()) - budget
    if excess <= 0:
        return np.full(count, MOST, dtype=np.uint8)
    steps = np.outer(_STEPS, _usable(costs) / weights).ravel()
    order = np.argsort(steps, kind="stable")
    freed = np.cumsum(weights[order % count])
    # A sum of many floats may miss the budget by its last digits.
    number = int(np.searchsorted(freed, excess * (1 - 1e-12))) + 1
    down = np.bincount(order[:number] % count, minlength=count)
    return (MOST - down).astype(np.uint8)


def _usable(costs: Floats) -> Floats:
    """Scale costs to at most 1, what is not finite to 0: a group without a range has no grid."""
    costs = np.nan_to_num(costs, nan=0.0, posinf=0.0, neginf=0.0)
    most = costs.max(initial=0.0)
    return costs / most if most > 0 else costs
