"""``elasticflow submit --on slurm``: checks what can be checked here, and submits the leader's job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from elasticflow.cli.folders import next_run_dir
from elasticflow.cluster.missing import check_data
from elasticflow.errors import ConfigError, RunError
from elasticflow.leading import begin, in_new_folder, submission
from elasticflow.program.folder import copy_folder, is_left_out
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, publish
from elasticflow.run.settings import MemberSettings
from elasticflow_slurm import index
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import (
    JobRequest,
    LimitReached,
    PlaceClosed,
    SlurmError,
    SlurmNode,
    SlurmRefused,
)
from elasticflow_slurm.command_line import SlurmClient
from elasticflow_slurm.comments import cancel_jobs
from elasticflow_slurm.config import PlaceConfig, SlurmConfig, read
from elasticflow_slurm.limits import objection
from elasticflow_slurm.scripts import (
    directives,
    job_name,
    leader_components,
    leader_script,
    worker_request,
)

_ASKED = {
    "leader": ("nodes", "ntasks-per-node", "cpus-per-task", "mem", "time"),
    "workers": ("gres", "cpus-per-task", "mem", "time", "time-min"),
}
"""Options that a place may refuse."""
_NO_NODE = "Requested node configuration is not available"
"""SLURM's words for what no node of a place has; of an estimate, for what none has that is up and free."""


def dry_run(chosen: Config, resume: bool) -> str:
    """What would be submitted: the leader's script, and, as a comment, a worker's."""
    slurm = read(chosen.slurm)
    run_dir = os.path.abspath(RunDir(chosen.run_dir or next_run_dir(chosen)).folder)
    leader = leader_script(chosen, slurm, "RUN", run_dir, resume)
    request = worker_request(chosen, slurm, "RUN", _sample(chosen, run_dir), slurm.workers[0], ())
    places = "; then ".join(map(str, slurm.workers))
    worker = [*directives(request.options), *request.script.splitlines()[1:]]
    head = f"Each worker is a job of its own, which the leader submits, in {places}:"
    return "\n".join([leader, *(f"# {line}".rstrip() for line in (head, "", *worker))]) + "\n"


def submit(chosen: Config, resume: bool) -> tuple[int, Path]:
    """Submits a run; returns its job's id, and its folder.

    Raises ConfigError, RunError; nothing is left behind then.
    """
    return in_new_folder(partial(_submit, resume=resume), chosen, partial(next_run_dir, chosen))


def preflight(chosen: Config) -> None:
    """Changes nothing. Raises ConfigError, RunError where a run with such settings would not be taken."""
    _preflight(choose(os.environ), chosen, read(chosen.slurm), os.path.abspath(chosen.run_dir))


def _preflight(client: SlurmClient, chosen: Config, slurm: SlurmConfig, run_dir: str) -> None:
    check_data(chosen.data, here=not slurm.setup)  # which may bring them to the nodes
    _check_places(client, chosen, slurm, run_dir)
    if too_long := objection(slurm, client.partitions()):
        raise ConfigError(too_long)


def _submit(chosen: Config, resume: bool) -> tuple[int, Path]:
    """See ``submit``."""
    slurm = read(chosen.slurm)
    client = choose(os.environ)
    with submission(chosen, resume, partial(_withdraw, client)) as run:
        _preflight(client, chosen, slurm, str(run.folder))
        chosen = _ship(run, chosen) if slurm.ship and not (resume and _has(run, chosen)) else chosen
        begin(run, chosen, UNKNOWN)
        host = run.host()
        assert host is not None
        script = leader_script(chosen, slurm, host.run, str(run.folder), resume)
        job_id = client.submit(JobRequest(script=script, options={"chdir": os.getcwd()}))
        publish(run.job, HostJob("slurm", str(job_id), host.run))
    index.add(job_id, job_name(chosen, slurm), run.folder)
    return job_id, run.folder


def _withdraw(client: SlurmClient, run: str) -> None:
    """Ends all jobs of a run: the leader's too, which SLURM may have taken, or queued again, unheard."""
    with contextlib.suppress(SlurmError):
        cancel_jobs(client, run)


