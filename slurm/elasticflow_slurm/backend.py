"""SLURM: parameter servers are steps of the leader's job, workers are jobs of their own.

What is decided about workers' jobs is decided in ``sizing``; here are the processes and clocks around it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.contract import MASTER, Ended
from elasticflow.cluster.finder import Finder
from elasticflow.cluster.presence import Presence
from elasticflow.cluster.sized import SizedBackend
from elasticflow.errors import RunError
from elasticflow.process.network import own_address
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow_slurm import steps
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import JobAddress, SlurmBusy, SlurmError, SlurmJob
from elasticflow_slurm.comments import LEADER, cancel_jobs, jobs_of
from elasticflow_slurm.config import PlaceConfig, read
from elasticflow_slurm.finder import LeaderFinder, SlurmPresence
from elasticflow_slurm.scripts import interpreter_of, worker_request
from elasticflow_slurm.sizing import Estimate, SlurmSizing, Submit

REQUEUES = 3
"""So often a requeue is tried while SLURM does not answer."""
ASK_S, TRIES = 0.2, 10
"""How often, and how far apart, a leader that is told to end asks why."""
MOST_WARNING = 0.25
"""Of a short time limit, at most so much is spent on leaving."""


class SlurmBackend(SizedBackend):
    """See Backend. To be used inside of the leader's job."""

    _sizing: SlurmSizing

    def __init__(self, config: Config, run_dir: str) -> None:
        self._config, self._run = config, RunDir(run_dir)
        self._slurm = read(config.slurm)
        login = os.environ.get("SLURM_SUBMIT_HOST", "")
        self.host, self.member_host = own_address(self._slurm.host, login), self._slurm.host
        host = self._run.host()
        assert host is not None
        self._leader_id, self._run_id = int(host.id), host.run
        self._client = choose(os.environ)
        self._steps = steps.Steps(run_dir, config.threads, interpreter_of(self._slurm))
        sizing = SlurmSizing(self._slurm, config.worker_range[0], self._run_id)
        super().__init__(sizing, Clerk(SlurmError))
        self._ends_s: dict[str, tuple[float, float]] = {}
        self._jobs: dict[str, SlurmJob] = {}
        self._handed_over = False
        self._seen_over: dict[int, str] = {}
        """Of the components of the leader's job those that were over when they were last looked at."""
        self._lost = ""
        """Why this master may not go on."""
        self._serverless = ""
        """Why no server can be started any more where this master is."""

    # --- the interface ---------------------------------------------------------------------------

    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        living = dict.fromkeys(self._steps.pids(), 0)  # these are sruns: whether more lives, nobody knows
        try:
            self._observed(self._client.jobs())
            workers = [name for name, job in self._jobs.items() if name != LEADER and not job.over]
        except SlurmError as error:  # polls will tell; until then all are taken to live
            workers = [name for name in known if name.startswith("worker-")]
            self._sizing.news.note("warning", f"it is not known yet which workers live: {error}")
        for name in workers:
            self._sizing.adopt(name, time.monotonic())
            living[name] = 0
        return living

    def start(self, settings: MemberSettings) -> None:
        if settings.role == "server":
            self._steps.start(msgspec.structs.replace(settings, started_s=0.0))
        else:
            super().start(settings)

    def kill(self, name: str) -> None:
        self._steps.kill(name)
        super().kill(name)

    def wait_fds(self) -> list[int]:
        return [*super().wait_fds(), *self._steps.fds()]

    def next_time_s(self) -> float | None:
        leaders, _ = self._ends_s.get(MASTER, (None, None))
        times = [super().next_time_s(), self._steps.next_time_s(), leaders]
        return min((at_s for at_s in times if at_s is not None), default=None)

    def ended(self) -> list[Ended]:
        self._steps.turn()
        workers = super().ended()
        if self._lost:
            raise RunError(self._lost)
        if self._serverless and not self._handed_over:
            self._move()
        return [*self._steps.ended(), *workers]

    @property
    def num_running(self) -> int:
        return len(self._steps.names) + super().num_running

    def placed(self) -> list[str]:
        return [*self._steps.placed(), *super().placed()]

    def where(self, name: str) -> str:
        job = self._jobs.get(name)
        if job is None:
            return ""
        place = f" on {job.node}" if job.node else ""
        reason = f" ({job.reason})" if job.reason and not job.node else ""
        return f"job {job.id}, {job.state.lower()}{place}{reason}"

    def ends_s(self) -> dict[str, tuple[float, float]]:
        ends, now_s = self._ends_s, time.monotonic()
        # The leader's is kept until it is near: once no worker is left SLURM is not asked any more, and the
        # last checkpoint may have to wait for its storage.
        self._ends_s = {name: end for name, end in ends.items() if name == MASTER and now_s < end[0]}
        return ends

    def hand_over(self) -> None:
        for left in reversed(range(REQUEUES)):
            try:
                self._client.requeue(address_of(self._leader_id, os.environ))
                break
            except SlurmBusy:
                if not left:
                    raise
            except SlurmError:  # it has requeued it before, where it had lost sight of this node
                if not comes_again(self._leader_id):
                    raise
                break
        self._handed_over = True

    def comes_again(self) -> bool:
        return self._handed_over or comes_again(self._leader_id)

    def began_again(self) -> str:
        return f"was in job {self._leader_id}, which SLURM has requeued" if restarts_of(os.environ) else ""

    def abandon(self) -> None:
        self._steps.end_all()

    def close(self) -> None:
        self._steps.end_all()
        self._clerk.close()
        self._cancel_all()

    @staticmethod
    def clear(run_dir: str) -> None:
        steps.clear(run_dir)
        host = RunDir(run_dir).host()
        if host is not None:
            cancel_jobs(choose(os.environ), host.run, but_for=LEADER)

    @staticmethod
    def finder(settings: MemberSettings) -> Finder:
        config = RunDir(settings.run_dir).config()
        patience_s = max(settings.lost_s, read(config.slurm).lease_s)
        return LeaderFinder(settings.run_dir, patience_s, settings.heartbeat_s)

    @staticmethod
    def presence(run_dir: str) -> Presence:
        return SlurmPresence(run_dir)

    # --- jobs ------------------------------------------------------------------------------------

    def _poll(self) -> list[SlurmJob]:
        return self._client.jobs()

    def _drained(self) -> set[str]:
        return self._client.drained()

    def _end(self, id: int) -> None:
        self._client.cancel([id])

    def _end_all(self, ids: Iterable[int]) -> None:
        self._client.cancel(ids)

    def _observed(self, sights: Sequence[SlurmJob]) -> None:
        super()._observed(sights)
        self._jobs, over = {}, {}
        for name, job in sorted(jobs_of(self._run_id, sights), key=lambda each: each[1].id):
            if name == LEADER and job.over and self._leader_id in (job.id, job.leader_id):
                over[job.id] = job.state
            if name == LEADER and job.id != self._leader_id:
                continue  # another component, or a leader of before
            self._jobs[name] = job
            if job.state == "RUNNING" and job.end_at is not None:
                self._ends_s[MASTER if name == LEADER else name] = self._end_of(job, job.end_at)
        # Twice in the same state: a job that is just being requeued may look as if it was over.
        for id in [id for id, state in over.items() if self._seen_over.get(id) == state]:
            if id == self._leader_id:
                self._lost = f"the leader's job {id} is over ({over[id]}), and this master with it"
            else:
                self._serverless = (
                    f"the servers' job {id} is over ({over[id]}): no server starts there any more"
                )
        self._seen_over = over

    def _move(self) -> None:
        """To where there are servers again: SLURM does that itself only where they have lost their node."""
        try:
            self.hand_over()
        except SlurmBusy:
            return  # it is tried again
        except SlurmError as error:
            raise RunError(f"{self._serverless}, and SLURM does not requeue it: {error}") from error
        self._sizing.news.notes.append(("warning", f"{self._serverless}; the leader is requeued"))

    def _end_of(self, job: SlurmJob, end_at: float) -> tuple[float, float]:
        """When to look for another place, and when to have left this one, on the monotonic clock."""
        end_s = time.monotonic() + end_at - time.time()
        lasts_s = end_at - (job.start_at or end_at)
        warn_s = min(float(self._slurm.warn_s), max(lasts_s * MOST_WARNING, 1.0))
        return end_s - warn_s, end_s - warn_s / 3

    def _do(self, action: Submit | Estimate) -> None:
        name = action.name if isinstance(action, Submit) else next(iter(self._settings), "")
        settings = self._settings.get(name)
        if settings is None:
            return
        request = worker_request(
            self._config, self._slurm, self._run_id, settings, action.place, action.exclude
        )
        if isinstance(action, Submit):
            self._clerk.order(partial(self._client.submit, request), partial(self._asked, name))
        else:
            self._clerk.order(
                partial(self._client.would_start_at, request), partial(self._estimated, action.place)
            )

    def _estimated(self, place: PlaceConfig, answer: float | SlurmError) -> None:
        self._sizing.estimated(place, answer, time.monotonic(), time.time())

    def _cancel_all(self) -> None:
        """Ends what is left of this run's workers; SLURM may know some that this master does not."""
        with contextlib.suppress(SlurmError):  # they end by themselves when there is no leader any more
            cancel_jobs(self._client, self._run_id, but_for=LEADER)


def restarts_of(environ: Mapping[str, str]) -> int:
    """How often the job in which this process is was requeued."""
    return int(environ.get("SLURM_RESTART_COUNT", "0"))


def address_of(job_id: int, environ: Mapping[str, str]) -> JobAddress:
    """What names alone the job in which this process is, whose id may be that of a whole array."""
    if environ.get("SLURM_ARRAY_JOB_ID") != str(job_id):
        return job_id
    return f"{job_id}_{environ['SLURM_ARRAY_TASK_ID']}"


def comes_again(leader_id: int) -> bool:
    """Whether the leader's job, which was just told to end, will be started again.

    SLURM tells a requeue from a cancellation by the number of restarts alone, which it has counted by then.
    An answer may be missing: who asks is told to end as well.
    """
    client = choose(os.environ)
    restarts = restarts_of(os.environ)
    for _ in range(TRIES):
        with contextlib.suppress(SlurmError):
            job = client.job(leader_id)
            if job is not None and (job.restarts or 0) > restarts:
                return True
            if job is not None and not job.over:  # else it may be on its way from one state to another
                return False
        time.sleep(ASK_S)
    return False
