"""Plans of many jobs that make room for one another: who can wait takes little while others are pressed.

By deadline, each at its lowest level, is the cheapest for each and not for all: a job that is not pressed
runs at the rate that its own window asks for, and fills hours in which another has no choice. Here time has
a price that rises with the load, steeply where all GPUs are taken, and each job in turn plans anew what is
cheapest for it at the prices that the others make, until all fit: best responses, each of which lowers what
the load costs in all. Jobs without a promise come in one after the other, the cheapest first, as long as
all still fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from elasticflow.scheduler.ladder import Floats, Ints
from elasticflow.scheduler.shares import Need, SharePlan, plan_of_shares
from elasticflow.scheduler.timeline import ClusterTimeline

STEEPNESS = 30.0
"""How fast the price rises: with a tenth of the GPUs free one costs 2.5 times as much as with all."""
MOST_STEPS, FINEST_S = 64, 60.0
"""Time is cut at deadlines and in between, so finely."""
SWEEPS, SWEEPS_FOR_ONE = 6, 2
"""How often all take turns, so that those who have promises fit, and so that one more does."""
MOST_PLAYERS, MOST_TURNS = 256, 1000
"""With more players nothing is balanced; after so many turns nobody else is tried. Keeps a decision short."""


@dataclass
class Player:
    """A job in the balance. must_stay: it has a promise. rank: higher ones come in first; cost: then lower.

    lasts_s: of the steps before its deadline. rungs: its choice by step, and sizes: their GPUs; None and
    empty as long as it has made none.
    """

    name: str
    need: Need
    must_stay: bool
    rank: int = 0
    cost: float = 0.0
    is_safe: bool = True
    rungs: Ints | None = None
    lasts_s: Floats = field(default_factory=lambda: np.zeros(0))
    sizes: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _least_gpu_s: float | None = None

    def least_gpu_s(self, now_s: float) -> float:
        """GPU-seconds that it needs at least: at an even rate, GPUs cut as finely as one likes."""
        if self._least_gpu_s is None:
            ladder, left_s = self.need.ladder, self.need.deadline_s - now_s
            rates, sizes = ladder.vectors.rates[ladder.corners], ladder.vectors.sizes[ladder.corners]
            self._least_gpu_s = float(np.interp(self.need.remaining / left_s, rates, sizes)) * left_s
        return self._least_gpu_s


class Prices:
    """The load that the players make over time, and what it costs."""

    def __init__(self, empty: ClusterTimeline, players: Sequence[Player]) -> None:
        self.now_s, self.num_gpus = empty.now_s, int(empty.free.max())
        self.starts_s, ends_s = _grid(
            self.now_s, [one.need.deadline_s for one in players], empty.starts_s[1:]
        )
        self.lasts_s = np.diff(self.starts_s, append=ends_s)
        self.num_turns = 0
        self.load = self.num_gpus - _least(empty, self.starts_s, ends_s)
        for one in players:
            num_steps = int(self.starts_s.searchsorted(one.need.deadline_s, "left"))
            one.lasts_s = np.diff(self.starts_s[:num_steps], append=one.need.deadline_s)

    def overload(self) -> float:
        """GPU-seconds above what there is."""
        return float(np.maximum(self.load - self.num_gpus, 0) @ self.lasts_s)

    def place(self, one: Player, rungs: Ints | None) -> None:
        """The player takes this instead of what it had."""
        if one.rungs is not None:
            self.load[: len(one.sizes)] -= one.sizes
        one.rungs = rungs
        if rungs is not None:
            one.sizes = one.need.ladder.vectors.sizes[rungs]
            self.load[: len(one.sizes)] += one.sizes

    def answer(self, one: Player) -> bool:
        """The player takes what is cheapest for it; whether it can be in time at all."""
        self.num_turns += 1
        if one.rungs is not None:
            self.load[: len(one.sizes)] -= one.sizes
        had, one.rungs = one.rungs, None
        rungs = self._cheapest(one)
        if rungs is None:
            if had is not None:
                self.place(one, had)
            return False
        self.place(one, rungs)
        return True

    def may_fit(self, one: Player, others: Sequence[Player]) -> bool:
        """No deadline asks for more GPU-seconds than there are until then, however they were planned."""
        asked = sorted((each.need.deadline_s, each.least_gpu_s(self.now_s)) for each in (*others, one))
        ends_s, gpu_s = np.array(asked).T
        return bool((gpu_s.cumsum() <= self.num_gpus * (ends_s - self.now_s)).all())

    def _cost(self, load: Ints) -> Floats:
        """Of so many GPUs, for as long as a step lasts: the integral of the price."""
        excess: Floats = np.exp(np.minimum(STEEPNESS * (load / self.num_gpus - 1), 50.0))
        return load + self.num_gpus * excess

    def _cheapest(self, one: Player) -> Ints | None:
        """Rungs by step: of all steps up, those that cost least for an iteration, until it is in time."""
        ladder, num_steps = one.need.ladder, len(one.lasts_s)
        corners, gains = ladder.corners, ladder.gains
        if not num_steps or not len(gains):
            return None
        cost = self._cost(self.load[:num_steps, None] + ladder.vectors.sizes[corners])
        order = ((cost[:, 1:] - cost[:, :-1]) / gains).ravel().argsort(kind="stable")
        done = (one.lasts_s[:, None] * gains).ravel()[order].cumsum()
        needed = one.need.remaining
        for _ in range(3):
            if done[-1] < needed:
                return None
            taken = int(done.searchsorted(needed)) + 1
            rungs = corners[np.bincount(order[:taken] // len(gains), minlength=num_steps)]
            missing = one.need.remaining - self._done(one, rungs)
            if missing <= 0:
                return rungs
            needed += 1.01 * missing
        return None

    def _done(self, one: Player, rungs: Ints) -> float:
        """Iterations by its deadline, the changes paid for."""
        vectors, need = one.need.ladder.vectors, one.need
        before = np.empty_like(rungs)
        before[0], before[1:] = need.num_gpus.bit_length(), vectors.bits[rungs[:-1]]
        lost = vectors.cost[before, rungs]
        if need.num_gpus and vectors.sizes[rungs[0]] == need.num_gpus:
            lost[0] = need.lost_s
        return float((vectors.rates[rungs] * np.maximum(one.lasts_s - lost, 0.0)).sum())


def balance(players: Sequence[Player], empty: ClusterTimeline) -> dict[str, SharePlan]:
    """Plans for as many as can be, those with a promise first of all; empty if these do not come to fit.

    empty: what there is before anybody takes anything.
    """
    if not empty.free.max() or len(players) > MOST_PLAYERS:
        return {}
    one = Prices(empty, players)
    inside: list[Player] = [each for each in players if each.must_stay]
    if not all([one.answer(each) for each in inside]) or not _settle(one, inside, SWEEPS):
        return {}
    for each in sorted(players, key=lambda each: (-each.rank, each.cost)):
        if one.num_turns > MOST_TURNS:
            break
        if not each.must_stay and one.may_fit(each, inside):
            _try(one, inside, each)
    plans = {}
    for each in inside:
        assert each.rungs is not None
        plan = plan_of_shares(each.need, one.starts_s, each.rungs)
        if plan is None:
            return {}
        plans[each.name] = plan if each.is_safe else plan._replace(is_safe=False)
    return plans


def _settle(one: Prices, inside: Sequence[Player], most: int) -> bool:
    """All take turns until everything fits, or it does not get better any more."""
    overload = one.overload()
    for _ in range(most):
        if not overload:
            return True
        for each in inside:
            one.answer(each)
        before, overload = overload, one.overload()
        if overload > 0.99 * before:
            break
    return not overload


def _try(one: Prices, inside: list[Player], outsider: Player) -> None:
    """Takes the outsider in if then all still fit."""
    kept = [(each, each.rungs) for each in inside]
    if not one.answer(outsider):
        return
    if _settle(one, [*inside, outsider], SWEEPS_FOR_ONE):
        inside.append(outsider)
        return
    one.place(outsider, None)
    for each, rungs in kept:
        one.place(each, rungs)


def _least(empty: ClusterTimeline, starts_s: Floats, end_s: float) -> Ints:
    """GPUs that there are all through each of these steps."""
    firsts = empty.starts_s.searchsorted(starts_s, "right") - 1
    lasts = empty.starts_s.searchsorted(np.append(starts_s[1:], end_s), "left")
    return np.array([empty.free[a : max(b, a + 1)].min() for a, b in zip(firsts, lasts, strict=True)])


def _grid(now_s: float, deadlines_s: Sequence[float], changes_s: Floats) -> tuple[Floats, float]:
    """When steps start, and when the last ends: at each deadline, unless there are too many, and between.

    changes_s: of what there is; those before the last deadline count like deadlines.
    """
    last_s = max([now_s, *deadlines_s])
    known = [one for one in (*deadlines_s, *changes_s[changes_s < last_s].tolist()) if one > now_s]
    ends = np.unique(np.array(known or [now_s + 1.0]))
    if len(ends) > MOST_STEPS // 2:
        ends = ends[np.linspace(0, len(ends) - 1, MOST_STEPS // 2).astype(int)]
    edges = np.concatenate([[now_s], ends])
    while len(edges) <= MOST_STEPS:
        lasts_s = np.diff(edges)
        widest = int(lasts_s.argmax())
        if lasts_s[widest] < 2 * FINEST_S:
            break
        edges = np.insert(edges, widest + 1, (edges[widest] + edges[widest + 1]) / 2)
    return edges[:-1], float(edges[-1])
