"""What a process does with a part: it writes a file, or tells what the part comes to."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from elasticflow.applying.orders import LoadOrder
from elasticflow.applying.outputs import FORMATS
from elasticflow.applying.restoring import restore
from elasticflow.applying.sources import opened, place_of
from elasticflow.applying.workplace import part_in, sync_folder, told
from elasticflow.data import Source, Sources
from elasticflow.data.kept import KeptColumns
from elasticflow.errors import DataError, ElasticFlowError, ProgramError
from elasticflow.frameworks import Batch
from elasticflow.hashing import mix
from elasticflow.program.loading import Program, arguments_of_predict, bind, describe
from elasticflow.step.layout import Array
from elasticflow.step.schedule import Kind, Work
from elasticflow.worker import evaluating
from elasticflow.worker.batches import check_columns, slice_seed
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.whose_fault import spare_records

AT_ONCE = 4
"""Records that are predicted at once, by those of a slice of training, which needs more memory for each."""
PART_RECORDS = 1 << 14

Say = Callable[[int, int], None]
"""Which records come next; none: the rest is no record's doing."""


class PartWork(Protocol):
    """What is done with parts. num_parts: there are. source: the records."""

    source: Source
    num_parts: int
    part_records: int
    batch_records: int

    @property
    def facts(self) -> Mapping[str, str]:
        """What of the device decides the bits."""

    def do(self, part: int, say: Say) -> bytes:
        """Does a part, and returns what comes of it. Raises ProgramError, which names the record."""

    def search(self, first: int, last: int, say: Say) -> None:
        """Computes these records one by one."""


