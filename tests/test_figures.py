"""Figures: pure functions of frames; what they show is what the rows say."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from test_equal import equal_rows
from test_record import row

from experiments import draw, kinds, pictures, record
from experiments.equal import states_of
from experiments.figures import (
    curves,
    equal,
    families,
    frames,
    layers,
    maps,
    memory,
    pareto,
    radar,
    rate,
    spectra,
    style,
    throughput,
)
from experiments.spectrum import BANDS

MIB = 2**20


def frame_of(rows: list[record.Row]) -> pd.DataFrame:
    return frames.table(record.complete(rows))


def error_rows() -> list[record.Row]:
    """Two states, the ablation's parts by layer, a spectrum and some totals."""
    rows = []

    def add(metric: str, value: float, method: str = "division", options=None, **config) -> None:
        spread = {"p20": 0.9 * value, "p80": 1.1 * value, "n": 3}
        config = {"batch": 64, "step": 0 if config["at"] == "start" else 9, **config}
        rows.append(
            row(metric=metric, value=value, method=method, options=options or {}, config=config)
            if metric == "energy_share"
            else row(
                metric=metric,
                value=value,
                method=method,
                options=options or {},
                config=config,
                **spread,
            )
        )

    for at in ("start", "end"):
        for label, options, bits, error in (
            ("division", {}, 2.9, 0.4),
            ("division-4", {"bits": 4}, 4.9, 0.1),
            ("division-low", {"keep": "low"}, 0.7, 0.7),
            ("division-published", families.PUBLISHED, 3.0, 0.45),
            ("division-recompute", {"recompute": True}, 2.2, 0.42),
            ("division-recompute-3", {"recompute": True, "bits": 3}, 2.9, 0.2),
            ("pooling", {}, 20.0, 0.3),
            ("pooling-all", {"scope": "all"}, 8.0, 0.35),
            ("checkpoint", {}, 10.0, 0.0),
        ):
            method = label.split("-")[0]
            add("bits_per_element", bits, method, options, label=label, at=at)
            add("gradient_error", error, method, options, label=label, at=at)
        add("batch_noise", 0.8, "vanilla", label="batch-noise", at=at)
        for layer in ("conv1", "conv2", "fc"):
            for label in layers.PARTS:
                add("layer_error", 0.5, label=label, at=at, layer=layer)
        for layer in ("conv1", "conv2"):
            for band in BANDS:
                add("energy_share", 1 / 6, label="spectrum", at=at, layer=layer, band=band)
            add("low_share", 0.4, label="spectrum", at=at, layer=layer)
    return rows


def table1_frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    trained, bench = [], []
    for method, top1, saved, speed in (
        ("vanilla", 90.0, 32.0, 1.0),
        ("division", 89.0, 3.0, 0.9),
        ("pooling", 80.0, 20.0, 0.8),
    ):
        for seed in (0, 1):
            common = {"method": method, "seed": seed}
            trained += [
                row(metric="saved_bytes", unit="B", value=saved * MIB, **common),
                row(metric="original_bytes", unit="B", value=32 * MIB, **common),
                *(
                    row(metric="top1", value=top1 * epoch / 2 + seed, epoch=epoch, **common)
                    for epoch in (1, 2)
                ),
                row(metric="final_top1", value=top1 + seed, **common),
            ]
        speeds = {"value": speed, "p20": speed - 0.1, "p80": speed + 0.1, "n": 5}
        config = {"label": method, "batch": 64}
        bench += [
            row(metric="throughput_ratio", method=method, config=config, **speeds),
            row(metric="peak_bytes", method=method, value=saved * MIB, config=config),
            row(metric="saved_bytes", method=method, value=saved * MIB, config=config),
            row(metric="original_bytes", method=method, value=32 * MIB, config=config),
        ]
    return frame_of(trained), frame_of(bench)


def texts(drawing: style.Drawing) -> str:
    """Return everything that is written in a figure."""
    axes = [text for each in drawing.figure.axes for text in each.texts]
    legends = [text for legend in drawing.figure.legends for text in legend.get_texts()]
    return "\n".join(text.get_text() for text in [*axes, *legends])


