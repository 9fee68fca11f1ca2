"""A YARN that is not there, and a master that has nothing in mind but how many workers it wants.

``World`` plays the rim of the YARN backend: it does what ``YarnSizing`` decides, with the delays, the lost
orders and the forgotten ends of a real cluster, and checks what must hold at any moment.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable
from functools import partial, reduce
from itertools import count

import msgspec

from elasticflow.cluster.contract import Ended
from elasticflow.cluster.news import taken
from elasticflow.cluster.sizing import End, Poll
from elasticflow.master.members import number_of
from elasticflow_yarn.application import Container
from elasticflow_yarn.cluster import YarnNode, YarnQueue
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.errors import ApplicationGone, YarnBusy, YarnError
from elasticflow_yarn.first import members
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.sizing import (
    Action,
    Add,
    LookAround,
    ReadWords,
    Signal,
    YarnSizing,
)
from elasticflow_yarn.surroundings import View

EPOCH = 1_800_000_000.0
"""Wall time when the monotonic clock is 0."""
STEP_S = 0.2
WORKER = Resources(2048, 1, 1)
PULSE = Resources(64, 1)
SERVICES = {"worker": WORKER, "server": Resources(1024, 1, 0)}
OWN = "container_1_0001_01_000001"
MEMORY_MB = 64 * 1024
DRAIN_S = 1.0
"""A worker that is to give its place back takes so long to leave."""


class Cluster:
    """A queue of ours, ``train``, and one of others, ``prod``, that share the GPUs of some nodes.

    One container of ours takes one GPU. Others that wait below their share take GPUs of ours, when they have
    waited for ``preempt_s``.
    """

    def __init__(self, nodes: dict[str, int], share: int, preempt_s: float = 15.0) -> None:
        self.nodes = dict(nodes)
        """By address: how many GPUs."""
        self.share, self.preempt_s = share, preempt_s
        self.others = self.others_wait = 0
        self.containers: dict[str, Container] = {}
        self.running: dict[str, str] = {}
        """What really runs: YARN's id, and where."""
        self.away = self.gone = self.hangs = False
        self.loses_kills = self.loses_ends = False
        self.unregistered: set[str] = set()
        """Nodes of which a ResourceManager that was restarted has not heard yet."""
        self.forgotten: set[str] = set()
        """Requests, by Skein's ids, of which YARN knows nothing."""
        self.refused: set[str] = set()
        """Requests that YARN knows, and never grants."""
        self.preempted = 0
        self._waited_s = 0.0
        self._ids, self._yarn_ids = count(), count(2)

    # --- what the application may be asked ---------------------------------------------------------

    def begin_with(self, workers: int) -> None:
        """So many are asked for before anybody asks."""
        for _ in range(workers):
            self.add("worker")

    def add(self, service: str) -> Container:
        self._answer_or_not()
        made = Container(id=f"{service}_{next(self._ids)}", service=service, state="REQUESTED")
        self.containers[made.id] = made
        return made

    def kill(self, id: str) -> None:
        self._answer_or_not()
        container = self.containers[id]
        if container.over:
            return
        self._set(container, state="KILLED", words="Killed by user request.")
        if not self.loses_kills:
            self.running.pop(container.yarn_id, None)

    def poll(self) -> list[Container]:
        self._answer_or_not()
        return list(self.containers.values())

    def view(self) -> View:
        if self.away:
            raise YarnBusy("the ResourceManager does not answer")
        total, used = sum(self.nodes.values()), len(self.running)
        known = [each.service for each in self.of("REQUESTED") if each.id not in self.forgotten]
        pending = reduce(Resources.plus, (SERVICES.get(each, PULSE) for each in known), Resources())
        ours = _queue("train", self.share, used, pending, total)
        theirs = _queue("prod", total - self.share, self.others, _gpus(self.others_wait), total)
        nodes = [node for node in self._nodes() if node.address not in self.unregistered]
        shown = [id for id, node in self.running.items() if node not in self.unregistered]
        return View(tuple(nodes), (ours, theirs), frozenset([OWN, *shown]))

    def signal(self, yarn_id: str) -> None:
        if not self.away:
            self.running.pop(yarn_id, None)

    # --- what happens there ------------------------------------------------------------------------

    @property
    def free(self) -> int:
        return sum(self.nodes.values()) - self.others - len(self.running)

    def turn(self, now_s: float) -> None:
        """YARN hands out what is free: to others first, as long as they have less than their share."""
        if self.away:
            return
        theirs = sum(self.nodes.values()) - self.share
        while self.others_wait and self.free > 0:
            self.others, self.others_wait = self.others + 1, self.others_wait - 1
        for container in list(self.containers.values()):
            lost = container.id in self.forgotten | self.refused
            if container.state == "REQUESTED" and not lost and (node := self._room(container.service)):
                yarn_id = f"container_1_0001_01_{next(self._yarn_ids):06}"
                self.running[yarn_id] = node
                self._set(container, state="RUNNING", yarn_id=yarn_id, node=node, started_at=EPOCH + now_s)
        lacking = min(self.others_wait, theirs - self.others)
        self._waited_s = self._waited_s + STEP_S if lacking > 0 and len(self.running) > self.share else 0.0
        if self._waited_s >= self.preempt_s:
            self.preempted += 1
            self.end(max(self.running), now_s, "FAILED", "Container preempted by scheduler")

    def end(self, yarn_id: str, now_s: float, state: str, words: str) -> None:
        """A container is over; Skein may never hear of it."""
        self.running.pop(yarn_id)
        for container in list(self.containers.values()):
            if container.yarn_id == yarn_id and not container.over and not self.loses_ends:
                self._set(container, state=state, words=words, finished_at=EPOCH + now_s)

    def lose(self, node: str, now_s: float) -> None:
        """A node is lost, with all that was on it."""
        self.nodes.pop(node)
        for yarn_id in [id for id, where in self.running.items() if where == node]:
            self.end(yarn_id, now_s, "FAILED", "Container released on a *lost* node")
        self.others = min(self.others, sum(self.nodes.values()))

    def of(self, state: str) -> list[Container]:
        return [each for each in self.containers.values() if each.state == state]

    def _nodes(self) -> list[YarnNode]:
        nodes = []
        for address, gpus in self.nodes.items():
            used = sum(where == address for where in self.running.values())
            total, free = Resources(MEMORY_MB, 16, gpus), Resources(MEMORY_MB, 16, max(0, gpus - used))
            nodes.append(YarnNode(id=address, address=address, state="RUNNING", total=total, available=free))
        left = self.others  # they sit wherever there is room
        for place, node in enumerate(nodes):
            taken = min(left, node.available.gpus)
            left -= taken
            free = msgspec.structs.replace(node.available, gpus=node.available.gpus - taken)
            nodes[place] = msgspec.structs.replace(node, available=free)
        return nodes

    def _room(self, service: str) -> str:
        if service == "pulse":
            return ""
        if service != "worker":
            return next(iter(self.nodes), "")
        if self.free <= 0:
            return ""
        return next((node.address for node in self._nodes() if node.available.gpus), "")

    def _set(self, container: Container, **changes: object) -> None:
        self.containers[container.id] = msgspec.structs.replace(container, **changes)

    def _answer_or_not(self) -> None:
        if self.gone:
            raise ApplicationGone("the ApplicationMaster does not answer: Unable to connect to application")
        if self.hangs:
            raise YarnBusy("the ApplicationMaster does not answer within 10 s")


