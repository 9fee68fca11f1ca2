"""The delegation token in Hadoop's file of a container's credentials, as WebHDFS wants it.

YARN writes the file and names it in HADOOP_TOKEN_FILE_LOCATION: ``HDTS``, a byte for the format (0: Hadoop's
Writables, 1: protocol buffers, length first), then tokens and secrets. A token is an identifier, a
password, its kind and the service that it is for. WebHDFS takes it as ``delegation=``: these four as a
Writable, in base64 for URLs, without padding.
"""

from __future__ import annotations

import base64
import io
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from elasticflow.errors import ConfigError

MAGIC = b"HDTS"
KINDS = ("WEBHDFS delegation", "SWEBHDFS delegation", "HDFS_DELEGATION_TOKEN")
"""Those that a NameNode takes over HTTP: the last becomes the first by itself."""
_ALIAS, _TOKEN = 1, 2
_IDENTIFIER, _PASSWORD, _KIND, _SERVICE = 1, 2, 3, 4


class Token(NamedTuple):
    """One token. kind: such as ``HDFS_DELEGATION_TOKEN``. service: ``ip:port`` or ``ha-hdfs:name``."""

    identifier: bytes
    password: bytes
    kind: str
    service: str

    def encoded(self) -> str:
        """As Hadoop's ``Token.encodeToUrlString``."""
        fields = (self.identifier, self.password, self.kind.encode(), self.service.encode())
        writable = b"".join(_vint(len(field)) + field for field in fields)
        return base64.urlsafe_b64encode(writable).rstrip(b"=").decode()


def delegation_token(file: str, authority: str) -> str:
    """The encoded token for a cluster of HDFS out of a container's file; "": there is none.

    authority: ``host:port`` or the name service. Raises ConfigError if the file is unreadable or damaged.
    """
    if not file:
        return ""
    try:
        tokens = [token for token in read_tokens(Path(file).read_bytes()) if token.kind in KINDS]
    except (OSError, ValueError) as error:
        raise ConfigError(f"HADOOP_TOKEN_FILE_LOCATION={file}: cannot be read: {error}.") from error
    services = _services(authority)
    fitting = [token for token in tokens if token.service.endswith(f"hdfs:{authority}")]
    fitting += [token for token in tokens if token.service.split(":")[0] in services]
    if len(tokens) == 1:
        fitting += tokens  # it was asked for under some other name of the host
    return fitting[0].encoded() if fitting else ""


def read_tokens(data: bytes) -> list[Token]:
    """The tokens of a file of credentials. Raises ValueError if it is none, or damaged."""
    file = io.BytesIO(data)
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError(f"does not begin with {MAGIC.decode()}")
    version = file.read(1)
    if version == b"\0":
        return [_read_writable(file) for _ in range(_read_vint(file))]
    if version == b"\1":
        message = _exactly(file, _read_varint(file))
        return [_read_protocol(entry) for number, entry in _fields(message) if number == 1]
    raise ValueError(f"format {version.hex() or 'missing'}, known are 00 and 01")


def _services(authority: str) -> set[str]:
    """Names and addresses by which a token may name the host."""
    host = authority.rpartition(":")[0] or authority
    found = {host}
    with suppress(OSError):
        found.add(socket.gethostbyname(host))
    return found


# --- Writables -----------------------------------------------------------------------------------


def _read_writable(file: io.BytesIO) -> Token:
    _, identifier, password, kind, service = (_exactly(file, _read_vint(file)) for _ in range(5))
    return Token(identifier, password, kind.decode(), service.decode())


def _read_vint(file: io.BytesIO) -> int:
    """As Hadoop's ``WritableUtils.readVInt``, of lengths: -113..-120 tell that 1..8 bytes follow."""
    first = int.from_bytes(_exactly(file, 1), "big", signed=True)
    if first >= 0:
        return first
    if not -120 <= first <= -113:
        raise ValueError(f"a length begins with {first}")
    return int.from_bytes(_exactly(file, -112 - first), "big")


def _vint(number: int) -> bytes:
    if number <= 127:
        return bytes([number])
    length = (number.bit_length() + 7) // 8
    return (-112 - length).to_bytes(1, "big", signed=True) + number.to_bytes(length, "big")


# --- protocol buffers ----------------------------------------------------------------------------


def _read_protocol(entry: bytes) -> Token:
    inner = dict(_fields(dict(_fields(entry)).get(_TOKEN, b"")))
    texts = [inner.get(number, b"") for number in (_IDENTIFIER, _PASSWORD, _KIND, _SERVICE)]
    return Token(texts[0], texts[1], texts[2].decode(), texts[3].decode())


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each field; these messages have no others than of bytes."""
    file = io.BytesIO(message)
    while file.tell() < len(message):
        tag = _read_varint(file)
        if tag & 7 != 2:
            raise ValueError(f"a field of wire type {tag & 7}")
        yield tag >> 3, _exactly(file, _read_varint(file))


def _read_varint(file: io.BytesIO) -> int:
    number = shift = 0
    while True:
        byte = _exactly(file, 1)[0]
        number |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return number


def _exactly(file: io.BytesIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) != length:
        raise ValueError(f"ends {length - len(data)} bytes early")
    return data
