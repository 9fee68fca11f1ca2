"""All decisions about workers' jobs: what happened and the time in, actions and reasons out. Pure.

What any cluster needs is in ``elasticflow.cluster.sizing``. Here is what SLURM adds: a job is submitted to
one of several places, and may move to a better one as long as it waits; jobs are known by their comments,
since an id may come twice when slurmctld forgets, and an answer to sbatch may be lost though it is there; one
that could not be launched is held, and cancelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from elasticflow.cluster.asks import Ask, AskPhase
from elasticflow.cluster.contract import Ended
from elasticflow.cluster.cooldown import NEVER_S
from elasticflow.cluster.fair import OtherRun
from elasticflow.cluster.sizing import End, Poll, Sizing
from elasticflow.cluster.ways import ClusterWays
from elasticflow_slurm import reasons
from elasticflow_slurm.client import (
    WAITING,
    LimitReached,
    PlaceClosed,
    SlurmError,
    SlurmJob,
    SlurmNotInstalled,
    SlurmRefused,
)
from elasticflow_slurm.comments import LEADER, jobs_of, read
from elasticflow_slurm.config import PlaceConfig, SlurmConfig
from elasticflow_slurm.places import FULL_PATIENCES, STRUCK_S, Places

WAYS = ClusterWays(
    waiting=WAITING,
    running=frozenset({"RUNNING"}),  # where no node has still to boot
    who="slurmctld",
    left_out="is left out of new jobs",
    ended="job {} is cancelled",
    stands_back=True,
    names_asks=True,
    forget_s=10.0,
    forget_polls=2,
    line=(AskPhase.ASKED, AskPhase.UNSURE, AskPhase.WAITING, AskPhase.WITHDRAWN),
)
SOON_S = 5.0
"""A job moves to a place where it would start within this."""
STEADY_S = 120.0
"""The expected start that is shown changes when it is off by more than this."""
_HELD_ON_PURPOSE = ("JobHeldUser", "JobHeldAdmin")
"""SLURM's reasons where a person holds a job: it waits for that person, and nothing has failed."""


class Submit(msgspec.Struct, frozen=True):
    """Answered by ``accepted`` or ``refused``."""

    name: str
    place: PlaceConfig
    exclude: tuple[str, ...]


class Estimate(msgspec.Struct, frozen=True):
    """When a worker's job would start there. Answered by ``estimated``."""

    place: PlaceConfig
    exclude: tuple[str, ...]


Action = Submit | End | Estimate | Poll


class SlurmAsk(Ask[SlurmJob]):
    """A worker and its job. While that moves to another place, it is WITHDRAWN."""

    place: PlaceConfig | None = None
    exclude: tuple[str, ...] = ()
    moved_s: float = NEVER_S
    goal: PlaceConfig | None = None
    """Where it moves to."""
    past: set[int] = msgspec.field(default_factory=set)
    """Jobs of this name that are over and done with."""

    @property
    def wait(self) -> SlurmJob | None:
        """Its job, if that waits to start, as far as polls know."""
        return self.sight if self.phase is AskPhase.WAITING else None


