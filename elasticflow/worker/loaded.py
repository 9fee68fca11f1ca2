"""A user's program, ready to compute, and what there is to know of it before a run begins."""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
import xxhash

from elasticflow.api import HUGE, PER_TENSOR, is_number
from elasticflow.checkpoint import commits, frozen_of, load_manifest, of_one, read_frozen
from elasticflow.data import Source, Sources, open_path, open_source, pins
from elasticflow.data.held import held_hash
from elasticflow.data.pins import Pins
from elasticflow.embedding import TableSpec
from elasticflow.errors import DataError, LoopError, ProgramError, UnreadableError
from elasticflow.frameworks import CHANGED, CostError, Replica, check_cost, open_replica, set_up
from elasticflow.process.texts import sendable
from elasticflow.program import arguments
from elasticflow.program.copy import copy_of
from elasticflow.program.loading import (
    Program,
    bind,
    blaming,
    describe,
    import_library,
    load,
    naming,
)
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array, Entry, Rule, Vector
from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.storage import storage_of
from elasticflow.storage.file_ids import FileId, folded
from elasticflow.training.advice import Tuning
from elasticflow.training.grouping import Groups
from elasticflow.training.lr import wants_length
from elasticflow.training.metrics import roughness
from elasticflow.training.objects import PLACES, too_many
from elasticflow.wire.messages import Spec
from elasticflow.worker.batches import Batches, check_columns
from elasticflow.worker.faults import blame
from elasticflow.worker.shapes import Shape, short_tail
from elasticflow.worker.slicing import MOST as MOST_CHOSEN
from elasticflow.worker.slicing import chosen_by, costs_of
from elasticflow.worker.whose_fault import OutsideError, is_of_kernel, lacks_memory

ABOUT_TENSORS = re.compile(
    r"dtype|scalar type|shape|size|dimension|\b(Long|Float|Double|Int)\b", re.IGNORECASE
)
NAME_CHARS = 1000
"""The longest name of a parameter."""

_UNUSED = (
    "these parameters got no gradient in the first slice: {}; a step that does not use them counts as one "
    "whose gradient is zero, so momentum and weight decay change them: freeze what is to stay as it is"
)


