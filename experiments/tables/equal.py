"""Gradient error at equal stored bytes: recompute within what DIVISION stored as published."""

from collections.abc import Mapping

import pandas as pd

from division.ledger import size_text
from experiments.equal import BAR, PUBLISHED, State
from experiments.record import Row
from experiments.tables.core import verdict

COLUMNS = [
    "network",
    "state",
    "published: stored",
    "published: error",
    "best recompute that fits",
    "its bytes",
    "its error",
    "error / published",
    "bar",
    "verdict",
    "without recompute: error / published",
]
DEFAULT = "division"


def frame(states: list[State]) -> pd.DataFrame:
    """Lay out every network at every state."""
    return pd.DataFrame([_line(state) for state in states], columns=COLUMNS)


def notes(states: list[State]) -> list[str]:
    """Say what the numbers are and where they come from."""
    rows = [point.error for state in states for point in state.points.values()]
    first = rows[0]
    trained = {
        state.network: f"{state.network}: {state.row.config['optim.epochs']} epoch(s) of "
        f"{state.row.config['optim.name']} at batch {state.row.config['optim.batch']}, gradients "
        f"of batches of {state.row.config['batch']}"
        for state in states
    }
    return [
        "as published: `align=reference share=false fine_bits=2`, no recompute, 2 bits; its bytes "
        "are those it stores, duplicates included",
        "stored: all that autograd holds for one batch, by the ledger",
        "error: |g - g0| / |g0| over all parameters, root mean square over "
        f"{first.config['draws']} draws of the rounding noise, median over {first.n} batches "
        "(p20-p80), at one state of one vanilla training (1 seed)",
        "best that fits: of the settings with recompute that store no more, the one with the "
        "smallest error at that state",
        "without recompute: the default (2 bits, shared copies, 8 bits for images and classifier), "
        "whose bytes may be a little more",
        *trained.values(),
        f"commits: {', '.join(sorted({row.commit[:10] + '+' * row.dirty for row in rows}))} "
        "(+: with uncommitted changes)",
    ]


def _line(state: State) -> list[str]:
    base, best = state.points[PUBLISHED], state.within(PUBLISHED)
    default = state.points.get(DEFAULT)
    ratio = best.over(base) if best else None
    return [
        state.network,
        f"{state.at}: step {state.row.config['step']}",
        size_text(base.saved),
        _error(base.error),
        setting(best.options) if best else "none",
        size_text(best.saved) if best else "",
        _error(best.error) if best else "",
        f"{ratio:.2f}" if ratio is not None else "",
        f"<= {BAR}",
        verdict(ratio is not None and ratio <= BAR),
        f"{default.over(base):.2f}" if default else "",
    ]


def setting(options: Mapping[str, object]) -> str:
    """Write options as one would on a command line."""
    return " ".join(f"{key}={value}" for key, value in options.items())


def _error(row: Row) -> str:
    return f"{row.value:.3f} ({row.p20:.3f}-{row.p80:.3f})"