class PredictWork:
    """See PartWork."""

    def __init__(self, order: LoadOrder) -> None:
        self._loaded = Loaded(order.settings, _no_tests)
        program, trained = self._loaded.program, self._loaded.sources.train
        if program.predict is None:
            some = next(iter(self._loaded.binding))
            raise ProgramError(
                f"{program.path}: defines no predict(), which is to compute what is wanted, such as\n"
                f"    def predict({some}, params):\n"
                f'        return params["net"]({some})\n'
                "The run has a copy of its program, from before; --program FILE names one that defines it."
            )
        restore(self._loaded.replica, Path(order.weights), program.path)
        binding = self._loaded.binding
        names = arguments_of_predict(program, list(binding))
        try:
            self._binding = {name: binding[name] for name in names}
            self.source = opened(program, trained, order.data, self._binding)
        except DataError:
            names = arguments_of_predict(program, list(binding), needed=True)
            self._binding = {name: binding[name] for name in names}
            self.source = opened(program, trained, order.data, self._binding)
        self._kept = KeptColumns(order.data, order.keep) if order.keep else None
        if self._kept and self._kept.num_rows != self.source.num_rows:
            raise DataError(
                f"{order.data}: has {self._kept.num_rows} records, of which data() makes "
                f"{self.source.num_rows}: columns can be kept only where there is one for each."
            )
        schedule = self._loaded.schedule
        self.batch_records = order.batch_records or AT_ONCE * schedule.full_slice
        whole = max(1, (order.part_records or PART_RECORDS) // self.batch_records)
        self.part_records = whole * self.batch_records
        self.num_parts = math.ceil(self.source.num_rows / self.part_records)
        self._order, self._seed = order, mix(order.settings.seed, 0)

    @property
    def facts(self) -> Mapping[str, str]:
        return self._loaded.replica.facts

    def do(self, part: int, say: Say) -> bytes:
        found: list[dict[str, Array]] = []
        first = part * self.part_records
        last = min(first + self.part_records, self.source.num_rows)
        for start in range(first, last, self.batch_records):
            stop = min(start + self.batch_records, last)
            say(start, stop)
            found.append(self._predicted(start, stop))
            if found[-1].keys() != found[0].keys():
                raise ProgramError(
                    f"{self._path}: predict() returned {', '.join(found[-1])} for records {start} to "
                    f"{stop - 1}, and before that {', '.join(found[0])}."
                )
        say(last, last)
        try:
            columns = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        except ValueError as error:
            raise ProgramError(
                f"{self._path}: predict() returned arrays of other shapes for some records of {first} to "
                f"{last - 1}: {error}."
            ) from error
        kept = self._kept.rows(first, last) if self._kept else {}
        if both := kept.keys() & columns.keys():
            raise ProgramError(f"{self._path}: predict() returns {min(both)!r}, and --keep names it too.")
        self._write(part, {**kept, **columns})
        return b""

    def _write(self, part: int, columns: dict[str, Array]) -> None:
        """It has its name only when it is whole, and on the disk; a second one, of the same bits, replaces
        it."""
        folder, ending = Path(self._order.folder), self._order.ending
        target = part_in(folder, part, ending)
        temporary = folder / f".{secrets.token_hex(8)}{ending}"
        try:
            with told(folder):
                FORMATS[ending].write(temporary, columns)
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.rename(target)
                sync_folder(folder)
        finally:
            temporary.unlink(missing_ok=True)

    def search(self, first: int, last: int, say: Say) -> None:
        for row in range(first, last):
            say(row, row + 1)
            self._compute(row, row + 1)

    def _predicted(self, start: int, stop: int) -> dict[str, Array]:
        """Raises ProgramError, which names the first record on which the program raises."""
        try:
            return self._compute(start, stop)
        except ElasticFlowError as error:
            if isinstance(error, ProgramError) and stop - start > 1:
                raise _of_records(
                    self._path, self.source, self._raises(start, stop), start, stop, error
                ) from error
            raise
        except (Exception, SystemExit) as error:
            spare_records(error, self._path)
            raise _of_records(
                self._path, self.source, self._raises(start, stop), start, stop, error
            ) from error

    def _raises(self, start: int, stop: int) -> int | None:
        """The first record on which it does so alone."""
        for row in range(start, stop):
            try:
                self._compute(row, row + 1)
            except (Exception, SystemExit):  # noqa: BLE001  (whatever the user's program raises)
                return row
        return None

    def _compute(self, start: int, stop: int) -> dict[str, Array]:
        replica = self._loaded.replica
        return replica.predict(self._batch(start, stop), slice_seed(self._order.settings.seed, 0, start))

    def _batch(self, start: int, stop: int) -> Batch:
        rows = np.arange(start, stop)
        arrays = self.source.finish(self.source.drawn(rows, self._seed), mix(self._seed, start))
        bound = {argument: arrays[column] for argument, column in self._binding.items()}
        check_columns(self._loaded.replica.framework, bound, rows)
        return self._loaded.replica.prepare(bound)

    @property
    def _path(self) -> str:
        return self._loaded.program.path


class EvaluateWork:
    """See PartWork: a part is a slice of an evaluation as the run would cut it, with what it would draw."""

    def __init__(self, order: LoadOrder) -> None:
        path = order.settings.program

        def tests(program: Program, sources: Sources) -> Source:
            train = sources.train
            names = [column.name for column in train.columns]
            binding = bind(program, program.reads, names, train.positional, train.optional)
            return opened(program, train, order.data, binding)

        self._loaded = Loaded(order.settings, tests)
        source = self._loaded.sources.test
        assert source is not None
        self.source, self._path = source, path
        restore(self._loaded.replica, Path(order.weights), path)
        self._schedule = msgspec.structs.replace(
            self._loaded.schedule, num_test=source.num_rows, evaluate_every=order.evaluate_every
        )
        self._batches = self._loaded.batches(self._schedule)
        last = max(0, self._schedule.last_evaluation(self._schedule.tick_of(order.step)))
        self._work = Work(last, Kind.EVALUATE, 0, order.step, 0, source.num_rows)
        self.num_parts, self.part_records = self._schedule.num_slices, 0
        self.batch_records = self._schedule.full_slice

    @property
    def facts(self) -> Mapping[str, str]:
        return self._loaded.replica.facts

    def do(self, part: int, say: Say) -> bytes:
        rows = self._batches.rows(self._work, part)
        if len(rows):
            say(int(rows[0]), int(rows[-1]) + 1)
        seed = slice_seed(self._loaded.settings.seed, self._work.draws, part)
        try:
            report, sums = evaluating.evaluated(self._loaded.replica, self._batches, self._work, part, seed)
        except ElasticFlowError as error:
            if not isinstance(error, ProgramError):
                raise
            raise self._blamed(rows, error) from error
        except (Exception, SystemExit) as error:
            spare_records(error, self._path)
            raise self._blamed(rows, error) from error
        return np.concatenate([report, sums]).tobytes()

    def _blamed(self, rows: Array, error: BaseException) -> ProgramError:
        start, stop = int(rows[0]), int(rows[-1]) + 1
        for row in range(start, stop):
            try:
                self._alone(row)
            except (Exception, SystemExit):  # noqa: BLE001  (whatever the user's program raises)
                return _of_records(self._path, self.source, row, start, stop, error)
        return _of_records(self._path, self.source, None, start, stop, error)

    def search(self, first: int, last: int, say: Say) -> None:
        for row in range(first, last):
            say(row, row + 1)
            self._alone(row)

    def _alone(self, row: int) -> None:
        self._loaded.replica.evaluate(self._batches.of_rows(Kind.EVALUATE, np.array([row])), 0)

    def summed(self, total: bytes) -> dict[str, float | None]:
        """What people see of the sum over all slices."""
        replica, numbers = self._loaded.replica, np.frombuffer(total, np.float64)
        count = 1 + len(replica.metrics.told)
        values = evaluating.told(replica, numbers[:count], numbers[count:])
        return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _no_tests(program: Program, sources: Sources) -> None:
    return None


def _of_records(
    path: str, source: Source, row: int | None, start: int, stop: int, error: BaseException
) -> ProgramError:
    if isinstance(error, ElasticFlowError):
        text = str(error)
    else:
        text = describe(error, path)
    if row is None:
        return ProgramError(f"{path}: records {start} to {stop - 1} together, and none of them alone: {text}")
    return ProgramError(f"{path}: record {row} ({place_of(source, row)}): {text}")
