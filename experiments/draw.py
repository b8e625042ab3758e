"""Figures from rows: `make figures` writes results/figures/*.png, *.pdf and their captions.

A figure whose rows are missing is left out, and the command that makes them is named.
"""

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from experiments import ablation, build, grid, record
from experiments.config import one_sentence
from experiments.equal import states_of
from experiments.figures import (
    curves,
    equal,
    families,
    frames,
    layers,
    maps,
    memory,
    pareto,
    radar,
    rate,
    spectra,
    throughput,
)
from experiments.figures.captions import read_captions
from experiments.figures.style import Drawing, look
from experiments.measures import STEP
from experiments.pictures import STEP as PICTURED
from experiments.pictures import pictures
from experiments.report import rows_of_table1
from experiments.tables import core

SCALES = ("paper", "reduced", "quick")  # the best first
PROFILES = ("cifar", "quick")
MODEL = "resnet20"
DPI = 200
ABLATION = "make reproduce-ablation"


class Missing(Exception):
    """A figure has no rows; the message names the command that makes them."""


def best(frame: pd.DataFrame, command: str) -> pd.DataFrame:
    """Return the rows of the largest scale that there is."""
    for scale in SCALES:
        if (frame["scale"] == scale).any():
            return frame[frame["scale"] == scale]
    raise Missing(f"no rows; `{command}` makes them")


def errors_frame(results: Path) -> pd.DataFrame:
    """Return the gradient errors of one network at one scale.

    The one with the most specs measured at the end of the training, so that a larger scale takes
    over once its measurement is complete; of equals the largest.
    """
    frame = frames.table(row for row in record.load(results, "errors") if row.model == MODEL)
    done = frame[(frame["metric"] == "gradient_error") & (frame["at"] == "end")]
    count = done.groupby("scale")["label"].nunique()
    return best(frame[frame["scale"].isin(count[count == count.max()].index)], ABLATION)


@functools.cache
def table1_frames(results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs of Table 1 of one network and dataset, and its benchmark.

    Where the profile of the runs has no benchmark yet, that of the quick profile serves: it is of
    the same network, and the caption says of what it is.
    """
    profiles = [grid.load(name) for name in PROFILES]
    found = [
        rows_of_table1(profile, results)
        for profile in profiles
        if (results / "runs" / f"{profile.name}.jsonl").exists()
    ]
    trained = next((rows for rows, _ in found if rows), [])
    benchmarked = next((rows for _, rows in found if rows), [])
    runs, bench = frames.table(trained), frames.table(benchmarked)
    runs = best(runs[runs["model"] == MODEL], "make reproduce-table1")
    return runs, bench[bench["model"] == MODEL]


def pareto_frames(results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs of Table 1 with those of recompute beside them, and the timed steps."""
    runs, _ = table1_frames(results)
    timed = core.newest(record.load(results, "benchmark"), **STEP)
    return pd.concat([runs, beside(runs, results)]), frames.table(timed)


def beside(runs: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Return the runs that differ from those of a profile in the seed and in recompute only."""

    def settings(config: Mapping[str, object]) -> dict[str, object]:
        return {k: v for k, v in config.items() if k != "seed" and not k.startswith("method.")}

    wanted = settings(runs["config"].iloc[0])
    rows = record.load(results, runs["experiment"].iloc[0])
    found = [row for row in rows if families.family(row.options).endswith(("compute", "deep"))]
    return frames.table(row for row in found if settings(row.config) == wanted)


def rows_or_missing(results: Path, name: str, command: str) -> pd.DataFrame:
    """Return the rows of an experiment, or say how to make them."""
    frame = frames.table(record.load(results, name))
    if not len(frame):
        raise Missing(f"no rows; `{command}` makes them")
    return frame


def picture_config() -> DictConfig:
    """Return the network whose maps are shown: on CIFAR-10 where it is at hand, else on digits."""
    config = ablation.errors_config(ablation.load("cifar"), ["progress=false"])
    try:
        build.dataset(config)
    except FileNotFoundError:
        return ablation.errors_config(ablation.load("quick"), ["progress=false"])
    return config


def draw_maps(results: Path) -> Drawing:
    """Train for a moment, and show activation maps."""
    config = picture_config()
    return maps.draw(
        pictures(config),
        f"{config.model.name} on {config.dataset.name} after {PICTURED} steps of vanilla training "
        f"(seed {config.seed}, one image)",
    )


def draw_equal(results: Path) -> Drawing:
    """Draw the errors of recompute against those of DIVISION as published."""
    states = states_of(record.load(results, "errors"))
    if not states:
        raise Missing("no rows; `make reproduce-recompute` makes them")
    return equal.draw(states)


def draw_throughput(results: Path) -> Drawing:
    """Draw Table 4."""
    rows = rows_or_missing(results, "table4", "make reproduce-table4")
    return throughput.draw(rows[rows["model"] == rows["model"].iloc[-1]])


FIGURES: dict[str, Callable[[Path], Drawing]] = {
    "spectrum": lambda results: spectra.draw(errors_frame(results)),
    "gradient-error-by-layer": lambda results: layers.draw(errors_frame(results)),
    "rate-distortion": lambda results: rate.draw(errors_frame(results)),
    "equal-bytes": draw_equal,
    "pareto": lambda results: pareto.draw(*pareto_frames(results)),
    "throughput": draw_throughput,
    "memory-by-kind": lambda results: memory.draw(
        rows_or_missing(results, "kinds", "python -m experiments.kinds")
    ),
    "radar": lambda results: radar.draw(*table1_frames(results), errors_frame(results)),
    "training-curves": lambda results: curves.draw(table1_frames(results)[0]),
    "maps": draw_maps,
}


def write(drawing: Drawing, folder: Path, name: str) -> None:
    """Write a figure as PNG and PDF, without the date: the same rows give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with look():
        drawing.figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
        nothing = {"CreationDate": None, "Creator": None, "Producer": None}
        drawing.figure.savefig(folder / f"{name}.pdf", metadata=nothing)


def write_captions(folder: Path, captions: dict[str, str]) -> None:
    """Write the page of the figures; a figure that was not drawn this time keeps its caption."""
    page = folder / "README.md"
    known = read_captions(page.read_text()) if page.exists() else {}
    known = {name: text for name, text in {**known, **captions}.items() if name in FIGURES}
    parts = ["# Figures", "", "Made by `make figures` from the rows of `results/runs/`.", ""]
    for name in FIGURES:
        if name in known:
            parts += [f"## {name}", "", f"![{name}]({name}.png)", "", known[name], ""]
    page.write_text("\n".join(parts))


def main() -> None:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows")
    parser.add_argument("names", nargs="*", help=f"default: all of {', '.join(FIGURES)}")
    arguments = parser.parse_args()
    captions = {}
    with one_sentence():
        unknown = sorted(set(arguments.names) - set(FIGURES))
        if unknown:
            raise ValueError(f"no figure {unknown[0]!r}; choose from: {', '.join(FIGURES)}")
        folder = arguments.results / "figures"
        for name in arguments.names or FIGURES:
            try:
                drawing = FIGURES[name](arguments.results)
            except Missing as missing:
                print(f"{name}: {missing}")
                continue
            write(drawing, folder, name)
            captions[name] = drawing.caption
            print(f"{name}: {folder / name}.png and .pdf")
        write_captions(folder, captions)


if __name__ == "__main__":
    main()
