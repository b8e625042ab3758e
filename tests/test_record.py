"""Rows: complete provenance, safe appends, nothing half written, nothing guessed."""

import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import provenance, record
from experiments.timing import Quantiles, alternate, ratios


def row(**changes: object) -> record.Row:
    values = {
        "experiment": "test",
        "method": "division",
        "model": "resnet20",
        "dataset": "digits",
        "seed": 0,
        "metric": "final_top1",
        "unit": "%",
        "value": 91.5,
        "scale": "quick",
        "config": {"optim.epochs": 1},
    }
    return record.Row(**(values | changes))


def test_a_row_comes_back_with_its_provenance(tmp_path: Path) -> None:
    record.append(tmp_path, record.complete([row()]))
    (back,) = record.load(tmp_path, "test")
    assert back.value == 91.5
    assert back.commit == provenance.commit()[0]
    assert back.config_hash == record.config_hash({"optim.epochs": 1})
    assert back.machine["cores"] >= 1
    assert back.versions["torch"]
    assert back.command
    assert back.utc


def test_rows_without_provenance_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no provenance"):
        record.append(tmp_path, [row()])


@pytest.mark.parametrize(("field", "value"), [("status", "fine"), ("scale", "huge")])
def test_unknown_words_are_refused(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be one of .*; got '{value}'"):
        row(**{field: value})


def test_a_line_cut_short_is_no_row_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    record.append(tmp_path, record.complete([row()]))
    path = tmp_path / "runs" / "test.jsonl"
    with path.open("a") as file:
        file.write('{"half": ')
    assert len(record.load(tmp_path, "test")) == 1
    record.append(tmp_path, record.complete([row(value=1.0)]))
    assert [r.value for r in record.load(tmp_path, "test")] == [91.5, 1.0]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    record.append(tmp_path, record.complete([row()]))
    path = tmp_path / "runs" / "test.jsonl"
    path.write_text(path.read_text() + "not a row\n")
    with pytest.raises(ValueError, match=r"test\.jsonl:2 is not a row"):
        record.load(tmp_path, "test")


def _write(folder: Path, seed: int) -> None:
    for _ in range(20):
        record.append(folder, record.complete([row(seed=seed)]))


def test_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path, seed)) for seed in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    seeds = [r.seed for r in record.load(tmp_path, "test")]
    assert (seeds.count(0), seeds.count(1)) == (20, 20)


def test_the_order_of_settings_does_not_matter() -> None:
    assert record.config_hash({"a": 1, "b": 2}) == record.config_hash({"b": 2, "a": 1})
    assert record.config_hash({"a": 1}) != record.config_hash({"a": 2})


def test_rounds_alternate_and_ratios_are_within_a_round() -> None:
    order: list[str] = []
    tasks = {name: (lambda name=name: order.append(name) or 1.0) for name in "abc"}
    assert list(alternate(tasks, rounds=2, warmup=1)) == [dict.fromkeys("abc", 1.0)] * 2
    assert "".join(order) == "abc" + "abc" + "cba"
    measured = [{"a": 1.0, "b": 2.0}, {"a": 10.0, "b": 5.0}, {"a": 3.0, "b": 3.0}]
    assert ratios(measured, "a")["b"] == Quantiles(1.0, 0.7, 1.6, 3)


def test_an_unwritable_folder_is_named_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    started = []
    with pytest.raises(OSError, match=r"results folder .*runs cannot be written"):
        record.measured(tmp_path, lambda: started.append(True) or [])
    assert not started


def test_the_time_of_rows_that_are_made_one_by_one_counts(tmp_path: Path) -> None:
    def slowly() -> Iterator[record.Row]:
        time.sleep(0.05)
        yield row()

    (made,) = record.measured(tmp_path, slowly)
    assert made.wall_s >= 0.05
    assert record.load(tmp_path, "test") == [made]


def test_only_the_same_code_counts_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.append(tmp_path, record.complete([row()]))
    assert record.is_done(tmp_path, "test", {"optim.epochs": 1})
    assert not record.is_done(tmp_path, "test", {"optim.epochs": 2})
    monkeypatch.setattr(provenance, "code", lambda: "edited")
    assert not record.is_done(tmp_path, "test", {"optim.epochs": 1})
