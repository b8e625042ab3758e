"""The largest batch within a memory budget."""

import pytest
import torch
from conftest import small_net
from torch import Tensor

import division
from division.ledger import parse_size
from experiments import batch, record
from experiments.config import check, compose_train
from experiments.train import run


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 32, 32)


def found(method: str, budget: str, most: int = 100_000) -> int:
    return batch.resolve(budget, division.compress(small_net(), method), 2, most, images)


def test_a_number_stays() -> None:
    assert batch.resolve(48, small_net(), 2, 10, images) == 48


@pytest.mark.parametrize("method", ["vanilla", "division"])
def test_the_batch_fits_and_a_larger_one_would_not(method: str) -> None:
    size = found(method, "auto:40MiB")
    model = division.compress(small_net(), method)
    weights = 4 * sum(p.numel() for p in model.parameters())

    def needed(count: int) -> int:
        ledger = division.measure(model, images(count))
        return 3 * weights + ledger.saved_bytes + 3 * max(r.bytes_before for r in ledger.rows)

    assert size % 8 == 0
    assert needed(size) <= 40 * 2**20 < needed(size + 9)


def test_compression_buys_a_larger_batch() -> None:
    assert found("division", "auto:200MiB") > 1.8 * found("vanilla", "auto:200MiB")


def test_the_training_set_is_the_limit() -> None:
    assert found("division", "auto:10GiB", most=100) == 96


def test_a_budget_that_no_batch_fits_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no batch fits into 100\.00 KiB: weights, grad"):
        found("vanilla", "auto:100KiB")


@pytest.mark.parametrize(
    "setting", ["auto", "auto:", "auto:2", "auto:-1GiB", "auto:0B", "0", "-3", "many"]
)
def test_bad_settings(setting: str) -> None:
    quoted = f"'{setting}'" if ":" in setting else setting
    config = compose_train([f"optim.batch={quoted}"])
    with pytest.raises(ValueError, match=r"optim\.batch"):
        check(config)


def test_sizes_are_read_as_people_write_them() -> None:
    assert parse_size("24GiB") == 24 * 2**30
    assert parse_size("1.5 MB") == 1_500_000
    assert parse_size("7B") == 7


def test_a_run_finds_its_batch_and_records_it(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [f"paths.results={tmp_path}", f"paths.checkpoints={tmp_path}"]
    settings = ["method=division", "optim.epochs=1", "optim.batch='auto:30MiB'", "progress=false"]
    rows = run(compose_train([*settings, *folders]))
    size = next(row.value for row in rows if row.metric == "batch")
    assert size >= 8
    assert f"optim.batch=auto:30MiB: {size} images a batch" in capsys.readouterr().out
    assert record.load(tmp_path, "train")[-1].status == "ok"
