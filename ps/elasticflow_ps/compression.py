"""How gradients and parameters travel: as they are, rounded to bfloat16, or the largest elements alone.

Compressed are dense parameters of float32. All else travels as it is: buffers, cost and metrics, tables'
rows, parameters of other kinds, first values, and what servers send each other and store. So nothing is
rounded that an update goes on from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from elasticflow.errors import ProtocolError
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array, Rule, Vector
from elasticflow_ps import native
from elasticflow_ps.finite import all_finite
from elasticflow_ps.packing import Values, from_bfloat16, round_to_bfloat16, take_largest, to_bfloat16
from elasticflow_ps.parcels import Span
from elasticflow_ps.store import Sum, check_sizes


def is_compressed(rule: Rule, dtype: str) -> bool:
    """Whether there is anything to be gained by compressing what is of this rule and dtype."""
    return rule is Rule.UPDATE and dtype == "float32"


class Compression:
    """None: arrays travel as they are. A worker has one for each row of connections.

    lends: whether processes of one host may read them where they lie instead.
    packs_versions: whether ``packed`` makes something else of a version than what it is.
    rounding: see ``Strategy.rounding``.
    """

    lends, packs_versions = True, False
    rounding: Callable[[Vector], None] | None = None

    def round(self, spans: Sequence[Span], arrays: Sequence[Array]) -> None:
        """Rounds, in place, the sum over a node's slices before it is added to its sibling's."""

    def pushed_bytes(self, span: Span) -> int:
        """Bytes of what is pushed of a span."""
        return span.num_bytes

    def pushed(self, span: Span, array: Array) -> Array:
        """What is pushed of the sum over a node's slices."""
        return array

    def version_bytes(self, span: Span) -> int:
        """Bytes of what travels of a version's span."""
        return span.num_bytes

    def packed(self, span: Span, array: Array) -> Array:
        """What travels of a version's span."""
        return array

    def unpack(self, span: Span, array: Array, value: Array) -> None:
        """The reverse. array: as bytes. value: where to put it."""
        native.copy(value, array)

    def sum_of(self, spans: Sequence[Span], frames: Sequence[memoryview]) -> Sum:
        """What was pushed. Raises ProtocolError if the frames are not those of ``spans``."""
        check_sizes(frames, [self.pushed_bytes(span) for span in spans])
        arrays = [self._total(span, frame) for span, frame in zip(spans, frames, strict=True)]
        return Sum(arrays, spans)

    def _total(self, span: Span, frame: memoryview) -> Array:
        return np.frombuffer(frame, span.dtype)


class _RoundedSum(Sum):
    """The sum of two siblings is rounded, as on a worker."""

    def plus(self, right: Sum) -> Sum:
        super().plus(right)
        for array, span in zip(self.arrays, self.spans, strict=True):
            if is_compressed(span.rule, span.dtype):
                round_to_bfloat16(array)
        return self


class Bfloat16(Compression):
    """Half the bytes, both ways; servers update what has not been rounded.

    What is rounded follows from the tree over the slices, and not from who has to send it: the value of every
    node, of one slice or the sum of two siblings, by whoever makes it; and what workers compute with. So the
    same answer holds.
    """

    # What travels is made of what lies in memory, and cannot be read there.
    lends, packs_versions = False, True

    def __init__(self) -> None:
        self.rounding = self._round_vector

    def _round_vector(self, vector: Vector) -> None:
        for group, array in zip(vector.layout.groups, vector.groups, strict=True):
            if is_compressed(group.rule, group.dtype):
                round_to_bfloat16(array)

    def round(self, spans: Sequence[Span], arrays: Sequence[Array]) -> None:
        for span, array in zip(spans, arrays, strict=True):
            if is_compressed(span.rule, span.dtype):
                round_to_bfloat16(array)

    def version_bytes(self, span: Span) -> int:
        return span.num_bytes // 2 if is_compressed(span.rule, span.dtype) else span.num_bytes

    def packed(self, span: Span, array: Array) -> Array:
        return to_bfloat16(array) if is_compressed(span.rule, span.dtype) else array

    pushed_bytes, pushed = version_bytes, packed

    def unpack(self, span: Span, array: Array, value: Array) -> None:
        if is_compressed(span.rule, span.dtype):
            from_bfloat16(array.view(np.uint16), value)
        else:
            super().unpack(span, array, value)

    def sum_of(self, spans: Sequence[Span], frames: Sequence[memoryview]) -> Sum:
        total = super().sum_of(spans, frames)
        return _RoundedSum(total.arrays, total.spans)

    def _total(self, span: Span, frame: memoryview) -> Array:
        if not is_compressed(span.rule, span.dtype):
            return super()._total(span, frame)
        values = np.empty(len(span), np.float32)
        from_bfloat16(np.frombuffer(frame, np.uint16), values)
        return values


class TopK(Compression):
    """Of each span's gradient a ``share`` of the elements, those of the largest magnitude.

    A worker keeps the rest, its *residual*, and adds it to what it pushes next (Stich et al., "Sparsified SGD
    with Memory", NeurIPS 2018; Lin et al., "Deep Gradient Compression", ICLR 2018, without its corrections
    for momentum). So what is pushed depends on who computes, and the same answer does not hold.
    """

    lends = False

    def __init__(self, share: float) -> None:
        self._share = share
        self._residuals: dict[int, Values] = {}
        """By number of the span."""

    def _count(self, span: Span) -> int:
        return math.ceil(self._share * len(span))

    def pushed_bytes(self, span: Span) -> int:
        return 8 * self._count(span) if is_compressed(span.rule, span.dtype) else span.num_bytes

    def pushed(self, span: Span, array: Array) -> Array:
        """Where the elements lie, int32, and then what they are."""
        if not is_compressed(span.rule, span.dtype):
            return array
        if not all_finite(array):  # a residual of NaNs would be added to all that follows
            places = np.arange(self._count(span), dtype=np.int32)
            return np.concatenate([places.view(np.float32), np.full(len(places), np.nan, np.float32)])
        residual = self._residuals.setdefault(span.number, np.zeros(len(span), np.float32))
        np.add(residual, array, out=residual)
        indices, taken = take_largest(residual, self._count(span))
        return np.concatenate([indices.view(np.float32), taken])

    def _total(self, span: Span, frame: memoryview) -> Array:
        if not is_compressed(span.rule, span.dtype):
            return super()._total(span, frame)
        indices, taken = np.split(np.frombuffer(frame, np.float32), 2)
        places = indices.view(np.int32)
        if len(places) and not 0 <= places.min() <= places.max() < len(span):
            raise ProtocolError(f"an element that is none of {len(span)}")
        values = np.zeros(len(span), np.float32)
        values[places] = taken
        return values


def compression_of(settings: MemberSettings) -> Compression:
    """A new one, as the run's settings say."""
    if settings.compression == "bf16":
        return Bfloat16()
    return TopK(settings.top_k) if settings.compression == "top-k" else Compression()
