"""Who may connect at all: ZeroMQ asks the process itself, before the first message."""

from __future__ import annotations

import hmac

import zmq
from zmq.utils import z85

from elasticflow.process.guard import guarded_thread
from elasticflow.wire.keys import MemberKeys, data_password
from elasticflow.wire.sockets import Context, Socket

ZAP = "inproc://zeromq.zap.01"
DOMAIN = b"elasticflow"
USER = b"member"


class Gate:
    """Tells ZeroMQ which connections to a context's sockets may be made (ZAP, ZeroMQ RFC 27).

    Python's own (``zmq.auth``) would do, but writes passwords to its log and loads asyncio.
    """

    def __init__(self, context: Context, keys: MemberKeys) -> None:
        self._context = context
        self._credentials = {
            b"CURVE": [z85.decode(keys.member_public)],
            b"PLAIN": [USER, data_password(keys)],
        }
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
        version, number, domain, _, _, mechanism, *credentials = request
        right = self._credentials.get(mechanism, [])
        fits = domain == DOMAIN and len(right) == len(credentials) > 0
        fits = fits and all([hmac.compare_digest(*pair) for pair in zip(right, credentials, strict=True)])
        status = [b"200", b"OK"] if fits else [b"400", b"not a member of this job"]
        return [version, number, *status, USER if fits else b"", b""]

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
