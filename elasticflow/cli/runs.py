"""``elasticflow status | scale | stop``: for a run that is under way."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.text import Text

from elasticflow.cli.connection import Connection, Unanswered
from elasticflow.cli.folders import find_run, find_shown
from elasticflow.cli.outside import shown
from elasticflow.cli.progress import attempts, deadline_line, duration, evaluation_line, figures
from elasticflow.cli.terminal import bare
from elasticflow.cli.watching import faults_line, skipped_line
from elasticflow.cluster.presence import (
    Presence,
    how_it_ended,
    is_alive,
    presence_of,
    wait_for_master,
    wait_until_over,
)
from elasticflow.errors import RunError
from elasticflow.process.texts import as_json, harmless
from elasticflow.run.dates import span
from elasticflow.run.folder import ENDED, FAILURES, RunDir
from elasticflow.wire.messages import ScaleRequest, StatusRequest, StopRequest


def status(arguments: argparse.Namespace) -> int:
    """Prints the status of a run; of one that is over, its report, or for scripts that it left none."""
    run, outside = find_shown(arguments.run, arguments.trust)
    if outside:
        status = shown(run)
        page = _ended_text(run, status) if status["state"] in ENDED else as_text(status)
        print(_as_json(status) if arguments.json else page)
        return 0
    presence = presence_of(run)
    if not presence.is_alive():
        if run.report.exists():
            report = run.read_report()
            assert report is not None
            print(_as_json(report) if arguments.json else _ended_text(run, report))
            return 0
        if run.settings.exists() and arguments.json:
            how = how_it_ended(run, presence)
            print(_as_json({"state": "killed", "text": f"this run is over{how}"}))
            return 0
    if (waits := _waits_for(run, presence)) and not arguments.watch:
        print(_as_json({"state": "waiting", "text": waits}) if arguments.json else f"{run.path}: {waits}")
        return 0
    if waits:
        wait_for_master(run, lambda text: print(f"{run.path}: {text}", file=sys.stderr))
    with Connection(run) as connection:
        if arguments.watch:
            return _watch(run, connection, arguments.json)
        answer = connection.ask(StatusRequest())
        assert answer.status is not None
        print(_as_json(answer.status) if arguments.json else as_text(answer.status))
    return 0


def _waits_for(run: RunDir, presence: Presence) -> str:
    """What a run waits for that has no place yet, or none just now; "" if it has."""
    return presence.waits_for() if run.host() and presence.is_alive() and not presence.has_master() else ""


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
            news = max(news + 1, status["news"])  # another master counts anew
            if live is None:
                print(msgspec.json.encode({**status, "news": news}).decode(), flush=True)
            else:
                live.update(Text(harmless(as_text(status))), refresh=True)
            if status["state"] in ENDED:
                return 0


def _newer(run: RunDir, connection: Connection, news: int) -> dict[str, Any] | None:
    """The next status; the report's, if the master has left before it answered."""
    try:
        return connection.next_status()
    except RunError:
        report = None if is_alive(run) else run.read_report()
        if report is None:
            raise
        return {**report, "news": news + 1}


def _as_json(value: Mapping[str, Any]) -> str:
    return msgspec.json.format(as_json(value)).decode()


def as_text(status: Mapping[str, Any]) -> str:
    """A page for a person."""
    lines = [
        f"{status['run']}: {status['state']}, {duration(status['elapsed_s'])} since the start"
        f"{attempts(status)}",
        figures(status),
        f"target: {status['target_workers']} workers ({status['target_reason']})",
    ]
    if status["time_limit_s"] is not None:
        left_s = max(0.0, status["time_limit_s"] - status["elapsed_s"])
        lines.append(f"time limit: {span(left_s)} of {span(status['time_limit_s'])} left")
    if status["shortage"]:
        lines.append(f"size: {status['shortage']}")
    if status["evaluation"]:
        lines.append(evaluation_line(status["evaluation"]))
    if status["checkpoint_step"] is not None:
        lines.append(f"last checkpoint: step {status['checkpoint_step']}")
    if status["quarantined"]:
        lines.append(f"quarantined rows: {', '.join(map(str, status['quarantined']))}")
    if skipped := skipped_line(status):
        lines.append(f"skipped: {skipped}")
    if status["num_faults"]:
        lines.append(f"faults: {faults_line(status)}")
    if status["storage_trouble"]:
        lines.append(f"storage: {status['storage_trouble']}")
    for member in (status["master"], *status["servers"], *status["workers"]):
        lines.append(
            f"  {member['name']:<12} {member['state']:<9} step {member['step']:<8} {member['host']} "
            f"pid {member['pid']}{_memory(member)}{_share(member)}{_notable(member)}"
        )
    lines += [f"  [{duration(event['time_s'])}] {event['text']}" for event in status["events"][-8:]]
    return "\n".join(lines)


