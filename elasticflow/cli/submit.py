"""``elasticflow submit`` and ``lead``: a run on a cluster, from a login node, and inside of its own job."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path

import msgspec

from elasticflow.cli.attach import attach_to
from elasticflow.cli.folders import trust_or_check
from elasticflow.cli.train import add_settings, settings
from elasticflow.cluster.contract import load_cluster
from elasticflow.errors import ConfigError
from elasticflow.process.stamps import stamp_output
from elasticflow.program.loading import parse
from elasticflow.run.config import Config, read_file
from elasticflow.run.dates import has_fields
from elasticflow.run.folder import RunDir
from elasticflow.storage.urls import is_url

FILES = (".yaml", ".yml")


def add_submit_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``submit``."""
    what = "a file of settings (.yaml), a program (.py), or both"
    parser.add_argument("names", metavar="CONFIG|PROGRAM", nargs="*", help=what)
    add_settings(parser)
    text = "kubernetes, slurm or yarn (default: the settings' backend)"
    parser.add_argument("--on", metavar="CLUSTER", help=text)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run")
    parser.add_argument("--dry-run", action="store_true", help="print what would be submitted")
    parser.add_argument("--attach", action="store_true", help="show the run until it is over")
    text = (
        "hand it in to a service, by its name or folder, which says at once whether the deadline will be kept"
    )
    parser.add_argument("--service", metavar="NAME|DIR", help=text)
    parser.add_argument("--best-effort", action="store_true", help="with --service: there is no deadline")
    text = "with --service: runs of a lower one give way first (default: 0)"
    parser.add_argument("--priority", type=int, metavar="N", default=0, help=text)
    text = (
        "with --service and --deadline: what it is worth to be done later, such as 30m:0.8,2h:0; "
        "in between it falls evenly, from 1 at the deadline"
    )
    parser.add_argument("--soft", metavar="AFTER:VALUE,...", default="", help=text)


def add_lead_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``lead``."""
    parser.add_argument("program", metavar="PROGRAM", nargs="?")
    add_settings(parser)
    text = "kubernetes, slurm (default) or yarn"
    parser.add_argument("--on", metavar="CLUSTER", default="slurm", help=text)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint of the run")


def submit(arguments: argparse.Namespace) -> int:
    """Prints the id of the job, and nothing else, on stdout."""
    others = arguments.resume or arguments.on or arguments.dry_run or arguments.attach
    if arguments.service and others:  # before anything else: to go on by a URL takes checkpoints over
        raise ConfigError("--service: not together with --resume, --on, --dry-run or --attach.")
    chosen = _chosen(arguments)
    if arguments.service:
        from elasticflow.cli.serve import hand_in

        return hand_in(arguments, chosen)
    if arguments.best_effort or arguments.priority or arguments.soft:
        raise ConfigError("--best-effort, --priority and --soft: are for a service; name it by --service.")
    cluster = load_cluster(chosen.backend, "submit")
    if arguments.dry_run:
        print(cluster.dry_run(chosen, arguments.resume), end="")
        return 0
    job, folder = cluster.submit(chosen, arguments.resume)
    print(job, flush=True)
    if arguments.attach:
        return attach_to(RunDir(folder))
    print(f"run: {folder}; 'elasticflow status {job}' tells how it goes", file=sys.stderr)
    return 0


def _chosen(arguments: argparse.Namespace) -> Config:
    """The run's settings. Raises ConfigError, ProgramError."""
    files = [name for name in arguments.names if Path(name).suffix in FILES]
    programs = [name for name in arguments.names if name not in files]
    files += [arguments.config] if arguments.config else []
    if len(files) > 1 or len(programs) > 1:
        named = " ".join((*programs, *files))
        raise ConfigError(f"{named}: name one file of settings, one program, or one of each.")
    arguments.config, arguments.program = next(iter(files), None), next(iter(programs), None)
    _become(arguments.config, arguments.on)
    arguments.preflight = partial(_preflight, arguments.on)
    chosen = settings(arguments)
    # Otherwise it is named as in the containers that have it, or the run has a copy.
    if os.path.isabs(chosen.program) and not chosen.program_sha256:
        parse(chosen.program)
    return msgspec.structs.replace(chosen, backend=arguments.on or chosen.backend)


def _preflight(cluster: str | None, chosen: Config) -> None:
    """Raises an error if the run could not begin, or the cluster would not take it."""
    parse(chosen.program)
    chosen = msgspec.structs.replace(chosen, backend=cluster or chosen.backend)
    load_cluster(chosen.backend, "submit").preflight(chosen)


def _become(file: str | None, cluster: str | None) -> None:
    """Whoever the settings say one is to the cluster, before anything is looked for there."""
    given = read_file(file) if file else {}
    section = given.get("yarn")
    if (cluster or given.get("backend")) == "yarn" and isinstance(section, dict) and section.get("user"):
        load_cluster("yarn", "submit").become(section)


def lead(arguments: argparse.Namespace) -> int:
    """Is the master of a run, until it is over; returns its exit code."""
    stamp_output()  # into the leader's log
    if has_fields(arguments.run_dir or ""):
        raise ConfigError(
            f"run_dir: {arguments.run_dir!r}: in a job there can be no braces in it, since a job that is "
            "started again on another day has to find it again; name the folder, or use 'elasticflow submit'."
        )
    if is_url(arguments.run_dir or "") and arguments.on != "yarn":
        _place(arguments)
    # On Kubernetes a leader comes again with the same words, so these say nothing of whether it begins.
    begins = arguments.program and arguments.on != "kubernetes"
    if begins and arguments.run_dir:  # a job that 'submit' made is in a folder that it looked at
        trust_or_check(RunDir(arguments.run_dir), arguments.trust)
    if begins and not arguments.resume:
        parse(arguments.program)
    code: int = load_cluster(arguments.on, "leader").lead(arguments)
    return code


def _place(arguments: argparse.Namespace) -> None:
    """Has a run that is named by a URL have its folder here, see ``cli.by_url``."""
    chosen = settings(arguments)
    arguments.run_dir, arguments.checkpoint_dir = chosen.run_dir, chosen.checkpoint_dir


def operate(arguments: argparse.Namespace) -> int:
    """Is the controller of a namespace's ElasticFlowJobs, until it is ended."""
    stamp_output(process="controller")
    code: int = load_cluster("kubernetes", "operator").operate(arguments.config)
    return code
