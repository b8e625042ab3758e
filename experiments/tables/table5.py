"""Table 5: DIVISION with options changed: gradient error, stored bytes, accuracy."""

from collections.abc import Mapping

import pandas as pd

from division.ledger import size_text
from division.method import BITS, Division
from experiments.record import Row
from experiments.specs import Spec
from experiments.tables.table1 import accuracy_text

_SHOWN = ("bits", "block", "keep", "align", "rounding", "fine_bits")


def frame(specs: list[Spec], trained: list[Row], measured: list[Row]) -> pd.DataFrame:
    """Lay rows out, a line for every spec.

    Args:
        specs: the lines.
        trained: rows of training runs.
        measured: rows of `experiments.errors`.
    """
    if not trained and not measured:
        raise ValueError("there is nothing recorded to make Table 5 of")
    scales = sorted({row.scale for row in [*trained, *measured]})
    if len(scales) != 1:
        raise ValueError(f"a table never mixes scales; the rows have {', '.join(scales)}")
    runs = pd.DataFrame([vars(row) | {"label": label_of(row, specs)} for row in trained])
    totals = {(r.config["label"], r.config["at"], r.metric): r for r in measured}
    states = list(steps_of(measured))
    columns = ["setting", *(f"gradient error, {at}" for at in states)]
    columns += [f"of it bias, {states[-1]}"] if states else []
    columns += ["activations", "compression", "top-1 %"]
    return pd.DataFrame([_line(spec, runs, totals, states) for spec in specs], columns=columns)


def steps_of(measured: list[Row]) -> dict[str, int]:
    """Return the states at which errors were measured, in their order in the training."""
    found = {
        str(r.config["at"]): int(r.config["step"]) for r in measured if r.metric == "gradient_error"
    }
    return dict(sorted(found.items(), key=lambda state: state[1]))


def label_of(row: Row, specs: list[Spec]) -> str | None:
    """Return the spec that a training run belongs to: its options are the defaults but for one."""
    defaults = vars(Division()) if row.method == "division" else {}
    for spec in specs:
        wanted = {**{key: defaults[key] for key in row.options if key in defaults}, **spec.options}
        if row.method == spec.method and _of_maps(wanted) == _of_maps(row.options):
            return spec.label
    return None


def _of_maps(options: Mapping[str, object]) -> dict[str, object]:
    """Name the default bits: the networks of this table have maps only."""
    return {key: BITS["map"] if (key, v) == ("bits", None) else v for key, v in options.items()}


def setting_text(spec: Spec) -> str:
    """Write what is changed; for the default, what it is."""
    if spec.method == "vanilla":
        return "vanilla"
    changed = _of_maps(spec.options or {key: getattr(Division(), key) for key in _SHOWN})
    text = " ".join(f"{key}={value}" for key, value in changed.items())
    return text if spec.options else f"default: {text}"


def notes(trained: list[Row], measured: list[Row]) -> list[str]:
    """Say what the numbers are and where they come from."""
    rows = [*trained, *measured]
    machines = sorted({f"{r.machine['cpu']}, {r.machine['cores']} cores" for r in rows})
    commits = sorted({r.commit[:10] + ("+" if r.dirty else "") for r in rows})
    found = [f"scale: {rows[0].scale}; {rows[0].model} on {rows[0].dataset}"]
    errors = [row for row in measured if row.metric == "gradient_error"]
    if errors:
        first = errors[0].config
        found += [
            "gradient error: |g - g0| / |g0| over all parameters, root mean square over "
            f"{first['draws']} draws of the rounding noise, median over {errors[0].n} batches of "
            f"{first['batch']} (p20-p80), at steps "
            + ", ".join(f"{step} ({at})" for at, step in steps_of(measured).items())
            + " of one vanilla training",
            "of it bias: |mean of g - g0| / |g0| over the draws; unbiased rounding leaves about "
            f"the error divided by the square root of {first['draws']}",
            f"activations: what autograd holds for a batch of {first['batch']}, by the ledger; "
            "compression is against stock PyTorch",
        ]
    if trained:
        first = trained[0].config
        found.append(
            f"top-1: {first['optim.epochs']} epoch{'s' * (first['optim.epochs'] != 1)} at batch "
            f"{first['optim.batch']}, mean ± sample sd over n seeds "
            f"({sorted({r.seed for r in trained})})"
        )
    found += [
        "block=8 divides the maps of this network, where both alignments agree; they are compared "
        "at block=6, which does not",
        "align=reference share=False fine_bits=2 is DIVISION as published; recompute is not in the "
        "paper (REPRODUCTION.md, Beyond the paper)",
        f"hardware: {'; '.join(machines)}",
        f"commits: {', '.join(commits)} (+: with uncommitted changes)",
    ]
    return found


def _line(
    spec: Spec,
    runs: pd.DataFrame,
    totals: dict[tuple[str, str, str], Row],
    states: list[str],
) -> list[str]:
    cells = [setting_text(spec)]
    shown = [(at, "gradient_error") for at in states]
    for at, metric in [*shown, *((at, "gradient_bias") for at in states[-1:])]:
        row = totals.get((spec.label, at, metric))
        cells.append(f"{row.value:.3f} ({row.p20:.3f}-{row.p80:.3f})" if row else "")
    measured = [at for at in states if (spec.label, at, "gradient_error") in totals]
    saved, stock = (
        totals[spec.label, measured[-1], metric] if measured else None
        for metric in ("saved_bytes", "original_bytes")
    )
    cells.append(size_text(saved.value) if saved else "")
    cells.append(f"{stock.value / saved.value:.2f}x" if saved and stock else "")
    if not len(runs):
        return [*cells, ""]
    final = runs[(runs["label"] == spec.label) & (runs["metric"] == "final_top1")]
    return [*cells, accuracy_text(final)]
