"""What a process does with a part: it writes a file, or tells what the part comes to."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from elasticflow.applying.orders import LoadOrder
from elasticflow.applying.outputs import FORMATS
from elasticflow.applying.predicting import LoadedModel, Say, of_records
from elasticflow.applying.restoring import restore
from elasticflow.applying.sources import opened
from elasticflow.applying.workplace import part_in, told
from elasticflow.data import Source, Sources
from elasticflow.data.kept import KeptColumns
from elasticflow.errors import DataError, ElasticFlowError, ProgramError
from elasticflow.program.loading import Program, bind
from elasticflow.step.layout import Array
from elasticflow.step.schedule import Kind, Work
from elasticflow.storage.directory import sync_folder
from elasticflow.worker import evaluating
from elasticflow.worker.batches import slice_seed
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.whose_fault import spare_records

PART_RECORDS = 1 << 14


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
        self._model = LoadedModel(order.settings, Path(order.weights))
        self.source = self._model.opened(order.data)
        self._kept = KeptColumns(order.data, order.keep) if order.keep else None
        if self._kept and self._kept.num_rows != self.source.num_rows:
            raise DataError(
                f"{order.data}: has {self._kept.num_rows} records, of which data() makes "
                f"{self.source.num_rows}: columns can be kept only where there is one for each."
            )
        self.batch_records = order.batch_records or self._model.batch_records
        whole = max(1, (order.part_records or PART_RECORDS) // self.batch_records)
        self.part_records = whole * self.batch_records
        self.num_parts = math.ceil(self.source.num_rows / self.part_records)
        self._order = order

    @property
    def facts(self) -> Mapping[str, str]:
        return self._model.facts

    def do(self, part: int, say: Say) -> bytes:
        first = part * self.part_records
        last = min(first + self.part_records, self.source.num_rows)
        columns = self._model.predicted(self.source, first, last, self.batch_records, say)
        kept = self._kept.rows(first, last) if self._kept else {}
        if both := kept.keys() & columns.keys():
            path = self._model.path
            raise ProgramError(f"{path}: predict() returns {min(both)!r}, and --keep names it too.")
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
        except ElasticFlowError:
            raise
        except (ValueError, TypeError, NotImplementedError, struct.error) as error:
            names = ", ".join(repr(name)[:80] for name in columns)
            raise DataError(f"{names}: cannot be written to {ending}: {error}") from error
        finally:
            with contextlib.suppress(OSError):  # on a disk that became read-only: what was wrong is told
                temporary.unlink(missing_ok=True)

    def search(self, first: int, last: int, say: Say) -> None:
        self._model.search(self.source, first, last, say)


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
        restore(self._loaded.replica, Path(order.weights), path, self._loaded.sources.train.files)
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
                return of_records(self._path, self.source, row, start, stop, error)
        return of_records(self._path, self.source, None, start, stop, error)

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
