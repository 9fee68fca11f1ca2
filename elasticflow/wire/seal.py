"""The seal of the data plane: a MAC on each header, by a key that both sides of a connection derived."""

from __future__ import annotations

import hashlib
import hmac

from elasticflow.errors import ProtocolError

MAC_BYTES = 16
NONCE_BYTES = 16


def mac_of(key: bytes, direction: bytes, counter: int, payload: bytes | memoryview) -> bytes:
    salt = counter.to_bytes(16, "little")
    return hashlib.blake2b(payload, digest_size=MAC_BYTES, key=key, salt=salt, person=direction).digest()


class Seal:
    """One end of an authenticated connection: seals headers that go out, opens those that come in.

    sent, received: how many of them.
    """

    def __init__(self, key: bytes, outgoing: bytes, incoming: bytes) -> None:
        self._key, self._outgoing, self._incoming = key, outgoing, incoming
        self.sent = self.received = 0

    def close(self, payload: bytes) -> bytes:
        """The payload with its MAC."""
        self.sent += 1
        return payload + mac_of(self._key, self._outgoing, self.sent, payload)

    def open(self, sealed: memoryview) -> memoryview:
        """The payload. Raises ProtocolError if it is not the next one from the other end."""
        payload, mac = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        if not hmac.compare_digest(mac, mac_of(self._key, self._incoming, self.received + 1, payload)):
            raise ProtocolError("a message whose seal does not fit")
        self.received += 1
        return payload


def session_key(data_key: bytes, hello: bytes, welcome: bytes) -> bytes:
    return hashlib.blake2b(hello + welcome, digest_size=32, key=data_key).digest()
