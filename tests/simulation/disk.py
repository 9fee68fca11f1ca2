"""The storage's moments: acts that take their time, fail for a while, and are good moments to die in.

The files themselves are real ones, in memory.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from elasticflow.checkpoint import hdf5
from elasticflow.step.layout import Array, Chunk

from .threads import Hub

HEAD_BYTES = 64


def lay_out(file: Any, chunks: Iterable[tuple[Chunk, Mapping[str, Array]]]) -> list[hdf5._ChunkPlace]:
    """One array after the other: all that counts of HDF5, which takes longer than all else in a history."""
    places, start = [], HEAD_BYTES
    for chunk, named in chunks:
        for name, array in named.items():
            places.append(hdf5._ChunkPlace(start, chunk.number, name, array))
            start += array.nbytes
    file.length = start
    return places


class Disk:
    """write_s: how long a file takes at most.

    fails_s: until then nothing can be written; nor read, if it is ``dark``. failed: it ever did.
    """

    def __init__(self, hub: Hub, write_s: float) -> None:
        self._hub, self._write_s = hub, write_s
        self.fails_s = 0.0
        self.dark = self.failed = False
        self._names: dict[str, set[str]] = {}
        """By folder: what is named there, and not durable yet."""
        self._durable: set[int] = set()

    def fail(self, seconds: float, *, dark: bool) -> None:
        self.fails_s, self.dark, self.failed = self._hub.now_s + seconds, dark, True

    def named(self, path: str) -> None:
        """There is a new name. A cut of the power takes it back, until its folder is durable."""
        self._names.setdefault(os.path.dirname(path), set()).add(path)

    def written(self, fd: int) -> None:
        """All bytes of a file are durable."""
        self._durable.add(os.fstat(fd).st_ino)

    def folder_written(self, folder: str) -> None:
        """All names in a folder are durable."""
        self._names.pop(folder, None)

    def lose_power(self) -> None:
        """What is not durable is there, or not."""
        for path in [path for paths in self._names.values() for path in sorted(paths)]:
            if self._hub.rng.random() < 0.5 and os.path.lexists(path):
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            elif os.path.isfile(path) and os.stat(path).st_ino not in self._durable:
                os.truncate(path, 0)
        self._names.clear()

    def write(self) -> None:
        """A file is made durable."""
        self._hub.sleep(self._hub.rng.random() * self._write_s)
        self._check()

    def act(self, what: str) -> None:
        """An act that others see."""
        self._hub.point()
        self._check()

    def look(self) -> None:
        """Somebody reads."""
        self._hub.point()
        if self.dark:
            self._check()

    def _check(self) -> None:
        if self._hub.running and self._hub.now_s < self.fails_s:
            raise OSError(errno.ENOSPC, "no space left on device")