def _gpus(number: int) -> Resources:
    return Resources(MEMORY_MB, 16, number)


def _queue(name: str, share: int, used: int, pending: Resources, most: int) -> YarnQueue:
    return YarnQueue(
        name=name,
        path=f"root.{name}",
        share=_gpus(share),
        most=Resources(2 * MEMORY_MB, 32, most),
        used=_gpus(used),
        pending=pending,
    )


class World:
    """Cluster, sizing, and a master. delay_s: of every answer. first: workers that are asked for already."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        num_min: int = 1,
        delay_s: float = 0.0,
        first: int = 0,
        **settings: object,
    ) -> None:
        config = msgspec.convert({"queue": "train", **settings}, YarnConfig)
        self.cluster, self.num_min = cluster, num_min
        cluster.begin_with(first)
        self._first = members({"worker": first})
        self.sizing = YarnSizing(config, num_min, SERVICES, OWN, self._first.values())
        self.now_s = 0.0
        self.names = {id: name for name, id in self._first.items()}
        """By Skein's id: the member's name."""
        self.wanted: list[str] = []
        self.ended: list[Ended] = []
        self.returned: list[str] = []
        self.notes: list[str] = []
        self.left: dict[str, Ending] = {}
        self.actions: list[Action] = []
        self.target = 0
        self._numbers = count(1)
        self._delay_s = delay_s
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._seen: View | None = None

    def scale(self, target: int) -> None:
        self.target = target
        while len(self.wanted) > target:
            self.sizing.unwant(self.wanted.pop(), self.now_s)
        self._fill()

    def run(self, seconds: float) -> None:
        """Time passes, in small steps; longer ones where nothing would happen in between."""
        end_s = self.now_s + seconds
        while self.now_s < end_s - STEP_S / 2:
            next_s = self.sizing.next_time_s()
            due_s = min(self._later[0][0] if self._later else end_s, end_s if next_s is None else next_s)
            due_s = max(self.now_s, min(due_s, end_s))
            busy = self.cluster.others_wait or (self.cluster.free > 0 and self.cluster.of("REQUESTED"))
            steps = 1 if busy else max(1, math.ceil((due_s - self.now_s) / STEP_S - 1e-6))
            self.now_s += steps * STEP_S
            self.cluster.turn(self.now_s)
            while self._later and self._later[0][0] <= self.now_s:
                heapq.heappop(self._later)[2]()
            next_s = self.sizing.next_time_s()
            if next_s is not None and next_s <= self.now_s:
                self.decide()
            self._attend()

    def decide(self) -> None:
        for action in self.sizing.decide(self.now_s):
            self.actions.append(action)
            _DO[type(action)](self, action)
        self._check()

    # --- the master ------------------------------------------------------------------------------

    def _fill(self) -> None:
        while len(self.wanted) < self.target:
            name = f"worker-{next(self._numbers)}"
            self.wanted.append(name)
            self.sizing.want(name, self.now_s, self._first.get(name))
        self.decide()

    def _attend(self) -> None:
        for ended in taken(self.sizing.news.ended):
            self.ended.append(ended)
            if ended.name in self.wanted:
                self.wanted.remove(ended.name)
        for name, why in taken(self.sizing.news.returns):
            self.returned.append(name)
            self.notes.append(f"{name} {why}")
            if name in self.wanted:
                self.wanted.remove(name)
                staying = [name for name in self.sizing.places() if name in self.wanted]  # as far as it knows
                assert len(staying) >= self.num_min, "it gave away more than it may"
                self._after(DRAIN_S, partial(self.sizing.unwant, name, self.now_s + DRAIN_S))
        self.notes += [text for _, text in taken(self.sizing.news.notes)]
        if len(self.wanted) < self.target:
            self._fill()

    # --- the rim ---------------------------------------------------------------------------------

    def _add(self, action: Add) -> None:
        if self._seen is not None:
            asked = SERVICES[action.service]
            assert any(asked.fits(node.total) for node in self._seen.nodes), (
                "it may end the ApplicationMaster"
            )
        try:
            made = self.cluster.add(action.service)
        except YarnError as error:
            self._answer(partial(self.sizing.refused, action.name, error))
            return
        self.names[made.id] = action.name
        self._answer(partial(self.sizing.accepted, action.name, made.id))

    def _end(self, action: End) -> None:
        for id in action.ids:
            with contextlib.suppress(YarnError):
                self.cluster.kill(id)

    def _signal(self, action: Signal) -> None:
        assert action.yarn_id != OWN
        self.cluster.signal(action.yarn_id)

    def _read_words(self, action: ReadWords) -> None:
        self._answer(partial(self.sizing.heard, action.name, self.left.get(action.name)))

    def _poll(self, action: Poll) -> None:
        try:
            found = self.cluster.poll()
        except YarnError as error:
            self._answer(partial(self.sizing.unobserved, error))
            return
        self._answer(lambda now_s: self.sizing.observed(found, now_s, EPOCH + now_s))

    def _look_around(self, action: LookAround) -> None:
        try:
            view = self.cluster.view()
        except YarnError as error:
            self._answer(partial(self.sizing.not_viewed, error))
            return
        self._answer(partial(self._viewed, view))

    def _viewed(self, view: View, now_s: float) -> None:
        self._seen = view
        self.sizing.viewed(view, now_s)

    def _answer(self, tell: Callable[[float], None]) -> None:
        self._after(self._delay_s, lambda: tell(self.now_s))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        def acted() -> None:
            act()
            self.decide()

        heapq.heappush(self._later, (self.now_s + seconds, next(self._order), acted))

    def _check(self) -> None:
        """What must hold at any moment."""
        living = [self.names[each.id] for each in self.cluster.containers.values() if not each.over]
        assert len(living) == len(set(living)), "two containers have one name"
        next_s = self.sizing.next_time_s()
        assert next_s is None or next_s > self.now_s, "it would decide again and again"


_DO: dict[type, Callable[[World, object], None]] = {
    Add: World._add,
    End: World._end,
    Signal: World._signal,
    ReadWords: World._read_words,
    Poll: World._poll,
    LookAround: World._look_around,
}  # type: ignore[dict-item]


def newest(names: list[str]) -> list[str]:
    """The highest number first."""
    return sorted(names, key=number_of, reverse=True)


# --- what may happen --------------------------------------------------------------------------------


def _end_some(world: World, number: int, words: str) -> None:
    for yarn_id in sorted(world.cluster.running)[:number]:
        world.cluster.end(yarn_id, world.now_s, "FAILED", words)


def _others(world: World, number: int) -> None:
    world.cluster.others = max(0, min(number, world.cluster.free + world.cluster.others))


def _lose(world: World, number: int) -> None:
    if len(world.cluster.nodes) > 1:
        world.cluster.lose(sorted(world.cluster.nodes)[0], world.now_s)


def _forget(world: World, number: int) -> None:
    world.cluster.forgotten.update(each.id for each in world.cluster.of("REQUESTED")[:number])


def _turn(name: str) -> Callable[[World, int], None]:
    return lambda world, number: setattr(world.cluster, name, number % 2 == 0)


HAPPENS: dict[str, Callable[[World, int], None]] = {
    "scale": lambda world, number: world.scale(max(number % 7, world.num_min)),
    "look": lambda world, number: world.sizing.look(),
    "others": _others,
    "wait": lambda world, number: setattr(world.cluster, "others_wait", number % 7),
    "fail": lambda world, number: _end_some(world, number, "Container failed during execution"),
    "preempt": lambda world, number: _end_some(world, number, "Container preempted by scheduler"),
    "lose": _lose,
    "node": lambda world, number: world.cluster.nodes.update({f"node{number + 3}:8042": number % 3}),
    "away": _turn("away"),
    "hangs": _turn("hangs"),
    "kills": _turn("loses_kills"),
    "ends": _turn("loses_ends"),
    "forgets": _forget,
}
