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
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.step.slices import Node, SliceTree
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import Pull, Push, Share
from elasticflow_ps.backups import Backups, ComputeAction, Lack
from elasticflow_ps.ordering import Ordering, Orders
from elasticflow_ps.snapshots import Snapshots
from elasticflow_ps.waiting import Wait, Waiting

FAR_BACK = 100
"""Who has a version that is older by more than this gets all, whether it was changed since or not: each tick
in between would have to be looked at, for each parcel."""

# --- events --------------------------------------------------------------------------------------


class PushEvent(msgspec.Struct, frozen=True):
    """A worker pushed a node; ``value`` is None if the node holds no records."""

    worker: str
    push: Push
    value: Any


class PullEvent(msgspec.Struct, frozen=True):
    """A worker asks for a version."""

    worker: str
    pull: Pull


class InitialEvent(msgspec.Struct, frozen=True):
    """A worker sent the first values of a parcel."""

    parcel: int
    value: Any


class OpenedEvent(msgspec.Struct, frozen=True):
    """A worker connected."""

    worker: str


class ClosedEvent(msgspec.Struct, frozen=True):
    """A worker's connection closed."""

    worker: str


class PlanEvent(msgspec.Struct, frozen=True):
    """The master has a new plan."""

    number: int
    shares: tuple[Share, ...]


class FollowEvent(msgspec.Struct, frozen=True):
    """There is another master, which numbers its plans anew."""


class CutEvent(msgspec.Struct, frozen=True):
    """The master wants a checkpoint after the next tick."""


class FinishEvent(msgspec.Struct, frozen=True):
    """The master wants the run to end after the next tick."""


class PauseEvent(msgspec.Struct, frozen=True):
    """The master wants all servers to stop after the next step, with the same version."""


class SettledEvent(msgspec.Struct, frozen=True):
    """The checkpoint that was ordered last is committed or given up: the next may be ordered."""

    tick: int


class ClipEvent(msgspec.Struct, frozen=True):
    """What all servers told in a round is known: see ``Clip``."""

    tick: int
    norm: float
    skip: bool = False
    round: int = 0
    trust: tuple[tuple[int, float], ...] = ()


class DecidedEvent(msgspec.Struct, frozen=True):
    """What follows from the evaluation that made the newest version is known to the leading server."""

    version: int
    standing: WatchStanding


class TimeEvent(msgspec.Struct, frozen=True):
    """Time has passed."""


Event: TypeAlias = (
    PushEvent | PullEvent | InitialEvent | OpenedEvent | ClosedEvent | PlanEvent | FollowEvent | CutEvent
    | FinishEvent | PauseEvent | SettledEvent | ClipEvent | DecidedEvent | TimeEvent
)  # fmt: skip

# --- actions -------------------------------------------------------------------------------------


class InitialiseAction(msgspec.Struct, frozen=True):
    """Take these as the first values of a parcel."""

    parcel: int
    value: Any


class ApplyAction(msgspec.Struct, frozen=True):
    """Make the next version of a parcel. ``root`` is None if the tick holds no records, or is skipped.

    Asynchronously: make it, or go on making it, with one slice, ``root``, of the tick. before: updates of the
    tick that are in it already. late: those of them that were not in what the slice was computed from. slice:
    its number. trust: see ``Clip``.
    """

    tick: int
    parcel: int
    root: Any
    lr: float | None
    norm: float | None
    before: int = 0
    late: int = 0
    slice: int = -1
    trust: tuple[tuple[int, float], ...] = ()


class NormsAction(msgspec.Struct, frozen=True):
    """All roots of a tick are there: tell server 0 what all must know of them, before any is applied.

    norm: of all gradients, in the second round.
    """

    tick: int
    roots: tuple[Any, ...]
    round: int = 0
    norm: float | None = None


class ServeAction(msgspec.Struct, frozen=True):
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


class ConsultAction(msgspec.Struct, frozen=True):
    """Ask a worker what the program's ``on_epoch`` says to the evaluation that made the newest version."""

    worker: str


class GoneAction(msgspec.Struct, frozen=True):
    """Tell a worker that what it asked for is past."""

    worker: str
    latest: int


