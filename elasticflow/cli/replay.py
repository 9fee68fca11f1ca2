"""``elasticflow replay JOURNAL``: a service's past in the simulator, and what else could have become."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from elasticflow.cli.progress import duration
from elasticflow.errors import ConfigError, RunError
from elasticflow.scheduler.checker import faults
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies import policy
from elasticflow.scheduler.schedule import JobSchedule
from elasticflow.scheduler.simulator import simulate
from elasticflow.scheduler.worlds import World
from elasticflow.service.history import DeadlineTally, ServiceHistory, happened, jobs_of, read_history
from elasticflow.service.settings import folder_of


def replay(arguments: argparse.Namespace) -> int:
    """Prints what was met, what the simulator says of the same, and of what is asked for beside it."""
    try:
        path = Path(arguments.journal)
        history = read_history(path if path.exists() else folder_of(arguments.journal))
    except OSError as error:
        raise RunError(f"{arguments.journal}: cannot be read: {error.strerror}.") from error
    jobs, unknown = jobs_of(history)
    then = history.rules
    as_then = played(history, jobs, then.policy, then.nodes)
    found = {"happened": happened(history), "simulated": _tally(as_then)}
    name, nodes = arguments.policy or then.policy, arguments.nodes or then.nodes
    shown = as_then
    if (name, nodes) != (then.policy, then.nodes):
        shown = played(history, jobs, name, nodes)
        found["instead"] = _tally(shown)
    if arguments.out:
        _draw(shown, jobs, Path(arguments.out))
    if arguments.json:
        told = {name: asdict(tally) for name, tally in found.items()}
        print(json.dumps({**told, "runs": len(history.state.tickets), "unknown": unknown}, indent=2))
        return 0
    lasts = duration(history.last_s - history.began_s)
    print(f"{len(history.state.tickets)} runs in {lasts}: {_on(history, then.policy, then.nodes)}")
    for what, tally in found.items():
        words = _on(history, name, nodes) if what == "instead" else what
        print(f"{words + ':':<11} {_words(tally)}")
    if unknown:
        print(f"left out, nothing was measured of them: {', '.join(unknown)}", file=sys.stderr)
    return 0


def played(history: ServiceHistory, jobs: list[Job], name: str, nodes: int) -> JobSchedule:
    """The same runs by this policy on so many nodes. Raises ConfigError, RunError if that cannot be."""
    if nodes < 1:
        raise ConfigError(f"--nodes {nodes}: there must be one.")
    shape, overheads = ClusterShape(nodes, history.rules.gpus_per_node), history.rules.overheads
    outages = tuple(one for one in history.outages if one.node < nodes)
    world = World(outages=outages, capacities=history.capacities)
    quotas = history.state.policy.quotas
    schedule = simulate(policy(name, shape, overheads, quotas), jobs, world)
    rates = {job.job_id: dict(zip(job.curve.sizes, job.curve.rates, strict=True)) for job in jobs}
    if found := faults(schedule, jobs, overheads, rates):
        raise RunError(f"the schedule cannot be, {len(found)} faults; the first: {found[0]}")
    return schedule


def _tally(schedule: JobSchedule) -> DeadlineTally:
    due = [one for one in schedule.outcomes if one.deadline_s is not None]
    promised = [one for one in due if one.admitted_s is not None]
    return DeadlineTally(
        len(due), len(promised), sum(one.in_time for one in due), sum(one.late for one in due)
    )


def _on(history: ServiceHistory, name: str, nodes: int) -> str:
    return f"{name} on {nodes} nodes of {history.rules.gpus_per_node}"


def _words(tally: DeadlineTally) -> str:
    return (
        f"{tally.met} of {tally.deadlines} deadlines promised and met; {tally.promised} promised, "
        f"{tally.late} late"
    )


def _draw(schedule: JobSchedule, jobs: list[Job], folder: Path) -> None:
    from elasticflow.scheduler import plots

    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in plots.all_figures(schedule, jobs).items():
        plots.save(figure, folder / f"{name}.png")