class SlurmSizing(Sizing[SlurmAsk, SlurmJob]):
    """See the module's docstring, and Sizing."""

    def __init__(self, config: SlurmConfig, num_min: int, run_id: str) -> None:
        super().__init__(SlurmAsk, WAYS, config, num_min)
        self._config, self._run_id = config, run_id
        self._places = Places(config.workers, config.patience_s)
        self._was_accepted = False
        """Whether SLURM has ever taken a job of this run."""
        self._expected_at: float | None = None

    # --- what SLURM answered ---------------------------------------------------------------------

    def accepted(self, name: str, id: int, now_s: float) -> None:
        self._was_accepted = True
        if (ask := self._asks.get(name)) is not None and ask.place is not None:
            self._places.accepted(ask.place)
        super().accepted(name, id, now_s)

    def estimated(self, place: PlaceConfig, start_at: float | SlurmError, now_s: float, at: float) -> None:
        if isinstance(start_at, SlurmError) and not isinstance(start_at, SlurmRefused):
            return
        if isinstance(start_at, SlurmError) or start_at - at > SOON_S:
            self._places.fill(place, now_s)
        elif ask := next((each for each in self._movable(now_s) if each.place != place), None):
            self._places.started(place)
            self.news.note("info", f"{ask.name} moves to {place}, where it would start at once")
            ask.moved_s, ask.goal = now_s, place
            self._move(ask, f"it would start in {place}", now_s)

    def _learn(self, ask: SlurmAsk | None, error: Exception, now_s: float) -> bool:
        is_sure = isinstance(error, (LimitReached, PlaceClosed, SlurmRefused, SlurmNotInstalled))
        if ask is None or ask.place is None:
            return is_sure
        place, words = ask.place, str(error)
        if isinstance(error, LimitReached):
            self._places[place].rest.fail(f"{words} (SLURM's limit)", now_s)
            text = f"a limit of SLURM's is reached in {place}: {words}"
            self.news.note("warning", text, once=True)
        elif isinstance(error, PlaceClosed):
            text = f"{place} takes no jobs just now: {words}"
            self._places[place].rest.fail(text, now_s)
            self.news.note("warning", text, once=True)
        elif isinstance(error, SlurmRefused) and ask.exclude:
            self._nodes.pardon()
            text = f"{place} has no node but {', '.join(ask.exclude)}: used again ({words})"
            self.news.note("warning", text)
        elif isinstance(error, SlurmRefused):
            self._strike(place, words, now_s)
        else:
            self._busy.fail(words, now_s)
            self._polls.look()
            if isinstance(error, SlurmNotInstalled) and not self._was_accepted:
                self.fatal = words
        return is_sure

    def _strike(self, place: PlaceConfig, words: str, now_s: float) -> None:
        if now_s >= self._places[place].struck_until_s:
            text = f"{place} refuses jobs, and gets none for {STRUCK_S / 60:.0f} min: {words}"
            self.news.note("warning", text)
        self._places.strike(place, words, now_s)
        if self._places.refused_by_all(now_s) and not self._was_accepted:
            self.fatal = words

    # --- decisions -------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Action]:
        self._decided_s = now_s
        actions: list[Action] = [*self._ends_now(now_s)]
        exclude = self._nodes.excluded(now_s)
        for ask in self._due(now_s):
            place = self._places.choose(now_s, ask.goal)
            assert place is not None
            ask.place, ask.exclude, ask.goal = place, exclude, None
            actions.append(Submit(ask.name, place, exclude))
        crowded = {ask.place for ask in self._movable(now_s) if ask.place}
        actions += [Estimate(place, exclude) for place in self._places.to_estimate(crowded, now_s)]
        return [*actions, *self._polls_now(now_s)]

    def _may_ask(self, ask: SlurmAsk, now_s: float) -> bool:
        place = self._places.choose(now_s, ask.goal)
        if place is None or not super()._may_ask(ask, now_s):
            return False
        troubles = self._launches.cooldown.failures or self._places[place].rest.failures
        return not (troubles and any(each.unanswered for each in self._asks))

    def _rests_s(self) -> list[float]:
        return [each.rest.until_s for each in self._places]

    # --- polls -----------------------------------------------------------------------------------

    def _sorted(self, sights: Sequence[SlurmJob]) -> dict[Any, list[SlurmJob]]:
        """By their members' names."""
        ours = defaultdict(list)
        for name, job in jobs_of(self._run_id, sights):
            ours[name].append(job)
        ours.pop(LEADER, None)
        unsigned = {job.id: job for job in sights if read(job.comment) is None}
        for ask in self._asks:
            found = unsigned.get(ask.id or 0)
            if found and found.name.endswith(f"-{ask.name}"):  # its id alone may be another's by now
                ours[ask.name].append(found)
                text = "SLURM keeps no comments of jobs here: another master will not know the workers"
                self.news.note("warning", text, once=True)
        return ours

    def _others(self, sights: Sequence[SlurmJob]) -> list[OtherRun]:
        """Runs of this user with workers in our places. One that is held, or at a limit, does not wait."""
        if not self._config.give_back:
            return []
        ours = {place.partition for place in self._config.workers}
        found: dict[str, list[tuple[str, SlurmJob]]] = defaultdict(list)
        for job in sights:
            comment = read(job.comment)
            if comment and comment.run != self._run_id and comment.member != LEADER and not job.over:
                if job.partition in ours or "" in ours:
                    found[comment.run].append((comment.member, job))
        return [_other_run(run, jobs) for run, jobs in found.items()]

    def _chosen(self, ask: SlurmAsk, shown: dict[Any, list[SlurmJob]], now_s: float) -> SlurmJob | None:
        jobs = shown.pop(ask.name, [])
        if ask.phase is AskPhase.WANTED:
            ask.past.update(job.id for job in jobs if job.over)
        mine = [job for job in jobs if not (job.over and _is_past(ask, job))]
        current = max(mine, key=_newest, default=None)
        for job in mine:
            if job is not current and not job.over:
                self._end(job.id, now_s, self._born_s(job))
        if current is None or (current.over and ask.unanswered):  # the answer tells whether it is its job
            return None
        self._was_accepted = True
        ask.id, ask.place = current.id, ask.place or self._places.of(current)
        return current

    def _see_waiting(self, ask: SlurmAsk, sight: SlurmJob, now_s: float) -> None:
        if ask.phase is AskPhase.RUNNING or sight.restarts or sight.state != "PENDING":
            # Two processes must not join under one name, so this job may not run again.
            self._end(sight.id, now_s, self._born_s(sight))
            self._over(ask, reasons.requeued(ask.name, sight))
        elif ask.phase is AskPhase.WITHDRAWN:
            self._end(sight.id, now_s, self._born_s(sight))
        else:
            if ask.phase not in (AskPhase.WAITING, AskPhase.ASKED, AskPhase.UNSURE):
                ask.since_s = now_s
            ask.phase = AskPhase.WAITING
            if sight.held and sight.reason not in _HELD_ON_PURPOSE:
                self._launch_again(ask, sight, now_s)

    def _see_running(self, ask: SlurmAsk, sight: SlurmJob, now_s: float) -> None:
        """One that was to move has started after all: it stays, unless the cancel is still to hit it."""
        if ask.phase is not AskPhase.RUNNING:
            assert ask.place is not None
            self._places.started(ask.place)
        super()._see_running(ask, sight, now_s)

    def _see_over(self, ask: SlurmAsk, sight: SlurmJob, now_s: float) -> None:
        ask.past.add(sight.id)
        super()._see_over(ask, sight, now_s)

    def _judge(self, ask: SlurmAsk, sight: SlurmJob, now_s: float) -> None:
        if why := reasons.launch_failure(sight):
            self._launch_failed(sight.node, why, now_s)
        elif reasons.blames_node(sight):
            self._blame(sight.node, now_s)
        if sight.state == "DEADLINE" and not sight.node and ask.place is not None:
            # SLURM ends a job at once that could not be over by then: so it would the next one.
            self._strike(ask.place, f"job {sight.id} would not be over before its deadline", now_s)
        self._over(ask, reasons.ending(ask.name, sight))

    def _over(self, ask: SlurmAsk, ended: Ended) -> None:
        self._places.job_ended()
        super()._over(ask, ended)

    def _born_s(self, sight: SlurmJob | None) -> float:
        at = sight.submit_at if sight is not None else None
        return NEVER_S if at is None else self._clock.time_s(at)

    def _forgotten(self, ask: SlurmAsk) -> Ended:
        return reasons.forgotten(ask.name, ask.id)

    def _launch_again(self, ask: SlurmAsk, job: SlurmJob, now_s: float) -> None:
        """SLURM could not launch the job, and holds it until somebody releases it."""
        self._launch_failed(job.node, reasons.launch_failure(job), now_s)
        self.news.note("warning", f"job {job.id} ({ask.name}) could not be launched: {job.reason}")
        self._move(ask, f"it could not be launched: {job.reason}", now_s)

    def _settle(self, now_s: float) -> None:
        for ask in self._overdue(now_s):
            assert ask.place is not None
            self._places.fill(ask.place, now_s)
            if set(ask.exclude) - set(self._nodes.excluded(now_s)):  # may be what it waits for by now
                self._move(ask, "nodes that it leaves out are used again", now_s)
        starts = [job.start_at for ask in self._growth.line() if (job := ask.wait) and job.start_at]
        assert self._clock.at is not None
        self._expected_at = _steady(self._expected_at, min(starts, default=None), self._clock.at)

    # --- moves -----------------------------------------------------------------------------------

    def _overdue(self, now_s: float) -> list[SlurmAsk]:
        return [ask for ask in super()._overdue(now_s) if ask.wait and not ask.wait.held]

    def _movable(self, now_s: float) -> list[SlurmAsk]:
        rest_s = FULL_PATIENCES * self._config.patience_s
        return [ask for ask in self._overdue(now_s) if now_s - ask.moved_s >= rest_s]

    def _move(self, ask: SlurmAsk, why: str, now_s: float) -> None:
        """Has another job, or another worker, take the place of one that waits."""
        assert ask.sight is not None
        self._end_as(ask, AskPhase.WITHDRAWN, now_s)
        if ask.adopted:
            self._over(ask, reasons.given_up(ask.name, ask.sight, why))

    # --- reasons ---------------------------------------------------------------------------------

    def _why(self, role: str) -> str:
        wanted = [ask for ask in self._asks if ask.phase is not AskPhase.LEAVING]
        missing = any(ask.phase is AskPhase.WANTED for ask in wanted)
        if self._polls.silence.failures > 1:
            known = self._clock.at is not None
            since = f" since {self._clock.text(self._polls.silent_since_s)}" if known else ""
            return f"slurmctld does not answer{since}: {self._polls.silence.text}"
        if missing and (trouble := self._trouble()):
            return trouble
        line = sorted(wanted, key=lambda ask: (ask.since_s, ask.number))
        told = [(job, ask.exclude) for ask in line if (job := ask.wait) and job.reason]
        if told:
            # In a line of ours only the first waits for resources, the others for the first.
            first, without = next((each for each in told if each[0].reason == "Resources"), told[0])
            start_at, at = self._expected_at, self._clock.at or 0.0
            words = reasons.waiting(first, gpus=self._config.gpus, start_at=start_at, at=at, without=without)
            return words + reasons.advice(first)
        if moving := sum(ask.phase is AskPhase.WITHDRAWN for ask in wanted):
            return f"{reasons.jobs(moving, 'move')} to another place"
        if standing := next((ask.sight for ask in wanted if self._stands(ask)), None):
            return f"job {standing.id} on {standing.node} is {standing.state}"
        if missing and self._decided_s < self._growth.way_until_s:
            return "makes way for a job that SLURM prefers"
        starting = sum(ask.phase in self._ways.line for ask in wanted)
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
        pause = self._launches.cooldown
        return f"nothing could be started: {pause.text}" if pause.failures else ""

    def _stands(self, ask: SlurmAsk) -> bool:
        return ask.sight is not None and ask.sight.state in ("SUSPENDED", "CONFIGURING")


def _other_run(run: str, jobs: Sequence[tuple[str, SlurmJob]]) -> OtherRun:
    """As people know it: by its jobs' name, or else by its id."""
    member, first = jobs[0]
    name = first.name.removesuffix(f"-{member}")
    waiting = sum(
        job.state in WAITING and not job.held and job.reason in reasons.FOR_A_PLACE for _, job in jobs
    )
    running = sum(job.state not in WAITING for _, job in jobs)
    return OtherRun(f"{name} ({run})" if name != first.name else run, running, waiting)


def _is_past(ask: SlurmAsk, job: SlurmJob) -> bool:
    return job.id in ask.past or (ask.id is not None and job.id < ask.id)


def _newest(job: SlurmJob) -> tuple[bool, bool, int]:
    """Of several jobs of one name, which is to count: one that lives, that has its place, the newest."""
    return not job.over, job.state not in WAITING, job.id


def _steady(shown_at: float | None, start_at: float | None, at: float) -> float | None:
    """The expected start to show: what was shown, unless that is past or far off."""
    if shown_at is None or start_at is None or shown_at <= at or abs(start_at - shown_at) > STEADY_S:
        return start_at
    return shown_at
