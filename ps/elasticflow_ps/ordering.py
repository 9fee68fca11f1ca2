"""What governs each tick: who computes what, and whether a cut, a snapshot, a pause or the end follows it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from elasticflow.step.schedule import Schedule
from elasticflow.training.advice import Tuning
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Share
from elasticflow_ps.snapshots import Snapshots


class Orders(msgspec.Struct, frozen=True):
    """What governs one tick; from the leading server, or as the workers' pushes repeat it.

    tuning: of the learning rate. ends: there is no such tick. pause: nothing is made of the version after it,
    until all begin anew from there.
    """

    shares: tuple[Share, ...] = ()
    cut: bool = False
    snapshot: bool = False
    finish: bool = False
    tuning: Tuning = Tuning()
    ends: bool = False
    pause: bool = False


class Ordering:
    """Of one server: what it has heard from the master, and, if it leads, the orders that it gives.

    cut_every_steps: order a checkpoint every so many steps; 0: only those asked for. snapshots: knows when to
    order one; None: never. standing: what evaluations have decided by version ``start``; None: there are no
    rules. relays: by group of workers, whom this server hears in their stead.
    """

    def __init__(
        self,
        schedule: Schedule,
        cut_every_steps: int,
        snapshots: Snapshots | None,
        standing: WatchStanding | None = None,
        start: int = 0,
        relays: Mapping[int, str] | None = None,
    ) -> None:
        self.wants_cut = self.wants_finish = self.wants_pause = False
        self._standing, self._decided = standing, start - (standing is not None and standing.asks)
        """What evaluations have decided, and by which version."""
        self._schedule, self._cut_every_steps, self._snapshots = schedule, cut_every_steps, snapshots
        self._number, self._shares = -1, tuple[Share, ...]()
        self._relays = relays or {}
        self._orders: dict[int, Orders] = {}
        self._unsettled: int | None = None
        """The newest version that was ordered to be cut, unless its checkpoint is committed or given up."""

    def take(self, number: int, shares: tuple[Share, ...]) -> set[str]:
        """The master has made a plan. Returns those who are in it no more."""
        if number <= self._number:
            return set()
        old = {share.worker for share in self._shares}
        self._number, self._shares = number, shares
        return old - {share.worker for share in shares}

    def follow(self) -> None:
        """There is another master, which numbers its plans anew."""
        self._number = -1

    def settle(self, tick: int) -> None:
        """The checkpoint of this version is committed or given up: the next may be ordered."""
        if self._unsettled is not None and tick >= self._unsettled:
            self._unsettled = None

    def decide(self, version: int, standing: WatchStanding) -> None:
        """What follows from the evaluation that made this version is known."""
        self._decided, self._standing = version, standing

    def shares(self, version: int) -> tuple[Share, ...]:
        """The plan as the workers of this tick know it; other servers take the latest they heard of. What is
        for workers behind a relay is at the hands of that."""
        orders = self._orders.get(version)
        shares = orders.shares if orders else self._shares
        return _by_relays(shares, self._relays) if self._relays else shares

    def _keeps(self, version: int) -> bool:
        """Whether what the tick from ``version`` on evaluates is committed, whatever comes of it."""
        return self._standing is not None and self._standing.rules.cuts and self._schedule.evaluates(version)

    def _waits_for_best(self, version: int) -> bool:
        """Whether a copy of what the tick from ``version`` on makes is of no use yet.

        As long as a checkpoint that may be the best is not there, they go back to before it if one is lost.
        """
        if self._standing is None or self._standing.rules.best is None:
            return False
        return self._keeps(version) or (self._unsettled is not None and self._keeps(self._unsettled - 1))

    def is_undecided(self, version: int) -> bool:
        """Whether it is not known yet what the evaluation decides that makes this version, or made it."""
        standing = self._standing
        return standing is not None and version > self._decided and self._schedule.evaluates(version - 1)

    def consults(self, version: int) -> bool:
        """Whether that is for the program's ``on_epoch`` to say."""
        consults = self._standing is not None and bool(self._standing.rules.consults)
        return consults and self.is_undecided(version)

    def can_be_given(self, version: int) -> bool:
        """Whether there can be orders for this tick now: not before it is known what the evaluation before it
        has decided, nor for an evaluation whose checkpoint would be the second that is being written."""
        if self.is_undecided(version):
            return False
        return version in self._orders or self._unsettled is None or not self._keeps(version)

    def at(self, version: int, now_s: float) -> Orders:
        """The orders for the tick from ``version`` on. Fixed when first asked for: all must get the same.

        A cut waits until there may be one. While one is being written, one that was asked for waits, and one
        that is due every so many steps is left out. A snapshot may be of any version. A pause comes after a
        step, never after an evaluation of which something is still to be decided, and not before a checkpoint
        that is being written is settled, for that would be given up; while there is one, nobody is to compute
        anything.
        """
        if version not in self._orders and self._pauses_at(version):
            tuning, ends = self._standing_at(version)
            self._orders[version] = Orders(tuning=tuning, ends=ends)
        if version not in self._orders:
            every = self._cut_every_steps
            due = every > 0 and self._schedule.steps_before(version + 1) % every == 0
            may = self._schedule.may_cut(version + 1)
            free = may and self._unsettled is None
            finish = self.wants_finish and may
            pause = self.wants_pause and free and not (self.wants_cut or finish)
            pause = pause and self._schedule.trains(version)
            cut = (self.wants_cut or due and not pause or self._keeps(version)) and free
            snapshot = False
            if self._snapshots is not None and not self._waits_for_best(version):
                snapshot = self._snapshots.order(version + 1, now_s)
            if cut:
                self._unsettled = version + 1
            tuning, ends = self._standing_at(version)
            self._orders[version] = Orders(self._shares, cut, snapshot, finish, tuning, ends, pause)
            self.wants_cut &= not cut
            self.wants_finish &= not finish
            self.wants_pause &= not pause
        return self._orders[version]

    def _pauses_at(self, version: int) -> bool:
        before = self._orders.get(version - 1)
        return before is not None and before.pause

    def _standing_at(self, version: int) -> tuple[Tuning, bool]:
        """What becomes of the learning rate, and whether there is no such tick."""
        if self._standing is None:
            return Tuning(), False
        return self._standing.tuning, self._standing.stops(version)

    def forget(self, version: int) -> None:
        """Nobody asks for this tick's orders any more."""
        self._orders.pop(version, None)


def _by_relays(shares: tuple[Share, ...], relays: Mapping[int, str]) -> tuple[Share, ...]:
    """Neighbouring shares of a group are one, at its relay's hands."""
    merged: list[Share] = []
    for share in shares:
        share = replace(share, worker=relays.get(share.group, share.worker))
        if merged and (merged[-1].worker, merged[-1].stop) == (share.worker, share.first):
            share = replace(share, first=merged.pop().first)
        merged.append(share)
    return tuple(merged)
