"""``elasticflow status | scale | stop``: for a run that is under way."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from elasticflow.cli.asking import formatted, killed, told
from elasticflow.cli.connection import Connection, Unanswered
from elasticflow.cli.folders import find_run, find_shown
from elasticflow.cli.outside import shown
from elasticflow.cli.progress import (
    attempts,
    best_line,
    deadline_line,
    duration,
    evaluation_line,
    figures,
    start_line,
)
from elasticflow.cli.terminal import bare
from elasticflow.cli.watching import audited_line, faults_line, skipped_line
from elasticflow.cluster.presence import (
    Presence,
    how_it_ended,
    is_alive,
    presence_of,
    unknown,
    wait_until_over,
)
from elasticflow.errors import RunError
from elasticflow.process.texts import harmless
from elasticflow.run.dates import span
from elasticflow.run.folder import ENDED, FAILURES, RunDir
from elasticflow.run.telling import (
    AnyMember,
    LastStatus,
    LiveStatus,
    Report,
    Status,
    ToldMaster,
    ToldServer,
    ToldWorker,
    Untold,
)
from elasticflow.wire.messages import ScaleRequest, StopRequest


def status(arguments: argparse.Namespace) -> int:
    """Prints the status of a run; of one that is over, its report, or for scripts that it left none."""
    with told(arguments.json):
        return _status(arguments)


def _status(arguments: argparse.Namespace) -> int:
    run, outside = find_shown(arguments.run, arguments.trust)
    if outside:
        status = shown(run)
        page = _ended_text(run, status) if status.state in ENDED else as_text(status)
        print(formatted(status) if arguments.json else page)
        return 0
    presence = presence_of(run)
    if not presence.is_alive():
        if run.report.exists():
            report = run.read_report()
            assert report is not None
            print(formatted(report) if arguments.json else _ended_text(run, report))
            return 0
        run.config()  # raises, and says that this is no run
        left = killed(run, presence)
        print(formatted(left) if arguments.json else f"{run.path}: {left.state}: {left.text}")
        return 0
    if (waits := _waits_for(run, presence)) and not arguments.watch:
        print(formatted(Untold(state="waiting", text=waits)) if arguments.json else f"{run.path}: {waits}")
        return 0
    if arguments.watch:
        tell = partial(print, f"{run.path}:", file=sys.stderr)
        with Connection(run, presence, waiting=tell) as connection:
            return _watch(run, connection, arguments.json)
    with Connection(run, presence) as connection:
        status = connection.status()
        print(formatted(status) if arguments.json else as_text(status))
    return 0


def _waits_for(run: RunDir, presence: Presence) -> str:
    """What a run waits for that has no place yet, or none just now; "" if it has."""
    if not run.host() or not presence.is_alive() or presence.has_master():
        return ""
    if presence.silence():
        raise unknown(run, presence)
    return presence.waits_for()


def _watch(run: RunDir, connection: Connection, as_json: bool) -> int:
    """Shows each new status until the run is over, a line of JSON each or a page in place."""
    shown = (
        contextlib.nullcontext()
        if as_json
        else Live(console=Console(file=bare(sys.stdout), highlight=False), auto_refresh=False)
    )
    news = 0
    with shown as live:
        while True:
            status = _newer(run, connection, news)
            if status is None:
                continue
            news = max(news + 1, status.news or 0)  # another master counts anew
            if live is None:
                print(msgspec.json.encode(msgspec.structs.replace(status, news=news)).decode(), flush=True)
            else:
                live.update(Text(harmless(as_text(status))), refresh=True)
            if status.state in ENDED:
                return 0


def _newer(run: RunDir, connection: Connection, news: int) -> LiveStatus | LastStatus | None:
    """The next status; the report's, if the master has left before it answered."""
    try:
        return connection.next_status()
    except RunError:
        report = None if is_alive(run) else run.read_report()
        if report is None:
            raise
        return LastStatus(**msgspec.structs.asdict(report), news=news + 1)


GUARDED = {
    "headers": "can be read, and altered on the way",
    "arrays": "can be read, and not altered on the way",
    "all": "can neither be read nor altered on the way",
}
"""By ``Guard``."""


def as_text(status: Status) -> str:
    """A page for a person."""
    lines = [
        f"{status.run}: {status.state}, {duration(status.elapsed_s)} since the start{attempts(status)}",
        figures(status),
        f"target: {status.target_workers} workers ({status.target_reason})",
    ]
    if status.strategy_why:
        lines.append(f"strategy: {status.strategy}: {status.strategy_why}")
    if status.time_limit_s is not None:
        left_s = max(0.0, status.time_limit_s - status.elapsed_s)
        lines.append(f"time limit: {span(left_s)} of {span(status.time_limit_s)} left")
    if status.shortage:
        lines.append(f"size: {status.shortage}")
    if start := start_line(status):
        lines.append(start)
    lines += _done_so_far(status)
    if status.num_faults:
        lines.append(f"faults: {faults_line(status)}")
    if status.storage_trouble:
        lines.append(f"storage: {status.storage_trouble}")
    if status.guarded in GUARDED:
        lines.append(f"arrays between hosts: {GUARDED[status.guarded]}")
    for member in status.members:
        lines.append(
            f"  {member.name:<12} {member.state:<9} step {member.step:<8} {member.host} "
            f"pid {member.pid}{_memory(member)}{_share(member)}{_gpu(member)}{_notable(member)}"
        )
    lines += [f"  [{duration(event.time_s)}] {event.text}" for event in status.events[-8:]]
    return "\n".join(lines)


