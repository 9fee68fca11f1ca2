"""All decisions of a relay: events and the time in, actions out.

A relay stands between a group of workers and one server. To its workers it is that server, to the server it
is one worker: it adds up what they push along the tree of slices, pushes the sums on, and hands each version
down. So a server hears from as many relays as there are groups, and not from all workers; and since sums are
made along the same tree, by whoever makes them, no bit depends on it. Source of the shape: all-reduce in two
dimensions, first within groups and then between them (Mikami et al., "Massively Distributed SGD", 2018; Cho
et al., "BlueConnect", 2019).

A parcel's sums leave together once every worker that has the version has pushed all that it has of it. Who
is later than it uses to be is not waited for, and neither is who is asked for more than its own: what comes
after that is pushed on as it is. The relay then counts as idle for the server, which asks it for whatever is
overdue; it asks its workers.

It keeps two versions, as a server does, for servers may differ by one: whoever has a version has had the one
before, and who comes meets the others there. So a relay that catches up gets both before it hands down any.
It has no other state than that of the tick in work: if it is lost, its workers talk to the servers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.step.slices import Node, SliceTree
from elasticflow.wire.messages import Compute, Pull, Push, Version
from elasticflow_ps.backups import Backups, ComputeAction, Lack
from elasticflow_ps.lateness import Lateness
from elasticflow_ps.state import (
    FAR_BACK,
    AskInitialAction,
    ConsultAction,
    DropAction,
    GoneAction,
    oddity,
    some,
)
from elasticflow_ps.waiting import Wait, Waiting

LATEST = -1


class PushOnAction(msgspec.Struct, frozen=True):
    """Push a sum on to the server. push: what to say of it. value: as what was pushed; None: no records."""

    push: Push
    value: Any


class PullOnAction(msgspec.Struct, frozen=True):
    """Ask the server for a version."""

    pull: Pull


class HandDownAction(msgspec.Struct, frozen=True):
    """Send a parcel of a version to a worker. value: what came with it; None: the worker has the same."""

    worker: str
    message: Version
    value: Any


RelayAction: TypeAlias = (
    PushOnAction | PullOnAction | HandDownAction | ComputeAction | GoneAction | AskInitialAction
    | ConsultAction | DropAction
)  # fmt: skip


class _VersionPart(NamedTuple):
    """A parcel of a version, as the server has sent it."""

    message: Version
    value: Any


class _Passing:
    """What has come of the tick in work, since ``begun_s``."""

    def __init__(self, trees: Sequence[SliceTree[Any]], begun_s: float) -> None:
        self.trees: list[SliceTree[Any] | None] = list(trees)
        """By parcel: sums that are kept back; None: what comes is pushed on at once."""
        self.begun_s = begun_s
        self.pushed: list[set[str]] = [set() for _ in trees]
        """By parcel: who has pushed all it has of it."""
        self.over: set[str] = set()
        """Who has nothing more to push at all."""
        self.push: Push | None = None
        """The latest: what pushes say of a tick is the same of all."""
        self.is_idle = False
        """The server knows that there is nothing more to come."""
        self.demanded: set[int] = set()
        """Slices that the server has asked for, and nobody has pushed whole since."""
        self.careful: set[int] = set()
        """Those of them that are to be computed with care."""
        self.consults = False
        """The server asks what the program says to the evaluation that this tick is."""

    @property
    def waits(self) -> bool:
        """Whether sums of some parcel are still kept back."""
        return any(tree is not None for tree in self.trees)

    def push_on(self, parcel: int, node: Node, value: Any, slice_s: float) -> PushOnAction:
        assert self.push
        push = replace(
            self.push,
            parcel=parcel,
            level=node.level,
            index=node.index,
            empty=value is None,
            slice_s=slice_s,
            pull=False,
            more=False,
            lent=-1,
            checks=(),
        )
        return PushOnAction(push, value)

    def open(self, parcel: int, now_s: float) -> list[PushOnAction]:
        """What there is of a parcel, to be pushed on; and whatever comes of it from now on will be."""
        tree, self.trees[parcel] = self.trees[parcel], None
        sums = list(tree.drain()) if tree else []
        # So that all of it has taken as long as it has, if the slices were done one after the other.
        slice_s = (now_s - self.begun_s) / max(1, sum(node.stop - node.first for node, _ in sums))
        return [self.push_on(parcel, node, value, slice_s) for node, value in sums]


class _Shelf:
    """The last two versions that are whole, by parcel, and what has come of the next.

    version: the newest; -1: none yet. behind: while it catches up, what has come, by version.
    """

    def __init__(self, start: int, num_parcels: int) -> None:
        self.version, self._start, self._num_parcels = -1, start, num_parcels
        self.held: dict[int, dict[int, _VersionPart]] = {}
        self.coming: dict[int, _VersionPart] = {}
        self.behind: dict[int, dict[int, _VersionPart]] | None = {}

    def take(self, message: Version, value: Any) -> int | None:
        """A parcel has come. The version to ask for, if that takes another one."""
        if self.behind is not None:
            return self._catch_up(self.behind, message, value)
        if message.version == self.version + 1 and message.parcel not in self.coming:
            if message.same:
                value = self.held[self.version][message.parcel].value
            self.coming[message.parcel] = _VersionPart(message, value)
            if len(self.coming) == self._num_parcels:
                before = self.held[self.version]
                self._put({self.version: before, message.version: self.coming})
        return None

    def _catch_up(self, come: dict[int, dict[int, _VersionPart]], message: Version, value: Any) -> int | None:
        if message.same:
            return None  # as what it had: an answer to an earlier question
        come.setdefault(message.version, {})[message.parcel] = _VersionPart(message, value)
        whole = {number: parts for number, parts in come.items() if len(parts) == self._num_parcels}
        if message.version not in whole:
            return None
        newest = max(whole)
        if newest > self._start and newest - 1 not in whole:
            return newest - 1
        self._put({number: whole[number] for number in (newest - 1, newest) if number in whole})
        return None

    def _put(self, held: dict[int, dict[int, _VersionPart]]) -> None:
        self.held, self.version = held, max(held)
        self.coming, self.behind = {}, None


class _GroupMembers:
    """The workers that are connected, and what they take from a version to the last push for it."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._has: dict[str, tuple[int, float]] = {}
        """By worker: the version that it was given last, -1: none, and when."""
        self._last: dict[str, tuple[int, Node]] = {}
        """By worker: the tick and the node after which it has nothing more to push."""
        self._lateness = {kind: Lateness() for kind in Kind}

    def open(self, worker: str) -> None:
        self._has[worker] = -1, 0.0

    def close(self, worker: str) -> None:
        self._has.pop(worker, None)
        self._last.pop(worker, None)
        for lateness in self._lateness.values():
            lateness.forget(worker)

    def give(self, worker: str, version: int, now_s: float) -> None:
        """It has all of a version."""
        self._has[worker] = version, now_s

    def of(self, version: int) -> set[str]:
        """Workers that have this version, and no later one."""
        return {worker for worker, (has, _) in self._has.items() if has == version}

    def is_last(self, worker: str, push: Push, node: Node, now_s: float) -> bool:
        """Whether a push is of the last node that its worker has. Notes its time, in time or not."""
        if push.pull:
            self._last[worker] = push.tick, node
        if self._last.get(worker) != (push.tick, node):
            return False
        version, since_s = self._has.get(worker, (-1, 0.0))
        if push.slice_s > 0 and not push.more and version == push.tick:
            lateness = self._lateness[self._schedule.at(version).kind]
            lateness.record(worker, push.slice_s)
            lateness.record_lag(worker, now_s - since_s)
        return True

    def late_s(self, version: int, workers: Iterable[str]) -> float:
        """When none of these, of the tick from ``version`` on, is waited for any more."""
        lateness = self._lateness[self._schedule.at(version).kind]
        dues = (lateness.due_s(worker, self._has[worker][1], 0, lags=True) for worker in workers)
        return max(dues, default=math.inf)


