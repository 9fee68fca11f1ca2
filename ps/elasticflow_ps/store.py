"""The arrays of a parameter server: two versions of its chunks, and the optimizer's slots.

A version is immutable: an update writes into fresh or recycled arrays, never into those that may
still be on their way to a slow worker or into a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from elasticflow.errors import ProtocolError
from elasticflow.layout import Array, Chunk, Rule, aligned_empty
from elasticflow_ps.optimizers import Kernel, clip_scale, squared_norm
from elasticflow_ps.parcels import Parcel, Span

Snapshot = list[tuple[Chunk, dict[str, Array]]]


@dataclass
class Sum:
    """The sum over some slices of what is pushed of a parcel: one array a span, and its rule."""

    arrays: list[Array]
    rules: list[Rule]

    def plus(self, right: Sum) -> Sum:
        """The sum of this, the left sibling, and the right one. Uses up both."""
        for mine, other, rule in zip(self.arrays, right.arrays, self.rules, strict=True):
            if rule is not Rule.FIRST:
                np.add(mine, other, out=mine)
        return self


class Tracker(Protocol):
    """ZeroMQ's word on whether memory that was sent without a copy is free again."""

    @property
    def done(self) -> bool: ...


@dataclass
class _Slab:
    """One span of one version. It is recycled once nothing sends or saves it any more."""

    array: Array
    trackers: list[Tracker] = field(default_factory=list)
    saving: int = 0

    @property
    def free(self) -> bool:
        return not self.saving and all(tracker.done for tracker in self.trackers)


