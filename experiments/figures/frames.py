"""Rows as a frame, with what figures look for in the config as columns of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

import pandas as pd

from experiments.record import Row

FROM_CONFIG = ("label", "at", "step", "layer", "band", "kind", "batch", "spec", "budget")


def table(rows: Iterable[Row]) -> pd.DataFrame:
    """Lay rows out, one line each."""
    columns = [field.name for field in fields(Row)]
    rows = list(rows)
    frame = pd.DataFrame([vars(row) for row in rows], columns=columns)
    for key in FROM_CONFIG:
        frame[key] = [row.config.get(key) for row in rows]
    return frame


def newest(frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Keep the newest row of each combination of keys, in the order of first sight."""
    first = frame.drop_duplicates(list(keys))[list(keys)]
    last = frame.sort_values("utc", kind="stable").drop_duplicates(list(keys), keep="last")
    return first.merge(last, on=list(keys), how="left") if len(frame) else frame


def of_what(frame: pd.DataFrame) -> str:
    """Say which networks and data the rows are of."""
    pairs = frame[["model", "dataset"]].drop_duplicates().to_numpy().tolist()
    return "; ".join(f"{model} on {dataset}" for model, dataset in pairs)


def seeds_of(frame: pd.DataFrame) -> str:
    """Say how many seeds the rows have."""
    count = frame["seed"].nunique()
    return f"{count} seed{'s' * (count != 1)}"


def by_step(frame: pd.DataFrame) -> list[str]:
    """Return the states of a training in their order there."""
    return list(dict.fromkeys(frame.sort_values("step", kind="stable")["at"]))