class Loaded:
    """The user's program, ready to compute, before anything is known of the run.

    tests: what is to be tested with in the place of what the program names, from that and its sources.
    Raises ProgramError or DataError, with a text for the user.
    """

    def __init__(
        self, settings: MemberSettings, tests: Callable[[Program, Sources], Source | None] | None = None
    ) -> None:
        begun_s = time.monotonic()
        imports_s = max(0.0, time.time() - settings.started_s) if settings.started_s else 0.0
        self.program, self.sources = load_sources(settings)
        if tests is not None:
            self.sources = Sources(self.sources.train, tests(self.program, self.sources))
        sources_s = time.monotonic()
        train, test = self.sources.train, self.sources.test
        names = [column.name for column in train.columns]
        self.binding = bind(self.program, self.program.reads, names, train.positional, train.optional)
        if test is not None and not self.program.has_forward:
            raise ProgramError(
                f'{self.program.path}: data() returns a "test" source, and evaluations call forward(), which '
                "it does not define. Define it beside loop(), or leave out the source."
            )
        measured = None
        if test is not None and self.program.metrics is not None:
            self.program, measured = _measuring(self.program, self.binding, names, train.positional)
        columns = train.finish(train.rows(np.arange(min(2, train.num_rows))), 0)
        framework = "tensorflow" if "tensorflow" in sys.modules else "torch"
        check_columns(framework, columns, np.arange(min(2, train.num_rows)))
        self.sample = {argument: columns[column] for argument, column in self.binding.items()}
        self._open_replica = partial(
            open_replica,
            self.program,
            seed=settings.seed,
            threads=settings.threads,
            sample=self.sample,
            metric_arguments=measured,
            tests=self.sources.tests,
            device=settings.device,
            number=_number(settings.name),
            graphs=settings.graphs,
            batch_size=settings.batch_size,
        )
        with naming(settings.program):
            self.replica: Replica = self._open_replica()
        self.began = (
            ("imports", imports_s),
            ("program and data", sources_s - begun_s),
            ("model()", time.monotonic() - sources_s),
        )
        """What has been done by now, and seconds of each. Imports: since the process was ordered."""
        arguments.check_asked(settings.program)
        self._first_sums = _sums(self.replica.state)
        self.updates_before = 0
        if settings.init_from and settings.run_dir:
            values, self.updates_before = _as_begun(settings)
            self.replica.put_frozen(values)
        self.frozen = frozen_of(self.replica.frozen())
        self.probe = ""
        """What the first slice gives, as a hash; "" if that raised, or was not computed yet."""
        self.slices_why = ""
        """Why there are so many slices, if they are others than was told, or were measured."""
        self.schedule = Schedule(
            num_records=train.epoch_records,
            num_test=test.num_rows if test else 0,
            batch_size=settings.batch_size,
            num_slices=settings.num_slices,
            asynchronous=settings.asynchronous,
            drop_last=settings.drop_last,
            epochs=1,
        )
        if not self.schedule.records_per_epoch:
            raise DataError(
                f"{settings.program}: the data has {train.epoch_records} records, fewer than a batch, and "
                "drop_last leaves them out: nothing is left to train on. Give more data, or a smaller "
                "batch_size."
            )
        self.settings = settings

    def make_first_values(self) -> None:
        """Puts the first values of all back into the replica's state.

        Raises ProgramError if model() does not make the same ones again.
        """
        if _sums(self.replica.state) != self._first_sums:
            for mine, first in zip(self.replica.state.groups, self._open_replica().state.groups, strict=True):
                np.copyto(mine, first)
        if _sums(self.replica.state) != self._first_sums:
            raise ProgramError(
                f"{self.program.path}: model() gave other first values when it was called once more. They "
                "must follow from the seed: make tensors and layers in model(), not when the file is loaded."
            )

    def batches(self, schedule: Schedule) -> Batches:
        return Batches(schedule, self.sources, self.settings.seed, self.binding, self.replica)

    def learning_rate(self, work: Work, tuning: Tuning, num_steps: int) -> float | None:
        """That of the first optimizer for a tick; None if it is as ``model()`` has it.

        tuning: what evaluations have decided. num_steps: of the run.
        """
        if work.kind is not Kind.TRAIN:
            return None
        if tuning.lr is not None:
            value = tuning.lr
        elif self.program.learning_rate is not None:
            value = self._planned_rate(work, num_steps)
        elif tuning.factor != 1.0:
            value = self.replica.optimizers.optimizer.lr
        else:
            return None
        plateau, value = self.program.rules.plateau, value * tuning.factor
        return plateau.scaled(value, tuning.scale) if plateau else value

    def _planned_rate(self, work: Work, num_steps: int) -> float:
        """As the program has it."""
        assert self.program.learning_rate
        length = (num_steps,) if self.is_paced else ()
        asked = work.step - 1, work.epoch, *length
        given = ", ".join(map(str, asked))
        with blaming(self.program, "learning_rate"):
            value = float(self.program.learning_rate(*asked))
            again = float(self.program.learning_rate(*asked))
        # Whoever pushes first says it to a server: it would follow from who has made how many steps.
        if value != again and is_number(value, 0) and not self.schedule.asynchronous:
            raise ProgramError(
                f"{self.program.path}: learning_rate({given}) returned {value}, and {again} when it was "
                "asked again. It must follow from step and epoch alone, and keep nothing from call to call, "
                "such as a scheduler that it steps: ef.lr has the usual ones."
            )
        if not is_number(value, 0):
            raise ProgramError(
                f"{self.program.path}: learning_rate({given}) returned {value}; it must be a number "
                f"from 0 to {HUGE:g}."
            )
        return value

    @cached_property
    def is_paced(self) -> bool:
        """Whether its learning rate follows from the number of steps of the run."""
        return self.program.learning_rate is not None and wants_length(self.program.learning_rate)

    def cost_of_first_slice(self) -> float:
        """Forward and backward on the first slice of the first step; returns its cost.

        Raises ProgramError if forward() raises, though perhaps on some of the records alone.
        """
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        out = Vector(self.replica.layout)
        with blaming(self.program, "forward"):
            self.replica.compute(batches.of_rows(Kind.TRAIN, batches.rows(work, 0)), 0, 1.0, out)
        cost = float(out.groups[-1][0])
        return cost if self.settings.on_nan == "skip" or self.program.loop else check_cost(cost)

    def try_out(self, shape: Shape) -> float:
        """The cost of so many records at once. Raises ProgramError if the program raises on them."""
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        try:
            if shape.kind is Kind.EVALUATE:
                rows = np.arange(shape.num_records)
                return self.replica.evaluate(batches.of_rows(shape.kind, rows), 0)[0]
            parts = [batches.rows(work, number) for number in range(self.schedule.num_slices)]
            rows, out = np.concatenate(parts)[: shape.num_records], Vector(self.replica.layout)
            self.replica.compute(batches.of_rows(shape.kind, rows), 0, 1.0, out)
            return float(out.groups[-1][0])
        except UnreadableError:
            raise
        except Exception as error:  # whatever the user's program raises
            path, count = self.program.path, shape.num_records
            advice = "Choose another batch_size or number of slices"
            if shape.kind is Kind.TRAIN:
                advice += "; or leave out what fills no batch: drop_last: true"
            raise ProgramError(
                f"{path}: on {count} record{'s' * (count != 1)} at once, as {shape.where} has them, the "
                f"program raised {describe(error, path)}. {advice}."
            ) from error

    def rehearse(self) -> Spec:
        """Computes one slice, and tells what there is to know of the program.

        Raises ProgramError if forward() raises on that slice and on each of its records alone.
        """
        if self.schedule.asynchronous and self.program.encode is not None:
            raise ProgramError(
                f"{self.program.path}: with encode() the records of a whole batch are seen together, which "
                "with mode: async they never are. Leave it out, or use mode: sync."
            )
        if self.schedule.asynchronous and any(_sees_steps(entry) for entry in self.replica.layout.entries):
            raise ProgramError(
                f"{self.program.path}: loop() goes through a step's records more than once, keeps something, "
                "or calls all_reduce: all this is of whole steps, and with mode: async each slice is one "
                "update by itself. There a loop may push gradients, once for each slice; or use mode: sync."
            )
        if problem := _problem(
            self.replica.optimizers, self.replica.tables, asynchronous=self.schedule.asynchronous
        ):
            raise ProgramError(f"{self.program.path}: {problem}")
        out = Vector(self.replica.layout)
        first = self.schedule.at(self.schedule.stages - 1)
        self.learning_rate(first, Tuning(), self.schedule.total_steps)
        if self.settings.measure_slices and self.settings.free_slices:
            costs = costs_of(self, self.settings.batch_size)
            self._cut(*chosen_by(costs, self.settings.most_workers, self.schedule.num_slices))
        while not self._compute_first(out):
            self._cut_smaller()
        odd: list[str] = []
        if self.probe and self.program.loop is not None:
            self._compute_again(out)
        elif self.probe:
            odd.append(self._note_cost(float(out.groups[-1][0])))
            # The first worker, or whoever checks; what it gives others is compared with that of the first.
            if _number(self.settings.name) <= 1 and not self.schedule.asynchronous:
                odd.append(self._compute_again(out))
            if tail := short_tail(self.schedule):  # it is tried now, and not at the end of an epoch
                self.try_out(tail)
        if problem := self.program.rules.problem(
            self.replica.metrics.told, tests=self.sources.test is not None
        ):
            raise ProgramError(f"{self.program.path}: {problem}.")
        for measure in self.replica.metrics.summed:
            if measure.of and too_many(measure.of, self.schedule.num_slices):
                raise ProgramError(
                    f"{self.program.path}: {measure.name!r} of metrics() keeps the greatest or least of each "
                    f"slice, of which there can be {PLACES} then: use fewer --slices."
                )
        self._check_frozen()
        _check_names(self.replica, self.program.path)
        later = {entry.name for entry in self.replica.layout.entries if entry.rounds and entry.rounds[0] > 0}
        unused = ", ".join(name for name in self.replica.unused if name not in later)  # round 0 was computed
        warnings = [_UNUSED.format(unused)] if unused else []
        if self.program.metrics is not None and self.sources.test is None:
            warnings.append('metrics() is not called: data() returns no "test" source')
        warnings += [text for text in odd if text]
        warnings += [text for measure in self.replica.metrics.summed if (text := roughness(measure))]
        return self.spec(warnings)

    def _compute_first(self, out: Vector) -> bool:
        """Computes the first slice. False if memory is short for it, and perhaps not for smaller ones.

        Raises ProgramError if forward() raises on it and on each of its records alone.
        """
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        number = next(n for n in range(self.schedule.num_slices) if len(batches.rows(work, n)))
        rows = batches.rows(work, number)
        try:
            self.replica.compute(batches.of_rows(Kind.TRAIN, rows), 0, 1.0, out)
        except (Exception, SystemExit) as error:  # whatever the user's program raises
            if lacks_memory(error):
                if self.settings.free_slices and 2 * self.schedule.num_slices <= self._most_slices:
                    return False
                raise OutsideError(
                    f"{describe(error, self.program.path)}: there is too little memory for a slice of "
                    f"{len(rows)} record{'s' * (len(rows) != 1)}, of which a batch of "
                    f"{self.settings.batch_size} has {self.schedule.num_slices}. Use more --slices, or a "
                    "smaller --batch-size.",
                    for_all=False,
                ) from error
            if is_of_kernel(error):
                raise ProgramError(
                    f"{describe(error, self.program.path)}: a kernel has failed on the first slice. Most "
                    "often an index is out of range, such as a label for which there is no class; with "
                    "--device cpu the operation is named."
                ) from error
            found = blame(error, self.program.path, self.replica, batches, rows, out)
            if len(found.rows) == len(rows):
                text = found.text if isinstance(error, CostError) else f"forward() raised {found.text}"
                raise ProgramError(f"{self.program.path}: {text}{self._hint(error)}") from error
        else:
            self.probe = _hash_of(out)
            self.replica.rehearsed()
        return True

    def _compute_again(self, out: Vector) -> str:
        """A warning, if the first slice gives something else the second time; "" if it does not.

        Raises ProgramError where the same answer is promised: the model would follow from who computes what.
        """
        if (second := self._given_again(out)) == self.probe:
            return ""
        if self.program.loop is not None:
            raise LoopError(
                f"{self.program.path}: loop() gave something else for the same slice when it was given it "
                "again. What it gives must follow from the slice, the parameters, totals and what is kept."
            )
        if second == self._given_again(out):  # the first call has compiled something: TorchScript does so
            return ""
        text = (
            "forward() gave something else for the same slice when it was given it again. It, and what makes "
            "its records, must follow from these, the parameters and the global random states alone: they "
            "may keep nothing from call to call (a counter, a hidden state, a generator of random numbers of "
            "their own), but in buffers, and change no parameter"
        )
        if self.settings.strict:
            raise ProgramError(f"{self.program.path}: {text}. Allow it with fingerprint: warn.")
        return f"{text}: the same answer is no longer promised"

    def _given_again(self, out: Vector) -> str:
        """What the first slice gives now, as a hash. Those of other workers are compared with the first."""
        first = self.probe
        self._compute_first(out)
        again, self.probe = self.probe, first
        return again

    @property
    def _most_slices(self) -> int:
        return min(MOST_CHOSEN, self.settings.batch_size)

    def _cut(self, num_slices: int, why: str) -> None:
        self.schedule = msgspec.structs.replace(self.schedule, num_slices=num_slices)
        self.slices_why = why
        print(f"{num_slices} slices: {why}", flush=True)

    def _cut_smaller(self) -> None:
        count = self.schedule.num_slices
        records = self.schedule.full_slice
        why = f"there is too little memory for {count}, of {records} record{'s' * (records != 1)} each"
        self._cut(2 * count, why)

    @cached_property
    def records(self) -> str:
        """A hash of those that were in memory when it was first asked for, before any slice was computed."""
        return records_of(self.sources)

    def spec(self, warnings: Sequence[str] = ()) -> Spec:
        """What is told of the program."""
        return Spec(
            framework=self.replica.framework,
            entries=self.replica.layout.entries,
            optimizer=self.replica.optimizers.optimizer,
            metrics=self.replica.metrics.told,
            num_records=self.schedule.num_records,
            num_test=self.schedule.num_test,
            data_signature=self.sources.train.signature,
            warnings=tuple(warnings),
            tables=self.replica.tables,
            files=files_of(self.sources),
            frozen=self.frozen,
            others=self.replica.optimizers.others,
            measures=self.replica.metrics.summed,
            rules=self.program.rules,
            updates_before=self.updates_before,
            paced=self.is_paced,
            also=self.replica.also,
            passing=self.replica.passing,
        )

    def _check_frozen(self) -> None:
        """Raises ProgramError if the first slice has changed a parameter that is not trained."""
        for before, now in zip(self.frozen, frozen_of(self.replica.frozen()), strict=True):
            if before != now:
                raise ProgramError(f"{self.program.path}: {CHANGED.format(name=before.name)}")

    def _hint(self, error: BaseException) -> str:
        """What may be behind an error: of tensors that do not go together, what there was; and of a model of
        float64 with tables, that their rows are float32."""
        doubles = [
            e.name for e in self.replica.layout.entries if e.rule is Rule.UPDATE and e.dtype == "float64"
        ]
        if isinstance(error, ProgramError):
            return ""
        if not (doubles and self.replica.tables):
            return self._given() if ABOUT_TENSORS.search(str(error)) else ""
        return (
            f". Rows of ef.Embedding are float32, and {doubles[0]} is float64: convert what is looked up, "
            "or make the model of float32."
        )

    def _given(self) -> str:
        """The columns of a batch, by the names that they have in forward()."""
        parts = (f"{name} {array.dtype}{list(array.shape[1:])}" for name, array in self.sample.items())
        return f". A record has {', '.join(parts)}: data() may make another type or shape of a column"

    def _note_cost(self, cost: float) -> str:
        """A warning, if the first cost of all is not finite, and such steps are left out; "" if it is.

        Raises ProgramError where they are not.
        """
        try:
            check_cost(cost)
        except CostError as error:
            if self.settings.on_nan != "skip":
                raise ProgramError(f"{self.program.path}: {error} It was that of the first slice.") from error
            return f"in the first slice, {error}"
        return ""


