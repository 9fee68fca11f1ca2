"""Space that is kept in a run's folder for what must be written though its file system is full.

A report without which a run seems to have been killed, and a journal without which the next master knows
nothing, are small; what fills a disk are checkpoints, or others. On HDFS there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from elasticflow.process.retry import is_full
from elasticflow.run.folder import RunPath

RESERVE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_NAME = ".reserve"


def keep(folder: RunPath) -> None:
    """Makes the reserve, or what is missing of it, as far as there is room."""
    path = folder / _NAME
    if not isinstance(path, Path):
        return
    piece = hashlib.shake_128(_NAME.encode()).digest(_PIECE_BYTES)  # some file systems store zeros as nothing
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.tell() < RESERVE_BYTES and file.write(piece):
            pass


def spend(folder: RunPath, write: Callable[[], None]) -> None:
    """Writes, if need be by what is kept, of which so much as can be is kept again. Raises OSError."""
    try:
        write()
    except OSError as error:
        path = folder / _NAME
        if not is_full(error) or not isinstance(path, Path) or not path.exists():
            raise
        path.write_bytes(b"")
        try:
            write()
        finally:
            keep(folder)


def give_up(folder: RunPath) -> None:
    """Nothing is to be written any more."""
    path = folder / _NAME
    if isinstance(path, Path):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
