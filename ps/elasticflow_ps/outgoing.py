"""A worker's pushes: each parcel leaves as soon as all that it carries is final."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from elasticflow.step.layout import Array, Layout, Rule, Vector
from elasticflow.step.rows import Rows, blocks
from elasticflow.step.schedule import Kind, Work
from elasticflow.wire.messages import Push
from elasticflow.wire.sending import Tracker
from elasticflow.worker.strategy import Outgoing
from elasticflow_ps.compression import Compression
from elasticflow_ps.parcels import Parcel, Span
from elasticflow_ps.remote import Remote
from elasticflow_ps.watch import checks_of


class Route(NamedTuple):
    """Where a parcel goes. needs: so many parameters' gradients make it final; None: something else does."""

    remote: Remote
    parcel: Parcel
    needs: int | None


class Routes:
    """Those of all parcels, and which of them each parameter lies in, by its number in the layout."""

    def __init__(self, layout: Layout, remotes: Sequence[Remote]) -> None:
        self.all: list[Route] = []
        self.of_parameter: list[list[int]] = [[] for _ in layout.of_rule(Rule.UPDATE)]
        regions: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for number, entry in enumerate(layout.of_rule(Rule.UPDATE)):
            group, start, stop = layout.region(entry)
            regions[group].append((stop, start, number))
        for remote in remotes:
            for parcel in remote.parcels:
                inside = {number for span in parcel.spans for number in _inside(regions[span.group], span)}
                for number in inside:
                    self.of_parameter[number].append(len(self.all))
                only = all(span.rule is Rule.UPDATE for span in parcel.spans)
                self.all.append(Route(remote, parcel, len(inside) or None if only else None))


def _inside(regions: Sequence[tuple[int, int, int]], span: Span) -> Iterator[int]:
    """Of a group's regions, (stop, start, number) in order, the numbers of those that overlap the span."""
    for stop, start, number in regions[bisect_right(regions, (span.start, span.stop, 0)) :]:
        if start >= span.stop:
            return
        if stop > span.start:
            yield number


class _NodeSum:
    """The sum over a node's slices, which ``parts`` make up, as it is made of one parcel after the other."""

    def __init__(self, work: Work, parts: Sequence[Vector], compression: Compression) -> None:
        self._work, self._parts, self._compression = work, parts, compression
        self._rows: dict[int, Rows] = {}
        """Of the tables of which something was made."""

    def of(self, parcel: Parcel) -> list[Array]:
        """What is pushed of a parcel: the sum is made in the first part. To be called once for each."""
        if not self._parts:
            return []
        if parcel.table is not None:
            return self._rows_of(parcel.table, parcel) if self._work.kind is Kind.TRAIN else []
        spans = parcel.pushed(self._work.kind, self._work.epoch, self._work.stage)
        *lefts, last = self._parts
        arrays = [span.view(last) for span in spans]
        # From the right, as the tree adds: of slices 0..1, 2 and 3 the last two first.
        for left in reversed(lefts):
            self._compression.round(spans, arrays)
            sums = [span.view(left) for span in spans]
            for span, mine, other in zip(spans, sums, arrays, strict=True):
                if span.rule is not Rule.FIRST:
                    np.add(mine, other, out=mine)
            arrays = sums
        return [self._compression.pushed(span, array) for span, array in zip(spans, arrays, strict=True)]

    def _rows_of(self, table: int, parcel: Parcel) -> list[Array]:
        """Keys and gradients of rows, in blocks."""
        if table not in self._rows:
            from_right = [part.rows[table] for part in reversed(self._parts)]
            self._rows[table] = reduce(lambda right, left: left.plus(right), from_right)
        rows = self._rows[table].of(parcel.buckets.start, parcel.buckets.stop)
        cut = blocks(*rows.values.shape)
        return [array for block in cut for array in (rows.keys[block], rows.values[block])]


class Pushing(Outgoing):
    """The push of one node's sum, which ``parts`` make up: see ``Strategy.begin``.

    template: what all its messages say. block: the number of that in which ``parts[0]`` lies, -1: none that
    can be lent. asks: each server for the next version, with the first message to it. sent: told, at the end,
    what of ``parts[0]`` may still be on its way, and whether any of it is read where it lies. compression: of
    what leaves. work: the tick.
    """

    def __init__(
        self,
        routes: Routes,
        work: Work,
        template: Push,
        parts: Sequence[Vector],
        *,
        block: int,
        asks: bool,
        sent: Callable[[list[Tracker], bool], None],
        compression: Compression | None = None,
    ) -> None:
        self.begun = False
        self._routes, self._template = routes, template
        self._sum = _NodeSum(work, parts, compression or Compression())
        self._block, self._asks, self._sent = block, asks, sent
        self._missing = [route.needs for route in routes.all]
        self._unsent = Counter(route.remote.name for route in routes.all)
        self._asked: set[str] = set()
        self._trackers: list[Tracker] = []
        self._lent = False
        self._error: Exception | None = None

    def ready(self, number: int) -> None:
        self.begun = True
        try:
            for place in self._routes.of_parameter[number]:
                missing = self._missing[place]
                if missing is not None:
                    self._missing[place] = missing - 1
                    if missing == 1:
                        self._send(self._routes.all[place])
                        self._routes.all[place].remote.link.flush()
        except Exception as error:  # noqa: BLE001  (not one of the program whose backward pass this is in)
            self._error = error

    def finish(self, slice_s: float) -> None:
        if self._error:
            raise self._error
        self._template = replace(self._template, slice_s=slice_s)
        for route, missing in zip(self._routes.all, self._missing, strict=True):
            if missing != 0:
                self._send(route)
        self._sent(self._trackers, self._lent)

    def _send(self, route: Route) -> None:
        remote, parcel = route.remote, route.parcel
        arrays = self._sum.of(parcel)
        lends = bool(arrays) and parcel.table is None and self._block in remote.mapped
        self._lent |= lends
        push = replace(
            self._template,
            parcel=parcel.number,
            pull=self._asks and remote.name not in self._asked,
            more=self._unsent[remote.name] > 1,
            base=remote.bases.get(route.parcel.number, 0),
            lent=self._block if lends else -1,
            checks=checks_of(arrays, self._template.tick),
        )
        self._asked.add(remote.name)
        self._unsent[remote.name] -= 1
        lent_bytes = sum(array.nbytes for array in arrays) if lends else 0
        if tracker := remote.link.put(push, [] if lends else arrays, lent_bytes):
            self._trackers.append(tracker)
        if not self._unsent[remote.name]:
            remote.link.flush()  # while what goes to the next server is still added up
