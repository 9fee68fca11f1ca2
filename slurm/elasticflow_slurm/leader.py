"""``elasticflow lead``: inside of the leader's job, the master of a run and its supervisor.

The job may be requeued, and so come here again: then it goes on where the last leader was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from elasticflow.cli.led import settings_in_job, stem_of
from elasticflow.cli.resuming import new_program
from elasticflow.cluster.missing import check_data
from elasticflow.errors import ConfigError, RunError
from elasticflow.leading import begin, check_begun, check_resume, host, patiently
from elasticflow.process.parent import end_with_parent
from elasticflow.program.loading import parse
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob, RunDir, publish
from elasticflow_slurm import index
from elasticflow_slurm.backend import SlurmBackend, address_of, comes_again, restarts_of
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import SlurmError
from elasticflow_slurm.comments import LEADER, Comment, read
from elasticflow_slurm.config import read as read_section
from elasticflow_slurm.scripts import job_name


def lead(arguments: argparse.Namespace) -> int:
    """Returns the run's exit code: 0 finished, 1 failed, 3 stopped. Raises ConfigError, RunError."""
    job_id = leader_id(os.environ)
    end_with_parent(signal.SIGTERM)  # SLURM may not find it again when the batch script was killed
    run = _folder(arguments, job_id)
    settings = patiently(run.config)
    slurm = read_section(settings.slurm)

    def clear() -> None:
        """Not what the next leader will go on with."""
        if not comes_again(job_id):
            SlurmBackend.clear(str(run.folder))
            run.address.unlink(missing_ok=True)

    if not arguments.resume and not run.journal.exists():
        check_data(settings.data, here=not slurm.setup)
    sign = partial(_sign, run, settings, job_id)
    return host(run, settings.storage_patience_s, resume=arguments.resume, sign=sign, clear=clear)


def leader_id(environ: Mapping[str, str]) -> int:
    """The id of the job that this process is in: of a heterogeneous one, of its first component."""
    text = environ.get("SLURM_JOB_ID_HET_GROUP_0") or environ.get("SLURM_JOB_ID")
    if not text:
        raise ConfigError(
            "elasticflow lead: this is no SLURM job. It is for batch scripts, such as slurm/digits.sbatch; "
            "from a login node use 'elasticflow submit'."
        )
    return int(text)


def _folder(arguments: argparse.Namespace, job_id: int) -> RunDir:
    """The run's folder: as 'submit' has made it, or made now; a requeued job finds its own again."""
    run = RunDir(_run_dir(arguments, job_id))
    begun = _is_begun(run, job_id)
    if begun or arguments.program is None:
        patiently(lambda: check_begun(run))
    known = run.host()
    if known and begun and known.id != str(job_id) and restarts_of(os.environ):
        raise RunError(f"{run.folder}: this run goes on in job {known.id}, and not in this one any more.")
    if known and (arguments.program is None or (begun and known.id == str(job_id))):
        return run
    named = os.path.abspath(arguments.program) if arguments.program else ""
    anew = new_program(arguments)
    chosen = settings_in_job(run, arguments, named, anew, backend="slurm", run_dir=None)
    if not chosen.program_sha256:
        parse(chosen.program)
    if arguments.resume:
        check_resume(run, chosen)
    begin(run, chosen, str(job_id))
    return run


def _is_begun(run: RunDir, job_id: int) -> bool:
    """Whether this job has made the run's folder before, or may have, where it was requeued and nobody knows.

    A leader that was lost while it made it has left whose it is, at most: it is made again.
    """
    known = patiently(run.host)
    if known and known.id == str(job_id):
        return patiently(run.settings.exists)
    return index.is_of(job_id, run.folder, unless_asked=restarts_of(os.environ) > 0)


def _run_dir(arguments: argparse.Namespace, job_id: int) -> str:
    if arguments.run_dir:
        return os.path.abspath(RunDir(arguments.run_dir).folder)
    return os.path.abspath(f"runs/{stem_of(arguments)}-job{job_id}")


def _name(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_JOB_NAME_HET_GROUP_0") or environ.get("SLURM_JOB_NAME", "")


def _link_log(run: RunDir) -> None:
    """Has what this process says be found where the other logs are."""
    log = run.logs / "leader.log"
    with contextlib.suppress(OSError):
        output = Path(os.readlink("/proc/self/fd/1"))
        if output.is_file() and (log.is_symlink() or not log.exists()):  # a link may be a former job's
            log.unlink(missing_ok=True)
            log.symlink_to(output)


def _sign(run: RunDir, settings: Config, job_id: int) -> None:
    """Has the run be found by its job, and the job by its run."""
    _link_log(run)
    known = run.host()
    assert known is not None
    publish(run.job, HostJob("slurm", str(job_id), known.run))
    name = _name(os.environ) or job_name(settings, read_section(settings.slurm))
    for id in dict.fromkeys((job_id, address_of(job_id, os.environ))):  # lists show the last
        index.add(id, name, run.folder)
    comment = Comment(known.run, LEADER, str(run.folder))
    with contextlib.suppress(SlurmError):  # the run's folder tells as well
        client = choose(os.environ)
        job = client.job(job_id)
        if job and read(job.comment) != comment:
            client.set_comment(job.address, str(comment))
