"""``elasticflow serve``, and what people do with a service: hand in, look, cancel."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from elasticflow.cli.asking import formatted
from elasticflow.cli.columns import in_columns
from elasticflow.cli.train import TrainFolder, make_folder
from elasticflow.cluster.contract import CLUSTERS
from elasticflow.cluster.folder import FolderBefore
from elasticflow.cluster.share import load_share
from elasticflow.errors import ConfigError, RunError, UnknownError
from elasticflow.master.measuring import metrics_command
from elasticflow.process.ending import letting_go
from elasticflow.process.packages import require
from elasticflow.process.retry import is_full
from elasticflow.process.stamps import stamp_output
from elasticflow.process.texts import clock_time, with_clock_times
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.scheduler.values import checked
from elasticflow.service import talk
from elasticflow.service.server import serve as serve_until_ended
from elasticflow.service.settings import ServiceConfig, folder_of, read_service_config
from elasticflow.storage.urls import is_url

GIVEN_BACK_S = 0.05
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@letting_go()
def serve(arguments: argparse.Namespace) -> int:
    """Grants workers to runs until it is ended; they go on without it."""
    config = read_service_config(arguments.config) if arguments.config else ServiceConfig()
    if (arguments.node is not None) != (arguments.down or arguments.up):
        raise ConfigError("a node is taken away by --node N --down, and given back by --node N --up.")
    if arguments.node is not None:
        answer = talk.ask(folder_of(config.folder), talk.MarkNode(node=arguments.node, up=arguments.up))
        print(f"{answer.capacity} workers")
        return 0
    if arguments.share is not None:
        return _share(folder_of(config.folder), arguments.share)
    stamp_output(process="service")
    measuring = _begin_metrics(config) if config.metrics_port else None
    try:
        serve_until_ended(config)
    except OSError as error:
        where = folder_of(config.folder)
        raise RunError(
            f"{where}: the service cannot go on: {error}. Its runs do, as they were granted.{_advice(error)}"
        ) from error
    except KeyboardInterrupt:
        return 130
    finally:
        if measuring:
            measuring.kill()
            measuring.wait()
    return 0


def _advice(error: OSError) -> str:
    """What to do where there is no room; "": it is something else."""
    text = " Make room there, or have its quota raised; then begin it again: it knows all that was."
    return text if is_full(error) else ""


def _begin_metrics(config: ServiceConfig) -> subprocess.Popen[bytes]:
    """The process that tells Prometheus of this service; it ends with this one. Raises ConfigError."""
    require("prometheus_client", "metrics_port", "metrics")
    command = metrics_command(config, "--service", str(folder_of(config.folder)))
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


def _share(service: Path, text: str) -> int:
    """Others need what is above so many workers; waits until they may have it."""
    if text != "all" and not text.isdecimal():
        raise ConfigError(f"--share {text}: has to be a number of workers, or all.")
    answer = talk.ask(service, talk.SetShare(workers=None if text == "all" else int(text)))
    while sum(task.held for task in answer.tasks) > answer.capacity:
        time.sleep(GIVEN_BACK_S)  # it is asked until they have left
        answer = talk.ask(service, talk.ListTasks())
    print(f"{answer.capacity} workers")
    return 0


def hand_in(arguments: argparse.Namespace, chosen: Config) -> int:
    """Hands a run to a service; prints its name there on stdout, and what was promised on stderr."""
    if not chosen.deadline and not arguments.best_effort:
        raise ConfigError(
            "a service has to know when the run should be done: --deadline 06:00, or +8h; or --best-effort."
        )
    if chosen.deadline and arguments.best_effort:
        raise ConfigError("--best-effort: is for runs without a deadline; leave one of both out.")
    if arguments.soft and arguments.best_effort:
        raise ConfigError("--soft: says what a deadline is worth; leave it out, or --best-effort.")
    if abs(arguments.priority) > talk.MOST_PRIORITY:
        allowed = f"{-talk.MOST_PRIORITY} to {talk.MOST_PRIORITY}"
        raise ConfigError(f"--priority: is {arguments.priority}; it is a whole number from {allowed}.")
    soft = read_soft(arguments.soft) if arguments.soft else []
    most = chosen.worker_range[1] if arguments.workers else 0
    service = folder_of(arguments.service)
    task = taken_in(service, chosen, most, priority=arguments.priority, soft=soft)
    print(task.name, flush=True)
    print(f"{_said(task)}\nrun: {task.run}", file=sys.stderr)
    return 0


def taken_in(
    service: Path, chosen: Config, most: int, *, priority: int = 0, soft: Sequence[tuple[float, float]] = ()
) -> talk.ToldTask:
    """The run as a service knows it from now on. most: workers; 0: as many as there are. Raises RunError."""
    folder = _made(chosen, talk.insist(service, talk.ListTasks(under_way=False, over=0)))
    try:
        return handed_over(service, folder.run, chosen, most, priority=priority, soft=soft)
    except UnknownError:
        raise  # it may have been taken in
    except RunError:
        folder.put_back()
        raise


def handed_over(
    service: Path,
    run: RunDir,
    chosen: Config,
    most: int,
    *,
    priority: int = 0,
    soft: Sequence[tuple[float, float]] = (),
) -> talk.ToldTask:
    """The same, of a run whose folder is there. Raises RunError also if it is refused."""
    question = talk.HandIn(
        run_dir=str(path.resolve() if isinstance(path := run.path, Path) else path),
        deadline_s=chosen.deadline_at,
        priority=priority,
        soft=list(soft),
        most_workers=most,
    )
    (task,) = talk.insist(service, question).tasks
    if task.standing == "refused":
        raise RunError(f"{_said(task)}.")
    return task


def read_soft(text: str) -> list[tuple[float, float]]:
    """From AFTER:VALUE,...; raises ConfigError."""
    found = []
    for each in text.split(","):
        after, _, value = each.strip().partition(":")
        unit_s = UNITS_S.get(after[-1:], 1.0)
        try:
            found.append((float(after.rstrip("".join(UNITS_S))) * unit_s, float(value)))
        except ValueError as error:
            raise ConfigError(
                f"--soft {text}: {each!r} is no AFTER:VALUE, such as 30m:0.8 (units: {', '.join(UNITS_S)})."
            ) from error
    return list(checked(found))


def _made(chosen: Config, service: talk.ServiceAnswer) -> TrainFolder | FolderBefore:
    """The folder of a run that such a service is to have done: where, and with how many workers, it says."""
    cluster = service.cluster
    granted = msgspec.structs.replace(chosen, backend=cluster, workers="1", least_gain=0.0)
    if granted.run_dir and not is_url(granted.run_dir):
        granted = msgspec.structs.replace(granted, run_dir=os.path.abspath(granted.run_dir))
    made = None
    if cluster in CLUSTERS:
        share = load_share(cluster, service.section)
        own = {cluster: share.section_of(getattr(granted, cluster))}
        granted = msgspec.structs.replace(granted, **own)
        made = share.make_folder(granted)
    return made or make_folder(granted, resume=False)


def cancel(arguments: argparse.Namespace) -> int:
    """Has a task end with a checkpoint."""
    (task,) = talk.ask(folder_of(arguments.service), talk.Cancel(name=arguments.task)).tasks
    print(
        f"{task.name}: {task.standing}{f', {task.state}' if task.state else ''}; its folder stays: {task.run}"
    )
    return 0


def list_tasks(arguments: argparse.Namespace) -> int:
    """Prints one line a task, those that are under way first."""
    most = max(0, arguments.last)
    answer = talk.ask(folder_of(arguments.service), talk.ListTasks(over=most))
    if arguments.json:
        print(formatted(answer))
        return 0
    if arguments.plan is not None:
        from elasticflow.cli.forecasting import show_plan

        show_plan(answer, arguments.plan)
        return 0
    tasks = sorted(answer.tasks, key=lambda task: (task.ended_at is not None, -task.handed_at))
    cells: list[tuple[str, ...]] = [("job", "standing", "workers", "step", "deadline", "eta", "why")]
    cells += [_cells(task) for task in tasks[:most]]
    print(*in_columns(cells), sep="\n")
    used = sum(task.held for task in answer.tasks)
    print(f"{used} of {answer.capacity} workers are in use; service of term {answer.term}")
    for node, why in answer.away.items():
        print(f"node {node}: {why or 'is not used'}")
    return 0


def _cells(task: talk.ToldTask) -> tuple[str, ...]:
    is_over = task.ended_at is not None
    return (
        task.name,
        task.state or task.standing,
        "" if is_over else f"{task.workers}{f' ({task.held} held)' if task.held > task.workers else ''}",
        f"{task.step}/{task.steps or '?'}",
        clock_time(task.deadline_at),
        clock_time(task.ended_at if is_over else task.eta_at),
        with_clock_times(task.said if is_over or not task.why else task.why),
    )


def _said(task: talk.ToldTask) -> str:
    """What a person is told of a deadline."""
    by, said = clock_time(task.by_at or task.deadline_at), with_clock_times(task.said)
    eta = f"; by its plan done at {clock_time(task.eta_at)}" if task.eta_at else ""
    earliest = (
        f"not before {clock_time(task.earliest_at)}"
        if task.earliest_at
        else "nobody can say when it would be done"
    )
    return {
        "promised": f"promised: done by {by} ({said}){eta}",
        "hopeful": f"hopeful, {by} is not promised yet: {said}{eta}",
        "unmeasured": f"{'not promised yet' if task.deadline_at else 'best effort'}: it {said}",
        "best effort": f"best effort: it gets what no deadline needs{eta}",
        "late": f"{earliest}: {said}; it runs as best effort",
        "refused": f"{earliest}: {said}; hand it in with a later --deadline, or with --best-effort",
    }.get(task.standing, f"{task.standing}: {said}")
