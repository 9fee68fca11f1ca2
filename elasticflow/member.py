"""A worker's or server's line to its master: heartbeats out, orders in, in a thread of its own.

The thread is there so that a slice that takes a minute does not look like a dead process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

import zmq

from elasticflow.errors import ProtocolError
from elasticflow.keys import MemberKeys
from elasticflow.messages import Beat, FromMaster, Heartbeat, ToMaster, decode_from_master, encode
from elasticflow.transport import control_link, poll_ms

EXIT_ABANDONED = 75
"""Exit code of a member whose master has fallen silent."""


class MasterLink:
    """``wake_fd`` becomes readable whenever ``received`` may have something new.

    heartbeat: called in the link's thread for each Heartbeat. lost_s: without a word from the master
    for so long, ``abandoned`` is called, which by default ends the process: whoever cannot be
    reached must not live on as an orphan.
    """

    def __init__(
        self,
        keys: MemberKeys,
        endpoint: str,
        *,
        heartbeat: Callable[[], Heartbeat],
        heartbeat_s: float,
        lost_s: float,
        abandoned: Callable[[], None] = lambda: os._exit(EXIT_ABANDONED),
    ) -> None:
        self._heartbeat, self._heartbeat_s = heartbeat, heartbeat_s
        self._lost_s, self._abandoned = lost_s, abandoned
        self._outbox: deque[ToMaster] = deque()
        self._inbox: deque[FromMaster] = deque()
        self._send_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = False
        self._beating = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(keys, endpoint), daemon=True, name="master-link"
        )
        self._thread.start()

    def send(self, message: ToMaster) -> None:
        """Sends soon; never waits."""
        self._outbox.append(message)
        os.eventfd_write(self._send_fd, 1)

    def start_heartbeats(self) -> None:
        """From now on the master is told every ``heartbeat_s`` that this process lives."""
        self._beating.set()
        os.eventfd_write(self._send_fd, 1)

    def received(self) -> list[FromMaster]:
        """What has come from the master since the last call."""
        _clear(self.wake_fd)
        messages = []
        while self._inbox:
            messages.append(self._inbox.popleft())
        return messages

    def wait_for(self, kinds: tuple[type, ...]) -> FromMaster:
        """The next message of one of these kinds; others before it are dropped."""
        poller = zmq.Poller()
        poller.register(self.wake_fd, zmq.POLLIN)
        while True:
            poller.poll()
            _clear(self.wake_fd)
            while self._inbox:
                message = self._inbox.popleft()
                if isinstance(message, kinds):
                    return message

    def close(self) -> None:
        """Sends what is still to be sent, and ends the thread."""
        self._closing = True
        os.eventfd_write(self._send_fd, 1)
        self._thread.join(timeout=5)

    def _run(self, keys: MemberKeys, endpoint: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = control_link(context, keys, endpoint)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._send_fd, zmq.POLLIN)
        heard_s = beat_s = time.monotonic()
        while not self._closing or self._outbox:
            now_s = time.monotonic()
            if self._beating.is_set() and now_s >= beat_s:
                self._outbox.append(self._heartbeat())
                beat_s = now_s + self._heartbeat_s
            while self._outbox:
                socket.send(encode(self._outbox.popleft()))
            if self._closing:
                break
            wait_s = beat_s - now_s if self._beating.is_set() else self._heartbeat_s
            if poller.poll(poll_ms(wait_s)):
                _clear(self._send_fd)
                if self._receive(socket):
                    heard_s = time.monotonic()
            if time.monotonic() - heard_s > self._lost_s:
                self._abandoned()
                break
        socket.close()
        context.term()

    def _receive(self, socket: zmq.Socket[bytes]) -> bool:
        heard = False
        while socket.poll(0):
            try:
                message = decode_from_master(socket.recv())
            except ProtocolError:
                continue
            heard = True
            if not isinstance(message, Beat):
                self._inbox.append(message)
                os.eventfd_write(self.wake_fd, 1)
        return heard


def _clear(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        pass
