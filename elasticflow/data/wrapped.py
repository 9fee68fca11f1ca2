"""Sources made of another, ``inner``: what they leave as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elasticflow.data.permutation import Rows
from elasticflow.data.source import Array, Order, Source
from elasticflow.errors import DataError


class Wrapping(Source):
    """Records keep their numbers, and lie in the blocks and files in which they are there.

    makes_slices: it makes those of a slice together, so it must stand outermost.
    """

    inner: Source
    makes_slices = False

    def wrap(self, spec: Any) -> None:
        """Makes this one of another. Raises DataError if that cannot be."""
        from elasticflow.data.opening import one_source

        kind = type(self).__name__
        self.inner = one_source(kind, spec)
        check_inner(kind, self.inner)
        self.files = self.inner.files
        self.block_starts, self.window_blocks = self.inner.block_starts, self.inner.window_blocks

    def held(self) -> Iterator[tuple[str, Array]]:
        return self.inner.held()

    def prefetch(self, numbers: Rows) -> None:
        self.inner.prefetch(numbers)


class Following(Wrapping):
    """Records come in the order of those of ``inner``, and as often."""

    @property
    def epoch_records(self) -> int:
        return self.inner.epoch_records

    def shuffle(self, seed: int) -> Order:
        return self.inner.shuffle(seed)


def check_inner(kind: str, source: Source) -> None:
    """Raises DataError if a source makes slices, not records."""
    inner = source
    while isinstance(inner, Wrapping):
        if inner.makes_slices:
            raise DataError(
                f"{kind}: its source is a Collate, which makes slices of records, and so must stand "
                f"outermost."
            )
        inner = inner.inner
