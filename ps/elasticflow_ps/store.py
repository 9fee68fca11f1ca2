"""The arrays of a parameter server: two versions of its chunks, and the optimizer's slots.

What is served, saved or held is immutable: an update writes into fresh or recycled arrays, never into
those that may still be on their way to somebody, or belong to a snapshot. So a snapshot copies nothing.
Slots, of which only the newest version is needed, are updated in place while nobody holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from elasticflow.checkpoint import RowFile
from elasticflow.errors import BrokenError, ProtocolError
from elasticflow.process import poison
from elasticflow.step.layout import PASSING, Array, Chunk, Rule
from elasticflow.step.rows import Rows
from elasticflow.training.freezing import begins_late
from elasticflow.wire.sending import Tracker
from elasticflow_ps.arena import Arena, ArenaPlace
from elasticflow_ps.finite import all_finite, are_numbers
from elasticflow_ps.kernel import AnyKernel, PerTensorKernel
from elasticflow_ps.norms import squared_norm
from elasticflow_ps.parcels import Parcel, Span
from elasticflow_ps.tables import Tables
from elasticflow_ps.watch import Checks, checksum


class Sum(msgspec.Struct, eq=False):
    """The sum over some slices of what is pushed of a parcel: one array a span."""

    arrays: list[Array]
    spans: Sequence[Span]
    compare: Callable[[], None] | None = None
    """Raises BrokenError if the arrays, which are lent, are not what they were then."""

    def use(self) -> None:
        """Right before the arrays are used up."""
        if self.compare:
            self.compare()
            self.compare = None

    def plus(self, right: Sum) -> Sum:
        """The sum of this, the left sibling, and the right one. Uses up both."""
        self.use()
        right.use()
        for mine, other, span in zip(self.arrays, right.arrays, self.spans, strict=True):
            if span.rule is not Rule.FIRST:
                np.add(mine, other, out=mine)
        return self


class Alone(NamedTuple):
    """Of a slice that is applied by itself: the next version is made bit by bit, from each as it comes.

    before: slices that were applied before it in this ``step``. share: of its step, so that buffers change by
    the mean of all slices' changes as ever; whole numbers are those of the first to come.
    """

    step: int
    before: int
    share: float


class _Slab(msgspec.Struct, eq=False):
    """A value or a slot of one span.

    live: the store may still need it. holds: snapshots that hold it. Without either it is recycled,
    once nothing sends or reads it any more. place: where it can be read by others, if they can.
    packed: what of it travels, once it has. check: (turn, checksum) of what travels, once it has.
    """

    array: Array
    place: ArenaPlace | None = None
    trackers: list[Tracker] = []
    live: bool = True
    holds: int = 0
    packed: Array | None = None
    check: tuple[int, int] | None = None

    @property
    def sent(self) -> bool:
        return all(tracker.done for tracker in self.trackers)

    def check_of(self, travels: Array, turn: int) -> int:
        """The checksum of what travels of it; that of all who ask in the same turn is worked out once."""
        if self.check is None or self.check[0] != turn:
            self.check = turn, checksum(travels, turn)
        return self.check[1]

    def look_back(self) -> None:
        """Raises BrokenError if what was lent was written meanwhile."""
        travelled = self.array if self.packed is None else self.packed
        before, self.check = self.check, None
        if before is not None and checksum(travelled, before[0]) != before[1]:
            raise BrokenError(f"{travelled.nbytes} bytes of a version were written while they were lent")

    @property
    def packed_bytes(self) -> int:
        """Of memory besides the array's own."""
        return 0 if self.packed is None or self.packed is self.array else self.packed.nbytes

    @property
    def may_change(self) -> bool:
        return not self.holds and self.sent


Slabs = dict[str, _Slab]
TensorNorm = tuple[int, int, float, float]
"""See ``Norms.tensors``."""
NO_TRUST: Mapping[int, float] = {}


