"""Gradient errors at equal bytes: what fits, what is best, and the verdict."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_record import row

from experiments import beyond, equal, gains, record, reproduction
from experiments.measures import SIZES, STEP, Measures
from experiments.provenance import ROOT
from experiments.tables import equal as equal_table

PUBLISHED = {"align": "reference", "share": False, "fine_bits": 2}
# Label, method, options, bytes and error.
POINTS = (
    (equal.PUBLISHED, "division", PUBLISHED, 1000.0, 0.4),
    ("division", "division", {}, 990.0, 0.38),
    ("division-recompute", "division", {"recompute": True}, 600.0, 0.36),
    ("division-recompute-3", "division", {"recompute": True, "bits": 3}, 900.0, 0.2),
    ("division-recompute-4", "division", {"recompute": True, "bits": 4}, 1500.0, 0.1),
    ("actnn", "actnn", {}, 850.0, 0.3),
)


def equal_rows(scale: float = 1.0, **more: object) -> list[record.Row]:
    """Two networks at two states; the errors of recompute are multiplied by a factor."""
    rows = []
    for model in ("resnet20", "wrn16_4"):
        for at, step in (("start", 0), ("end", 9)):
            for label, method, options, saved, error in POINTS:
                at_state = {"label": label, "at": at, "step": step, "batch": 64, "draws": 4}
                training = {"optim.epochs": 1, "optim.name": "sgd", "optim.batch": 128, **more}
                common = {
                    "experiment": "errors",
                    "method": method,
                    "options": options,
                    "model": model,
                    "dataset": "cifar10",
                    "scale": "reduced",
                    "config": at_state | training,
                }
                error *= scale if "recompute" in options else 1.0
                rows.append(row(metric="saved_bytes", value=saved, **common))
                spread = {"p20": error, "p80": error, "n": 3}
                rows.append(row(metric="gradient_error", value=error, **spread, **common))
    return rows


def states(rows: list[record.Row]) -> list[equal.State]:
    return equal.states_of(record.complete(rows))


def test_the_best_setting_is_the_one_with_the_least_error_that_fits() -> None:
    found = states(equal_rows())
    assert [(s.network, s.at) for s in found] == [
        ("resnet20 on cifar10", "start"),
        ("resnet20 on cifar10", "end"),
        ("wrn16_4 on cifar10", "start"),
        ("wrn16_4 on cifar10", "end"),
    ]
    best = found[0].within(equal.PUBLISHED)
    assert best is not None
    assert best.label == "division-recompute-3"  # 4 bits do not fit
    assert best.over(found[0].points[equal.PUBLISHED]) == pytest.approx(0.5)
    within_actnn = found[0].within("actnn")
    assert within_actnn is not None
    assert within_actnn.label == "division-recompute"


def test_nothing_fits_is_a_miss() -> None:
    rows = [r for r in equal_rows() if not (r.options.get("recompute") and r.value == 600.0)]
    big = [replace(r, value=2000.0) if r.value == 900.0 else r for r in rows]
    big = [r for r in big if r.config["label"] != "division-recompute"]
    (line, *_) = equal_table.frame(states(big)).to_dict("records")
    assert (line["best recompute that fits"], line["verdict"]) == ("none", "missed")


@pytest.mark.parametrize(("factor", "verdict"), [(1.2, "reached"), (1.21, "missed")])
def test_the_verdict_follows_the_bar(factor: float, verdict: str) -> None:
    lines = equal_table.frame(states(equal_rows(factor))).to_dict("records")
    assert {line["verdict"] for line in lines} == {verdict}
    assert lines[0]["published: error"] == "0.400 (0.400-0.400)"
    assert lines[0]["best recompute that fits"] == "recompute=True bits=3"
    assert lines[0]["without recompute: error / published"] == "0.95"


def test_a_network_is_shown_in_the_latest_of_its_settings() -> None:
    old, new = record.complete(equal_rows(1.0)), record.complete(equal_rows(2.0, lr=1))
    old = [replace(r, utc="2020-01-01") for r in old]
    new = [replace(r, utc="2021-01-01") for r in new]
    found = equal.states_of([*new, *old])
    assert len(found) == 4
    assert all(state.row.config.get("lr") == 1 for state in found)


def test_the_claim_takes_the_worst_state(tmp_path: Path) -> None:
    rows = equal_rows()
    worse = [
        replace(r, value=0.3)
        if (r.config["at"], r.config["label"]) == ("end", "division-recompute-3")
        and r.metric == "gradient_error"
        else r
        for r in rows
    ]
    record.append(tmp_path, record.complete(worse))
    ask = "equal_error resnet20 cifar10"
    assert Measures(tmp_path)(ask) is None  # two states are no verdict
    middle = [replace(r, config={**r.config, "at": "middle", "step": 5}) for r in rows]
    record.append(tmp_path, record.complete(middle))
    found = Measures(tmp_path)(ask)
    assert found is not None
    assert found.value == pytest.approx(0.75)
    assert found.of == "resnet20 on cifar10, worst of 3 states"
    assert Measures(tmp_path)("equal_error vit_micro cifar10") is None


def test_gains_say_where_it_helps_and_where_it_costs(tmp_path: Path) -> None:
    steps = [
        row(
            experiment="benchmark",
            metric=metric,
            model="resnet18",
            value=value,
            config={**STEP, "label": label},
        )
        for label, metric, value in (
            ("division", "throughput_ratio", 0.9),
            ("division-recompute", "throughput_ratio", 0.8),
            ("division", "peak_bytes", 100.0),
            ("division-recompute", "peak_bytes", 99.5),
        )
    ]
    sizes = [
        row(
            experiment="sizes",
            metric="saved_bytes",
            model="resnet50",
            value=value,
            config={**SIZES, "label": label},
        )
        for label, value in (("division", 10.0), ("division-recompute", 8.0))
    ]
    record.append(tmp_path, record.complete([*steps, *sizes, *equal_rows()]))
    found = {(gain.what, gain.of.split()[0]): gain for gain in gains.gains(tmp_path)}
    assert found["throughput of a step", "resnet18"].verdict == gains.COSTS
    assert found["peak memory of a step", "resnet18"].verdict == gains.SAME
    assert found["stored bytes", "resnet50,"].verdict == gains.HELPS
    assert found["gradient error, worst of 2 states", "resnet20"].ratio == pytest.approx(
        0.36 / 0.38
    )
    actnn = found["gradient error within its bytes, worst of 2 states", "wrn16_4"]
    assert (actnn.verdict, actnn.ratio) == (gains.COSTS, pytest.approx(1.2))


def test_both_tables_are_part_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "paper").symlink_to(ROOT / "results" / "paper")
    record.append(tmp_path, record.complete(equal_rows()))
    text = reproduction.write(tmp_path)
    tables = beyond.write(tmp_path)
    assert len(tables) == 2
    section = text.split("## Beyond the paper")[1].split("\n## ")[0]
    assert all(table in section for table in tables)
