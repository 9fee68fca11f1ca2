"""All decisions about workers' jobs: what happened and the time in, actions and reasons out. Pure.

The master decides which workers there are to be, and names each once. Here it is decided when a worker
becomes a job, where, and on which nodes not; what became of a worker whose job is over; and, in one
sentence, why fewer run than are wanted. Jobs are known by their comments: an id may come twice when
slurmctld forgets, and an answer to sbatch may be lost though the job is there.

Growth is like TCP's slow start. Of the jobs beyond the least number of workers only a few may wait at a
time: twice as many whenever all of them have started, and one once a job has waited for ``patience_s``.
That one stays in the queue: it is the bell that rings when a GPU becomes idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum

import msgspec

from elasticflow.cluster.contract import Ended
from elasticflow.cluster.nodes import Nodes
from elasticflow.cluster.pause import NEVER_S, Pause
from elasticflow.master.members import number_of
from elasticflow_slurm import reasons
from elasticflow_slurm.client import LimitReached, SlurmError, SlurmJob, SlurmNotInstalled, SlurmRefused
from elasticflow_slurm.comments import LEADER, jobs_of, read
from elasticflow_slurm.config import PlaceConfig, SlurmConfig
from elasticflow_slurm.places import FULL_PATIENCES, STRUCK_S, Places

AHEAD_FIRST, AHEAD_MOST = 4, 64
"""How many jobs may wait at first, and ever, beyond the least number of workers."""
BUSY_FIRST_S, BUSY_MOST_S = 1.0, 30.0
"""Pauses while SLURM does not answer."""
RELAUNCH_FIRST_S, RELAUNCH_MOST_S = 5.0, 300.0
"""Pauses after SLURM could not launch a job, and holds it."""
GIVE_WAY_S = 10.0
"""After a worker was told to leave nothing is submitted for so long: its GPU is somebody else's."""
LOOK_S = 1.0
"""Polls are no closer together than this."""
FORGET_S, FORGET_POLLS = 10.0, 2
"""A job that so many polls in a row do not show, begun so long after it was last seen, is lost."""
CANCEL_AGAIN_S = 30.0
"""A job that still lives so long after it was cancelled is cancelled again."""
SOON_S = 5.0
"""A job moves to a place where it would start within this."""
STEADY_S = 120.0
"""The expected start that is shown changes when it is off by more than this."""
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""States of a job that has no place. All others are over, or in their place."""
_HELD_ON_PURPOSE = ("JobHeldUser", "JobHeldAdmin")


class Submit(msgspec.Struct, frozen=True):
    """Answered by ``submitted`` or ``not_submitted``."""

    name: str
    place: PlaceConfig
    exclude: tuple[str, ...]


class Cancel(msgspec.Struct, frozen=True):
    """Needs no answer: polls show what came of it."""

    ids: tuple[int, ...]


class Estimate(msgspec.Struct, frozen=True):
    """When a worker's job would start there. Answered by ``estimated``."""

    place: PlaceConfig
    exclude: tuple[str, ...]


class SlurmPoll(msgspec.Struct, frozen=True):
    """Answered by ``observed`` or ``unobserved``. There is no other before that."""


Action = Submit | Cancel | Estimate | SlurmPoll


class PlacePhase(Enum):
    """Where a worker's job is."""

    WANTED = "wanted"
    """There is none yet."""
    ASKED = "asked"
    """SLURM has been asked for one, and has not answered."""
    UNSURE = "unsure"
    """The answer was lost: the next poll shows whether there is one."""
    ADOPTED = "adopted"
    """A master before this one has asked for it; no poll has shown it yet."""
    QUEUED = "queued"
    """It waits for its place."""
    RUNNING = "running"
    """It has its place."""
    MOVING = "moving"
    """It was cancelled before it started, for another to take its place once it is over."""
    LEAVING = "leaving"
    """The worker is not wanted any more."""


_LINE = (PlacePhase.ASKED, PlacePhase.UNSURE, PlacePhase.QUEUED, PlacePhase.MOVING)
"""Phases that count as waiting in line."""


