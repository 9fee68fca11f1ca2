"""How members and clients tell whether a leader lives, or will come back: they ask SLURM."""

from __future__ import annotations

import contextlib
import os
import time

import msgspec

from elasticflow.cluster.finder import AskingFinder, Orphaned
from elasticflow.cluster.presence import JobPresence, RunEnd
from elasticflow.errors import ElasticFlowError
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, last_line
from elasticflow_slurm import reasons
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import WAITING, SlurmBusy, SlurmError, SlurmJob
from elasticflow_slurm.command_line import SlurmClient
from elasticflow_slurm.comments import read
from elasticflow_slurm.config import read as read_section
from elasticflow_slurm.scripts import python_of

ASK_S, ASK_AGAIN_S = 3.0, 10.0
"""A member that hears nothing asks SLURM within the first, and then after the second."""
SURE_S = 1.0
"""Between two looks at what seems to be gone."""
SUBMIT_S = 120.0
"""SLURM takes a job, or refuses it, within this."""
REPAIR_S, START_S = 30.0, 5.0
"""A leader that still does not run after a repair, or a start, is given another after so long."""
REPAIRS = "repairs"
"""Who has repaired or started a leader says so in this folder of the run's."""


def leader_of(client: SlurmClient, run: RunDir) -> SlurmJob | None:
    """The leader's job as SLURM knows it now; None if it does not, or that id is another job's by now."""
    host = run.host()
    job = client.job(int(host.id)) if host and host.id != UNKNOWN else None
    comment = read(job.comment) if job else None
    return None if comment and host and comment.run != host.run else job


def settled(client: SlurmClient, run: RunDir) -> SlurmJob | None:
    """As ``leader_of``, but what seems to be gone is looked at twice.

    An answer may be cut off, and a job that is just being requeued may look as if it was over.
    """
    job = leader_of(client, run)
    if job is None or job.over:
        time.sleep(SURE_S)
        job = leader_of(client, run)
    return job


class LeaderFinder(AskingFinder):
    """Waits for a leader that SLURM will start again, and tells it to do so now."""

    def __init__(
        self, run_dir: str, patience_s: float, heartbeat_s: float = 1.0, client: SlurmClient | None = None
    ) -> None:
        super().__init__(run_dir, patience_s, 2 * heartbeat_s, (0.0, ASK_S), ASK_AGAIN_S)
        self._client = client
        self._host = self._run.host()

    def ask(self) -> None:
        self._client = self._client or choose(os.environ)
        host = self._run.host()
        if host and self._host and host.run != self._host.run:
            raise Orphaned("its run was begun anew")
        job = settled(self._client, self._run)
        if job is None:
            raise Orphaned("SLURM does not know its leader's job any more")
        if job.over:
            raise Orphaned(f"its leader, job {job.id}, is {job.state}")
        if job.state == "PENDING" and read(job.comment):
            start_again(self._client, self._run, job)


def start_again(client: SlurmClient, run: RunDir, leader: SlurmJob) -> None:
    """Has a leader that waits to run again start as soon as there is room.

    SLURM lets it wait for two minutes. Where its node was lost, for ever: the other component has ended
    then, until the job is requeued once more, which SLURM does though it says that it will not. One alone may
    do so: a second requeue would hit the leader that the first has started.
    """
    with contextlib.suppress(SlurmError):
        if _lacks_components(client, leader):
            if not _is_first(run, f"repair-{leader.id}-{leader.restarts}", REPAIR_S):
                return
            with contextlib.suppress(SlurmError):
                client.requeue(leader.address)
        elif 0.0 < (leader.start_at or 0.0) - time.time() <= START_S:
            return  # it is about to
        elif not _is_first(run, f"start-{leader.id}-{leader.restarts}", START_S):
            return
        client.start_now([leader.address])


def _is_first(run: RunDir, act: str, again_s: float) -> bool:
    """Whether nobody else does this, or has done it a short while ago.

    Each time has a number, which one alone can take. In the file stands when: its own date would be by the
    file server's clock.
    """
    storage = run.storage()
    try:
        names = [name for name in storage.list(REPAIRS) if name.startswith(f"{act}.")]
        number = max((int(name.removeprefix(f"{act}.")) for name in names), default=0)
        if number:
            with storage.open(f"{REPAIRS}/{act}.{number}") as file:
                if time.time() - float(file.read()) <= again_s:
                    return False
        with storage.create(f"{REPAIRS}/{act}.{number + 1}") as file:
            file.write(f"{time.time()}".encode())
    except (OSError, ValueError):
        return False
    return True


def _lacks_components(client: SlurmClient, leader: SlurmJob) -> bool:
    """Whether a component has ended, and the job can never start."""
    return leader.het is not None and any(job.leader_id == leader.id and job.over for job in client.jobs())


class SlurmPresence(JobPresence):
    """See JobPresence. A leader that waits to run again is told to start."""

    busy = SlurmBusy

    def __init__(self, run_dir: str, client: SlurmClient | None = None) -> None:
        super().__init__(run_dir, SUBMIT_S)
        self._client = client
        self._job: SlurmJob | None = None

    def is_alive(self) -> bool:
        return not self._run.report.exists() and super().is_alive()

    def waits_for(self) -> str:
        if self._job is None or not self._begins():
            return super().waits_for()
        return f"its leader, job {self._job.id}, waits: {reasons.leader_waiting(self._job, time.time())}"

    def paused(self) -> str:
        if self._job is None or self._job.state != "SUSPENDED":
            return ""
        address = self._job.address
        return (
            f"job {address} is suspended: it goes on by itself once a job is over that preempted it, else by "
            f"'scontrol resume {address}', which may take an administrator."
        )

    def last_words(self) -> str:
        words = last_line(self._run.logs / "leader.log")
        return f"the last line in its leader's log: {words}"

    def begun_by(self) -> str:
        try:
            slurm = read_section(self._run.config().slurm)
        except ElasticFlowError:
            return ""
        return f"slurm.python ({python_of(slurm)} now), slurm.setup or slurm.environment"

    def end(self) -> RunEnd | None:
        host = self._run.host()
        if host is None or host.id == UNKNOWN or self.is_alive() or self._client is None:
            return None
        with contextlib.suppress(SlurmError):
            if (job := self._job or self._client.past_job(int(host.id))) and job.over:
                return RunEnd(f"job {job.id}", job.state, reasons.ended(job))
        return RunEnd(f"job {host.id}", "", "is not known to SLURM any more, which forgets jobs")

    def cancel(self) -> str:
        if not self.is_alive() or not self._job or not self._begins() or self._job.restarts:
            return ""
        assert self._client is not None
        self._client.cancel([self._job.address])
        return f"job {self._job.id} is cancelled; it had not begun"

    def _ask(self, host: HostJob) -> bool:
        self._client = self._client or choose(os.environ)
        job = self._job = settled(self._client, self._run)
        if job and job.state == "PENDING" and job.restarts and read(job.comment):
            start_again(self._client, self._run, job)
        if job and job.state in WAITING and job.het is not None:
            with contextlib.suppress(SlurmError):
                reason = reasons.of_components(job, self._client.jobs())
                self._job = msgspec.structs.replace(job, reason=reason)
        self._run.refresh()  # so that whoever hears that it is over finds the report
        return job is not None and not job.over

    def _begins(self) -> bool:
        return self._job is not None and self._job.state in WAITING
