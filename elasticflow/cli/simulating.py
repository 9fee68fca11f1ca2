"""Simulates a trace of jobs as the command line says: what ``elasticflow simulate`` does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticflow.errors import ConfigError, RunError
from elasticflow.scheduler.checker import faults
from elasticflow.scheduler.cluster import ClusterShape, shape_of
from elasticflow.scheduler.fairness import Quotas, read_quotas
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.metrics import metrics
from elasticflow.scheduler.overheads import Overheads, published
from elasticflow.scheduler.policies import policy
from elasticflow.scheduler.schedule import JobSchedule, Outage
from elasticflow.scheduler.simulator import simulate as run
from elasticflow.scheduler.traces import find_profiles, read_profiles, read_shape, read_trace
from elasticflow.scheduler.worlds import DAY_S, World, random_outages, random_slowness, wrong_profiles


def simulate(arguments: argparse.Namespace) -> int:
    """Simulates, checks the schedule, writes and prints its figures."""
    profiles = read_profiles(arguments.profiles) if arguments.profiles else find_profiles(arguments.trace)
    jobs = read_trace(arguments.trace, profiles)
    shape = read_shape(arguments.shape) if arguments.shape else _shape(arguments)
    world = _world(arguments, shape, jobs)
    quotas = read_quotas(arguments.quotas) if arguments.quotas else Quotas()
    overheads = _overheads(arguments.overheads) if arguments.overheads else published(shape.num_gpus)
    schedule = run(policy(arguments.policy, shape, overheads, quotas), jobs, world)
    _check(schedule, jobs, world, overheads)
    figures = metrics(schedule)
    if arguments.out:
        _write(schedule, jobs, figures, Path(arguments.out))
    print(json.dumps(figures, indent=2) if arguments.json else "\n".join(_summary(figures)))
    return 0


def _shape(arguments: argparse.Namespace) -> ClusterShape:
    return shape_of(arguments.gpus, arguments.gpus_per_node)


def _world(arguments: argparse.Namespace, shape: ClusterShape, jobs: Sequence[Job]) -> World:
    """What is true beyond the profiles. Raises ConfigError for what makes no sense."""
    error, slow, seed = arguments.profile_error, arguments.slow, arguments.seed
    if not 0 <= error < 1 or not 0 <= slow < 1:
        raise ConfigError(f"--profile-error {error:g}, --slow {slow:g}: each is a part, from 0 to below 1")
    if not jobs:
        return World()
    outages: tuple[Outage, ...] = ()
    if arguments.mtbf_days is not None:
        if arguments.mtbf_days <= 0 or arguments.repair_s <= 0:
            raise ConfigError("--mtbf-days and --repair-s must be above 0")
        outages = random_outages(shape, jobs, arguments.mtbf_days * DAY_S, arguments.repair_s, seed)
    return World(
        curves=wrong_profiles(jobs, error, seed) if error else {},
        outages=outages,
        slow=random_slowness(shape, jobs, slow, 0.7, 7200.0, seed) if slow else (),
    )


def _overheads(path: str) -> Overheads:
    """What was measured. Raises ConfigError for a file of another kind."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))["overheads"]
        return Overheads(**{name: float(value) for name, value in found.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: holds no overheads ({error}); give a file of 'elasticflow profile'"
        ) from None


def _check(schedule: JobSchedule, jobs: Sequence[Job], world: World, overheads: Overheads) -> None:
    """Raises RunError if the schedule could not be: a fault of the policy or of the simulator."""
    rates = {}
    for job in jobs:
        true = world.true_curve(job)
        rates[job.job_id] = dict(zip(true.sizes, true.rates, strict=True))
    found = faults(schedule, jobs, overheads, rates)
    if found:
        raise RunError(f"the schedule cannot be, {len(found)} faults; the first: {found[0]}")


def _write(schedule: JobSchedule, jobs: Sequence[Job], figures: dict[str, Any], folder: Path) -> None:
    from elasticflow.scheduler import plots

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    for name, figure in plots.all_figures(schedule, jobs).items():
        plots.save(figure, folder / f"{name}.png")


def _summary(figures: dict[str, Any]) -> list[str]:
    """A few lines for a person."""
    ratio, used = figures["satisfactory_ratio"], figures["utilisation"]
    in_time, all_ = figures["in_time"], figures["deadline_jobs"]
    took = figures["decision_s"] or {"p99": 0.0}
    return [
        f"{figures['policy']} on {figures['num_gpus']} GPUs",
        f"deadlines   {in_time} of {all_} met" + ("" if ratio is None else f" ({ratio:.4f})"),
        f"promised    {figures['admitted']}, {figures['admitted_on_arrival']} of them on arrival; "
        f"{figures['admitted_and_late']} late",
        f"utilisation {0.0 if used is None else used:.3f}; {figures['resizes']} resizes, "
        f"{figures['migrations']} migrations",
        f"decisions   {figures['decisions']}, p99 {took['p99'] * 1000:.1f} ms",
    ]
