"""Table 4: what is timed and at which batches, beside what was published."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from test_record import row

from experiments import benchmark, draw, record, report, table4
from experiments.config import FOLDER
from experiments.provenance import ROOT
from experiments.tables import table4 as table

PAPER = pd.read_csv(ROOT / "results" / "paper" / "throughput.csv")


def config(**changes: object):
    loaded = OmegaConf.load(FOLDER / "table4.yaml")
    chosen = {"network": {"name": "resnet20"}, "image": 16, "batches": [2, 4], "budget": "16MiB"}
    loaded.methods = {"vanilla": {}, "division": {}, "lossy": {}}
    return OmegaConf.merge(loaded, chosen, {"rounds": 1, "warmup": 0, "most": 64}, changes)


def made_up(results: Path) -> list[record.Row]:
    """Rows in which division has 0.9 of the throughput at equal batches, twice within 1 GiB."""
    rows = []
    for label, speed in (("vanilla", 100.0), ("division", 90.0)):
        common = {"experiment": "table4", "method": label, "model": "resnet18", "n": 7}
        for batch in (64, 256):
            at = {"label": label, "batch": batch}
            for metric, value in (("throughput", speed), ("throughput_ratio", speed / 100)):
                spread = {"value": value, "p20": 0.9 * value, "p80": 1.1 * value}
                rows.append(row(metric=metric, config=at, **common, **spread))
        times = 2 if label == "division" else 1
        at = {"label": label, "batch": 200 * times, "budget": "1GiB", "most": 512}
        for metric, value in (
            ("throughput", 100.0 * times),
            ("throughput_ratio", 1.0 * times),
            ("max_batch", 200 * times),
            ("peak_bytes", 2.0**30),
        ):
            spread = {"value": value, "p20": value, "p80": value}
            rows.append(row(metric=metric, config=at, **common, **spread))
    rows = record.complete(rows)
    old = [replace(each, utc="2020-01-01", value=1e9) for each in rows]
    record.append(results, [*old, *rows])
    (results / "paper").symlink_to(ROOT / "results" / "paper")
    return rows


def test_every_batch_is_a_benchmark_of_its_own() -> None:
    found = list(table4.benchmarks(config()))
    assert [each.batch for each in found] == [2, 4]
    assert all(each.experiment == "table4" and "batches" not in each for each in found)


def test_the_largest_batches_are_those_of_the_planner_and_lossy_is_measured_first() -> None:
    settings = table4.budget_config(config())
    found = table4.largest_batches(settings, benchmark.methods_of(settings))
    assert found["division"] > 2 * found["vanilla"]
    assert found["lossy"] > found["vanilla"]
    ratios = {
        label: table4.data_ratio(settings, spec)
        for label, spec in benchmark.methods_of(settings).items()
    }
    assert ratios["vanilla"] is ratios["division"] is None
    assert ratios["lossy"] > 1


def test_what_is_recorded_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def throughput(of, methods, batches):
        asked.append(batches)
        return [dict.fromkeys(methods, 1.0)]

    monkeypatch.setattr(benchmark, "throughput", throughput)
    monkeypatch.setattr(table4, "largest_batches", lambda *_: {"vanilla": 8, "division": 99})
    monkeypatch.setattr(table4.peak, "measure_step", lambda *_: {"peak": 2**20})
    settings = config(paths={"results": str(tmp_path)})
    settings.methods.pop("lossy")
    table4.run(settings)
    assert [a["division"] for a in asked] == [2, 4, 64]  # 99 fit, no more than 64 are timed
    within = [r for r in record.load(tmp_path, "table4") if "budget" in r.config]
    found = {(r.method, r.metric): r for r in within}
    assert found["division", "max_batch"].value == 99
    assert found["division", "max_batch"].config["batch"] == 64
    assert found["division", "throughput_ratio"].value == 8.0  # images a second, not steps
    table4.run(settings)
    assert len(asked) == 3
    assert capsys.readouterr().err.count("recorded already, skipped") == 3
    table4.run(OmegaConf.merge(settings, {"batches": [2, 4, 8]}))
    assert [a["division"] for a in asked[3:]] == [8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batches": []}, "batches must be whole numbers >= 1"),
        ({"batches": [0]}, "batches must be whole numbers >= 1; got"),
        ({"budget": "much"}, "much"),
        ({"most": 0}, "most must be a whole number >= 1; got 0"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_timed(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table4.check(config(**change))


def test_a_method_without_a_batch_is_named() -> None:
    settings = table4.budget_config(config(budget="1MiB"))
    with pytest.raises(ValueError, match="vanilla has no largest batch: no batch fits into 1MiB"):
        table4.largest_batches(settings, benchmark.methods_of(settings))


def test_ours_stands_above_the_published_and_the_newest_rows_count(tmp_path: Path) -> None:
    made_up(tmp_path)
    memory, within = report.write_table4(tmp_path)
    rows = table.newest(record.load(tmp_path, "table4"))
    frame = table.frame(rows, PAPER).set_index(["model", "measured by", "method"])
    assert frame.loc["resnet18", "ours", "division"]["batch 256"] == "0.90 (0.81-0.99)"
    assert frame.loc["resnet18", "ours", "vanilla"]["batch 64"] == "1 = 100.0 images/s"
    assert frame.loc["resnet50", "published", "division"]["batch 256"] == "0.81"
    assert frame.loc["resnet18", "ours", "division"]["batch 128"] == ""
    assert "batch 512" not in frame  # published without vanilla: no ratio
    assert "half precision" in memory
    line = table.budget_frame(rows).set_index("method").loc["division"]
    assert line["largest batch"] == "400 (2.0x)"
    assert line["throughput / vanilla"] == "2.00 (2.00-2.00)"
    assert "within 1GiB" in within
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names == {f"table4{p}.{ext}" for p in ("", "-budget") for ext in ("md", "csv", "tex")}


def test_the_figure_draws_lines_and_rings(tmp_path: Path) -> None:
    made_up(tmp_path)
    drawing = draw.draw_throughput(tmp_path)
    top = drawing.figure.axes[0]
    assert [list(c[0].get_xdata()) for c in top.containers] == [[64, 256], [64, 256]]
    assert sorted(top.collections[-1].get_offsets()[:, 0]) == [200, 400]
    assert "fits into 1GiB" in drawing.caption


def test_no_rows_is_an_error_and_scales_never_mix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Table 4 needs `make reproduce-table4` first"):
        table.frame([], PAPER)
    rows = made_up(tmp_path)
    with pytest.raises(ValueError, match="a table never mixes scales"):
        table.frame([*rows, replace(rows[0], scale="paper")], PAPER)
