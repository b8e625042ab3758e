"""The tables beyond the paper: gradient error at equal bytes, and what recompute is worth.

They are part of REPRODUCTION.md, and files of results/tables.
"""

from pathlib import Path

from experiments import equal, gains, record
from experiments.tables import equal as equal_table
from experiments.tables import gains as gains_table
from experiments.tables import render


def write(results: Path) -> list[str]:
    """Write the tables that have rows; return them as Markdown."""
    folder, texts = results / "tables", []
    states = equal.states_of(record.load(results, "errors"))
    if states:
        frame, notes = equal_table.frame(states), equal_table.notes(states)
        title = "Gradient error at equal stored bytes: recompute against DIVISION as published"
        texts.append(render.write(folder, "equal-bytes", frame, title, notes))
    found = gains.gains(results)
    if found:
        frame, notes = gains_table.frame(found), gains_table.notes()
        title = "Where recompute helps, and where it does not"
        texts.append(render.write(folder, "recompute", frame, title, notes))
    return texts
