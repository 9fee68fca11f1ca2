"""Real sockets: members get in, strangers, replays and forgeries do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.errors import ProtocolError
from elasticflow.keys import MemberKeys, make_keys
from elasticflow.messages import Gone, Hello, Initial, Pull, Push, StatusRequest, encode
from elasticflow.transport import (
    Closed,
    Context,
    DataLink,
    DataListener,
    Opened,
    Received,
    Seal,
    admit_only_members,
    control_link,
    control_listener,
)

KEYS = make_keys()
WAIT_MS = 5000


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def listener(context: Context) -> Iterator[DataListener]:
    listener = DataListener(context, KEYS.member, "127.0.0.1", 0, encrypt=False)
    yield listener
    listener.close()


def connected(context: Context, listener: DataListener, keys: MemberKeys = KEYS.member) -> DataLink:
    """A link that has greeted the listener, which has not heard more than that."""
    link = DataLink(context, keys, f"tcp://127.0.0.1:{listener.port}", encrypt=False)
    greeting = threading.Thread(target=link.greet, args=("worker-1",))
    greeting.start()
    while greeting.is_alive():
        listener.socket.poll(10)
        assert list(listener.receive()) == []
    return link


def heard(listener: DataListener) -> list[Opened | Closed | Received]:
    assert listener.socket.poll(WAIT_MS)
    return list(listener.receive())


def stranger(context: Context, listener: DataListener) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(f"tcp://127.0.0.1:{listener.port}")
    return socket


def wait_for_drops(listener: DataListener, count: int) -> None:
    while listener.dropped < count:
        assert listener.socket.poll(WAIT_MS)
        assert list(listener.receive()) == []


def test_messages_and_arrays_both_ways(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    small, large = np.arange(5.0), np.arange(100_000, dtype=np.float32)
    link.send(Initial(parcel=3), [small, large])
    opened, received = heard(listener)
    assert isinstance(opened, Opened) and opened.peer.name == "worker-1"
    assert isinstance(received, Received) and received.message == Initial(parcel=3)
    np.testing.assert_array_equal(np.frombuffer(received.frames[0]), small)
    np.testing.assert_array_equal(np.frombuffer(received.frames[1], np.float32), large)
    listener.send(opened.peer, Gone(latest=7), [large])
    assert link.socket.poll(WAIT_MS)
    answer = link.receive()
    assert answer is not None and answer[0] == Gone(latest=7) and answer[1][0].nbytes == large.nbytes
    link.close()
    assert listener.monitor.poll(WAIT_MS)
    assert [type(each) for each in listener.closed()] == [Closed]
    assert listener.send(opened.peer, Gone(latest=8)) is None


def test_another_jobs_key_gets_nowhere(context: Context, listener: DataListener) -> None:
    link = DataLink(context, make_keys().member, f"tcp://127.0.0.1:{listener.port}", encrypt=False)
    with pytest.raises(ProtocolError, match="no parameter server of this job answers"):
        link.greet("worker-1", timeout_s=0.2)
    wait_for_drops(listener, 1)
    link.close()


def test_a_false_server_is_noticed(context: Context) -> None:
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    link = DataLink(context, KEYS.member, f"tcp://127.0.0.1:{port}", encrypt=False)

    def answer() -> None:
        route, hello = router.recv_multipart()
        router.send_multipart([route, hello])

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(ProtocolError, match="seal"):
        link.greet("worker-1", timeout_s=5)
    thread.join()
    link.close()
    router.close(linger=0)


def test_a_replayed_connection_opens_nothing(context: Context, listener: DataListener) -> None:
    """All that a member has sent, sent again by somebody who has listened in."""
    nonce = bytes(16)
    hello = Seal(KEYS.member.data, b"worker", b"server").close(encode(Hello(name="worker-1", nonce=nonce)))
    socket = stranger(context, listener)
    socket.send(hello)
    while not socket.poll(10):
        assert list(listener.receive()) == []  # a Hello alone opens nothing
    recorded = Seal(b"k" * 32, b"worker", b"server").close(encode(Pull(version=-1)))
    socket.send(recorded)
    wait_for_drops(listener, 1)
    socket.close()


def test_repeated_and_reordered_messages_are_dropped(context: Context, listener: DataListener) -> None:
    link = connected(context, listener)
    seal = link._seal
    first, second = seal.close(encode(Pull(version=1))), seal.close(encode(Pull(version=2)))
    for sealed in (second, first, first, second):  # out of order, right, again, right
        link.socket.send(sealed)
    messages = []
    while len(messages) < 2:
        messages += [each.message for each in heard(listener) if isinstance(each, Received)]
    assert messages == [Pull(version=1), Pull(version=2)]
    assert listener.dropped == 2
    link.close()


@settings(max_examples=200, deadline=None)
@given(place=some.integers(0, 10_000), bit=some.integers(0, 7), length=some.integers(0, 200))
def test_any_changed_bit_breaks_the_seal(place: int, bit: int, length: int) -> None:
    sender, receiver = Seal(b"k" * 32, b"w", b"s"), Seal(b"k" * 32, b"s", b"w")
    sealed = bytearray(sender.close(bytes(length)))
    sealed[place % len(sealed)] ^= 1 << bit
    with pytest.raises(ProtocolError):
        receiver.open(memoryview(sealed))
    sealed[place % len(sealed)] ^= 1 << bit
    assert bytes(receiver.open(memoryview(sealed))) == bytes(length)


@pytest.mark.parametrize(
    "frames", [[b""], [b"x" * 10], [b"x" * 100, b"y"], [encode(Push(tick=0, parcel=0, level=0, index=0))]]
)
def test_strangers_bytes_are_counted_and_dropped(
    context: Context, listener: DataListener, frames: list[bytes]
) -> None:
    socket = stranger(context, listener)
    socket.send_multipart(frames)
    wait_for_drops(listener, 1)
    socket.close()


def test_encrypted_data_plane(context: Context) -> None:
    authenticator = admit_only_members(context, KEYS.member)
    listener = DataListener(context, KEYS.member, "127.0.0.1", 0, encrypt=True)
    endpoint = f"tcp://127.0.0.1:{listener.port}"
    link = DataLink(context, KEYS.member, endpoint, encrypt=True)
    greeting = threading.Thread(target=link.greet, args=("worker-1",))
    greeting.start()
    while greeting.is_alive():
        listener.socket.poll(10)
        list(listener.receive())
    link.send(Pull(version=-1))
    assert [type(each) for each in heard(listener)] == [Opened, Received]
    plain = DataLink(context, KEYS.member, endpoint, encrypt=False)
    with pytest.raises(ProtocolError):
        plain.greet("worker-2", timeout_s=0.3)
    for each in (plain, link, listener):
        each.close()
    authenticator.stop()


def test_only_members_reach_the_master(context: Context) -> None:
    authenticator = admit_only_members(context, KEYS.member)
    router, port = control_listener(context, KEYS, "127.0.0.1", 0)
    other = make_keys().member
    knows_masters_public_key = MemberKeys(
        master_public=KEYS.member.master_public,
        member_public=other.member_public,
        member_secret=other.member_secret,
        server_public=other.server_public,
        server_secret=other.server_secret,
        data=other.data,
    )
    for keys in (other, knows_masters_public_key):
        socket = control_link(context, keys, f"tcp://127.0.0.1:{port}")
        socket.linger = 0
        socket.send(encode(StatusRequest()))
        assert not router.poll(300)
        socket.close()
    member = control_link(context, KEYS.member, f"tcp://127.0.0.1:{port}")
    member.send(encode(StatusRequest()))
    assert router.poll(WAIT_MS)
    member.close()
    router.close()
    authenticator.stop()
