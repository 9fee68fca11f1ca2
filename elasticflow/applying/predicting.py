"""A run's model in this process, and what its program's ``predict`` gives of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from elasticflow.applying.restoring import restore
from elasticflow.applying.sources import opened, place_of
from elasticflow.data import Source, Sources
from elasticflow.data.source import Column, Records
from elasticflow.errors import DataError, ElasticFlowError, ProgramError
from elasticflow.frameworks import Batch
from elasticflow.hashing import mix
from elasticflow.program.loading import Program, arguments_of_predict, describe
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array
from elasticflow.worker.batches import check_columns, slice_seed
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.whose_fault import spare_records

AT_ONCE = 4
"""Records that are predicted at once, by those of a slice of training, which needs more memory for each."""

Say = Callable[[int, int], None]
"""Which records come next; none: the rest is no record's doing."""


class LoadedModel:
    """weights: folder of an unpacked checkpoint. Raises ProgramError if the program has no ``predict``."""

    def __init__(self, settings: MemberSettings, weights: Path) -> None:
        self._loaded, self._settings = Loaded(settings, _no_tests), settings
        program = self._loaded.program
        if program.predict is None:
            some = next(iter(self._loaded.binding))
            raise ProgramError(
                f"{program.path}: defines no predict(), which is to compute what is wanted, such as\n"
                f"    def predict({some}, params):\n"
                f'        return params["net"]({some})\n'
                "The run has a copy of its program, from before; --program FILE names one that defines it."
            )
        restore(self._loaded.replica, weights, program.path, self._loaded.sources.train.files)
        self._bindings = [
            {name: self._loaded.binding[name] for name in names}
            for needed in (False, True)
            for names in [arguments_of_predict(program, list(self._loaded.binding), needed=needed)]
        ]
        """What the arguments are called in the data: all of them, and those that must be there."""
        self._seed = mix(settings.seed, 0)

    @property
    def path(self) -> str:
        """The program's."""
        return self._loaded.program.path

    @property
    def facts(self) -> Mapping[str, str]:
        """What of the device decides the bits."""
        return self._loaded.replica.facts

    @property
    def batch_records(self) -> int:
        """How many records are best predicted at once."""
        return AT_ONCE * self._loaded.schedule.full_slice

    @property
    def wanted(self) -> tuple[Column, ...]:
        """The columns that ``predict`` needs, as they were in training."""
        columns = {column.name: column for column in self._loaded.sources.train.columns}
        return tuple(columns[name] for name in self._bindings[1].values() if name in columns)

    def opened(self, data: str | Records) -> Source:
        """All records there. Raises DataError if a column is missing, or unfit."""
        try:
            return self._opened(data, self._bindings[0])
        except DataError:
            return self._opened(data, self._bindings[1])

    def _opened(self, data: str | Records, binding: Mapping[str, str]) -> Source:
        self._binding = binding
        return opened(self._loaded.program, self._loaded.sources.train, data, binding)

    def predicted(
        self, source: Source, first: int, last: int, at_once: int, say: Say = lambda first, last: None
    ) -> dict[str, Array]:
        """Of these records, so many at once. say: is told of each batch before, and of the end.

        source: what was opened last. Raises ProgramError, which names the record.
        """
        found: list[dict[str, Array]] = []
        for start in range(first, last, at_once):
            stop = min(start + at_once, last)
            say(start, stop)
            found.append(self._tried(source, start, stop))
            if found[-1].keys() != found[0].keys():
                raise ProgramError(
                    f"{self.path}: predict() returned {', '.join(found[-1])} for records {start} to "
                    f"{stop - 1}, and before that {', '.join(found[0])}."
                )
        say(last, last)
        try:
            return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        except ValueError as error:
            raise ProgramError(
                f"{self.path}: predict() returned arrays of other shapes for some records of {first} to "
                f"{last - 1}: {error}."
            ) from error

    def search(self, source: Source, first: int, last: int, say: Say) -> None:
        """Computes these records one by one."""
        for row in range(first, last):
            say(row, row + 1)
            self._compute(source, row, row + 1)

    def _tried(self, source: Source, start: int, stop: int) -> dict[str, Array]:
        """Raises ProgramError, which names the first record on which the program raises."""
        try:
            return self._compute(source, start, stop)
        except ElasticFlowError as error:
            if isinstance(error, ProgramError) and stop - start > 1:
                row = self._raises(source, start, stop)
                raise of_records(self.path, source, row, start, stop, error) from error
            raise
        except (Exception, SystemExit) as error:
            spare_records(error, self.path)
            row = self._raises(source, start, stop)
            raise of_records(self.path, source, row, start, stop, error) from error

    def _raises(self, source: Source, start: int, stop: int) -> int | None:
        """The first record on which it does so alone."""
        for row in range(start, stop):
            try:
                self._compute(source, row, row + 1)
            except (Exception, SystemExit):  # noqa: BLE001  (whatever the user's program raises)
                return row
        return None

    def _compute(self, source: Source, start: int, stop: int) -> dict[str, Array]:
        batch = self._batch(source, start, stop)
        return self._loaded.replica.predict(batch, slice_seed(self._settings.seed, 0, start))

    def _batch(self, source: Source, start: int, stop: int) -> Batch:
        rows = np.arange(start, stop)
        arrays = source.finish(source.drawn(rows, self._seed), mix(self._seed, start))
        bound = {argument: arrays[column] for argument, column in self._binding.items()}
        check_columns(self._loaded.replica.framework, bound, rows)
        return self._loaded.replica.prepare(bound)


def _no_tests(program: Program, sources: Sources) -> None:
    return None


def of_records(
    path: str, source: Source, row: int | None, start: int, stop: int, error: BaseException
) -> ProgramError:
    """That the program raised on a record, or, if ``row`` is None, on some only together."""
    if isinstance(error, ElasticFlowError):
        text = str(error)
    else:
        text = describe(error, path)
    if row is None:
        return ProgramError(f"{path}: records {start} to {stop - 1} together, and none of them alone: {text}")
    return ProgramError(f"{path}: record {row} ({place_of(source, row)}): {text}")
