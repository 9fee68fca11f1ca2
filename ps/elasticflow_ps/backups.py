"""Slices of the tick in work that are overdue: who has them, and who of the idle computes them as well. Pure.

Of two that compute a slice the first counts: they push the same bits, so to ask one too many costs time and
nothing else. Source: backup tasks of MapReduce, see ``lateness``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec

from elasticflow.step.schedule import Kind, Schedule
from elasticflow.step.slices import Node
from elasticflow.wire.messages import Push, Share
from elasticflow_ps.lateness import Lateness

DEADLY = 2
"""A slice which so many workers may have died of is computed with care from then on."""


class ComputeAction(msgspec.Struct, frozen=True):
    """Ask an idle worker for slices that are overdue. careful: those of them that may be deadly."""

    worker: str
    tick: int
    slices: tuple[int, ...]
    careful: tuple[int, ...] = ()


class Lack:
    """What is missing of the tick in work.

    waiting: workers that wait for the version after it. shares: the plan as its workers know it. missing:
    looks, if anybody wants to know, which slices some parcel lacks: there may be many parcels.
    """

    def __init__(self, missing: Callable[[], set[int]], waiting: set[str], shares: tuple[Share, ...]) -> None:
        self._missing, self.waiting, self.shares = missing, waiting, shares

    @cached_property
    def missing(self) -> set[int]:
        return self._missing()


class _Backup(msgspec.Struct):
    """An overdue slice handed to ``worker`` at ``since_s``, among ``count`` slices."""

    worker: str
    since_s: float
    count: int


class _AtWork(msgspec.Struct):
    """Who is at what of it."""

    number: int
    opened_s: float
    backups: dict[int, _Backup] = msgspec.field(default_factory=dict)
    pushed: dict[int, tuple[str, float]] = msgspec.field(default_factory=dict)
    """By slice: who pushed its first parcel, and when the latest. The other parcels are on their way."""
    pushing: set[str] = msgspec.field(default_factory=set)
    """Workers in the middle of a node: they may wait for the next version, but are not idle."""
    felled: dict[int, set[str]] = msgspec.field(default_factory=dict)
    """By slice: workers that went while they may have been computing it."""
    asked: dict[str, set[int]] = msgspec.field(default_factory=dict)
    """By worker: the overdue slices it was asked for. One by one they come from it, or from somebody else, or
    it cannot do them: it is not asked again."""


class Backups:
    """Of one server, which is told what happens to the tick in work. leads: this is server 0.

    A slice is at the hands of whoever pushed a part of it, was asked for it as a backup, or has it by the
    plan, in this order; and of nobody, hence overdue at once, if that one is not connected, is absent, or
    waits for the next version already.
    """

    def __init__(self, schedule: Schedule, *, leads: bool) -> None:
        self._schedule, self._leads = schedule, leads
        self._lateness = {kind: Lateness() for kind in Kind}
        self._connected: set[str] = set()
        self._absent: set[str] = set()
        """Workers found missing: nobody waits for their slices until they push in time again."""
        self._tick = _AtWork(0, 0.0)

    # --- what happens ----------------------------------------------------------------------------

    def begin(self, number: int, now_s: float) -> None:
        """Another tick is gathered from now on."""
        self._tick = _AtWork(number, now_s)

    def restart(self, now_s: float) -> None:
        """What the tick in work is computed from is only there since now."""
        self._tick.opened_s = now_s

    def pushed(self, worker: str, push: Push, node: Node, shares: tuple[Share, ...], now_s: float) -> None:
        """A push for the tick in work has come."""
        tick = self._tick
        (tick.pushing.add if push.more else tick.pushing.discard)(worker)
        if push.slice_s > 0:
            self._absent.discard(worker)
            self._now.record(worker, push.slice_s)
            if tick.opened_s and node.first not in tick.pushed and node.first not in tick.backups:
                self._note_lag(worker, push, node, shares, now_s)
        for number in range(node.first, node.stop):
            if tick.pushed.get(number, (worker, now_s))[0] == worker:
                tick.pushed[number] = (worker, now_s)

    def _note_lag(self, worker: str, push: Push, node: Node, shares: tuple[Share, ...], now_s: float) -> None:
        """Of a worker's first push of its own slices in this tick, unless this server began with it."""
        if any(share.worker == worker and share.first == node.first for share in shares):
            taken_s = (node.stop - node.first) * push.slice_s
            self._now.record_lag(worker, now_s - self._tick.opened_s - taken_s)

    def opened(self, worker: str) -> None:
        """A worker has connected."""
        self._connected.add(worker)
        self._forget(worker)
        for felled in self._tick.felled.values():
            felled.discard(worker)  # it only had let go

    def closed(self, worker: str, lack: Lack) -> None:
        """A worker's connection has closed."""
        self._connected.discard(worker)
        self._note_felled(worker, lack)
        self._forget(worker)

    def give_up(self, workers: set[str], lack: Lack) -> None:
        """The master has no more work for these: they are silent, or lost, or leave after this tick."""
        self._absent |= workers
        for worker in workers:  # the master may know of a death before its connection closes
            self._note_felled(worker, lack)
        backups = self._tick.backups
        self._tick.backups = {n: backup for n, backup in backups.items() if backup.worker not in workers}

    def _note_felled(self, worker: str, lack: Lack) -> None:
        """Any slice that it had, and has not pushed, may be why it is gone. What is true is found out by
        whoever tries it with care."""
        mine = set(self._tick.asked.get(worker, ()))
        for share in lack.shares:
            mine.update(range(share.first, share.stop) if share.worker == worker else ())
        for number in mine & lack.missing:
            self._tick.felled.setdefault(number, set()).add(worker)

    def _forget(self, worker: str) -> None:
        """What it had to do it does no more: it is another process, or has let go of this tick."""
        self._absent.discard(worker)
        tick = self._tick
        tick.backups = {n: backup for n, backup in tick.backups.items() if backup.worker != worker}
        tick.pushed = {n: pushed for n, pushed in tick.pushed.items() if pushed[0] != worker}
        tick.asked.pop(worker, None)
        tick.pushing.discard(worker)
        for lateness in self._lateness.values():
            lateness.forget(worker)

    # --- what is overdue -------------------------------------------------------------------------

    @property
    def _now(self) -> Lateness:
        """What is known of slices like those of the present tick: an evaluation's take another time."""
        return self._lateness[self._schedule.at(self._tick.number).kind]

    def due_s(self, lack: Lack) -> float | None:
        """When to call ``hand_out`` at the latest; None if nothing becomes overdue, or nobody is idle."""
        if not self._idle(lack):
            return None
        due_s = min((self._due_s(number, lack) for number in lack.missing), default=float("inf"))
        return None if due_s == float("inf") else due_s

    def _due_s(self, number: int, lack: Lack) -> float:
        """When slice ``number`` is overdue, at the hands of whoever should be computing it now."""
        pusher, since_s = self._tick.pushed.get(number, ("", 0.0))
        if pusher in self._connected:
            return self._now.due_s(pusher, since_s, 0)
        backup = self._tick.backups.get(number)
        if backup:
            if backup.worker not in self._connected:
                return backup.since_s
            return self._now.due_s(backup.worker, backup.since_s, backup.count)
        for share in lack.shares:
            if share.first <= number < share.stop and self._works(share.worker, lack):
                return self._now.due_s(share.worker, self._tick.opened_s, share.stop - share.first, lags=True)
        return self._tick.opened_s

    def _works(self, worker: str, lack: Lack) -> bool:
        """Whether to wait for a worker's slices: who waits for the next version will push no more."""
        done = worker in lack.waiting and worker not in self._tick.pushing
        return worker in self._connected and worker not in self._absent and not done

    def _idle(self, lack: Lack) -> list[str]:
        """Workers that wait for the next version, and were not asked for any of the missing slices."""
        asked = self._tick.asked
        waiting = lack.waiting - self._tick.pushing
        return sorted(worker for worker in waiting if worker not in asked or not asked[worker] & lack.missing)

    # --- who computes it as well -----------------------------------------------------------------

    def given(self, worker: str) -> tuple[int, ...]:
        """Slices that others than this worker were asked for, where they are applied one by one."""
        if not self._schedule.applies_slices(self._tick.number):
            return ()
        return tuple(sorted(n for n, backup in self._tick.backups.items() if backup.worker != worker))

    def hand_out(self, lack: Lack, now_s: float) -> list[ComputeAction]:
        """Spreads overdue slices over the idle workers."""
        idle = self._idle(lack)
        overdue = sorted(n for n in lack.missing if self._due_s(n, lack) <= now_s) if idle else []
        if not overdue:
            return self._hand_over(idle, lack, now_s)
        self._mark_absent(overdue, lack)
        actions: list[ComputeAction] = []
        for place, worker in enumerate(idle):
            first = place * len(overdue) // len(idle)
            mine = overdue[first : (place + 1) * len(overdue) // len(idle)]
            if mine:
                actions.append(self._ask_for(worker, mine, now_s))
        return actions

    def _ask_for(self, worker: str, slices: list[int], now_s: float) -> ComputeAction:
        self._tick.asked.setdefault(worker, set()).update(slices)
        for number in slices:
            self._tick.backups[number] = _Backup(worker, now_s, len(slices))
        felled = self._tick.felled
        careful = tuple(number for number in slices if len(felled.get(number, ())) >= DEADLY)
        return ComputeAction(worker, self._tick.number, tuple(slices), careful)

    def _hand_over(self, idle: list[str], lack: Lack, now_s: float) -> list[ComputeAction]:
        """Where slices are applied one by one: gives the idle some that their owners have not begun.

        One each, the last of whoever would be done last, if that makes it sooner. Owners hear of it before
        they begin it. The leading server does this for all.
        """
        if not (self._leads and self._schedule.applies_slices(self._tick.number)):
            return []
        slice_s = self._now.slice_s
        actions: list[ComputeAction] = []
        for worker in idle:
            left = lack.missing - self._tick.backups.keys()
            longest, last = 0.0, -1
            for share in lack.shares:
                mine = [number for number in range(share.first, share.stop) if number in left]
                if len(mine) > 1 and len(mine) * slice_s(share.worker) > longest:
                    longest, last = len(mine) * slice_s(share.worker), mine[-1]
            if slice_s(worker) < longest:
                actions.append(self._ask_for(worker, [last], now_s))
        return actions

    def _mark_absent(self, overdue: list[int], lack: Lack) -> None:
        """Of those who had these slices last: pushed a part, were asked, or have them by the plan."""
        for number in overdue:
            backup = self._tick.backups.pop(number, None)
            pusher, _ = self._tick.pushed.pop(number, ("", 0.0))
            shares = [share for share in lack.shares if share.first <= number < share.stop]
            owners = {share.worker for share in shares if self._works(share.worker, lack)}
            self._absent |= {pusher} if pusher else {backup.worker} if backup else owners