def load_sources(settings: MemberSettings) -> tuple[Program, Sources]:
    """The program and its records, before there is a model. Raises ProgramError or DataError."""
    copy = copy_of(settings)
    import_library(settings.program, copy)
    set_up(settings.seed, settings.threads)
    arguments.give(settings.args)
    pins.keep(_pins(settings))
    program = load(settings.program, copy)
    return program, _open_sources(program, settings.data)


def _pins(settings: MemberSettings) -> Pins:
    """A worker of a run has a master; others apply what was trained, and need but columns and rules."""
    if not settings.master:
        return Pins()
    checkpoints = settings.checkpoint_place or settings.run_dir
    return Pins(storage_of(settings.run_dir), lambda: bool(commits(storage_of(checkpoints))))


def _sees_steps(entry: Entry) -> bool:
    """Whether it is made of all slices of a step: the loop of a program's own asks for it."""
    return entry.rule in (Rule.TOTAL, Rule.KEPT) or bool(entry.rounds)


def _problem(groups: Groups, tables: Sequence[TableSpec], *, asynchronous: bool) -> str:
    """What is wrong with the model's optimizers for this run, if anything is."""
    first = groups.optimizer
    if asynchronous and first.clip_norm is not None:
        return (
            "the optimizer's clip_norm is for the gradients of a whole step, which with mode: async are "
            "never together. Leave it out, or use mode: sync."
        )
    whole = [each for each in (first, *groups.others) if isinstance(each, PER_TENSOR)]
    if asynchronous and whole:
        return (
            f"ef.{type(whole[0]).__name__} follows from norms over whole tensors, and with mode: async there "
            "is never all of one at once. Name another, such as ef.AdamW(), or use mode: sync."
        )
    if isinstance(first, PER_TENSOR) and any(table.optimizer is None for table in tables):
        return (
            f"ef.{type(first).__name__} follows from norms over a whole tensor, and of a table "
            "only the rows that are looked up change. Give each ef.Embedding another, such as ef.Adam()."
        )
    return ""


