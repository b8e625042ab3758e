"""Who gets how many of the bytes that there are: the greedy choice on convex hulls.

Every item has options, each with a size and an error. From its smallest option an item climbs along
the lower hull of its (size, error) points, where each step buys less error for a byte than the one
before. Of all items the step that buys the most is taken while it fits: with whatever bytes it has
spent by then, no other choice has a smaller error. Steps that do not fit any more are passed over.
"""

import heapq
from collections.abc import Sequence

Option = tuple[int, float]  # its size in bytes, its error


def allocate(items: Sequence[Sequence[Option]], limit: int) -> list[int]:
    """Return the option of each item, so that all together take `limit` bytes at most.

    Raises ValueError if even the smallest options do not fit.

    >>> allocate([[(1, 9.0), (2, 1.0)], [(1, 2.0), (2, 1.0)]], limit=3)
    [1, 0]
    """
    hulls = [_hull(options) for options in items]
    chosen = [hull[0] for hull in hulls]
    spent = sum(options[c][0] for options, c in zip(items, chosen, strict=True))
    if spent > limit:
        raise ValueError(f"the smallest options take {spent} bytes, and there are {limit}")
    steps: list[tuple[float, int, int]] = []  # minus what a byte buys, item, place on its hull

    def offer(item: int, place: int) -> None:
        if place < len(hulls[item]):
            before, after = (items[item][hulls[item][p]] for p in (place - 1, place))
            gain = (before[1] - after[1]) / (after[0] - before[0])
            heapq.heappush(steps, (-gain, item, place))

    for item in range(len(items)):
        offer(item, 1)
    while steps:
        _, item, place = heapq.heappop(steps)
        more = items[item][hulls[item][place]][0] - items[item][chosen[item]][0]
        if spent + more <= limit:
            spent += more
            chosen[item] = hulls[item][place]
            offer(item, place + 1)
    return chosen


def _hull(options: Sequence[Option]) -> list[int]:
    """Return the options on the lower hull, the smallest first: sizes rise, errors fall."""
    order = sorted(range(len(options)), key=lambda i: (*options[i], i))
    hull: list[int] = []
    for i in order:
        size, error = options[i]
        if hull and error >= options[hull[-1]][1]:
            continue  # larger, or as large, and no better
        while len(hull) > 1 and _is_above(options[hull[-2]], options[hull[-1]], (size, error)):
            hull.pop()
        hull.append(i)
    return hull


def _is_above(left: Option, middle: Option, right: Option) -> bool:
    """Tell whether a point lies on or above the line between its neighbours."""
    rise = (left[1] - middle[1]) * (right[0] - left[0])
    return rise <= (left[1] - right[1]) * (middle[0] - left[0])
