"""A worker's way to the servers over real sockets: servers that answer, close, freeze and talk nonsense."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq

from elasticflow.api import SGD
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Entry, Layout, Rule, Vector, spread
from elasticflow.step.schedule import Schedule
from elasticflow.step.slices import Node
from elasticflow.wire.data import DataListener, Peer, Received
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import make_keys
from elasticflow.wire.messages import (
    Assignment,
    Initial,
    Pull,
    Push,
    ServerInfo,
    Spec,
    Uninitialised,
    Version,
)
from elasticflow.wire.sockets import Context
from elasticflow.worker.strategy import Position, Severed
from elasticflow_ps.client import ParameterServers
from elasticflow_ps.parcels import parcels_of

KEYS = make_keys()
ENTRIES = (
    Entry("weights", (5000, 1000), "float32", Rule.UPDATE),
    Entry("report", (1,), "float64", Rule.REPORT),
)
LAYOUT = Layout(ENTRIES)
SCHEDULE = Schedule(num_records=64, num_test=0, batch_size=4, num_slices=4, epochs=1)
CHUNKS = spread(LAYOUT, 2)
SETTINGS = MemberSettings(
    name="worker-1",
    role="worker",
    host="127.0.0.1",
    master="",
    run_dir="",
    program="",
    seed=0,
    threads=1,
    batch_size=4,
    num_slices=4,
    heartbeat_s=1.0,
    lost_s=10.0,
    encrypt_data=False,
    timeline=False,
)


class Server:
    """Serves one version, whose values are its number, in a thread of its own, until it ends."""

    def __init__(self, name: str, place: int, version: int, generation: int = 1) -> None:
        self.name, self.version = name, version
        self.parcels = parcels_of(LAYOUT, CHUNKS[place])
        self.heard: list[object] = []
        self.pushed = threading.Event()
        self.wrong_first = self.uninitialised = False
        self.is_early = threading.Event()
        """Somebody waits for the next generation."""
        self.go_on = threading.Event()
        self._context: Context = zmq.Context()
        self._gate = admit_only_members(self._context, KEYS.of(name))
        self._listener = DataListener(self._context, KEYS.of(name), "127.0.0.1", 0)
        self._listener.enter(generation)
        self.info = ServerInfo(
            name=name, endpoint=f"tcp://127.0.0.1:{self._listener.port}", chunks=tuple(CHUNKS[place])
        )
        self._ends = False
        self._thread = threading.Thread(target=self._run)

    def start(self) -> Server:
        self._thread.start()
        return self

    def end(self) -> None:
        self._ends = True
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()
        self._gate.stop()
        self._context.term()

    def _run(self) -> None:
        while not self._ends:
            self._listener.socket.poll(10)
            for news in self._listener.receive():
                if isinstance(news, Received):
                    self._take(news.peer, news.message)
            if self._listener._early:
                self.is_early.set()
            if self.go_on.is_set():
                self.go_on.clear()
                self._listener.enter(self._listener.generation + 1)

    def _take(self, peer: Peer, message: object) -> None:
        self.heard.append(message)
        if isinstance(message, Push):
            self.pushed.set()
        if isinstance(message, Pull) and self.uninitialised:
            self.uninitialised = False
            self._listener.send(peer, Uninitialised())
        elif isinstance(message, Pull):
            self.serve(peer)
        elif isinstance(message, Initial) and message.parcel == len(self.parcels) - 1:
            self.serve(peer)

    def serve(self, peer: Peer) -> None:
        for parcel in self.parcels:
            arrays = [np.full(len(span), self.version, span.dtype) for span in parcel.state]
            answer = Version(version=self.version, parcel=parcel.number, heard=peer.seal.received - 1)
            if self.wrong_first:
                self._listener.send(peer, answer, arrays * 2)
            self._listener.send(peer, answer, arrays)
        self.wrong_first = False


class Client:
    def __init__(self) -> None:
        self.state = Vector(LAYOUT)
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.strategy = ParameterServers(SETTINGS, self.state, self.wake_fd)

    def values(self) -> set[float]:
        return {*np.unique(self.state.groups[0]).tolist()}

    def close(self) -> None:
        self.strategy.close()
        os.close(self.wake_fd)


def assignment(*infos: ServerInfo, generation: int = 1, in_memory: bool = True) -> Assignment:
    spec = Spec(
        framework="torch",
        entries=ENTRIES,
        optimizer=SGD(lr=0.1),
        metrics=(),
        num_records=64,
        num_test=0,
        data_signature="",
    )
    return Assignment(
        generation=generation,
        schedule=SCHEDULE,
        spec=spec,
        seed=0,
        servers=infos,
        in_memory=in_memory,
        passes=KEYS.passes("worker-1", (info.name for info in infos), generation),
    )


@pytest.fixture
def servers() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(*arguments: object) -> Server:
        made.append(Server(*arguments))
        return made[-1]

    yield make
    for server in made:
        if not server._ends:
            server.end()


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client()
    yield client
    client.close()


def test_a_version_comes_from_all_who_hold_chunks(servers, client: Client) -> None:
    row = [servers("server-0", 0, 4).start(), servers("server-1", 1, 4).start()]
    standby = ServerInfo(name="server-2", endpoint="tcp://127.0.0.1:1", chunks=())
    client.strategy.connect(assignment(*(server.info for server in row), standby))
    assert client.strategy.wait() == Position(version=4, shares=())
    assert client.values() == {4.0}


def test_another_generation_is_gone_over_to(servers, client: Client) -> None:
    first, second = servers("server-0", 0, 9).start(), servers("server-1", 1, 9).start()
    client.strategy.connect(assignment(first.info, second.info))
    position = client.strategy.wait()
    assert isinstance(position, Position) and position.version == 9
    second.end()
    # Large arrays, a part of them to somebody who is not there: nobody waits for it.
    for _ in range(3):
        total = client.strategy.spare()
        client.strategy.push(position, Node(0, 1), total, lr=None, slice_s=0.0, last=True)
    assert client.strategy.wait() == Severed("server-1")
    client.strategy.push(position, Node(0, 2), client.strategy.spare(), lr=None, slice_s=0.0, last=True)
    client.strategy.ask(position)
    os.eventfd_write(client.wake_fd, 1)
    assert client.strategy.wait() is None, "cut off, the worker still hears its master"
    os.eventfd_read(client.wake_fd)
    first.end()
    row = [servers("server-0", 0, 7, 2).start(), servers("server-2", 1, 7, 2).start()]
    client.strategy.connect(assignment(*(server.info for server in row), generation=2))
    assert client.strategy.wait() == Position(version=7, shares=())
    assert client.values() == {7.0}, "all of it, though an older version than before"
    total = client.strategy.spare()
    client.strategy.push(position, Node(0, 1), total, lr=None, slice_s=0.0, last=True)
    assert all(server.pushed.wait(20) for server in row)


def test_the_master_is_heard_while_a_server_is_silent(servers, client: Client) -> None:
    answers, frozen = servers("server-0", 0, 3).start(), servers("server-1", 1, 3)
    client.strategy.connect(assignment(answers.info, frozen.info))
    os.eventfd_write(client.wake_fd, 1)
    assert client.strategy.wait() is None
    os.eventfd_read(client.wake_fd)
    frozen.start()
    assert client.strategy.wait() == Position(version=3, shares=())


def test_a_server_of_a_later_generation_is_waited_for(servers, client: Client) -> None:
    early = servers("server-0", 0, 3, 1).start()
    later = servers("server-1", 1, 3, 2).start()
    client.strategy.connect(assignment(early.info, later.info, generation=2))
    assert early.is_early.wait(20)
    early.go_on.set()
    assert client.strategy.wait() == Position(version=3, shares=())


def test_nobody_at_the_address_is_a_lost_server(client: Client) -> None:
    info = ServerInfo(name="server-1", endpoint="tcp://127.0.0.1:1", chunks=tuple(CHUNKS[0]))
    client.strategy.connect(assignment(info))
    assert client.strategy.wait() == Severed("server-1")


def test_arrays_that_do_not_fit_are_dropped_and_counted(servers, client: Client) -> None:
    server = servers("server-0", 0, 2)
    server.wrong_first = True
    other = servers("server-1", 1, 2).start()
    client.strategy.connect(assignment(server.start().info, other.info))
    assert client.strategy.wait() == Position(version=2, shares=())
    assert client.values() == {2.0} and client.strategy.dropped == len(server.parcels)


def test_first_values_are_sent_where_there_are_none(servers, client: Client) -> None:
    server, other = servers("server-0", 0, 0), servers("server-1", 1, 0).start()
    server.uninitialised = True
    server.start()
    client.strategy.connect(assignment(server.info, other.info, in_memory=False))
    assert client.strategy.wait() == Position(version=0, shares=())
    sent = [message.parcel for message in server.heard if isinstance(message, Initial)]
    assert sent == [parcel.number for parcel in server.parcels]
