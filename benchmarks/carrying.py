"""A thousand workers that carry the servers, by plan: messages and bytes of a step, and a storm of joins.

Nothing is sent: the master's own state machine says who carries and computes what, and from that follows who
sends what to whom. The plot is docs/growth-peers.png; it needs matplotlib.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figures import Figure, figure
from benchmarks.growth import FOLDER, plot, pyplot_of
from elasticflow.api import SGD
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.groups import DIRECT
from elasticflow.master.members import MemberState
from elasticflow.master.state import MasterState
from elasticflow.run.config import MOST_PLACES, Config
from elasticflow.step.layout import Entry, Layout, Rule
from elasticflow.step.slices import nodes_of
from elasticflow.wire.messages import Join, Offer, Paused, Ready, Spec
from elasticflow_ps.parcels import parcels_of

WORKERS = (2, 8, 32, 100, 300, 1000)
STORM = 500
SLICES = 1024
MODEL_BYTES = 400_000_000
COMMAND = "python -m benchmarks carrying"
STEP_S = 0.05
"""Between two events of the master, if nothing is asked of it."""
SPEC = Spec(
    framework="torch",
    entries=(
        *(Entry(f"w{n}", (MODEL_BYTES // 400,), "float32", Rule.UPDATE) for n in range(100)),
        Entry("cost", (1,), "float32", Rule.REPORT),
    ),
    optimizer=SGD(lr=0.1),
    metrics=(),
    num_records=SLICES * 100,
    num_test=0,
    data_signature="none",
)


class Traffic(NamedTuple):
    """Of a step. busiest_*: of the worker that receives most. link_bytes: of the one that carries most, from
    one worker to another, both ways. peers: with which one worker talks, at most."""

    messages: int
    busiest_messages: int
    busiest_bytes: int
    link_bytes: int
    peers: int


class Crowd:
    """A master's state, and members that do at once what they are told. told: messages of the master so far;
    moves: times that all began anew; cpu_s: the master's processor time."""

    def __init__(self, most: int, target: int) -> None:
        config = Config(
            workers=f"1..{most}", batch_size=SLICES, slices=SLICES, strategy="all_reduce", places=MOST_PLACES,
            least_gain=0.0,
        )  # fmt: skip
        self.state = MasterState(config)
        self.now_s, self.told, self.moves, self.cpu_s = 100.0, 0, 0, 0.0
        self._waiting: list[ac.Action] = []
        begun_s = time.process_time()
        self._waiting += self.state.start(self.now_s)
        self._waiting += self.state.handle(ev.ScaleEvent(target), self.now_s)
        self.cpu_s += time.process_time() - begun_s
        self.settle()

    def scale(self, workers: int) -> None:
        """Asks for so many, and waits until they take part, and places have moved."""
        self._tell(ev.ScaleEvent(workers))
        self.settle()

    def _tell(self, event: ev.Event) -> None:
        self.now_s += 1e-4
        begun_s = time.process_time()
        actions = self.state.handle(event, self.now_s)
        self.cpu_s += time.process_time() - begun_s
        self._waiting += actions

    def settle(self) -> None:
        """Until nobody has anything more to do."""
        idle = 0
        while idle < 3:
            if not self._waiting:
                idle += 1
                self.now_s += STEP_S
                for member in list(self.state.members.values()):
                    if member.state is not MemberState.STARTING:
                        member.heard_s = self.now_s
                self._tell(ev.ClockEvent())
                continue
            idle, waiting, self._waiting = 0, self._waiting, []
            for action in waiting:
                self._answer(action)

    def _answer(self, action: ac.Action) -> None:
        said = (ac.HaltAction, ac.AssignAction, ac.PlanAction, ac.PauseAction, ac.KillAction, ac.DrainAction)
        self.told += len(getattr(action, "servers", (1,))) if isinstance(action, said) else 0
        if isinstance(action, ac.StartAction):
            role = action.role
            spec = SPEC if role == "worker" else None
            join: dict[str, Any] = {"name": action.name, "role": role, "host": "h", "pid": 1}
            self._tell(Join(**join, endpoint=action.name, spec=spec))
        elif isinstance(action, ac.AssignAction):
            self._tell(Ready(name=action.name, generation=action.assignment.generation))
        elif isinstance(action, ac.PauseAction):
            generation = self.state.row.generation
            for name in self.state.row.holders:
                self._tell(Paused(name=name, generation=generation, version=7))
        elif isinstance(action, ac.HaltAction):
            server = self.state.members.get(action.name)
            held = tuple((place, 7) for place in range(MOST_PLACES)) if server and server.was_ready else ()
            self._tell(Offer(name=action.name, generation=action.generation, held=held))
        elif isinstance(action, ac.RegroupedAction):
            self.moves += 1

    def traffic(self) -> Traffic:
        """By the plan, as it is now."""
        row, members, layout = self.state.row, self.state.members, Layout(SPEC.entries)
        heard: Counter[str] = Counter()
        received: Counter[str] = Counter()
        links: Counter[frozenset[str]] = Counter()

        def exchange(below: str, above: str, num_nodes: int, num_bytes: int, num_parcels: int) -> None:
            """Sums of so many nodes go up, a version comes down."""
            heard[above] += num_nodes * num_parcels
            heard[below] += num_parcels
            if below != above:
                received[above] += num_nodes * num_bytes
                received[below] += num_bytes
                links[frozenset((below, above))] += (num_nodes + 1) * num_bytes

        for place, (name, chunks) in enumerate(zip(row.names, row.chunks, strict=True)):
            size = sum(layout.chunk_bytes(layout.chunks[number]) for number in chunks)
            parcels, server = len(parcels_of(layout, chunks)) if chunks else 0, members[name].carrier
            relays = {row.relays[relay][0]: members[relay].carrier for relay in row.relaying
                      if row.relays[relay][1] == place}  # fmt: skip
            ranges: dict[str, list[tuple[int, int]]] = {}
            for share in self.state.plan:
                mine = tuple(range(share.first, share.stop))
                relay = relays.get(row.groups.get(share.worker, DIRECT), "")
                if relay:
                    exchange(share.worker, relay, len(nodes_of(mine)), size, parcels)
                ranges.setdefault(relay or share.worker, []).append((share.first, share.stop))
            for below, parts in ranges.items():
                slices = tuple(sorted(number for part in parts for number in range(*part)))
                exchange(below, server, len(nodes_of(slices)), size, parcels)
        peers = Counter(worker for link in links for worker in link)
        return Traffic(
            heard.total(),
            max(heard.values()),
            max(received.values()),
            max(links.values()),
            max(peers.values()),
        )