def _as_begun(settings: MemberSettings) -> tuple[dict[str, Array], int]:
    """Of a run that began with the weights of another: its parameters that are not trained, and how many
    updates its optimizer's first state has seen."""
    storage = storage_of(settings.checkpoint_place or settings.run_dir)
    if not commits(storage):
        return {}, 0
    return of_one(
        storage,
        lambda: load_manifest(storage, commits(storage)[-1]),
        lambda found: (dict(read_frozen(storage, found.frozen)), found.updates_before),
    )


def files_of(sources: Sources) -> tuple[FileId, ...]:
    """Those that the records come from."""
    return folded([*sources.train.files, *(sources.test.files if sources.test else ())])


def records_of(sources: Sources) -> str:
    """A hash of those in memory; "": there are none."""
    return held_hash([each for each in (sources.train, sources.test) if each is not None])


def _check_names(replica: Replica, path: str) -> None:
    """Raises ProgramError for a name of a parameter that cannot be a key of checkpoints and messages."""
    for entry in replica.layout.entries:
        if sendable(entry.name, NAME_CHARS) != entry.name:
            raise ProgramError(
                f"{path}: a parameter is named {sendable(ascii(entry.name), NAME_CHARS)}; its name must be "
                f"text that can be encoded, of at most {NAME_CHARS:,} characters."
            )


