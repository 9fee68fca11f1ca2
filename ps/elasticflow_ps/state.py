"""All decisions of a parameter server: events and the time in, actions out.

Knows nothing of sockets, arrays, disks or clocks. What is pushed is opaque here: values go into the
slice tree and come out of it in an ApplyAction, summed by the function given.

A server gathers one tick at a time. Its newest whole version is ``version``; tick ``version`` is the
one whose slices are being gathered. Parcels complete one by one; when all have been applied, the
next version is whole. The version before is kept, because servers may differ by one.

Asynchronously each slice of a parcel is applied as it comes, whatever the order, the first of each slice that
comes and no other. A parcel is complete when all have come; the rest is as above. In between it is a mixture,
and whoever asks for the version of the tick in work gets that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from elasticflow.step.schedule import Kind, Schedule
from elasticflow.step.slices import Node, SliceTree
from elasticflow.wire.messages import Pull, Push, Share
from elasticflow_ps.lateness import Lateness
from elasticflow_ps.snapshots import Snapshots

# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PushEvent:
    """A worker pushed a node; ``value`` is None if the node holds no records."""

    worker: str
    push: Push
    value: Any


@dataclass(frozen=True)
class PullEvent:
    """A worker asks for a version."""

    worker: str
    pull: Pull


@dataclass(frozen=True)
class InitialEvent:
    """A worker sent the first values of a parcel."""

    parcel: int
    value: Any


@dataclass(frozen=True)
class OpenedEvent:
    """A worker connected."""

    worker: str


@dataclass(frozen=True)
class ClosedEvent:
    """A worker's connection closed."""

    worker: str


@dataclass(frozen=True)
class PlanEvent:
    """The master has a new plan."""

    number: int
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class CutEvent:
    """The master wants a checkpoint after the next tick."""


@dataclass(frozen=True)
class FinishEvent:
    """The master wants the run to end after the next tick."""


@dataclass(frozen=True)
class SettledEvent:
    """The checkpoint that was ordered last is committed or given up: the next may be ordered."""

    tick: int


@dataclass(frozen=True)
class ClipEvent:
    """The norm of all gradients of a tick is known; or the servers agree to ``skip`` it."""

    tick: int
    norm: float
    skip: bool = False


@dataclass(frozen=True)
class TimeEvent:
    """Time has passed."""


