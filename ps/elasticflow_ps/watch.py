"""The promise, watched while a run goes on: what one process has sent is what the other one uses.

Who lends gradients or a version notes a checksum of them as the loan begins, and it travels in the header,
which is authenticated. Who uses them compares right then: a server when it adds up a sum, a worker once a
version is in its state. So memory that was written too early, on either side or in between, ends the run
with a ``BrokenError`` and not with another model.

Of large arrays a sample is compared: ``WINDOWS`` pieces of each, evenly spread, which move with the version.
So what is overwritten, or torn, is seen at once, and a single bit in its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from elasticflow.errors import BrokenError, ProtocolError
from elasticflow.process import poison
from elasticflow.step.layout import Array
from elasticflow_ps import native
from elasticflow_ps.parcels import Span

WINDOWS, TURNS = 16, 64
"""Of each array so many pieces are compared, in so many turns all of it, as far as they are no smaller and no
larger than these: some 5 us on either side."""
LEAST_BYTES, MOST_BYTES = 512, 4096
MASK = (1 << 52) - 1
"""Whole numbers in messages are below 2^53."""

Checks = tuple[int, ...]
"""A checksum for each array; empty: these are not watched."""


def checksum(data: Array | memoryview, turn: int) -> int:
    """52 bits that follow from the bytes of a sample, all of them over many turns (XXH3). data: contiguous.

    In poison mode, and of small arrays, the sample is all there is.
    """
    if data.nbytes < WINDOWS * (LEAST_BYTES + 1):
        return xxhash.xxh3_64_intdigest(data) & MASK  # type: ignore[arg-type]
    flat = np.frombuffer(data, np.uint8)
    stride = flat.size // WINDOWS
    size = min(max(stride // TURNS, LEAST_BYTES), MOST_BYTES)
    if stride <= size or poison.ON:
        return xxhash.xxh3_64_intdigest(flat) & MASK  # type: ignore[arg-type]
    first = min(turn % -(-stride // size) * size, stride - size)
    sample = xxhash.xxh3_64(native.windows_of(flat, first, stride, size, WINDOWS))  # type: ignore[arg-type]
    sample.update(flat[WINDOWS * stride :])  # type: ignore[arg-type]
    return sample.intdigest() & MASK


def checks_of(arrays: Sequence[Array | memoryview], turn: int) -> Checks:
    return tuple(checksum(array, turn) for array in arrays)


class Watched(NamedTuple):
    """What ``checks_of`` said of arrays as they were lent. what: they and their owner, in words."""

    checks: Checks
    turn: int
    what: Callable[[], str]

    def compare(self, arrays: Sequence[Array | memoryview], spans: Sequence[Span], user: str) -> None:
        """Raises BrokenError if arrays are not what was lent. user: who uses them."""
        if not self.checks:
            return
        if len(self.checks) != len(arrays):
            raise ProtocolError(f"{len(self.checks)} checksums of {len(arrays)} arrays")
        pairs = zip(checks_of(arrays, self.turn), self.checks, strict=True)
        wrong = [number for number, (found, right) in enumerate(pairs) if found != right]
        if wrong:
            numbers = [chunk.number for place in wrong for chunk in (spans[place].chunks if spans else ())]
            chunks = f", chunk {', '.join(map(str, numbers))}" if numbers else ""
            raise BrokenError(
                f"{self.what()}{chunks}: {user} has got other bits than those that were lent. Memory was "
                "written before its time, or fails. Nobody knows since when: do not trust the checkpoints of "
                "this run, begin it anew, and tell the authors if it comes again on other machines."
            )
