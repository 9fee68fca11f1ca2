"""A member's line to its master, over real sockets: masters die and come back, and processes are stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from elasticflow.cluster.finder import Finder
from elasticflow.cluster.member import EXIT_ABANDONED, MasterLink
from elasticflow.cluster.silence import Silence
from elasticflow.errors import ProtocolError
from elasticflow.run.folder import Address
from elasticflow.wire.control import ControlListener
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import make_keys, write_secret
from elasticflow.wire.messages import (
    Beat,
    Drain,
    FromMaster,
    Heartbeat,
    Join,
    Leaving,
    Plan,
    Quit,
    ToMaster,
)
from elasticflow.wire.sockets import Context

KEYS = make_keys()
WAIT_S = 20.0
JOIN = Join(name="worker-1", role="worker", host="here", pid=1)
LEAVING = Leaving(name="worker-1")


class Master:
    """Answers heartbeats, and keeps what else it is told."""

    def __init__(self, incarnation: int = 1, port: int = 0) -> None:
        self.incarnation = incarnation
        self._context: Context = zmq.Context()
        self._gate = admit_only_members(self._context, KEYS.of("master"))
        self._listener = ControlListener(self._context, KEYS, "127.0.0.1", port)
        self.port = self._listener.port
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.told: list[ToMaster] = []
        self.beats = 0
        self._routes: set[bytes] = set()

    def turn(self, answers: bool = True) -> None:
        self._listener.socket.poll(20)
        for route, message in self._listener.receive():
            self._routes.add(route)
            if not isinstance(message, Heartbeat):
                self.told.append(message)
            elif answers:
                self.beats += 1
                self._listener.send(route, Beat(incarnation=self.incarnation))
        list(self._listener.closed())

    def until(self, condition: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < give_up_s, self.told
            self.turn()

    def say(self, message: FromMaster) -> None:
        for route in self._routes:
            self._listener.send(route, message)

    def die(self) -> None:
        self._listener.close(linger_ms=0)
        self._gate.stop()
        self._context.term()


@pytest.fixture
def masters() -> Iterator[Callable[..., Master]]:
    made: list[Master] = []

    def make(*arguments: int) -> Master:
        made.append(Master(*arguments))
        return made[-1]

    yield make
    for master in made:
        if not master._context.closed:
            master.die()


def test_what_cannot_be_told_is_said_to_who_tells_it(masters: Callable[..., Master]) -> None:
    """Not to nobody, in a thread that dies of it; and what comes after is told."""
    master = masters()
    member = Member(master.endpoint)
    with pytest.raises(ProtocolError, match="Heartbeat cannot be told to the master: a number that is none"):
        member.link.send(Heartbeat(name="worker-1", tick=0, slice_s=float("nan")))
    member.link.send(JOIN)
    master.until(lambda: master.told == [JOIN])
    member.link.close()


class Slow(Finder):
    """Asks a cluster that does not answer; that takes many heartbeats each time."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s

    def find(self) -> str | None:
        time.sleep(0.3)
        return None


class Published(Finder):
    def __init__(self, member: Member, patience_s: float) -> None:
        self.member, self.patience_s = member, patience_s

    def find(self) -> str | None:
        return self.member.published


class Member:
    def __init__(self, endpoint: str, lost_s: float = 60.0, beats: bool = True) -> None:
        self.published: str | None = None
        self.abandoned = threading.Event()
        self.received: list[FromMaster] = []
        self.link = MasterLink(
            KEYS.of("worker-1"),
            endpoint,
            heartbeat=lambda: Heartbeat(name="worker-1", tick=3, generation=2),
            heartbeat_s=0.05,
            finder=Published(self, lost_s),
            abandoned=self.abandoned.set,
        )
        if beats:
            self.link.start_heartbeats()

    def has(self, *expected: FromMaster) -> bool:
        self.received += self.link.received()
        return self.received == list(expected)


@pytest.fixture
def members() -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def make(*arguments: object) -> Member:
        made.append(Member(*arguments))
        return made[-1]

    yield make
    for member in made:
        member.link.close()


def test_only_the_first_beat_of_another_master_is_shown(masters, members) -> None:
    master = masters()
    member = members(master.endpoint)
    master.until(lambda: master.beats >= 3)
    member.link.send(JOIN)
    master.until(lambda: master.told == [JOIN])
    master.say(Drain())
    master.until(lambda: member.has(Drain()))
    port = master.port
    master.die()
    member.link.send(LEAVING)  # nobody is there just now
    second = masters(2, port)
    second.until(lambda: member.has(Drain(), Beat(incarnation=2)) and second.beats >= 3)
    assert second.told == [LEAVING]


def test_a_master_that_answers_later_than_it_is_told_may_be_another(masters, members) -> None:
    master = masters()
    member = members(master.endpoint, 60.0, False)
    member.link.send(JOIN)
    master.until(lambda: master.told == [JOIN])
    member.link.start_heartbeats()
    master.until(lambda: member.has(Beat(incarnation=1)) and master.beats >= 3)


