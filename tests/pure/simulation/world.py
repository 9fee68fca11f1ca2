"""A whole run in simulated time: the real state machines, with processes and a network made of a seed.

Real: ``MasterState`` with ``Memory``, ``ServerState``, ``Snapshots``, ``ClientState``. Imitated, line by
line and as thin as possible: the processes around them. What is computed are symbols (``truth.py``), so
whatever a server makes, keeps or fetches, and a worker gets, is compared at once with what an
undisturbed run has. What else must hold: ``laws.py``.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from elasticflow.api import SGD
from elasticflow.cluster.contract import MASTER
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.run.config import Config
from elasticflow.step.layout import Entry, Rule
from elasticflow.step.schedule import Schedule
from elasticflow.wire.messages import Cut, Spec

from .laws import Laws
from .master import RESTART_S, Backend, SimMaster
from .member import Member
from .network import Clock, Connection, Process
from .server import SimServer
from .storage import Storage
from .truth import Truth, truth_of
from .worker import SimWorker

MOST_EVENTS = 30_000
"""More than any run that comes to an end needs; most need 500."""
CALM_S = 60.0
"""So long after the last fault, beyond ``lost_s`` twice, every run is over."""
GRACES_S = (0.0, 0.05, 0.5)
"""For so long a place is still there after it should have been left."""
MOVE_S = (0.05, 2.0)
"""How long it takes until master and servers have another place."""


@dataclass(frozen=True)
class Shape:
    """What is to be computed, by how many, and what the world is like.

    parcels: of each server; none: it holds no chunks. bad: (tick, slice) on which the program raises until
    its record is left out. start: (step, tick) of a checkpoint to go on from. write_s: how long writing,
    reading and committing take at most. kill_s: how long it takes at most to end a process. failing: how
    often a part or a commit that is not the last fails. limit_s: when the run's time limit is over.
    hangs_at: a tick of which whoever computes anything hangs.
    """

    schedule: Schedule
    parcels: tuple[int, ...]
    workers: int
    clips: bool = False
    checkpoint_every: str = "2 steps"
    snapshot_s: float = 0.1
    start: tuple[int, int] | None = None
    bad: tuple[tuple[int, int], ...] = ()
    deadly: tuple[tuple[int, int], ...] = ()
    poisoned: tuple[tuple[int, int], ...] = ()
    """(tick, parcel, counted through all servers): where gradients hold numbers that are none."""
    on_nan: str = "stop"
    slice_s: float = 0.01
    delay_s: float = 0.001
    write_s: float = 0.1
    kill_s: float = 0.0
    failing: float = 0.0
    duplicates: bool = False
    heartbeat_s: float = 0.1
    suspect_s: float = 0.3
    lost_s: float = 60.0
    limit_s: float | None = None
    stall_s: float = 4.0
    hangs_at: int | None = None

    @cached_property
    def config(self) -> Config:
        batch_size, num_slices = self.schedule.batch_size, self.schedule.num_slices
        mode: dict[str, Any] = {"batch_size": batch_size, "slices": num_slices}
        if self.schedule.asynchronous:
            mode = {"mode": "async", "batch_size": batch_size // num_slices, "staleness": num_slices - 1}
        return Config(
            **mode,
            workers=str(self.workers),
            servers=len(self.parcels),
            epochs=self.schedule.epochs,
            checkpoint_every=self.checkpoint_every,
            snapshot_s=self.snapshot_s,
            max_quarantined=len(self.bad) + len(self.deadly),
            force_quarantine=True,
            on_nan=self.on_nan,
            max_failures=100,
            heartbeat_s=self.heartbeat_s,
            suspect_s=self.suspect_s,
            lost_s=self.lost_s,
            stall_s=self.stall_s,
            time_limit="" if self.limit_s is None else f"{self.limit_s:.3f}s",
        )

    @property
    def skipped(self) -> frozenset[int]:
        """Ticks that are left out."""
        return frozenset(tick for tick, _ in self.poisoned if self.on_nan == "skip")

    @property
    def row(self) -> tuple[int, ...]:
        """Parcels of each place, that of a standby included."""
        stands_by = len(self.parcels) == 1 and self.snapshot_s > 0
        return (*self.parcels, 0) if stands_by else self.parcels


@dataclass(frozen=True)
class Fault:
    """After ``after`` events of the run, something happens to the ``pick``-th of those it can happen to."""

    after: int
    kind: str
    pick: int = 0
    seconds: float = 0.0


class World:
    """One history: a shape, faults, and a seed for all that is left to chance.

    journals: masters write down what they know, since more faults than those named may come.
    """

    def __init__(
        self, shape: Shape, faults: Iterable[Fault] = (), seed: int = 0, *, journals: bool = False
    ) -> None:
        self.shape, self.config, self.duplicates = shape, shape.config, shape.duplicates
        self.all_faults = sorted(faults, key=lambda fault: fault.after)
        self._faults = deque(self.all_faults)
        self.rng = random.Random(seed)
        self.clock = Clock(self.rng, shape.delay_s)
        self.truth: Truth = truth_of(shape.schedule, shape.row, shape.clips, shape.skipped)
        self.spec = _spec(shape.schedule, shape.clips)
        self.storage = Storage(self.truth)
        if shape.start:
            self.storage.begin_with(*shape.start)
        self.num_events = self.num_computed = self.num_killed = self.num_hung = 0
        self.life = self.place = 1
        self.dies_at_end = False
        self.journals = journals or any(fault.kind in MASTER_DIES for fault in self.all_faults)
        self._calm_s = 0.0
        self.members: dict[str, Member] = {}
        self.laws = Laws(self)
        self.laws.spares_workers = not shape.deadly
        self.backend = Backend(self)
        self.master = SimMaster(self, 1, 1, None)
        self._begun = False

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> ac.EndAction:
        """Runs until the master says that the run is over, and checks what it is left with."""
        while not self.over:
            self.step()
        end = self.master.end
        assert end
        self.laws.end(end)
        return end

    @property
    def over(self) -> bool:
        return self.master.end is not None and self.master.alive

    def step(self) -> None:
        """The next thing happens, and the faults that are due."""
        if not self._begun:
            self._begun = True
            self.master.start()
        self.clock.step()
        self.num_events += 1
        while self._faults and self._faults[0].after <= self.num_events:
            self.strike(self._faults.popleft())
        assert self.num_events < MOST_EVENTS, f"no end in sight: {self.where()}"
        calm_s = self.clock.now_s - self._calm_s
        assert self._faults or calm_s < CALM_S + 2 * self.shape.lost_s, f"no end: {self.where()}"

    def where(self) -> str:
        living = [member for member in self.members.values() if member.alive]
        state = self.master.state
        lines = [
            f"at {self.clock.now_s:.3f} s, {self.master}, {state.state}, {state.row}",
            *(f"  {member}" for member in living),
            *(f"  {m.name} {m.state} of {m.generation}" for m in state.members.values()),
            *(f"  {note}" for note in self.master.notes),
        ]
        return "\n".join(lines)

    # --- processes -------------------------------------------------------------------------------

    def start_process(self, name: str, role: str) -> None:
        known = self.members.get(name)
        assert known is None or not known.alive, f"{name} is started twice"
        self.members[name] = SimServer(self, name) if role == "server" else SimWorker(self, name)

    def connect(
        self, near: Process, name: str, take: Callable[[Connection, Any], None], generation: int
    ) -> Connection:
        """To the server of a name; if it is dead, that is what one hears."""
        server = self.members[name]
        assert isinstance(server, SimServer)
        connection = Connection(near, server, take, server.take, generation)
        if not server.alive:
            connection.close(server, lossy=False)
        return connection

    def supervise(self, *, move: bool = False, within_s: tuple[float, float] = RESTART_S) -> None:
        """The master is dead: another one takes its place."""
        dead, wait_s = self.master, self.rng.uniform(*within_s)
        move = self._moves or move
        self._calm_s = max(self._calm_s, self.clock.now_s + wait_s)

        def begin() -> None:
            if self.master is dead:
                self.backend.hand_over()
                port = dead.port + (1 if move else 0)
                self.master = SimMaster(self, dead.incarnation + 1, port, dead.journal())
                self.master.start()

        self.clock.at(self.clock.now_s + wait_s, begin)

    _moves = False

    def hand_over(self) -> None:
        """The master has asked for another in another place."""
        wait_s = self.rng.uniform(*RESTART_S)
        self.clock.at(self.clock.now_s + wait_s, partial(self._lose_place, self.place, in_order=True))

    def _near_limit(self, seconds: float) -> None:
        """The place of master and servers ends soon, and is known to."""
        if self.backend.leave_s(MASTER) is None:
            leave_s = self.clock.now_s + min(seconds, 3.0)
            self.backend.expire(MASTER, self.clock.now_s, leave_s)
            end_s = leave_s + self.rng.choice(GRACES_S)
            self._calm_s = max(self._calm_s, end_s)
            self.clock.at(end_s, partial(self._lose_place, self.place))

    def _lose_place(self, place: int, *, in_order: bool = False) -> None:
        """Master and servers are gone, all at once; in another place another master begins.

        in_order: they were told to end..
        """
        if place != self.place or self.over:
            return
        self.place += 1
        self.backend.move()
        for server in self.living("server"):
            server.die(lossy=True)
        self.master.in_order = in_order and self.master.alive and not self.master.frozen
        self.master.die(lossy=True)
        self.supervise(move=True, within_s=MOVE_S)

    def _expire(self, worker: Member, replace_s: float, lasts_s: float) -> None:
        """A worker's place ends at a known time."""
        leave_s = replace_s + lasts_s
        self.backend.expire(worker.name, replace_s, leave_s)
        end_s = leave_s + self.rng.choice(GRACES_S)
        self._calm_s = max(self._calm_s, end_s)

        def end() -> None:
            if self.backend.leave_s(worker.name) == leave_s:  # else it was prolonged, or cut short
                worker.take()

        self.clock.at(end_s, end)

    def _black_out(self) -> None:
        """Nothing is left but the storage; somebody resumes the run."""
        dead = self.master
        dead.alive = True
        self.master.die(lossy=True)
        for member in self.members.values():
            member.die(lossy=True)
        self.life += 1
        self.place += 1
        self.members = {}
        self.backend = Backend(self)
        self.master = SimMaster(self, 1, dead.port + 1, None)
        self.master.start()

    # --- faults ----------------------------------------------------------------------------------

    def living(self, role: str) -> list[Member]:
        return [member for member in self.members.values() if member.alive and member.role == role]

    def strike(self, fault: Fault) -> None:
        """Something goes wrong now."""
        lasts_s = fault.seconds if fault.seconds < float("inf") else 0.0
        self._calm_s = max(self._calm_s, self.clock.now_s + lasts_s)
        self.laws.spares_workers &= fault.kind in SPARES_WORKERS
        verb, _, whom = fault.kind.partition(" ")
        if fault.kind == "kill master":
            self._kill_master(fault)
        elif fault.kind == "kill master at the end":
            self.dies_at_end = True
        elif fault.kind == "kill master and server":
            self._kill_master(fault)
            self._each("kill", fault, self._chosen("server", fault.pick))
        elif fault.kind == "freeze master":
            self.master.freeze(min(fault.seconds, 3.0))
        elif fault.kind == "black out":
            self._black_out()
        elif fault.kind == "near limit":
            self._near_limit(fault.seconds)
        elif fault.kind == "lose leader":
            self._lose_place(self.place)
        elif fault.kind == "stop":
            self.laws.stopped = True
            self.master.run(partial(self._ask, ev.StopEvent("asked to stop")))
        elif fault.kind == "scale":
            workers = 1 + fault.pick % self.shape.schedule.num_slices
            self.master.run(partial(self._ask, ev.ScaleEvent(workers)))
        elif fault.kind == "cut":
            leader = self.members.get(self.master.state.row.leader)
            if leader and leader.alive:
                leader.run(partial(leader.obey, Cut()))
        else:
            self._each(verb, fault, self._chosen(whom, fault.pick))

    def _ask(self, event: ev.Event) -> None:
        self.master.handle(event)

    def _kill_master(self, fault: Fault) -> None:
        """Now, or in the midst of the next things that it does; maybe the next one listens elsewhere."""
        self._moves = fault.pick % 5 == 0
        if fault.pick % 2:
            self.master.fuse = fault.pick % 7
        else:
            self.master.kill()

    def _chosen(self, whom: str, pick: int) -> list[Member]:
        if whom in ("server", "worker"):
            living = self.living(whom)
            return [living[pick % len(living)]] if living else []
        if whom in ("servers", "workers"):
            return self.living(whom.removesuffix("s"))
        if whom == "member":
            living = self.living("server") + self.living("worker")
            return [living[pick % len(living)]] if living else []
        names = self.master.state.row.names
        places = {"leader": [0], "last": [-1], "pair": [pick % len(names), (pick + 1) % len(names)]}[whom]
        found = [self.members.get(names[place]) for place in places]
        return [member for member in found if member and member.alive]

    def _each(self, verb: str, fault: Fault, victims: list[Member]) -> None:
        for victim in victims:
            if verb == "kill":
                self.num_killed += 1
                victim.kill()
            elif verb == "take":
                victim.take()
            elif verb == "warn" and isinstance(victim, SimWorker):
                victim.warn()
                end_s = self.clock.now_s + min(fault.seconds, 3.0)
                self._calm_s = max(self._calm_s, end_s)
                self.clock.at(end_s, victim.take)
            elif verb == "expire":
                replace_s = self.clock.now_s + 0.2 * (fault.pick % 3)
                self._expire(victim, replace_s, min(fault.seconds, 3.0))
            elif verb == "freeze":
                victim.freeze(fault.seconds)
            elif verb == "hang":
                self.num_hung += 1
                victim.hang(fault.seconds)
            elif verb == "slow" and isinstance(victim, SimWorker):
                victim.slowness = 1 + 2 * min(fault.seconds, 3.0)
            elif verb == "partition":
                victim.partition(min(fault.seconds, 3.0), lossy=fault.pick % 3 == 0)
            elif verb == "reset":
                victim.cut_off()
            elif verb in ("sever", "stall"):
                ways = [way for way in victim.connections if way.generation]
                if ways and verb == "sever":
                    ways[fault.pick % len(ways)].close(None, lossy=True)
                elif ways:
                    ways[fault.pick % len(ways)].stall(self.clock.now_s + min(fault.seconds, 3.0))


