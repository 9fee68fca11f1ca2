"""One error for all that can go wrong below: whoever restores catches CheckpointError alone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from elasticflow.errors import CheckpointError
from elasticflow.process.retry import RemovedError

# What storage, h5py (which knows no errors of its own), NumPy and msgspec raise.
_LOWER = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RuntimeError,  # RecursionError is one
    EOFError,
    MemoryError,
    msgspec.MsgspecError,
)
_UNREACHABLE = {
    errno.ESTALE, errno.ENODEV, errno.ENXIO, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET,
    errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN,
}  # fmt: skip


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Turns the errors of lower layers into a CheckpointError that names ``place``: a file, a chunk."""
    try:
        yield
    except CheckpointError:
        raise
    except _LOWER as error:
        # Not the file's name, which is another at each try: the same trouble has the same words.
        words = error.strerror if isinstance(error, OSError) and error.strerror else error
        kind = "" if isinstance(error, RemovedError) else f"{type(error).__name__}: "
        raise CheckpointError(f"{place}: {kind}{words}") from error


@contextmanager
def noting(problems: list[str]) -> Iterator[None]:
    """Adds a CheckpointError's text to ``problems``: damage.

    Raises it if the storage could not be asked, since nothing follows for what lies there.
    """
    try:
        yield
    except CheckpointError as error:
        cause = error.__cause__
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in _UNREACHABLE):
            raise
        problems.append(str(error))
