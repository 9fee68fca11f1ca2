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
    """

    num_records: int
    num_test: int
    batch_size: int
    num_slices: int
    epochs: int
    asynchronous: bool = False

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_records // self.batch_size)

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
        last = min(first + self.batch_size, self.num_records)
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

    def slice_of(self, work: Work, number: int) -> tuple[int, int]:
        """The part ``first, last`` of the tick's records that is slice ``number``; it may be empty."""
        size = work.num_records
        return (
            work.first + number * size // self.num_slices,
            work.first + (number + 1) * size // self.num_slices,
        )
