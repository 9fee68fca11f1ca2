"""Reads traces of jobs, profiles of models and shapes of clusters from CSV files."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from elasticflow.errors import DataError
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.curves import Curve, curve
from elasticflow.scheduler.jobs import Job

Profiles = Mapping[tuple[str, int], Curve]
"""Curves by model and global batch."""

NAMES = {
    "submit_s": ("submission_time", "submit_time"),
    "iterations": ("num_iteration", "iteration"),
    "deadline_s": ("deadline", "ddl"),
}
"""What the two formats call the same column."""


def read_trace(path: Path | str, profiles: Profiles) -> tuple[Job, ...]:
    """The jobs of a trace, by time of submission. Raises DataError with the row that is wrong."""
    path = Path(path)
    rows = _rows(path)
    jobs = [_job(path, number, row, profiles) for number, row in enumerate(rows, start=2)]
    if len({job.job_id for job in jobs}) < len(jobs):
        raise DataError(f"{path}: a job_id is there twice; give each job one of its own")
    return tuple(sorted(jobs, key=lambda job: (job.submit_s, job.job_id)))


def read_profiles(folder: Path | str) -> dict[tuple[str, int], Curve]:
    """All curves of a folder with one file a model: rows are global batches, columns numbers of GPUs."""
    folder = Path(folder)
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise DataError(f"{folder}: holds no profile; give a folder with one MODEL.csv a model")
    profiles: dict[tuple[str, int], Curve] = {}
    for file in files:
        for number, row in enumerate(_rows(file), start=2):
            batch = int(_number(file, number, row, ("global_batch_size",)))
            rates = {int(name): _rate(text) for name, text in row.items() if name.strip().isdecimal()}
            usable = {size: rate for size, rate in rates.items() if rate > 0}
            if usable:
                profiles[file.stem, batch] = curve(usable)
    return profiles


def find_profiles(trace: Path | str) -> dict[tuple[str, int], Curve]:
    """The profiles beside a trace's folder that know each of its models."""
    trace = Path(trace)
    wanted = {row.get("model_name", "") for row in _rows(trace)}
    folders = [
        one for place in (trace.parent, trace.parent.parent) for one in sorted(place.glob("throughputs_*"))
    ]
    for folder in folders:
        if wanted <= {file.stem for file in folder.glob("*.csv")}:
            return read_profiles(folder)
    raise DataError(
        f"{trace}: no folder throughputs_* beside it knows the models {', '.join(sorted(wanted))}; name one "
        "with --profiles"
    )


def read_shape(path: Path | str) -> ClusterShape:
    """The shape of a cluster."""
    path = Path(path)
    rows = list(_rows(path))
    if len(rows) != 1:
        raise DataError(f"{path}: has {len(rows)} rows; a cluster's shape is one")
    number = {name: int(_number(path, 2, rows[0], (name,))) for name in rows[0] if name.startswith("num_")}
    return ClusterShape(number["num_switch"] * number["num_node_p_switch"], number["num_gpu_p_node"])


def _job(path: Path, number: int, row: Mapping[str, str], profiles: Profiles) -> Job:
    model = row.get("model_name", "")
    batch = int(_number(path, number, row, ("batch_size",)))
    known = profiles.get((model, batch))
    if known is None:
        batches = sorted(size for name, size in profiles if name == model)
        found = f"batches {', '.join(map(str, batches))}" if batches else "no profile"
        raise DataError(f"{path}, row {number}: model {model!r} with batch {batch}; there is {found} of it")
    submit_s = _number(path, number, row, NAMES["submit_s"])
    iterations = _number(path, number, row, NAMES["iterations"])
    deadline_s = _number(path, number, row, NAMES["deadline_s"], math.inf)
    if iterations <= 0:
        raise DataError(f"{path}, row {number}: {iterations:g} iterations; there must be some")
    best_effort = row.get("best_effort", "").strip().lower() in ("1", "1.0", "true", "yes")
    cap = _number(path, number, row, ("cost_cap_gpu_s",), math.inf)
    least = int(_number(path, number, row, ("min_gpus",), 1))
    most = int(_number(path, number, row, ("max_gpus",), known.sizes[-1]))
    return Job(
        job_id=row["job_id"],
        curve=known if (least, most) == (1, known.sizes[-1]) else known.limited(least, most),
        iterations=iterations,
        submit_s=submit_s,
        deadline_s=None if best_effort or math.isinf(deadline_s) else deadline_s,
        requested_gpus=int(_number(path, number, row, ("num_gpu",))),
        model=model,
        user=row.get("user") or "",
        priority=int(_number(path, number, row, ("priority",), 0)),
        cost_cap_gpu_s=None if math.isinf(cap) else cap,
    )


def _rows(path: Path) -> Iterable[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def _number(
    path: Path, number: int, row: Mapping[str, str], names: tuple[str, ...], default: float | None = None
) -> float:
    """The number in the column that has one of these names. Without a default there must be one."""
    name = next((one for one in names if one in row), None)
    if name is None and default is None:
        raise DataError(f"{path}: has no column {' or '.join(names)}; there are {', '.join(row)}")
    text = (row[name] or "").strip() if name else ""
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise DataError(f"{path}, row {number}: {name} is {text!r}; it must be a number")
    return value


def _rate(text: str | None) -> float:
    """Iterations a second; 0 for a blank or ``nan``: cannot run."""
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
