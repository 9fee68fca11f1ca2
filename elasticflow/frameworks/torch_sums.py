"""What a PyTorch replica makes of a slice, on its way into the sum over several, on the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch

from elasticflow.frameworks.devices import Device, Pair
from elasticflow.step.layout import Entry, Layout, Rule, Vector

BUCKET_BYTES = 4 << 20
"""Gradients leave a device in pieces of at least so many bytes: a copy of that length is at full speed."""


class Twin(NamedTuple):
    """What ``compute`` makes of a slice, in the memory of the device: that of a vector itself, or beside it.

    groups: the vector's. gradients: of each parameter. means, firsts: groups of buffers. report: cost and
    metrics. totals: of a loop of the program's own.
    """

    groups: list[torch.Tensor]
    gradients: list[torch.Tensor]
    means: list[torch.Tensor]
    firsts: list[torch.Tensor]
    report: torch.Tensor
    totals: list[torch.Tensor]


Tensors: TypeAlias = list[torch.Tensor] | tuple[torch.Tensor, ...]
Buffers: TypeAlias = tuple[Tensors, Tensors]
"""Weighted changes of MEAN ones, values of FIRST ones; by group."""


class Into:
    """A slice's values on their way into the sum over it and those to its left.

    terms: the sums to its left, nearest last. target: where their sum with the slice's is put: that of one
    term at most, if it is the same. ready: see ``compute``. trained: numbers of the parameters that
    are; None: all are. taken: parameters whose gradients are there.
    """

    def __init__(
        self,
        terms: list[Twin],
        target: Twin,
        ready: Callable[[int], None] | None,
        trained: Collection[int] | None = None,
    ) -> None:
        self._terms, self._target, self._ready, self._trained = terms, target, ready, trained
        self.taken: set[int] = set()

    def tell(self, number: int, gradient: torch.Tensor) -> None:
        """Gradient of a parameter, as soon as it is final."""
        assert self._ready
        self.taken.add(number)
        self._put(lambda twin: twin.gradients[number : number + 1], [gradient])
        self._ready(number)

    def put_rest(
        self,
        gradients: Sequence[torch.Tensor | None],
        cost: torch.Tensor,
        buffers_change: Callable[[], Buffers],
    ) -> None:
        """All that is not there yet. gradients: of all parameters. cost: a scalar."""
        trained = range(len(gradients)) if self._trained is None else sorted(self._trained)
        rest = [number for number in trained if number not in self.taken]
        targets = [self._target.gradients[number] for number in rest]
        values = [gradients[number] for number in rest]
        whole = [torch.zeros_like(t) if v is None else v for v, t in zip(values, targets, strict=True)]
        self._put(lambda twin: [twin.gradients[number] for number in rest], whole)
        changes, counters = buffers_change()
        self._put(lambda twin: twin.means, changes)
        if not self._terms:
            copy(self._target.firsts, counters)
        elif self._terms[0] is not self._target:
            copy(self._target.firsts, self._terms[0].firsts)
        report = torch.zeros_like(self._target.report)
        report[0] = cost
        self._put(lambda twin: [twin.report], [report])

    def put_totals(self, numbers: Sequence[int], values: Tensors) -> None:
        """numbers: of those that the slice gives."""
        self._put(lambda twin: [twin.totals[number] for number in numbers], values)

    def finish(self) -> None:
        """All is there once this returns."""

    def _put(self, of: Callable[[Twin], list[torch.Tensor]], values: Tensors) -> None:
        if not values:
            return
        for term in reversed(self._terms):
            if term is self._target:
                torch._foreach_add_(of(term), values)
                return
            values = torch._foreach_add(of(term), values)
        copy(of(self._target), values)


class LeavingInto(Into):
    """From a device of its own, in buckets, each as soon as all gradients in it are there.

    to: the vector whose memory gets it. target: none of the terms, which an error leaves as they were.
    """

    def __init__(
        self,
        terms: list[Twin],
        target: Twin,
        ready: Callable[[int], None] | None,
        device: Device,
        buckets: Sequence[Bucket],
        to: Vector,
        trained: Collection[int] | None,
    ) -> None:
        super().__init__(terms, target, ready, trained)
        self._device, self._buckets, self._to = device, buckets, to
        self._bucket_of = {number: bucket for bucket in buckets for number in bucket.numbers}
        self._told: dict[int, torch.Tensor] = {}
        device.pin(to)

    def tell(self, number: int, gradient: torch.Tensor) -> None:
        bucket = self._bucket_of[number]
        self._told[number] = gradient
        if any(each not in self._told for each in bucket.numbers):
            return
        self.taken.update(bucket.numbers)
        gradients = [self._told.pop(each) for each in bucket.numbers]
        numbers = slice(bucket.numbers.start, bucket.numbers.stop)
        self._device.launch(lambda: self._put(lambda twin: twin.gradients[numbers], gradients))
        self._device.download([self._pair(bucket)], partial(self._say, bucket.numbers))

    def _say(self, numbers: Iterable[int]) -> None:
        assert self._ready
        for number in numbers:
            self._ready(number)

    def _pair(self, bucket: Bucket) -> Pair:
        part = slice(bucket.start, bucket.stop)
        return self._to.groups[bucket.group][part], self._target.groups[bucket.group][part]

    def finish(self) -> None:
        pairs = [self._pair(bucket) for bucket in self._buckets if bucket.numbers.start not in self.taken]
        rules = (group.rule for group in self._to.layout.groups)
        others = zip(rules, self._to.groups, self._target.groups, strict=True)
        pairs += [
            (target, source)
            for rule, target, source in others
            if rule not in (Rule.UPDATE, Rule.MEASURE, Rule.BATCH, Rule.KEPT)
        ]
        self._device.download(pairs, nothing)
        self._device.wait()


class Twins:
    """The twins of vectors, each made once; and on a device of its own what leaves it."""

    def __init__(self, device: Device, layout: Layout) -> None:
        self._device, self._layout = device, layout
        self.trained: Collection[int] | None = None
        """Numbers of the parameters that get gradients; None: all do."""
        self._known: WeakKeyDictionary[Vector, Twin] = WeakKeyDictionary()
        self._leaving: Twin | None = None
        """What ``ready`` is told of, until it is in a vector."""
        self._buckets = list(buckets_of(layout)) if device.apart else []

    def of(self, vector: Vector) -> Twin:
        known = self._known.get(vector)
        if known is None:
            known = self._known[vector] = self._made(vector)
        return known

    def _made(self, vector: Vector) -> Twin:
        groups, layout = self._device.groups_of(vector), self._layout
        (report,) = layout.of_rule(Rule.REPORT)
        return Twin(
            groups,
            [view(layout, groups, entry) for entry in layout.of_rule(Rule.UPDATE)],
            of_rule(layout, groups, Rule.MEAN),
            of_rule(layout, groups, Rule.FIRST),
            view(layout, groups, report),
            [view(layout, groups, entry) for entry in layout.of_rule(Rule.TOTAL)],
        )

    def into(
        self, out: Vector, lefts: Sequence[Vector], onto: bool, ready: Callable[[int], None] | None
    ) -> Into:
        """See ``compute``."""
        twin = self.of(out)
        terms = [*(self.of(left) for left in lefts), *([twin] if onto else [])]
        if not self._device.apart or not (ready or lefts):
            return Into(terms, twin, ready, self.trained)
        to = lefts[0] if lefts else out
        if self._leaving is None:
            self._leaving = self._made(to)
        trained = self.trained
        buckets = [each for each in self._buckets if trained is None or each.numbers.start in trained]
        return LeavingInto(terms, self._leaving, ready, self._device, buckets, to, trained)


def of_rule(layout: Layout, groups: Sequence[torch.Tensor], rule: Rule) -> list[torch.Tensor]:
    """Those of a layout's groups that follow a rule."""
    return [tensor for tensor, group in zip(groups, layout.groups, strict=True) if group.rule is rule]


