"""One error for all that can go wrong below: whoever restores catches CheckpointError alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from elasticflow.errors import CheckpointError

# What storage, h5py (which knows no errors of its own), NumPy and msgspec raise.
_LOWER = (OSError, KeyError, ValueError, TypeError, RuntimeError, EOFError, msgspec.MsgspecError)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Turns the errors of lower layers into a CheckpointError that names ``place``: a file, a chunk."""
    try:
        yield
    except CheckpointError:
        raise
    except _LOWER as error:
        raise CheckpointError(f"{place}: {type(error).__name__}: {error}") from error