class AskInitialAction(msgspec.Struct, frozen=True):
    """Ask a worker for the first values."""

    worker: str


class VersionAction(msgspec.Struct, frozen=True):
    """A version is whole. cut: it is to be checkpointed. snapshot: it is to be kept in memory as well.

    last: the run ends with it. pause: nothing is made of it until all begin anew.
    """

    version: int
    cut: bool
    snapshot: bool
    last: bool
    pause: bool = False


class DropAction(msgspec.Struct, frozen=True):
    """A message made no sense, and was dropped."""

    worker: str
    reason: str


Action: TypeAlias = (
    InitialiseAction | ApplyAction | NormsAction | ServeAction | GoneAction | AskInitialAction
    | ComputeAction | VersionAction | ConsultAction | DropAction
)  # fmt: skip


def some(combine: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The same, of values that may be None, of a node without records."""
    return lambda left, right: right if left is None else left if right is None else combine(left, right)


def oddity(push: Push, num_parcels: int, num_slices: int) -> str:
    """Why a push makes no sense, whatever the tick; "" if it does."""
    node, levels = Node(push.level, push.index), num_slices.bit_length()
    if not (0 <= push.parcel < num_parcels and 0 <= node.level < levels and 0 <= node.first < num_slices):
        return f"push for parcel {push.parcel}, {node}: there is no such thing"
    numbers = (push.slice_s, push.lr or 0.0, push.base)
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return f"push with slice_s, lr, base {numbers}"
    return ""


class _Gathered:
    """What has come of the tick in work. lr, cut, snapshot, finish, pause: what pushes say of it.

    combine: sums two values of sibling nodes; None: no records.
    """

    def __init__(self, num_parcels: int, num_slices: int, combine: Callable[[Any, Any], Any]) -> None:
        self._shape = num_parcels, num_slices, combine
        self.trees = [SliceTree[Any](num_slices, combine) for _ in range(num_parcels)]
        self.updates = [0] * num_parcels
        """By parcel: asynchronous updates so far."""
        self.applied: set[int] = set()
        self.roots: dict[int, Any] = {}
        """By parcel: sums that are whole, and wait for what all servers agree on."""
        self.round, self.norm = 0, 0.0
        """Of what servers agree on: how often they have, and on which norm of all gradients."""
        self.lr: float | None = None
        self.cut = self.snapshot = self.finish = self.pause = False

    def anew(self) -> _Gathered:
        """Of the next tick nothing has come."""
        return _Gathered(*self._shape)

    def missing(self) -> set[int]:
        """Slices that some parcel still lacks."""
        lacking: set[int] = set()
        for parcel, tree in enumerate(self.trees):
            if parcel not in self.applied and parcel not in self.roots:
                lacking.update(tree.missing())
        return lacking


class ServerState:
    """One generation of one server. See the module's docstring.

    combine: sums two values of sibling nodes. leads: this is server 0. rounds: so often servers tell each
    other of the whole step before any applies it: its global norm, by which gradients are clipped, whether it
    is to be skipped, since there are numbers in it that are none, and norms of tensors. start: the version to
    go on from, or None if a worker has to send the first values. cut_every_steps: order a checkpoint every so
    many steps, if this server leads. snapshots: knows when to order one. changes: whether a tick
    makes something else of a parcel; None: all are changed by training alone. standing: what evaluations
    have decided by ``start``; None: they decide nothing. relays: by group of workers, who pushes their sums.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        num_parcels: int,
        changes: Callable[[int, Work], bool] | None = None,
        combine: Callable[[Any, Any], Any],
        leads: bool,
        rounds: int,
        start: int | None,
        cut_every_steps: int = 0,
        snapshots: Snapshots | None = None,
        standing: WatchStanding | None = None,
        relays: Mapping[int, str] | None = None,
    ) -> None:
        self.schedule = schedule
        self.version = start if start is not None else 0
        stops = standing is not None and standing.stops(self.version)
        self.finished = self.version >= schedule.total_ticks or stops
        self.paused = False
        """Nothing is made of the newest version, which is served: all are to begin anew from there."""
        self._oldest = self.version
        self._num_parcels = num_parcels
        self._changes = changes or (lambda parcel, work: work.kind is Kind.TRAIN)
        self._leads = leads
        self._rounds = rounds
        self._uninitialised = set(range(num_parcels)) if start is None else set()
        self._waiting = Waiting()
        self._backups = Backups(schedule, leads=leads)
        self._ordering = Ordering(schedule, cut_every_steps, snapshots, standing, self.version, relays)
        self._now_s = 0.0
        self._tick = _Gathered(num_parcels, schedule.num_slices, some(combine))
        self._backups.begin(self.version, 0.0)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do, in this order, now that ``event`` has happened."""
        self._now_s = now_s
        actions = _HANDLERS[type(event)](self, event, now_s)
        if not self._waiting.waits:
            return actions
        return [*actions, *self._backups.hand_out(self._lack(), now_s), *self._consult()]

    def next_due_s(self) -> float | None:
        """When to send a TimeEvent at the latest; None if nothing becomes overdue."""
        return self._backups.due_s(self._lack()) if self._waiting.waits else None

    def standing(self) -> tuple[set[int], list[str]]:
        """What is waited for: the slices that are missing of the tick in work, and by which workers."""
        return self._tick.missing(), self._waiting.beyond(self.version)

    # --- gathering -------------------------------------------------------------------------------

    def _lack(self) -> Lack:
        """Of the tick in work. Nobody waits for it while there is nothing to compute from, or towards."""
        waiting: set[str] = set()
        if not self._uninitialised and not self.finished and not self.paused:
            waiting = self._waiting.idle(self.version + 1)
        return Lack(self._tick.missing, waiting, self._ordering.shares(self.version))

    def _on_push(self, event: PushEvent, now_s: float) -> list[Action]:
        push, worker = event.push, event.worker
        node = Node(push.level, push.index)
        # What is past is in the version, and changes nothing; but its sender waits for what comes next.
        past = push.tick < self.version
        if (self.finished or self.paused) and not past:
            return []  # of one that came after the end
        # Later ticks are computed from versions that nobody can have before this server has made its part.
        if push.tick > self.version or self._uninitialised:
            return [DropAction(worker, f"push for tick {push.tick} while at {self.version}")]
        if odd := oddity(push, self._num_parcels, self.schedule.num_slices):
            return [DropAction(worker, odd)]
        if node.level and self.schedule.applies_slices(push.tick):
            return [DropAction(worker, f"push of {node}, where slices are applied one by one")]
        # To wait comes first: whoever completes the tick is then served once, like all who wait.
        actions = self._wait_for(worker, push.tick + 1, push.tick) if push.pull else []
        return actions if past else actions + self._gather(event, node, now_s)

    def _gather(self, event: PushEvent, node: Node, now_s: float) -> list[Action]:
        push, tick = event.push, self._tick
        # Also if the push changes nothing: it shows that its worker is at work.
        self._backups.pushed(event.worker, push, node, self._ordering.shares(self.version), now_s)
        # All say the same: it is a function of the step.
        tick.lr = push.lr
        tick.cut |= push.cut
        tick.snapshot |= push.snapshot
        tick.finish |= push.finish
        tick.pause |= push.pause
        if push.parcel in tick.applied or push.parcel in tick.roots:
            return []
        if self.schedule.applies_slices(self.version):
            return self._apply_slice(event, node, now_s)
        tree = tick.trees[push.parcel]
        tree.add(node, event.value)
        if not tree.complete:
            return []
        root = tree.take_root()
        if not self._rounds or self.schedule.at(self.version).kind is not Kind.TRAIN:
            return self._apply(push.parcel, root, now_s)
        tick.roots[push.parcel] = root
        if len(tick.roots) < self._num_parcels:
            return []
        return [self._norms_action()]

    def _norms_action(self) -> NormsAction:
        tick = self._tick
        roots = tuple(tick.roots[number] for number in range(self._num_parcels))
        return NormsAction(self.version, roots, tick.round, tick.norm if tick.round else None)

    def _on_clip(self, event: ClipEvent, now_s: float) -> list[Action]:
        tick = self._tick
        there = event.tick == self.version and len(tick.roots) == self._num_parcels
        if not there or event.round != tick.round:
            return []
        if event.norm < 0:
            return [DropAction("", f"norm {event.norm} of tick {event.tick}")]
        # The second round is about tensors, of gradients clipped by what the first has found.
        tick.norm = tick.norm if tick.round else event.norm
        tick.round += 1
        if tick.round < self._rounds and not event.skip:
            return [self._norms_action()]
        actions: list[Action] = []
        for parcel, root in sorted(tick.roots.items()):
            actions += self._apply(parcel, None if event.skip else root, now_s, tick.norm, event.trust)
        return actions

    def _apply(
        self,
        parcel: int,
        root: Any,
        now_s: float,
        norm: float | None = None,
        trust: tuple[tuple[int, float], ...] = (),
    ) -> list[Action]:
        apply = ApplyAction(self.version, parcel, root, self._tick.lr, norm, trust=trust)
        return [apply, *self._complete_parcel(parcel, now_s)]

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
        for worker, wait in self._waiting.waits.items():
            if wait.version == self.version + 1 and self._may_serve(wait.version):
                actions += self._serve(worker, wait, {parcel})
        if len(tick.applied) == self._num_parcels:
            actions += self._complete_version(now_s)
        return actions

    def _complete_version(self, now_s: float) -> list[Action]:
        tick = self._tick
        # Of two versions the orders may still be asked for: of the next, and of this one.
        self._ordering.forget(self.version - 1)
        self.version += 1
        self._tick = tick.anew()
        self._backups.begin(self.version, now_s)
        self.finished = tick.finish or self.version >= self.schedule.total_ticks
        self.paused = tick.pause and not self.finished
        cut = tick.cut or self.finished
        made = VersionAction(self.version, cut, tick.snapshot, self.finished, self.paused)
        actions: list[Action] = [made]
        for worker, wait in self._waiting.all():
            if wait.version <= self.version:
                actions += self._answer(worker, wait)
        return actions

    def _on_decided(self, event: DecidedEvent, now_s: float) -> list[Action]:
        self._ordering.decide(event.version, event.standing)
        self.finished |= event.standing.stops(self.version)
        self._waiting.consulted()
        return self._answer_all()

    def _consult(self) -> list[Action]:
        """Asks all who wait for what comes next, each once: somebody answers, whoever dies or hangs."""
        if not self._leads or self._uninitialised or not self._ordering.consults(self.version):
            return []
        return [ConsultAction(worker) for worker in self._waiting.to_consult(self.version)]

    def _on_initial(self, event: InitialEvent, now_s: float) -> list[Action]:
        if event.parcel not in self._uninitialised:
            return []  # it has come from another worker, or there is no such parcel
        self._uninitialised.remove(event.parcel)
        # Nobody is late so far: without first values there was nothing to compute from.
        self._backups.restart(now_s)
        actions: list[Action] = [InitialiseAction(event.parcel, event.value)]
        if not self._uninitialised:
            actions += self._answer_all()
        return actions

    # --- serving ---------------------------------------------------------------------------------

    def _on_pull(self, event: PullEvent, now_s: float) -> list[Action]:
        if not -1 <= event.pull.version <= self.version + 1:
            return [
                DropAction(event.worker, f"asks for version {event.pull.version} while at {self.version}")
            ]
        pull = event.pull
        return self._wait_for(event.worker, pull.version, pull.have, idle=pull.idle)

    def _wait_for(self, worker: str, version: int, have: int, *, idle: bool = True) -> list[Action]:
        wait = self._waiting.begin(worker, version, have, idle=idle)
        if self._uninitialised:
            return [AskInitialAction(worker)]
        return self._answer(worker, wait)

    def _may_serve(self, version: int) -> bool:
        """Whether the orders that go with a version can be given, or others give them."""
        return not self._leads or version < self.version or self._ordering.can_be_given(version)

    def _answer_all(self) -> list[Action]:
        return [action for worker, wait in self._waiting.all() for action in self._answer(worker, wait)]

    def _answer(self, worker: str, wait: Wait) -> list[Action]:
        """Serves a waiting worker what is there of its version; tells it if that is past."""
        if wait.version < 0:
            wait.version = self.version
        if not self._may_serve(wait.version):
            return []
        if wait.version > self.version:
            return self._serve(worker, wait, self._tick.applied)
        del self._waiting.waits[worker]
        # The one before the start was never here, though it is but one back.
        if wait.version < max(self._oldest, self.version - 1):
            return [GoneAction(worker, self.version)]
        return self._serve(worker, wait, set(range(self._num_parcels)))

    def _serve(self, worker: str, wait: Wait, parcels: set[int]) -> list[Action]:
        """Sends those of the parcels of a worker's version that it was not sent yet."""
        version = wait.version
        fresh = sorted(parcels - wait.served)
        wait.served.update(fresh)
        actions: list[Action] = []
        for parcel in fresh:
            orders, updates = self._orders_with(version, parcel), self._updates(version, parcel)
            same = self._is_same(wait.have, version, parcel)
            given = self._backups.given(worker) if orders and version == self.version else ()
            actions.append(ServeAction(worker, version, parcel, same and not updates, orders, updates, given))
        return actions

    def _updates(self, version: int, parcel: int) -> int:
        """Those that there are of the tick from ``version`` on: all, if it is past."""
        if version > self.version or not self.schedule.applies_slices(version):
            return 0
        return self._tick.updates[parcel] if version == self.version else self.schedule.num_slices

    def _orders_with(self, version: int, parcel: int) -> Orders | None:
        """Orders travel with the leading server's first parcel."""
        return self._ordering.at(version, self._now_s) if self._leads and parcel == 0 else None

    def _is_same(self, have: int, version: int, parcel: int) -> bool:
        """Whether a worker that has one version has the parcel of the other: an evaluation leaves parameters
        as they are, and a step those that are not trained in its epoch."""
        ticks = range(have, version)
        if have < 0 or len(ticks) > FAR_BACK:
            return False
        return not any(self._changes(parcel, self.schedule.at(tick)) for tick in ticks)

    # --- members, and the master -----------------------------------------------------------------

    def _on_opened(self, event: OpenedEvent, now_s: float) -> list[Action]:
        self._backups.opened(event.worker)
        return []

    def _on_closed(self, event: ClosedEvent, now_s: float) -> list[Action]:
        self._backups.closed(event.worker, self._lack())
        self._waiting.forget(event.worker)
        return []

    def _on_plan(self, event: PlanEvent, now_s: float) -> list[Action]:
        gone = self._ordering.take(event.number, event.shares)
        self._backups.give_up(gone, self._lack())
        return []

    def _on_order(
        self, event: FollowEvent | CutEvent | FinishEvent | PauseEvent | SettledEvent, now_s: float
    ) -> list[Action]:
        if isinstance(event, FollowEvent):
            self._ordering.follow()
        elif isinstance(event, SettledEvent):
            self._ordering.settle(event.tick)
            return [] if self._uninitialised else self._answer_all()
        elif isinstance(event, CutEvent):
            self._ordering.wants_cut = True
        elif isinstance(event, PauseEvent):
            self._ordering.wants_pause = True
        else:
            self._ordering.wants_finish = True
        return []


_HANDLERS: dict[type, Callable[[ServerState, Any, float], list[Action]]] = {
    PushEvent: ServerState._on_push,
    PullEvent: ServerState._on_pull,
    InitialEvent: ServerState._on_initial,
    OpenedEvent: ServerState._on_opened,
    ClosedEvent: ServerState._on_closed,
    PlanEvent: ServerState._on_plan,
    FollowEvent: ServerState._on_order,
    CutEvent: ServerState._on_order,
    FinishEvent: ServerState._on_order,
    PauseEvent: ServerState._on_order,
    SettledEvent: ServerState._on_order,
    ClipEvent: ServerState._on_clip,
    DecidedEvent: ServerState._on_decided,
    TimeEvent: lambda state, event, now_s: [],
}
