"""The simulated world of ``benchmarks.serving``: a cluster's hands, and hundreds of masters in one process.

A service in it is real, with its folder, journal, sockets and keys; so is what goes over its wire. A master
here answers as a real one does, after as long as workers take to come and go, and computes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import zmq

from elasticflow.cluster.share import ClusterShare, ShareNode
from elasticflow.errors import ElasticFlowError
from elasticflow.process.texts import as_json
from elasticflow.run.folder import Address, HostJob, RunDir, publish
from elasticflow.service.follower import PAUSED
from elasticflow.service.hands import Hands, RunSight
from elasticflow.wire.control import control_frame
from elasticflow.wire.keys import MasterKeys, MemberKeys, read_keys
from elasticflow.wire.messages import Grant, Situation, StopRequest, decode_to_master
from elasticflow.wire.seal import MAC_BYTES
from elasticflow.wire.sockets import Context, Socket
from tests.telling import report_of

LEADER_S, WORKER_S, LEAVES_S = 2.0, 1.0, 0.2
"""Until a leader listens that was asked for; until workers are there; until they have left."""
SPEEDUP = 0.9
"""Twice the workers are as much more than once as fast, of twice."""
STEP = 1.0
"""Steps a second on one worker."""
MOST_SOCKETS = 65_000
KEYS = "world.json"
"""In the world's folder: the keys of all masters."""
JOB = HostJob("slurm", "1", "")


def rate_of(workers: int) -> float:
    """Steps a second."""
    return STEP * (2 * SPEEDUP) ** (workers.bit_length() - 1) * workers / (1 << workers.bit_length() - 1)


class WorldShare(ClusterShare):
    """Nodes that are all alike; those whose names are in the file ``down`` are away."""

    passing = ()
    of_service = ()

    def __init__(self, folder: Path, num_nodes: int, slots: int) -> None:
        super().__init__({})
        self._folder, self._num_nodes, self._slots = folder, num_nodes, slots

    def nodes(self) -> list[ShareNode]:
        down = (self._folder / "down").read_text().split()
        names = [f"n{number:05}" for number in range(self._num_nodes)]
        return [ShareNode(name, self._slots, "down" if name in down else "") for name in names]

    def num_places(self, job: HostJob) -> int:
        return 0


class WorldHands(Hands):
    """Those of a cluster that does at once what it is told. ordered: told what is done with which run."""

    def __init__(self, share: ClusterShare, world: Connection, ordered: Callable[[str, str], None]) -> None:
        super().__init__("slurm", share)
        self._world, self._ordered = world, ordered

    def look_at(self, run: RunDir, answer: Callable[[RunSight | ElasticFlowError], None]) -> None:
        self._looks.order(lambda: _sight(run), answer)

    def begin(self, run: RunDir, answer: Callable[[str | ElasticFlowError], None]) -> None:
        self._ordered("begin", run.path.name)
        self._acts.order(lambda: self._tell("begin", run), answer)

    def take_back(self, run: RunDir, answer: Callable[[str | ElasticFlowError], None]) -> None:
        self._ordered("end", run.path.name)
        self._acts.order(lambda: self._tell("end", run), answer)

    def _tell(self, what: str, run: RunDir) -> str:
        if what == "begin":
            run.report.unlink(missing_ok=True)  # type: ignore[call-arg]
            publish(run.job, JOB, durable=False)
        self._world.send((what, run.path.name))
        return "1"


def _sight(run: RunDir) -> RunSight:
    """As ``hands.sight_of``, of a cluster that knows no more than the folder."""
    if not run.job.exists():
        return RunSight(alive=False)
    report = run.read_report()
    if report is not None:
        return RunSight(alive=False, report=report)
    if run.address.exists():
        return RunSight(True, (run.read_address(), read_keys(run.client_keys, MemberKeys)))
    return RunSight(alive=True, waits="its leader begins")