MASTER_DIES = (
    *("kill master", "kill master and server", "kill master at the end", "black out"),
    *("near limit", "lose leader"),
)
SPARES_WORKERS = {
    *("kill server", "kill servers", "kill leader", "kill last", "kill pair"),
    *("freeze server", "freeze leader", "cut"),
}
KINDS = (
    *(f"kill {whom}" for whom in ("worker", "worker", "server", "server", "servers", "leader", "last")),
    *("kill pair", "kill master", "kill master", "kill master and server"),
    *(f"freeze {whom}" for whom in ("worker", "server", "leader", "master", "member")),
    *("slow worker", "partition member", "reset member", "sever member", "sever server", "stall member"),
    *("scale", "cut"),
    *("take worker", "warn worker", "warn worker", "expire worker", "expire worker"),
    *("near limit", "lose leader"),
    *("hang worker", "hang worker", "hang member", "hang workers"),
)


def _spec(schedule: Schedule, clips: bool) -> Spec:
    """Three chunks of parameters, and the report's."""
    return Spec(
        framework="symbols",
        entries=(
            Entry("weights", (40,), "float32", Rule.UPDATE),
            Entry("report", (1,), "float32", Rule.REPORT),
        ),
        optimizer=SGD(lr=1.0, clip_norm=1.0 if clips else None),
        metrics=(),
        num_records=schedule.num_records,
        num_test=schedule.num_test,
        data_signature="",
    )