Event: TypeAlias = (
    PushEvent | PullEvent | InitialEvent | OpenedEvent | ClosedEvent | PlanEvent | CutEvent
    | FinishEvent | SettledEvent | ClipEvent | TimeEvent
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Orders:
    """What governs one tick; from the leading server, or as the workers' pushes repeat it."""

    shares: tuple[Share, ...] = ()
    cut: bool = False
    snapshot: bool = False
    finish: bool = False


@dataclass(frozen=True)
class InitialiseAction:
    """Take these as the first values of a parcel."""

    parcel: int
    value: Any


@dataclass(frozen=True)
class ApplyAction:
    """Make the next version of a parcel. ``root`` is None if the tick holds no records, or is skipped.

    Asynchronously: make it, or go on making it, with one slice, ``root``, of the tick. before: updates of the
    tick that are in it already. late: those of them that were not in what the slice was computed from. slice:
    its number.
    """

    tick: int
    parcel: int
    root: Any
    lr: float | None
    norm: float | None
    before: int = 0
    late: int = 0
    slice: int = -1


@dataclass(frozen=True)
class NormsAction:
    """All roots of a tick are there: tell server 0 what all must know of them, before any is applied."""

    tick: int
    roots: tuple[Any, ...]


@dataclass(frozen=True)
class ServeAction:
    """Send a parcel of a version to a worker; without arrays if it has the ``same`` already.

    updates: with so many of the tick that starts from this version, asynchronously. given: slices of it that
    others were asked for, whoever's they were.
    """

    worker: str
    version: int
    parcel: int
    same: bool
    orders: Orders | None
    updates: int = 0
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class GoneAction:
    """Tell a worker that what it asked for is past."""

    worker: str
    latest: int


@dataclass(frozen=True)
class AskInitialAction:
    """Ask a worker for the first values."""

    worker: str


@dataclass(frozen=True)
class ComputeAction:
    """Ask an idle worker for slices that are overdue. careful: those of them that may be deadly."""

    worker: str
    tick: int
    slices: tuple[int, ...]
    careful: tuple[int, ...] = ()


@dataclass(frozen=True)
class VersionAction:
    """A version is whole. cut: it is to be checkpointed. snapshot: it is to be kept in memory as well.

    last: the run ends with it.
    """

    version: int
    cut: bool
    snapshot: bool
    last: bool


@dataclass(frozen=True)
class DropAction:
    """A message made no sense, and was dropped."""

    worker: str
    reason: str


Action: TypeAlias = (
    InitialiseAction | ApplyAction | NormsAction | ServeAction | GoneAction | AskInitialAction
    | ComputeAction | VersionAction | DropAction
)  # fmt: skip


@dataclass
class _Wait:
    """A worker that waits for ``version`` and has the parameters of ``have``. served: what it was sent."""

    version: int
    have: int
    served: set[int] = field(default_factory=set)


@dataclass
class _Backup:
    """An overdue slice handed to ``worker`` at ``since_s``, among ``count`` slices."""

    worker: str
    since_s: float
    count: int


@dataclass
class _Tick:
    """What is known of the tick being gathered."""

    trees: list[SliceTree[Any]]
    opened_s: float
    updates: list[int]
    """By parcel: asynchronous updates so far."""
    applied: set[int] = field(default_factory=set)
    roots: dict[int, Any] = field(default_factory=dict)
    backups: dict[int, _Backup] = field(default_factory=dict)
    pushed: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By slice: who pushed its first parcel, and when the latest. The other parcels are on their way."""
    pushing: set[str] = field(default_factory=set)
    """Workers in the middle of a node: they may wait for the next version, but are not idle."""
    felled: dict[int, set[str]] = field(default_factory=dict)
    """By slice: workers that went while they may have been computing it."""
    asked: dict[str, set[int]] = field(default_factory=dict)
    """By worker: the overdue slices it was asked for. One by one they come from it, or from somebody else, or
    it cannot do them: it is not asked again."""
    lr: float | None = None
    cut: bool = False
    snapshot: bool = False
    finish: bool = False
    norm: float | None = None


DEADLY = 2
"""A slice which so many workers may have died of is computed with care from then on."""


class ServerState:
    """One generation of one server. See the module's docstring.

    combine: sums two values of sibling nodes. leads: this is server 0. agrees: nothing is applied before
    all servers know of the whole step: its global norm, by which gradients are clipped, and whether it is to
    be skipped, since there are numbers in it that are none. start: the version
    to go on from, or None if a worker has to send the first values. cut_every_steps: order a
    checkpoint every so many steps, if this server leads. snapshots: knows when to order one.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        num_parcels: int,
        combine: Callable[[Any, Any], Any],
        leads: bool,
        agrees: bool,
        start: int | None,
        cut_every_steps: int = 0,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.schedule = schedule
        self.version = start if start is not None else 0
        self.finished = self.version >= schedule.total_ticks
        self._oldest = self.version
        self._num_parcels = num_parcels
        self._combine = lambda left, right: (
            right if left is None else left if right is None else combine(left, right)
        )
        self._leads = leads
        self._agrees = agrees
        self._uninitialised = set(range(num_parcels)) if start is None else set()
        self._waits: dict[str, _Wait] = {}
        self._connected: set[str] = set()
        self._lateness = {kind: Lateness() for kind in Kind}
        self._absent: set[str] = set()
        """Workers found missing: nobody waits for their slices until they push in time again."""
        self._plan = PlanEvent(-1, ())
        self._orders: dict[int, Orders] = {}
        self._want_cut = self._want_finish = False
        self._cut_every_steps = cut_every_steps
        self._snapshots = snapshots
        self._unsettled: int | None = None
        self._now_s = 0.0
        self._tick = self._new_tick(0.0)
        self._handlers: dict[type, Callable[[Any, float], list[Action]]] = {
            PushEvent: self._on_push,
            PullEvent: self._on_pull,
            InitialEvent: self._on_initial,
            OpenedEvent: self._on_opened,
            ClosedEvent: self._on_closed,
            PlanEvent: self._on_plan,
            CutEvent: self._on_cut,
            FinishEvent: self._on_finish,
            SettledEvent: self._on_settled,
            ClipEvent: self._on_clip,
            TimeEvent: lambda event, now_s: [],
        }

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do, in this order, now that ``event`` has happened."""
        self._now_s = now_s
        actions = self._handlers[type(event)](event, now_s)
        return actions + self._hand_out_overdue(now_s)

    def next_due_s(self) -> float | None:
        """When to send a TimeEvent at the latest; None if nothing becomes overdue."""
        if not self._waits:
            return None
        missing = self._missing()
        if not self._idle(missing):
            return None
        due = min((self._due_s(number) for number in missing), default=float("inf"))
        return None if due == float("inf") else due

    def standing(self) -> tuple[set[int], list[str]]:
        """What is waited for: the slices that are missing of the tick in work, and by which workers."""
        waiting = [worker for worker, wait in self._waits.items() if wait.version > self.version]
        return self._missing(), sorted(waiting)

    # --- gathering -------------------------------------------------------------------------------

    def _new_tick(self, now_s: float) -> _Tick:
        trees = [SliceTree[Any](self.schedule.num_slices, self._combine) for _ in range(self._num_parcels)]
        return _Tick(trees, now_s, [0] * self._num_parcels)

    def _on_push(self, event: PushEvent, now_s: float) -> list[Action]:
        push, worker = event.push, event.worker
        node = Node(push.level, push.index)
        past = push.tick < self.version
        if self.finished and not past:
            return []  # of one that came after the end
        if push.tick > self.version or self._uninitialised:
            return [DropAction(worker, f"push for tick {push.tick} while at {self.version}")]
        if not 0 <= push.parcel < self._num_parcels or not self._tick.trees[0].fits(node):
            return [DropAction(worker, f"push for parcel {push.parcel}, {node}: there is no such thing")]
        numbers = (push.slice_s, push.lr or 0.0, push.base)
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            return [DropAction(worker, f"push with slice_s, lr, base {numbers}")]
        if node.level and self.schedule.applies_slices(push.tick):
            return [DropAction(worker, f"push of {node}, where slices are applied one by one")]
        # To wait comes first: whoever completes the tick is then served once, like all who wait.
        actions = self._wait_for(worker, push.tick + 1, push.tick) if push.pull else []
        return actions if past else actions + self._gather(event, node, now_s)

    def _gather(self, event: PushEvent, node: Node, now_s: float) -> list[Action]:
        push, tick = event.push, self._tick
        (tick.pushing.add if push.more else tick.pushing.discard)(event.worker)
        if push.slice_s > 0:
            self._absent.discard(event.worker)
            self._now_lateness.record(event.worker, push.slice_s)
        tick.lr = push.lr
        tick.cut |= push.cut
        tick.snapshot |= push.snapshot
        tick.finish |= push.finish
        self._note_lag(event.worker, node, push.slice_s, now_s)
        for number in range(node.first, node.stop):
            if tick.pushed.get(number, (event.worker, now_s))[0] == event.worker:
                tick.pushed[number] = (event.worker, now_s)
        if push.parcel in tick.applied or push.parcel in tick.roots:
            return []
        if self.schedule.applies_slices(self.version):
            return self._apply_slice(event, node, now_s)
        tree = tick.trees[push.parcel]
        tree.add(node, event.value)
        if not tree.complete:
            return []
        root = tree.take_root()
        if not self._agrees or self.schedule.evaluates(self.version):
            return self._apply(push.parcel, root, now_s)
        tick.roots[push.parcel] = root
        if len(tick.roots) < self._num_parcels:
            return []
        return [NormsAction(self.version, tuple(tick.roots[n] for n in range(self._num_parcels)))]

    def _note_lag(self, worker: str, node: Node, slice_s: float, now_s: float) -> None:
        """Of a worker's first push of its own slices in this tick, unless this server began with it."""
        tick = self._tick
        if not (tick.opened_s and slice_s > 0) or node.first in tick.pushed or node.first in tick.backups:
            return
        if any(share.worker == worker and share.first == node.first for share in self._shares()):
            taken_s = (node.stop - node.first) * slice_s
            self._now_lateness.record_lag(worker, now_s - tick.opened_s - taken_s)

    def _on_clip(self, event: ClipEvent, now_s: float) -> list[Action]:
        if event.tick != self.version or len(self._tick.roots) < self._num_parcels:
            return []
        if event.norm < 0:
            return [DropAction("", f"norm {event.norm} of tick {event.tick}")]
        self._tick.norm = event.norm
        actions: list[Action] = []
        for parcel, root in sorted(self._tick.roots.items()):
            actions += self._apply(parcel, None if event.skip else root, now_s)
        return actions

    def _apply(self, parcel: int, root: Any, now_s: float) -> list[Action]:
        tick = self._tick
        return [
            ApplyAction(self.version, parcel, root, tick.lr, tick.norm),
            *self._complete_parcel(parcel, now_s),
        ]

    def _apply_slice(self, event: PushEvent, node: Node, now_s: float) -> list[Action]:
        """The first push of a slice; the tree only knows which there were."""
        push, tick = event.push, self._tick
        tree = tick.trees[push.parcel]
        if not tree.add(node, None):
            return []
        before = tick.updates[push.parcel]
        late = max(0, before - push.base)
        actions: list[Action] = [
            ApplyAction(self.version, push.parcel, event.value, push.lr, None, before, late, node.index)
        ]
        tick.updates[push.parcel] += event.value is not None
        return actions + (self._complete_parcel(push.parcel, now_s) if tree.complete else [])

    def _complete_parcel(self, parcel: int, now_s: float) -> list[Action]:
        tick = self._tick
        actions: list[Action] = []
        tick.applied.add(parcel)
        for worker, wait in self._waits.items():
            if wait.version == self.version + 1:
                actions += self._serve(worker, wait, {parcel})
        if len(tick.applied) == self._num_parcels:
            actions += self._complete_version(now_s)
        return actions

    def _complete_version(self, now_s: float) -> list[Action]:
        tick, self._tick = self._tick, self._new_tick(now_s)
        self._orders.pop(self.version - 1, None)
        self.version += 1
        self.finished = tick.finish or self.version >= self.schedule.total_ticks
        cut = tick.cut or self.finished
        actions: list[Action] = [VersionAction(self.version, cut, tick.snapshot, self.finished)]
        for worker, wait in list(self._waits.items()):
            if wait.version <= self.version:
                actions += self._answer(worker, wait)
        return actions

    def _on_initial(self, event: InitialEvent, now_s: float) -> list[Action]:
        if event.parcel not in self._uninitialised:
            return []  # it has come from another worker, or there is no such parcel
        self._uninitialised.remove(event.parcel)
        self._tick.opened_s = now_s
        actions: list[Action] = [InitialiseAction(event.parcel, event.value)]
        if not self._uninitialised:
            for worker, wait in list(self._waits.items()):
                actions += self._answer(worker, wait)
        return actions

    # --- serving ---------------------------------------------------------------------------------

    def _on_pull(self, event: PullEvent, now_s: float) -> list[Action]:
        if not -1 <= event.pull.version <= self.version + 1:
            return [
                DropAction(event.worker, f"asks for version {event.pull.version} while at {self.version}")
            ]
        return self._wait_for(event.worker, event.pull.version, event.pull.have)

    def _wait_for(self, worker: str, version: int, have: int) -> list[Action]:
        wait = self._waits.get(worker)
        if wait is None or wait.version != version:
            wait = self._waits[worker] = _Wait(version, have)
        if self._uninitialised:
            return [AskInitialAction(worker)]
        return self._answer(worker, wait)

    def _answer(self, worker: str, wait: _Wait) -> list[Action]:
        """Serves a waiting worker what is there of its version; tells it if that is past."""
        if wait.version < 0:
            wait.version = self.version
        if wait.version > self.version:
            return self._serve(worker, wait, self._tick.applied)
        del self._waits[worker]
        if wait.version < max(self._oldest, self.version - 1):
            return [GoneAction(worker, self.version)]
        return self._serve(worker, wait, set(range(self._num_parcels)))

    def _serve(self, worker: str, wait: _Wait, parcels: set[int]) -> list[Action]:
        """Sends those of the parcels of a worker's version that it was not sent yet."""
        version = wait.version
        same = wait.have >= self._data_version(version)
        fresh = sorted(parcels - wait.served)
        wait.served.update(fresh)
        actions: list[Action] = []
        for parcel in fresh:
            orders, updates = self._orders_with(version, parcel), self._updates(version, parcel)
            given = self._given(worker) if orders and version == self.version else ()
            actions.append(ServeAction(worker, version, parcel, same and not updates, orders, updates, given))
        return actions

    def _given(self, worker: str) -> tuple[int, ...]:
        """Slices that others than this worker were asked for, where they are applied one by one."""
        if not self.schedule.applies_slices(self.version):
            return ()
        return tuple(sorted(n for n, backup in self._tick.backups.items() if backup.worker != worker))

    def _updates(self, version: int, parcel: int) -> int:
        """Those that there are of the tick from ``version`` on: all, if it is past."""
        if version > self.version or not self.schedule.applies_slices(version):
            return 0
        return self._tick.updates[parcel] if version == self.version else self.schedule.num_slices

    def _orders_with(self, version: int, parcel: int) -> Orders | None:
        """Orders travel with the leading server's first parcel."""
        return self._orders_for(version) if self._leads and parcel == 0 else None

    def _data_version(self, version: int) -> int:
        """The first version with the same parameters: an evaluation leaves them as they are."""
        return version - 1 if version > 0 and self.schedule.evaluates(version - 1) else version

    def _orders_for(self, version: int) -> Orders:
        """The orders for the tick from ``version`` on. Fixed when first asked for: all must get the same.

        A cut before an evaluation waits until after it: there is one checkpoint a step. While one is
        being written, one that was asked for waits, and one that is due every so many steps is left out.
        A snapshot may be of any version.
        """
        if version not in self._orders:
            every = self._cut_every_steps
            due = every > 0 and self.schedule.steps_before(version + 1) % every == 0
            wait = self.schedule.evaluates(version + 1)
            cut = (self._want_cut or due) and not wait and self._unsettled is None
            finish = self._want_finish and not wait
            snapshot = self._snapshots is not None and self._snapshots.order(version + 1, self._now_s)
            if cut:
                self._unsettled = version + 1
            self._orders[version] = Orders(self._plan.shares, cut, snapshot, finish)
            self._want_cut &= not cut
            self._want_finish &= not finish
        return self._orders[version]

    # --- who does what ---------------------------------------------------------------------------

    def _on_plan(self, event: PlanEvent, now_s: float) -> list[Action]:
        if event.number > self._plan.number:
            old = {share.worker for share in self._plan.shares}
            self._give_up(old - {share.worker for share in event.shares})
            self._plan = event
        return []

    def _give_up(self, workers: set[str]) -> None:
        """The master has no more work for these: they are silent, or lost, or leave after this tick."""
        self._absent |= workers
        for worker in workers:  # the master may know of a death before its connection closes
            self._note_felled(worker)
        backups = self._tick.backups
        self._tick.backups = {n: backup for n, backup in backups.items() if backup.worker not in workers}

    def _on_cut(self, event: CutEvent, now_s: float) -> list[Action]:
        self._want_cut = True
        return []

    def _on_finish(self, event: FinishEvent, now_s: float) -> list[Action]:
        self._want_finish = True
        return []

    def _on_settled(self, event: SettledEvent, now_s: float) -> list[Action]:
        if self._unsettled is not None and event.tick >= self._unsettled:
            self._unsettled = None
        return []

    def _on_opened(self, event: OpenedEvent, now_s: float) -> list[Action]:
        self._connected.add(event.worker)
        self._forget(event.worker)
        for felled in self._tick.felled.values():
            felled.discard(event.worker)  # it only had let go
        return []

    def _on_closed(self, event: ClosedEvent, now_s: float) -> list[Action]:
        self._connected.discard(event.worker)
        self._note_felled(event.worker)
        self._waits.pop(event.worker, None)
        self._forget(event.worker)
        return []

    def _note_felled(self, worker: str) -> None:
        """Any slice that it had, and has not pushed, may be why it is gone. What is true is found out by
        whoever tries it with care."""
        mine = set(self._tick.asked.get(worker, ()))
        for share in self._shares():
            mine.update(range(share.first, share.stop) if share.worker == worker else ())
        for number in mine & self._missing() if mine else ():
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

    @property
    def _now_lateness(self) -> Lateness:
        """What is known of slices like those of the present tick: an evaluation's take another time."""
        evaluates = self.schedule.evaluates(self.version)
        return self._lateness[Kind.EVALUATE if evaluates else Kind.TRAIN]

    def _idle(self, missing: set[int]) -> list[str]:
        """Workers that wait for the next version, and were not asked for any of the missing slices."""
        if self._uninitialised or self.finished:
            return []
        waiting = {w for w, wait in self._waits.items() if wait.version == self.version + 1}
        waiting -= self._tick.pushing
        return sorted(worker for worker in waiting if not self._tick.asked.get(worker, set()) & missing)

    def _missing(self) -> set[int]:
        """Slices that some parcel still lacks."""
        tick = self._tick
        lacking: set[int] = set()
        for parcel, tree in enumerate(tick.trees):
            if parcel not in tick.applied and parcel not in tick.roots:
                lacking.update(tree.missing())
        return lacking

    def _shares(self) -> tuple[Share, ...]:
        """The plan as the workers of this tick know it; other servers take the latest they heard of."""
        orders = self._orders.get(self.version)
        return orders.shares if orders else self._plan.shares

    def _due_s(self, number: int) -> float:
        """When slice ``number`` is overdue, at the hands of whoever should be computing it now."""
        lateness = self._now_lateness
        pusher, since_s = self._tick.pushed.get(number, ("", 0.0))
        if pusher in self._connected:
            return lateness.due_s(pusher, since_s, 0)
        backup = self._tick.backups.get(number)
        if backup:
            if backup.worker not in self._connected:
                return backup.since_s
            return lateness.due_s(backup.worker, backup.since_s, backup.count)
        for share in self._shares():
            if share.first <= number < share.stop and self._works(share.worker):
                return lateness.due_s(share.worker, self._tick.opened_s, share.stop - share.first, lags=True)
        return self._tick.opened_s

    def _works(self, worker: str) -> bool:
        """Whether to wait for a worker's slices: who waits for the next version will push no more."""
        wait = self._waits.get(worker)
        done = wait is not None and wait.version == self.version + 1 and worker not in self._tick.pushing
        return worker in self._connected and worker not in self._absent and not done

    def _hand_out_overdue(self, now_s: float) -> list[Action]:
        """Spreads overdue slices over the idle workers."""
        if not self._waits:
            return []
        missing = self._missing()
        idle = self._idle(missing)
        overdue = sorted(number for number in missing if self._due_s(number) <= now_s) if idle else []
        if not overdue:
            return self._hand_over(idle, missing, now_s)
        self._mark_absent(overdue)
        actions: list[Action] = []
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
        return ComputeAction(worker, self.version, tuple(slices), careful)

    def _hand_over(self, idle: list[str], missing: set[int], now_s: float) -> list[Action]:
        """Where slices are applied one by one: gives the idle some that their owners have not begun.

        One each, the last of whoever would be done last, if that makes it sooner. Owners hear of it before
        they begin it. The leading server does this for all.
        """
        if not (self._leads and self.schedule.applies_slices(self.version)):
            return []
        slice_s = self._now_lateness.slice_s
        actions: list[Action] = []
        for worker in idle:
            left = missing - self._tick.backups.keys()
            longest, last = 0.0, -1
            for share in self._shares():
                mine = [number for number in range(share.first, share.stop) if number in left]
                if len(mine) > 1 and len(mine) * slice_s(share.worker) > longest:
                    longest, last = len(mine) * slice_s(share.worker), mine[-1]
            if slice_s(worker) < longest:
                actions.append(self._ask_for(worker, [last], now_s))
        return actions

    def _mark_absent(self, overdue: list[int]) -> None:
        """Of those who had these slices last: pushed a part, were asked, or have them by the plan."""
        for number in overdue:
            backup = self._tick.backups.pop(number, None)
            pusher, _ = self._tick.pushed.pop(number, ("", 0.0))
            shares = [share for share in self._shares() if share.first <= number < share.stop]
            owners = {share.worker for share in shares if self._works(share.worker)}
            self._absent |= {pusher} if pusher else {backup.worker} if backup else owners
