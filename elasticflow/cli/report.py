"""``elasticflow report``: how a run went, or has gone so far, on a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from rich.console import Console
from rich.text import Text

from elasticflow.cli.asking import formatted, killed, told
from elasticflow.cli.columns import in_columns
from elasticflow.cli.connection import Connection
from elasticflow.cli.folders import find_shown
from elasticflow.cli.outside import shown
from elasticflow.cli.progress import (
    attempts,
    best_line,
    deadline_line,
    duration,
    eta,
    evaluation_line,
    start_line,
)
from elasticflow.cli.terminal import bare
from elasticflow.cli.watching import audited_line, faults_line, skipped_line
from elasticflow.cluster.presence import Presence, presence_of
from elasticflow.errors import RunError
from elasticflow.process.decoding import from_json
from elasticflow.process.texts import harmless
from elasticflow.run.folder import RunDir, read_bounded
from elasticflow.run.telling import (
    LiveStatus,
    PartStory,
    Past,
    Remembered,
    Report,
    ToldFault,
    WorkersSeconds,
)
from elasticflow.training.programs import ProgramUse

Told: TypeAlias = Report | LiveStatus | Remembered
BAR = 30
"""Characters of the longest bar."""
SHOWN = 40
"""So many faults, changes of size and checkpoints are on the page, the last ones."""
WORDS = {
    "productive": "computed what was needed",
    "redone": "computed again what a lost server had",
    "duplicated": "computed what somebody else did too",
    "starting": "imported, loaded, caught up",
    "waiting": "waited for others' slices",
    "recovering": "waited for servers to go on",
    "checkpointing": "waited for servers to copy a checkpoint",
}


class _Journal(msgspec.Struct):
    """Of what a master writes down, only what is told here."""

    story: msgspec.Raw


def report(arguments: argparse.Namespace) -> int:
    """Prints the report of a run: of its end, or so far, or what is known of one that was killed."""
    with told(arguments.json):
        run, outside = find_shown(arguments.run, arguments.trust)
        found = shown(run) if outside else _found(run)
    if arguments.json:
        print(formatted(found))
        return 0
    console = Console(file=bare(sys.stdout), highlight=False, soft_wrap=True)
    mark = "█" if console.encoding.startswith("utf") else "#"
    for line in page(found, mark):
        heading = line and not line.startswith(" ")
        console.print(Text(harmless(line), style="bold" if heading else ""), markup=False)
    return 0


def _found(run: RunDir) -> Told:
    """What there is. Raises RunError if there is nothing."""
    presence = presence_of(run)
    if presence.is_alive():
        with Connection(run) as connection:
            status = connection.status()
        status.text = "under way"
        return status
    return run.read_report() or remembered(run, presence)


def remembered(run: RunDir, presence: Presence) -> Remembered:
    """Of a run all of whose processes were killed: what its master wrote down last.

    Raises RunError if it wrote nothing.
    """
    from elasticflow.master.status import Story, StoryMemory

    config = run.config()
    try:
        written = from_json(read_bounded(run.journal), _Journal)
        memory = from_json(written.story, StoryMemory)
    except FileNotFoundError as error:
        how = killed(run, presence).text
        raise RunError(f"{run.path}: was killed before it had begun, so there is no report: {how}") from error
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RunError(f"{run.journal}: cannot be read: {error}") from error
    story = Story(
        config,
        str(run.path),
        0,
        memory,
        past=run.past_attempts(),
        wall=lambda: memory.started_at + memory.time_s,
        boot=lambda: ("", 0.0),
    )
    left = killed(run, presence)
    past = {**msgspec.structs.asdict(story.so_far()), "elapsed_s": memory.time_s}
    text = f"{left.text}. This is what its master wrote down last"
    return Remembered(**past, state=left.state, text=text, cluster_end=left.cluster_end)


def page(report: Told, mark: str = "█") -> list[str]:
    """The report in lines; headings are those that are not indented."""
    return [
        f"{report.run}: {report.state}, after {duration(report.elapsed_s)}{attempts(report)}: {report.text}",
        *_work(report),
        *_seconds(report.workers_seconds, report.goodput, mark),
        *_faults(report),
        *_sizes(report),
        *_checkpoints(report),
    ]


def _work(report: Past) -> list[str]:
    total = "?" if report.records_total is None else f"{report.records_total:,}"
    again = f", {report.steps_redone} of them made again" if report.steps_redone else ""
    first = f", from {report.start_step} on" if report.start_step else ""
    lines = [
        f"  program  {report.program}",
        *_changes(report.programs),
        f"  steps    {report.step} of {report.steps_total or '?'}{first}{again}",
        f"  records  {report.records_covered:,} of {total} covered, "
        f"{_quarantined(report.quarantined)} quarantined{_left_out(report)}",
    ]
    if report.strategy_why:
        lines.append(f"  strategy {report.strategy}: {report.strategy_why}")
    if start := start_line(report):
        lines.append(f"  {start}")
    if skipped := skipped_line(report):
        lines.append(f"  skipped  {skipped}")
    if audited := audited_line(report):
        lines.append(f"  audit    {audited}")
    if report.mode == "async":
        stale = f"staleness {report.staleness}"
        lines.append(f"  mode     async, {stale}: the model depends on the order of updates as well")
    if line := _deadline(report):
        lines.append(line)
    if report.compression != "none":
        unlike = ": the same answer is not promised" if report.compression == "top-k" else ""
        lines.append(f"  sent as  {report.compression}{unlike}")
    if report.evaluation:
        lines.append(f"  test     {evaluation_line(report.evaluation)}")
    if line := best_line(report):
        lines.append(f"  {line}")
    return lines


def _deadline(report: Past) -> str:
    """Of a run under way, its ETA against it."""
    if report.deadline is None:
        return ""
    return (
        f"  ETA      {line.removeprefix('ETA ')}" if (line := eta(report)) else f"  {deadline_line(report)}"
    )


def _changes(programs: Sequence[ProgramUse]) -> list[str]:
    """Where the run went on with another program than before."""
    return [
        f"           changed at step {use.from_step}, to {use.name} ({use.sha256[:16]})"
        for use in programs[1:]
    ]


def _left_out(report: Past) -> str:
    count = report.records_left_out
    return f"; {count:,} of each epoch left out (drop_last)" if count else ""


def _quarantined(rows: list[int]) -> str:
    return f"{len(rows)} (row {', '.join(map(str, rows))})" if rows else "0"


def _seconds(told: WorkersSeconds, goodput: float | None, mark: str) -> list[str]:
    seconds = told.by_name()
    lived_s = sum(seconds.values())
    if not lived_s or goodput is None:
        return []
    lines = [f"Goodput {goodput:.1%}: where the workers' {lived_s:,.1f} seconds went"]
    for name, value in seconds.items():
        if value:
            bar = mark * round(BAR * value / lived_s)
            lines.append(
                f"  {name:<13} {value:>10,.1f} s {value / lived_s:>6.1%}  {bar:<{BAR}}  {WORDS[name]}"
            )
    return lines


def _faults(report: Past) -> list[str]:
    if not report.num_faults:
        return ["Faults: none"]
    rows = [
        (
            duration(fault.time_s),
            fault.member or fault.role,
            fault.text,
            _cost(fault),
            _done(fault),
        )
        for fault in report.faults[-SHOWN:]
    ]
    heading = f"Faults: {faults_line(report)}"
    return [
        heading,
        *_earlier(report.num_faults),
        *_table(("when", "who", "what", "cost", "what was done"), rows),
    ]


def _cost(fault: ToldFault) -> str:
    steps = f", {fault.steps} step" + "s" * (fault.steps != 1) if fault.steps else ""
    return f"{fault.seconds:.2f} s{steps}"


def _done(fault: ToldFault) -> str:
    lasted = "not over" if fault.lasted_s is None else f"over after {fault.lasted_s:.2f} s"
    return "; ".join(part for part in (fault.done, lasted) if part)


def _earlier(num: int) -> list[str]:
    return [f"  ({num - SHOWN} earlier)"] if num > SHOWN else []


def _sizes(report: Past) -> list[str]:
    """How many workers were asked for, and how many there were."""
    asked = [(e.time_s, f"{e.old} to {e.new} asked for", e.reason) for e in report.resizes]
    there = [(e.time_s, f"{e.ready} of {e.wanted} there", e.why.split(": ", 1)[-1]) for e in report.sizes]
    rows = [(duration(time_s), what, why) for time_s, what, why in sorted(asked + there)]
    return ["Size", *_earlier(len(rows)), *_table(("when", "what", "why"), rows[-SHOWN:])] if rows else []


def _checkpoints(report: Past) -> list[str]:
    """One line a step: its servers write at the same time."""
    steps: dict[int, list[PartStory]] = {}
    for part in report.checkpoints:
        steps.setdefault(part.step, []).append(part)
    last = report.checkpoint_step
    failed = f", {report.checkpoints_failed} parts failed" if report.checkpoints_failed else ""
    if not steps and last is None:
        return ["Checkpoints: none"]
    heading = "Checkpoints: none is committed" if last is None else f"Checkpoints: the last is of step {last}"
    rows = [
        (
            f"step {step}",
            f"{1000 * max(part.copy_s for part in parts):.1f} ms",
            f"{max(part.write_s for part in parts):.2f} s",
            "; ".join(part.error for part in parts if part.error),
        )
        for step, parts in list(steps.items())[-SHOWN:]
    ]
    return [heading + failed, *_earlier(len(steps)), *_table(("", "steps held up", "written in", ""), rows)]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Nothing where there are no rows."""
    return [f"  {line}" for line in in_columns([head, *rows])] if rows else []
