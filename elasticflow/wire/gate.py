"""Who may connect at all: ZeroMQ asks the process itself, before the first message."""

from __future__ import annotations

import hmac
import sys
from typing import NamedTuple

import zmq
from zmq.utils import z85

from elasticflow.process.guard import guarded_thread
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.sockets import Context, Socket

ZAP = "inproc://zeromq.zap.01"
DOMAIN = b"elasticflow"
USER = b"member"
MOST_SAID = 100
"""Anybody may claim any number of names; so many of them go to the log."""
_said: set[str] = set()
MOST_DIGITS = 15
"""Of a generation's number."""


class Visitor(NamedTuple):
    """Who a stranger says to be, and in which generation."""

    name: str
    generation: int


def say_once(text: str) -> None:
    """To this process's log. May be called by any thread."""
    if text not in _said and len(_said) < MOST_SAID:
        _said.add(text)
        print(f"warning: {text}", file=sys.stderr, flush=True)


class Gate:
    """Tells ZeroMQ which connections to a context's sockets may be made (ZAP, ZeroMQ RFC 27).

    Python's own (``zmq.auth``) would do, but writes passwords to its log and loads asyncio.
    """

    def __init__(self, context: Context, keys: MemberKeys) -> None:
        self._context, self._keys = context, keys
        self._socket: Socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(ZAP)
        self._thread = guarded_thread(self._run, "gate")
        self._thread.start()

    def _run(self) -> None:
        try:
            while request := self._socket.recv_multipart():
                if len(request) < 6:
                    break  # stop()
                self._socket.send_multipart(self._answer(request))
            self._socket.send(b"")
        except zmq.ZMQError:
            pass  # the context has ended before the gate
        self._socket.close()

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, domain, address, _, mechanism, *given = request
        visitor = _visitor(given[0]) if mechanism == b"PLAIN" and len(given) == 2 else None
        right = self._right(mechanism, visitor)
        fits = domain == DOMAIN and bool(right and given) and hmac.compare_digest(given[-1], right)
        if visitor and not fits:
            where = address.decode(errors="replace")
            say_once(f"somebody at {where} says to be {visitor.name}, and has not its key: refused")
        status = [b"200", b"OK"] if fits else [b"400", b"not a member of this job"]
        return [version, number, *status, USER if fits else b"", b""]

    def _right(self, mechanism: bytes, visitor: Visitor | None) -> bytes:
        """The password, or public key, that would let this one in; "": none would."""
        if mechanism == b"CURVE":
            return z85.decode(self._keys.member_public)
        return self._keys.pass_for(*visitor).password if visitor else b""

    def stop(self) -> None:
        """Nobody gets in any more; who is in, is."""
        with self._context.socket(zmq.REQ) as socket:
            socket.connect(ZAP)
            socket.send(b"")
            socket.recv()
        self._thread.join()


def admit_only_members(context: Context, keys: MemberKeys) -> Gate:
    """Opens the gate of a context, one for all its listeners, to members alone. Stop it after use.

    Before the first listener: those whom it cannot ask it refuses, and who is refused does not come back.
    """
    return Gate(context, keys)


def _visitor(user: bytes) -> Visitor | None:
    """Who says to come: see ``Pass.user``. None: nobody whom there could be."""
    try:
        name, _, generation = user.decode().partition(" ")
    except UnicodeDecodeError:
        return None
    if not name.isprintable() or not generation.isdecimal() or len(generation) > MOST_DIGITS:
        return None
    return Visitor(name, int(generation))
