"""The seal of the data plane, by a key that both sides of a connection derived; and the one for the master.

Each header carries a MAC (BLAKE2b, 16 bytes) over its bytes, its direction and its place in the row of
messages. What else is guarded is AES-GCM's work: arrays can be authenticated too, or header and arrays
encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np

from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Array

MAC_BYTES = 16
NONCE_BYTES = 32
_NUM_BYTES = 4
_HEADER = 0xFFFFFFFF
"""The place of a header among the frames of its message."""


class Guard(str, Enum):
    """What of a message on the data plane is guarded."""

    HEADERS = "headers"
    """Headers cannot be forged; arrays could be read, and altered on the way."""
    ARRAYS = "arrays"
    """Nothing can be forged or altered; arrays can be read."""
    ALL = "all"
    """Nothing can be read, forged or altered."""

    @classmethod
    def between_hosts(cls, *, encrypt: bool, authenticate: bool) -> Guard:
        """By a run's settings."""
        return cls.ALL if encrypt else cls.ARRAYS if authenticate else cls.HEADERS


def mac_of(key: bytes, direction: bytes, counter: int, payload: bytes | memoryview) -> bytes:
    salt = counter.to_bytes(16, "little")
    return hashlib.blake2b(payload, digest_size=MAC_BYTES, key=key, salt=salt, person=direction).digest()


class Seal:
    """One end of an authenticated connection: seals messages that go out, opens those that come in.

    sent, received: how many of them.
    """

    def __init__(self, key: bytes, outgoing: bytes, incoming: bytes, guard: Guard = Guard.HEADERS) -> None:
        self._key, self._outgoing, self._incoming, self._guard = key, outgoing, incoming, guard
        self.sent = self.received = 0
        if guard is not Guard.HEADERS:
            self._closing, self._opening = (_cipher(key, way) for way in (outgoing, incoming))

    def close(self, payload: bytes, arrays: Sequence[Array] = ()) -> bytes:
        """The header. With ``Guard.ALL`` the arrays are what ``hidden`` makes of them."""
        self.sent += 1
        num = len(arrays).to_bytes(_NUM_BYTES, "little")
        if self._guard is Guard.ALL:
            return bytes(self._closing.encrypt(_nonce(self.sent, _HEADER), payload, num))
        if self._guard is Guard.ARRAYS:
            for place, array in enumerate(arrays):
                payload += self._closing.encrypt(_nonce(self.sent, place), b"", _bytes_of(array))
            payload += num
        return payload + mac_of(self._key, self._outgoing, self.sent, payload)

    def hidden(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """The arrays of the message that was closed last, as they are to be sent."""
        if self._guard is not Guard.ALL:
            return arrays
        encrypt = self._closing.encrypt
        texts = [encrypt(_nonce(self.sent, at), _bytes_of(array), None) for at, array in enumerate(arrays)]
        return [np.frombuffer(text, np.uint8) for text in texts]

    def open(self, sealed: memoryview, frames: list[memoryview] | None = None) -> memoryview:
        """The payload. ``frames`` are opened in their places.

        Raises ProtocolError if it is not the next one from the other end, or not as it was sent.
        """
        frames = [] if frames is None else frames
        if self._guard is Guard.ALL:
            payload = self._shown(sealed, frames)
        else:
            payload, mac = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
            if not hmac.compare_digest(mac, mac_of(self._key, self._incoming, self.received + 1, payload)):
                raise ProtocolError("a message whose seal does not fit")
            if self._guard is Guard.ARRAYS:
                payload = self._compared(payload, frames)
        self.received += 1
        return payload

    def _compared(self, payload: memoryview, frames: list[memoryview]) -> memoryview:
        if int.from_bytes(payload[-_NUM_BYTES:], "little") != len(frames):
            raise ProtocolError("not the arrays that were sent")
        at = len(payload) - _NUM_BYTES - MAC_BYTES * len(frames)
        for place, frame in enumerate(frames):
            tag = payload[at + MAC_BYTES * place : at + MAC_BYTES * (place + 1)]
            self._decrypt(tag, place, frame)
        return payload[:at]

    def _shown(self, sealed: memoryview, frames: list[memoryview]) -> memoryview:
        payload = memoryview(self._decrypt(sealed, _HEADER, len(frames).to_bytes(_NUM_BYTES, "little")))
        for place, frame in enumerate(frames):
            if len(frame) < MAC_BYTES:
                raise ProtocolError("an array without a seal")
            frames[place] = memoryview(self._decrypt(frame, place, None))
        return payload

    def _decrypt(self, data: memoryview, place: int, beside: Any) -> Any:
        """In memory of its own, which may be written."""
        from cryptography.exceptions import InvalidTag

        shown = np.empty(max(0, len(data) - MAC_BYTES), np.uint8)
        try:
            self._opening.decrypt_into(_nonce(self.received + 1, place), data, beside, shown)
        except InvalidTag as error:
            raise ProtocolError("a message whose seal does not fit") from error
        return shown


class Half:
    """One side's half of a connection's key: random bytes that the other side is told.

    secret: they are of an X25519 exchange, so that whoever learns the pass later cannot read what was said.
    """

    def __init__(self, pass_key: bytes, *, secret: bool) -> None:
        self._pass_key, self._private = pass_key, None
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        if secret:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

            self._private = X25519PrivateKey.generate()
            self.nonce = self._private.public_key().public_bytes_raw()

    def key(self, theirs: bytes, *, first: bool) -> bytes:
        """The connection's. theirs: the other side's nonce. first: this side has said Hello.

        Raises ValueError for a half of an exchange that is none.
        """
        shared = b""
        if self._private:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

            shared = self._private.exchange(X25519PublicKey.from_public_bytes(theirs))
        both = self.nonce + theirs if first else theirs + self.nonce
        return hashlib.blake2b(shared + both, digest_size=32, key=self._pass_key).digest()


def signed(key: bytes, payload: bytes) -> bytes:
    """What a member says to its master, with a MAC by the member's own key: see ``is_signed``."""
    return payload + mac_of(key, b"master", 0, payload)


def is_signed(key: bytes, frame: bytes) -> bool:
    """Whether whoever has this key has said it. That it is no replay the connection's encryption sees to."""
    return hmac.compare_digest(frame[-MAC_BYTES:], mac_of(key, b"master", 0, frame[:-MAC_BYTES]))


def _cipher(key: bytes, direction: bytes) -> Any:
    """One way's: no two frames of a key have the same nonce."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hashlib.blake2b(key=key, digest_size=16, person=direction).digest())


def _nonce(counter: int, place: int) -> bytes:
    return counter.to_bytes(8, "little") + place.to_bytes(4, "little")


def _bytes_of(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
