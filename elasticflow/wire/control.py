"""The control plane: the master and all who talk to it, encrypted, both sides authenticated."""

from __future__ import annotations

from collections.abc import Iterator

import zmq

from elasticflow.errors import ProtocolError
from elasticflow.process.texts import MOST_CHARS, all_sendable
from elasticflow.wire.keys import MasterKeys, MemberKeys
from elasticflow.wire.messages import FromMaster, ToMaster, decode_to_master, encode
from elasticflow.wire.numbers import BAD, check
from elasticflow.wire.router import Router
from elasticflow.wire.sockets import Context, Socket

CONTROL_BYTES = 64 << 20
"""The largest frame on the control plane."""


class ControlListener:
    """The master's end of the control plane: one ROUTER for all members and clients.

    The context must ``admit_only_members`` already. Raises zmq.ZMQError if the port is taken.
    ``dropped`` counts malformed messages, ``refused`` connections of strangers.
    """

    def __init__(self, context: Context, keys: MasterKeys, host: str, port: int) -> None:
        socket: Socket = context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_publickey = keys.member.master_public.encode()
        socket.curve_secretkey = keys.secret.encode()
        try:
            self._router = Router(socket, host, port, CONTROL_BYTES)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        self.socket, self.monitor, self.port = socket, self._router.monitor, self._router.port
        self.dropped = 0

    @property
    def refused(self) -> int:
        return self._router.refused

    def receive(self) -> Iterator[tuple[bytes, ToMaster]]:
        """What has come in, with the route to answer; does not wait."""
        for route, data, others in self._router.receive():
            try:
                if others:
                    raise ProtocolError("a control message is one frame")
                message = decode_to_master(data.bytes)
                check(message)
            except BAD:
                self.dropped += 1
            else:
                yield route, message

    def closed(self) -> Iterator[bytes]:
        """Routes whose connections have closed, and whose last word has been received."""
        return self._router.closed()

    def send(self, route: bytes, message: FromMaster) -> None:
        """Sends to a member or client; to one that has gone, nothing."""
        self._router.send(route, [control_frame(message)])

    def close(self, linger_ms: int = 1000) -> None:
        self._router.close(linger_ms)


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
    if len(frame) > CONTROL_BYTES:
        raise ProtocolError(
            f"a message of {len(frame):,} bytes ({type(message).__name__}) cannot be sent; at most "
            f"{CONTROL_BYTES:,} are allowed. Has the model millions of parameters with names of their own?"
        )
    return frame


def control_link(context: Context, keys: MemberKeys, endpoint: str) -> Socket:
    """A member's DEALER to the master at ``endpoint``. If the master goes, it is there for the next one."""
    socket: Socket = context.socket(zmq.DEALER)
    as_curve_client(socket, keys, keys.master_public)
    socket.maxmsgsize = CONTROL_BYTES
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 500
    socket.linger = 1000
    socket.connect(endpoint)
    return socket


def as_curve_client(socket: Socket, keys: MemberKeys, server_public: str) -> None:
    socket.curve_serverkey = server_public.encode()
    socket.curve_publickey = keys.member_public.encode()
    socket.curve_secretkey = keys.member_secret.encode()
