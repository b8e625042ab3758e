"""How fast the CPU kernels are: time against `clone()` of the same tensor, and ns per element.

    python -m experiments.kernels --rounds 7 --threads 2

All tasks of a case run in alternating rounds of one process, so that a busy machine slows them
alike. `clone()` of a large map is mostly page faults and that of a small one a cache hit: below
30 MB look at the nanoseconds.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from division.kernels import cpu
from experiments import record
from experiments.timing import Quantiles, alternate, host_seconds

LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
BARS = {  # for the largest map, as a multiple of the time of clone()
    ("compress", "nchw"): 0.6,
    ("compress", "channels_last"): 0.45,
    ("decompress", "nchw"): 1.15,
    ("decompress", "channels_last"): 1.15,
    ("pack_mask", "nchw"): 0.35,
    ("unpack_mask", "nchw"): 1.0,
}
SMALL_MAP_BAR = 1.0  # ns per element, one thread
LARGEST = (512, 64, 32, 32)
FEW_ELEMENTS = 5_000_000

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Maps to compress, and how."""

    shape: tuple[int, int, int, int]
    layout: str
    rows: int
    cols: int
    threads: int
    dtype: torch.dtype = torch.float32
    bits: int = 2

    def bar(self, task: str, metric: str) -> float | None:
        """Return what the design asks for, if it asks for anything here."""
        if self.dtype != torch.float32 or self.bits != 2:
            return None
        if metric == "time / clone" and self.shape == LARGEST:
            return BARS.get((task, self.layout))
        is_small = self.shape[2] in (7, 14) and self.layout == "channels_last"
        if metric == "time per element" and task == "compress" and is_small and self.threads == 1:
            return SMALL_MAP_BAR
        return None


def cases(threads: int) -> list[Case]:
    """Return what is measured: 1 MB to 134 MB, small maps on one thread, and other settings."""
    found = []
    for layout in LAYOUTS:
        found += [Case((n, 64, 32, 32), layout, 4, 4, threads) for n in (4, 32, 128, LARGEST[0])]
    for layout in ("channels_last", "nchw"):
        found.append(Case((64, 512, 7, 7), layout, 1, 1, 1))
        found.append(Case((64, 256, 14, 14), layout, 1, 1, 1))
    for layout in LAYOUTS:
        found += [Case((64, 64, 32, 32), layout, 4, 4, 1, bits=b) for b in (1, 2, 3, 4, 8)]
        halves = (torch.bfloat16, torch.float16)
        found += [Case((64, 64, 32, 32), layout, 4, 4, 1, dtype) for dtype in halves]
    found.append(Case((1, 65536, 1, 256), "nchw", 0, 0, threads))  # groups of 256
    found.append(Case((32, 64, 1, 8192), "nchw", 1, 128, threads))  # sequences
    return found


