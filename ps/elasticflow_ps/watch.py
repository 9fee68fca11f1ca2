"""The promise, watched while a run goes on: what one process has sent is what the other one uses.

Who lends gradients or a version notes a checksum of them as the loan begins, and it travels in the header,
which is authenticated. Who uses them compares right then: a server when it adds up a sum, a worker once a
version is in its state. So memory that was written too early, on either side or in between, ends the run
with a ``BrokenError`` and not with another model.

Which parcels are watched is a pure function of version and parcel: over some versions all of them, and in
each about ``WATCHED_BYTES`` of each server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

from elasticflow import poison
from elasticflow.errors import BrokenError, ProtocolError
from elasticflow.layout import Array
from elasticflow_ps.parcels import Parcel, Span

WATCHED_BYTES = 512 << 10
"""Of each server and version. At memory's speed this takes some 50 us, on both sides together."""
WATCHED_COPY_BYTES = 8 << 20
"""Of each copy that is kept for another server, of which there are few."""
MASK = (1 << 52) - 1
"""Whole numbers in messages are below 2^53."""

Checks = tuple[int, ...]
"""A checksum for each array; empty: these are not watched."""


def checksum(data: Array | memoryview) -> int:
    """52 bits that follow from bytes that lie one after the other (XXH3)."""
    return xxhash.xxh3_64_intdigest(data) & MASK  # type: ignore[arg-type]


def checks_of(arrays: Sequence[Array | memoryview]) -> Checks:
    return tuple(checksum(array) for array in arrays)


class Watch:
    """Tells which of ``num_parcels`` parcels of ``num_bytes`` together are watched."""

    def __init__(self, num_parcels: int, num_bytes: int, most_bytes: int = WATCHED_BYTES) -> None:
        self._num_parcels = num_parcels
        every = 1 if poison.ON else max(1, math.ceil(num_bytes / most_bytes))
        while math.gcd(every, num_parcels) > 1:  # or some would never have their turn
            every += 1
        self._every = every

    def watches(self, version: int, parcel: int) -> bool:
        """Whether this parcel of a version, or of what is pushed for it, is watched."""
        return (version * self._num_parcels + parcel) % self._every == 0


def watch_of(parcels: Sequence[Parcel]) -> Watch:
    """Of a server's parcels, as they are pushed and served. The same on both sides is not needed."""
    return Watch(len(parcels), sum(span.num_bytes for parcel in parcels for span in parcel.spans))


class Watched(NamedTuple):
    """What arrays were as they were lent. what: it and its owner, in words, for errors."""

    checks: Checks
    what: Callable[[], str]

    def compare(self, arrays: Sequence[Array | memoryview], spans: Sequence[Span], user: str) -> None:
        """Raises BrokenError if arrays are not what was lent. user: who uses them."""
        if not self.checks:
            return
        if len(self.checks) != len(arrays):
            raise ProtocolError(f"{len(self.checks)} checksums of {len(arrays)} arrays")
        pairs = zip(checks_of(arrays), self.checks, strict=True)
        wrong = [number for number, (found, right) in enumerate(pairs) if found != right]
        if wrong:
            numbers = [chunk.number for place in wrong for chunk in (spans[place].chunks if spans else ())]
            chunks = f", chunk {', '.join(map(str, numbers))}" if numbers else ""
            raise BrokenError(
                f"{self.what()}{chunks}: {user} has got other bits than those that were lent. Memory was "
                "written before its time, or fails. Nobody knows since when: do not trust the checkpoints of "
                "this run, begin it anew, and tell the authors if it comes again on other machines."
            )
