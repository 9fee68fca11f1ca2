"""Slices, one by one: computed, tried apart where they may be deadly, and told of where they raise."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from elasticflow.cluster.member import MasterLink
from elasticflow.errors import ProgramError
from elasticflow.frameworks import Batch, Interrupted
from elasticflow.frameworks.staged import own_columns, whole_columns
from elasticflow.process.gpus import visible
from elasticflow.process.parent import without_copies
from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind, Work
from elasticflow.step.slices import Node
from elasticflow.wire.messages import Assignment, Audited, Faulty, Inspected, Skipped
from elasticflow.worker.audit import Audit, digest_of
from elasticflow.worker.batches import slice_seed
from elasticflow.worker.evaluating import evaluated
from elasticflow.worker.faults import blame
from elasticflow.worker.inspection import odd_gradient
from elasticflow.worker.loaded import Loaded, files_of
from elasticflow.worker.present import Present
from elasticflow.worker.readers import Readers, ReadTask
from elasticflow.worker.strategy import Outgoing, Position, Strategy
from elasticflow.worker.sums import Sums, Total
from elasticflow.worker.trial import Begin, Deadly, Nurse, Trial, Way, try_slice
from elasticflow.worker.whose_fault import TOLD_AS_THEY_ARE, is_of_kernel, spare_records

MOST_OTHERS = 8
"""So many records are looked at, about, to see whether it is so with all."""


class Filling(NamedTuple):
    """Where what a slice gives goes, and what is done beside it: see ``Replica.compute``."""

    onto: bool
    outgoing: Outgoing | None = None
    lefts: Sequence[Vector] = ()
    meanwhile: Callable[[], None] | None = None


class Computing:
    """Of one worker. What it finds out about slices of the tick in work is kept in ``present``.

    skips: this worker leaves out slices of its own, with numbers that are not finite.
    under_way: the slice in work, and since when; None: none is. tries: of slices in another process, so far.
    nurse: see ``Trial``.
    """

    def __init__(
        self,
        loaded: Loaded,
        assignment: Assignment,
        strategy: Strategy,
        link: MasterLink,
        present: Present,
        nurse: Nurse | None = None,
    ) -> None:
        self._loaded, self._strategy, self._link, self._present = loaded, strategy, link, present
        self._nurse = nurse
        self._seed, self._schedule = assignment.seed, assignment.schedule
        self.replica = loaded.replica
        self.batches = loaded.batches(self._schedule)
        self.batches.exclude(assignment.excluded)
        if loaded.settings.read_processes:
            self.batches.readers = Readers(
                ReadTask(loaded.settings, files_of(loaded.sources), loaded.records), self.batches.make
            )
        self._encoded = self.replica.encoded
        self._whole: tuple[int, Batch] = (-1, {})
        """What was prepared of a whole batch, and of which version."""
        self.skips = assignment.on_nan == "skip" and self._schedule.asynchronous
        self.under_way: tuple[int, float] | None = None
        self.tries = 0
        self.audit = Audit(loaded.settings.audit, self._schedule.num_slices)

    def take(self, sums: Sums, work: Work, number: int) -> None:
        """Computes one slice, and adds it to the others, unless the program raises on it."""
        picked = self.audit.picks(work, number)
        onto = None if picked else sums.onto(number)
        vector = onto or self._strategy.spare()
        filled: bool | None = False
        try:
            filled = self.slice(work, number, vector, Filling(onto=onto is not None))
        finally:
            if onto is None and not filled:
                self._strategy.give_back(vector)
        if filled and picked:
            self._tell_audited(work, number, vector)
        if filled is not None:
            sums.take(number, vector if filled else None)

    def _tell_audited(self, work: Work, number: int, out: Vector) -> None:
        if self.adds_apart(work):
            self.replica.deliver(out)
        self._link.send(
            Audited(
                name=self._present.name,
                tick=work.tick,
                slice=number,
                digest=digest_of(work, out),
                left_out=sum(each.from_tick <= work.tick for each in self.batches.excluded),
            )
        )

    def compute_again(self, work: Work, numbers: Iterable[int], urgent: Callable[[], bool]) -> None:
        """Slices of the present tick that this worker is to check: see ``elasticflow.worker.audit``."""
        for number in numbers:
            if urgent():
                return
            if work.tick <= self._present.careful_to or number in self._present.careful:
                continue  # workers may have died of it
            out = self._strategy.spare()
            with suppress(Exception, Interrupted):  # whoever is to push it deals with that
                if self._gradient(work, number, out, Filling(onto=False)):
                    self._tell_audited(work, number, out)
            self._strategy.give_back(out)

    def slice(self, work: Work, number: int, out: Vector, filling: Filling) -> bool | None:
        """Computes one slice into ``out``, or adds it to what is there. Whether it holds any records.

        None if the program raises on it, twice, which the master is told. Raises ProgramError if it does so
        when part of the slice may have been sent: it can no more be left out.
        """
        self.under_way = number, time.monotonic()
        try:
            with without_copies():
                return self._try_slice(work, number, out, filling)
        finally:
            self.under_way = None

    def _try_slice(self, work: Work, number: int, out: Vector, filling: Filling) -> bool | None:
        outgoing = filling.outgoing
        for attempt in (1, 2):
            try:
                if work.kind is Kind.EVALUATE:
                    return self._evaluate(work, number, out, filling.onto)
                if work.kind is Kind.ENCODE:
                    return self._encode(work, number, out, filling.onto)
                if work.kind is Kind.KEEP:
                    return self._keep(work, number, out)
                return self._gradient(work, number, out, filling)
            except TOLD_AS_THEY_ARE:
                raise  # no record is to blame
            except (Exception, SystemExit) as error:  # whatever the user's program raises
                if is_of_kernel(error):
                    raise  # this process is to end of it: see life.main
                if outgoing and outgoing.begun:
                    spare_records(error, self._loaded.program.path)
                    raise ProgramError(
                        f"{self._loaded.program.path}: the backward pass of slice {number} raised "
                        f"{type(error).__name__}: {error}. Some of its gradients were on their way by then, "
                        "so its records cannot be left out; with the setting overlap: false they could be."
                    ) from error
                if attempt == 2:
                    self._report_fault(work, number, error)
        return None

    def _gradient(self, work: Work, number: int, out: Vector, filling: Filling) -> bool:
        batch, num_records = self.batches.train(work, number)
        if batch is None:
            return False
        weight = 1.0 if self._schedule.asynchronous else num_records / work.num_records
        if self._encoded:
            batch = self._with_whole(batch, work, number, weight)
        seed = slice_seed(self._seed, work.draws, number)
        self.replica.begin_slice(work, number)
        self.replica.compute(
            batch,
            seed,
            weight,
            out,
            onto=filling.onto,
            ready=filling.outgoing.ready if filling.outgoing else None,
            lefts=filling.lefts,
            deliver=not self.adds_apart(work),
            meanwhile=filling.meanwhile,
        )
        if self.skips and odd_gradient(out, work.epoch):
            self._link.send(
                Skipped(
                    name=self._present.name,
                    generation=self._present.generation,
                    tick=work.tick,
                    slice=number,
                )
            )
            return False
        return True

    def _with_whole(self, batch: Batch, work: Work, number: int, share: float) -> Batch:
        """The slice, and what is known of all records of its step."""
        if self._whole[0] != self._present.entered:
            arrays = self.replica.state.tensors(self._encoded)
            columns = whole_columns(self._encoded, arrays, work.num_records)
            self._whole = self._present.entered, self.replica.prepare(columns)
        own = self.replica.prepare(own_columns(self.batches.places(work, number), share))
        return self.replica.join(batch, self.replica.join(self._whole[1], own))

    def _encode(self, work: Work, number: int, out: Vector, onto: bool) -> bool:
        batch, _ = self.batches.train(work, number)
        if batch is None:
            return False
        found = self.replica.encode(batch, slice_seed(self._seed, work.draws, number))
        places = self.batches.places(work, number)
        for target, values in zip(out.tensors(self._encoded), (np.float32(1), *found), strict=True):
            if not onto:
                target.fill(0)
            target[places] = values
        return True

    def _keep(self, work: Work, number: int, out: Vector) -> bool:
        if number == 0:  # it is the same on every worker
            self.replica.keep(work, out)
        return number == 0

    def _evaluate(self, work: Work, number: int, out: Vector, onto: bool) -> bool:
        seed = slice_seed(self._seed, work.draws, number)
        target = out.groups[-1]  # the report is the last entry, in a group of its own
        report, sums = evaluated(self.replica, self.batches, work, number, seed)
        report = np.pad(report, (0, len(target) - len(report)))
        np.add(target, report, out=target) if onto else np.copyto(target, report)
        if len(sums):
            measured = out.groups[-2][: len(sums)]  # those of metrics lie before it
            np.add(measured, sums, out=measured) if onto else np.copyto(measured, sums)
        return True

    def _report_fault(self, work: Work, number: int, error: BaseException) -> None:
        scratch = self._strategy.spare()
        rows = self.batches.rows(work, number)
        alone = rows[:0] if work.kind is Kind.EVALUATE else rows
        try:
            path, moves = self._loaded.program.path, self._try
            found = blame(error, path, self.replica, self.batches, alone, scratch, moves)
        finally:
            self._strategy.give_back(scratch)
        self._present.faulty[number] = Faulty(
            name=self._present.name,
            tick=work.tick,
            slice=number,
            rows=found.rows,
            text=found.text,
            traceback=found.traceback,
        )
        self._link.send(self._present.faulty[number])

    def adds_apart(self, work: Work) -> bool:
        """Whether slices are added up where they are computed, before their sums come to this memory."""
        whole = work.kind is Kind.TRAIN and not self.skips
        return whole and self.replica.apart and self._strategy.rounding is None

    def delivered(self, work: Work, totals: list[Total]) -> list[Total]:
        """The same, in this memory."""
        for _, total in totals:
            if total is not None and self.adds_apart(work):
                self.replica.deliver(total)
        return totals

    def fetch_ahead(self, work: Work, mine: range, node: Node | None = None) -> None:
        """While others still compute: reads what this worker will most likely need next.

        node: whose last slice is under way on another device.
        """
        under_way = range(node.first, node.stop) if node else ()
        left = set(mine) - self._present.done - self._present.faulty.keys() - set(under_way)
        if mine and not left and work.tick + 1 < self._schedule.total_ticks:
            following = self._schedule.at(work.tick + 1)
            self.batches.order_ahead(following, mine)
            with suppress(Exception):  # it raises again in its own tick, and is dealt with there
                self.batches.fetch(following, mine)
                batch = self.batches.fetched(following, mine[0])
                if batch is not None and not self._schedule.applies_slices(work.tick):
                    self.replica.ask_early(batch)

    def close(self) -> None:
        """Ends what reads ahead."""
        if self.batches.readers:
            self.batches.readers.close()

    def survivors(self, work: Work, numbers: Sequence[int], urgent: Callable[[], bool]) -> tuple[int, ...]:
        """Those of these slices that another process survives. Of the others the master is told."""
        what = f"slices {', '.join(map(str, numbers))} of step {work.step}"
        print(f"workers may have died of {what}: tried in another process", flush=True)
        since_s = time.monotonic()
        begin = Begin(
            settings=msgspec.structs.replace(
                self._loaded.settings, num_slices=self._schedule.num_slices, free_slices=False
            ),
            schedule=self._schedule,
            seed=self._seed,
            excluded=self.batches.excluded,
            visible=visible(os.environ),
        )
        way = Way(self._strategy.read, urgent, self._link.wake_fd)
        passed: list[int] = []
        with Trial(begin, self.replica.state, way, moves=self._try, nurse=self._nurse) as trial:
            for number in numbers:
                rows = [int(row) for row in self.batches.rows(work, number)]
                deadly = try_slice(partial(trial.outcome, work.tick, number), rows)
                if deadly is None:
                    passed.append(number)
                else:
                    self._report_deadly(work, number, deadly)
        took_s = time.monotonic() - since_s
        print(f"{what}: {len(passed)} of {len(numbers)} well, after {took_s:.1f} s", flush=True)
        return tuple(passed)

    def _try(self) -> None:
        self.tries += 1

    def _report_deadly(self, work: Work, number: int, deadly: Deadly) -> None:
        tests = work.kind is Kind.EVALUATE
        self._present.faulty[number] = Faulty(
            name=self._present.name,
            tick=work.tick,
            slice=number,
            rows=() if tests else deadly.rows,
            text=deadly.text,
            traceback="",
            dies=True,
            test_rows=deadly.rows if tests else (),
        )
        self._link.send(self._present.faulty[number])

    def inspect(self, position: Position) -> None:
        """Tells in which of the slices a tick that diverged began: computes each by itself."""
        slices, self._present.inspects = self._present.inspects, ()
        work, out = self._schedule.at(position.version), self._strategy.spare()
        found = Inspected(name=self._present.name, tick=work.tick)
        for number in slices:
            with suppress(Exception, Interrupted):  # there is nothing to be said of it then
                if self._gradient(work, number, out, Filling(onto=False)) and (
                    parameter := self._odd_in(work, out)
                ):
                    weight = len(self.batches.rows(work, number)) / work.num_records
                    cost = f"{float(out.groups[-1][0]) / weight:g}"
                    found = Inspected(
                        name=self._present.name,
                        tick=work.tick,
                        slice=number,
                        parameter=parameter,
                        cost=cost,
                    )
                    break
        if found.slice >= 0 and not self._encoded and self._loaded.program.loop is None:
            # What follows may take longer than the run's end waits.
            self._link.send(msgspec.structs.replace(found, searches=True))
            with suppress(Exception, Interrupted):
                found = msgspec.structs.replace(found, row=self._odd_row(work, found.slice, out))
        self._strategy.give_back(out)
        self._link.send(found)

    def _odd_row(self, work: Work, number: int, out: Vector) -> int:
        """The first record of a slice whose gradient is none by itself; -1: those of all are, or of none."""
        rows = self.batches.rows(work, number)

        def is_odd(*chosen: int) -> bool:
            more = chosen if len(chosen) > 1 else chosen * 2  # BatchNorm, say, wants more than one
            self.replica.compute(self.batches.of_rows(Kind.TRAIN, np.array(more)), 0, 1.0, out)
            return bool(self._odd_in(work, out))

        left = [int(row) for row in rows]
        while len(left) > 1:
            first, rest = left[: len(left) // 2], left[len(left) // 2 :]
            left = first if is_odd(*first) else rest
        (found,) = left
        others = [int(row) for row in rows if row != found][:: max(1, len(rows) // MOST_OTHERS)]
        tells = not others or not all(map(is_odd, others))
        return found if tells and is_odd(found) else -1

    def _odd_in(self, work: Work, out: Vector) -> str:
        if self.adds_apart(work):
            self.replica.deliver(out)
        return odd_gradient(out, work.epoch)
