"""Messages on the data plane that go to the same end at the same time travel as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from elasticflow.step.layout import Array
from elasticflow.wire.sending import Tracker

BUNDLE_BYTES = 256 << 10
"""What tells of so many bytes leaves at once: the other end has enough to do with them meanwhile."""
MESSAGE_BYTES = 256
"""For which each message counts besides, so that those without arrays are not collected without end."""

M = TypeVar("M")
Parts = Sequence[tuple[M, Sequence[Array]]]
"""Messages, each with its arrays."""


class _Departure:
    """A ``Tracker`` of what has not left yet."""

    __slots__ = ("left", "tracker")

    def __init__(self) -> None:
        self.left = False
        self.tracker: Tracker | None = None

    @property
    def done(self) -> bool:
        return self.left and (self.tracker is None or self.tracker.done)


class Outbox(Generic[M]):
    """What goes to one end of a connection next. send: sends it as one, see ``send_frames``."""

    __slots__ = ("_departure", "_num_bytes", "_parts", "_send")

    def __init__(self, send: Callable[[Parts[M]], Tracker | None]) -> None:
        self._send = send
        self._empty()

    def _empty(self) -> None:
        self._parts: list[tuple[M, Sequence[Array]]] = []
        self._num_bytes, self._departure = 0, _Departure()

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, message: M, arrays: Sequence[Array] = (), lent_bytes: int = 0) -> Tracker | None:
        """Adds a message, which leaves with the next ``flush``, or now if there is much.

        lent_bytes: of arrays that it tells of, besides. Returns what is done once the memory of ``arrays`` is
        free again; None: it is already.
        """
        self._parts.append((message, arrays))
        self._num_bytes += MESSAGE_BYTES + lent_bytes + sum(array.nbytes for array in arrays)
        if self._num_bytes >= BUNDLE_BYTES:
            return self.flush()
        return self._departure if arrays else None

    def flush(self) -> Tracker | None:
        """All leave. Returns what is done once the memory of their arrays is free; None: it is already."""
        if not self._parts:
            return None
        parts, departure = self._parts, self._departure
        self._empty()
        departure.tracker = self._send(parts)
        departure.left = True
        return departure.tracker