def storm(workers: int, more: int) -> tuple[int, int, float]:
    """So many come to so many: how often all begin anew, the master's messages, and its CPU seconds."""
    crowd = Crowd(workers + more, workers)
    moves, told, cpu_s = crowd.moves, crowd.told, crowd.cpu_s
    crowd.scale(workers + more)
    assert crowd.state.num_ready == workers + more, crowd.state.num_ready
    return crowd.moves - moves, crowd.told - told, crowd.cpu_s - cpu_s


def run(folder: Path = FOLDER) -> Iterator[Figure]:
    """Steps first, then the storm. folder: where the plot goes."""
    found = [Crowd(workers, workers).traffic() for workers in WORKERS]
    model_mb = MODEL_BYTES / 1e6
    for workers, one in zip(WORKERS, found, strict=True):
        note = (
            f"{one.busiest_messages} messages, {one.peers} peers, {one.link_bytes / 1e6:.0f} MB on one link"
        )
        name = f"{workers} workers: received by the busiest in a step / the model"
        yield figure(name, one.busiest_bytes / 1e6, "MB", model_mb, COMMAND, note)
        yield figure(f"{workers} workers: messages in a step", one.messages, "", found[0].messages, COMMAND)
    lines: dict[str, Iterable[int]] = {
        "MB received by the busiest": [max(1, one.busiest_bytes // 10**6) for one in found],
        "MB on the busiest link": [max(1, one.link_bytes // 10**6) for one in found],
        "messages of all": [one.messages for one in found],
        "peers of one": [one.peers for one in found],
    }
    plot(
        pyplot_of(), folder / "growth-peers.png", "workers", WORKERS,
        {name: list(map(float, values)) for name, values in lines.items()}, "a step",
    )  # fmt: skip
    for workers in (1, STORM):
        moves, told, cpu_s = storm(workers, STORM)
        note = f"{moves} moves, {told} messages of the master"
        yield figure(f"{STORM} join {workers} at once: CPU of the master", cpu_s, "s", 1.0, COMMAND, note)
