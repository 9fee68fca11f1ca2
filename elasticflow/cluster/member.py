"""A worker's or server's line to its master: heartbeats out, orders in, in a thread of its own.

The thread is there so that a slice that takes a minute does not look like a dead process. A master may
die, and another take its place, at the same address or at another: the line finds it, and shows it by a
Beat among what was received.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import zmq

from elasticflow.cluster.contract import load_backend
from elasticflow.cluster.finder import Finder, Orphaned
from elasticflow.cluster.inbox import Inbox
from elasticflow.cluster.silence import Silence
from elasticflow.errors import ProtocolError
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.guard import guarded_thread
from elasticflow.process.stacks import Alarm, main_stack, write_all
from elasticflow.run.settings import MemberSettings
from elasticflow.wire.control import control_frame, control_link, signed_frame
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import (
    Beat,
    Carry,
    FromMaster,
    Heartbeat,
    Here,
    Look,
    Stacks,
    ToMaster,
    decode_from_master,
)
from elasticflow.wire.numbers import check
from elasticflow.wire.seal import signed
from elasticflow.wire.sockets import Context, Socket, poll_ms

EXIT_ABANDONED = 75
"""Exit code of a member whose master has fallen silent."""
SEARCH_BEATS = 4
"""After so many heartbeats without an answer, the master may be somewhere else."""
LINGER_S = 3.0
"""How long the last words wait for a master that is just being restarted."""


class Heard:
    """What a member has said that no master may have read, and which master it heard last."""

    def __init__(self) -> None:
        self.unread: list[bytes] = []
        """What was said since the last word from a master."""
        self._said = False
        self._incarnation: int | None = None

    def say(self, message: bytes) -> None:
        self.unread.append(message)
        self._said = True

    def is_new(self, beat: Beat) -> bool:
        """Whether another master may have been told something that this one has not read."""
        before, self._incarnation = self._incarnation, beat.incarnation
        return self._said if before is None else before != beat.incarnation


class Showing(NamedTuple):
    """What a master is told of a process that does not move. program: what it runs. doing: in words."""

    name: str = ""
    program: str = ""
    doing: Callable[[], str] = lambda: ""

    def stacks(self, number: int) -> Stacks:
        """The answer to its question, whether or not the main thread ever comes to say so."""
        write_all("nothing moves, and the master asks why")
        doing = ""
        with contextlib.suppress(Exception):  # it looks at what another thread is changing
            doing = self.doing()
        where, stack = main_stack(self.program)
        return Stacks(name=self.name, number=number, doing=doing, where=where, stack=stack)


class MasterLink:
    """``wake_fd`` becomes readable whenever ``received`` may have something new.

    heartbeat: called in the link's thread for each Heartbeat. finder: tells where a master listens now.
    Without a word from any for ``finder.patience_s``, or once the finder knows that none will come,
    ``abandoned`` is called, which by default ends the process: whoever cannot be reached must not live on
    as an orphan. Time in which this process was stopped does not count.

    Beats are left out of what is received, but for the first of each incarnation of the master, unless
    there is nothing yet that an earlier one could have been told: the owner then repeats what still
    stands, since nobody knows what the master before had read.

    showing: its words are asked for in the link's thread. alarm: told that this thread runs. carry: told, in
    the link's thread, which servers to carry.
    """

    def __init__(
        self,
        keys: MemberKeys,
        endpoint: str,
        *,
        heartbeat: Callable[[], Heartbeat],
        heartbeat_s: float,
        finder: Finder,
        abandoned: Callable[[], None] = lambda: os._exit(EXIT_ABANDONED),
        showing: Showing | None = None,
        alarm: Alarm | None = None,
        carry: Callable[[tuple[str, ...]], None] = lambda servers: None,
    ) -> None:
        self._keys = keys
        self._heartbeat, self._heartbeat_s = heartbeat, heartbeat_s
        self._finder, self._abandoned = finder, abandoned
        self._showing, self._alarm = showing or Showing(), alarm or Alarm(0.0)
        self._carry = carry
        self._outbox: deque[bytes] = deque()
        self._inbox = Inbox()
        self._to_do = FdEvent()
        self._heard = Heard()
        self._closing = False
        self._beating = threading.Event()
        self._thread = guarded_thread(self._run, "master-link", endpoint)
        self._thread.start()

    @classmethod
    def of(
        cls,
        settings: MemberSettings,
        keys: MemberKeys,
        heartbeat: Callable[[], Heartbeat],
        doing: Callable[[], str] = lambda: "",
        carry: Callable[[tuple[str, ...]], None] = lambda servers: None,
    ) -> MasterLink:
        """The line of a member with these settings."""
        return cls(
            keys,
            settings.master,
            heartbeat=heartbeat,
            heartbeat_s=settings.heartbeat_s,
            finder=load_backend(settings.backend).finder(settings),
            showing=Showing(settings.name, settings.program, doing),
            alarm=Alarm(settings.lost_s / 2),
            carry=carry,
        )

    @property
    def wake_fd(self) -> int:
        return self._inbox.fd

    def send(self, message: ToMaster) -> None:
        """Sends soon; never waits.

        Raises ProtocolError if there is something in it that no master would take, or be able to read: it
        would be dropped, and waited for in vain.
        """
        self._outbox.append(signed(self._keys.own, checked(message)))
        self._to_do.set()

    def start_heartbeats(self) -> None:
        """From now on the master is told every ``heartbeat_s`` that this process lives."""
        self._beating.set()
        self._to_do.set()

    def received(self) -> list[FromMaster]:
        """What has come from the master since the last call."""
        messages: list[FromMaster] = []
        for message in self._inbox.take():
            if isinstance(message, Look):
                self._be_here(message)
            else:
                messages.append(message)
        return messages

    def _be_here(self, look: Look) -> None:
        """The main thread, or whichever reads what comes from the master, has come to this question."""
        self.send(Here(name=self._showing.name, number=look.number))

    def wait_for(self, kinds: tuple[type, ...]) -> FromMaster:
        """The next message of one of these kinds. Others stay for ``received``, in their order.

        Whoever waits for an answer names Beat too, and asks again when one comes: see above.
        """
        poller = zmq.Poller()
        poller.register(self.wake_fd, zmq.POLLIN)
        while True:
            message = self._inbox.take_first((Look, *kinds))
            if message is None:
                poller.poll()
            elif isinstance(message, Look):
                self._be_here(message)
            else:
                return message

    def close(self) -> None:
        """Sends what is still to be sent, and ends the thread."""
        self._closing = True
        self._to_do.set()
        self._thread.join(timeout=LINGER_S + 1)

    # --- the thread ------------------------------------------------------------------------------

    def _run(self, endpoint: str) -> None:
        context: Context = zmq.Context()
        socket, poller = self._connect(context, endpoint)
        beat_s = time.monotonic()
        silence = Silence(beat_s, self._heartbeat_s)
        search_s, linger_s = SEARCH_BEATS * self._heartbeat_s, LINGER_S
        while True:
            now_s = time.monotonic()
            silence.wake(now_s)
            self._alarm.put_off(now_s)
            if self._receive(socket):
                silence.end()
                search_s = SEARCH_BEATS * self._heartbeat_s
            try:
                found = self._find(silence) if silence.seconds > search_s else None
            except Orphaned as orphaned:
                print(f"no master: {orphaned}", file=sys.stderr, flush=True)
                self._abandoned()
                linger_s = 0.0
                break
            if silence.seconds > search_s:
                search_s = silence.seconds + self._heartbeat_s
            if found not in (None, endpoint):
                endpoint = str(found)
                socket.close(linger=0)
                socket, poller = self._connect(context, endpoint)
            # Before the outbox is emptied: whatever was said before ``close`` goes out.
            closing = self._closing
            if self._beating.is_set() and now_s >= beat_s:
                beat_s = now_s + self._heartbeat_s
                _offer(socket, signed_frame(self._keys, self._heartbeat()))
            while self._outbox and _offer(socket, message := self._outbox[0]):
                self._heard.say(message)
                self._outbox.popleft()
            if closing:
                break
            wait_s = beat_s - now_s if self._beating.is_set() else self._heartbeat_s
            silence.sleep(wait_s)
            if poller.poll(poll_ms(wait_s)):
                self._to_do.clear()
        self._alarm.end()
        socket.close(linger=int(linger_s * 1000))
        context.term()

    def _find(self, silence: Silence) -> str | None:
        """Where the master may be. Raises Orphaned if it is time to give up."""
        if silence.seconds > self._finder.patience_s:
            raise Orphaned(f"silent for {silence.seconds:.0f} s")
        found = self._finder.find()
        silence.stay_awake(time.monotonic())  # to ask a cluster that does not answer may take a minute
        return found

    def _connect(self, context: Context, endpoint: str) -> tuple[Socket, zmq.Poller]:
        """A new socket. It says once more what no master may have heard: to hear it twice does no harm."""
        socket = control_link(context, self._keys, endpoint)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._to_do.fd, zmq.POLLIN)
        for message in self._heard.unread:
            _offer(socket, message)
        return socket, poller

    def _receive(self, socket: Socket) -> bool:
        """Takes in what has come; whether that is anything."""
        heard = False
        while socket.poll(0):
            try:
                message = decode_from_master(socket.recv())
            except ProtocolError:
                continue
            heard = True
            if isinstance(message, Look):
                self.send(self._showing.stacks(message.number))
            if isinstance(message, Carry):
                self._carry(message.servers)
            elif not isinstance(message, Beat) or self._heard.is_new(message):
                self._inbox.put(message)
        if heard:
            self._heard.unread.clear()
        return heard


def checked(message: ToMaster) -> bytes:
    """The message as bytes. Raises ProtocolError, see ``MasterLink.send``."""
    kind = type(message).__name__
    try:
        check(message)
        return control_frame(message)
    except (ProtocolError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"{kind} cannot be told to the master: {error}") from error


def _offer(socket: Socket, message: bytes) -> bool:
    """Sends, unless a thousand messages wait already for a master who is not there."""
    try:
        socket.send(message, zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True
