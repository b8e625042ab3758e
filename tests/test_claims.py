"""Claims: verdicts come from rows and rules, and say what is missing."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from test_record import row

from experiments import claims, grid, record, reproduction
from experiments.config import compose_train, flatten
from experiments.measures import SIZES, STEP, Measured, Measures
from experiments.provenance import ROOT

GIB = 2**30
CLAIM = claims.Claim("x", "P", "what", "m", 10.0, "GiB", "within", 0.1, "make x", "source")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "paper").symlink_to(ROOT / "results" / "paper")
    return tmp_path


def verdict(rule: str, bar: float, value: float, **more: object) -> str:
    claim = replace(CLAIM, rule=rule, bar=bar)
    return claims.judge(claim, Measured(value, "paper", "it", **more)).verdict


@pytest.mark.parametrize(
    ("rule", "bar", "good", "bad"),
    [
        ("within", 0.1, 10.9, 11.1),
        ("within", 0.1, 9.1, 8.9),
        ("at_least", 10.0, 10.0, 9.9),
        ("at_most", -29.0, -29.0, -28.9),
        ("above", 1.0, 1.01, 1.0),
        ("below", 1.0, 0.99, 1.0),
        ("accuracy", 0.5, 9.6, 9.4),
    ],
)
def test_each_rule_tells_good_from_bad(rule: str, bar: float, good: float, bad: float) -> None:
    assert verdict(rule, bar, good) == claims.REACHED
    assert verdict(rule, bar, bad) == claims.MISSED


def test_a_loss_counts_when_it_is_beyond_two_standard_errors() -> None:
    assert verdict("no_loss", 0.0, -0.3, n=3, error=0.2) == claims.REACHED
    assert verdict("no_loss", 0.0, -0.5, n=3, error=0.2) == claims.MISSED
    assert verdict("no_loss", 0.0, -0.3) == claims.NOT_MEASURED  # one seed tells nothing
    assert verdict("accuracy", 0.5, 9.0, sd=0.6) == claims.REACHED


def test_what_is_missing_or_of_something_else_gets_no_verdict() -> None:
    assert claims.judge(CLAIM, None).verdict == claims.NOT_MEASURED
    judged = claims.judge(CLAIM, Measured(1.0, "quick", "it", not_comparable="a CPU"))
    assert (judged.verdict, judged.why) == (claims.NOT_COMPARABLE, "a CPU")


def test_every_claim_of_the_file_is_complete_and_without_rows_not_yet_measured(
    results: Path,
) -> None:
    judged = claims.judge_all(results)
    assert {each.verdict for each in judged} == {claims.NOT_MEASURED}
    papers = {each.claim.paper for each in judged}
    assert papers == {"DIVISION", "ActNN", "COMET (lossy)", "Pooling", "Beyond the paper"}
    targets = (ROOT / "Makefile").read_text()
    for claim in (each.claim for each in judged):
        assert claim.what
        assert claim.source or claim.paper == "Beyond the paper"
        first, target, *_ = claim.command.split()
        assert first == "python" or f"\n{target}: " in targets
    assert all(each.claim.published is None for each in judged if "recompute" in each.claim.id)


def test_published_values_are_looked_up(results: Path) -> None:
    found = {claim.id: claim.published for claim in claims.load(results)}
    assert found["division-activations-resnet50"] == 1.97
    assert found["division-speed"] == pytest.approx(380.72 / 469.05)
    assert found["division-loss"] == pytest.approx(94.72 - 94.89)
    assert found["pooling-memory-own"] == -29


def write_rows(results: Path, *rows: record.Row) -> None:
    record.append(results, record.complete(rows))


def test_bytes_become_ratios_and_changes(results: Path) -> None:
    for label, gib in (("vanilla", 20.0), ("division-published", 1.6), ("pooling-published-4", 22)):
        size = {"experiment": "sizes", "model": "resnet50", "metric": "saved_bytes"}
        rows = row(**size, value=gib * GIB, scale="paper", config={**SIZES, "label": label})
        path = results / "runs" / "sizes.jsonl"
        path.parent.mkdir(exist_ok=True)
        (done,) = record.complete([rows])
        with path.open("a") as file:
            file.write(json.dumps(asdict(replace(done, utc="2026-01-01"))) + "\n")
    measures = Measures(results)
    assert measures("saved_ratio resnet50 division-published vanilla").value == 12.5
    change = measures("saved_change resnet50 pooling-published-4 vanilla")
    assert change.value == pytest.approx(10.0)
    assert measures("saved resnet50 actnn") is None
    found = {each.claim.id: each.verdict for each in claims.judge_all(results)}
    assert found["division-times"] == claims.REACHED
    assert found["pooling-memory-plain"] == claims.MISSED
    assert found["pooling-memory-own"] == claims.NOT_MEASURED


def test_counts_of_table3_are_found_by_batch_and_budget(results: Path) -> None:
    common = {"experiment": "table3", "model": "resnet50", "scale": "paper"}
    rows = []
    for label, gib, fits in (("vanilla", 20.0, 100), ("actnn-published", 2.0, 400)):
        at = {"label": label, "batch": 256}
        rows.append(row(metric="activation_bytes", value=gib * GIB, config=at, **common))
        at = {"label": label, "budget": "16GiB"}
        rows.append(row(metric="max_batch", value=fits, config=at, **common))
    write_rows(results, *rows)
    measures = Measures(results)
    assert measures("activations resnet50 actnn-published 256").value == 2.0
    assert measures("activations resnet50 actnn-published 64") is None
    assert measures("batch_ratio resnet50 actnn-published 16GiB").value == 4.0


def test_throughput_of_another_network_is_not_comparable(results: Path) -> None:
    speed = {"metric": "throughput_ratio", "value": 0.9, "n": 7, "method": "division"}
    at = {"label": "division", "batch": 256}
    write_rows(results, row(experiment="table4", model="resnet18", config=at, **speed))
    found = Measures(results)("throughput resnet50 division 256")
    assert (found.value, found.not_comparable) == (0.9, "another network, a CPU")
    steps = [
        row(experiment="benchmark", **(speed | {"value": v}), config={**STEP, "label": label})
        for label, v in (("division", 0.9), ("actnn", 0.6))
    ]
    write_rows(results, *steps)
    assert Measures(results)("faster division actnn").value == pytest.approx(1.5)


def test_gradient_errors_are_compared_at_every_state_of_one_setting(results: Path) -> None:
    rows = []
    for at, low, high in (("start", 0.5, 1.0), ("end", 0.7, 0.8)):
        for label, value in (("division-low", low), ("division-high", high)):
            where = {"label": label, "at": at, "optim.lr": 0.1}
            rows.append(
                row(experiment="errors", metric="gradient_error", value=value, config=where)
            )
    alone = {"label": "division-low", "at": "end", "optim.lr": 9.0}
    rows.append(row(experiment="errors", metric="gradient_error", value=9.0, config=alone))
    write_rows(results, *rows)
    found = Measures(results)("error_ratio division-low division-high resnet20")
    assert found.value == pytest.approx(0.7 / 0.8)
    assert "worst of 2 states" in found.of


def trained(seed: int, method: str, top1: float, *more: str) -> record.Row:
    profile = replace(grid.load("quick"), seeds=[seed])
    overrides = next(grid.runs(profile, [method], list(more)))
    config = compose_train(overrides)
    where = {"experiment": "table1-quick", "method": method, "model": "resnet20"}
    return row(**where, seed=seed, value=top1, config=flatten(config))


def test_accuracy_is_compared_with_vanilla_over_seeds(results: Path) -> None:
    rows = [trained(0, "vanilla", 90.0), trained(1, "vanilla", 92.0), trained(0, "pooling", 88.0)]
    write_rows(results, *rows)
    one = Measures(results)("accuracy_change resnet20 pooling")
    assert (one.value, one.n, one.error) == (-3.0, 1, None)
    write_rows(results, trained(1, "pooling", 90.0))
    two = Measures(results)("accuracy_change resnet20 pooling")
    assert (two.value, two.n) == (-2.0, 2)
    assert two.error == pytest.approx(2**0.5)
    assert Measures(results)("accuracy digits resnet20 pooling").not_comparable
    assert Measures(results)("accuracy cifar10 resnet18 division") is None


def test_runs_beside_a_profile_are_found_by_their_options(results: Path) -> None:
    write_rows(results, trained(0, "vanilla", 90.0))
    ask = "accuracy_change resnet20 division method.recompute=true"
    write_rows(results, trained(0, "division", 50.0))
    write_rows(results, trained(0, "division", 60.0, "++method.recompute=true", "optim.lr=0.3"))
    assert Measures(results)(ask) is None
    write_rows(results, trained(0, "division", 91.0, "++method.recompute=true"))
    assert Measures(results)(ask).value == 1.0
    write_rows(results, trained(0, "pooling", 95.0, "optim.epochs=12"))
    assert Measures(results)("accuracy_change resnet20 pooling optim.epochs=12").value == 5.0
    assert Measures(results)("accuracy_change resnet20 pooling") is None


def test_mistakes_are_named(results: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no measure 'guess'; choose from: activations"):
        Measures(results)("guess resnet50")
    with pytest.raises(ValueError, match=r"has 0 lines with .*'nobody'.*, not one"):
        claims._one(claims.pd.DataFrame({"method": ["a"]}), "x", method="nobody")


def test_the_page_counts_verdicts_and_names_every_command(results: Path) -> None:
    text = reproduction.write(results)
    assert (results / "REPRODUCTION.md").read_text() == text
    count = len(claims.load(results))
    assert (
        f"{count} claims: 0 reached, 0 missed, 0 not comparable, {count} not yet measured" in text
    )
    assert "## Beyond the paper" in text
    assert "`recompute=True`" in text
    for claim in claims.load(results):
        assert f"`{claim.command}`" in text
    assert "top-1 of densenet121 on cifar100: fp32 79.75 %" in text
    assert "division 94.72 %" not in text.split("## Not tested here")[1]


def test_values_are_written_with_their_units() -> None:
    assert reproduction.shown(-29.0, "%") == "-29 %"
    assert reproduction.shown(94.72, "%") == "94.72 %"
    assert reproduction.shown(12.04, "x") == "12.0x"
    assert reproduction.shown(-0.17, "points") == "-0.17 points"
    assert reproduction.shown(0.811, "1") == "0.81"
    assert reproduction.shown(1.97, "GiB") == "1.97 GiB"


def test_the_runs_of_a_profile_are_those_of_its_own_seeds() -> None:
    both, one = grid.load("quick"), replace(grid.load("quick"), seeds=[0])
    assert grid.config_hashes(one) < grid.config_hashes(both)
