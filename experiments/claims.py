"""Claims: what was published, the rule it is judged by, and the verdict that the rows give.

results/paper/claims.csv has a line a claim. `measure` says what of ours stands beside it (see
measures.py), `published` is a number or a place in the other files of results/paper, `rule` and
`bar` how near ours has to be.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from experiments.measures import Measured, Measures

REACHED, MISSED = "reached", "missed"
NOT_COMPARABLE, NOT_MEASURED = "not comparable", "not yet measured"
VERDICTS = (REACHED, MISSED, NOT_COMPARABLE, NOT_MEASURED)
RULES = {
    "within": "no further from the published value than {bar:.0%} of it",
    "at_least": "at least {bar:g}",
    "at_most": "at most {bar:g}",
    "above": "more than {bar:g}",
    "below": "less than {bar:g} at every state",
    "accuracy": "no more than {bar:g} points, or 2 sd, below the published value",
    "no_loss": "no lower than {bar:+.2f} by more than 2 standard errors (2 seeds at least)",
}


@dataclass(frozen=True)
class Claim:
    """One line of claims.csv, with the published value looked up."""

    id: str
    paper: str
    what: str
    measure: str
    published: float | None
    unit: str
    rule: str
    bar: float
    command: str
    source: str

    @property
    def judged_by(self) -> str:
        """Say the rule."""
        return RULES[self.rule].format(bar=self.bar).replace("%", " %")


@dataclass(frozen=True)
class Judged:
    """A claim, what we have beside it, and the verdict with its reason."""

    claim: Claim
    ours: Measured | None
    verdict: str
    why: str


def load(results: Path) -> list[Claim]:
    """Read the claims; a mistake in the file is named with the line's id."""
    table = pd.read_csv(results / "paper" / "claims.csv", dtype=str, keep_default_na=False)
    paper = {
        name: pd.read_csv(results / "paper" / f"{name}.csv")
        for name in ("memory", "throughput", "accuracy")
    }
    claims = []
    for line in table.to_dict("records"):
        if line["rule"] not in RULES:
            raise ValueError(f"{line['id']}: rule must be one of {', '.join(RULES)}")
        published = _number(line["published"], paper) if line["published"] else None
        bar = float(line["bar"]) if line["bar"] else published
        if bar is None:
            raise ValueError(f"{line['id']} has neither a published value nor a bar")
        claims.append(Claim(**(line | {"published": published, "bar": bar})))
    if len({claim.id for claim in claims}) != len(claims):
        raise ValueError("claims.csv has an id twice")
    return claims


def _number(text: str, paper: dict[str, pd.DataFrame]) -> float:
    """Return a number, or look it up: what, then where in results/paper."""
    kind, *where = text.split()
    if kind == "memory":
        model, method, batch, column = where
        return _one(paper["memory"], column, model=model, method=method, batch_size=int(batch))
    if kind == "throughput":
        model, method, base, batch = where
        of = {"model": model, "batch_size": int(batch)}
        fast, slow = (
            _one(paper["throughput"], "images_per_s", method=each, **of) for each in (method, base)
        )
        return fast / slow
    if kind in ("accuracy", "accuracy_change"):
        dataset, model, method = where
        of = {"dataset": dataset, "model": model}
        ours = _one(paper["accuracy"], "top1", method=method, **of)
        return ours - (_one(paper["accuracy"], "top1", method="fp32", **of) * (kind != "accuracy"))
    return float(text)


def _one(table: pd.DataFrame, column: str, **where: object) -> float:
    for key, value in where.items():
        table = table[table[key] == value]
    if len(table) != 1:
        raise ValueError(f"results/paper has {len(table)} lines with {where}, not one")
    return float(table[column].iloc[0])


def judge(claim: Claim, ours: Measured | None) -> Judged:
    """Give the verdict on a claim."""
    if ours is None:
        return Judged(claim, None, NOT_MEASURED, "no rows yet")
    if ours.not_comparable:
        return Judged(claim, ours, NOT_COMPARABLE, ours.not_comparable)
    if claim.rule == "no_loss" and ours.error is None:
        return Judged(claim, ours, NOT_MEASURED, "2 seeds of both are needed")
    verdict = REACHED if _holds(claim, ours) else MISSED
    return Judged(claim, ours, verdict, claim.judged_by)


def _holds(claim: Claim, ours: Measured) -> bool:
    value, bar = ours.value, claim.bar
    if claim.rule == "within":
        return claim.published is not None and abs(value / claim.published - 1) <= bar
    if claim.rule == "accuracy":
        return value >= (claim.published or 0.0) - max(2 * (ours.sd or 0.0), bar)
    if claim.rule == "no_loss":
        return value + 2 * (ours.error or 0.0) >= bar
    if claim.rule in ("above", "below"):
        return value > bar if claim.rule == "above" else value < bar
    near = math.isclose(value, bar)
    return near or (value > bar if claim.rule == "at_least" else value < bar)


def judge_all(results: Path) -> list[Judged]:
    """Judge every claim by the rows that there are."""
    measures = Measures(results)
    return [judge(claim, measures(claim.measure)) for claim in load(results)]
