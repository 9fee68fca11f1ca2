"""The control plane: the master and all who talk to it, encrypted, both sides authenticated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import zmq

from elasticflow.errors import ProtocolError
from elasticflow.process.texts import MOST_CHARS, all_sendable, harmless
from elasticflow.wire.gate import MOST_SAID, say_once
from elasticflow.wire.keys import CLIENT, MasterKeys, MemberKeys, role_of
from elasticflow.wire.messages import SAID_BY, FromMaster, Join, ToMaster, decode_to_master, encode
from elasticflow.wire.numbers import BAD, check
from elasticflow.wire.router import Router
from elasticflow.wire.seal import MAC_BYTES, is_signed, signed
from elasticflow.wire.sockets import Context, Socket

CONTROL_BYTES = 64 << 20
"""The largest frame on the control plane."""
MOST_SUSPICION_CHARS = 200
"""Of what is said about an intruder, who may claim a name of any length."""


class ControlListener:
    """The master's end of the control plane: one ROUTER for all members and clients.

    The context must ``admit_only_members`` already. Raises zmq.ZMQError if the port is taken.
    ``dropped`` counts malformed messages and those in another's name, ``refused`` connections of strangers.
    suspect: told, once each, what was said in another's name, or by one whose part it is not.
    """

    def __init__(self, context: Context, keys: MasterKeys, host: str, port: int) -> None:
        socket: Socket = context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_publickey = keys.master_public.encode()
        socket.curve_secretkey = keys.master_secret.encode()
        try:
            self._router = Router(socket, host, port, CONTROL_BYTES)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        self.socket, self.monitor, self.port = socket, self._router.monitor, self._router.port
        self.dropped = 0
        self.suspect: Callable[[str], None] = say_once
        self._keys = keys
        self._names: dict[bytes, str] = {}
        """Who has proved to be at the other end, by route."""
        self._suspected: set[str] = set()

    @property
    def refused(self) -> int:
        return self._router.refused

    def receive(self) -> Iterator[tuple[bytes, ToMaster]]:
        """What has come in, with the route to answer; does not wait."""
        for route, data, others in self._router.receive():
            try:
                if others:
                    raise ProtocolError("a control message is one frame")
                message = self._opened(route, data.bytes)
                check(message)
            except BAD:
                self.dropped += 1
            else:
                yield route, message

    def closed(self) -> Iterator[bytes]:
        """Routes whose connections have closed, and whose last word has been received."""
        for route in self._router.closed():
            self._names.pop(route, None)
            yield route

    def _opened(self, route: bytes, frame: bytes) -> ToMaster:
        """A message by whom it says, and whose part it is to say that. Raises ProtocolError."""
        message = decode_to_master(frame[:-MAC_BYTES])
        name, kind = getattr(message, "name", CLIENT), type(message).__name__
        if self._names.get(route, name) != name or not is_signed(self._keys.of(name).own, frame):
            who = self._names.get(route, "somebody of this run")
            raise self._suspicion(f"{who} says {kind} in the name of {name}, and has not its key: dropped")
        self._names[route] = name
        role = role_of(name)
        if type(message) not in SAID_BY.get(role, ()) or isinstance(message, Join) and message.role != role:
            raise self._suspicion(f"{name} says {kind}, which is not its part: dropped")
        return message

    def _suspicion(self, text: str) -> ProtocolError:
        text = harmless(text[:MOST_SUSPICION_CHARS])
        if text not in self._suspected and len(self._suspected) < MOST_SAID:
            self._suspected.add(text)
            self.suspect(text)
        return ProtocolError(text)

    def send(self, route: bytes, message: FromMaster) -> None:
        """Sends to a member or client; to one that has gone, nothing."""
        self._router.send(route, [control_frame(message)])

    def close(self, linger_ms: int = 1000) -> None:
        self._router.close(linger_ms)


def signed_frame(keys: MemberKeys, message: ToMaster) -> bytes:
    """What a member or client tells the master, signed. Raises ProtocolError: see ``control_frame``."""
    return signed(keys.own, control_frame(message))


def control_frame(message: ToMaster | FromMaster) -> bytes:
    """A message as it goes over the control plane; its texts are made fit for that: ``process.texts``.

    Raises ProtocolError if it is too large all the same: who got such a frame would close the connection, and
    get it again over the next one.
    """
    try:
        frame = encode(message)
    except UnicodeEncodeError:
        frame = b""
    if not 0 < len(frame) <= MOST_CHARS:
        frame = encode(all_sendable(message))
    if len(frame) > CONTROL_BYTES - MAC_BYTES:
        raise ProtocolError(
            f"a message of {len(frame):,} bytes ({type(message).__name__}) cannot be sent; at most "
            f"{CONTROL_BYTES:,} are allowed. Has the model millions of parameters with names of their own?"
        )
    return frame


def control_link(context: Context, keys: MemberKeys, endpoint: str) -> Socket:
    """A member's DEALER to the master at ``endpoint``. If the master goes, it is there for the next one."""
    socket: Socket = context.socket(zmq.DEALER)
    socket.curve_serverkey = keys.master_public.encode()
    socket.curve_publickey = keys.member_public.encode()
    socket.curve_secretkey = keys.member_secret.encode()
    socket.maxmsgsize = CONTROL_BYTES
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 500
    socket.linger = 1000
    socket.connect(endpoint)
    return socket
