"""Bytes of a training step at any batch, from two that were counted.

Every allocation of a step is a constant plus a multiple of the batch, so the bytes alive after each
lie on a line, and their peak on the highest of the lines. Sizes that are rounded up (bits in whole
bytes) leave a line by a few bytes: whoever needs a batch that really fits counts once more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from division.walk import Walk


@dataclass(frozen=True)
class Forecast:
    """Lines through two walks of the same model under the same method.

    Attributes:
        small: the walk of a batch.
        large: the walk of a larger one.
    """

    small: Walk
    large: Walk

    def _points(self) -> Iterator[tuple[int, int]]:
        """Return the levels of both; the peaks alone where the two did not do the same."""
        if len(self.small.levels) == len(self.large.levels):
            return zip(self.small.levels, self.large.levels, strict=True)
        return zip([self.small.peak], [self.large.peak], strict=True)

    def line(self, small: int, large: int, batch: int) -> int:
        """Return the value at a batch of what has these values in the two walks."""
        between = self.large.batch - self.small.batch
        return round(small + (large - small) * (batch - self.small.batch) / between)

    def peak(self, batch: int) -> int:
        """Return the peak at a batch."""
        return max(self.line(small, large, batch) for small, large in self._points())

    def largest(self, budget: int) -> int:
        """Return the largest batch whose peak is within a budget; 0 if none is."""
        between = self.large.batch - self.small.batch
        if any(small > budget for small, large in self._points() if large <= small):
            return 0
        growing = ((small, large) for small, large in self._points() if large > small)
        steps = min((budget - small) * between // (large - small) for small, large in growing)
        return max(0, self.small.batch + steps)


def about(step: Walk, limit: int) -> int:
    """Return a batch near the largest, if all but weights and their like grows with the batch."""
    fixed = step.weights + step.optimizer + step.gradients
    guess = step.batch * (limit - fixed) // max(step.peak - fixed, 1)
    return guess if guess >= 1 and guess != step.batch else 2 * step.batch


def largest(peak: Callable[[int], int], budget: int, guess: int) -> int:
    """Find the largest batch whose peak is within a budget by bisection, from a guess.

    A right guess is confirmed by two counts: of itself and of one more.
    """
    fits, fits_not = 0, None
    batch, step = max(guess, 1), 1
    while fits_not is None or fits_not - fits > 1:
        if peak(batch) <= budget:
            fits = batch
        else:
            fits_not = batch
        if fits_not is None:
            batch = fits + step
        elif not fits:
            batch = max(fits_not - step, 1)
        else:
            batch = (fits + fits_not) // 2
        step *= 2
    return fits
