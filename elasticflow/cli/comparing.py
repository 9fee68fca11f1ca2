"""``elasticflow compare``: runs side by side: settings, what came of them, and whether it is the same."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from elasticflow.cli.asking import formatted
from elasticflow.cli.columns import in_columns
from elasticflow.cli.folders import find_shown
from elasticflow.cli.progress import duration, scaled
from elasticflow.cli.summaries import PREFIX, RunSummary, measured, summary_of
from elasticflow.errors import ConfigError
from elasticflow.process.texts import harmless
from elasticflow.run.folder import RunDir

OWN = ("run_dir", "date", "program_sha256")
"""Settings that differ by themselves; the hash of the program has a line of its own."""


class Comparison(msgspec.Struct, kw_only=True):
    """Lists are in the order of the runs. settings, metrics, fingerprint: by name; only those that differ of
    settings and fingerprint. same_program, same_data, same_digest: None: not known of all.
    """

    runs: list[RunSummary]
    settings: dict[str, list[Any]]
    fingerprint: dict[str, list[Any]]
    metrics: dict[str, list[Any]]
    same_program: bool | None
    same_data: bool | None
    same_digest: bool | None


def compare(arguments: argparse.Namespace) -> int:
    """Prints what differs, and what came of each."""
    if len(arguments.runs) < 2:
        raise ConfigError(f"compare: {arguments.runs[0]} alone cannot be compared; name two runs or more.")
    found = [find_shown(text, arguments.trust)[0] for text in arguments.runs]
    comparison = compared(found, arguments.trust)
    if arguments.json:
        print(formatted(comparison))
        return 0
    for line in page(comparison):
        print(harmless(line))
    return 0


def compared(runs: Sequence[RunDir], trust: bool = False) -> Comparison:
    """Raises RunError if one is none."""
    settings = [msgspec.to_builtins(run.config()) for run in runs]
    summaries = [summary_of(run, trust) for run in runs]
    hashes = [each["program_sha256"] or None for each in settings]
    flat = [{name: value for name, value in _flat(each) if name not in OWN} for each in settings]
    return Comparison(
        runs=summaries,
        settings=_different(flat),
        fingerprint=_different([dict(_flat(each.fingerprint)) for each in summaries])
        if all(each.fingerprint for each in summaries)
        else {},
        metrics=_together([measured(each.evaluation) for each in summaries]),
        same_program=_same(hashes),
        same_data=_same([each.data or None for each in summaries]),
        same_digest=_same([each.digest for each in summaries]),
    )


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """What is in dicts, such as ``args``, by names with dots."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        elif not isinstance(value, Mapping):
            yield f"{before}{name}", value


def _together(each: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for values in each for name in values)
    return {name: [values.get(name) for values in each] for name in names}


def _different(each: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: row for name, row in _together(each).items() if any(value != row[0] for value in row)}


def _same(each: Sequence[str | None]) -> bool | None:
    return None if None in each else len(set(each)) == 1


def page(found: Comparison) -> list[str]:
    """For people: a column a run."""
    runs = found.runs
    names = _names(runs)
    rows: list[tuple[str, ...]] = [("", *names)]
    rows += [("state", *(run.state for run in runs))]
    rows += [("begun", *(_begun(run) for run in runs))]
    rows += [("took", *("" if run.seconds is None else duration(run.seconds) for run in runs))]
    rows += [("first step", *(_seconds(run.first_step_s) for run in runs))]
    rows += [("worker hours", *(_text(run.worker_hours) for run in runs))]
    rows += [("faults", *(_text(run.faults) for run in runs))]
    rows += [("steps", *(_steps(run) for run in runs))]
    rows += [("loss", *(_text(run.loss) for run in runs))]
    rows += [(name, *map(_text, row)) for name, row in found.metrics.items()]
    if any(run.best for run in runs):
        rows += [("best", *(run.metric if run.best else "" for run in runs))]
    rows += [("digest", *((run.digest or "")[:PREFIX] for run in runs))]
    lines = _columns(rows)
    lines += ["", f"digests: {_words(found.same_digest)}{_groups(names, runs)}"]
    lines += [f"programs: {_words(found.same_program)}", f"data: {_words(found.same_data)}"]
    if found.same_data is False:
        lines += _columns([(name, run.data) for name, run in zip(names, runs, strict=True)])
    for title, values in (("settings", found.settings), ("fingerprints", found.fingerprint)):
        if values:
            lines += [f"{title} differ in:", *_columns([(n, *map(_text, v)) for n, v in values.items()])]
        elif title == "settings":
            lines.append("settings: the same")
    return lines


def _names(runs: Sequence[RunSummary]) -> list[str]:
    """Of their folders; as they were given, where several have one name."""
    last = [run.name for run in runs]
    return last if len(set(last)) == len(last) else [run.run for run in runs]


def _groups(names: Sequence[str], runs: Sequence[RunSummary]) -> str:
    """Of more than two runs, whose digests are alike."""
    groups: dict[str, list[str]] = {}
    for name, run in zip(names, runs, strict=True):
        if run.digest:
            groups.setdefault(run.digest, []).append(name)
    alike = [" = ".join(group) for group in groups.values() if len(group) > 1]
    return f" ({'; '.join(alike)})" if alike and len(groups) > 1 else ""


def _words(same: bool | None) -> str:
    return {True: "the same", False: "not the same", None: "not known of all"}[same]


def _begun(run: RunSummary) -> str:
    return "" if run.begun_at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(run.begun_at))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _steps(run: RunSummary) -> str:
    return "" if run.step is None else f"{run.step}/{'?' if run.steps_total is None else run.steps_total}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return scaled(value)
    return "" if value is None else str(value) or '""'


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"  {line}" for line in in_columns(rows)]
