"""One look for all figures: readable at the width of a column, and without colour too.

Colours are those of Okabe and Ito, which people who see few colours can tell apart; every method
has a marker of its own as well.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN, PAGE = 3.5, 7.2  # inches: one column and the full width of a printed page
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, WINE = "#7F7F7F", "#882255"
METHODS = {
    "vanilla": (BLACK, "o"),
    "division": (VERMILION, "s"),
    "actnn": (BLUE, "^"),
    "pooling": (GREEN, "D"),
    "lossy": (ORANGE, "v"),
    "autocast": (SKY, "P"),
    "checkpoint": (PURPLE, "X"),
    "offload": (GREY, "*"),
}
_OTHERS = (YELLOW, "h")  # a method that somebody added
RC = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "division",
}


@dataclass(frozen=True)
class Drawing:
    """A figure, and what a reader must know of it."""

    figure: Figure
    caption: str


@contextmanager
def look() -> Iterator[None]:
    """Draw with these settings inside the context."""
    with matplotlib.rc_context(RC):
        yield


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, whose parts make room for each other."""
    return Figure(figsize=(width, height), layout="constrained")


def legend(of: Figure, panels: list[Axes], ncols: int, more: Sequence[Artist] = ()) -> None:
    """Write one legend below all panels, though some may lack what others show."""
    handles: dict[str, object] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    handles |= {str(each.get_label()): each for each in more}
    of.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=ncols)


def colour(method: str) -> str:
    """Return the colour of a method."""
    return METHODS.get(method, _OTHERS)[0]


def marker(method: str) -> str:
    """Return the marker of a method."""
    return METHODS.get(method, _OTHERS)[1]


def in_order(methods: list[str]) -> list[str]:
    """Sort methods as all figures do."""
    order = list(METHODS)
    return sorted(methods, key=lambda m: (order.index(m) if m in order else len(order), m))


def plain_log_ticks(axes: Axes, which: str, ticks: list[float]) -> None:
    """Write the ticks of a logarithmic axis as plain numbers."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)