class SlurmWorker(msgspec.Struct):
    """A worker that is wanted, or whose job may not be over."""

    name: str
    phase: PlacePhase
    since_s: float
    """When it began to wait, or the phase began."""
    adopted: bool = False
    """Whether a master before this one has asked for it: this one cannot submit it again."""
    asked: bool = False
    """Whether an answer to Submit is to come."""
    place: PlaceConfig | None = None
    exclude: tuple[str, ...] = ()
    id: int | None = None
    job: SlurmJob | None = None
    """As the last poll that showed it did."""
    seen_s: float = NEVER_S
    """When it was submitted or last shown."""
    placed: int | None = None
    """The job that has been shown to run, and was told of."""
    missed: int = 0
    """How many polls in a row should have shown it."""
    moved_s: float = NEVER_S
    goal: PlaceConfig | None = None
    """Where it moves to."""
    past: set[int] = msgspec.field(default_factory=set)
    """Jobs of this name that are over and done with."""

    @property
    def wait(self) -> SlurmJob | None:
        """Its job, if that waits to start, as far as polls know."""
        return self.job if self.phase is PlacePhase.QUEUED else None


class SlurmSizing:
    """See the module's docstring.

    Call ``decide`` after each event, and at ``next_time_s``. Of the times, ``now_s`` is on the monotonic
    clock, ``at`` in seconds since 1970, as jobs have it.
    """

    def __init__(self, config: SlurmConfig, num_min: int, run_id: str) -> None:
        self.fatal = ""
        """Why no job of this run can ever start, in SLURM's words."""
        self._config, self._num_min, self._run_id = config, num_min, run_id
        self._workers: dict[str, SlurmWorker] = {}
        self._places = Places(config.workers, config.patience_s)
        self._nodes = Nodes(config.exclude_after)
        self._ahead = AHEAD_FIRST
        self._accepted = False
        """Whether SLURM has ever taken a job of this run."""
        self._busy = Pause(BUSY_FIRST_S, BUSY_MOST_S)
        self._relaunch = Pause(RELAUNCH_FIRST_S, RELAUNCH_MOST_S)
        self._silence = Pause(config.poll_s, max(BUSY_MOST_S, config.poll_s))
        self._silent_since_s = 0.0
        self._way_until_s = NEVER_S
        self._polling = False
        self._polled_s = self._poll_due_s = NEVER_S
        """When the last poll was told, and when the next one is to be."""
        self._looking = False
        """Whether something has happened since the last poll was told."""
        self._decided_s = NEVER_S
        self._at: float | None = None
        """When the last answer to a poll came."""
        self._at_now_s = 0.0
        self._expected_at: float | None = None
        self._cancels: list[int] = []
        self._cancelled_s: dict[int, float] = {}
        self._ended: list[Ended] = []
        self._placed: list[str] = []
        self._notes: list[tuple[str, str]] = []
        self._noted: set[str] = set()

    # --- what the master wants -------------------------------------------------------------------

    def want(self, name: str, now_s: float) -> None:
        """There is to be a worker of this name, which was never used before."""
        self._workers[name] = SlurmWorker(name, PlacePhase.WANTED, now_s)

    def unwant(self, name: str, now_s: float) -> None:
        """Ends a worker, or never starts it. Nobody is told of its end."""
        worker = self._workers.get(name)
        if worker is None:
            return
        if worker.phase is PlacePhase.WANTED:
            del self._workers[name]
            return
        if worker.id is not None:
            self._cancel(worker.id, now_s)
        worker.phase, worker.since_s = PlacePhase.LEAVING, now_s

    def blame(self, name: str, now_s: float) -> None:
        """Its process never came, for which its node may be to blame."""
        worker = self._workers.get(name)
        if worker is not None and worker.job is not None:
            self._blame(worker.job.node, now_s)

    def adopt(self, name: str) -> None:
        """A master before this one has started this worker: polls will show its job."""
        self._workers[name] = SlurmWorker(name, PlacePhase.ADOPTED, NEVER_S, adopted=True)

    def look(self, now_s: float) -> None:
        """Something has happened to a worker: to poll soon may tell what."""
        self._looking = True

    def give_way(self, now_s: float) -> None:
        """A worker is preempted: a job that came now might take what SLURM frees for somebody else."""
        self._way_until_s = now_s + GIVE_WAY_S

    # --- what SLURM answered ---------------------------------------------------------------------

    def submitted(self, name: str, job_id: int, now_s: float) -> None:
        self._accepted = True
        self._busy.clear()
        worker = self._workers.get(name)
        if worker is None:  # it has ended already
            return
        assert worker.place is not None
        self._places.accepted(worker.place)
        worker.asked, worker.seen_s, worker.missed = False, now_s, 0
        if worker.phase is PlacePhase.ASKED:
            worker.phase, worker.id = PlacePhase.QUEUED, job_id
        elif worker.phase is PlacePhase.LEAVING:
            worker.id = job_id
            self._cancel(job_id, now_s)

    def not_submitted(self, name: str, error: SlurmError, now_s: float) -> None:
        worker = self._workers.get(name)
        if worker is None:
            return
        worker.asked, worker.seen_s, worker.missed = False, now_s, 0
        sure = isinstance(error, (LimitReached, SlurmRefused, SlurmNotInstalled))
        if worker.phase is PlacePhase.ASKED:
            worker.phase, worker.since_s = (PlacePhase.WANTED if sure else PlacePhase.UNSURE), now_s
        elif worker.phase is PlacePhase.LEAVING and worker.id is None and sure:
            del self._workers[name]
        assert worker.place is not None
        self._learn(error, worker.place, worker.exclude, now_s)

    def unobserved(self, error: SlurmError, now_s: float) -> None:
        """The poll failed."""
        self._polling = False
        if not self._silence.failures:
            self._silent_since_s = now_s
        self._silence.fail(str(error), now_s)
        self._poll_due_s = self._silence.until_s
        if self._silence.failures == 2:  # one alone happens on any busy cluster
            self._note("warning", f"slurmctld does not answer: {error}")

    def observed(self, jobs: Sequence[SlurmJob], now_s: float, at: float) -> None:
        """A poll: all jobs of this user.

        One that was not asked for, of a new master that looks around, shows of no job that it is gone, or
        that nobody wants it.
        """
        began_s = self._polled_s if self._polling else NEVER_S
        self._polling, self._poll_due_s = False, now_s + self._config.poll_s
        self._at, self._at_now_s = at, now_s
        self._hear_again(now_s)
        ours = self._by_name(jobs)
        queued = {name for name, worker in self._workers.items() if worker.phase in _LINE}
        for worker in list(self._workers.values()):
            self._match(worker, ours.pop(worker.name, []), began_s, now_s)
        for name, strange in ours.items():
            if began_s > NEVER_S:
                self._cancel_stranger(name, strange, now_s)
        self._grow(queued, now_s)
        self._forget_cancelled(now_s)
        starts = [job.start_at for worker in self._line() if (job := worker.wait) and job.start_at]
        self._expected_at = _steady(self._expected_at, min(starts, default=None), at)

    def estimated(self, place: PlaceConfig, start_at: float | SlurmError, now_s: float, at: float) -> None:
        if isinstance(start_at, SlurmError) and not isinstance(start_at, SlurmRefused):
            return
        if isinstance(start_at, SlurmError) or start_at - at > SOON_S:
            self._places.fill(place, now_s)
        elif worker := next((each for each in self._movable(now_s) if each.place != place), None):
            self._places.started(place)
            self._note("info", f"{worker.name} moves to {place}, where it would start at once")
            worker.moved_s, worker.goal = now_s, place
            self._move(worker, f"it would start in {place}", now_s)

    # --- decisions -------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Action]:
        """What to do, in this order. Each is told once."""
        self._decided_s = now_s
        ids, self._cancels = tuple(self._cancels), []
        actions: list[Action] = [Cancel(ids)] if ids else []
        actions += self._submits(now_s)
        crowded = {worker.place for worker in self._movable(now_s) if worker.place}
        exclude = self._nodes.excluded(now_s)
        actions += [Estimate(place, exclude) for place in self._places.to_estimate(crowded, now_s)]
        if (due_s := self._next_poll_s()) is not None and now_s >= due_s:
            self._polling, self._looking, self._polled_s = True, False, now_s
            actions.append(SlurmPoll())
        return actions

    def next_time_s(self) -> float | None:
        """When to decide again at the latest; None: after the next event."""
        times_s = [] if (poll_s := self._next_poll_s()) is None else [poll_s]
        if any(worker.phase is PlacePhase.WANTED for worker in self._workers.values()):
            pauses = [self._busy, self._relaunch, *(each.limit for each in self._places)]
            untils_s = [self._way_until_s, *(pause.until_s for pause in pauses)]
            times_s += [until_s for until_s in untils_s if until_s > self._decided_s]
        return min(times_s, default=None)

    def ended(self) -> list[Ended]:
        """Workers that were wanted and whose jobs are over, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def placed(self) -> list[str]:
        """Workers whose jobs run, that did not at the last call."""
        placed, self._placed = self._placed, []
        return placed

    def notes(self) -> list[tuple[str, str]]:
        """What people should read, since the last call: kind (``info``, ``warning``) and text."""
        notes, self._notes = self._notes, []
        return notes

    @property
    def num_jobs(self) -> int:
        """Jobs that are not over, as far as is known."""
        return sum(worker.phase is not PlacePhase.WANTED for worker in self._workers.values())

    # --- polls -----------------------------------------------------------------------------------

    def _next_poll_s(self) -> float | None:
        if self._polling or not self._workers:
            return None
        if self._looking and not self._silence.failures:
            return min(self._poll_due_s, self._polled_s + LOOK_S)
        return self._poll_due_s

    def _hear_again(self, now_s: float) -> None:
        if self._silence.failures > 1:
            self._note("info", f"slurmctld answers again, after {now_s - self._silent_since_s:.0f} s")
        self._silence.clear()

    def _by_name(self, jobs: Sequence[SlurmJob]) -> dict[str, list[SlurmJob]]:
        ours = defaultdict(list)
        for name, job in jobs_of(self._run_id, jobs):
            ours[name].append(job)
        ours.pop(LEADER, None)
        unsigned = {job.id: job for job in jobs if read(job.comment) is None}
        for worker in self._workers.values():
            found = unsigned.get(worker.id or 0)
            if found and found.name.endswith(f"-{worker.name}"):  # its id alone may be another's by now
                ours[worker.name].append(found)
                text = "SLURM keeps no comments of jobs here: another master will not know the workers"
                self._note_once("warning", text)
        return ours

    def _match(self, worker: SlurmWorker, jobs: list[SlurmJob], began_s: float, now_s: float) -> None:
        """Learns what a poll shows of a worker."""
        if worker.phase is PlacePhase.WANTED:
            worker.past.update(job.id for job in jobs if job.over)
        mine = [job for job in jobs if not (job.over and _is_past(worker, job))]
        current = max(mine, key=_newest, default=None)
        for job in mine:
            if job is not current and not job.over:
                self._cancel(job.id, now_s, job.submit_at)
        if current is None or (current.over and worker.asked):  # the answer tells whether it is its job
            self._miss(worker, began_s, now_s)
            return
        self._accepted = True
        worker.job, worker.id, worker.seen_s, worker.missed = current, current.id, now_s, 0
        worker.place = worker.place or self._places.of(current)
        self._nodes.saw(current.node)
        if current.over:
            self._finish(worker, current, now_s)
        elif worker.phase is PlacePhase.LEAVING:
            self._cancel(current.id, now_s, current.submit_at)
        elif current.state in _WAITING:
            self._see_waiting(worker, current, now_s)
        else:
            self._see_running(worker, now_s)
            if current.state == "RUNNING" and worker.placed != current.id:  # and no node has still to boot
                worker.placed = current.id
                self._placed.append(worker.name)

    def _miss(self, worker: SlurmWorker, began_s: float, now_s: float) -> None:
        """A poll does not show the job of a worker that may have one."""
        if worker.phase is PlacePhase.WANTED or worker.asked:
            return
        if worker.phase is PlacePhase.UNSURE:
            if began_s >= worker.since_s:
                worker.phase = PlacePhase.WANTED
            return
        if began_s > worker.seen_s + FORGET_S:
            worker.missed += 1
        if worker.missed >= FORGET_POLLS:
            self._end(worker, reasons.forgotten(worker.name, worker.id))

    def _see_waiting(self, worker: SlurmWorker, job: SlurmJob, now_s: float) -> None:
        if worker.phase is PlacePhase.RUNNING or job.restarts or job.state != "PENDING":
            # Two processes must not join under one name, so this job may not run again.
            self._cancel(job.id, now_s, job.submit_at)
            self._end(worker, reasons.requeued(worker.name, job))
        elif worker.phase is PlacePhase.MOVING:
            self._cancel(job.id, now_s, job.submit_at)
        else:
            if worker.phase not in (PlacePhase.QUEUED, PlacePhase.ASKED, PlacePhase.UNSURE):
                worker.since_s = now_s
            worker.phase = PlacePhase.QUEUED
            if job.held and job.reason not in _HELD_ON_PURPOSE:
                self._launch_again(worker, job, now_s)

    def _see_running(self, worker: SlurmWorker, now_s: float) -> None:
        """One that was to move has started after all: it stays, unless the cancel is still to hit it."""
        if worker.phase is not PlacePhase.RUNNING:
            worker.phase, worker.since_s = PlacePhase.RUNNING, now_s
            self._relaunch.clear()
            assert worker.place is not None
            self._places.started(worker.place)

    def _finish(self, worker: SlurmWorker, job: SlurmJob, now_s: float) -> None:
        """A worker's job is over."""
        if worker.phase is PlacePhase.MOVING and job.state == "CANCELLED" and not job.node:
            worker.past.add(job.id)
            worker.phase, worker.since_s, worker.id, worker.job = PlacePhase.WANTED, now_s, None, None
            return
        if reasons.blames_node(job):
            self._blame(job.node, now_s)
        if reasons.is_launch_failure(job):
            self._relaunch.fail(job.reason, now_s)
        self._end(worker, reasons.ending(worker.name, job))

    def _end(self, worker: SlurmWorker, ended: Ended) -> None:
        if worker.phase is PlacePhase.LEAVING:
            if worker.asked:  # another job of this name may be on its way
                return
        else:
            self._ended.append(ended)
        self._places.job_ended()
        del self._workers[worker.name]

    def _cancel_stranger(self, name: str, jobs: Sequence[SlurmJob], now_s: float) -> None:
        """Jobs of a name that nobody wants: of a master that died, or of an answer that was lost."""
        for job in jobs:
            if not job.over and self._cancel(job.id, now_s, job.submit_at):
                self._note("info", f"job {job.id} is cancelled: nobody waits for {name}")

    # --- growth ----------------------------------------------------------------------------------

    def _line(self) -> list[SlurmWorker]:
        """Workers whose jobs wait, or may, the lowest number first."""
        line = [worker for worker in self._workers.values() if worker.phase in _LINE]
        return sorted(line, key=lambda worker: number_of(worker.name))

    def _overdue(self, now_s: float) -> list[SlurmWorker]:
        """Those whose jobs have waited longer than a job does that finds an idle GPU."""
        return [
            worker
            for worker in self._line()
            if worker.wait and not worker.wait.held and now_s - worker.since_s >= self._config.patience_s
        ]

    def _grow(self, queued: set[str], now_s: float) -> None:
        """queued: who waited in line before this poll."""
        line, overdue = self._line(), self._overdue(now_s)
        started = [name for name in queued if self._phase(name) is PlacePhase.RUNNING]
        if started and not line:
            self._ahead = min(2 * self._ahead, AHEAD_MOST)
        for worker in overdue:
            self._ahead = 1
            assert worker.place is not None
            self._places.fill(worker.place, now_s)
            if set(worker.exclude) - set(self._nodes.excluded(now_s)):  # may be what it waits for by now
                self._move(worker, "nodes that it leaves out are used again", now_s)

    def _phase(self, name: str) -> PlacePhase | None:
        worker = self._workers.get(name)
        return worker.phase if worker else None

    def _submits(self, now_s: float) -> list[Action]:
        until_s = max(self._busy.until_s, self._relaunch.until_s, self._way_until_s)
        if self.fatal or self._silence.failures or now_s < until_s:
            return []
        wanted = [worker for worker in self._workers.values() if worker.phase is PlacePhase.WANTED]
        actions: list[Action] = []
        for worker in sorted(wanted, key=lambda worker: number_of(worker.name)):
            place = self._places.choose(now_s, worker.goal)
            if place is None or not self._may_submit(place):
                break
            worker.phase, worker.since_s, worker.asked = PlacePhase.ASKED, now_s, True
            worker.place, worker.exclude, worker.goal = place, self._nodes.excluded(now_s), None
            actions.append(Submit(worker.name, place, worker.exclude))
        return actions

    def _may_submit(self, place: PlaceConfig) -> bool:
        troubles = self._busy.failures or self._relaunch.failures or self._places[place].limit.failures
        if troubles and any(worker.asked for worker in self._workers.values()):
            return False  # after a failure, one is enough to try
        there = sum(
            worker.phase not in (PlacePhase.WANTED, PlacePhase.LEAVING) for worker in self._workers.values()
        )
        return there < self._num_min or len(self._line()) < self._ahead

    def _movable(self, now_s: float) -> list[SlurmWorker]:
        rest_s = FULL_PATIENCES * self._config.patience_s
        return [worker for worker in self._overdue(now_s) if now_s - worker.moved_s >= rest_s]

    def _move(self, worker: SlurmWorker, why: str, now_s: float) -> None:
        """Has another job, or another worker, take the place of one that waits."""
        assert worker.job is not None
        self._cancel(worker.job.id, now_s, worker.job.submit_at)
        if worker.adopted:
            self._end(worker, reasons.given_up(worker.name, worker.job, why))
        else:
            worker.phase, worker.since_s = PlacePhase.MOVING, now_s

    # --- troubles --------------------------------------------------------------------------------

    def _learn(self, error: SlurmError, place: PlaceConfig, exclude: tuple[str, ...], now_s: float) -> None:
        """What a failed submit tells."""
        words = str(error)
        if isinstance(error, LimitReached):
            self._places[place].limit.fail(words, now_s)
            self._note_once("warning", f"a limit of SLURM's is reached in {place}: {words}")
        elif isinstance(error, SlurmRefused) and exclude:
            self._nodes.pardon()
            self._note("warning", f"{place} has no node but {', '.join(exclude)}: used again ({words})")
        elif isinstance(error, SlurmRefused):
            self._strike(place, words, now_s)
        else:
            self._busy.fail(words, now_s)
            self._looking = True
            if isinstance(error, SlurmNotInstalled) and not self._accepted:
                self.fatal = words

    def _strike(self, place: PlaceConfig, words: str, now_s: float) -> None:
        if now_s >= self._places[place].struck_until_s:
            self._note("warning", f"{place} refuses jobs, and gets none for {STRUCK_S / 60:.0f} min: {words}")
        self._places.strike(place, words, now_s)
        if self._places.refused_by_all(now_s) and not self._accepted:
            self.fatal = words

    def _launch_again(self, worker: SlurmWorker, job: SlurmJob, now_s: float) -> None:
        """SLURM could not launch the job, and holds it until somebody releases it."""
        self._blame(job.node, now_s)
        self._relaunch.fail(job.reason, now_s)
        self._note("warning", f"job {job.id} ({worker.name}) could not be launched: {job.reason}")
        self._move(worker, f"it could not be launched: {job.reason}", now_s)

    def _blame(self, node: str, now_s: float) -> None:
        if self._nodes.failed(node, now_s):
            many = f"{self._config.exclude_after} failures within an hour"
            self._note("warning", f"node {node} is left out of new jobs for an hour: {many}")

    def _cancel(self, id: int, now_s: float, submit_at: float | None = None) -> bool:
        """Returns whether it was not cancelled before, or long ago.

        submit_at: when the job was submitted: an id may be that of another job since the last cancel.
        """
        last_s = self._cancelled_s.get(id, NEVER_S)
        same = submit_at is None or self._at is None or submit_at <= self._at + last_s - self._at_now_s
        if same and now_s - last_s < CANCEL_AGAIN_S:
            return False
        self._cancelled_s[id] = now_s
        self._cancels.append(id)
        return True

    def _forget_cancelled(self, now_s: float) -> None:
        recent = {id: at_s for id, at_s in self._cancelled_s.items() if now_s - at_s < CANCEL_AGAIN_S}
        self._cancelled_s = recent

    def _note(self, kind: str, text: str) -> None:
        self._notes.append((kind, text))

    def _note_once(self, kind: str, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(kind, text)

    # --- reasons ---------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why fewer workers run than are wanted; "" when as many do."""
        wanted = [worker for worker in self._workers.values() if worker.phase is not PlacePhase.LEAVING]
        running = [worker for worker in wanted if worker.phase is PlacePhase.RUNNING and not _stands(worker)]
        if len(running) == len(wanted):
            return ""
        return f"{len(running)} of {len(wanted)}: {self._why(wanted)}"

    def _why(self, wanted: list[SlurmWorker]) -> str:
        """The first that holds of what may be in the way."""
        missing = [worker for worker in wanted if worker.phase is PlacePhase.WANTED]
        if self._silence.failures > 1:
            since = f" since {self._clock(self._silent_since_s)}" if self._at is not None else ""
            return f"slurmctld does not answer{since}: {self._silence.text}"
        if missing and (trouble := self._trouble()):
            return trouble
        jobs = [worker.wait for worker in sorted(wanted, key=_wait_order) if worker.wait]
        told = [job for job in jobs if job.reason]
        if told:
            # In a line of ours only the first waits for resources, the others for the first.
            first = next((job for job in told if job.reason == "Resources"), told[0])
            return self._why_waits(first)
        if moving := sum(worker.phase is PlacePhase.MOVING for worker in wanted):
            return f"{reasons.jobs(moving, 'move')} to another place"
        if standing := next(filter(_stands, wanted), None):
            assert standing.job is not None
            return f"job {standing.job.id} on {standing.job.node} is {standing.job.state}"
        if missing and self._decided_s < self._way_until_s:
            return "makes way for a job that SLURM prefers"
        starting = sum(worker.phase in _LINE for worker in wanted)
        return reasons.jobs(starting, "start") if starting else "jobs are looked for"

    def _trouble(self) -> str:
        """Why no more jobs are submitted; "" if nothing is wrong."""
        if self.fatal:
            return f"refused: {self.fatal}"
        troubles = [each.trouble for each in self._places]
        if all(troubles):
            return troubles[0]
        if self._busy.failures:
            return f"slurmctld takes no jobs just now: {self._busy.text}"
        return f"SLURM could not launch a job: {self._relaunch.text}" if self._relaunch.failures else ""

    def _why_waits(self, job: SlurmJob) -> str:
        at = self._at or 0.0
        return reasons.waiting(job, gpus=self._config.gpus, start_at=self._expected_at, at=at)

    def _clock(self, time_s: float) -> str:
        assert self._at is not None
        return reasons.clock(self._at + time_s - self._at_now_s, self._at)


def _is_past(worker: SlurmWorker, job: SlurmJob) -> bool:
    return job.id in worker.past or (worker.id is not None and job.id < worker.id)


def _newest(job: SlurmJob) -> tuple[bool, bool, int]:
    """Of several jobs of one name, which is to count: one that lives, that has its place, the newest."""
    return not job.over, job.state not in _WAITING, job.id


def _wait_order(worker: SlurmWorker) -> tuple[float, int]:
    return worker.since_s, number_of(worker.name)


def _stands(worker: SlurmWorker) -> bool:
    """Whether its job has a place but does not run there."""
    return worker.job is not None and worker.job.state in ("SUSPENDED", "CONFIGURING")


def _steady(shown_at: float | None, start_at: float | None, at: float) -> float | None:
    """The expected start to show: what was shown, unless that is past or far off."""
    if shown_at is None or start_at is None or shown_at <= at or abs(start_at - shown_at) > STEADY_S:
        return start_at
    return shown_at