class Snapshot:
    """Values and slots of a store at one version: they stay as they are until ``release``."""

    def __init__(self, store: Store, version: int, values: dict[int, _Slab], slots: dict[int, Slabs]) -> None:
        self.store, self.version = store, version
        self.values, self.slots = dict(values), {number: dict(slabs) for number, slabs in slots.items()}
        for slab in self.slabs():
            slab.holds += 1

    def slabs(self) -> list[_Slab]:
        """All that is held, each once."""
        return [*self.values.values(), *(slab for slabs in self.slots.values() for slab in slabs.values())]

    def _of(self, span: Span) -> Slabs:
        return {"value": self.values[span.number], **self.slots.get(span.number, {})}

    def _of_parcel(self, number: int) -> list[_Slab]:
        return [slab for span in self.store.parcels[number].state for slab in self._of(span).values()]

    def arrays(self, parcel: int) -> list[Array]:
        """What a copy of this parcel carries, see ``Parcel.copied``; not to be written to."""
        return [slab.array for slab in self._of_parcel(parcel)]

    def track(self, parcel: int, tracker: Tracker | None) -> None:
        """Notes that the parcel is being sent until ``tracker`` is done."""
        if tracker is not None:
            for slab in self._of_parcel(parcel):
                slab.trackers.append(tracker)

    def chunks(self) -> Iterator[tuple[Chunk, dict[str, Array]]]:
        """All chunks as a checkpoint holds them: ``value``, and the slots by name."""
        for span in _spans(self.store.parcels):
            slabs = self._of(span)
            for chunk in span.chunks if span.rule not in PASSING else ():
                yield chunk, {name: span.piece(slab.array, chunk) for name, slab in slabs.items()}

    def release(self) -> None:
        """Lets go of the arrays. To be called once."""
        for slab in self.slabs():
            slab.holds -= 1
            self.store.recycle(slab)