def view(layout: Layout, groups: Sequence[torch.Tensor], entry: Entry) -> torch.Tensor:
    """A tensor in its own shape."""
    group, start, stop = layout.region(entry)
    return groups[group][start:stop].view(entry.shape)


def copy(targets: Tensors, sources: Tensors) -> None:
    if targets:
        torch._foreach_copy_(targets, sources)


def add(left: Twin, right: Twin, trained: Sequence[int]) -> None:
    """left := the sum of both. trained: numbers of the parameters that are."""
    for mine, other in (
        ([left.gradients[number] for number in trained], [right.gradients[number] for number in trained]),
        (left.means, right.means),
        ([left.report], [right.report]),
        (left.totals, right.totals),
    ):
        if mine:
            torch._foreach_add_(mine, other)


def nothing() -> None:
    pass


class Bucket(NamedTuple):
    """Parameters that lie next to each other, and leave the device together.

    numbers: theirs. group, start, stop: where they lie.
    """

    numbers: range
    group: int
    start: int
    stop: int


def buckets_of(layout: Layout) -> Iterator[Bucket]:
    """Of at least ``BUCKET_BYTES``, or what is left of a group."""
    entries = layout.of_rule(Rule.UPDATE)
    first = 0
    for number, entry in enumerate(entries):
        group, start, _ = layout.region(entries[first])
        _, _, stop = layout.region(entry)
        is_last = number + 1 == len(entries) or layout.region(entries[number + 1])[0] != group
        if is_last or (stop - start) * np.dtype(entry.dtype).itemsize >= BUCKET_BYTES:
            yield Bucket(range(first, number + 1), group, start, stop)
            first = number + 1
