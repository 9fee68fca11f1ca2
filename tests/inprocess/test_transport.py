"""Real sockets: members get in; strangers, replays and forgeries do nothing but get counted."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket as sockets
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Array
from elasticflow.wire import data, outbox
from elasticflow.wire.control import ControlListener, control_link, signed_frame
from elasticflow.wire.data import Closed, DataLink, DataListener, Opened, Received, encoded
from elasticflow.wire.door import borrowed
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import CLIENT, MemberKeys, make_keys
from elasticflow.wire.messages import (
    Answer,
    Beat,
    Clip,
    Departing,
    FromServer,
    Gone,
    Heartbeat,
    Hello,
    Initial,
    Join,
    Leaving,
    Norms,
    Plan,
    Progress,
    Pull,
    Push,
    StatusRequest,
    StopRequest,
    ToMaster,
    ToServer,
    Usage,
    Welcome,
    encode,
)
from elasticflow.wire.nearby import ON_ITS_WAY_BYTES, keep_close
from elasticflow.wire.numbers import check
from elasticflow.wire.seal import NONCE_BYTES, Guard, Seal, signed
from elasticflow.wire.sockets import Context, Socket

KEYS = make_keys()
SERVER = KEYS.of("server-0")
WORKER, OWNER = KEYS.of("worker-1"), KEYS.of(CLIENT)
WAIT_MS = 5000
ROUNDS = 20
WAY = SERVER.pass_for("worker-1", 1)
PUSH = Push(tick=1, parcel=0, level=0, index=3)


@pytest.fixture
def context() -> Iterator[Context]:
    """With its gate."""
    context: Context = zmq.Context()
    gate = admit_only_members(context, SERVER)
    yield context
    gate.stop()
    context.destroy(linger=0)


@pytest.fixture
def listener(context: Context) -> Iterator[DataListener]:
    """In generation 1."""
    listener = DataListener(context, SERVER, "127.0.0.1", 0)
    listener.enter(1)
    yield listener
    listener.close()


@pytest.fixture
def master(context: Context) -> Iterator[ControlListener]:
    listener = ControlListener(context, KEYS, "127.0.0.1", 0)
    yield listener
    listener.close(linger_ms=0)


News = Opened | Closed | Received


def wait(*listeners: DataListener | ControlListener | DataLink) -> None:
    """Until one of them has something to say."""
    poller = zmq.Poller()
    for each in listeners:
        poller.register(each.socket, zmq.POLLIN)
        poller.register(each.monitor, zmq.POLLIN)
    assert poller.poll(WAIT_MS)


def hear(listener: DataListener, count: int) -> list[News]:
    """The next news, so many."""
    news: list[News] = []
    while len(news) < count:
        wait(listener)
        news += [*listener.receive(), *listener.closed()]
    assert len(news) == count
    return news


def wait_for_drops(listener: DataListener | ControlListener, count: int) -> None:
    """Nothing else happens until so many have been dropped."""
    while listener.dropped < count:
        wait(listener)
        assert [*listener.receive(), *listener.closed()] == []
    assert listener.dropped == count


def wait_for_refusals(listener: DataListener | ControlListener, count: int) -> None:
    while listener.refused < count:
        wait(listener)
        assert [*listener.receive(), *listener.closed()] == []
    assert listener.refused == count and listener.dropped == 0


def linked(
    context: Context,
    listener: DataListener,
    name: str = "worker-1",
    generation: int = 1,
    guard: Guard = Guard.HEADERS,
) -> DataLink:
    """Of a member that has said Hello."""
    way = SERVER.pass_for(name, generation)
    return DataLink(context, way, f"tcp://127.0.0.1:{listener.port}", guard)


def connected(
    context: Context, listener: DataListener, name: str = "worker-1", guard: Guard = Guard.HEADERS
) -> DataLink:
    """A link that has been greeted, and has said nothing else."""
    link = linked(context, listener, name, listener.generation, guard)
    while not link.greeted:
        wait(listener, link)
        assert [*listener.receive(), *listener.closed()] == []
        assert link.receive() is None
    return link


def past_the_gate(context: Context, listener: DataListener) -> Socket:
    """Somebody who has listened in, and knows the password."""
    socket: Socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.plain_username, socket.plain_password = WAY.user, WAY.password
    socket.connect(f"tcp://127.0.0.1:{listener.port}")
    return socket


def sealed_hello(
    generation: int = 1, nonce: bytes = bytes(NONCE_BYTES), name: str = "worker-1", key: bytes = b""
) -> bytes:
    hello = Hello(name=name, generation=generation, nonce=nonce)
    key = key or SERVER.pass_for(name, generation).key
    return Seal(key, b"worker", b"server").close(encode(hello))


def alone(message: msgspec.Struct, *arrays: Array) -> bytes:
    """A header, before it is sealed, of one message."""
    return encoded([(message, arrays)])[0]


# --- members -------------------------------------------------------------------------------------


def test_messages_and_arrays_both_ways(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    small, large = np.arange(5.0), np.arange(100_000, dtype=np.float32)
    link.send(Initial(parcel=3), [small, large])
    opened, received = hear(listener, 2)
    assert isinstance(opened, Opened) and opened.peer.name == "worker-1"
    assert isinstance(received, Received) and received.message == Initial(parcel=3)
    np.testing.assert_array_equal(np.frombuffer(received.frames[0]), small)
    np.testing.assert_array_equal(np.frombuffer(received.frames[1], np.float32), large)
    listener.send(opened.peer, Gone(latest=7), [large])
    assert link.socket.poll(WAIT_MS)
    answer = link.receive()
    assert answer is not None and answer[0] == Gone(latest=7) and answer[1][0].nbytes == large.nbytes
    link.close()
    assert hear(listener, 1) == [Closed(opened.peer)]
    assert listener.send(opened.peer, Gone(latest=8)) is None
    assert listener.dropped == listener.refused == 0


def test_what_is_put_travels_as_one(context: Context, listener: DataListener) -> None:
    """Both ways, in order, each with its arrays; what is much takes along what was put."""
    link = connected(context, listener)
    small, other = np.arange(5.0), np.arange(3, dtype=np.float32)
    trackers = [
        link.put(Initial(parcel=1), [small]),
        link.put(Pull(version=1)),
        link.put(PUSH, [other, small]),
    ]
    assert trackers[1] is None and not any(each.done for each in trackers if each) and link.sent == 0
    link.flush()
    assert link.sent == 1 and all(each.done for each in trackers if each)
    opened, *received = hear(listener, 4)
    assert isinstance(opened, Opened)
    told = [(each.message, [bytes(frame) for frame in each.frames], each.more) for each in received]  # type: ignore[union-attr]
    assert told == [
        (Initial(parcel=1), [small.tobytes()], True),
        (Pull(version=1), [], True),
        (PUSH, [other.tobytes(), small.tobytes()], False),
    ]
    listener.put(opened.peer, Gone(latest=1))
    listener.put(opened.peer, Gone(latest=2), [small])
    assert link.socket.poll(0) == 0
    listener.flush()
    assert link.socket.poll(WAIT_MS)
    assert link.receive() == (Gone(latest=1), []) and link.more
    last, frames = link.receive() or (None, [])
    assert last == Gone(latest=2) and bytes(frames[0]) == small.tobytes() and not link.more
    # Much leaves at once, and so does what only tells of much.
    large = np.zeros(outbox.BUNDLE_BYTES, np.uint8)
    link.put(Pull(version=2))
    tracker = link.put(Initial(parcel=2), [large])
    assert [each.message for each in hear(listener, 2)] == [Pull(version=2), Initial(parcel=2)]  # type: ignore[union-attr]
    while tracker and not tracker.done:
        wait(listener)
    listener.put(opened.peer, Gone(latest=3), lent_bytes=outbox.BUNDLE_BYTES)
    assert link.socket.poll(WAIT_MS) and link.receive() == (Gone(latest=3), [])
    link.put(Pull(version=3))
    link.send(Pull(version=4))
    assert [each.message for each in hear(listener, 2)] == [Pull(version=3), Pull(version=4)]  # type: ignore[union-attr]
    link.close()


def test_messages_without_arrays_are_not_collected_without_end(
    context: Context, listener: DataListener
) -> None:
    """Of a model with very many parcels the header would pass all limits."""
    link = connected(context, listener)
    most = outbox.BUNDLE_BYTES // outbox.MESSAGE_BYTES
    for version in range(most - 1):
        link.put(Pull(version=version))
    assert link.sent == 0
    link.put(Pull(version=most - 1))
    assert link.sent == 1
    opened, *received = hear(listener, 1 + most)
    assert isinstance(opened, Opened) and [each.message.version for each in received] == [*range(most)]  # type: ignore[union-attr]
    link.close()


def test_what_was_put_for_one_who_has_gone_is_free_again(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    link.send(Pull(version=1))
    opened, _ = hear(listener, 2)
    first = listener.put(opened.peer, Gone(latest=1), [np.zeros(10)])
    link.close()
    assert hear(listener, 1) == [Closed(opened.peer)]
    assert first and not first.done
    listener.flush()
    assert first.done
    # So it is where a generation begins.
    link = connected(context, listener)
    link.send(Pull(version=1))
    opened, _ = hear(listener, 2)
    second = listener.put(opened.peer, Gone(latest=1), [np.zeros(10)])
    listener.enter(2)
    assert second and second.done and listener.put(opened.peer, Gone(latest=1), [np.zeros(10)]) is None
    assert link.receive() is None
    link.close()


def test_within_a_host_little_is_on_its_way(context: Context, listener: DataListener) -> None:
    """At both ends: who sends holds no more than the caches do."""
    link = connected(context, listener)
    link.send(Pull(version=1))
    hear(listener, 2)
    for fd in (link._fd, *listener._router._open):
        with borrowed(fd) as connection:
            # The kernel counts what it needs besides, and doubles what is asked for: socket(7).
            assert connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF) == 2 * ON_ITS_WAY_BYTES
    link.close()


def test_between_hosts_the_kernel_decides_what_is_on_its_way() -> None:
    """Addresses of two hosts stand for two hosts."""
    with sockets.create_server(("127.0.0.2", 0)) as server:
        source = ("127.0.0.1", 0)
        with sockets.create_connection(server.getsockname(), source_address=source) as connection:
            before = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF)
            keep_close(connection.fileno())
            assert connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF) == before


def test_what_is_no_connection_any_more_is_left_alone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    keep_close(reading)
    keep_close(writing)
    os.close(writing)


def test_the_last_word_comes_before_the_closing(context: Context, listener: DataListener) -> None:
    for _ in range(20):
        link = connected(context, listener)
        link.send(Pull(version=1))
        link.send(Pull(version=2))
        link.close()
        assert [type(each) for each in hear(listener, 4)] == [Opened, Received, Received, Closed]


def test_connections_that_reuse_a_descriptor_are_told_apart(context: Context, listener: DataListener) -> None:
    """The listener looks only after all of it has happened."""
    names = [f"worker-{number}" for number in range(30)]
    for name in names:
        link = linked(context, listener, name)
        link.close(linger_ms=WAIT_MS)
    last = linked(context, listener, "last")
    while not last.greeted:
        wait(listener, last)
        assert [*listener.receive(), *listener.closed()] == []
        assert last.receive() is None
    last.send(Pull(version=1))
    assert [each.peer.name for each in hear(listener, 2)] == ["last", "last"]
    last.close()
    assert [each.peer.name for each in hear(listener, 1)] == ["last"]
    assert not listener._peers and not listener._proved


def test_a_frozen_listener_does_not_keep_others_of_its_context_waiting(
    context: Context, listener: DataListener
) -> None:
    """Many connect, and nobody reads the monitor."""
    for _ in range(1200):
        sockets.create_connection(("127.0.0.1", listener.port)).close()
    other = DataListener(context, SERVER, "127.0.0.1", 0)
    other.enter(1)
    connected(context, other).close()
    other.close()
    wait_for_refusals(listener, 1200)


# --- generations ---------------------------------------------------------------------------------


def test_who_is_early_is_answered_when_the_generation_begins(context: Context) -> None:
    listener = DataListener(context, SERVER, "127.0.0.1", 0)
    links = {n: linked(context, listener, f"worker-{n}", n) for n in (1, 2, 3)}
    gone = linked(context, listener, "gone", 2)
    while len(listener._early) < 4:
        wait(listener)
        assert [*listener.receive(), *listener.closed()] == []
    gone.close()
    while len(listener._early) > 3:
        wait(listener)
        assert [*listener.receive(), *listener.closed()] == []
    assert not any(link.socket.poll(20) for link in links.values())
    listener.enter(2)
    assert listener.dropped == 1 and set(hello.generation for hello in listener._early.values()) == {3}
    wait(links[2])
    assert links[2].receive() is None and links[2].greeted
    links[2].send(Pull(version=5))
    assert [each.peer.name for each in hear(listener, 2)] == ["worker-2"] * 2
    assert not links[1].socket.poll(20) and not links[3].socket.poll(0)
    for link in links.values():
        link.close()
    listener.close()


def test_a_past_generation_is_dropped(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    link.send(Pull(version=1))
    hear(listener, 2)
    listener.enter(2)
    link.send(PUSH)
    wait_for_drops(listener, 1)
    late = linked(context, listener)
    wait_for_drops(listener, 2)
    again = connected(context, listener)
    again.send(PUSH)
    assert isinstance(hear(listener, 2)[1], Received)
    for each in (link, late, again):
        each.close()


def test_hellos_that_wait_are_bounded(
    context: Context, listener: DataListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MOST_EARLY", 2)
    strangers = [past_the_gate(context, listener) for _ in range(5)]
    for number, stranger in enumerate(strangers):
        stranger.send(sealed_hello(generation=number + 2))
    wait_for_drops(listener, 3)
    assert len(listener._early) == 2
    for stranger in strangers:
        stranger.close()


def test_peers_are_bounded(context: Context, listener: DataListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MOST_PEERS", 2)
    links = [connected(context, listener) for _ in range(2)]
    more = linked(context, listener, "worker-3")
    wait_for_drops(listener, 1)
    for link in (*links, more):
        link.close()


# --- forgeries, data plane -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "password",
    [
        None,
        b"guess",
        b"0" * 255,
        make_keys().of("server-0").pass_for("worker-1", 1).password,
        KEYS.of("server-1").pass_for("worker-1", 1).password,
        SERVER.pass_for("worker-1", 2).password,
        SERVER.pass_for("worker-2", 1).password,
    ],
    ids=[
        "none",
        "a guess",
        "a long one",
        "another job's",
        "another server's",
        "another generation's",
        "another's",
    ],
)
def test_strangers_do_not_pass_the_gate(
    context: Context, listener: DataListener, password: bytes | None
) -> None:
    socket: Socket = context.socket(zmq.DEALER)
    socket.linger = 0
    if password is not None:
        socket.plain_username, socket.plain_password = WAY.user, password
    socket.connect(f"tcp://127.0.0.1:{listener.port}")
    with contextlib.suppress(zmq.Again):  # it may have been refused by now
        socket.send(sealed_hello(), zmq.NOBLOCK)
    wait_for_refusals(listener, 1)
    socket.close()


@pytest.mark.parametrize(
    "user", [b"member", b"worker-1", b"\xeb 1", b"worker-1 1 1", b"worker-1 -1", b"w" * 255, b"a\x1b 1"]
)
def test_strangers_of_no_name_do_not_pass_the_gate(
    context: Context, listener: DataListener, user: bytes
) -> None:
    """And the gate is still there for those who may."""
    socket: Socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.plain_username, socket.plain_password = user, WAY.password
    socket.connect(f"tcp://127.0.0.1:{listener.port}")
    wait_for_refusals(listener, 1)
    socket.close()
    connected(context, listener).close()


def test_without_a_gate_nobody_passes() -> None:
    context: Context = zmq.Context()
    data = DataListener(context, SERVER, "127.0.0.1", 0)
    encrypted = DataListener(context, SERVER, "127.0.0.1", 0)
    master = ControlListener(context, KEYS, "127.0.0.1", 0)
    link, other = linked(context, data), linked(context, encrypted, guard=Guard.ALL)
    control = control_link(context, OWNER, f"tcp://127.0.0.1:{master.port}")
    control.send(signed_frame(OWNER, StatusRequest()))
    for listener in (data, encrypted, master):
        wait_for_refusals(listener, 1)
    control.close(linger=0)
    for each in (link, other, data, encrypted):
        each.close(**({"linger_ms": 0} if isinstance(each, DataLink) else {}))
    master.close(linger_ms=0)
    context.term()


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"x" * 10],
        [b"x" * 100, b"y"],
        [alone(PUSH)],
        [sealed_hello(key=make_keys().of("server-0").pass_for("worker-1", 1).key)],
        [sealed_hello(key=KEYS.of("server-1").pass_for("worker-1", 1).key)],
        [sealed_hello(key=SERVER.pass_for("worker-1", 2).key)],
        [sealed_hello(name="worker-2", key=WAY.key)],
        [sealed_hello()[:-1]],
        [sealed_hello(), b"an array"],
        [sealed_hello(nonce=b"short")],
        [sealed_hello(generation=0)],
        [sealed_hello(generation=-1)],
        [sealed_hello(generation=2**60)],
        [Seal(WAY.key, b"worker", b"server").close(alone(PUSH))],
        [Seal(WAY.key, b"server", b"worker").close(sealed_hello()[:-16])],
    ],
)
def test_a_first_word_that_does_not_fit(
    context: Context, listener: DataListener, frames: list[bytes]
) -> None:
    socket = past_the_gate(context, listener)
    socket.send_multipart(frames)
    wait_for_drops(listener, 1)
    socket.close()
    assert not listener._peers and not listener._early


def test_a_replayed_connection_opens_nothing(context: Context, listener: DataListener) -> None:
    """All that a member has sent, sent again by somebody who has listened in."""
    socket = past_the_gate(context, listener)
    socket.send(sealed_hello())
    while not socket.poll(10):
        assert list(listener.receive()) == []  # a Hello alone opens nothing
    socket.send(Seal(b"k" * 32, b"worker", b"server").close(alone(Pull(version=-1))))
    wait_for_drops(listener, 1)
    socket.close()


def changed(sealed: bytes) -> bytes:
    return bytes([sealed[0] ^ 1]) + sealed[1:]


@pytest.mark.parametrize("what", ["again", "too early", "changed", "cut short", "turned round", "of another"])
def test_a_seal_that_does_not_fit_ends_the_connection(
    context: Context, listener: DataListener, what: str
) -> None:
    link = connected(context, listener)
    other = connected(context, listener, "worker-2")
    first, second = link._seal.close(alone(Pull(version=1))), link._seal.close(alone(PUSH))
    link.socket.send(first)
    hear(listener, 2)
    wrong = {
        "again": first,
        "too early": link._seal.close(alone(Pull(version=3))),
        "changed": changed(second),
        "cut short": second[:-1],
        "turned round": Seal(link._seal._key, b"server", b"worker").close(alone(PUSH)),
        "of another": other._seal.close(alone(PUSH)),
    }[what]
    link.socket.send(wrong)
    link.socket.send(second)  # would fit, but nobody knows any more who is talking
    (closed,) = hear(listener, 1)
    assert isinstance(closed, Closed) and closed.peer.name == "worker-1"
    assert listener.dropped >= 1
    assert link.monitor.poll(WAIT_MS) and link.is_closed()
    while listener._router._fds.keys() != {*listener._peers}:
        wait(listener)
        assert [*listener.receive(), *listener.closed()] == []
    assert [peer.name for peer in listener._peers.values()] == ["worker-2"]
    link.close()
    other.close()


@pytest.mark.parametrize(
    "message",
    [
        Progress(name="server-0", generation=1, version=1, loss=math.nan),
        Progress(name="server-0", generation=1, version=1, evaluations=((1, (math.inf,)),)),
        Norms(tick=0, norms=((1, math.inf),)),
        Clip(tick=0, norm=math.nan),
    ],
)
def test_what_comes_out_of_the_model_may_be_any_number(message: msgspec.Struct) -> None:
    check(message)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        alone(Push(tick=2**60, parcel=0, level=0, index=0)),
        alone(Push(tick=0, parcel=0, level=0, index=0, lr=math.nan)),
        alone(Push(tick=0, parcel=0, level=-7, index=0)),
        alone(Push(tick=0, parcel=0, level=0, index=0, slice_s=math.inf)),
        alone(Hello(name="worker-1", generation=1, nonce=bytes(NONCE_BYTES))),
        alone(Gone(latest=1)),
        alone(PUSH)[:-1],
        alone(PUSH) + b"\x00",
        encode(PUSH),
        encode([]),
        encode([(PUSH, 0), (Push(tick=2**60, parcel=0, level=0, index=0), 0)]),
        encode([(PUSH, 1)]),
        encode([(PUSH, 1), (PUSH, -1)]),
        encode([(PUSH, 2**60)]),
        encode([(PUSH,)]),
        b"\x91\x92\x94\xa4Pull\x01\xff" + b"\x91" * 10_000 + b"\xc0",
    ],
)
def test_a_member_out_of_its_mind_is_dropped_message_by_message(
    context: Context, listener: DataListener, payload: bytes
) -> None:
    link = connected(context, listener)
    link.socket.send(link._seal.close(payload))
    wait_for_drops(listener, 1)
    link.send(Pull(version=1))
    assert [type(each) for each in hear(listener, 2)] == [Opened, Received]
    link.close()


def false_server(context: Context) -> tuple[Socket, DataLink]:
    """A link that has said Hello to somebody who, so far, has not answered."""
    router: Socket = context.socket(zmq.ROUTER)
    router.plain_server, router.zap_domain = True, b"elasticflow"
    port = router.bind_to_random_port("tcp://127.0.0.1")
    return router, DataLink(context, WAY, f"tcp://127.0.0.1:{port}", Guard.HEADERS)


OTHER = KEYS.of("server-1").pass_for("worker-1", 1)
FALSE = ["echo", "noise", "another key", "another server", "another nonce", "nothing in it"]


@pytest.mark.parametrize("what", FALSE)
def test_a_false_server_is_noticed(context: Context, what: str) -> None:
    router, link = false_server(context)
    route, hello = router.recv_multipart()
    welcome, nonce = encode(Welcome(nonce=bytes(NONCE_BYTES))), link._half.nonce
    seal = Seal(WAY.key, b"server", b"worker")
    answer = {
        "echo": hello,
        "noise": b"x" * 100,
        "another key": Seal(b"k" * 32, b"server", b"worker").close(nonce + welcome),
        "another server": Seal(OTHER.key, b"server", b"worker").close(nonce + welcome),
        "another nonce": seal.close(bytes(NONCE_BYTES) + welcome),
        "nothing in it": seal.close(b""),
    }[what]
    router.send_multipart([route, answer])
    assert link.socket.poll(WAIT_MS) and link.receive() is None
    assert link.dropped == 1 and not link.greeted
    with pytest.raises(AssertionError):
        link.send(PUSH)
    # the right answer is still taken
    right = Seal(WAY.key, b"server", b"worker").close(nonce + welcome)
    router.send_multipart([route, right])
    assert link.socket.poll(WAIT_MS) and link.receive() is None and link.greeted
    # from now on a seal that does not fit is the end, even if a right one follows
    seal = Seal(link._seal._key, b"server", b"worker")
    sealed = seal.close(alone(Gone(latest=1)))
    router.send_multipart([route, changed(sealed)])
    router.send_multipart([route, sealed])
    while link.dropped < 3:
        assert link.socket.poll(WAIT_MS) and link.receive() is None
    assert link.is_closed()
    link.close()
    router.close(linger=0)


def test_what_a_server_seals_but_means_nothing_is_dropped(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    link.send(Pull(version=1))
    opened, _ = hear(listener, 2)
    for payload in (b"", b"\xc1", alone(PUSH), alone(Gone(latest=2**60))):
        listener.socket.send_multipart([opened.peer.route, opened.peer.seal.close(payload)])
    listener.send(opened.peer, Gone(latest=7))
    assert link.socket.poll(WAIT_MS)
    received = link.receive()
    while received is None:
        assert link.socket.poll(WAIT_MS)
        received = link.receive()
    assert received[0] == Gone(latest=7) and link.dropped == 4 and not link.is_closed()
    link.close()


def test_what_is_sent_to_a_server_that_has_gone_is_lost(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    listener.close()
    assert link.monitor.poll(WAIT_MS) and link.is_closed()
    for _ in range(3):
        link.send(Initial(parcel=0), [np.zeros(100_000)])
    assert link.receive() is None
    link.close()


def test_nobody_there(context: Context, listener: DataListener) -> None:
    listener.close()
    link = linked(context, listener)
    assert link.monitor.poll(WAIT_MS) and link.is_closed() and link.receive() is None
    link.close()


@settings(max_examples=200)
@given(place=some.integers(0, 10_000), bit=some.integers(0, 7), length=some.integers(0, 200))
def test_any_changed_bit_breaks_the_seal(place: int, bit: int, length: int) -> None:
    sender, receiver = Seal(b"k" * 32, b"w", b"s"), Seal(b"k" * 32, b"s", b"w")
    sealed = bytearray(sender.close(bytes(length)))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(ProtocolError):
        receiver.open(memoryview(sealed))
    sealed[place % len(sealed)] ^= 1 << bit
    assert bytes(receiver.open(memoryview(sealed))) == bytes(length)


# --- bytes that are no messages --------------------------------------------------------------------

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01"
PLAIN, CURVE, NULL = (name.ljust(20, b"\0") + bytes(32) for name in (b"PLAIN", b"CURVE", b"NULL"))


@pytest.mark.parametrize("plane", ["data", "control"])
@pytest.mark.parametrize(
    "stream",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"\x01\x00",  # ZMTP 1: no mechanism
        b"\xff" + bytes(8) + b"\x7f\x01\x05" + bytes(10),  # ZMTP 2: no mechanism
        GREETING + NULL + b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER",
        GREETING + PLAIN + b"\x06" + (2**62).to_bytes(8, "big") + b"x" * 5000,
        GREETING + PLAIN + b"\x06" + (1 << 32).to_bytes(8, "big") + b"x" * 5000,
        GREETING + PLAIN + b"\x02" + (2**63 - 1).to_bytes(8, "big"),
        GREETING + CURVE + b"\x06" + (1 << 40).to_bytes(8, "big") + b"x" * 5000,
        GREETING + PLAIN + b"\x04\x06\x05READY",
    ],
)
def test_other_protocols_and_huge_lengths(
    listener: DataListener, master: ControlListener, plane: str, stream: bytes
) -> None:
    target = listener if plane == "data" else master
    with sockets.create_connection(("127.0.0.1", target.port), timeout=WAIT_MS / 1000) as connection:
        connection.sendall(stream)
        while _receive(connection):
            pass
    wait_for_refusals(target, 1)


def _receive(connection: sockets.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_member_cannot_send_a_frame_without_end(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    link.send(Initial(parcel=0), [np.zeros(data.DATA_BYTES + 1, np.uint8)])
    assert link.monitor.poll(WAIT_MS)
    link.close()


# --- control plane -------------------------------------------------------------------------------


def told(master: ControlListener) -> tuple[bytes, ToMaster]:
    """The next message."""
    while True:
        wait(master)
        for one in master.receive():
            return one


def test_only_members_reach_the_master(context: Context, master: ControlListener) -> None:
    other = make_keys().of(CLIENT)
    knows_masters_public_key = msgspec.structs.replace(other, master_public=KEYS.master_public)
    endpoint = f"tcp://127.0.0.1:{master.port}"
    strangers = [control_link(context, keys, endpoint) for keys in (other, knows_masters_public_key)]
    for socket in strangers:
        socket.linger = 0
        socket.send(signed_frame(OWNER, StatusRequest()))
    while master.refused < 2:
        wait(master)
        assert [*master.receive(), *master.closed()] == []
    member = control_link(context, OWNER, endpoint)
    member.send(signed_frame(OWNER, StatusRequest()))
    route, message = told(master)
    assert message == StatusRequest()
    master.send(route, Beat(incarnation=1))
    assert member.poll(WAIT_MS)
    for socket in (*strangers, member):
        socket.close(linger=0)
    while not (closed := [*master.receive(), *master.closed()]):
        wait(master)
    assert closed == [route]
    master.send(route, Beat(incarnation=1))  # to one that has gone: nothing


def test_the_master_hears_last_words_before_closings(context: Context, master: ControlListener) -> None:
    endpoint = f"tcp://127.0.0.1:{master.port}"
    for number in range(50):
        member = control_link(context, WORKER, endpoint)
        name = f"worker-{number}"
        member.send(signed_frame(KEYS.of(name), Leaving(name=name)))
        member.close(linger=WAIT_MS)
    said: dict[bytes, ToMaster] = {}
    closed: list[bytes] = []
    while len(closed) < 50:
        wait(master)
        said.update(master.receive())
        for route in master.closed():
            assert route in said
            closed.append(route)
    assert len(set(closed)) == 50 and not master._router._fds and not master._router._routes


def come_and_go(port: int, name: str, count: int) -> None:
    """Connections one after the other; some say nothing, some are cut off."""
    rng, context = random.Random(name), zmq.Context()
    for _ in range(count):
        socket = control_link(context, OWNER, f"tcp://127.0.0.1:{port}")
        for _ in range(rng.choice((0, 1, 1, 3))):
            socket.send(signed_frame(KEYS.of(name), Leaving(name=name)))
        socket.close(linger=rng.choice((0, WAIT_MS)))
    context.term()


def test_every_connection_is_closed_once_however_often_descriptors_are_reused(
    context: Context, master: ControlListener
) -> None:
    member = control_link(context, OWNER, f"tcp://127.0.0.1:{master.port}")
    member.send(signed_frame(OWNER, StatusRequest()))
    stays, _ = told(master)
    threads = [
        threading.Thread(target=come_and_go, args=(master.port, name, 100))
        for name in ("worker-1", "worker-2", "worker-3")
    ]
    for thread in threads:
        thread.start()
    spoke: set[bytes] = set()
    closed: list[bytes] = []
    while (
        zmq.select([master.socket, master.monitor], [], [], timeout=0.05)[0]
        or any(thread.is_alive() for thread in threads)
        or len(master._router._open) > 1
    ):
        for route, _ in master.receive():
            assert route not in closed
            spoke.add(route)
        closed += master.closed()
    assert set(closed) == spoke and len(closed) == len(spoke) and stays not in spoke
    assert master._router._fds.keys() == {stays}
    member.close()


def test_the_newer_of_two_connections_with_one_descriptor_is_the_one_that_is_open(
    context: Context, master: ControlListener
) -> None:
    """The older one has closed before anything of it is read. In most rounds they have the same one."""

    def descriptors() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))

    def until(held: list[str]) -> None:
        for _ in range(WAIT_MS):
            if descriptors() == held:
                return
            zmq.select([], [], [], timeout=0.001)
        pytest.fail(f"{descriptors()}, and never {held}")

    before, hello = descriptors(), signed_frame(OWNER, StatusRequest())
    for _ in range(ROUNDS):
        older = control_link(context, OWNER, f"tcp://127.0.0.1:{master.port}")
        older.send(hello)
        assert master.socket.poll(WAIT_MS)
        while_open = descriptors()
        older.close(linger=WAIT_MS)
        until(before)
        newer = control_link(context, OWNER, f"tcp://127.0.0.1:{master.port}")
        newer.send(hello)
        until(while_open)
        (first, _), (second, _) = told(master), told(master)
        assert list(master.closed()) == [first]
        master.send(second, Beat(incarnation=1))
        assert newer.poll(WAIT_MS)
        newer.close()
        until(before)
        assert list(master.closed()) == [second]


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\xc1"],
        [encode(Beat(incarnation=1))],
        [encode(PUSH)],
        [encode(StatusRequest()), b""],
        [encode(StatusRequest())[:-1]],
        [b"\x82\xa1x" + b"\x91" * 10_000 + b"\xc0\xa4type\xadStatusRequest"],
        [encode(StatusRequest()) + b"\x00"],
        [encode(StatusRequest(newer_than=2**60))],
        [encode(Heartbeat(name="worker-1", tick=1, slice_s=math.nan))],
        [encode(Heartbeat(name="worker-1", tick=1, usage=Usage(computing_s=math.inf)))],
        [encode(Progress(name="server-0", generation=-9, version=1))],
    ],
)
def test_the_master_drops_what_is_no_message(
    context: Context, master: ControlListener, frames: list[bytes]
) -> None:
    member = control_link(context, OWNER, f"tcp://127.0.0.1:{master.port}")
    member.send_multipart([signed(OWNER.own, frames[0]), *frames[1:]])
    wait_for_drops(master, 1)
    member.send(signed_frame(OWNER, StatusRequest()))
    assert told(master)[1] == StatusRequest()
    member.close()


PROGRESS = Progress(name="server-0", generation=1, version=1)
POSED: list[tuple[MemberKeys, ToMaster, str]] = [
    (WORKER, PROGRESS, "worker-1 says Progress in the name of server-0"),
    (WORKER, Leaving(name="worker-2"), "worker-1 says Leaving in the name of worker-2"),
    (WORKER, StopRequest(), "worker-1 says StopRequest in the name of client"),
    (KEYS.of("server-1"), PROGRESS, "server-1 says Progress in the name of server-0"),
    (OWNER, Leaving(name="worker-2"), "client says Leaving in the name of worker-2"),
    (WORKER, Progress(name="worker-1", generation=1, version=1), "worker-1 says Progress, which is not"),
    (WORKER, Join(name="worker-1", role="server", host="", pid=1), "worker-1 says Join, which is not"),
    (KEYS.of("server-1"), Departing(name="server-1", reason=""), "server-1 says Departing, which is not"),
    (KEYS.of("nobody"), Leaving(name="nobody"), "nobody says Leaving, which is not"),
]


@pytest.mark.parametrize(("keys", "message", "said"), POSED, ids=[said for _, _, said in POSED])
def test_nobody_speaks_for_another(
    context: Context, master: ControlListener, keys: MemberKeys, message: ToMaster, said: str
) -> None:
    """With a key that is valid, on a connection on which it has proved itself; and it is told on."""
    suspected: list[str] = []
    master.suspect = suspected.append
    member = control_link(context, keys, f"tcp://127.0.0.1:{master.port}")
    own = StatusRequest() if keys is OWNER else Leaving(name=keys.name)
    if said.startswith("nobody"):
        own = message
    else:
        member.send(signed_frame(keys, own))
        assert told(master)[1] == own
    for _ in range(3):
        member.send(signed_frame(keys, message))
    wait_for_drops(master, 3)
    assert len(suspected) == 1 and suspected[0].startswith(said)
    member.close(linger=0)


def test_two_keys_are_not_for_one_connection(context: Context, master: ControlListener) -> None:
    member = control_link(context, WORKER, f"tcp://127.0.0.1:{master.port}")
    member.send(signed_frame(WORKER, Leaving(name="worker-1")))
    assert told(master)[1] == Leaving(name="worker-1")
    member.send(signed_frame(KEYS.of("worker-2"), Leaving(name="worker-2")))
    wait_for_drops(master, 1)
    member.close(linger=0)


def test_a_recorded_control_connection_says_nothing_again(context: Context, master: ControlListener) -> None:
    """All bytes of a member's connection, sent again: CURVE's handshake does not fit any more."""
    recorded = bytearray()
    with sockets.create_server(("127.0.0.1", 0)) as between:
        port = between.getsockname()[1]
        member = control_link(context, OWNER, f"tcp://127.0.0.1:{port}")
        member.send(signed_frame(WORKER, Leaving(name="worker-1")))
        inner, _ = between.accept()
        with inner, sockets.create_connection(("127.0.0.1", master.port)) as outer:
            thread = threading.Thread(target=_pass_on, args=(inner, outer, recorded))
            back = threading.Thread(target=_pass_on, args=(outer, inner, bytearray()))
            thread.start()
            back.start()
            told(master)
            member.close(linger=0)
            thread.join()
            outer.shutdown(sockets.SHUT_RDWR)
            back.join()
    refused, recorded_all = master.refused, bytes(recorded)
    with sockets.create_connection(("127.0.0.1", master.port)) as connection:
        connection.sendall(recorded_all)
        connection.settimeout(WAIT_MS / 1000)
        while _receive(connection):
            pass
    while master.refused == refused:
        wait(master)
        assert list(master.receive()) == []
        list(master.closed())


def _pass_on(source: sockets.socket, target: sockets.socket, record: bytearray) -> None:
    while data := _receive(source):
        record += data
        try:
            target.sendall(data)
        except OSError:
            return


def test_who_takes_nothing_does_not_stop_the_master(context: Context, master: ControlListener) -> None:
    frozen = control_link(context, OWNER, f"tcp://127.0.0.1:{master.port}")
    frozen.send(signed_frame(OWNER, StatusRequest()))
    route, _ = told(master)
    answer = Answer(error="x" * 10_000)
    while not (closed := list(master.closed())):
        master.send(route, answer)
    assert closed == [route]
    frozen.close(linger=0)


def test_a_member_finds_the_next_master_on_the_same_port(context: Context) -> None:
    port = 0
    member: Socket | None = None
    for _ in range(3):
        its_context: Context = zmq.Context()
        gate = admit_only_members(its_context, SERVER)
        master = ControlListener(its_context, KEYS, "127.0.0.1", port)
        port = master.port
        member = member or control_link(context, OWNER, f"tcp://127.0.0.1:{port}")
        member.send(signed_frame(OWNER, StatusRequest()))
        assert told(master)[1] == StatusRequest()
        master.close()
        gate.stop()
        its_context.term()
    assert member is not None
    member.close(linger=0)


@pytest.mark.parametrize("guard", Guard)
def test_arrays_are_guarded_both_ways(context: Context, listener: DataListener, guard: Guard) -> None:
    link = connected(context, listener, guard=guard)
    array = np.arange(100_000.0)
    link.send(Initial(parcel=3), [array, array[:5]])
    opened, received = hear(listener, 2)
    assert isinstance(opened, Opened) and isinstance(received, Received)
    assert received.message == Initial(parcel=3)
    assert [bytes(frame) for frame in received.frames] == [array.tobytes(), array[:5].tobytes()]
    assert not any(frame.readonly for frame in received.frames), "servers add up in what they have received"
    listener.send(opened.peer, Gone(latest=7), [array])
    assert link.socket.poll(WAIT_MS)
    message, frames = link.receive() or (None, [])
    assert message == Gone(latest=7) and bytes(frames[0]) == array.tobytes()
    link.close()


def on_the_way(link: DataLink, message: ToServer, array: Array) -> list[bytes]:
    """What would be sent, as somebody sees it who owns the network."""
    header = link._seal.close(alone(message, array), [array])
    return [header, *(each.tobytes() for each in link._seal.hidden([array]))]


ALTERED: dict[str, Callable[[bytes, bytes], list[bytes]]] = {
    "a bit of the array": lambda header, array: [header, changed(array)],
    "a bit of the header": lambda header, array: [changed(header), array],
    "a shorter array": lambda header, array: [header, array[:-1]],
    "no array": lambda header, array: [header],
    "two": lambda header, array: [header, array, array],
    "an empty one": lambda header, array: [header, b""],
}


@pytest.mark.parametrize("guard", [Guard.ARRAYS, Guard.ALL])
@pytest.mark.parametrize("what", ALTERED)
def test_what_is_altered_on_the_way_ends_the_connection(
    context: Context, listener: DataListener, guard: Guard, what: str
) -> None:
    link = connected(context, listener, guard=guard)
    array = np.arange(1000.0)
    link.socket.send_multipart(on_the_way(link, Initial(parcel=1), array))
    assert [type(each) for each in hear(listener, 2)] == [Opened, Received]
    header, frame = on_the_way(link, Initial(parcel=2), array)
    assert (array.tobytes() == frame) is (guard is Guard.ARRAYS)
    link.socket.send_multipart(ALTERED[what](header, frame))
    (closed,) = hear(listener, 1)
    assert isinstance(closed, Closed) and listener.dropped == 1
    link.close()


def test_a_guard_that_is_none_is_no_hello(context: Context, listener: DataListener) -> None:
    hello = Hello(name="worker-1", generation=1, nonce=bytes(NONCE_BYTES), guard="some")
    socket = past_the_gate(context, listener)
    socket.send(Seal(WAY.key, b"worker", b"server").close(encode(hello)))
    wait_for_drops(listener, 1)
    socket.close()


# --- the gate and the checks -----------------------------------------------------------------------


def test_a_gate_leaves_nothing_behind() -> None:
    threads, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        context: Context = zmq.Context()
        admit_only_members(context, SERVER).stop()
        context.term()
        forgotten: Context = zmq.Context()
        gate = admit_only_members(forgotten, SERVER)
        forgotten.term()
        gate._thread.join()
    assert threading.active_count() == threads and len(os.listdir("/proc/self/fd")) <= fds


@pytest.mark.parametrize(
    "message",
    [
        PUSH,
        Pull(version=-1),
        Plan(number=1, shares=()),
        Norms(tick=1, norms=((3, 0.5), (4, 1e300))),
        Progress(name="server-0", generation=1, version=3, loss=0.1, evaluations=((1, (0.5, 1.0)),)),
    ],
)
def test_what_is_meant_passes_the_check(message: ToServer | FromServer | ToMaster) -> None:
    check(message)


@given(number=some.one_of(some.integers(max_value=-2), some.integers(min_value=2**53)))
def test_numbers_that_cannot_be_meant(number: int) -> None:
    for message in (Pull(version=number), Norms(tick=1, norms=((number, 1.0),))):
        with pytest.raises(ProtocolError, match="whole number"):
            check(message)


def test_the_password_is_no_key() -> None:
    password: Any = WAY.password
    assert not {WAY.key, SERVER.own, KEYS.root} & {password, bytes.fromhex(password.decode())}
    assert password != make_keys().of("server-0").pass_for("worker-1", 1).password
