"""A file in HDFS that is read range by range."""

from __future__ import annotations

import errno
import io
from typing import TYPE_CHECKING, Any

from elasticflow.storage.datanode import Reading

if TYPE_CHECKING:
    from elasticflow.storage.webhdfs import WebHdfs

GAP_BYTES = 1 << 16
"""Up to here it is faster to read on than to ask anew."""
LEAST_BYTES, MOST_BYTES, GROWTH = 1 << 20, 1 << 28, 4
"""Of a range, and by how much the next is longer for whoever reads on."""


class Positioned(io.RawIOBase):
    """A remote file of ``num_bytes`` that is read from a position on."""

    def __init__(self, path: str, num_bytes: int) -> None:
        self._path, self._num_bytes = path, num_bytes
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "before the file's beginning", self._path)
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class RangeFile(Positioned):
    """Reads, and seeks in, the ``num_bytes`` of a file; longer and longer ranges, as a disk reads ahead.

    What fails is read again from where it stopped, as long as the owner's patience lasts. For one
    thread at a time.
    """

    def __init__(self, owner: WebHdfs, path: str, num_bytes: int) -> None:
        super().__init__(path, num_bytes)
        self._owner = owner
        self._reading: Reading | None = None
        self._at = -1
        """Position of the next byte that ``_reading`` has, or had."""
        self._range_bytes = LEAST_BYTES
        self._excluded = set[str]()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._num_bytes - self._position)]
        num_bytes = self._owner.retried(lambda: self._read(view)) if view else 0
        self._position += num_bytes
        return num_bytes

    def _read(self, view: memoryview) -> int:
        try:
            num_bytes = self._come_to(len(view)).readinto(view)
        except BaseException:
            self._drop(is_failed=True)
            raise
        self._at = self._position + num_bytes
        return num_bytes

    def _come_to(self, num_bytes: int) -> Reading:
        """What reads from the position on: the range that is open, if that is near, or a new one."""
        gap = self._position - self._at
        is_near = self._at >= 0 and 0 <= gap <= GAP_BYTES
        if self._reading and is_near and self._reading.left > gap:
            while gap:
                gap -= self._reading.readinto(memoryview(bytearray(gap)))
            return self._reading
        self._range_bytes = min(GROWTH * self._range_bytes, MOST_BYTES) if is_near else LEAST_BYTES
        self._drop()
        length = min(max(num_bytes, self._range_bytes), self._num_bytes - self._position)
        self._reading = self._owner.stream(self._path, self._position, length, self._excluded)
        return self._reading

    def _drop(self, is_failed: bool = False) -> None:
        if self._reading:
            self._reading.close()
            if is_failed:
                self._excluded.add(self._reading.node.address)
        self._reading = None

    def close(self) -> None:
        self._drop()
        super().close()