def _done_so_far(status: Status) -> Iterator[str]:
    """What has come of a run, whether it is under way or over."""
    if status.evaluation:
        yield evaluation_line(status.evaluation)
    if line := best_line(status):
        yield line
    if status.checkpoint_step is not None:
        yield f"last checkpoint: step {status.checkpoint_step}"
    if status.quarantined:
        yield f"quarantined rows: {', '.join(map(str, status.quarantined))}"
    if skipped := skipped_line(status):
        yield f"skipped: {skipped}"
    if audited := audited_line(status):
        yield f"audit: {audited}"


def _memory(member: AnyMember) -> str:
    """Of a server, once it is known what it needs, or takes any."""
    if not isinstance(member, ToldServer):
        return ""
    if most := member.memory_at_most_bytes:
        return f", {decimal(member.memory_bytes)} of at most {decimal(most)}"
    return f", {decimal(member.memory_bytes)}" if member.memory_bytes else ""


def _share(member: AnyMember) -> str:
    """Of a worker, what it has of each step."""
    if not isinstance(member, ToldWorker) or not (member.slices and member.slice_s):
        return ""
    return f", {member.slices} slices of {1000 * member.slice_s:.3g} ms"


def _gpu(member: AnyMember) -> str:
    """Of a worker that has one."""
    if not isinstance(member, ToldWorker) or (gpu := member.gpu) is None:
        return ""
    taken, total = gpu.memory_bytes, gpu.memory_total_bytes
    does = [
        f"slowed {gpu.slowed}" if gpu.slowed else "",
        "" if gpu.busy is None else f"{gpu.busy:.0%} busy",
        "" if taken is None or total is None else f"{decimal(taken)} of {decimal(total)}",
        "" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C",
        "" if gpu.clock_mhz is None else f"{gpu.clock_mhz:.0f} MHz",
    ]
    told = "; ".join(filter(None, [gpu.trouble, ", ".join(filter(None, does))]))
    return f", {gpu.name}: {told}" if told else f", {gpu.name}"


def _notable(member: AnyMember) -> str:
    """What is not so of most members."""
    refused = 0 if isinstance(member, ToldWorker) else member.refused_connections
    parts = [
        "" if isinstance(member, ToldMaster) else member.place,
        member.role if isinstance(member, ToldServer) else "",
        f"number {member.incarnation}" if isinstance(member, ToldMaster) and member.incarnation > 1 else "",
        f"{member.dropped_messages} messages dropped" if member.dropped_messages else "",
        f"{refused} connections refused" if refused else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def _ended_text(run: RunDir, report: Report | LiveStatus) -> str:
    lines = [
        f"{run.path}: {report.state}, after {duration(report.elapsed_s)}{attempts(report)}: {report.text}",
        f"step {report.step}/{report.steps_total or '?'}",
    ]
    if line := deadline_line(report):
        lines.append(line)
    lines += _done_so_far(report)
    if report.num_faults:
        lines.append(f"faults: {faults_line(report)}; see 'elasticflow report {run.path}'")
    return "\n".join(lines)


def scale(arguments: argparse.Namespace) -> int:
    """Asks a run to go on with another number of workers."""
    with Connection(find_run(arguments.run, arguments.trust)) as connection:
        connection.ask(ScaleRequest(workers=arguments.workers))
    print(f"{arguments.run}: {arguments.workers} workers asked for")
    return 0


def _wait_for_end(connection: Connection, tell: Callable[[str], None]) -> None:
    """Until the run says that it ends; tells what holds that up. Raises Unanswered if it says nothing."""
    told = ""
    try:
        while (shown := connection.next_status()) is None or shown.state not in ENDED:
            if shown and shown.storage_trouble not in ("", told):
                told = shown.storage_trouble
                tell(f"it waits for its storage: {told}")
    except Unanswered:
        raise
    except RunError:
        pass  # it is over


def _is_lost(report: Report) -> bool:
    """Whether it ended without a checkpoint of what was done last."""
    return bool(report.step) and report.checkpoint_step != report.step


def stop(arguments: argparse.Namespace) -> int:
    """Has a run commit a checkpoint and end, and waits until it has."""
    run = find_run(arguments.run, arguments.trust)
    print(f"{run.path}: {stop_run(run, lambda text: print(f'{run.path}: {text}', file=sys.stderr))}")
    return 0


def stop_run(run: RunDir, tell: Callable[[str], None] = lambda text: None) -> str:
    """As ``stop`` does; returns what has become of the run. Raises RunError if it did not stop well."""
    if told := presence_of(run).cancel():
        return told
    with Connection(run, waiting=tell) as connection:
        connection.insist(StopRequest(reason="stopped by 'elasticflow stop'"))
        _wait_for_end(connection, tell)
    wait_until_over(run)
    report = run.read_report()
    if not report or report.state in FAILURES or _is_lost(report):
        why = f": {report.text}" if report else how_it_ended(run, presence_of(run))
        raise RunError(f"{run.path}: did not stop well{why}")
    return f"{report.state}: {report.text}"


def read_status(run: RunDir) -> Report | LiveStatus | Untold:
    """What ``status --json`` prints. Raises RunError."""
    presence = presence_of(run)
    if not presence.is_alive():
        return run.read_report() or killed(run, presence)
    if waits := _waits_for(run, presence):
        return Untold(state="waiting", text=waits)
    with Connection(run) as connection:
        return connection.status()
