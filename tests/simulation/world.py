"""One history: the product's own processes on a simulated system, and what goes wrong."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq
from greenlet import GreenletExit

import elasticflow.checkpoint
import elasticflow.cluster.contract
import elasticflow.cluster.member
import elasticflow.master.server
import elasticflow.process.fingerprint
import elasticflow.run.folder
import elasticflow.worker.life
import elasticflow_ps.client
import elasticflow_ps.server
from elasticflow.cluster.contract import MASTER
from elasticflow.cluster.member import EXIT_ABANDONED, MasterLink
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.master import actions as ac
from elasticflow.master.fence import Superseded, claim, newest
from elasticflow.master.members import RunState
from elasticflow.master.stall import STEPS
from elasticflow.master.state import MasterState
from elasticflow.master.status import Story
from elasticflow.master.supervisor import CRASHED, SUPERSEDED
from elasticflow.run.config import ALL_REDUCE, Config
from elasticflow.run.folder import RunDir, RunPath
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array
from elasticflow.step.schedule import Schedule
from elasticflow.storage import DirectoryStorage
from elasticflow.training.standing import WatchRules
from elasticflow.wire.control import control_link, signed_frame
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.wire.messages import Assignment, Join, Push, ScaleRequest, StopRequest
from elasticflow.worker.carrying import Carrying
from elasticflow.worker.computing import Computing
from elasticflow.worker.life import admitted
from elasticflow.worker.whose_fault import OutsideError
from elasticflow_ps import client_state as cs
from elasticflow_ps import snapshots as sn
from elasticflow_ps import state as st
from elasticflow_ps.backups import ComputeAction

from .backend import Cluster, SimBackend
from .disk import Disk, lay_out
from .laws import (
    Hashes,
    Laws,
    WatchedClient,
    WatchedKeeping,
    WatchedMaster,
    WatchedServing,
    parameters_of,
    rows_of,
)
from .program import SmallLoaded, plainly
from .sockets import Network
from .system import System
from .threads import Hub, Process, Violation
from .trial import SimTrial

CALM_S = 90.0
"""A run that nothing more happens to ends within so many seconds, and what ``still_s`` adds."""
END_S = 120.0
"""Members of a run that is over end within so many seconds, and twice ``lost_s``."""
RESTART_S = (0.01, 0.2)
MOVE_S = (0.1, 1.0)
TRAP_S = (0.002, 0.02, 0.3)
"""What somebody's act brings about happens so much later, at most."""
AT_ONCE = 50
"""So many events of a run, at most, lie between two looks at how it goes."""
GRACES_S = (0.0, 0.1, 1.0)
"""How long a place lasts beyond its end."""
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Shape:
    """What is computed, by how many, and how quickly things go.

    bad, deadly, hanging, poisoned: rows on which the program raises, dies, does not come back, or makes
    NaN or infinite numbers. moves: where the master is lost with its place, another one is in another place.
    slowness: of each worker one of these, in multiples of the usual time.
    """

    num_records: int = 20
    num_test: int = 5
    per_slice: int = 2
    slices: int = 4
    epochs: int = 2
    asynchronous: bool = False
    optimizer: str = "momentum"
    clips: bool = False
    tables: bool = False
    staged: bool = False
    """Whether a step is two ticks: see ``elasticflow.frameworks.staged``."""
    thaws: bool = False
    """Whether one of both parameters is trained in the first epoch, and the other from then on."""
    bad: tuple[int, ...] = ()
    deadly: tuple[int, ...] = ()
    hanging: tuple[int, ...] = ()
    poisoned: tuple[int, ...] = ()
    strict: bool = False
    """Whether rows on which the program raises, or dies, end the run; else they are left out."""
    max_failures: int = 100
    on_nan: str = "stop"
    compression: str = "none"
    evaluate_every: int = 0
    rules: WatchRules = WatchRules()
    workers: int = 2
    elastic: bool = False
    """Whether fewer workers will do, if they are not much slower."""
    servers: int = 2
    carried: bool = False
    """Whether these live with the workers: ``strategy: all_reduce``."""
    peers: int = 32
    parcel_bytes: int = 128
    shared_memory: bool = False
    overlap: bool = True
    checkpoint_every: str = "2 steps"
    snapshot_s: float = 0.02
    slice_s: float = 0.01
    delay_s: float = 0.001
    lag_s: float = 0.0
    """By so much, at most, some connections are slower than others."""
    start_s: float = 0.1
    homeless_s: float = 0.0
    """So much longer servers, but for the first, wait for their places."""
    write_s: float = 0.05
    kill_s: float = 0.0
    heartbeat_s: float = 0.5
    suspect_s: float = 2.0
    lost_s: float = 10.0
    stall_s: float = 30.0
    keep: int = 3
    limit_s: float | None = None
    moves: bool = False
    slowness: tuple[float, ...] = (1.0,)

    @property
    def computes_ids(self) -> bool:
        """Whether no column of the data is looked up in tables: nobody can ask for such rows ahead."""
        return not self.overlap  # which is one thing or the other anyway: seeds mean what they did

    @property
    def longest_slice_s(self) -> float:
        """A slice of an evaluation may take as long as several of a step."""
        pieces = max(1, -(-self.num_test // (self.slices * self.per_slice)))
        return pieces * self.slice_s * max(self.slowness)

    @property
    def work(self) -> Shape:
        """What decides the model's bits, and nothing else: done by one worker and one server."""
        return Shape(
            **{name: getattr(self, name) for name in _WORK},
            workers=1,
            servers=1,
            checkpoint_every="1 step",
            keep=1000,
            snapshot_s=0.0,
            write_s=0.0,
            slice_s=0.1,
            parcel_bytes=1 << 20,
            overlap=False,
        )

    @cached_property
    def config(self) -> Config:
        mode: dict[str, Any] = {"batch_size": self.slices * self.per_slice, "slices": self.slices}
        if self.asynchronous:
            mode = {"mode": "async", "batch_size": self.per_slice, "staleness": self.slices - 1}
            mode["staleness_rule"] = "none"
        return Config(
            **mode,
            program="small.py",
            backend="simulated",
            workers=f"1..{self.workers}" if self.elastic else str(self.workers),
            least_gain=0.5,
            **(
                {"strategy": ALL_REDUCE, "places": self.servers, "peers": self.peers}
                if self.carried
                else {"servers": self.servers}
            ),
            epochs=self.epochs,
            evaluate_every=self.evaluate_every,
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep,
            snapshot_s=self.snapshot_s,
            max_quarantined=0 if self.strict else len(self.bad) + len(self.deadly),
            force_quarantine=True,
            on_nan=self.on_nan,
            compression=self.compression,
            shared_memory=self.shared_memory,
            overlap=self.overlap,
            max_failures=self.max_failures,
            heartbeat_s=self.heartbeat_s,
            suspect_s=self.suspect_s,
            lost_s=self.lost_s,
            stall_s=self.stall_s,
            time_limit="" if self.limit_s is None else f"{self.limit_s:.3f}s",
            start_s=20.0,
            storage_patience_s=20.0,
        )

    @cached_property
    def schedule(self) -> Schedule:
        config = self.config
        return Schedule(
            num_records=self.num_records,
            num_test=self.num_test,
            batch_size=config.step_records,
            num_slices=config.num_slices,
            epochs=self.epochs,
            asynchronous=self.asynchronous,
            evaluate_every=self.evaluate_every,
            stages=1 + self.staged,
        )


_WORK = (
    *("num_records", "num_test", "per_slice", "slices", "epochs", "asynchronous", "optimizer", "clips"),
    *("tables", "bad", "deadly", "hanging", "poisoned", "on_nan", "compression", "evaluate_every", "rules"),
    *("staged", "thaws"),
)


@dataclass(frozen=True)
class Fault:
    """After ``after`` events of the run, something happens to the ``pick``-th of those it can happen to."""

    after: int
    kind: str
    pick: int = 0
    seconds: float = 0.0


@dataclass
class Life:
    """What is known of a process besides what any process is."""

    settings: MemberSettings
    notice: Callable[[str], None] | None = None
    admitted: bool = False
    """Before that, when it tries the program, no record is odd."""
    slowness: float = 1.0
    fails: bool = False
    """Whether its place has nothing left of something that its next slice needs."""


SYSTEM = System()


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Within it the product's modules are those of a simulated system. Histories are played within it."""
    if hasattr(SYSTEM, "playing"):
        yield
        return
    limits = SimpleNamespace(RLIMIT_NOFILE=0, getrlimit=lambda which: (0, 0), setrlimit=lambda *_: None)
    print_of, clock = elasticflow.process.fingerprint.fingerprint(1, {}), SYSTEM.module(time)
    server, worker = "elasticflow_ps.server", "elasticflow.worker.life"
    member, master = "elasticflow.cluster.member", "elasticflow.master.server"
    others = {
        (server, "resource"): limits,
        (server, "own_address"): lambda wanted, towards: wanted,
        (server, "Serving"): WatchedServing,
        (server, "Keeping"): WatchedKeeping,
        ("elasticflow_ps.client_state", "ClientState"): WatchedClient,
        ("elasticflow_ps.outgoing", "replace"): lambda push, **changes: SYSTEM.world.push(push, **changes),
        (master, "MasterState"): lambda *given, **named: WatchedMaster(SYSTEM.world.laws, *given, **named),
        (master, "Story"): partial(
            Story, clock=clock.monotonic, wall=clock.time, boot=lambda: ("one", SYSTEM.world.hub.now_s)
        ),
        ("elasticflow.master.journal", "replace"): lambda path, data: SYSTEM.world.write_journal(path, data),
        ("elasticflow.master.saving", "commit"): lambda storage, manifest: SYSTEM.world.laws.commit(
            storage, manifest
        ),
        (server, "available_memory"): dict,
        (worker, "available_memory"): dict,
        ("elasticflow_ps.ways", "is_here"): lambda address: True,
        (server, "admit_only_members"): lambda context, keys: _NoGate(),
        (master, "admit_only_members"): lambda context, keys: _NoGate(),
        (worker, "Loaded"): lambda settings: SYSTEM.world.load(settings),
        ("elasticflow.worker.computing", "Trial"): lambda begin, state, way, moves, nurse: SimTrial(
            SYSTEM.world, begin, state, way, moves
        ),
        (worker, "admitted"): lambda join, link: SYSTEM.world.admit(join, link),
        (worker, "fingerprint"): lambda threads, device: print_of,
        (worker, "Activity"): lambda: _Activity(),
        (worker, "on_notice"): lambda tell: SYSTEM.world.note_notice(tell),
        (member, "Alarm"): lambda silent_s: _NoAlarm(),
        (member, "write_all"): lambda why: None,
        (member, "main_stack"): lambda program: ("", ""),
        ("elasticflow.checkpoint.hdf5", "_lay_out"): lay_out,
        ("elasticflow.process.guard", "complain"): lambda name: SYSTEM.world.complain(name),
        ("elasticflow.process.poison", "ON"): True,
        ("elasticflow.wire.sending", "COPY_BELOW_BYTES"): 0,
        ("elasticflow.wire.router", "TURN"): FEW,
        ("elasticflow_ps.ways", "TURN"): FEW,
        ("elasticflow_ps.arena", "SMALL_BYTES"): 0,
        ("elasticflow_ps.arena", "BLOCK_BYTES"): 1 << 12,
        ("elasticflow_ps.arena", "HUGE_PAGE_BYTES"): 1 << 12,
        ("elasticflow_ps.parcels", "CHUNK_BYTES"): 128,
        ("elasticflow_ps.loans", "this_host"): lambda: "one",
        ("elasticflow.run.reserve", "RESERVE_BYTES"): 1 << 12,
        ("elasticflow.run.reserve", "_PIECE_BYTES"): 1 << 12,
    }
    backends = elasticflow.cluster.contract.BACKENDS
    backends["simulated"] = f"{SimBackend.__module__}:SimBackend"
    SYSTEM.playing = True
    gc.collect()
    gc.freeze()  # what is there from the start need not be looked through each time
    gc.disable()
    try:
        with SYSTEM.installed(others):
            yield
            gc.collect()  # what lets go of simulated descriptors does so here
    finally:
        gc.enable()
        gc.unfreeze()
        del SYSTEM.playing
        del backends["simulated"]


FEW = 2
"""So many messages are read at a time, so that others come in between, as they do where there are many."""
COLLECT = 50
"""So many worlds leave enough behind to be worth a look for what is left of them."""
MANY_FDS = 512
"""So many open files are no others than of worlds that are gone."""


class SimPorter:
    """Starts and ends servers beside a simulated worker."""

    nurse = None

    def __init__(self, world: World, worker: Process, settings: MemberSettings) -> None:
        self._world, self._worker, self._settings = world, worker, settings
        self._told: Callable[[str, bool, str], None] = lambda name, failed, text: None

    def listen(self, ended: Callable[[str, bool, str], None]) -> None:
        self._told = ended

    def start(self, name: str) -> None:
        self._world.hub.point()
        settings = msgspec.structs.replace(self._settings, name=name, role="server")
        self._world.start_beside(self._worker, settings, self._ended)

    def kill(self, name: str) -> None:
        self._world.hub.point()
        self._world.cluster.members[name].kill()

    def _ended(self, server: Process) -> None:
        if self._worker.alive:
            failed = server.how not in ("exit 0", "killed", f"exit {EXIT_ABANDONED}")
            tell = partial(self._told, server.name, failed, server.how)
            self._world.hub.later(self._world.network.delay(), self._begin, tell)

    def _begin(self, tell: Callable[[], None]) -> None:
        if self._worker.alive:
            self._worker.start(f"{self._worker.name}/porter", tell)


class _NoGate:
    """The gate is ZeroMQ's affair."""

    def stop(self) -> None:
        pass


class _Activity:
    """Whether any thread but the one that asks has run."""

    def look(self) -> int:
        running = SYSTEM.world.hub.running
        assert running is not None
        return sum(task.turn for task in running.process.tasks if task is not running)


class _NoAlarm:
    def put_off(self, now_s: float) -> None:
        pass

    def end(self) -> None:
        pass


class World:
    """One history: a shape, faults, and a seed for all that is left to chance."""

    def __init__(self, shape: Shape, faults: Iterable[Fault] = (), seed: int = 0) -> None:
        self.shape, self.config, self.seed = shape, shape.config, seed
        self.all_faults = sorted(faults, key=lambda fault: fault.after)
        self._faults = deque(self.all_faults)
        self.system = SYSTEM
        self.hub = Hub(seed)
        self.network = Network(self.hub, shape.delay_s, shape.lag_s)
        self.disk = Disk(self.hub, shape.write_s)
        self.cluster = Cluster(self)
        self.lives: dict[Process, Life] = {}
        self.laws = Laws(self)
        self.laws.spares_workers = not (shape.deadly or shape.hanging)
        self.end: ac.EndAction | None = None
        self.state: MasterState | None = None
        """The newest master's."""
        self.calm_s = 0.0
        """Until then something happens."""
        self.slowdown = 0.0
        """Of those that were made slower, in multiples of the usual time."""
        self._ended_s = float("inf")
        self.life = self.place = 1
        """Lives of the run, which each begin with ``--resume``; places that its master has had."""
        self._coming = 0
        """Masters that begin whatever becomes of those before them."""
        self.num_killed = self.num_hung = self.num_computed = 0
        self.ambushes: dict[str, type] = {}
        """By role: who does this next dies of it."""
        self.traps: list[tuple[str, type, Fault]] = []
        """By role: once somebody does this next, that happens to others."""
        self.stillborn: list[float] = []
        """Whoever begins next stands still from its first moment, for so long."""
        self.path = Path(tempfile.mkdtemp(prefix="elasticflow-sim-", dir=MEMORY if MEMORY.is_dir() else None))
        self._run = RunDir(self.path)
        self.master: Process
        self._former: list[Process] = []
        """Masters, and others that are no members."""

    # --- the run ---------------------------------------------------------------------------------

    def enter(self) -> None:
        """From now on this is the world that is simulated."""
        SYSTEM.world = SimBackend.world = self
        SYSTEM.hub = self.hub
        WatchedServing.laws = WatchedKeeping.laws = WatchedClient.laws = self.laws
        elasticflow_ps.parcels.CHUNK_BYTES = self.shape.parcel_bytes  # type: ignore[attr-defined]

    def run(self, at_end: Callable[[], None] = lambda: None) -> ac.EndAction | None:
        """Plays it to its end, and checks what is left."""
        with simulated():
            self.enter()
            try:
                self._run.create(self.config)
                self._start_master(again=False, resume=False)
                while self.end is None or not self.over:
                    self._step()
                self.laws.end(self.end)
                at_end()
                return self.end
            finally:
                self._close()

    @property
    def still_s(self) -> float:
        """Once nothing more happens it takes so long to an end, at most: it has patience with long steps."""
        shape = self.shape
        step_s = 1.5 * shape.slices * shape.slice_s * (max(shape.slowness) + self.slowdown) + 3.0
        return CALM_S + 2 * shape.lost_s + STEPS * step_s

    @property
    def patience_s(self) -> float:
        """What happens to members shows for so long, at most."""
        return 2.0 + 2 * self.shape.lost_s + self.shape.kill_s

    @property
    def over(self) -> bool:
        """The run is over, and everybody gone that there will be."""
        return self.end is not None and not self._coming and not any([p.alive for p in self.everybody])

    @property
    def everybody(self) -> list[Process]:
        return [self.master, *self._former, *self.lives]

    def _step(self) -> None:
        hub = self.hub
        until = self._faults[0].after if self._faults else hub.num_events + AT_ONCE
        hub.play(max(1, min(until - hub.num_events, AT_ONCE)) if self.end is None else 1)
        while self._faults and self._faults[0].after <= hub.num_events:
            self.strike(self._faults.popleft())
        if self.end is None:
            calm_s = hub.now_s - self.calm_s
            if calm_s > CALM_S and not self._faults and calm_s > self.still_s:
                raise Violation(f"no end in sight: {self.where()}")
        elif not self.master.alive:
            self._ended_s = min(self._ended_s, hub.now_s)
            if hub.now_s > max(self._ended_s, self.calm_s) + END_S + 2 * self.shape.lost_s:
                raise Violation(f"somebody stays when all is over: {self.where()}")

    def _close(self) -> None:
        """Lets go of all threads and files."""
        for process in self.hub.by_pid.values():
            process.vanish()
        self.system.files.clear()  # that of a process that was killed is closed by nobody
        shutil.rmtree(self.path, ignore_errors=True)
        self.system.num_closed += 1
        many_fds = len(os.listdir("/proc/self/fd")) > MANY_FDS  # shared memory of processes that were killed
        if many_fds or self.system.num_closed % COLLECT == 0:
            gc.collect()

    def ambush(self, role: str, action: object) -> None:
        """The process that runs is about to do this."""
        if type(action) is self.ambushes.get(role):
            del self.ambushes[role]
            self.num_killed += 1
            self.calm_s = max(self.calm_s, self.hub.now_s)
            self.hub.process.fuse = self.hub.rng.randrange(30)
        for trap in self.traps:
            if trap[0] == role and type(action) is trap[1]:
                self.traps.remove(trap)
                within_s = self.hub.rng.choice(TRAP_S)
                self.calm_s = max(self.calm_s, self.hub.now_s + within_s)
                self.hub.later(self.hub.rng.random() * within_s, self.strike, trap[2])
                return

    def where(self) -> str:
        """Who waits for what, for people."""
        lines = [f"at {self.hub.now_s:.3f} s"]
        for process in self.everybody:
            if process.alive:
                for task in process.tasks:
                    if task.greenlet is not None:
                        lines.append(f"  {task.name}: {_place(task.greenlet.gr_frame)}")
        return "\n".join(lines)

    def computes(self, process: Process) -> bool:
        """Whether it is in the middle of a slice."""
        for task in process.tasks:
            frame = task.greenlet.gr_frame if task.greenlet is not None else None
            while frame is not None:
                if frame.f_code is Computing.slice.__code__:
                    return True
                frame = frame.f_back
        return False

    # --- processes -------------------------------------------------------------------------------

    def process(self, pid: int) -> Process:
        """Raises FileNotFoundError if there is none of that number any more."""
        found = self.hub.by_pid.get(pid)
        if found is None or not found.alive:
            raise ProcessLookupError(3, "no such process")
        return found

    def _start_master(self, *, again: bool, resume: bool) -> None:
        process = Process(self.hub, f"master-{len(self._former) + 1}", self._master_ended)
        process.host = f"10.0.0.{self.place}"
        self.master = process
        self._former.append(process)
        process.start(process.name, partial(self._be_master, process, again, resume))

    def _be_master(self, process: Process, again: bool, resume: bool) -> None:
        run_dir, term = str(self.path), None
        try:
            term = claim(DirectoryStorage(run_dir)) if self.shape.moves else None
            again = again or term is not None and RunDir(run_dir).journal.exists()
            end = elasticflow.master.server.serve(
                run_dir, resume=resume or self.shape.moves and again, again=again, ready=str, term=term
            )
        except Superseded:
            if not self._is_superseded(term):
                self.hub.violate(Violation(f"{process.name} ends, and there is no other"))
            process.exit(SUPERSEDED)
        except OSError as error:
            self.hub.note(f"{process.name}: {error}")
            process.exit(CRASHED)
        except ElasticFlowError as error:
            if isinstance(error.__cause__, OSError) and self.disk.failed:
                process.exit(CRASHED)
            else:
                self.hub.violate(Violation(f"the run fails: {error}"))
                process.exit(1)
        else:
            if self._is_superseded(term):  # its word does not count: see ``leading.host``
                process.exit(SUPERSEDED)
                return
            same = self.end is not None and self.end.state is end.state
            if self.end is not None and not (same and self.shape.moves):
                self.hub.violate(Violation(f"a run ends twice: {self.end}, and {end}"))
            self.end = end
            self.hub.pauses = True
            process.exit(0)

    def _is_superseded(self, term: int | None) -> bool:
        return term is not None and newest(DirectoryStorage(self.path)) > term

    def _master_ended(self, process: Process) -> None:
        if self.end is None and process is self.master:
            self.supervise()

    def supervise(self, within_s: tuple[float, float] = RESTART_S, *, blind: bool = False) -> None:
        """The master is dead, or given up: another one takes its place.

        blind: whether the one before has ended the run meanwhile is not seen.
        """
        dead, wait_s = self.master, self.hub.rng.uniform(*within_s)
        self.calm_s = max(self.calm_s, self.hub.now_s + wait_s)

        def begin() -> None:
            self._coming -= blind
            if self.master is dead and (blind or self.end is None):
                self.cluster.hand_over()
                self._start_master(again=True, resume=self.life > 1)  # as its command said

        self._coming += blind
        self.hub.later(wait_s, begin)

    def hand_over(self) -> None:
        """The master has asked for another in another place."""
        self.hub.later(self.hub.rng.uniform(*RESTART_S), self._lose_place, self.place)

    def _lose_place(self, place: int) -> None:
        """Master and servers are gone, all at once; in another place another master begins."""
        if place != self.place or self.end is not None:
            return
        self.place += 1
        self.cluster.move()
        dead, self.master = self.master, self._nobody()
        for process in [dead, *self.living("server")]:
            self._take(process)
        self.supervise(MOVE_S)

    def _lose_sight(self, seconds: float) -> None:
        """The master stands still, and is thought to be dead, with the servers; then it goes on."""
        if self.end is not None:
            return
        self.master.frozen_s = self.hub.now_s + seconds
        self.place += 1
        self.cluster.move()
        for process in self.living("server"):
            self._take(process)
        self.supervise(MOVE_S, blind=True)

    def _nobody(self) -> Process:
        """Stands for the master while there is none."""
        nobody = Process(self.hub, "nobody", lambda process: None)
        nobody.alive = False
        return nobody

    def _black_out(self, *, power: bool) -> None:
        """Nothing is left but the storage; somebody resumes the run. power: nor what was not made durable."""
        dead, self.master = self.master, self._nobody()
        for process in [dead, *self.lives]:
            process.kill()
        if power:
            self.hub.at(self.hub.now_s, self.disk.lose_power)
        self.life += 1
        self.place += 1
        self.cluster = Cluster(self)
        self._run.journal.unlink(missing_ok=True)
        self._run.address.unlink(missing_ok=True)
        life = self.life

        def resume() -> None:
            if life == self.life:  # else it goes dark again at this very moment
                self._start_master(again=False, resume=True)

        self.hub.at(self.hub.now_s, resume)

    def _near_limit(self, seconds: float) -> None:
        """The place of master and servers ends soon, and is known to."""
        if self.cluster.leave_s(MASTER) is None:
            leave_s = self.hub.now_s + min(seconds, 3.0)
            self.cluster.expire(MASTER, self.hub.now_s, leave_s)
            end_s = leave_s + self.hub.rng.choice(GRACES_S)
            self.calm_s = max(self.calm_s, end_s)
            self.hub.at(end_s, self._lose_place, self.place)

    def _expire(self, worker: Process, replace_s: float, lasts_s: float) -> None:
        """A worker's place ends at a known time."""
        leave_s = replace_s + lasts_s
        self.cluster.expire(worker.name, replace_s, leave_s)
        end_s = leave_s + self.hub.rng.choice(GRACES_S)
        self.calm_s = max(self.calm_s, end_s)

        def end() -> None:
            if self.cluster.leave_s(worker.name) == leave_s:  # else it was prolonged, or cut short
                self._take(worker)

        self.hub.at(end_s, end)

    def _take(self, victim: Process) -> None:
        """The cluster takes its place away."""
        if victim.alive:
            self.cluster.taken.add(victim.name)
            victim.kill()

    def _ask(self, message: ScaleRequest | StopRequest) -> None:
        """Somebody asks the master for something."""
        process = Process(self.hub, "client", lambda process: None)
        self._former.append(process)

        def main() -> None:
            keys = read_keys(self._run.client_keys, MemberKeys)
            with contextlib.suppress(RunError):
                socket = control_link(SYSTEM.module(zmq).Context(), keys, self._run.read_address().endpoint)
                socket.send(signed_frame(keys, message))
                socket.poll(5000)
            process.exit(0)

        process.start("client", main)

    def start_member(self, settings: MemberSettings) -> None:
        """Asked for by a master; its process begins soon."""
        if self.hub.process is not self.master:
            return  # the cluster has lost sight of it
        known = self.cluster.members.get(settings.name)
        assert known is None or not known.alive, f"{settings.name} is started twice"
        process = Process(self.hub, settings.name, self.cluster.bury)
        process.host = f"10.0.0.{self.place if settings.role == 'server' else 100}"
        self.lives[process] = Life(settings, slowness=self.hub.rng.choice(self.shape.slowness))
        self.cluster.members[settings.name] = process

        def begin() -> None:
            if process.alive:
                self.cluster.place(settings.name)
                self._hold_up(process)
                process.start(settings.name, partial(self._be_member, process, settings))

        is_late = settings.role == "server" and settings.name != "server-0"
        waits_s = self.shape.homeless_s if is_late else 0.0
        self.hub.later(waits_s + self.hub.rng.random() * self.shape.start_s, begin)

    def _be_member(self, process: Process, settings: MemberSettings) -> None:
        keys = read_keys(self._run.keys_of(settings.name), MemberKeys)
        if settings.role == "worker":
            carries = settings.strategy == ALL_REDUCE
            carrying = Carrying(settings.name, SimPorter(self, process, settings)) if carries else None
            process.exit(elasticflow.worker.life.main(settings, keys, None, carrying))
        else:
            elasticflow_ps.server.main(settings, keys, DirectoryStorage(self.path))
            process.exit(0)

    def start_beside(
        self, worker: Process, settings: MemberSettings, ended: Callable[[Process], None]
    ) -> None:
        """A server that lives and dies with a worker."""
        process = Process(self.hub, settings.name, ended)
        process.host = worker.host
        self.lives[process] = Life(settings)
        self.cluster.members[settings.name] = process
        self.cluster.carried.add(settings.name)
        worker.at_end.append(process.kill)
        self._hold_up(process)
        process.start(settings.name, partial(self._be_member, process, settings))

    def _hold_up(self, process: Process) -> None:
        """If a newcomer is to stand still, it is this one."""
        if self.stillborn:
            seconds = self.stillborn.pop()
            process.frozen_s = self.hub.now_s + seconds
            self.calm_s = max(self.calm_s, self.hub.now_s + (seconds if seconds < float("inf") else 0.0))

    def write_journal(self, path: RunPath, data: bytes) -> None:
        """It takes its time, so the next master may find an older one."""
        self.disk.write()
        with open(path, "wb") as file:  # nobody sees half of it: no time passes here
            file.write(data)

    def kill_slowly(self, name: str) -> None:
        process = self.cluster.members.get(name)
        if process and process.alive and self.hub.process is self.master:
            self.laws.kills(process)
            wait_s = self.hub.rng.random() * self.shape.kill_s
            self.hub.later(wait_s, process.kill) if wait_s else process.kill()

    # --- what the program meets ------------------------------------------------------------------

    def load(self, settings: MemberSettings) -> SmallLoaded:
        self.hub.sleep(self.hub.rng.random() * self.shape.start_s)
        return SmallLoaded(settings, self)

    def computing(self, rows: Array) -> None:
        """A worker computes a slice, or a part of one."""
        process = self.hub.process
        factor = self.lives[process].slowness * self.hub.rng.uniform(0.5, 1.5)
        self.hub.sleep(self.shape.slice_s * factor)
        if not self.lives[process].admitted:
            return
        self.num_computed += 1
        if self.lives[process].fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if any(row in self.shape.hanging for row in rows):
            self.num_hung += 1
            process.hung_s = float("inf")
            self.hub.sleep(0.0)
        if any(row in self.shape.deadly for row in rows):
            self.laws.died_of(rows)
            process.kill()
            raise GreenletExit
        if any(row in self.shape.bad for row in rows):
            raise ValueError("a bad record")

    def push(self, push: Push, **changes: Any) -> Push:
        """A worker has something for a server."""
        made = msgspec.structs.replace(push, **changes)
        if "parcel" in changes:
            self.ambush("worker", made)
        return made

    def moment(self) -> None:
        """In the midst of a backward pass."""
        self.hub.sleep(self.shape.slice_s * self.hub.rng.random() / 4)

    def is_poisoned(self, rows: Array) -> bool:
        admitted = self.lives[self.hub.process].admitted
        return admitted and any(row in self.shape.poisoned for row in rows)

    def admit(self, join: Join, link: MasterLink) -> Assignment | None:
        """A worker has tried the program, and tells the master who it is."""
        assignment = admitted(join, link)
        self.lives[self.hub.process].admitted = True
        return assignment

    def note_notice(self, tell: Callable[[str], None]) -> None:
        self.lives[self.hub.process].notice = tell

    def complain(self, name: str) -> None:
        """A thread dies of an error."""
        process = self.hub.process
        if not process.alive:
            raise GreenletExit
        self.failed(sys.exc_info()[1], f"the thread {name}")

    def failed(self, error: BaseException | None, what: str = "it") -> None:
        """A process, or a thread of it, ends by an error, which nothing that happens here justifies, but the
        lack of something."""
        process = self.hub.process
        self.hub.note("".join(traceback.format_exception(error)))
        if self.lives[process].fails and isinstance(error, OutsideError):
            return
        self.hub.violate(Violation(f"{process.name}: {what} dies of {type(error).__name__}: {error}"))

    # --- faults ----------------------------------------------------------------------------------

    def living(self, role: str) -> list[Process]:
        return [p for p, life in self.lives.items() if p.alive and role in (life.settings.role, "member")]

    def strike(self, fault: Fault) -> None:
        """Something goes wrong now."""
        if self.end is not None:
            return
        lasts_s = fault.seconds if fault.seconds < float("inf") else 0.0
        self.calm_s = max(self.calm_s, self.hub.now_s + lasts_s)
        self.laws.spares_workers &= fault.kind in SPARES_WORKERS
        self.laws.only_cuts &= fault.kind in ("cut worker", "cut server")
        verb, _, whom = fault.kind.partition(" ")
        self.hub.note(f"--- {fault.kind} {fault.pick} {fault.seconds}")
        if fault.kind == "kill master at the end":
            self.ambushes["master"] = ac.EndAction
        elif verb == "ambush":
            self.ambushes[whom] = AMBUSHES[whom][fault.pick % len(AMBUSHES[whom])]
        elif fault.kind == "freeze newcomer":
            self.stillborn.append(fault.seconds)
        elif fault.kind == "trap consult":
            what = CONSULTED[fault.pick % len(CONSULTED)]
            self.traps.append(("server", st.ConsultAction, Fault(fault.after, what, fault.pick // 7)))
        elif verb == "trap":
            role = TRAPPED[fault.pick % len(TRAPPED)]
            acts = AMBUSHES[role]
            what = Fault(fault.after, f"kill {whom}", fault.pick // 7)
            self.traps.append((role, acts[fault.pick // 2 % len(acts)], what))
        elif fault.kind == "near limit":
            self._near_limit(fault.seconds)
        elif fault.kind == "lose leader":
            self._lose_place(self.place)
        elif fault.kind == "lose sight":
            self._lose_sight(min(fault.seconds, 3.0))
        elif fault.kind in ("black out", "power cut"):
            self._black_out(power=fault.kind == "power cut")
        elif fault.kind == "stop":
            self.laws.stopped = True
            self._ask(StopRequest(reason="asked to stop"))
        elif fault.kind == "scale":
            self._ask(ScaleRequest(workers=1 + fault.pick % self.config.num_slices))
        elif verb == "disk":
            self.disk.fail(min(lasts_s, 3.0), dark=whom == "dark")
        else:
            for victim in self._chosen(whom, fault.pick):
                self._hit(verb, fault, victim)

    def _chosen(self, whom: str, pick: int) -> list[Process]:
        if whom == "master":
            return [self.master]
        if whom == "master and server":
            return [self.master, *self._chosen("server", pick)]
        if whom in ("servers", "workers"):
            return self.living(whom.removesuffix("s"))
        if whom in ("leader", "last", "pair"):
            names = self.laws.row
            places = {"leader": [0], "last": [-1], "pair": [pick, pick + 1]}[whom]
            found = [self.cluster.members.get(names[place % len(names)]) for place in places] if names else []
            return [process for process in found if process and process.alive]
        living = self.living(whom)
        return [living[pick % len(living)]] if living else []

    def _hit(self, verb: str, fault: Fault, victim: Process) -> None:
        if not victim.alive:
            return
        hub, role = self.hub, victim.name.partition("-")[0]
        seconds = min(fault.seconds, 3.0) if role == "master" else fault.seconds
        if verb == "kill":
            self.num_killed += 1
            if fault.pick % 3:
                victim.fuse = fault.pick % 47
            else:
                victim.kill()
        elif verb == "take":
            self._take(victim)
        elif verb == "freeze":
            victim.frozen_s = max(victim.frozen_s, hub.now_s + seconds)
        elif verb == "hang":
            self.num_hung += 1
            victim.hung_s = max(victim.hung_s, hub.now_s + seconds)
        elif verb == "slow":
            self.lives[victim].slowness = 1 + 2 * min(fault.seconds, 3.0)
            self.slowdown = 2 * 3.0
        elif verb == "fail":
            self.lives[victim].fails = True
        elif verb == "warn":
            self._warn(victim, min(fault.seconds, 3.0))
        elif verb == "expire":
            self._expire(victim, hub.now_s + 0.2 * (fault.pick % 3), min(fault.seconds, 3.0))
        elif verb == "jump":
            victim.wall_s += hub.rng.uniform(-1e6, 1e6)
        else:
            self._disconnect(verb, fault, victim)

    def _warn(self, victim: Process, lasts_s: float) -> None:
        """It is told to end, and ended after a while."""
        tell = self.lives[victim].notice
        if tell is not None:
            victim.start(f"{victim.name}/notice", partial(tell, "it was told to end"))
        self.calm_s = max(self.calm_s, self.hub.now_s + lasts_s)
        self.hub.later(lasts_s, self._take, victim)

    def _disconnect(self, verb: str, fault: Fault, victim: Process) -> None:
        ways = self.network.of(victim)
        if verb == "cut":
            for way in ways:
                if way.router is None or not way.router.process.name.startswith("master"):
                    way.close(None, lossy=True)
        until_s = self.hub.now_s + min(fault.seconds, 3.0)
        if verb == "sever" and ways:
            ways[fault.pick % len(ways)].close(None, lossy=True)
        elif verb == "stall" and ways:
            ways[fault.pick % len(ways)].stalled_s = until_s
        elif verb == "partition":
            for way in ways:
                way.stalled_s = until_s
        elif verb == "reset":
            for way in ways:
                way.close(None, lossy=True)


AMBUSHES: dict[str, tuple[type, ...]] = {
    "master": (
        *(ac.CommitAction, ac.AssignAction, ac.HaltAction, ac.RegroupedAction, ac.SettledAction),
        *(ac.StartAction, ac.PlanAction, ac.CutAction, ac.QuarantineAction, ac.PruneAction),
    ),
    "worker": (cs.PlaceAction, cs.AdoptAction, cs.PullAction, cs.ComputeSlicesAction, Push, Push),
    "server": (
        *(st.ServeAction, st.ApplyAction, st.VersionAction, ComputeAction),
        *(sn.TakeAction, sn.KeepAction, sn.SafeAction, sn.AllSafeAction, sn.ForgetAction),
    ),
}
"""Of what each may die as it does it."""
TRAPPED = ("master", "server")
SPARES_WORKERS = {
    *("kill server", "kill servers", "kill leader", "kill last", "kill pair"),
    *("freeze server", "freeze leader", "jump member", "ambush server"),
}
KINDS = (
    *(f"kill {whom}" for whom in ("worker", "worker", "server", "server", "servers", "leader", "last")),
    *("kill pair", "kill master", "kill master", "kill master and server"),
    *(f"freeze {whom}" for whom in ("worker", "server", "leader", "master", "member")),
    *("slow worker", "jump member", "scale", "disk full", "disk dark"),
    *("partition member", "reset member", "sever member", "sever server", "stall member", "reset master"),
    *("take worker", "warn worker", "warn worker", "expire worker", "expire worker"),
    *("hang worker", "hang worker", "hang member", "hang workers"),
    *("ambush master",) * 4,
    *("ambush server",) * 4,
    *("ambush worker",) * 2,
    *("sever worker", "sever worker", "reset worker"),
)
CUTS = ("cut worker", "cut worker", "cut server", "hang server")
"""Where the network alone is to blame, mostly. "cut": all connections but those to the master."""
TRAPS = ("trap server", "trap servers", "trap pair", "trap leader", "trap worker")
CONSULTED = ("cut leader", "cut last", "cut server", "kill leader", "kill last", "kill worker")
"""What happens as a worker is asked what the program says."""
MOVES = ("near limit", "lose leader", "lose sight")


def _place(frame: Any) -> str:
    """Where a thread waits: the innermost lines of the product's."""
    places = []
    while frame is not None and len(places) < 4:
        name = frame.f_code.co_filename
        if "elasticflow" in name and "simulation" not in name:
            places.append(f"{Path(name).name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(places)


class Truth(NamedTuple):
    """commits: what undisturbed runs commit, by step. rows: of the tables, in the last."""

    commits: dict[int, Hashes]
    rows: dict[int, bytes]


@cache
def truth_of(work: Shape, every: str) -> Truth:
    """What an undisturbed run with such checkpoints comes to. work: ``Shape.work``."""
    before, rows = SYSTEM.world, dict[int, bytes]()
    world = World(replace(work, checkpoint_every=every))
    world.laws.has_truth = False
    end = world.run(partial(_note_rows, world, rows))
    assert end is not None and end.state in (RunState.FINISHED, RunState.DIVERGED), end
    before.enter()
    return Truth(world.laws.commits, rows)


def _note_rows(world: World, rows: dict[int, bytes]) -> None:
    """Also compares with what was worked out plainly: else all runs might be wrong alike."""
    newest = max(world.laws.commits, default=0)
    expected = plainly(world.shape, world.config.seed)
    if expected is not None:
        found = parameters_of(DirectoryStorage(world.path), newest)
        if not np.allclose(found, expected, rtol=1e-3, atol=1e-4):
            raise Violation("an undisturbed run makes another model than it should")
    if world.shape.tables and newest:
        rows.update(rows_of(DirectoryStorage(world.path), newest))
