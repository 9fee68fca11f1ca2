"""What each tick of a run computes: a pure function of a few numbers.

A run is a row of *ticks*. Most are training steps; after the steps of each epoch comes, where there
is a test source, one tick that evaluates: it is sliced, pushed and answered like a step, but leaves
the parameters as they are. So evaluation is exactly-once and bit for bit the same for free.
Version ``v`` of the model is the model after ``v`` ticks.

In the asynchronous mode each slice of a step is an update of its own, of one batch: a step is as many batches
as it has slices, and they are applied in any order, each to what the others have left.
"""

from __future__ import annotations

from enum import Enum

import msgspec

SLICING = 2
"""The rule by which small ticks are cut, see ``Schedule.slice_of``; by 1 they had as many slices as any."""
MOST_TICKS = 2**53 - 1
MOST_STEPS_OF_TABLES = 2**32 - 1


class Kind(str, Enum):
    """What a tick does with its records."""

    TRAIN = "train"
    """One update of the whole model from one global batch; asynchronously, one from each slice."""
    EVALUATE = "evaluate"
    """Cost and metrics over the whole test source."""


class Work(msgspec.Struct, frozen=True):
    """One tick.

    epoch: from 0. step: number of updates done once this tick is, from 1.
    first..last: positions in the epoch's order (train), or row numbers (evaluate); last excluded.
    """

    tick: int
    kind: Kind
    epoch: int
    step: int
    first: int
    last: int

    @property
    def num_records(self) -> int:
        return self.last - self.first


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The row of ticks. ``num_slices`` is a power of two, ``num_test`` is 0 where nothing is evaluated.

    batch_size: records of a step. asynchronous: each of its slices is an update of its own.
    drop_last: the records at the end of an epoch's order that fill no batch are left out of that epoch.
    """

    num_records: int
    num_test: int
    batch_size: int
    num_slices: int
    epochs: int
    asynchronous: bool = False
    drop_last: bool = False

    @property
    def records_left_out(self) -> int:
        """Of each epoch. Asynchronously a batch is a slice."""
        batch = self.full_slice if self.asynchronous else self.batch_size
        return self.num_records % batch if self.drop_last else 0

    @property
    def records_per_epoch(self) -> int:
        """Those that are trained on."""
        return self.num_records - self.records_left_out

    @property
    def full_slice(self) -> int:
        """Records of a slice of a full batch, at the least."""
        return max(1, self.batch_size // self.num_slices)

    @property
    def least_slice(self) -> int:
        """Records of any slice, at the least, where a tick has so many: half of a full one's; and two, where
        a full one has two, since there are layers that a single record is too few for."""
        return max(min(2, self.full_slice), -(-self.full_slice // 2))

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.records_per_epoch // self.batch_size)

    @property
    def ticks_per_epoch(self) -> int:
        return self.steps_per_epoch + (self.num_test > 0)

    @property
    def total_ticks(self) -> int:
        return self.ticks_per_epoch * self.epochs

    def too_long(self, *, tables: bool) -> str:
        """What is wrong, if there are more ticks than can be counted; or steps, which rows of tables note."""
        most = MOST_STEPS_OF_TABLES if tables else MOST_TICKS
        if self.total_ticks <= most:
            return ""
        return (
            f"epochs: {self.epochs} epochs of {self.steps_per_epoch} steps are more than can be counted, "
            f"{most}{' with embedding tables' if tables else ''}; use fewer epochs, or a larger batch_size."
        )

    @property
    def total_steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def at(self, tick: int) -> Work:
        """What tick number ``tick``, from 0, does. The last batch of an epoch may be smaller."""
        epoch, inside = divmod(tick, self.ticks_per_epoch)
        steps_before = epoch * self.steps_per_epoch
        if inside == self.steps_per_epoch:
            return Work(tick, Kind.EVALUATE, epoch, steps_before + inside, 0, self.num_test)
        first = inside * self.batch_size
        last = min(first + self.batch_size, self.records_per_epoch)
        return Work(tick, Kind.TRAIN, epoch, steps_before + inside + 1, first, last)

    def evaluates(self, tick: int) -> bool:
        """Whether tick number ``tick`` evaluates."""
        return tick < self.total_ticks and tick % self.ticks_per_epoch == self.steps_per_epoch

    def applies_slices(self, tick: int) -> bool:
        """Whether each slice of a tick is applied by itself, as soon as it comes."""
        return self.asynchronous and not self.evaluates(tick)

    def update(self, work: Work, before: int) -> int:
        """The number, from 1, of a step's update that follows on ``before`` others of the same step."""
        return (work.step - 1) * self.num_slices + before + 1 if self.asynchronous else work.step

    def steps_before(self, tick: int) -> int:
        """Number of steps in version ``tick`` of the model."""
        epoch, inside = divmod(tick, self.ticks_per_epoch)
        return epoch * self.steps_per_epoch + min(inside, self.steps_per_epoch)

    def used_slices(self, num_records: int) -> int:
        """Into how many slices a tick of so many records is cut: a power of two, as many as can have
        ``least_slice`` each; or one, which has them all."""
        most = min(self.num_slices, num_records // self.least_slice)
        return 1 << (most.bit_length() - 1) if most else 1

    def slice_of(self, work: Work, number: int) -> tuple[int, int]:
        """The part ``first, last`` of the tick's records that is slice ``number``; it may be empty.

        Of a small tick only each second slice has records, or each fourth, ...: so they are spread over the
        workers, and over the tree. What is added up is the same whoever computes them.
        """
        size, used = work.num_records, self.used_slices(work.num_records)
        place, beside = divmod(number, self.num_slices // used)
        first, last = place * size // used, (place + 1) * size // used
        return work.first + (last if beside else first), work.first + last

    def pieces_of(self, num_records: int) -> list[int]:
        """Where a slice of an evaluation is cut into pieces, with 0 and its end: of ``full_slice`` records at
        the most, and of ``least_slice`` at the least where that can be."""
        count = max(1, min(-(-num_records // self.full_slice), num_records // self.least_slice))
        return [number * num_records // count for number in range(count + 1)]