def _number(name: str) -> int:
    """Of a worker, by its name; of whoever else computes, 0."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _hash_of(gradient: Vector) -> str:
    """64 bits that follow from all of it (XXH3)."""
    hashed = xxhash.xxh3_64()
    for group in gradient.groups:
        hashed.update(group.data)
    for rows in gradient.rows:
        for array in rows:
            hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()


def _sums(vector: Vector) -> list[int]:
    """A number for the bits of each group: not proof against malice, but quick."""
    return [int(np.add.reduce(group.view(np.uint64))) for group in vector.groups]


def _open_sources(program: Program, path: str) -> Sources:
    if path:
        return Sources(open_path(path), None)
    if program.data is None:
        reader = getattr(program, program.reads)
        wanted = [name for name in inspect.signature(reader).parameters if name != "params"]
        raise DataError(
            f"{program.path}: defines no data(), and no --data is given; one of both is needed. "
            f"{program.reads}() wants the columns {', '.join(wanted) or '(none)'}."
        )
    with blaming(program, "data"):
        return open_source(program.data())


def _measuring(
    program: Program, binding: Mapping[str, str], names: Sequence[str], positional: bool
) -> tuple[Program, tuple[str, ...]]:
    """The program with metrics() taking forward()'s arguments, and which of those it takes."""
    of_column = {column: argument for argument, column in binding.items()}
    lengths = [column for column in of_column if column not in names]
    wanted = {a: of_column[c] for a, c in bind(program, "metrics", names, positional, lengths).items()}
    measure = program.metrics
    assert measure is not None

    def metrics(params: Any, **batch: Any) -> Any:
        return measure(params=params, **{argument: batch[source] for argument, source in wanted.items()})

    return replace(program, metrics=metrics), tuple(dict.fromkeys(wanted.values()))