class Store:
    """The spans of a server's parcels, and its tables. ``kernels`` update the spans of parameters.

    It allocates what is needed at most at one time, ``num_bytes``, and keeps it. lends: in memory that
    can be lent. Tables are updated in place, and have a version of their own, see ``Table``.
    """

    def __init__(
        self,
        parcels: Sequence[Parcel],
        *kernels: AnyKernel,
        lends: bool = False,
        tables: Tables | None = None,
    ) -> None:
        self.parcels = tuple(parcels)
        self.tables: Tables = tables or {}
        self.chain: tuple[RowFile, ...] = ()
        """Where the tables' rows are stored, as of the last of these files."""
        self.spoiled = False
        """Whether a version was begun that holds numbers that are not finite: it is never whole."""
        self.continued: list[tuple[RowFile, ...]] = []
        """The chains that row files which are being written go on from, oldest first."""
        self._dense_bytes = self._packed_bytes = 0
        self._arena = Arena(lends=lends)
        self._kernels = kernels
        self._versions: dict[int, dict[int, _Slab]] = {}
        self._slots: dict[int, Slabs] = {}
        self._slots_since: dict[int, int] = {}
        """By span: the first version that its slots belong to."""
        self._loose: dict[tuple[int, np.dtype[Any]], list[_Slab]] = {}
        for span in _spans(self.parcels):
            kernel = kernels[span.part]
            if span.rule is Rule.UPDATE and kernel.slots:
                self._slots[span.number] = {name: self._new_slab(span) for name in kernel.slots}
                self._slots_since[span.number] = 0
                for name, slab in self._slots[span.number].items():
                    slab.array.fill(kernel.initial(name))

    @property
    def num_bytes(self) -> int:
        """Of all arrays. For any thread."""
        return self._dense_bytes + self._packed_bytes + sum(table.num_bytes for table in self.tables.values())

    def _new_slab(self, span: Span) -> _Slab:
        # One that is still being sent is passed over: a slow reader costs memory, and no update waits for it.
        loose = self._loose.get((span.num_bytes, np.dtype(span.dtype)), [])
        for number, slab in enumerate(loose):
            if slab.sent:
                del loose[number]
                poison.poison(slab.array)
                return _Slab(slab.array, slab.place)
        self._dense_bytes += span.num_bytes
        array, place = self._arena.empty(span.num_bytes)
        return _Slab(array.view(span.dtype), place)

    def recycle(self, slab: _Slab) -> None:
        """Takes a slab back if nobody needs it any more."""
        if slab.live:
            return
        if poison.ON:
            slab.look_back()
        self._packed_bytes -= slab.packed_bytes
        slab.packed = None
        if not slab.holds:
            self._loose.setdefault((slab.array.nbytes, slab.array.dtype), []).append(slab)

    def _let_go(self, slabs: Iterable[_Slab]) -> None:
        """Of those that are in no version and no slots of the store."""
        # What an evaluation leaves as it is, is one slab in two versions: each is let go of once, after the
        # last.
        kept = {id(slab) for version in self._versions.values() for slab in version.values()}
        kept |= {id(slab) for slots in self._slots.values() for slab in slots.values()}
        for slab in {id(slab): slab for slab in slabs if id(slab) not in kept}.values():
            slab.live = False
            self.recycle(slab)

    # --- versions --------------------------------------------------------------------------------

    def initialise(self, version: int, parcel: Parcel, values: Sequence[Array]) -> None:
        """Takes a parcel's values of the first version; its slots are those before the first update."""
        slabs = self._versions.setdefault(version, {})
        for span, value in zip(parcel.state, values, strict=True):
            slabs[span.number] = slab = self._new_slab(span)
            np.copyto(slab.array, value)
            if begins_late(parcel.toggles):
                for name in self._kernels[span.part].averages:
                    np.copyto(self._slots[span.number][name].array, value)

    def fill(self, version: int, parcel: Parcel, arrays: Sequence[Array]) -> None:
        """Takes a parcel's values and slots, in the order of ``Parcel.copied``. Of a table there are none."""
        rest = iter(arrays)
        slabs = self._versions.setdefault(version, {})
        for span in parcel.state:
            slabs[span.number] = value = self._new_slab(span)
            for slab in (value, *self._slots_at(version, span).values()):
                np.copyto(slab.array, next(rest))

    def restore(
        self,
        version: int,
        read: Callable[[int], dict[str, Array]],
        read_rows: Callable[[int], Iterable[dict[str, Array]]],
    ) -> None:
        """Takes values, slots and rows as a checkpoint holds them.

        read: gives a chunk's by its number. read_rows: a bucket's, as often as it was written, oldest first.
        For a new store. Not changed any more once this has raised what these raise.
        """
        for number, table in self.tables.items():
            for chunk in self.parcels[number].chunks:
                for arrays in read_rows(chunk.number):
                    table.restore(chunk.start, arrays)
            table.settle(version)
        slabs = self._versions.setdefault(version, {})
        for span in _spans(self.parcels):
            slabs[span.number] = value = self._new_slab(span)
            if span.rule in PASSING:
                value.array.fill(0)
                continue
            targets = {"value": value, **self._slots_at(version, span)}
            for chunk in span.chunks:
                saved = read(chunk.number)
                for name, target in targets.items():
                    np.copyto(span.piece(target.array, chunk), saved[name])

    def _slots_at(self, version: int, span: Span) -> Slabs:
        if span.number not in self._slots:
            return {}
        self._slots_since[span.number] = version
        return self._slots[span.number]

    def arrays(self, version: int, parcel: Parcel) -> list[Array]:
        """A parcel of a version; not to be written to.

        Of a table there are none. Where slices are applied one by one its rows may be the first of a version.
        """
        return [self._versions[version][span.number].array for span in parcel.state]

    def packed(self, version: int, parcel: Parcel, pack: Callable[[Span, Array], Array]) -> list[Array]:
        """What ``pack`` makes of a parcel's arrays of a version; of each once."""
        arrays = []
        for span in parcel.state:
            slab = self._versions[version][span.number]
            if slab.packed is None:
                slab.packed = pack(span, slab.array)
                self._packed_bytes += slab.packed_bytes
            arrays.append(slab.packed)
        return arrays

    def checks(self, version: int, parcel: Parcel, travels: Sequence[Array], turn: int) -> Checks:
        """``checks_of`` what ``travels`` of a parcel of a version; worked out once a turn."""
        slabs = [self._versions[version][span.number] for span in parcel.state]
        return tuple(slab.check_of(array, turn) for slab, array in zip(slabs, travels, strict=True))

    def places(self, version: int, parcel: Parcel) -> list[ArenaPlace | None]:
        """Where the arrays of a parcel of a version lie, of those that can be lent."""
        slabs = self._versions[version]
        return [slabs[span.number].place for span in parcel.state]

    def track(self, version: int, parcel: Parcel, tracker: Tracker | None) -> None:
        """Notes that a parcel's arrays are being sent, or read, until ``tracker`` is done."""
        if tracker is not None:
            for span in parcel.state:
                self._versions[version][span.number].trackers.append(tracker)

    def retire(self, below: int) -> None:
        """Lets go of all versions before ``below``."""
        old = [self._versions.pop(version) for version in sorted(self._versions) if version < below]
        if old:
            self._let_go(slab for slabs in old for slab in slabs.values())

    def carry(self, version: int, parcel: Parcel) -> None:
        """Makes the parcel's next version the same as this one."""
        if parcel.table is not None:
            if self.tables[parcel.number].version == version:
                self.tables[parcel.number].carry()
            return
        slabs = self._versions[version]
        after = self._versions.setdefault(version + 1, {})
        for span in parcel.state:
            after.setdefault(span.number, slabs[span.number])  # asynchronously there may be updates already

    def gather(self, version: int, parcel: Parcel, root: Sum) -> None:
        """Makes the parcel's next version what the slices of a tick that encodes, or keeps, have sent."""
        slabs, after = self._versions[version], self._versions.setdefault(version + 1, {})
        for span, total in zip(root.spans, root.arrays, strict=True):
            after[span.number] = slab = self._new_slab(span)
            np.copyto(slab.array, total)
        for span in parcel.state:
            after.setdefault(span.number, slabs[span.number])

    def apply(
        self,
        version: int,
        parcel: Parcel,
        root: Sum | Rows,
        *,
        lr: float,
        others: Sequence[float] = (),
        update: int,
        scale: float,
        trust: Mapping[int, float] = NO_TRUST,
        alone: Alone | None = None,
        step: int = 0,
    ) -> bool:
        """Makes the parcel's next version from the sum over all slices of a step, or from one alone.

        step: where that is another number than ``update``.
        lr, others: learning rates by the number of the optimizer; of a table, its own. trust: see
        ``PerTensorKernel``, by tensor.
        Whether that holds numbers alone. If not the store is ``spoiled``: what was made is for nobody.
        """
        if isinstance(root, Rows):
            table = self.tables[parcel.number]
            if alone:
                table.settle(version)  # what others have made of the next one so far is gone on with
            finite = table.apply(root, lr=lr, update=update, scale=scale, step=alone.step if alone else step)
        else:
            rates = lr, *others
            finite = self._apply_sum(version, parcel, root, rates, update, scale, trust, alone)
        self.spoiled |= not finite
        return finite

    def _apply_sum(
        self,
        version: int,
        parcel: Parcel,
        root: Sum,
        rates: Sequence[float],
        update: int,
        scale: float,
        trust: Mapping[int, float],
        alone: Alone | None,
    ) -> bool:
        finite, late = True, begins_late(parcel.toggles)
        slabs = self._versions[version]
        after = self._versions.setdefault(version + 1, {})
        for span, total in zip(root.spans, root.arrays, strict=True):
            if span.rule is Rule.REPORT or (span.rule is Rule.FIRST and alone and alone.before):
                continue
            # Asynchronously another slice may have begun the next version.
            last = after.get(span.number, slabs[span.number])
            after[span.number] = slab = self._new_slab(span)
            if span.rule is Rule.UPDATE:
                rate = rates[span.part]
                finite &= self._update(
                    version, span, last.array, total, slab.array, rate, update, scale, trust, late
                )
            elif span.rule is Rule.MEAN:
                change = np.multiply(total, total.dtype.type(alone.share)) if alone else total
                finite &= _add(last.array, change, slab.array)
            else:
                np.copyto(slab.array, total)
            # So far the next version, and of no use any more.
            if last is not slabs[span.number]:
                last.live = False
                self.recycle(last)
        return finite

    def is_sound(self, version: int, parcel: Parcel, root: Sum | Rows | None) -> bool:
        """Whether ``apply`` would be given numbers alone, and buffers stay numbers."""
        if root is None:
            return True
        if isinstance(root, Rows):
            return all_finite(root.values)
        slabs = self._versions[version]
        return all(
            all_finite(total) if span.rule is Rule.UPDATE else _add(slabs[span.number].array, total)
            for span, total in zip(root.spans, root.arrays, strict=True)
            if span.rule in (Rule.UPDATE, Rule.MEAN)
        )

    def _update(
        self,
        version: int,
        span: Span,
        old: Array,
        total: Array,
        out: Array,
        lr: float,
        update: int,
        scale: float,
        trust: Mapping[int, float],
        late: bool,
    ) -> bool:
        before = self._slots.get(span.number, {})
        # In place, unless a snapshot holds them or they are on their way: then those stay as they are.
        after = {name: slab if slab.may_change else self._new_slab(span) for name, slab in before.items()}
        kernel = self._kernels[span.part]
        arrays = (
            old,
            total,
            {name: slab.array for name, slab in before.items()},
            out,
            {name: slab.array for name, slab in after.items()},
        )
        if isinstance(kernel, PerTensorKernel):
            pieces = [
                (slice(piece.start - span.start, piece.end - span.start), trust[piece.tensor])
                for piece in span.pieces
            ]
            finite = kernel.apply_to(pieces, *arrays, lr=lr, update=update, grad_scale=scale, late=late)
        else:
            finite = kernel.apply(*arrays, lr=lr, update=update, grad_scale=scale, late=late)
        if before:
            self._slots[span.number] = after
            self._slots_since[span.number] = version + 1
        for name, slab in before.items():
            if after[name] is not slab:
                slab.live = False
                self.recycle(slab)
        return finite

    def norms(self, parcel: Parcel, root: Sum | Rows | None) -> list[tuple[int, float]]:
        """(chunk number, squared norm of the gradient) of a parcel's parameters: 0 of what is not trained."""
        if root is None:
            return []
        if isinstance(root, Rows):
            squares = self.tables[parcel.number].squared_norms(root)
            return [(chunk.number, norm) for chunk, norm in zip(parcel.chunks, squares, strict=True)]
        totals = {span.number: total for span, total in zip(root.spans, root.arrays, strict=True)}
        return [
            (chunk.number, squared_norm(span.piece(totals[span.number], chunk)) if totals else 0.0)
            for span in parcel.spans
            if span.rule is Rule.UPDATE
            for chunk in span.chunks
        ]

    def tensor_norms(
        self, version: int, parcel: Parcel, root: Sum | Rows | None, *, update: int, scale: float
    ) -> list[TensorNorm]:
        """What ``Norms`` tells of a parcel's tensors, before ``apply``."""
        if not isinstance(root, Sum):
            return []
        found: list[TensorNorm] = []
        totals = {span.number: total for span, total in zip(root.spans, root.arrays, strict=True)}
        for span in parcel.spans:
            kernel = self._kernels[span.part]
            if span.rule is not Rule.UPDATE or not isinstance(kernel, PerTensorKernel):
                continue
            if not totals:
                found += [(piece.tensor, piece.chunk, 0.0, 0.0) for piece in span.pieces]
                continue
            total = totals[span.number]
            params, slots = self._versions[version][span.number].array, self._slots.get(span.number, {})
            for piece in span.pieces:
                place = slice(piece.start - span.start, piece.stop - span.start)
                cut = {name: slab.array[place] for name, slab in slots.items()}
                squares = kernel.squared_norms(
                    params[place], total[place], cut, update=update, grad_scale=scale
                )
                found.append((piece.tensor, piece.chunk, *squares))
        return found

    # --- going back ------------------------------------------------------------------------------

    def is_whole(self, version: int) -> bool:
        """Whether values and slots of this version are all here, and none has been updated since."""
        slabs = self._versions.get(version, {})
        if self.spoiled or any(table.version != version for table in self.tables.values()):
            return False
        return all(
            # Slots are updated in place: those of a later version are no way back.
            span.number in slabs and self._slots_since.get(span.number, version) <= version
            for span in _spans(self.parcels)
        )

    def snapshot(self, version: int) -> Snapshot:
        """Holds a version that is whole. Copies nothing."""
        assert self.is_whole(version), f"version {version} is not whole"
        return Snapshot(self, version, self._versions.get(version, {}), self._slots)

    def stay_at(self, version: int) -> None:
        """Forgets all versions but this one, which is whole."""
        assert self.is_whole(version), f"version {version} is not whole"
        stays = self._versions.pop(version, {})
        old, self._versions = self._versions, {version: stays}
        self._slots_since = dict.fromkeys(self._slots, version)
        self._let_go(slab for slabs in old.values() for slab in slabs.values())

    def go_back_to(self, snapshot: Snapshot) -> None:
        """Makes a snapshot of this store the only version it has. The next update writes elsewhere."""
        assert snapshot.store is self
        self.spoiled = False  # tables, of which there are no snapshots, would stay so
        old = [slab for slabs in self._versions.values() for slab in slabs.values()]
        old += [slab for slabs in self._slots.values() for slab in slabs.values()]
        self._versions = {snapshot.version: dict(snapshot.values)}
        self._slots = {number: dict(slabs) for number, slabs in snapshot.slots.items()}
        self._slots_since = dict.fromkeys(self._slots, snapshot.version)
        # The store may have let go of them meanwhile.
        for slab in snapshot.slabs():
            slab.live = True
        self._let_go(old)


def _add(before: Array, change: Array, out: Array | None = None) -> bool:
    """out := a buffer's next value. Whether no element has become NaN, or infinite that was not."""
    with np.errstate(all="ignore"):
        return are_numbers(np.add(before, change, out=out), before)


def parse(spans: Sequence[Span], frames: Sequence[memoryview]) -> Sum:
    """Frames of a message as arrays. Raises ProtocolError if they are not those of ``spans``."""
    check_sizes(frames, [span.num_bytes for span in spans])
    arrays: list[Array] = [
        np.frombuffer(frame, span.dtype) for span, frame in zip(spans, frames, strict=True)
    ]
    return Sum(arrays, spans)


def check_sizes(frames: Sequence[memoryview], right: Sequence[int]) -> None:
    """Raises ProtocolError unless the frames have this many bytes each."""
    found = [frame.nbytes for frame in frames]
    if found != list(right):
        raise ProtocolError(f"arrays of {found} bytes, where {right} belong")


def _spans(parcels: Iterable[Parcel]) -> Iterator[Span]:
    return (span for parcel in parcels for span in parcel.state)