class RelayState:
    """One generation of one relay. See the module's docstring.

    start: the version that the generation goes on from: there is none before. changes: whether a tick makes
    something else of a parcel. combine: sums two values of sibling nodes.
    """

    def __init__(
        self,
        schedule: Schedule,
        num_parcels: int,
        start: int,
        changes: Callable[[int, Work], bool],
        combine: Callable[[Any, Any], Any],
    ) -> None:
        self._schedule, self._num_parcels, self._changes = schedule, num_parcels, changes
        self._combine = some(combine)
        self._shelf, self._group = _Shelf(start, num_parcels), _GroupMembers(schedule)
        self._waiting, self._backups = Waiting(), Backups(schedule, leads=False)
        self._has_asked = False
        self._lacks_first, self._asks_first = False, ""
        """Whether the server has no first values, and the worker that was asked for them."""
        self._tick = self._new_tick(0.0)

    def _new_tick(self, now_s: float) -> _Passing:
        number = self._schedule.num_slices
        return _Passing([SliceTree[Any](number, self._combine) for _ in range(self._num_parcels)], now_s)

    @property
    def version(self) -> int:
        """The newest that is whole; -1: none yet."""
        return self._shelf.version

    # --- what workers say ------------------------------------------------------------------------

    def opened(self, worker: str) -> list[RelayAction]:
        """A worker has connected."""
        self._group.open(worker)
        self._backups.opened(worker)
        return []

    def closed(self, worker: str, now_s: float) -> list[RelayAction]:
        """A worker's connection has closed: what it had to push, it does not."""
        self._group.close(worker)
        self._waiting.forget(worker)
        self._backups.closed(worker, self._lack())
        if worker == self._asks_first:
            self._asks_first = ""
        return [*self._ask_first(), *self._settle(now_s)]

    def pushed(self, worker: str, push: Push, value: Any, now_s: float) -> list[RelayAction]:
        """A worker has pushed a node; ``value`` is None if that holds no records."""
        node, tick = Node(push.level, push.index), self._tick
        if odd := oddity(push, self._num_parcels, self._schedule.num_slices):
            return [DropAction(worker, odd)]
        if push.tick > self.version:
            return [DropAction(worker, f"push for tick {push.tick} while at {self.version}")]
        actions = self._wait_for(worker, push.tick + 1, push.tick, now_s) if push.pull else []
        is_last = self._group.is_last(worker, push, node, now_s)
        if push.tick < self.version:
            return actions  # it is in the version already
        tick.push = push
        self._backups.pushed(worker, push, node, (), now_s)
        if tree := tick.trees[push.parcel]:
            tree.add(node, value)
        else:
            actions.append(tick.push_on(push.parcel, node, value, 0.0))
        if not push.more:
            tick.demanded.difference_update(range(node.first, node.stop))
        if is_last:
            tick.pushed[push.parcel].add(worker)
            if not push.more:
                tick.over.add(worker)
        return [*actions, *self._settle(now_s)]

    def asked(self, worker: str, pull: Pull, now_s: float) -> list[RelayAction]:
        """A worker asks for a version."""
        if not -1 <= pull.version <= self.version + 1:
            return [DropAction(worker, f"asks for version {pull.version} while at {self.version}")]
        if pull.version == self.version + 1 > 0:
            self._tick.over.add(worker)
        # Workers come once all servers serve: what a relay asked before would be lost.
        first: list[RelayAction] = [] if self._has_asked else [PullOnAction(Pull(version=LATEST))]
        self._has_asked = True
        return [*first, *self._wait_for(worker, pull.version, pull.have, now_s), *self._settle(now_s)]

    # --- what the server says --------------------------------------------------------------------

    def came(self, message: Version, value: Any, now_s: float) -> list[RelayAction]:
        """A parcel of a version. value: what came with it, None if it is the ``same``."""
        number, parcel, before = message.version, message.parcel, self.version
        if not 0 <= parcel < self._num_parcels or not 0 <= number <= self._schedule.total_ticks:
            return [DropAction("", f"version {number}, parcel {parcel}: there is no such thing")]
        self._lacks_first = False
        ask = self._shelf.take(message, value)
        if self.version != before:
            return self._begin(now_s)
        if ask is not None:
            return [PullOnAction(Pull(version=ask))]
        if number != self.version + 1 or parcel not in self._shelf.coming:
            return []
        waits = [(name, wait) for name, wait in self._waiting.all() if wait.version == number]
        return [action for name, wait in waits for action in self._hand_down(name, wait, {parcel})]

    def _begin(self, now_s: float) -> list[RelayAction]:
        """There is a version that is newer than all before."""
        self._tick = self._new_tick(now_s)
        self._backups.begin(self.version, now_s)
        self._waiting.consulted()
        actions: list[RelayAction] = []
        if self.version < self._schedule.total_ticks:
            actions.append(PullOnAction(Pull(version=self.version + 1, have=self.version, idle=False)))
        for worker, wait in self._waiting.all():
            if wait.version <= self.version:
                actions += self._answer(worker, wait, now_s)
        return actions

    def gone(self, latest: int) -> list[RelayAction]:
        """What was asked for is past: the others have gone on without this group."""
        if latest <= self.version:
            return []
        self._shelf.behind = self._shelf.behind or {}
        # Who has what is past, and asks for nothing, may have asked for the latest and been given that.
        for worker in self._group.of(self.version) - self._waiting.waits.keys():
            self._waiting.begin(worker, LATEST, -1)
        return [PullOnAction(Pull(version=LATEST))]

    def is_asked(self, asked: Compute, now_s: float) -> list[RelayAction]:
        """The server asks for slices that are overdue."""
        slices = [number for number in asked.slices if 0 <= number < self._schedule.num_slices]
        if asked.tick != self.version:
            return []
        self._tick.demanded.update(slices)
        self._tick.careful.update(asked.careful)
        return self._hand_out(now_s)

    def is_consulted(self) -> list[RelayAction]:
        """The server asks what the program says to an evaluation: all who wait are asked, each once."""
        self._tick.consults = True
        return self._consult()

    def lacks_first(self) -> list[RelayAction]:
        """The server has no first values: one worker after the other is asked for them."""
        self._lacks_first = True
        return self._ask_first()

    # --- time ------------------------------------------------------------------------------------

    def passed(self, now_s: float) -> list[RelayAction]:
        """Time has passed."""
        late = now_s >= self._late_s()
        return [*(self._open(range(self._num_parcels), now_s) if late else []), *self._hand_out(now_s)]

    def due_s(self) -> float | None:
        """When to call ``passed`` at the latest; None if nothing becomes due."""
        dues = (self._late_s(), self._backups.due_s(self._lack()))
        due_s = min(due_s for due_s in dues if due_s is not None)
        return None if due_s == math.inf else due_s

    @property
    def doing(self) -> str:
        """What is waited for, in words that follow the relay's name."""
        if self.version < 0:
            return "waits for a first version"
        late = sorted(self._group.of(self.version) - self._tick.over)
        return f"has version {self.version}, and waits for {', '.join(late) or 'the next'}"

    def _late_s(self) -> float:
        """When none of those who have still to push is waited for any more."""
        left = self._group.of(self.version) - self._tick.over if self._tick.waits else ()
        return self._group.late_s(self.version, left) if left else math.inf

    # --- sums ------------------------------------------------------------------------------------

    def _settle(self, now_s: float) -> list[RelayAction]:
        """Pushes on what nobody of the group has anything to add to."""
        tick, mine = self._tick, self._group.of(self.version)
        left = mine - tick.over
        whole = [parcel for parcel, pushed in enumerate(tick.pushed) if left <= pushed] if mine else []
        return [*self._open(whole, now_s), *self._hand_out(now_s)]

    def _open(self, parcels: Iterable[int], now_s: float) -> list[RelayAction]:
        """What there is of these parcels is pushed on, and whatever comes of them from now on."""
        tick, opened = self._tick, [*parcels]
        actions = [action for parcel in opened for action in tick.open(parcel, now_s)]
        if tick.waits or tick.is_idle:
            return [*actions]
        tick.is_idle = True
        if not actions:
            return [PullOnAction(Pull(version=self.version + 1, have=self.version))]
        # The last one says so: a question of its own might come when there is the answer already.
        last = actions.pop()
        return [*actions, PushOnAction(replace(last.push, pull=True), last.value)]

    # --- slices that are overdue -----------------------------------------------------------------

    def _lack(self) -> Lack:
        idle = self._waiting.of(self.version + 1) & self._tick.over
        return Lack(lambda: self._tick.demanded, idle, ())

    def _hand_out(self, now_s: float) -> list[RelayAction]:
        if not self._tick.demanded:
            return []
        careful = self._tick.careful
        return [
            replace(action, careful=tuple(sorted(careful.intersection(action.slices).union(action.careful))))
            for action in self._backups.hand_out(self._lack(), now_s)
        ]

    # --- versions, and what workers are asked ----------------------------------------------------

    def _wait_for(self, worker: str, version: int, have: int, now_s: float) -> list[RelayAction]:
        wait = self._waiting.begin(worker, version, have)
        return [*self._answer(worker, wait, now_s), *self._ask_first(), *self._consult()]

    def _answer(self, worker: str, wait: Wait, now_s: float) -> list[RelayAction]:
        if wait.version < 0 and self._shelf.behind is not None:
            return []  # what there is here is past: the latest is what it gets once it has caught up
        if wait.version < 0:
            wait.version = self.version
        if wait.version > self.version:
            return self._hand_down(worker, wait, set(self._shelf.coming))
        del self._waiting.waits[worker]
        if wait.version not in self._shelf.held:
            return [GoneAction(worker, self.version)]
        self._group.give(worker, wait.version, now_s)
        return self._hand_down(worker, wait, set(range(self._num_parcels)))

    def _hand_down(self, worker: str, wait: Wait, parcels: set[int]) -> list[RelayAction]:
        """Those of the parcels of a worker's version that it was not given yet."""
        parts = self._shelf.held.get(wait.version, self._shelf.coming)
        fresh = sorted(parcels - wait.served)
        wait.served.update(fresh)
        actions: list[RelayAction] = []
        for parcel in fresh:
            message, value = parts[parcel]
            same = self._is_same(wait.have, wait.version, parcel)
            told = replace(message, same=same, checks=() if same else message.checks)
            actions.append(HandDownAction(worker, told, None if same else value))
        return actions

    def _is_same(self, have: int, version: int, parcel: int) -> bool:
        """As a server does."""
        ticks = range(have, version)
        if have < 0 or len(ticks) > FAR_BACK:
            return False
        return not any(self._changes(parcel, self._schedule.at(tick)) for tick in ticks)

    def _ask_first(self) -> list[RelayAction]:
        if not self._lacks_first or self._asks_first or not self._waiting.waits:
            return []
        self._asks_first = min(self._waiting.waits)
        return [AskInitialAction(self._asks_first)]

    def _consult(self) -> list[RelayAction]:
        if not self._tick.consults:
            return []
        # Who waits for a first version waits for this as well: the server gives none before it is answered.
        awaited = LATEST if self.version < 0 else self.version + 1
        return [ConsultAction(worker) for worker in self._waiting.to_consult(awaited)]
