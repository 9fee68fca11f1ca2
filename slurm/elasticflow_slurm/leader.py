"""``elasticflow lead``: inside of the leader's job, the master of a run and its supervisor.

The job may be requeued, and so come here again: then it goes on where the last leader was.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from elasticflow import config
from elasticflow.cli.train import OPTIONS
from elasticflow.config import Config
from elasticflow.errors import ConfigError, ElasticFlowError, RunError
from elasticflow.fingerprint import one_thread
from elasticflow.master.fence import Superseded, claim, newest
from elasticflow.master.log import say
from elasticflow.master.supervisor import CRASHED, SUPERSEDED, Supervisor
from elasticflow.program import parse
from elasticflow.retry import Backoff, is_curable
from elasticflow.run_dir import EXIT_CODES, Job, RunDir, publish
from elasticflow.storage import DirectoryStorage
from elasticflow_slurm import index
from elasticflow_slurm.backend import SlurmBackend, comes_again
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import SlurmError
from elasticflow_slurm.comments import LEADER, Comment, read
from elasticflow_slurm.config import read as read_section
from elasticflow_slurm.scripts import job_name
from elasticflow_slurm.submit import begin, check_resume

T = TypeVar("T")
STORAGE_S = 15.0
"""After so long a master that could not read the run's folder is followed by another."""
_PR_SET_PDEATHSIG = 1


def lead(arguments: argparse.Namespace) -> int:
    """Returns the run's exit code: 0 finished, 1 failed, 3 stopped. Raises ConfigError, RunError."""
    job_id = leader_id(os.environ)
    _end_with_parent(signal.SIGTERM)  # SLURM may not find it again when the batch script was killed
    run = _folder(arguments, job_id)
    settings = _patiently(run.config)
    read_section(settings.slurm)
    again = run.journal.exists()
    term = _patiently(lambda: claim(DirectoryStorage(run.path)))
    _patiently(lambda: _sign(run, settings, job_id))
    with one_thread():
        from elasticflow.master.server import serve

    def master(again: bool) -> int:
        _end_with_parent(signal.SIGKILL)  # the next supervisor's master must be the only one
        resume = again or arguments.resume
        try:
            end = serve(str(run.path), resume=resume, again=again, ready=lambda _: None, term=term)
        except Superseded as error:
            say(f"ended: {error}")
            return SUPERSEDED
        except ElasticFlowError as error:
            say(f"Error: {error}")
            if isinstance(error.__cause__, OSError):  # the storage may come back
                time.sleep(STORAGE_S)
                return CRASHED
            return 1
        return EXIT_CODES[end.state.value]

    def clear() -> None:
        """Not what the next leader will go on with."""
        with contextlib.suppress(SlurmError, OSError):
            if newest(DirectoryStorage(run.path)) == term and not comes_again(job_id):
                SlurmBackend.clear(str(run.path))
                run.address.unlink(missing_ok=True)

    gc.freeze()
    return Supervisor(master, clear).run(again)


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
    restarted = int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0
    if restarted or arguments.program is None or index.find(str(job_id)) == run.path:
        _patiently(lambda: _check_begun(run))
    known = run.job_id()
    if known and restarted and known.id != str(job_id):
        raise RunError(f"{run.path}: this run goes on in job {known.id}, and not in this one any more.")
    if known and (arguments.program is None or known.id == str(job_id)):
        return run
    if run.settings.exists() and not arguments.resume:
        raise RunError(
            f"{run.path}: holds a run already; go on with it by --resume, or choose another --run-dir."
        )
    options = {name: getattr(arguments, name) for name in (*OPTIONS, "timeline")}
    options.update(run_dir=str(run.path), backend="slurm")
    before = msgspec.to_builtins(run.config()) if run.settings.exists() else None
    if arguments.program:
        options["program"] = os.path.abspath(arguments.program)
    chosen = config.make(arguments.config, options, before)
    parse(chosen.program)
    if arguments.resume:
        check_resume(run, chosen)
    begin(run, chosen)
    return run


def _check_begun(run: RunDir) -> None:
    """The folder of a run that was begun is never made anew while its storage is away. Raises RunError."""
    run.config()
    if run.job_id() is None:
        raise RunError(f"{run.path}: {run.job.name} is gone; is the storage what it was?")


def _patiently(act: Callable[[], T]) -> T:
    """What it returns, in the end: a storage that is away, or full, may come back.

    Raises RunError if it does not for as long as a run has patience.
    """
    backoff, begun_s, failures = Backoff(patience_s=Config().storage_patience_s), time.monotonic(), 0
    while True:
        try:
            return act()
        except (OSError, RunError) as error:
            failures += 1
            delay_s = backoff.delay_s(time.monotonic() - begun_s, failures) if is_curable(error) else None
            if delay_s is None:
                raise RunError(str(error)) from error
            say(f"warning: tried again in {delay_s:g} s: {error}")
            time.sleep(delay_s)  # whoever brings a storage back tells nobody


def _run_dir(arguments: argparse.Namespace, job_id: int) -> str:
    if arguments.run_dir:
        return os.path.abspath(str(arguments.run_dir))
    if not arguments.program:
        raise ConfigError("which program? Name a Python file that defines model() and forward().")
    return os.path.abspath(f"runs/{Path(arguments.program).stem}-job{job_id}")


def _name(environ: Mapping[str, str]) -> str:
    return environ.get("SLURM_JOB_NAME_HET_GROUP_0") or environ.get("SLURM_JOB_NAME", "")


def _end_with_parent(number: int) -> None:
    """Has this process get a signal when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


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
    known = run.job_id()
    assert known is not None
    publish(run.job, Job("slurm", str(job_id), known.run))
    index.add(job_id, _name(os.environ) or job_name(settings, read_section(settings.slurm)), run.path)
    comment = Comment(known.run, LEADER, str(run.path))
    with contextlib.suppress(SlurmError):  # the run's folder tells as well
        client = choose(os.environ)
        job = client.job(job_id)
        if job and read(job.comment) != comment:
            client.set_comment(job_id, str(comment))
