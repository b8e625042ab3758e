"""results/REPRODUCTION.md: every claim with what we got, the verdict and the command."""

from pathlib import Path

import pandas as pd

from experiments import beyond, claims
from experiments.claims import Judged
from experiments.tables import render

BEYOND = "Beyond the paper"
COLUMNS = [
    "claim",
    "published",
    "ours",
    "n",
    "sd",
    "scale, of what",
    "verdict",
    "judged by",
    "again",
]
HEAD = """# What was claimed, and what we get

Written by `make report` from the rows of `results/runs/` and from `results/paper/*.csv`; no verdict
is typed. {counts}

- reached, missed: by the rule in the column "judged by"
- not comparable: ours is of another network, schedule or machine; the value is shown, and why
- not yet measured: there are no rows, or too few seeds; the command makes them
- n: seeds of a training, rounds of a timing, batches of a gradient error; 1 where bytes are counted
- scale: `paper` is the published setting, `reduced` a shorter training, `quick` a toy
"""
BEYOND_HEAD = """`recompute=True` is no part of any of these papers: what a cheap layer can compute
again from its own stored input is not stored. The bars are our own; the two tables below the
claims say network by network what it is worth, and where it is worth nothing.
"""


def text_of(results: Path) -> str:
    """Return the page; the tables that are part of it are written on the way."""
    judged = claims.judge_all(results)
    parts = [HEAD.format(counts=_counts(judged))]
    for paper in dict.fromkeys(each.claim.paper for each in judged):
        lines = [_line(each) for each in judged if each.claim.paper == paper]
        table = render.table(pd.DataFrame(lines, columns=COLUMNS))
        if paper == BEYOND:
            parts += [f"## {paper}\n", BEYOND_HEAD, table, "", *beyond.write(results)]
        else:
            sources = sorted({each.claim.source for each in judged if each.claim.paper == paper})
            parts += [f"## {paper}\n", table, "", f"Published in: {'; '.join(sources)}.", ""]
    return "\n".join([*parts, "## Not tested here", "", *_untested(results, judged), ""])


def write(results: Path) -> str:
    """Write the page, and the tables that are part of it; return it."""
    text = text_of(results)
    (results / "REPRODUCTION.md").write_text(text)
    return text


def _counts(judged: list[Judged]) -> str:
    found = [each.verdict for each in judged]
    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in claims.VERDICTS)
    return f"{len(judged)} claims: {counts}."


def _line(judged: Judged) -> list[str]:
    claim, ours = judged.claim, judged.ours
    published = "" if claim.published is None else shown(claim.published, claim.unit)
    cells = ["", "", "", ""]
    if ours is not None:
        sd = "" if ours.sd is None else f"{ours.sd:.2f}"
        cells = [shown(ours.value, claim.unit), str(ours.n), sd, f"{ours.scale}: {ours.of}"]
    return [claim.what, published, *cells, judged.verdict, judged.why, f"`{claim.command}`"]


def shown(value: float, unit: str) -> str:
    """Write a value with its unit.

    >>> shown(-29.0, "%"), shown(94.72, "%"), shown(12.0, "x"), shown(-0.17, "points")
    ('-29 %', '94.72 %', '12.0x', '-0.17 points')
    """
    if unit == "points":
        return f"{value:+.2f} points"
    if unit == "x":
        return f"{value:.1f}x"
    if unit == "%":
        return f"{value:.4g} %"
    return f"{value:.2f}" + ("" if unit == "1" else f" {unit}")


def _untested(results: Path, judged: list[Judged]) -> list[str]:
    """List the published accuracies that no claim above is about."""
    tested = {each.claim.measure for each in judged}
    table = pd.read_csv(results / "paper" / "accuracy.csv")
    lines = []
    for (dataset, model), part in table.groupby(["dataset", "model"], sort=False):
        left = [
            f"{line.method} {line.top1:g} %"
            for line in part.itertuples()
            if f"accuracy {dataset} {model} {line.method}" not in tested
        ]
        if left:
            lines.append(f"- top-1 of {model} on {dataset}: {', '.join(left)}")
    return [
        "Published accuracies for which there is no profile here: other data (CIFAR-100, "
        "ImageNet), methods that are not built (acgc, blpa), and baselines (fp32).",
        "",
        *lines,
    ]
