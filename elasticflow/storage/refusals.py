"""What WebHDFS and the network below it say when something fails, as errors of the operating system."""

from __future__ import annotations

import errno
import http.client
import json
import socket

_ERRORS = {
    "FileNotFoundException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "AccessControlException": errno.EACCES,
    "SecurityException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "InvalidToken": errno.EACCES,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "PathIsNotEmptyDirectoryException": errno.ENOTEMPTY,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "QuotaByStorageTypeExceededException": errno.EDQUOT,
    "InvalidPathException": errno.EINVAL,
    "IllegalArgumentException": errno.EINVAL,
    "UnsupportedOperationException": errno.ENOTSUP,
    "ChecksumException": errno.EIO,
}
"""What is told at once. All else may pass: nothing follows from it for what lies there."""
_WORDS = (
    ("(is not a directory)", errno.ENOTDIR),
    ("Path is not a file", errno.EISDIR),
    ("must both be directories", errno.EEXIST),
    ("out of the range", errno.ESPIPE),
)
"""What only the text tells, under the name of some other error. ESPIPE: the file ends before that byte."""

NO_DATANODE = "No active nodes contain this block"
NO_TICKET = (
    "it asks for Kerberos, and there is no ticket that is good: run kinit, or have KRB5_CLIENT_KTNAME name a "
    "keytab, by which tickets are fetched whenever one is needed"
)


class Passing(Exception):
    """A failure that may pass: ``error`` is told if it does not."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def refusal(status: int, body: bytes, path: str, who: str, user: str) -> OSError | Passing:
    """What an answer other than 2XX means. who: answered."""
    name, text = (f"HTTP {status}", NO_TICKET) if status == 401 else _remote(status, body)
    code = errno.EACCES if status == 401 else _ERRORS.get(name)
    code = next((number for words, number in _WORDS if words in text), code)
    if code == errno.EACCES:
        who += f", as user {user}"
    if NO_DATANODE in text:
        text += ": the DataNodes that have it are away"
    if code is None:
        return Passing(OSError(errno.EAGAIN, f"{name}: {text} ({who})", path))
    return OSError(code, f"{text} ({who})", path)


def reason(error: BaseException) -> tuple[int, str]:
    """Number and words of a failure of the network."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, TimeoutError) or "Timeout" in type(below).__name__:
            return errno.ETIMEDOUT, "gives no answer"
        if isinstance(below, socket.gaierror):
            return errno.EHOSTUNREACH, "there is no host of that name"
        if isinstance(below, OSError) and below.errno and below.strerror:
            return below.errno, below.strerror
        # Each library wraps the errors of the one below in a way of its own.
        inner = (getattr(below, "reason", None), *below.args, below.__cause__, below.__context__)
        below = next((one for one in inner if isinstance(one, BaseException)), None)
    return errno.ECONNRESET, "hung up"


def _remote(status: int, body: bytes) -> tuple[str, str]:
    """Name, and first line of the text, of the exception in an answer."""
    try:
        told = json.loads(body)["RemoteException"]
        return str(told["exception"]), str(told["message"]).split("\n")[0]
    except (ValueError, LookupError, TypeError):
        words = body[:200].decode(errors="replace").strip().split("\n")[0]
        return f"HTTP {status}", words or http.client.responses.get(status, "no reason given")
