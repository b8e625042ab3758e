"""Rows: one JSON object per measured number, appended under a lock and never edited."""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from experiments import provenance

STATUSES = ("ok", "oom", "diverged")
SCALES = ("quick", "reduced", "paper")


@dataclass(frozen=True)
class Row:
    """One measured number with everything needed to measure it again."""

    experiment: str
    method: str
    model: str
    dataset: str
    seed: int
    metric: str
    unit: str
    value: float | None
    scale: str
    options: Mapping[str, object] = field(default_factory=dict)
    p20: float | None = None
    p80: float | None = None
    n: int = 1
    epoch: int | None = None  # for what is measured every epoch
    status: str = "ok"
    config: Mapping[str, object] = field(default_factory=dict)
    config_hash: str = ""
    data_sha256: str = ""
    wall_s: float | None = None
    utc: str = ""
    commit: str = ""
    dirty: bool = True
    code: str = ""
    command: str = ""
    machine: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("status", self.status, STATUSES),
            ("scale", self.scale, SCALES),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


def config_hash(config: Mapping[str, object]) -> str:
    """Hash a flat config; equal settings give equal hashes whatever their order."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measured(results: Path, measure: Callable[[], Iterable[Row]]) -> list[Row]:
    """Measure and record the rows, with how long that took; refuse an unwritable folder first."""
    check_writable(results)
    started = time.monotonic()
    rows = complete(list(measure()), started)
    append(results, rows)
    return rows


def complete(rows: Iterable[Row], started: float | None = None) -> list[Row]:
    """Add provenance, and the wall time since `started` (time.monotonic), to rows."""
    commit, dirty = provenance.commit()
    common = {
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "code": provenance.code(),
        "command": provenance.command(),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
    }
    wall = None if started is None else round(time.monotonic() - started, 3)
    found = []
    for row in rows:
        values = asdict(row) | common | {"config_hash": config_hash(row.config)}
        found.append(Row(**(values | {"wall_s": row.wall_s or wall})))
    return found


def append(folder: Path, rows: Iterable[Row]) -> None:
    """Append complete rows to runs/<experiment>.jsonl; several writers may do so at once."""
    by_file: dict[Path, list[str]] = {}
    for row in rows:
        if not row.commit:
            raise ValueError(
                f"a row of {row.experiment!r} has no provenance; pass it to complete()"
            )
        path = folder / "runs" / f"{row.experiment}.jsonl"
        by_file.setdefault(path, []).append(json.dumps(asdict(row), sort_keys=True, default=str))
    for path, lines in by_file.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"), path.open("r+b" if path.exists() else "w+b") as file:
            _drop_half_line(file)
            file.write(("\n".join(lines) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def check_writable(folder: Path) -> None:
    """Raise before a long run rather than after it if its rows could not be written."""
    runs = folder / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=runs):
            pass
    except OSError as error:
        raise OSError(f"the results folder {runs} cannot be written: {error.strerror}") from error


def load(folder: Path, experiment: str) -> list[Row]:
    """Read the rows of an experiment; a last line that a crash cut short is no row yet."""
    path = folder / "runs" / f"{experiment}.jsonl"
    known = {f.name for f in fields(Row)}
    rows = []
    if not path.exists():
        return rows
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is not a row ({error}); remove the line") from error
        unknown = values.keys() - known
        if unknown:
            raise ValueError(f"{path}:{number} has unknown fields {sorted(unknown)}")
        rows.append(Row(**values))
    return rows


def is_done(
    folder: Path, experiment: str, config: Mapping[str, object], metric: str = "final_top1"
) -> bool:
    """Tell whether a run of this config ended, well or badly, with the code as it is now.

    `metric` is the number that such a run records last.
    """
    wanted = config_hash(config)
    ends = (row for row in load(folder, experiment) if row.metric == metric)
    return any(row.config_hash == wanted and is_of_this_code(row) for row in ends)


def is_of_this_code(row: Row) -> bool:
    """Tell whether a row was measured with the code as it is now."""
    return row.code == provenance.code()


def _drop_half_line(file: BinaryIO) -> None:
    """Remove what a crash left of a row that was being written."""
    content_end = file.seek(0, os.SEEK_END)
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    if whole != content_end:
        file.truncate(whole)
    file.seek(0, os.SEEK_END)