class Store:
    """The spans of a server's parcels. ``kernel`` updates those of parameters."""

    def __init__(self, parcels: Sequence[Parcel], kernel: Kernel) -> None:
        self._parcels = parcels
        self._kernel = kernel
        self._versions: dict[int, dict[int, _Slab]] = {}
        self._slots: dict[int, dict[str, Array]] = {}
        self._retired: list[_Slab] = []
        for span in self._spans():
            if span.rule is Rule.UPDATE:
                self._slots[span.number] = kernel.new_slots(_empty(span))

    def _spans(self) -> Iterator[Span]:
        return (span for parcel in self._parcels for span in parcel.state)

    def _new_slab(self, span: Span) -> _Slab:
        for place, slab in enumerate(self._retired):
            if slab.array.nbytes == span.num_bytes and slab.array.dtype == span.dtype and slab.free:
                del self._retired[place]
                return _Slab(slab.array)
        return _Slab(_empty(span))

    def parse(self, spans: Sequence[Span], frames: Sequence[memoryview]) -> Sum:
        """Frames of a message as arrays. Raises ProtocolError if they are not those of ``spans``."""
        if [frame.nbytes for frame in frames] != [span.num_bytes for span in spans]:
            found, right = [frame.nbytes for frame in frames], [span.num_bytes for span in spans]
            raise ProtocolError(f"arrays of {found} bytes, where {right} belong")
        arrays: list[Array] = [
            np.frombuffer(frame, span.dtype) for span, frame in zip(spans, frames, strict=True)
        ]
        return Sum(arrays, [span.rule for span in spans])

    # --- versions --------------------------------------------------------------------------------

    def initialise(self, version: int, parcel: Parcel, values: Sequence[Array]) -> None:
        """Takes a parcel's values of the first version."""
        slabs = self._versions.setdefault(version, {})
        for span, value in zip(parcel.state, values, strict=True):
            slabs[span.number] = slab = self._new_slab(span)
            np.copyto(slab.array, value)

    def restore(self, version: int, read: Callable[[int], dict[str, Array]]) -> None:
        """Takes values and slots as a checkpoint holds them; ``read`` gives a chunk's by its number."""
        slabs = self._versions.setdefault(version, {})
        for span in self._spans():
            slabs[span.number] = slab = self._new_slab(span)
            targets = {"value": slab.array, **self._slots.get(span.number, {})}
            for chunk in span.chunks:
                saved = read(chunk.number)
                for name, target in targets.items():
                    np.copyto(span.piece(target, chunk), saved[name])

    def arrays(self, version: int, parcel: Parcel) -> list[Array]:
        """A parcel of a version; not to be written to."""
        slabs = self._versions[version]
        return [slabs[span.number].array for span in parcel.state]

    def track(self, version: int, parcel: Parcel, tracker: Tracker | None) -> None:
        """Notes that a parcel's arrays are being sent until ``tracker`` is done."""
        if tracker is not None:
            for span in parcel.state:
                self._versions[version][span.number].trackers.append(tracker)

    def retire(self, below: int) -> None:
        """Lets go of all versions before ``below``."""
        old = [self._versions.pop(version) for version in sorted(self._versions) if version < below]
        kept = {id(slab) for slabs in self._versions.values() for slab in slabs.values()}
        gone = {id(slab): slab for slabs in old for slab in slabs.values() if id(slab) not in kept}
        self._retired += gone.values()

    def carry(self, version: int, parcel: Parcel) -> None:
        """Makes the parcel's next version the same as this one."""
        slabs = self._versions[version]
        after = self._versions.setdefault(version + 1, {})
        after.update({span.number: slabs[span.number] for span in parcel.state})

    def apply(self, version: int, parcel: Parcel, root: Sum, *, lr: float, update: int, scale: float) -> None:
        """Makes the parcel's next version from the sum over all slices of a step."""
        slabs = self._versions[version]
        after = self._versions.setdefault(version + 1, {})
        for span, total in zip(parcel.spans, root.arrays, strict=True):
            if span.rule is Rule.REPORT:
                continue
            old = slabs[span.number].array
            after[span.number] = slab = self._new_slab(span)
            if span.rule is Rule.UPDATE:
                slots = self._slots[span.number]
                self._kernel.apply(old, total, slots, slab.array, lr=lr, update=update, grad_scale=scale)
            elif span.rule is Rule.MEAN:
                np.add(old, total, out=slab.array)
            else:
                np.copyto(slab.array, total)

    def norms(self, parcel: Parcel, root: Sum | None) -> list[tuple[int, float]]:
        """(chunk number, squared norm of the gradient) of a parcel's parameters."""
        if root is None:
            return []
        return [
            (chunk.number, squared_norm(span.piece(total, chunk)))
            for span, total in zip(parcel.spans, root.arrays, strict=True)
            if span.rule is Rule.UPDATE
            for chunk in span.chunks
        ]

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot(self, version: int) -> tuple[Snapshot, list[_Slab]]:
        """A version as it is to be saved: slots copied, values held until ``release``."""
        slabs = self._versions[version]
        saved: Snapshot = []
        for span in self._spans():
            slots = {name: slot.copy() for name, slot in self._slots.get(span.number, {}).items()}
            arrays = {"value": slabs[span.number].array, **slots}
            for chunk in span.chunks:
                saved.append((chunk, {name: span.piece(array, chunk) for name, array in arrays.items()}))
        held = list(slabs.values())
        for slab in held:
            slab.saving += 1
        return saved, held

    @staticmethod
    def release(held: Iterable[_Slab]) -> None:
        """A snapshot has been written."""
        for slab in held:
            slab.saving -= 1

    @property
    def num_bytes(self) -> int:
        """Bytes of all versions, slots and arrays kept for reuse."""
        live = {id(s): s.array.nbytes for slabs in self._versions.values() for s in slabs.values()}
        slots = sum(slot.nbytes for slots in self._slots.values() for slot in slots.values())
        return sum(live.values()) + slots + sum(slab.array.nbytes for slab in self._retired)


def _empty(span: Span) -> Array:
    return aligned_empty(span.num_bytes).view(span.dtype)


def scale_for(norm: float | None, clip_norm: float | None) -> float:
    """What gradients are multiplied with: 1, or less where their norm is clipped."""
    return 1.0 if norm is None or clip_norm is None else clip_scale(norm, clip_norm)