def tasks(case: Case) -> dict[str, Callable[[], object]]:
    """Return the functions to time, by name, `clone` first."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.shape, generator=generator).to(case.dtype)
    x = x.contiguous(memory_format=LAYOUTS[case.layout])
    channels_last = case.layout == "channels_last"
    settings = (case.bits, case.rows, case.cols, 0, 1)
    packed = cpu.split_maps(x, *settings)
    size = case.shape[2:]
    found: dict[str, Callable[[], object]] = {
        "clone": lambda: x.clone(),
        "compress": lambda: cpu.split_maps(x, *settings),
        "decompress": lambda: cpu.merge_maps(*packed, case.bits, *size, case.dtype, channels_last),
    }
    if case.shape == LARGEST and not channels_last:
        flat, nan = x.flatten(), float("nan")
        mask = cpu.pack_mask(flat, 0.0, nan)
        found["pack_mask"] = lambda: cpu.pack_mask(flat, 0.0, nan)
        found["unpack_mask"] = lambda: cpu.unpack_mask(mask, flat.numel(), 0.0, 1.0, case.dtype)
    return found


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_case(case: Case, rounds: int) -> list[Row]:
    """Measure one case: two rows for every task but `clone`, which has one."""
    elements = torch.Size(case.shape).numel()
    if (
        elements < FEW_ELEMENTS
    ):  # a millisecond each: many rounds cost nothing and settle the median
        rounds *= 7
    timed = {name: partial(host_seconds, task) for name, task in tasks(case).items()}
    with limited_threads(case.threads):
        seconds = list(alternate(timed, rounds))
    rows = []
    for task in seconds[0]:
        values = {"time per element": ("ns", [1e9 * s[task] / elements for s in seconds])}
        if task != "clone":
            values["time / clone"] = ("x", [s[task] / s["clone"] for s in seconds])
        for metric, (unit, measured) in values.items():
            rows.append(_row(case, task, metric, unit, Quantiles.of(measured)))
    return rows


def _row(case: Case, task: str, metric: str, unit: str, quantiles: Quantiles) -> Row:
    return {
        "case": task if case.bits == 2 else f"{task}, bits={case.bits}",
        "shape": list(case.shape),
        "layout": case.layout,
        "dtype": str(case.dtype).removeprefix("torch."),
        "threads": case.threads,
        "metric": metric,
        "unit": unit,
        "value": quantiles.p50,
        "p20": quantiles.p20,
        "p80": quantiles.p80,
        "n": quantiles.n,
        "bar": case.bar(task, metric),
    }


def measure(rounds: int, threads: int, show_progress: bool = False) -> list[Row]:
    """Measure every case."""
    rows: list[Row] = []
    for case in track(cases(threads), "kernels", disable=not show_progress, transient=True):
        rows += measure_case(case, rounds)
    return rows


def table(rows: list[Row]) -> Table:
    """Show one line a task, with pass or miss where there is a bar."""
    found = Table(title="CPU kernels: medians (p20 and p80 are in the rows)")
    for column in ("case", "shape", "layout", "dtype", "threads"):
        found.add_column(column)
    for column in ("an element", "of clone()", "bar", ""):
        found.add_column(column, justify="right")
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        key = (row["case"], shape, row["layout"], row["dtype"], str(row["threads"]))
        lines.setdefault(key, {})[row["metric"]] = row
    for key, metrics in lines.items():
        texts = [_text(metrics.get(metric)) for metric in ("time per element", "time / clone")]
        barred = [row for row in metrics.values() if row["bar"] is not None]
        bars = [f"<= {row['bar']:.2f} {row['unit']}" for row in barred]
        verdicts = ["[green]pass" if row["value"] <= row["bar"] else "[red]miss" for row in barred]
        found.add_row(*key, *texts, ", ".join(bars), ", ".join(verdicts))
    return found


def _text(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['value']:.2f} {row['unit']}"


def recorded(row: Row) -> record.Row:
    """Turn a measurement into a row of the results."""
    numbers = {key: row[key] for key in ("metric", "unit", "value", "p20", "p80", "n")}
    settings = {key: value for key, value in row.items() if key not in numbers}
    return record.Row(
        experiment="kernels",
        method="division",
        model=row["case"],
        dataset="x".join(map(str, row["shape"])),
        seed=0,
        scale="reduced",
        config=settings,
        **numbers,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the CPU kernels against clone().")
    parser.add_argument("--rounds", type=int, default=7, help="alternating rounds of each case")
    parser.add_argument("--threads", type=int, default=2, help="threads of the large cases")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where rows go")
    arguments = parser.parse_args()
    if trouble := cpu.usable():
        parser.exit(1, f"the CPU kernels cannot be used: {trouble}\n")
    rows = measure(arguments.rounds, arguments.threads, show_progress=True)
    console = Console()
    console.width = max(console.width, 125)
    console.print(table(rows))
    record.append(arguments.results, record.complete(recorded(row) for row in rows))


if __name__ == "__main__":
    main()
