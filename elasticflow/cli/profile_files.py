"""A measured profile as files: a table that traces are read with, and all that is known as JSON."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from elasticflow.errors import ConfigError, DataError
from elasticflow.process.decoding import from_json
from elasticflow.run.folder import replace
from elasticflow.scheduler.fit import Fit
from elasticflow.scheduler.measured import Change, Point
from elasticflow.scheduler.overheads import Overheads

BATCH = "global_batch_size"


class CurvePoint(msgspec.Struct, frozen=True):
    """Iterations/s of a size. error: relative standard error; of a measured size, of the measurement."""

    workers: int
    rate: float
    error: float
    measured: bool


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What one profiling of one program found. terms: of ``elasticflow.scheduler.fit``, misfit likewise.

    fingerprint: of the kind of processor and the libraries that it was measured with.
    """

    program: str
    global_batch_size: int
    slices: int
    servers: int
    threads: int
    measured_at: str
    fingerprint: dict[str, str]
    curve: tuple[CurvePoint, ...]
    terms: dict[str, float]
    misfit: float
    steps: dict[int, int]
    """So many were measured, by number of workers."""
    first_step_s: float
    changes: tuple[Change, ...]
    overheads: Overheads
    """What the scheduler is to charge for changes."""

    @property
    def rates(self) -> dict[int, float]:
        """Iterations/s by number of workers."""
        return {point.workers: point.rate for point in self.curve}


def curve_points(points: list[Point], fit: Fit, sizes: tuple[int, ...]) -> tuple[CurvePoint, ...]:
    """Measured sizes as they were measured, the others as they are fitted."""
    measured = {point.workers: CurvePoint(point.workers, point.rate, point.noise, True) for point in points}
    fitted = {size: CurvePoint(size, fit.rate(size), fit.error(size), False) for size in sizes}
    return tuple(point for _, point in sorted({**fitted, **measured}.items()))


def check_folder(folder: Path, program: str) -> None:
    """Finds out before anything is measured whether it can be written. Raises DataError, ConfigError."""
    table = folder / f"{Path(program).stem}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--to: {folder} cannot be made: {error.strerror}; choose another folder."
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--to: nothing can be written into {folder}; choose another folder.")
    if table.exists():
        _rows(table)


def write(folder: Path, profile: Profile) -> tuple[Path, Path]:
    """Writes both files, see ``check_folder``; a table keeps its rows for other batches."""
    name = Path(profile.program).stem
    table, details = folder / f"{name}.csv", folder / f"{name}.{profile.global_batch_size}.json"
    rows = _rows(table) if table.exists() else {}
    rows[profile.global_batch_size] = {size: f"{rate:.6g}" for size, rate in profile.rates.items()}
    replace(table, _table(rows).encode())
    replace(details, msgspec.json.format(msgspec.json.encode(profile)))
    return table, details


def read(path: Path) -> Profile:
    """The profile in a PROGRAM.BATCH.json. Raises DataError."""
    try:
        return from_json(path.read_bytes(), Profile)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{path}: is no profile ({error}); 'elasticflow profile PROGRAM' writes PROGRAM.BATCH.json"
        ) from error


def _rows(table: Path) -> dict[int, dict[int, str]]:
    """The cells of a table, by batch and size."""
    try:
        with table.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {
            int(row[BATCH]): {int(size): cell for size, cell in row.items() if size != BATCH} for row in rows
        }
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{table}: is no profile: its columns must be {BATCH} and numbers of workers; "
            "choose another folder with --to"
        ) from error


def _table(rows: Mapping[int, Mapping[int, str]]) -> str:
    sizes = sorted({size for row in rows.values() for size in row})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([BATCH, *sizes])
    for batch, row in sorted(rows.items()):
        writer.writerow([batch, *(row.get(size, "") for size in sizes)])
    return text.getvalue()
