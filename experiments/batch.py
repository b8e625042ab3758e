"""The largest batch within a memory budget: `optim.batch=auto:2GiB`.

What a method frees is worth something once the batch grows into it. The bytes that autograd holds
are measured on two small batches of real data and extended along a line, since they are
proportional to the batch but for a constant.
"""

from collections.abc import Callable

from torch import Tensor, nn

import division
from division.ledger import Ledger, parse_size, size_text

AUTO = "auto:"
SAMPLES = (8, 16)  # batches that are measured
# Beside what is held, a step needs for a moment: a map, its gradient and a decompressed copy.
MOMENTARY_MAPS = 3


def check(setting: object) -> None:
    """Raise ValueError unless `optim.batch` is a number or a budget."""
    if isinstance(setting, str) and setting.startswith(AUTO):
        try:
            budget = parse_size(setting.removeprefix(AUTO))
        except ValueError as error:
            raise ValueError(f"optim.batch={setting}: {error}") from error
        if not budget:
            raise ValueError(f"optim.batch={setting}: the budget must be more than nothing")
    elif not isinstance(setting, int) or isinstance(setting, bool) or setting < 1:
        raise ValueError(f"optim.batch must be at least 1, or auto:2GiB; got {setting!r}")


def resolve(
    setting: int | str,
    model: nn.Module,
    copies: int,
    most: int,
    images: Callable[[int], Tensor],
) -> int:
    """Return the batch that a setting stands for.

    Args:
        setting: a number, which is returned, or "auto:" and a budget.
        model: as it will be trained, with its method.
        copies: of the weights that are held besides: gradients, optimizer state, averages.
        most: the size of the training set.
        images: makes a batch of training images of a given size.
    """
    if isinstance(setting, int):
        return setting
    budget = parse_size(setting.removeprefix(AUTO))
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    fixed = weights * (1 + copies)
    small, large = ((n, _needed(division.measure(model, images(n)))) for n in SAMPLES)
    each = (large[1] - small[1]) / (large[0] - small[0])
    constant = fixed + small[1] - each * small[0]
    count = int((budget - constant) // each)
    if count < 1:
        raise ValueError(
            f"optim.batch: no batch fits into {size_text(budget)}: weights, gradients and "
            f"optimizer take {size_text(fixed)}, and every image {size_text(each)}"
        )
    count = min(count, most)
    return count - count % 8 if count > 8 else count


def _needed(ledger: Ledger) -> int:
    largest = max(row.bytes_before for row in ledger.rows)
    blocks = sum(row.node == "checkpoint" for row in ledger.rows)
    # A block that runs again holds what it would have saved; the largest is some twice the mean.
    again = 2 * ledger.original_bytes // blocks if blocks else 0
    return ledger.saved_bytes + MOMENTARY_MAPS * largest + again
