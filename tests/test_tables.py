"""Tables: from rows only, never mixing scales, misses and failures included."""

from pathlib import Path

import pytest
from test_record import row

from experiments import grid, record, report
from experiments.config import compose_train, flatten
from experiments.tables import render, table1

MIB = 2**20


def run(method: str, seed: int, top1: float | None, saved: float = 10 * MIB, **more) -> list:
    common = {"method": method, "seed": seed, "experiment": "table1-quick", **more}
    return record.complete(
        [
            row(metric="saved_bytes", unit="B", value=saved, **common),
            row(metric="original_bytes", unit="B", value=100 * MIB, **common),
            row(metric="final_top1", value=top1, status="ok" if top1 else "diverged", **common),
        ]
    )


def bench(method: str, ratio: float) -> list:
    common = {"method": method, "experiment": "table1-quick-benchmark"}
    speed = {"metric": "throughput_ratio", "unit": "1", "value": ratio, "p20": 0.9, "p80": 1.1}
    return record.complete(
        [row(**common, **speed), row(**common, metric="peak_bytes", unit="B", value=50 * MIB)]
    )


def test_table1_lays_out_what_was_measured() -> None:
    trained = [*run("division", 0, 91.0), *run("division", 1, 93.0), *run("vanilla", 0, 92.0)]
    benchmarked = [*bench("vanilla", 1.0), *bench("division", 0.95)]
    frame = table1.frame(trained, benchmarked)
    assert list(frame["method"]) == ["vanilla", "division"]
    line = frame[frame["method"] == "division"].iloc[0]
    assert line["top-1 %"] == "92.00 ± 1.41 (n=2)"
    assert line["compression"] == "10.00x"
    assert line["activations"] == "10.00 MiB"
    assert line["peak of a step"] == "50.00 MiB"
    assert line["throughput / vanilla"] == "0.95 (0.90-1.10)"
    assert frame.iloc[0]["top-1 %"] == "92.00 (n=1)"


def test_a_newer_row_replaces_an_older_one_and_other_configs_stay_out() -> None:
    rows = run("division", 0, 90.0)
    old = [r.__class__(**(vars(r) | {"utc": "2020-01-01", "value": 1.0})) for r in rows]
    other = run("division", 0, 50.0, config={"optim.epochs": 99})
    chosen = table1.select([*rows, *old, *other], {rows[0].config_hash})
    assert chosen == rows


def test_a_failure_is_shown() -> None:
    frame = table1.frame([*run("division", 0, 90.0), *run("division", 1, None)], [])
    assert frame.iloc[0]["top-1 %"] == "90.00 (n=1), diverged (n=1)"


def test_scales_are_never_mixed() -> None:
    with pytest.raises(ValueError, match="never mixes scales; the rows have paper, quick"):
        table1.frame([*run("vanilla", 0, 90.0), *run("vanilla", 1, 90.0, scale="paper")], [])


def test_no_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="no recorded run"):
        table1.frame([], [])


def test_all_three_forms_are_written_and_twice_is_the_same(tmp_path: Path) -> None:
    first_run = next(grid.runs(grid.load("quick"), grid.methods(), []))
    config = flatten(compose_train(first_run))
    record.append(tmp_path, [*run("vanilla", 0, 92.0, config=config), *run("vanilla", 1, 50.0)])
    first = report.write_table1(grid.load("quick"), tmp_path)
    files = {p.name: p.read_bytes() for p in (tmp_path / "tables").iterdir()}
    assert set(files) == {"table1.md", "table1.csv", "table1.tex"}
    assert report.write_table1(grid.load("quick"), tmp_path) == first
    assert {p.name: p.read_bytes() for p in (tmp_path / "tables").iterdir()} == files
    assert "| digits  | resnet20 | vanilla |" in first
    assert "92.00 (n=1)" in first  # the run of another config is no part of the profile
    assert "hardware: " in first


def test_latex_escapes_what_latex_would_eat() -> None:
    frame = table1.frame(run("vanilla", 0, 92.0), [])
    text = render.latex(frame, "50 % of a_b & c", [])
    assert r"50 \% of a\_b \& c." in text
    assert r"\midrule" in text
