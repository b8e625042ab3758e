"""Table 5: a line for every option, from rows only."""

from pathlib import Path

import pytest
from test_record import row

from experiments import ablation, errors, record, report
from experiments.config import compose_train, flatten
from experiments.specs import specs_of
from experiments.tables import table5


def recorded(results: Path, name: str = "quick") -> ablation.Ablation:
    """Record a made-up run and made-up errors of every spec of a profile."""
    profile = ablation.load(name)
    rows = []
    for number, (_, overrides) in enumerate(ablation.runs(profile, [])):
        config = compose_train(overrides)
        _, options = errors.build.options(config.method)
        common = {"experiment": profile.name, "scale": profile.scale, "config": flatten(config)}
        method = {"method": config.method.name, "options": options}
        rows.append(row(metric="final_top1", value=float(number), **common, **method))
    config = ablation.errors_config(profile, [])
    for at, step in (("start", 0), ("early", 50), ("end", 120)):
        for spec in specs_of(config):
            common = {
                "experiment": "errors",
                "scale": profile.scale,
                "method": spec.method,
                "options": spec.options,
                "config": errors.settings(config, at, step, spec),
            }
            for metric, value in (
                ("saved_bytes", 2.0**20),
                ("original_bytes", 2.0**23),
                ("gradient_bias", 0.1),
                ("gradient_error", 0.25),
            ):
                rows.append(row(metric=metric, value=value, p20=0.2, p80=0.3, n=3, **common))
    record.append(results, record.complete(rows))
    return profile


def test_every_spec_has_a_line_with_its_own_run(tmp_path: Path) -> None:
    recorded(tmp_path)
    text = report.write_table5("quick", tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(lines) == len(ablation.specs())
    assert all(f" {number:.2f} (n=1) " in line for number, line in enumerate(lines))
    assert "default: bits=2 block=8 keep=both align=area" in lines[1]
    assert "0.250 (0.200-0.300)" in lines[1]
    assert "8.00x" in lines[1]
    for setting in ("keep=low", "bits=1", "block=16", "block=6 align=reference", "fine_bits=2"):
        assert sum(f"| {setting} " in line for line in lines) == 1
    assert "steps 0 (start), 50 (early), 120 (end)" in text
    assert "scale: quick; resnet20 on digits" in text
    assert (tmp_path / "tables" / "table5-quick.csv").exists()
    assert (tmp_path / "tables" / "table5-quick.tex").exists()


def test_runs_that_are_not_there_yet_leave_empty_cells(tmp_path: Path) -> None:
    profile = recorded(tmp_path)
    (tmp_path / "runs" / f"{profile.name}.jsonl").unlink()
    assert "(n=1)" not in report.write_table5("quick", tmp_path)


def test_rows_of_other_settings_stay_out(tmp_path: Path) -> None:
    recorded(tmp_path)
    assert errors.rows_for(ablation.errors_config(ablation.load("quick"), []), tmp_path)
    other = ablation.errors_config(ablation.load("quick"), ["optim.lr=0.3"])
    assert errors.rows_for(other, tmp_path) == []


def test_scales_never_mix_and_nothing_gives_no_table() -> None:
    rows = [row(scale="quick"), row(scale="reduced")]
    with pytest.raises(ValueError, match="a table never mixes scales; the rows have quick, reduc"):
        table5.frame(ablation.specs(), rows, [])
    with pytest.raises(ValueError, match="nothing recorded"):
        table5.frame(ablation.specs(), [], [])
