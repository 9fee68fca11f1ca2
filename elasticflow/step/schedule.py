"""What each tick of a run computes: a pure function of a few numbers.

A run is a row of *ticks*. Most are training steps; after the steps of each epoch, or after every so many
steps, comes, where there is a test source, one tick that evaluates: it is sliced, pushed and answered like a
step, but leaves the parameters as they are. So evaluation is exactly-once and bit for bit the same for free.
Version ``v`` of the model is the model after ``v`` ticks.

Where ``forward`` sees the records of all slices at once, a step is two ticks: in the first, each slice
encodes its own records, and what comes of them all is part of the version that the second begins with.
(GradCache: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.)

A program with a loop of its own may go through a step's records several times: these *rounds* are ticks, of
which each updates parameters of its own. After them comes, where the loop keeps something, a tick in which it
says what has become of that.

In the asynchronous mode each slice of a step is an update of its own, of one batch: a step is as many batches
as it has slices, and they are applied in any order, each to what the others have left.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property

import msgspec

from elasticflow.training.freezing import Toggles, epochs_before

SLICING = 2
"""The rule by which small ticks are cut, see ``Schedule.slice_of``; by 1 they had as many slices as any."""
MOST_TICKS = 2**53 - 1
MOST_KNOWN = 16
"""So many ticks are remembered: a step's is asked for a dozen times."""
MOST_STEPS_OF_TABLES = 2**31 - 1  # rows of tables note steps in 32 bits, with a sign


class Kind(str, Enum):
    """What a tick does with its records."""

    TRAIN = "train"
    """One update of the whole model from one global batch; asynchronously, one from each slice."""
    EVALUATE = "evaluate"
    """Cost and metrics over the whole test source."""
    ENCODE = "encode"
    """What the next tick's ``forward`` sees of the records of all slices."""
    KEEP = "keep"
    """What the program's loop has made, by the end of a step, of what it keeps: the first slice tells."""