def test_a_master_somewhere_else_is_found(masters, members) -> None:
    master = masters()
    member = members(master.endpoint)
    master.until(lambda: master.beats >= 1)
    master.die()
    member.link.send(JOIN)
    member.link.send(LEAVING)
    second = masters(2)
    member.published = second.endpoint
    second.until(lambda: member.has(Beat(incarnation=2)) and len(second.told) == 2)
    assert second.told == [JOIN, LEAVING], "what nobody had heard is said again, in its order"


def test_a_silent_master_is_given_up(masters, members) -> None:
    master = masters()
    member = members(master.endpoint, 0.5)
    master.until(lambda: master.beats >= 1)
    assert not member.abandoned.is_set()
    assert member.abandoned.wait(WAIT_S)


def test_to_ask_for_long_is_silence_too() -> None:
    """A node that is cut off reaches neither its master nor the cluster, and its members must end."""
    abandoned = threading.Event()
    link = MasterLink(
        KEYS.of("worker-1"),
        "tcp://127.0.0.1:9",
        heartbeat=lambda: Heartbeat(name="worker-1", tick=3, generation=2),
        heartbeat_s=0.05,
        finder=Slow(1.0),
        abandoned=abandoned.set,
    )
    assert abandoned.wait(WAIT_S)
    link.close()


def test_waiting_for_one_message_leaves_the_others(masters, members) -> None:
    master = masters()
    member = members(master.endpoint)
    master.until(lambda: master.beats >= 1)
    plan, quit_ = Plan(number=1, shares=()), Quit(reason="over")
    master.say(Drain())
    master.say(quit_)
    master.say(plan)
    assert member.link.wait_for((Quit, Beat)) == quit_
    assert member.link.wait_for((Plan,)) == plan
    assert _readable(member.link.wake_fd), "there is more"
    assert member.link.received() == [Drain()]
    assert not _readable(member.link.wake_fd)


def _readable(fd: int) -> bool:
    poller = zmq.Poller()
    poller.register(fd, zmq.POLLIN)
    return bool(poller.poll(0))


def test_last_words_are_sent_before_the_end(masters, members) -> None:
    master = masters()
    member = members(master.endpoint)
    master.until(lambda: master.beats >= 1)
    closing = threading.Thread(target=member.link.close)
    member.link.send(LEAVING)
    closing.start()
    master.until(lambda: master.told == [LEAVING])
    closing.join(WAIT_S)
    assert not closing.is_alive()


CHILD = """
import sys, threading
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.cluster.finder import Finder
from elasticflow.cluster.member import MasterLink
from elasticflow.wire.messages import Heartbeat
from pathlib import Path

link = MasterLink(
    read_keys(Path(sys.argv[1]), MemberKeys),
    sys.argv[2],
    heartbeat=lambda: Heartbeat(name="worker-1", tick=0),
    heartbeat_s=0.1,
    finder=Finder("/nonexistent", 1.5),
)
link.start_heartbeats()
threading.Event().wait()
"""


def test_time_in_which_a_process_is_stopped_is_no_silence(masters, tmp_path: Path) -> None:
    master = masters()
    keys = tmp_path / "member.json"
    write_secret(keys, msgspec.json.encode(KEYS.of("worker-1")))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(keys), master.endpoint])
    try:
        master.until(lambda: master.beats >= 3)
        child.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        while time.monotonic() < stopped_s + 2.5:
            master.turn(answers=False)
        before = master.beats
        child.send_signal(signal.SIGCONT)
        master.until(lambda: master.beats >= before + 3)
        assert child.poll() is None
        assert child.wait(WAIT_S) == EXIT_ABANDONED, "but silence after that is"
    finally:
        child.kill()
        child.wait()


def test_silence_is_what_is_not_heard_while_awake() -> None:
    silence = Silence(100.0, heartbeat_s=0.5)
    silence.sleep(0.5)
    silence.wake(100.5)
    assert silence.seconds == 0.5
    silence.sleep(0.5)
    silence.wake(101.4)
    assert silence.seconds == pytest.approx(1.4), "a little late: the machine was busy"
    silence.sleep(0.5)
    silence.wake(160.0)
    assert silence.seconds == 0.0, "it was stopped: what was said meanwhile is still unread"
    silence.sleep(0.5)
    silence.wake(160.4)
    silence.end()
    silence.sleep(0.5)
    silence.wake(160.5)
    assert silence.seconds == pytest.approx(0.1)


def test_the_published_address_is_read_as_far_as_it_is_there(tmp_path: Path) -> None:
    assert Finder(str(tmp_path), 60.0).find() is None
    (tmp_path / "master.json").write_bytes(b'{"endpoi')
    assert Finder(str(tmp_path), 60.0).find() is None
    address = Address("tcp://127.0.0.1:7", "here", 1)
    (tmp_path / "master.json").write_bytes(msgspec.json.encode(address))
    assert Finder(str(tmp_path), 60.0).find() == "tcp://127.0.0.1:7"
