"""The master's connections: members by name, however they come and go, and clients that wait for news."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable

import msgspec
import zmq

from elasticflow.master.journal import Journal
from elasticflow.run.telling import Status
from elasticflow.wire.control import ControlListener
from elasticflow.wire.keys import MasterKeys
from elasticflow.wire.messages import Answer, FromMaster
from elasticflow.wire.sockets import Context, poll_ms

SESSION_BITS = 48
"""The number of a master's first session is drawn from so many: one that went by what the master before wrote
down would be another's, too, where a storage had refused that, or another still wrote."""
MOST_WATCHERS = 1000
"""Clients that wait for news at the same time."""


class Connections:
    """news: how much there was to tell so far."""

    def __init__(self, listener: ControlListener, host: str, *, adopts: bool) -> None:
        self.listener, self._adopts = listener, adopts
        self.endpoint = f"tcp://{host}:{listener.port}"
        self.news = 0
        self._routes: dict[str, bytes] = {}
        self._session = secrets.randbits(SESSION_BITS)
        self._sessions: dict[str, int] = {}
        """By member: a number that changes with the master, and with the member's connection."""
        self._watchers: list[tuple[bytes, int]] = []

    def meet(self, name: str, route: bytes) -> bool:
        """A member is heard. Whether that is over another connection than before, or by another master.

        Then it is to be told again what may have got lost, and that counts as another session.
        """
        if self._routes.get(name) == route:
            return False
        self._routes[name] = route
        again = self._adopts or name in self._sessions
        self._session += 1
        self._sessions[name] = self._session
        return again

    def session(self, name: str) -> int:
        """Of a member that was met."""
        return self._sessions[name]

    def has(self, name: str) -> bool:
        """Whether there is a way to this member."""
        return name in self._routes

    def lost(self) -> list[str]:
        """Members whose connections have closed since this was asked."""
        closed = set(self.listener.closed())
        names = [name for name, route in self._routes.items() if route in closed]
        for name in names:
            del self._routes[name]
        return names

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to receive, or somebody is lost."""
        poller = zmq.Poller()
        for source in (self.listener.socket, self.listener.monitor):
            poller.register(source, zmq.POLLIN)
        poller.poll(poll_ms(timeout_s))

    def send(self, route: bytes, message: FromMaster) -> None:
        """To whoever has asked."""
        self.listener.send(route, message)

    def tell(self, name: str, message: FromMaster) -> None:
        """To a member, if there is a way to it: else it is told once it is heard again."""
        if name in self._routes:
            self.send(self._routes[name], message)

    def tell_all(self, message: FromMaster) -> None:
        """To every member that there is a way to."""
        for name in self._routes:
            self.tell(name, message)

    def watch(self, route: bytes, newer_than: int) -> None:
        """A client waits for more news than it has."""
        self._watchers = [*self._watchers[-MOST_WATCHERS:], (route, newer_than)]

    def answer_watchers(self, status: Callable[[], Status], *, all_: bool) -> None:
        """Answers those for whom there is news, with one status for all of them."""
        due = [route for route, seen in self._watchers if seen < self.news or all_]
        if due:
            answer = Answer(status={**msgspec.to_builtins(status()), "news": self.news})
            for route in due:
                self.send(route, answer)
            self._watchers = [(route, seen) for route, seen in self._watchers if route not in due]

    def counters(self) -> dict[str, int]:
        """Of messages that were malformed, and of connections that were refused."""
        return {"dropped": self.listener.dropped, "refused": self.listener.refused}


def listen(
    context: Context, keys: MasterKeys, host: str, port: int, before: Journal | None
) -> ControlListener:
    """At the port of the master before this one, where there was one: its members look for it there."""
    if before:
        with contextlib.suppress(zmq.ZMQError):
            return ControlListener(context, keys, host, before.port)
        port = 0  # somebody has taken it: the members find another one in RUN/master.json
    return ControlListener(context, keys, host, port)
