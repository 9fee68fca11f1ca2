"""SLURM through pyslurm, where it fits; and the choice of a client by ELASTICFLOW_SLURM=cli|pyslurm|auto.

pyslurm is under the GPL and is never required: it is used where somebody has installed it, and asks for it.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from elasticflow.errors import ConfigError
from elasticflow_slurm.client import (
    OVER,
    JobAddress,
    SlurmBusy,
    SlurmError,
    SlurmJob,
    SlurmNotInstalled,
    SlurmRefused,
)
from elasticflow_slurm.command_line import ENDED, NO_SUCH_JOB, SlurmClient, sorted_error
from elasticflow_slurm.printed import first_node

VARIABLE = "ELASTICFLOW_SLURM"
PROBE = "import pyslurm; print(pyslurm.__version__)"
PROBE_S = 60.0
"""How long an import of pyslurm may take: it reads slurm.conf, from the controller where there is no file."""

T = TypeVar("T")


def choose(environ: Mapping[str, str]) -> SlurmClient:
    """The client that ELASTICFLOW_SLURM names; the command line where it names none.

    Raises ConfigError for another name, and SlurmNotInstalled where pyslurm is asked for and cannot be used.
    """
    name = environ.get(VARIABLE) or "cli"
    if name not in ("cli", "pyslurm", "auto"):
        raise ConfigError(
            f"{VARIABLE}: {name!r} is no way to SLURM; there are cli (SLURM's commands), pyslurm, "
            "and auto (pyslurm where it can be used, otherwise the commands)."
        )
    if name != "cli":
        try:
            return PyslurmClient(environ)
        except SlurmNotInstalled:
            if name == "pyslurm":
                raise
    return SlurmClient(environ)


class PyslurmClient(SlurmClient):
    """Asks about, cancels and requeues jobs through pyslurm; all else goes through SLURM's commands.

    Not through pyslurm go: submissions (it has no heterogeneous jobs, gives a job all SLURM_* variables of
    this process, and limits of none), estimates, begin times, partitions and nodes.

    pyslurm holds the interpreter's lock while it waits: where the controller does not answer, all threads
    of this process stand still for as long as SLURM's own timeouts last, and no timeout of ours ends it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises SlurmNotInstalled, which says why pyslurm cannot be used here."""
        super().__init__(environ)
        if environ.get("SLURM_CONF") != os.environ.get("SLURM_CONF"):
            raise SlurmNotInstalled(
                "pyslurm cannot be used: SLURM_CONF is not that of this process, which it reads."
            )
        check(probe(environ), self.version())
        self._pyslurm: Any = importlib.import_module("pyslurm")
        self._exit_codes: dict[tuple[int, float | None], int | None] = {}

    def jobs(self) -> list[SlurmJob]:
        loaded = self._ask(self._pyslurm.Jobs.load)
        return self._corrected([job_of(told) for told in loaded.values() if told.user_id == os.getuid()])

    def job(self, id: int) -> SlurmJob | None:
        try:
            found = self._ask(lambda: self._pyslurm.Job.load(id))
        except SlurmError as error:
            if NO_SUCH_JOB in str(error):
                return None
            raise
        return self._corrected([job_of(found)])[0]

    def cancel(self, ids: Iterable[JobAddress]) -> None:
        for id in ids:
            if isinstance(id, str):  # pyslurm does not know tasks of arrays by their names
                super().cancel([id])
                continue
            try:
                self._ask(self._pyslurm.Job(id).cancel)
            except SlurmError as error:
                if not any(words in str(error) for words in ENDED):
                    raise

    def requeue(self, id: JobAddress) -> None:
        if isinstance(id, str):
            super().requeue(id)
            return
        self._ask(self._pyslurm.Job(id).requeue, unknown=SlurmRefused)

    def _ask(self, call: Callable[[], T], unknown: type[SlurmError] = SlurmBusy) -> T:
        try:
            return call()
        except self._pyslurm.RPCError as error:
            raise sorted_error("pyslurm", str(error), unknown) from error

    def _corrected(self, jobs: list[SlurmJob]) -> list[SlurmJob]:
        # pyslurm says 9 for an exit code of 137, too: squeue is asked about failed jobs, once.
        failed = {(job.id, job.end_at): job for job in jobs if job.state == "FAILED"}
        if failed.keys() - self._exit_codes.keys():
            told = {(job.id, job.end_at): job.exit_code for job in super().jobs()}
            self._exit_codes = {which: told.get(which, job.exit_code) for which, job in failed.items()}
        codes = self._exit_codes
        return [
            msgspec.structs.replace(job, exit_code=codes[job.id, job.end_at])
            if job.state == "FAILED"
            else job
            for job in jobs
        ]


def probe(environ: Mapping[str, str]) -> str:
    """pyslurm's version. Raises SlurmNotInstalled where its import fails.

    It is imported in a process of its own: without a slurm.conf, libslurm ends the whole interpreter.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmNotInstalled(f"pyslurm cannot be used: its import failed: {error}.") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"]
        raise SlurmNotInstalled(f"pyslurm cannot be used: its import failed: {lines[-1]}.")
    return done.stdout.strip()


def check(pyslurm: str, slurm: tuple[int, int]) -> None:
    """Raises SlurmNotInstalled unless both are of the same release: (25, 11) and "25.11.2"."""
    found = re.match(r"(\d+)\.(\d+)", pyslurm)
    if found is None or (int(found[1]), int(found[2])) != slurm:
        wanted = f"{slurm[0]}.{slurm[1]:02}"
        raise SlurmNotInstalled(
            f"pyslurm {pyslurm} cannot be used with SLURM {wanted}: install pyslurm {wanted}, "
            f"or leave {VARIABLE} unset to use SLURM's commands."
        )


def job_of(told: Any) -> SlurmJob:
    """Of a pyslurm.Job. An exit code of 128 or more comes without its 128."""
    is_component = bool(told.heterogeneous_id)
    has_end = told.end_time and (told.state in OVER or told.time_limit is not None)
    return SlurmJob(
        id=told.id,
        name=told.name or "",
        comment=told.comment or "",
        state=told.state,
        reason="" if told.state_reason in (None, "None") else told.state_reason,
        partition=told.partition or "",
        node=first_node(told.allocated_nodes or ""),
        submit_at=_seconds(told.submit_time),
        start_at=_seconds(told.start_time),
        end_at=_seconds(told.end_time) if has_end else None,
        exit_code=_exit_code(told) if told.state in OVER else None,
        priority=told.priority,
        restarts=told.requeue_count,
        het=(told.heterogeneous_offset or 0) if is_component else None,
        leader_id=told.heterogeneous_id if is_component else None,
        task="" if told.array_task_id is None else f"{told.array_id}_{told.array_task_id}",
    )


def _exit_code(told: Any) -> int:
    return int(128 + told.exit_code_signal if told.exit_code_signal else told.exit_code)


def _seconds(told: int | None) -> float | None:
    return float(told) if told else None