def _check_places(client: SlurmClient, chosen: Config, slurm: SlurmConfig, run_dir: str) -> None:
    """Raises ConfigError with SLURM's own words where a place would never take what is to run there.

    Of what will pass the leader's place alone is told of: workers may wait, or run elsewhere.
    """
    masters = leader_components(chosen, slurm, "RUN", run_dir)
    asked = [
        ("leader", what, slurm.leader, JobRequest(script="#!/bin/bash\n", options=options))
        for what, options in zip(("master", "parameter servers"), masters, strict=False)
    ]
    _check_nodes(client, slurm.leader, masters)
    sample = _sample(chosen, run_dir)
    asked += [
        ("workers", "worker", place, worker_request(chosen, slurm, "RUN", sample, place, ()))
        for place in slurm.workers
    ]
    for key, what, place, request in asked:
        try:
            with contextlib.suppress(LimitReached):  # it will pass
                client.would_start_at(request)
        except PlaceClosed as error:
            if key == "leader":
                advice = "Submit it again once it does, or name another place."
                raise PlaceClosed(
                    f"slurm.leader: {place} takes no jobs just now: {error} {advice}"
                ) from error
        except SlurmRefused as error:
            gpus = (slurm.gpu_type, slurm.gpus) if key == "workers" else ("", 0)
            if _NO_NODE in str(error) and _are_away(client, place, *gpus):
                continue
            told = {name: request.options[name] for name in _ASKED[key] if name in request.options}
            wanted = " ".join(f"--{name}={value}" for name, value in told.items())
            raise ConfigError(f"slurm.{key}: SLURM takes no {what} in {place} ({wanted}): {error}") from error


def _are_away(client: SlurmClient, place: PlaceConfig, gpu_type: str, gpus: int) -> bool:
    """Whether nodes of the place with such GPUs are down, drained or reserved: a job may wait for them.

    So it may for those that a controller that has just started has not heard of yet.
    """
    kept = {name for each in client.reservations() if each.name != place.reservation for name in each.nodes}
    return any(
        node.num_gpus(gpu_type) >= gpus
        and (node.name in kept or node.doubtful or bool(node.away(reserved=bool(place.reservation))))
        for node in _nodes_of(client, place)
    )


def _check_nodes(client: SlurmClient, place: PlaceConfig, components: Sequence[Mapping[str, str]]) -> None:
    """Raises ConfigError where the leader's components would never have nodes of their own."""
    needed = sum(int(options["nodes"]) for options in components)
    if needed == 1:
        return
    names = {node.name for node in _nodes_of(client, place)}
    if place.reservation:
        own = [each for each in client.reservations() if each.name == place.reservation]
        if own and not own[0].is_flexible:
            names &= set(own[0].nodes)
    if 0 < len(names) < needed:
        raise ConfigError(
            f"slurm.leader: {place} has {', '.join(sorted(names))} alone, and the leader needs {needed} "
            "nodes: SLURM starts its master and its parameter servers on nodes of their own; it would "
            "wait for ever. Name another place, or fewer slurm.server_nodes; or set strategy: all_reduce, "
            "which needs no servers."
        )


def _nodes_of(client: SlurmClient, place: PlaceConfig) -> list[SlurmNode]:
    """Those of its partitions, whoever has them."""
    default = [each.name for each in client.partitions() if each.is_default]
    names = place.partition.split(",") if place.partition else default
    return [node for node in client.nodes() if node.partition in names]


def _sample(chosen: Config, run_dir: str) -> MemberSettings:
    """Of a first worker, but for where its master will be."""
    host = read(chosen.slurm).host
    return MemberSettings.of(
        chosen, name="worker-1", role="worker", host=host, master="tcp://MASTER", run_dir=run_dir
    )


def _ship(run: RunDir, chosen: Config) -> Config:
    """Copies the program's folder into the run's; returns settings that name the copy.

    So all workers of the run, now and later, run the same program, and need not see its folder.
    """
    folder = Path(chosen.program).parent
    inside = run.folder.is_relative_to(folder)
    if inside and not any(map(is_left_out, run.folder.relative_to(folder).parts)):
        raise ConfigError(
            f"slurm.ship: the run's folder {run.folder} is in the program's, {folder}, which would be copied "
            "into itself; choose a --run-dir elsewhere, or below runs/."
        )
    shipped = run.folder / "shipped"
    try:
        copy_folder(folder, shipped)
    except OSError as error:
        raise RunError(f"slurm.ship: {error.filename}: cannot be copied: {error.strerror}.") from error
    return msgspec.structs.replace(chosen, program=str(shipped / Path(chosen.program).name))


def _has(run: RunDir, chosen: Config) -> bool:
    """Whether a run that goes on has its program with it; another may have been named."""
    return bool(chosen.program_sha256) or Path(chosen.program).parent == run.folder / "shipped"