def _memory(member: Mapping[str, Any]) -> str:
    """Of a server, once it is known what it needs."""
    most = member.get("memory_at_most_bytes")
    return f", {decimal(member['memory_bytes'])} of at most {decimal(most)}" if most else ""


def _share(member: Mapping[str, Any]) -> str:
    """Of a worker, what it has of each step."""
    slices, slice_s = member.get("slices", 0), member.get("slice_s", 0.0)
    return f", {slices} slices of {1000 * slice_s:.3g} ms" if slices and slice_s else ""


def _notable(member: Mapping[str, Any]) -> str:
    """What is not so of most members."""
    parts = [
        member.get("place", ""),
        "stands by" if member.get("standby") else "",
        f"number {member['incarnation']}" if member.get("incarnation", 1) > 1 else "",
        f"{member['dropped_messages']} messages dropped" if member["dropped_messages"] else "",
        f"{member['refused_connections']} connections refused" if member.get("refused_connections") else "",
    ]
    return "".join(f", {part}" for part in parts if part)


def _ended_text(run: RunDir, report: Mapping[str, Any]) -> str:
    lines = [
        f"{run.path}: {report['state']}, after {duration(report['elapsed_s'])}{attempts(report)}: "
        f"{report['text']}",
        f"step {report['step']}/{report['steps_total'] or '?'}",
    ]
    if line := deadline_line(report):
        lines.append(line)
    if report["evaluation"]:
        lines.append(evaluation_line(report["evaluation"]))
    if report["checkpoint_step"] is not None:
        lines.append(f"last checkpoint: step {report['checkpoint_step']}")
    if report["quarantined"]:
        lines.append(f"quarantined rows: {', '.join(map(str, report['quarantined']))}")
    if skipped := skipped_line(report):
        lines.append(f"skipped: {skipped}")
    if report["num_faults"]:
        lines.append(f"faults: {faults_line(report)}; see 'elasticflow report {run.path}'")
    return "\n".join(lines)


def scale(arguments: argparse.Namespace) -> int:
    """Asks a run to go on with another number of workers."""
    with Connection(find_run(arguments.run, arguments.trust)) as connection:
        connection.ask(ScaleRequest(workers=arguments.workers))
    print(f"{arguments.run}: {arguments.workers} workers asked for")
    return 0


def _wait_for_end(connection: Connection) -> None:
    """Until the run says that it ends. Raises Unanswered if it says nothing at all."""
    try:
        while (shown := connection.next_status()) is None or shown["state"] not in ENDED:
            pass
    except Unanswered:
        raise
    except RunError:
        pass  # it is over


def stop(arguments: argparse.Namespace) -> int:
    """Has a run commit a checkpoint and end, and waits until it has."""
    run = find_run(arguments.run, arguments.trust)
    if told := presence_of(run).cancel():
        print(f"{run.path}: {told}")
        return 0
    wait_for_master(run, lambda text: print(f"{run.path}: {text}", file=sys.stderr))
    with Connection(run) as connection:
        connection.insist(StopRequest(reason="stopped by 'elasticflow stop'"))
        _wait_for_end(connection)
    wait_until_over(run)
    report = run.read_report()
    if not report or report["state"] in FAILURES:
        raise RunError(f"{run.path}: did not stop well: {report['text'] if report else 'it left no report'}")
    print(f"{run.path}: {report['state']}: {report['text']}")
    return 0
