"""Where recompute helps and where it does not, with the verdicts that the rows give."""

import pandas as pd

from experiments.gains import NOTICED, Gain

COLUMNS = ["what", "of", "instead of", "setting", "change", "verdict"]


def frame(gains: list[Gain]) -> pd.DataFrame:
    """Lay out every comparison."""
    return pd.DataFrame([_line(gain) for gain in gains], columns=COLUMNS)


def notes() -> list[str]:
    """Say what is compared."""
    return [
        f"helps, costs: better or worse by {NOTICED:.0%} at least; throughput is better when "
        "higher, all the rest when lower",
        "division: the default at 2 bits; division-recompute: the same with `recompute=True`; "
        "-deep: with `recompute=deep`; -3: at 3 bits",
        "a gradient error over that at the same bits: recompute is not there to lower it, but to "
        "pay for more bits",
    ]


def _line(gain: Gain) -> list[str]:
    change = f"{100 * (gain.ratio - 1):+.1f} %"
    return [gain.what, gain.of, gain.before, gain.after, change, gain.verdict]
