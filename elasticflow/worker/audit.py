"""Every Nth slice is computed twice, by different workers if there are several, and compared by the master.

Whoever computes it first says what it pushes; after its own slices, the worker whose share comes next
computes it once more. So a GPU, a core or memory that gives other bits is found, if not at once: N decides
how soon, and a run takes 1/N longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from elasticflow.step.layout import Rule, Vector
from elasticflow.step.schedule import Kind, Work
from elasticflow.wire.messages import Share


class Audit:
    """every: ``audit``, of the settings; 0: nothing is computed twice. num_slices: of a step."""

    def __init__(self, every: int, num_slices: int) -> None:
        self._every, self._num_slices = every, num_slices

    def picks(self, work: Work, number: int) -> bool:
        """Whether this slice is to be computed twice. The same for whoever asks."""
        picked = self._every and (work.tick * self._num_slices + number) % self._every == 0
        return bool(picked) and work.kind is Kind.TRAIN

    def given_to(self, worker: str, work: Work, shares: Sequence[Share]) -> list[int]:
        """Those that this worker is to compute again: of the share before its own, all in a circle."""
        given: list[int] = []
        for place, share in enumerate(shares if self._every else ()):
            if shares[(place + 1) % len(shares)].worker == worker:
                given += [number for number in range(share.first, share.stop) if self.picks(work, number)]
        return given


def digest_of(work: Work, out: Vector) -> str:
    """64 bits that follow from what a slice of a tick gives (XXH3)."""
    hashed = xxhash.xxh3_64()
    entries = [entry for entry in out.layout.entries if entry.rule is not Rule.ROWS]
    pushed = {
        entry.name
        for entry in entries
        if out.layout.groups[out.layout.region(entry)[0]].is_pushed(work.kind, work.epoch, work.stage)
    }
    for entry in entries:
        if entry.name in pushed:
            hashed.update(out.tensors([entry])[0].data)
    for rows in out.rows:
        hashed.update(rows.keys.data)
        hashed.update(rows.values.data)
    return hashed.hexdigest()