def check(drawing: style.Drawing, folder: Path, name: str = "figure") -> None:
    """Written as both kinds of file; axes and caption say what they are."""
    draw.write(drawing, folder, name)
    assert (folder / f"{name}.png").stat().st_size > 5000
    assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert len(drawing.caption) > 100


def test_rate_shows_lines_by_bits_and_exact_methods_on_the_floor(tmp_path: Path) -> None:
    drawing = rate.draw(frame_of(error_rows()))
    check(drawing, tmp_path)
    panel = drawing.figure.axes[0]
    lines = {c.get_label(): c.lines[0].get_xydata().tolist() for c in panel.containers}
    assert lines["division"] == [[2.9, 0.4], [4.9, 0.1]]  # the part without high frequencies is out
    assert lines["division, as published"] == [[3.0, 0.45]]
    assert lines["division, recompute"] == [[2.2, 0.42], [2.9, 0.2]]
    assert lines["pooling, everything"] == [[8.0, 0.35]]
    assert lines["checkpoint"][0][1] == pytest.approx(0.1 / 3)
    assert panel.get_xlabel() == "stored, bits an element"
    assert "3 batches of 64 images" in drawing.caption
    assert "resnet20 on digits" in drawing.caption


def test_a_variant_of_a_method_gets_a_line_of_its_own() -> None:
    assert rate.variant("division", {"bits": 3}) == ""
    assert rate.variant("division", {"bits": 3, "recompute": True}) == "recompute"
    assert rate.variant("division", {"recompute": "deep"}) == "recompute deep"
    assert rate.variant("division", {"ratio": 12.0, "recompute": True}) == "budget, recompute"
    assert rate.variant("division", families.PUBLISHED) == "as published"
    assert rate.variant("lossy", {"target": 0.1}) == "convolutions only"
    assert rate.variant("lossy", {"target": 0.1, "scope": "all"}) == "everything"


def test_errors_by_layer_leave_out_the_classifier(tmp_path: Path) -> None:
    drawing = layers.draw(frame_of(error_rows()))
    check(drawing, tmp_path)
    upper, lower = drawing.figure.axes
    assert [len(line.get_xdata()) for line in upper.lines[:3]] == [2, 2, 2]
    assert lower.get_title() == "end: step 9"
    assert "classifier (fc)" in drawing.caption


def test_bands_of_a_spectrum_add_up(tmp_path: Path) -> None:
    drawing = spectra.draw(frame_of(error_rows()))
    check(drawing, tmp_path)
    heights = [bar.get_height() for bar in drawing.figure.axes[0].patches]
    assert sum(heights) == pytest.approx(2)  # two layers
    assert texts(drawing).endswith("in means of 8 x 8 blocks")


def test_the_front_holds_what_nothing_beats() -> None:
    table = pd.DataFrame(
        {"bits": [32.0, 3.0, 20.0, 2.0], "top1": [90.0, 89.0, 80.0, math.nan]},
        index=["vanilla", "division", "pooling", "unmeasured"],
    )
    assert pareto.front(table, "bits", "top1") == ["division", "vanilla"]


def test_pareto_has_bars_over_seeds_and_a_second_panel_with_speed(tmp_path: Path) -> None:
    trained, bench = table1_frames()
    table = pareto.summary(trained, bench)
    assert list(table.index) == ["vanilla", "division", "pooling"]
    assert table.loc["division", "bits"] == 3.0
    assert table.loc["division", "top1"] == 89.5
    assert table.loc["division", "n"] == 2
    drawing = pareto.draw(trained, bench)
    check(drawing, tmp_path)
    assert len(drawing.figure.axes) == 2
    assert "n = 2" in drawing.caption
    assert "5 rounds" in drawing.caption
    assert len(pareto.draw(trained, bench[:0]).figure.axes) == 1


def test_variants_of_division_stand_beside_it_in_the_order_of_their_families() -> None:
    _, bench = table1_frames()
    variants = []
    for options, saved in (({"recompute": True, "bits": 3}, 2.5), (families.PUBLISHED, 3.5)):
        common = {"method": "division", "options": options}
        variants += [
            row(metric="throughput_ratio", value=0.8, p20=0.7, p80=0.9, n=5, **common),
            row(metric="saved_bytes", value=saved * MIB, **common),
            row(metric="original_bytes", value=32 * MIB, **common),
        ]
    table = pareto.steps(pd.concat([frame_of(variants), bench]))
    names = ["division", "division, as published", "division, recompute, 3 bits"]
    assert list(table.index) == ["vanilla", *names, "pooling"]
    assert table.loc[names, "bits"].tolist() == [3.0, 3.5, 2.5]
    assert table.loc[names[2], "speed"] == 0.8


