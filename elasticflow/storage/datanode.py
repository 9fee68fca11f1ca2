"""The bytes of files, from and to a DataNode: each range, each new file over a connection of its own."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

from elasticflow.storage.refusals import Passing, reason, refusal

PIECE_BYTES = 1 << 20
"""The most that is sent at once: the longest silence is counted for each piece anew."""
_SMALL_BYTES = 1 << 16
"""What is shorter is gathered before it is sent."""


class DataNode:
    """A DataNode, as the NameNode named it for one transfer of the file at ``path``.

    location: the URL. Failures that may pass are raised as Passing, all others as OSError.
    """

    def __init__(self, location: str, path: str, user: str, connect_s: float, data_s: float) -> None:
        self._url, self._path, self._user = urlsplit(location), path, user
        self._connect_s, self._data_s = connect_s, data_s
        self.name = f"DataNode {self._url.netloc}"

    @property
    def address(self) -> str:
        """By which a NameNode knows it, if it is to choose another."""
        host = self._url.hostname or ""
        with suppress(OSError):
            return socket.gethostbyname(host)
        return host

    def read(self) -> Reading:
        """Begins to read the range that the location names."""
        with self.telling():
            connection = self._connect()
            with _closing_on_error(connection):
                connection.request("GET", self._target)
                response = connection.getresponse()
                if response.status != 200:
                    raise self.refusal(response)
                if response.length is None:
                    raise OSError(errno.EPROTO, f"tells no length ({self.name})", self._path)
                return Reading(self, connection, response)

    def write(self) -> Writing:
        """Begins to write the file that the location names."""
        with self.telling():
            connection = self._connect()
            with _closing_on_error(connection):
                connection.putrequest("PUT", self._target, skip_accept_encoding=True)
                connection.putheader("Content-Type", "application/octet-stream")
                connection.putheader("Transfer-Encoding", "chunked")
                connection.endheaders()
                return Writing(self, connection)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Turns what the network says into what is told of this DataNode."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.filename:
                raise  # told already
            code, words = reason(error)
            raise Passing(OSError(code, f"{words} ({self.name})", self._path)) from error

    def refusal(self, response: http.client.HTTPResponse) -> OSError | Passing:
        """What its answer means."""
        return refusal(response.status, response.read(), self._path, self.name, self._user)

    def _connect(self) -> http.client.HTTPConnection:
        kind: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        options: dict[str, Any] = {}
        if self._url.scheme == "https":
            kind = http.client.HTTPSConnection
            options["context"] = ssl.create_default_context(cafile=certificates() or None)
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._connect_s, **options)
        connection.connect()
        connection.sock.settimeout(self._data_s)
        return connection

    @property
    def _target(self) -> str:
        return quote(f"{self._url.path}?{self._url.query}", safe=string.punctuation)  # of any script


class Reading:
    """The bytes of a range as they come. Raises Passing. left: how many are to come."""

    def __init__(
        self, node: DataNode, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self.node, self._connection, self._response = node, connection, response
        self.left = response.length or 0

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Whatever is still to come is not waited for."""
        self._response.close()
        self._connection.close()

    def readinto(self, buffer: memoryview) -> int:
        """At least one byte, unless none are left."""
        with self.node.telling():
            num_bytes = self._response.readinto(buffer[: self.left])
            if not num_bytes and self.left and buffer:
                raise ConnectionResetError(errno.ECONNRESET, f"ends {self.left} bytes early")
        self.left -= num_bytes
        return num_bytes


class Writing:
    """A file on its way: ``write`` from front to back. Raises OSError.

    failure: what ended it that may pass, if anything did. num_bytes: written so far.
    """

    def __init__(self, node: DataNode, connection: http.client.HTTPConnection) -> None:
        self._node, self._connection = node, connection
        self._gathered = bytearray()
        self._is_finished = False
        self.num_bytes = 0
        self.failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Takes all bytes of a buffer; what is large is sent without a copy."""
        view = memoryview(data).cast("B")
        if len(self._gathered) + len(view) <= _SMALL_BYTES:
            self._gathered += view
        else:
            self._flush()
            for start in range(0, len(view), PIECE_BYTES):
                self._send(view[start : start + PIECE_BYTES])
        self.num_bytes += len(view)
        return len(view)

    def finish(self) -> None:
        """Ends the file, and waits until the DataNodes have it."""
        self._flush()
        with self._telling():
            self._connection.send(b"0\r\n\r\n")
            response = self._connection.getresponse()
            if response.status != 201:
                raise self._node.refusal(response)
        self._is_finished = True

    def close(self) -> None:
        """A file that is not finished is cut off; when this returns, the DataNode does no more to it."""
        with suppress(OSError):
            if self._connection.sock and not self._is_finished:
                self._connection.sock.settimeout(self._node._connect_s)
                self._connection.sock.shutdown(socket.SHUT_WR)
                while self._connection.sock.recv(PIECE_BYTES):
                    pass  # it may be about to create the file still
        self._connection.close()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._send(memoryview(gathered))

    def _send(self, view: memoryview) -> None:
        """One chunk."""
        with self._telling():
            self._connection.send(b"%x\r\n" % len(view))
            self._connection.send(view)
            self._connection.send(b"\r\n")

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            with self._node.telling():
                yield
        except Passing as passing:
            cause = passing.__cause__
            said = (self._last_words() if cause else None) or passing
            if isinstance(said, Passing):
                self.failure = said.error
            raise said if isinstance(said, OSError) else said.error from cause

    def _last_words(self) -> OSError | Passing | None:
        """What the DataNode said, if anything, before it hung up."""
        with suppress(OSError, http.client.HTTPException):
            if self._connection.sock is not None:
                self._connection.sock.settimeout(self._node._connect_s)
                response = self._connection.getresponse()
                return self._node.refusal(response) if response.status >= 400 else None
        return None


@contextmanager
def _closing_on_error(connection: http.client.HTTPConnection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def certificates() -> str:
    """File of those who are believed on https; "": for the system to say."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or ""