class Work(msgspec.Struct, frozen=True):
    """One tick.

    epoch: from 0. step: number of the update that it makes, or is to be made of it, from 1; of an evaluation,
    of updates done by then.
    first..last: positions in the epoch's order (train), or row numbers (evaluate); last excluded.
    stage: the number of the tick, from 0, among those of its step.
    """

    tick: int
    kind: Kind
    epoch: int
    step: int
    first: int
    last: int
    stage: int = 0

    @property
    def num_records(self) -> int:
        return self.last - self.first

    @property
    def draws(self) -> int:
        """The tick of whose random numbers it makes use: records are encoded twice, and alike."""
        return self.tick + (self.kind is Kind.ENCODE)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The row of ticks. ``num_slices`` is a power of two, ``num_test`` is 0 where nothing is evaluated.

    batch_size: records of a step. asynchronous: each of its slices is an update of its own.
    drop_last: the records at the end of an epoch's order that fill no batch are left out of that epoch.
    max_steps: the last step, if that is before the end of all epochs; 0: there is no such bound.
    evaluate_every: steps between two evaluations, counted through the epochs; 0: those of an epoch.
    stages: ticks of a step; 2: it is encoded first. rounds: of a loop of the program's own, how many of these
    are rounds; 0: there is no such loop, or a step is one tick.
    updates_before: those that the optimizer's first state, of another run, has seen.
    """

    num_records: int
    num_test: int
    batch_size: int
    num_slices: int
    epochs: int
    asynchronous: bool = False
    drop_last: bool = False
    max_steps: int = 0
    evaluate_every: int = 0
    stages: int = 1
    updates_before: int = 0
    rounds: int = 0

    @cached_property
    def records_left_out(self) -> int:
        """Of each epoch. Asynchronously a batch is a slice."""
        batch = self.full_slice if self.asynchronous else self.batch_size
        return self.num_records % batch if self.drop_last else 0

    @cached_property
    def records_per_epoch(self) -> int:
        """Those that are trained on."""
        return self.num_records - self.records_left_out

    @cached_property
    def full_slice(self) -> int:
        """Records of a slice of a full batch, at the least."""
        return max(1, self.batch_size // self.num_slices)

    @cached_property
    def least_slice(self) -> int:
        """Records of any slice, at the least, where a tick has so many: half of a full one's; and two, where
        a full one has two, since there are layers that a single record is too few for."""
        return max(min(2, self.full_slice), -(-self.full_slice // 2))

    @cached_property
    def steps_per_epoch(self) -> int:
        return -(-self.records_per_epoch // self.batch_size)

    @cached_property
    def steps_per_round(self) -> int:
        """Those after which there is an evaluation."""
        return self.evaluate_every or self.steps_per_epoch

    @cached_property
    def _steps_end(self) -> int:
        """Ticks of a round's steps."""
        return self.stages * self.steps_per_round

    @cached_property
    def ticks_per_round(self) -> int:
        return self._steps_end + (self.num_test > 0)

    @cached_property
    def total_ticks(self) -> int:
        """Where steps end with those of a round, its evaluation is among them."""
        return self.tick_of(self.total_steps)

    def tick_of(self, step: int) -> int:
        """The number of ticks once so many steps are done, and the evaluations up to them."""
        rounds, steps = divmod(step, max(1, self.steps_per_round))
        return self.ticks_per_round * rounds + self.stages * steps

    def too_long(self, *, tables: bool) -> str:
        """What is wrong, if there are more ticks than can be counted; or steps, which rows of tables note."""
        most = MOST_STEPS_OF_TABLES if tables else MOST_TICKS
        if self.total_ticks <= most:
            return ""
        return (
            f"epochs: {self.epochs} epochs of {self.steps_per_epoch} steps are more than can be counted, "
            f"{most}{' with embedding tables' if tables else ''}; use fewer epochs, or a larger batch_size."
        )

    @cached_property
    def total_steps(self) -> int:
        all_steps = self.steps_per_epoch * self.epochs
        return min(all_steps, self.max_steps or all_steps)

    @cached_property
    def _known(self) -> dict[int, Work]:
        """Of ``at``, for the ticks that were asked for last: each is asked for often."""
        return {}

    def at(self, tick: int) -> Work:
        """What tick number ``tick``, from 0, does. The last batch of an epoch may be smaller."""
        work = self._known.get(tick)
        if work is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            work = self._known[tick] = self._at(tick)
        return work

    def _at(self, tick: int) -> Work:
        rounds, inside = divmod(tick, self.ticks_per_round)
        step, stage = divmod(inside, self.stages)
        done = rounds * self.steps_per_round + step
        if inside == self._steps_end:
            return Work(tick, Kind.EVALUATE, (done - 1) // self.steps_per_epoch, done, 0, self.num_test)
        epoch, before = divmod(done, self.steps_per_epoch)
        first = before * self.batch_size
        last = min(first + self.batch_size, self.records_per_epoch)
        return Work(tick, self._kind_of(stage), epoch, done + 1, first, last, stage)

    def _kind_of(self, stage: int) -> Kind:
        """Of a tick of a step."""
        if self.rounds:
            return Kind.TRAIN if stage < self.rounds else Kind.KEEP
        return Kind.TRAIN if stage == self.stages - 1 else Kind.ENCODE

    def evaluates(self, tick: int) -> bool:
        """Whether tick number ``tick`` evaluates."""
        return tick < self.total_ticks and tick % self.ticks_per_round == self._steps_end

    def trains(self, tick: int) -> bool:
        """Whether tick number ``tick`` makes something else of the model."""
        inside = tick % self.ticks_per_round
        last = inside % self.stages == self.stages - 1
        return inside != self._steps_end and (last or self.rounds > 0)

    def may_cut(self, version: int) -> bool:
        """Whether there may be a checkpoint of a version. There is one a step: not before its evaluation,
        which is to be in it, and not in the middle of a step."""
        return not self.evaluates(version) and self.is_between_steps(version)

    def is_between_steps(self, version: int) -> bool:
        """Whether no step is begun: its records are not encoded yet."""
        inside = version % self.ticks_per_round
        return inside == self._steps_end or inside % self.stages == 0

    def last_evaluation(self, version: int) -> int:
        """The last tick before this version that evaluates; -1: there is none."""
        return version // self.ticks_per_round * self.ticks_per_round - 1 if self.num_test else -1

    def applies_slices(self, tick: int) -> bool:
        """Whether each slice of a tick is applied by itself, as soon as it comes."""
        return self.asynchronous and self.trains(tick)

    def update(self, work: Work, before: int, toggles: Toggles = (), rounds: tuple[int, ...] = ()) -> int:
        """The number, from 1, of a step's update that follows on ``before`` others of the same step.

        toggles: of what is updated: steps in which it is not trained do not count. rounds: in which it is.
        """
        step = work.step
        if toggles:
            step -= self.steps_per_epoch * (work.epoch - epochs_before(toggles, work.epoch))
        if len(rounds) > 1:
            step = (step - 1) * len(rounds) + rounds.index(work.stage) + 1
        update = (step - 1) * self.num_slices + before + 1 if self.asynchronous else step
        return self.updates_before + update

    def steps_before(self, tick: int) -> int:
        """Number of steps in version ``tick`` of the model."""
        rounds, inside = divmod(tick, self.ticks_per_round)
        return rounds * self.steps_per_round + inside // self.stages

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