def test_every_family_of_division_looks_different() -> None:
    assert len(set(families.LOOKS.values())) == len(families.LOOKS)


def test_runs_with_recompute_join_those_of_the_profile(tmp_path: Path) -> None:
    def run(seed: int, **more: object) -> record.Row:
        settings = {"optim.lr": 0.1, "seed": seed, "method.name": "division", **more}
        options = {"bits": 2, "recompute": True}
        return row(method="division", seed=seed, options=options, config=settings)

    own = frame_of([row(method="vanilla", config={"optim.lr": 0.1, "seed": 0})])
    beside = [run(1, **{"method.recompute": True}), run(0, **{"optim.lr": 0.3})]
    record.append(tmp_path, record.complete(beside))
    assert draw.beside(own, tmp_path)["seed"].tolist() == [1]


def test_equal_bytes_has_a_panel_for_every_network_and_a_line_for_every_state(
    tmp_path: Path,
) -> None:
    drawing = equal.draw(states_of(record.complete(equal_rows())))
    check(drawing, tmp_path)
    assert [axes.get_title() for axes in drawing.figure.axes] == [
        "resnet20 on cifar10",
        "wrn16_4 on cifar10",
    ]
    lines = [
        line.get_xydata().round(3).tolist()
        for line in drawing.figure.axes[0].lines
        if line.get_label() == "division, recompute"
    ]
    assert lines == [[[0.6, 0.9], [0.9, 0.5]]] * 2  # 4 bits are beyond the panel
    assert "start 0, end 9" in drawing.caption
    assert texts(drawing).split("\n")[-2:] == ["end", "start"]


def test_throughput_has_a_line_for_every_label(tmp_path: Path) -> None:
    rows = []
    for batch, label in ((64, "vanilla"), (64, "division"), (128, "vanilla"), (128, "division")):
        for metric in ("throughput", "throughput_ratio"):
            spread = {"value": 1.0 * batch, "p20": 0.9 * batch, "p80": 1.1 * batch, "n": 7}
            config = {"label": label, "batch": batch}
            rows.append(row(metric=metric, method=label, config=config, **spread))
    drawing = throughput.draw(frame_of(rows))
    check(drawing, tmp_path)
    assert texts(drawing).split("\n") == ["vanilla", "division"]
    assert drawing.figure.axes[1].get_xlabel() == "batch, images"


def test_memory_by_kind_writes_totals_and_enlarges_the_small(tmp_path: Path) -> None:
    rows = [
        row(method=label, metric="saved_bytes", value=gib * 2**30, config=config)
        for label, kind, gib in (
            ("division", "convolution", 1.0),
            ("division", "ReLU", 0.5),
            ("vanilla", "ReLU", 20.0),
        )
        for config in [{"label": label, "kind": kind, "batch": 256}]
    ]
    drawing = memory.draw(frame_of(rows))
    check(drawing, tmp_path)
    assert [t.get_text() for t in drawing.figure.axes[0].texts] == [" 20.00", " 1.50"]
    assert [t.get_text() for t in drawing.figure.axes[1].texts] == [" 1.50"]


def test_kinds_of_nodes() -> None:
    names = ("ConvolutionBackward0", "NativeBatchNormBackward0", "ReluBackward0", "AddmmBackward0")
    assert [kinds.kind_of(n) for n in names] == ["convolution", "normalisation", "ReLU", "other"]


def test_kinds_add_up_to_what_the_ledger_holds() -> None:
    found = {label: sum(kinds.measured(label, 2, 64).values()) for label in ("vanilla", "division")}
    assert 8 < found["vanilla"] / found["division"] < 13