class PlayedMaster:
    """Of one run: obeys grants, and makes steps as fast as its workers do. steps: that it has to do."""

    def __init__(self, run: RunDir, steps: int, done: float) -> None:
        self.run, self.steps, self.done = run, steps, done
        self.socket: Socket | None = None
        self.listens_s = 0.0
        self.number = self.granted = self.workers = 0
        self._changed_s = self._seen_s = 0.0

    def begin(self, now_s: float) -> None:
        """Its leader was submitted."""
        self.listens_s = now_s + LEADER_S
        self.number = self.granted = self.workers = 0

    def listen(self, context: Context, keys: MasterKeys, now_s: float) -> None:
        """Its leader is there."""
        socket: Socket = context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_publickey = keys.master_public.encode()
        socket.curve_secretkey = keys.master_secret.encode()
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        self.socket, self._seen_s = socket, now_s
        publish(self.run.address, Address(f"tcp://127.0.0.1:{port}", "here", 1), durable=False)

    def obey(self, grant: Grant, now_s: float) -> bool:
        """Whether it is news."""
        self.go_on(now_s)
        is_news = grant.number > self.number
        if is_news:
            self.number, self.granted = grant.number, grant.workers
            self._changed_s = now_s + (WORKER_S if self.granted > self.workers else LEAVES_S)
        return is_news

    def go_on(self, now_s: float) -> None:
        """Makes the steps until now."""
        self.done += (now_s - self._seen_s) * rate_of(self.workers) if self.workers else 0.0
        self._seen_s = now_s
        if self.workers != self.granted and now_s >= self._changed_s:
            self.workers = self.granted

    @property
    def situation(self) -> Situation:
        comes_or_goes = max(self.workers, self.granted)
        step = min(int(self.done), self.steps)
        return Situation(
            number=self.number, workers=comes_or_goes, ready=self.workers, step=step, steps=self.steps
        )

    def end(self, state: str, text: str) -> None:
        """It is over, or held at zero."""
        assert self.socket is not None
        self.run.address.unlink()
        self.run.report.write_bytes(as_json(report_of(state, text)))  # type: ignore[union-attr]
        self.socket.close(linger=100)
        self.socket = None
        self.granted = self.workers = 0


class World:
    """All masters, in a process of its own. heard: when each has heard of each grant, by a monotonic clock.

    orders: of whoever plays this world, and of the service's hands.
    """

    def __init__(self, folder: Path, orders: Sequence[Connection]) -> None:
        self._folder, self._orders = folder, orders
        self._keys = msgspec.json.decode((folder / KEYS).read_bytes(), type=MasterKeys)
        self._context: Context = zmq.Context()
        self._context.max_sockets = MOST_SOCKETS
        self._poller = zmq.Poller()
        for each in orders:
            self._poller.register(each.fileno(), zmq.POLLIN)
        self._masters: dict[str, PlayedMaster] = {}
        self._by_socket: dict[Any, PlayedMaster] = {}
        self._begins: list[PlayedMaster] = []
        self.heard: list[tuple[str, int, float]] = []

    def run(self) -> None:
        """Until it is told to be over."""
        look_s = 0.0
        while True:
            ready = self._poller.poll(50)
            now_s = time.monotonic()
            for orders in self._orders:
                while orders.poll():
                    what, *told = orders.recv()
                    if what == "over":
                        orders.send(self.heard)
                        self._context.destroy(linger=0)
                        return
                    self._take(what, told, now_s)
            for socket, _ in ready:
                if (master := self._by_socket.get(socket)) is not None:
                    self._listen(master, now_s)
            if now_s >= look_s:
                look_s = now_s + 0.1
                self._look(now_s)

    def _take(self, what: str, told: list[Any], now_s: float) -> None:
        if what == "new":
            name, steps, done = told
            self._masters[name] = PlayedMaster(RunDir(self._folder / name), steps, done)
        elif what == "begin":
            master = self._masters[told[0]]
            master.begin(now_s)
            self._begins.append(master)
        elif (master := self._masters[told[0]]) in self._begins:
            self._begins.remove(master)
            master.run.job.unlink()  # type: ignore[call-arg]

    def _look(self, now_s: float) -> None:
        for master in [one for one in self._begins if one.listens_s <= now_s]:
            self._begins.remove(master)
            master.listen(self._context, self._keys, now_s)
            self._by_socket[master.socket] = master
            self._poller.register(master.socket, zmq.POLLIN)
        for master in list(self._by_socket.values()):
            master.go_on(now_s)
            if master.done >= master.steps:
                self._end(master, "finished", "")

    def _listen(self, master: PlayedMaster, now_s: float) -> None:
        while master.socket is not None:
            try:
                route, frame = master.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = decode_to_master(frame[:-MAC_BYTES])
            if isinstance(message, StopRequest):
                self.heard.append((master.run.path.name, 0, now_s))
                self._end(master, "stopped", PAUSED)
            elif isinstance(message, Grant):
                if master.obey(message, now_s):
                    self.heard.append((master.run.path.name, message.number, now_s))
                master.socket.send_multipart([route, control_frame(master.situation)], zmq.NOBLOCK)

    def _end(self, master: PlayedMaster, state: str, text: str) -> None:
        self._poller.unregister(master.socket)
        del self._by_socket[master.socket]
        master.end(state, text)


def play(folder: Path, orders: Sequence[Connection]) -> None:
    """A world's whole life."""
    World(folder, orders).run()
