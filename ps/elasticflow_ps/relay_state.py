"""All decisions of a relay: events and the time in, actions out.

A relay stands between a group of workers and one server. To its workers it is that server, to the server it
is one worker: it adds up what they push along the tree of slices, pushes the sums on, and hands each version
down. So a server hears from as many relays as there are groups, and not from all workers; and since sums are
made along the same tree, by whoever makes them, no bit depends on it. Source of the shape: all-reduce in two
dimensions, first within groups and then between them (Mikami et al., "Massively distributed SGD", 2018; Cho et
al., "BlueConnect", 2019).

A parcel's sums leave together once every worker that has the version has pushed all that it has of it. Who is
later than it uses to be is not waited for, and neither is who is asked for more than its own: what comes after
that is pushed on as it is. The relay then counts as idle for the server, which asks it for whatever is overdue;
it asks its workers. A relay that is lost takes sums along with it that nobody else has: all servers begin anew,
as after the loss of one of them.

It keeps two versions, as a server does, for servers may differ by one: whoever has a version has had the one
before, and who comes meets the others there. So a relay that catches up gets both before it hands down any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.step.slices import Node, SliceTree
from elasticflow.wire.messages import Pull, Push, Version
from elasticflow_ps.backups import Backups, ComputeAction, Lack
from elasticflow_ps.lateness import Lateness
from elasticflow_ps.state import (
    FAR_BACK,
    AskInitialAction,
    ConsultAction,
    DropAction,
    GoneAction,
    oddity,
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


class _Part(NamedTuple):
    """A parcel of a version, as the server has sent it."""

    message: Version
    value: Any


class _Passing:
    """What has come of the tick in work. trees: by parcel; None: what comes is pushed on at once."""

    def __init__(self, num_parcels: int, num_slices: int, combine: Callable[[Any, Any], Any]) -> None:
        self._shape = num_slices, combine
        self.trees: list[SliceTree[Any] | None] = [
            SliceTree[Any](num_slices, combine) for _ in range(num_parcels)
        ]
        self.pushed: list[set[str]] = [set() for _ in range(num_parcels)]
        """By parcel: who has pushed all it has of it."""
        self.over: set[str] = set()
        """Who has nothing more to push at all."""
        self.push: Push | None = None
        """The latest: what pushes say of a tick is the same of all."""
        self.is_idle = False
        """The server knows that there is nothing more to come."""

    @property
    def waits(self) -> bool:
        """Whether sums of some parcel are still waited for."""
        return any(tree is not None for tree in self.trees)


class RelayState:
    """One generation of one relay. See the module's docstring.

    start: the version that the generation goes on from: there is none before. changes: whether a tick makes something else of a parcel. combine: sums two values of sibling nodes.
    ``version`` is the newest that is whole; -1: none yet.
    """

    def __init__(
        self,
        schedule: Schedule,
        num_parcels: int,
        start: int,
        changes: Callable[[int, Work], bool],
        combine: Callable[[Any, Any], Any],
    ) -> None:
        self.version, self._start = -1, start
        self._schedule, self._num_parcels, self._changes = schedule, num_parcels, changes
        self._combine = lambda left, right: (
            right if left is None else left if right is None else combine(left, right)
        )
        self._held: dict[int, dict[int, _Part]] = {}
        """The last two versions, by parcel."""
        self._coming: dict[int, _Part] = {}
        """What has come of the version after the newest."""
        self._catching_up: dict[int, dict[int, _Part]] | None = {}
        """While it does: what has come, by version."""
        self._has: dict[str, tuple[int, float]] = {}
        """By worker that is connected: the version that it was given last, -1: none, and when."""
        self._waiting = Waiting()
        self._backups = Backups(schedule, leads=False)
        self._demanded: set[int] = set()
        """Slices of the tick in work that the server has asked for, and nobody has pushed whole since."""
        self._careful: set[int] = set()
        self._lateness = {kind: Lateness() for kind in Kind}
        """Of what workers take from the version to their last push."""
        self._asks_first = ""
        """The worker that was asked for the first values."""
        self._last: dict[str, tuple[int, Node]] = {}
        """By worker: the tick and the node after which it has nothing more to push."""
        self._begun_s = 0.0
        self._has_asked = self._lacks_first = self._consults = False
        self._tick = self._new_tick()

    def _new_tick(self) -> _Passing:
        return _Passing(self._num_parcels, self._schedule.num_slices, self._combine)

    # --- what workers say ------------------------------------------------------------------------

    def opened(self, worker: str) -> list[RelayAction]:
        """A worker has connected."""
        self._has[worker] = -1, 0.0
        self._backups.opened(worker)
        return []

    def closed(self, worker: str, now_s: float) -> list[RelayAction]:
        """A worker's connection has closed: what it had to push, it does not."""
        self._has.pop(worker, None)
        self._last.pop(worker, None)
        self._waiting.forget(worker)
        for lateness in self._lateness.values():
            lateness.forget(worker)
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
        if push.pull:
            self._last[worker] = push.tick, node
        is_last = self._last.get(worker) == (push.tick, node)
        if is_last and not push.more:
            self._note_time(worker, push, now_s)
        if push.tick < self.version:
            return actions  # it is in the version already
        tick.push = push
        self._backups.pushed(worker, push, node, (), now_s)
        if tree := tick.trees[push.parcel]:
            tree.add(node, value)
        else:
            actions.append(self._push_on(push.parcel, node, value, 0.0))
        if not push.more:
            self._demanded.difference_update(range(node.first, node.stop))
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
        number, parcel = message.version, message.parcel
        if not 0 <= parcel < self._num_parcels or not 0 <= number <= self._schedule.total_ticks:
            return [DropAction("", f"version {number}, parcel {parcel}: there is no such thing")]
        if self._catching_up is not None:
            return self._catch_up(self._catching_up, message, value, now_s)
        if number != self.version + 1 or parcel in self._coming:
            return []  # an answer to an earlier question
        if message.same:
            value = self._held[self.version][parcel].value
        self._coming[parcel] = _Part(message, value)
        if len(self._coming) == self._num_parcels:
            return self._begin(number, {self.version: self._held[self.version], number: self._coming}, now_s)
        waits = [(name, wait) for name, wait in self._waiting.all() if wait.version == number]
        return [action for name, wait in waits for action in self._hand_down(name, wait, {parcel})]

    def _catch_up(
        self, come: dict[int, dict[int, _Part]], message: Version, value: Any, now_s: float
    ) -> list[RelayAction]:
        if message.same:
            return []  # as what it had: an answer to an earlier question
        self._lacks_first = False
        come.setdefault(message.version, {})[message.parcel] = _Part(message, value)
        whole = {number: parts for number, parts in come.items() if len(parts) == self._num_parcels}
        newest = max(whole, default=-1)
        if message.version not in whole:
            return []
        if newest == self._start or newest - 1 in whole:
            self._catching_up = None
            return self._begin(newest, {n: whole[n] for n in (newest - 1, newest) if n in whole}, now_s)
        return [PullOnAction(Pull(version=newest - 1))]

    def _begin(self, version: int, held: dict[int, dict[int, _Part]], now_s: float) -> list[RelayAction]:
        """This version is whole."""
        self._held, self.version, self._coming = held, version, {}
        self._tick, self._begun_s = self._new_tick(), now_s
        self._demanded, self._careful, self._consults = set(), set(), False
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
        self._catching_up = self._catching_up or {}
        return [PullOnAction(Pull(version=LATEST))]

    def is_asked(self, tick: int, slices: tuple[int, ...], careful: tuple[int, ...], now_s: float) -> list[
        RelayAction
    ]:  # fmt: skip
        """The server asks for slices that are overdue."""
        if tick != self.version or not all(0 <= each < self._schedule.num_slices for each in slices):
            return []
        self._demanded.update(slices)
        self._careful.update(careful)
        return self._hand_out(now_s)

    def is_consulted(self) -> list[RelayAction]:
        """The server asks what the program says to an evaluation: all who wait are asked, each once."""
        self._consults = True
        return self._consult()

    def lacks_first(self) -> list[RelayAction]:
        """The server has no first values: one worker after the other is asked for them."""
        self._lacks_first = True
        return self._ask_first()

    # --- time ------------------------------------------------------------------------------------

    def passed(self, now_s: float) -> list[RelayAction]:
        """Time has passed."""
        actions: list[RelayAction] = []
        if now_s >= self._late_s():
            actions += self._open(range(self._num_parcels), now_s)
        return [*actions, *self._hand_out(now_s)]

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
        late = sorted(self._of_tick() - self._tick.over)
        return f"has version {self.version}, and waits for {', '.join(late) or 'the next'}"

    # --- sums ------------------------------------------------------------------------------------

    def _of_tick(self) -> set[str]:
        """Workers that have the version that the tick in work begins with."""
        return {worker for worker, (version, _) in self._has.items() if version == self.version}

    def _note_time(self, worker: str, push: Push, now_s: float) -> None:
        """Of a worker that has pushed all its own, in time or not."""
        version, since_s = self._has.get(worker, (-1, 0.0))
        if push.slice_s > 0 and version == push.tick:
            lateness = self._lateness[self._schedule.at(version).kind]
            lateness.record(worker, push.slice_s)
            lateness.record_lag(worker, now_s - since_s)

    def _late_s(self) -> float:
        """When none of those who are left is waited for any more; of whom nothing is known yet, for ever."""
        left = self._of_tick() - self._tick.over if self._tick.waits else ()
        if not left:
            return math.inf
        lateness = self._lateness[self._schedule.at(self.version).kind]
        return max(lateness.due_s(worker, self._has[worker][1], 0, lags=True) for worker in left)

    def _settle(self, now_s: float) -> list[RelayAction]:
        """Pushes on what is not to be waited for any more."""
        tick, mine = self._tick, self._of_tick()
        if not mine:
            return self._hand_out(now_s)
        left = mine - tick.over
        whole = [parcel for parcel, pushed in enumerate(tick.pushed) if left <= pushed]
        return [*self._open(whole, now_s), *self._hand_out(now_s)]

    def _open(self, parcels: Iterable[int], now_s: float) -> list[RelayAction]:
        """What there is of these parcels is pushed on, and whatever comes of them from now on."""
        tick = self._tick
        actions: list[RelayAction] = []
        for parcel in parcels:
            if tree := tick.trees[parcel]:
                tick.trees[parcel] = None
                sums = list(tree.drain())
                # So that all of it has taken as long as it has, if the slices were done one after the other.
                slice_s = (now_s - self._begun_s) / max(1, sum(node.stop - node.first for node, _ in sums))
                actions += [self._push_on(parcel, node, value, slice_s) for node, value in sums]
        if tick.waits or tick.is_idle:
            return actions
        tick.is_idle = True
        if actions:  # the last one says so: a question of its own might come when there is the answer already
            last = actions[-1]
            assert isinstance(last, PushOnAction)
            return [*actions[:-1], PushOnAction(msgspec.structs.replace(last.push, pull=True), last.value)]
        return [PullOnAction(Pull(version=self.version + 1, have=self.version))]

    def _push_on(self, parcel: int, node: Node, value: Any, slice_s: float) -> PushOnAction:
        assert self._tick.push
        push = msgspec.structs.replace(
            self._tick.push,
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

    # --- slices that are overdue -----------------------------------------------------------------

    def _lack(self) -> Lack:
        idle = self._waiting.of(self.version + 1) & self._tick.over
        return Lack(lambda: self._demanded, idle, ())

    def _hand_out(self, now_s: float) -> list[RelayAction]:
        if not self._demanded:
            return []
        return [
            msgspec.structs.replace(
                action, careful=tuple(sorted(self._careful.intersection(action.slices) | {*action.careful}))
            )
            for action in self._backups.hand_out(self._lack(), now_s)
        ]

    # --- versions, and what workers are asked ----------------------------------------------------

    def _wait_for(self, worker: str, version: int, have: int, now_s: float) -> list[RelayAction]:
        wait = self._waiting.begin(worker, version, have)
        return [*self._answer(worker, wait, now_s), *self._ask_first(), *self._consult()]

    def _answer(self, worker: str, wait: Wait, now_s: float) -> list[RelayAction]:
        if wait.version < 0:
            wait.version = self.version
        if wait.version < 0:
            return []
        if wait.version > self.version:
            return self._hand_down(worker, wait, set(self._coming))
        del self._waiting.waits[worker]
        if wait.version not in self._held:
            return [GoneAction(worker, self.version)]
        self._has[worker] = wait.version, now_s
        return self._hand_down(worker, wait, set(range(self._num_parcels)))

    def _hand_down(self, worker: str, wait: Wait, parcels: set[int]) -> list[RelayAction]:
        """Those of the parcels of a worker's version that it was not given yet."""
        parts = self._held.get(wait.version, self._coming)
        fresh = sorted(parcels - wait.served)
        wait.served.update(fresh)
        actions: list[RelayAction] = []
        for parcel in fresh:
            message, value = parts[parcel]
            same = self._is_same(wait.have, wait.version, parcel)
            told = msgspec.structs.replace(message, same=same, checks=() if same else message.checks)
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
        if not self._consults:
            return []
        return [ConsultAction(worker) for worker in self._waiting.to_consult(self.version + 1)]