def test_radar_marks_run_from_centre_to_rim(tmp_path: Path) -> None:
    trained, bench = table1_frames()
    drawing = radar.draw(trained, bench, frame_of(error_rows()))
    check(drawing, tmp_path)
    table = pareto.summary(trained, bench).assign(error=[0.0, 0.4, 1.0])
    marks = radar.scales(table)
    assert ((marks >= 0) & (marks <= 1)).all(axis=None)
    assert marks.loc["vanilla", ["accuracy", "throughput", "exact gradients"]].tolist() == [1, 1, 1]
    assert marks.loc["vanilla", "activations"] == 0
    assert marks.loc["division", "activations"] == 1
    assert marks.loc["pooling", ["accuracy", "exact gradients"]].tolist() == [0, 0]


def test_curves_count_epochs_to_the_target(tmp_path: Path) -> None:
    curve = pd.Series([40.0, 60.0, 80.0], index=[1, 2, 3])
    assert curves.epochs_to(curve, 70.0) == 2.5
    assert curves.epochs_to(curve, 30.0) == 1
    assert math.isnan(curves.epochs_to(curve, 90.0))
    drawing = curves.draw(table1_frames()[0])
    check(drawing, tmp_path)
    assert "not reached by 2 of 2" in texts(drawing)  # pooling
    assert "n = 2" in drawing.caption


def test_maps_show_the_original_first_and_the_size_of_each(tmp_path: Path) -> None:
    found = pictures.of_map(torch.randn(2, 4, 16, 16), 1)
    assert next(iter(found)) == "original"
    both = found["block means"].values + found["residual"].values
    assert np.allclose(both, found["division"].values, atol=1e-5)
    assert 2 < found["division"].bits < 3
    drawing = maps.draw({"conv1": found}, "noise")
    check(drawing, tmp_path)
    assert [axes.get_title() for axes in drawing.figure.axes] == list(found)
    assert drawing.figure.axes[0].get_xlabel() == "32.0 bit"


def test_every_method_of_the_table_has_a_colour_and_a_marker_of_its_own() -> None:
    methods = draw.grid.methods()
    assert set(methods) == set(style.METHODS)
    assert len({style.colour(m) for m in methods}) == len(methods)
    assert len({style.marker(m) for m in methods}) == len(methods)
    assert style.in_order(["mine", "actnn", "vanilla"]) == ["vanilla", "actnn", "mine"]


def test_the_newest_row_counts() -> None:
    old, new = (row(value=v, config={"label": "division"}) for v in (1.0, 2.0))
    frame = frame_of([old, new])
    frame["utc"] = ["2020-01-01", "2021-01-01"]
    assert frames.newest(frame, ["label", "metric"])["value"].tolist() == [2.0]


def test_a_figure_without_rows_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    commands = {
        "rate-distortion": "make reproduce-ablation",
        "throughput": "make reproduce-table4",
        "memory-by-kind": r"python -m experiments\.kinds",
        "pareto": "make reproduce-table1",
    }
    for name, command in commands.items():
        with pytest.raises(draw.Missing, match=command):
            draw.FIGURES[name](tmp_path)


def test_a_larger_scale_takes_over_once_it_is_as_complete(tmp_path: Path) -> None:
    def rows(scale: str, *labels: str) -> list[record.Row]:
        common = {"experiment": "errors", "metric": "gradient_error", "scale": scale}
        return [row(config={"label": label, "at": "end"}, **common) for label in labels]

    record.append(tmp_path, record.complete(rows("quick", "division", "actnn")))
    record.append(tmp_path, record.complete(rows("reduced", "division")))
    assert set(draw.errors_frame(tmp_path)["scale"]) == {"quick"}
    record.append(tmp_path, record.complete(rows("reduced", "actnn")))
    assert set(draw.errors_frame(tmp_path)["scale"]) == {"reduced"}


def test_captions_outlive_a_figure_that_is_not_drawn_again(tmp_path: Path) -> None:
    draw.write_captions(tmp_path, {"rate-distortion": "Of rates.", "maps": "Of maps."})
    draw.write_captions(tmp_path, {"maps": "Of other maps."})
    page = (tmp_path / "README.md").read_text()
    assert draw.read_captions(page) == {"rate-distortion": "Of rates.", "maps": "Of other maps."}
    assert "![maps](maps.png)" in page
