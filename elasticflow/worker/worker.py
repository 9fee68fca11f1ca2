"""The worker: computes its slices of each tick, pushes their sums, waits for the next version.

All it does in a tick follows from the version it has and the orders that came with it; the master is
not asked. Slices that the servers find overdue are computed while waiting.
"""

from __future__ import annotations

import gc
import os
import socket as sockets
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xxhash

from elasticflow.api import HUGE, is_number
from elasticflow.cluster.member import MasterLink, checked
from elasticflow.data import Sources, open_path, open_source
from elasticflow.errors import DataError, ElasticFlowError, ProgramError, ProtocolError, UnreadableError
from elasticflow.frameworks import CostError, Interrupted, Replica, check_cost, open_replica, set_up
from elasticflow.process.fingerprint import PROBE, fingerprint
from elasticflow.process.stacks import Activity
from elasticflow.process.texts import sendable
from elasticflow.program.copy import copy_of
from elasticflow.program.loading import Program, bind, blaming, describe, load, naming
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Rule, Vector
from elasticflow.step.schedule import Kind, Schedule, Work
from elasticflow.step.slices import Node, nodes_of
from elasticflow.storage.file_ids import FileId, folded
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import (
    Assignment,
    Attempt,
    Beat,
    Departing,
    Drain,
    Failed,
    Faulty,
    FromMaster,
    Heartbeat,
    Inspect,
    Inspected,
    Join,
    Leaving,
    Lost,
    Quarantine,
    Quit,
    Ready,
    Skipped,
    Spec,
)  # fmt: skip
from elasticflow.worker.batches import Batches, slice_seed
from elasticflow.worker.faults import blame
from elasticflow.worker.inspection import odd_gradient
from elasticflow.worker.notice import on_notice
from elasticflow.worker.shapes import Shape, short_tail
from elasticflow.worker.strategy import Event, Outgoing, Overdue, Position, Severed, Strategy, load_strategy
from elasticflow.worker.sums import Sums, Total
from elasticflow.worker.timeline import Timeline
from elasticflow.worker.trial import Begin, Deadly, Trial, Way, try_slice
from elasticflow.worker.whose_fault import TOLD_AS_THEY_ARE, OutsideError, spare_records

NAME_CHARS = 1000
"""The longest name of a parameter."""
RECENT = 9
"""So many measurements say how fast a worker is."""


class Loaded:
    """The user's program, ready to compute, before anything is known of the run.

    Raises ProgramError or DataError, with a text for the user.
    """

    def __init__(self, settings: MemberSettings) -> None:
        set_up(settings.seed, settings.threads)
        self.program: Program = load(settings.program, copy_of(settings))
        self.sources = _open_sources(self.program, settings.data)
        train, test = self.sources.train, self.sources.test
        names = [column.name for column in train.columns]
        self.binding = bind(self.program, "forward", names, train.positional)
        measured = None
        if test is not None and self.program.metrics is not None:
            self.program, measured = _measuring(self.program, self.binding, names, train.positional)
        columns = train.rows(np.arange(min(2, train.num_rows)))
        self._open_replica = partial(
            open_replica,
            self.program,
            seed=settings.seed,
            threads=settings.threads,
            sample={argument: columns[column] for argument, column in self.binding.items()},
            metric_arguments=measured,
            device=settings.device,
            number=_number(settings.name),
            graphs=settings.graphs,
        )
        with naming(settings.program):
            self.replica: Replica = self._open_replica()
        self._first_sums = _sums(self.replica.state)
        self.probe = ""
        """What the first slice gives, as a hash; "" if that raised, or was not computed yet."""
        self.schedule = Schedule(
            num_records=train.num_rows,
            num_test=test.num_rows if test else 0,
            batch_size=settings.batch_size,
            num_slices=settings.num_slices,
            asynchronous=settings.asynchronous,
            drop_last=settings.drop_last,
            epochs=1,
        )
        if not self.schedule.records_per_epoch:
            raise DataError(
                f"{settings.program}: the data has {train.num_rows} records, fewer than a batch, and "
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

    def learning_rate(self, work: Work) -> float | None:
        """The program's learning rate for a tick; None if it has none."""
        if self.program.learning_rate is None or work.kind is Kind.EVALUATE:
            return None
        with blaming(self.program, "learning_rate"):
            value = float(self.program.learning_rate(work.step - 1, work.epoch))
        if not is_number(value, 0):
            raise ProgramError(
                f"{self.program.path}: learning_rate({work.step - 1}, {work.epoch}) returned {value}; "
                f"it must be a number from 0 to {HUGE:g}."
            )
        return value

    def cost_of_first_slice(self) -> float:
        """Forward and backward on the first slice of the first step; returns its cost.

        Raises ProgramError if forward() raises, though perhaps on some of the records alone.
        """
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        out = Vector(self.replica.layout)
        with blaming(self.program, "forward"):
            self.replica.compute(batches.of_rows(Kind.TRAIN, batches.rows(work, 0)), 0, 1.0, out)
        cost = float(out.groups[-1][0])
        return cost if self.settings.on_nan == "skip" else check_cost(cost)

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
        except Exception as error:  # noqa: BLE001  (whatever the user's program raises)
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
        if self.schedule.asynchronous and self.replica.optimizer.clip_norm is not None:
            raise ProgramError(
                f"{self.program.path}: the optimizer's clip_norm is for the gradients of a whole step, "
                "which with mode: async are never together. Leave it out, or use mode: sync."
            )
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        number = next(n for n in range(self.schedule.num_slices) if len(batches.rows(work, n)))
        rows = batches.rows(work, number)
        out = Vector(self.replica.layout)
        self.learning_rate(work)
        odd = ""
        try:
            self.replica.compute(batches.of_rows(Kind.TRAIN, rows), 0, 1.0, out)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's program raises)
            found = blame(error, self.program.path, self.replica, batches, rows, out)
            if len(found.rows) == len(rows):
                text = found.text if isinstance(error, CostError) else f"forward() raised {found.text}"
                raise ProgramError(f"{self.program.path}: {text}{self._hint(error)}") from error
        else:
            self.probe = _hash_of(out)
            odd = self._note_cost(float(out.groups[-1][0]))
            if tail := short_tail(self.schedule):  # it is tried now, and not at the end of an epoch
                self.try_out(tail)
        _check_names(self.replica, self.program.path)
        unused = ", ".join(self.replica.unused)
        warnings = [f"these parameters got no gradient and will stay as they are: {unused}"] if unused else []
        if self.program.metrics is not None and self.sources.test is None:
            warnings.append('metrics() is not called: data() returns no "test" source')
        warnings += [odd] if odd else []
        return Spec(
            framework=self.replica.framework,
            entries=self.replica.layout.entries,
            optimizer=self.replica.optimizer,
            metrics=self.replica.metrics,
            num_records=self.schedule.num_records,
            num_test=self.schedule.num_test,
            data_signature=self.sources.train.signature,
            warnings=tuple(warnings),
            tables=self.replica.tables,
            files=_files_of(self.sources),
        )

    def _hint(self, error: BaseException) -> str:
        """What may be behind an error of a model of float64 with tables, whose rows are float32."""
        doubles = [
            e.name for e in self.replica.layout.entries if e.rule is Rule.UPDATE and e.dtype == "float64"
        ]
        if isinstance(error, ProgramError) or not (doubles and self.replica.tables):
            return ""
        return (
            f". Rows of ef.Embedding are float32, and {doubles[0]} is float64: convert what is looked up, "
            "or make the model of float32."
        )

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


def _files_of(sources: Sources) -> tuple[FileId, ...]:
    return folded([*sources.train.files, *(sources.test.files if sources.test else ())])


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
        raise DataError(f"{program.path}: defines no data(), and no --data is given; one of both is needed.")
    with blaming(program, "data"):
        return open_source(program.data())


def _measuring(
    program: Program, binding: Mapping[str, str], names: Sequence[str], positional: bool
) -> tuple[Program, tuple[str, ...]]:
    """The program with metrics() taking forward()'s arguments, and which of those it takes."""
    of_column = {column: argument for argument, column in binding.items()}
    wanted = {a: of_column[c] for a, c in bind(program, "metrics", names, positional).items()}
    measure = program.metrics
    assert measure is not None

    def metrics(params: Any, **batch: Any) -> Any:
        return measure(params=params, **{argument: batch[source] for argument, source in wanted.items()})

    return replace(program, metrics=metrics), tuple(dict.fromkeys(wanted.values()))


class _How(NamedTuple):
    """How a slice is computed: see ``Replica.compute``."""

    onto: bool
    outgoing: Outgoing | None = None
    lefts: Sequence[Vector] = ()
    meanwhile: Callable[[], None] | None = None


class Worker:
    """A worker from its first assignment on, through all generations of servers."""

    def __init__(
        self,
        loaded: Loaded,
        join: Join,
        assignment: Assignment,
        strategy: Strategy,
        link: MasterLink,
        timeline: Timeline,
    ) -> None:
        self._loaded, self._join, self._strategy, self._link = loaded, join, strategy, link
        self._name, self._seed = loaded.settings.name, assignment.seed
        self._replica = loaded.replica
        lookups = self._replica.lookups
        lookups.read_rows = lambda table, keys: strategy.read(table, keys, self._is_urgent)
        lookups.read_next = lambda table, keys: strategy.read(table, keys, self._is_urgent, early=True)
        self._schedule = assignment.schedule
        self._batches = loaded.batches(self._schedule)
        self._batches.exclude(assignment.excluded)
        self._timeline = timeline
        self._started_s: float | None = None
        """Seconds from the process's start until it was ready for the first time."""
        self._position: Position | None = None
        """In the present generation; None until there is one, and once the way there is lost."""
        self._severed: Severed | None = None
        self._faulty: dict[int, Faulty] = {}
        self._tries = 0
        self._careful: set[int] = set()
        """Slices of the present tick that are tried in another process before they are computed in this."""
        self._done: set[int] = set()
        """Slices of the present tick that this worker has pushed to all servers."""
        self._redo_until = 0
        """Ticks below were computed in a generation before this one."""
        self._slice_s = 0.0
        self._recent_s: deque[float] = deque(maxlen=RECENT)
        self._usual_s = 0.0
        """Seconds a slice took lately: the median, since one process stopped for a minute tells little."""
        self._unread: list[FromMaster] = []
        """What the master has said, and is still to be obeyed."""
        self._draining = self._leaving = self._ended = False
        self._skips = assignment.on_nan == "skip" and self._schedule.asynchronous
        """Whether this worker leaves out slices of its own, with numbers that are none."""
        self._inspects: tuple[int, ...] = ()
        """Slices to look at once the version of the present tick is here again."""
        self.generation = 0
        self.tick = -1
        self._computes: tuple[int, float] | None = None
        """The slice in work, and since when; None: it waits for others."""
        self._take_up(assignment)

    def run(self) -> None:
        """Trains until the run ends, or the worker is drained or told to quit."""
        while not self._leaving:
            self._catch_up()
            while self._position and not self._leaving:
                self._do_tick(self._position)

    # --- generations of servers ------------------------------------------------------------------

    def _take_up(self, assignment: Assignment) -> None:
        """Goes over to these servers."""
        from_nothing = not assignment.in_memory and assignment.restore_step is None
        if from_nothing and self._started_s is not None:
            self._loaded.make_first_values()
        self._part()
        self._severed = None
        self.generation = assignment.generation
        self._strategy.connect(assignment)

    def _part(self) -> None:
        """The present tick is not to be gone on with."""
        self._position = None
        self._inspects = ()
        self._replica.lookups.ahead.enter(-1)
        self._redo_until = max(self._redo_until, self.tick + (1 if self._done else 0))
        self._faulty.clear()
        self._careful.clear()
        self._done.clear()

    def _lose(self, event: Severed) -> None:
        """Tells the master, who answers with an Assignment, sooner or later."""
        self._part()
        self._severed = event
        self._link.send(Lost(name=self._name, member=event.member))

    def _catch_up(self) -> None:
        """Waits for a version to go on from."""
        first, since_s = self._started_s is None, time.monotonic()
        while not self._leaving and self._position is None:
            event = self._next_event()
            since_s = time.monotonic() if first else self._timeline.add("recovering", self.tick, since_s)
            if isinstance(event, Position):
                self._enter(event)
            elif isinstance(event, Severed):
                self._lose(event)
            elif event is None:
                self._obey_all()
        if self._position:
            if self._started_s is None:
                self._started_s = max(0.0, time.time() - self._loaded.settings.started_s)  # clocks are set
            self._say_ready()

    def _say_ready(self) -> None:
        assert self._started_s is not None
        self._link.send(Ready(name=self._name, generation=self.generation, started_s=self._started_s))

    def _enter(self, position: Position) -> None:
        self._position = position
        self._faulty.clear()
        self._careful.clear()
        self._done.clear()
        self._replica.refresh()
        self._replica.lookups.ahead.enter(position.version)

    # --- ticks -----------------------------------------------------------------------------------

    def _do_tick(self, position: Position) -> None:
        """Computes this worker's slices, and overdue ones, until there is something else to be done."""
        mine = _slices_of(position, self._name)
        if position.version >= self._schedule.total_ticks or self._draining and not mine:
            self._leaving, self._ended = True, position.version >= self._schedule.total_ticks
            return
        self.tick = position.version
        work = self._schedule.at(self.tick)
        self._compute(position, work, mine)
        self._fetch_ahead(work, mine)
        since_s = time.monotonic()
        while not self._leaving and self._position is position:
            event = self._next_event()
            since_s = self._timeline.add("waiting", self.tick, since_s)
            if isinstance(event, Position):
                self._leaving = self._ended = position.finish and event.version == position.version + 1
                self._enter(event)
            elif isinstance(event, Severed):
                self._lose(event)
            elif isinstance(event, Overdue):
                if self._inspects:
                    self._inspect(position)
                elif event.tick == self.tick:
                    self._careful.update(event.careful)
                    # Each server asks for itself, and for the same slices.
                    fresh = [n for n in event.slices if n not in self._faulty and n not in self._done]
                    one_by_one = self._schedule.applies_slices(self.tick)
                    if one_by_one:
                        self._replica.refresh()
                    now = fresh[:1] if one_by_one else fresh
                    self._timeline.num_backup += sum(n not in mine for n in now)
                    if fresh:
                        self._compute(position, work, fresh)
                        self._fetch_ahead(work, mine)
                    elif one_by_one:
                        self._strategy.ask(position)  # to be told of this it had to stop waiting
            else:
                self._obey_all()
                if self._draining and not mine and not self._faulty:
                    self._leaving = True
            since_s = time.monotonic()

    def _next_event(self) -> Event:
        """Waits for what the servers have to say. None: the master has said something."""
        return None if self._unread else self._strategy.wait()

    def _obey_all(self) -> None:
        """What the master has said, one by one: what is still to come may end a wait for rows."""
        self._unread += self._link.received()
        while self._unread:
            self._obey(self._unread.pop(0))

    def _is_urgent(self) -> bool:
        """Whether the master has said something, not obeyed yet, for which rows are not to be waited for.

        A new master is answered at once: servers that it has halted, since it knows nothing of the program,
        answer nobody until it does.
        """
        self._unread += self._link.received()
        if any(isinstance(message, Beat) for message in self._unread):
            self._unread = [message for message in self._unread if not isinstance(message, Beat)]
            self._repeat()
        return any(isinstance(message, (Assignment, Quit)) for message in self._unread)

    def _obey(self, message: FromMaster) -> None:
        position = self._position
        if isinstance(message, Quit):
            self._leaving = True
        elif isinstance(message, Drain):
            self._draining = True
        elif isinstance(message, Assignment):
            self._batches.exclude(message.excluded)
            if message.generation >= self.generation + (self._severed is None):
                self._take_up(message)
        elif isinstance(message, Quarantine):
            self._batches.exclude(message.excluded)
            again = sorted(self._faulty.keys() | self._careful - self._done)
            self._faulty.clear()
            if position:
                self._compute_more(position, again)
        elif isinstance(message, Attempt):
            if position and message.tick == position.version and message.slice not in self._faulty:
                self._careful.update([message.slice] if message.careful else [])
                self._compute_more(position, [message.slice])
        elif isinstance(message, Inspect):
            if position and message.tick == position.version:
                self._inspects = message.slices
                if self._strategy.recall(position, message.slices):
                    self._inspect(position)
        elif isinstance(message, Beat):
            self._repeat()

    def _repeat(self) -> None:
        """Tells a new master what the one before may have taken with it."""
        self._link.send(msgspec.structs.replace(self._join, excluded=self._batches.excluded))
        if self._severed:
            self._link.send(Lost(name=self._name, member=self._severed.member))
        elif self._position:
            self._say_ready()
        for faulty in self._faulty.values():
            self._link.send(faulty)

    # --- computing -------------------------------------------------------------------------------

    def _compute(self, position: Position, work: Work, numbers: Iterable[int]) -> None:
        """Computes slices, pushes their sums, and says that there is nothing more to push.

        If rows are not to be had any more the tick goes on without this worker, or the way to the servers is
        lost: what is left of the slices is not missed. Where slices are applied one by one: computes the
        first, and asks for a newer state for the others.
        """
        slices, later = tuple(numbers), tuple[int, ...]()
        if self._schedule.applies_slices(work.tick):
            slices, later = slices[:1], slices[1:]
        try:
            if self._careful.intersection(slices):
                safe = tuple(number for number in slices if number not in self._careful)
                self._push_nodes(position, work, nodes_of(safe), asks=False)
                slices = self._tried(work, [number for number in slices if number in self._careful])
            asked = self._push_nodes(position, work, nodes_of(slices), asks=not later)
        except Interrupted:
            asked, later = False, ()
        if later:
            self._strategy.recall(position, later, rest=True)
        elif not asked:
            self._strategy.ask(position)

    def _tried(self, work: Work, numbers: Sequence[int]) -> tuple[int, ...]:
        """Those of these slices that another process survives. Of the others the master is told."""
        since_s = time.monotonic()
        what = f"slices {', '.join(map(str, numbers))} of step {work.step}"
        print(f"workers may have died of {what}: tried in another process", flush=True)
        begin = Begin(
            settings=self._loaded.settings,
            schedule=self._schedule,
            seed=self._seed,
            excluded=self._batches.excluded,
        )
        way = Way(self._strategy.read, self._is_urgent, self._link.wake_fd)
        passed: list[int] = []
        with Trial(begin, self._replica.state, way, moves=self._count_try) as trial:
            for number in numbers:
                rows = [int(row) for row in self._batches.rows(work, number)]
                deadly = try_slice(partial(trial.outcome, work.tick, number), rows)
                if deadly is None:
                    passed.append(number)
                else:
                    self._report_deadly(work, number, deadly)
        now_s = self._timeline.add("waiting", work.tick, since_s)
        print(f"{what}: {len(passed)} of {len(numbers)} well, after {now_s - since_s:.1f} s", flush=True)
        return tuple(passed)

    def _count_try(self) -> None:
        self._tries += 1

    def _report_deadly(self, work: Work, number: int, deadly: Deadly) -> None:
        tests = work.kind is Kind.EVALUATE
        self._faulty[number] = Faulty(
            name=self._name,
            tick=work.tick,
            slice=number,
            rows=() if tests else deadly.rows,
            text=deadly.text,
            traceback="",
            dies=True,
            test_rows=deadly.rows if tests else (),
        )
        self._link.send(self._faulty[number])

    def _push_nodes(self, position: Position, work: Work, nodes: Sequence[Node], *, asks: bool) -> bool:
        """Whether the servers were asked for the next version, with the last push; if it ``asks``."""
        lr = self._loaded.learning_rate(work)
        asked = False
        for node in nodes:
            since_s = time.monotonic()
            last = asks and node is nodes[-1]
            totals, outgoing = self._add_up(position, work, node, lr, last)
            num_slices = node.stop - node.first
            now_s = self._timeline.add("computing", work.tick, since_s, again=work.tick < self._redo_until)
            slice_s = (now_s - since_s) / num_slices
            self._timeline.num_slices += num_slices
            self._slice_s = slice_s
            self._recent_s.append(slice_s)
            self._usual_s = median(self._recent_s)
            for number, (part, total) in enumerate(totals):
                self._done.update(range(part.first, part.stop))
                asked = last and number == len(totals) - 1
                self._strategy.push(position, part, total, lr=lr, slice_s=slice_s, last=asked)
            if outgoing:
                self._done.update(range(node.first, node.stop))
                asked = last
                outgoing.finish(slice_s)
        return asked

    def _compute_more(self, position: Position, numbers: Sequence[int]) -> None:
        """By the master's order: now, or as soon as this tick's version is here again."""
        if not numbers:
            self._strategy.ask(position)
        elif self._strategy.recall(position, numbers):
            self._compute(position, self._schedule.at(position.version), numbers)

    def _add_up(
        self, position: Position, work: Work, node: Node, lr: float | None, last: bool
    ) -> tuple[list[Total], Outgoing | None]:
        """Computes a node's slices. What is to be pushed now, or to be finished as its push has begun."""
        join = self._replica.add if self._sums_apart(work) else None
        sums = Sums(node, work.kind, self._strategy.give_back, self._strategy.rounding, join)
        number = node.stop - 1
        try:
            for earlier in range(node.first, number):
                self._take(sums, work, earlier)
            parts = sums.all_but_last()
            whole = work.kind is Kind.EVALUATE or self._skips or not self._strategy.streams
            if parts is None or whole:
                self._take(sums, work, number)
                return self._delivered(work, sums.totals), None
            return self._stream(position, work, node, lr, last, sums, parts)
        except Interrupted:
            for _, vector in sums.totals:
                if vector is not None:
                    self._strategy.give_back(vector)
            raise

    def _stream(
        self,
        position: Position,
        work: Work,
        node: Node,
        lr: float | None,
        last: bool,
        sums: Sums,
        parts: list[Vector],
    ) -> tuple[list[Total], Outgoing | None]:
        """Computes a node's last slice, and sends of the sum over all of them what is final by then."""
        apart, number = not parts or self._strategy.rounding is not None, node.stop - 1
        if apart:
            parts = [*parts, self._strategy.spare()]
        reads_on = partial(self._fetch_ahead, work, _slices_of(position, self._name), node)
        lefts = parts[:-1] if self._sums_apart(work) else []
        pushed = parts[:1] if lefts else parts
        outgoing = self._strategy.begin(position, node, pushed, lr=lr, slice_s=self._slice_s, last=last)
        filled: bool | None = False
        try:
            filled = self._slice(
                work, number, parts[-1], _How(not apart, outgoing, lefts, reads_on if last else None)
            )
        except Interrupted:
            if outgoing.begun:  # by a lookup that the backward pass does again
                sums.totals.clear()
            raise
        finally:
            if apart and not filled and not outgoing.begun:
                self._strategy.give_back(parts[-1])
        if filled:
            for part in parts[len(pushed) :]:
                self._strategy.give_back(part)
            return [], outgoing
        if filled is not None:
            sums.take(number, None)
        return self._delivered(work, sums.totals), None

    def _delivered(self, work: Work, totals: list[Total]) -> list[Total]:
        """The same, in this memory."""
        for _, total in totals:
            if total is not None and self._sums_apart(work):
                self._replica.deliver(total)
        return totals

    def _sums_apart(self, work: Work) -> bool:
        """Whether slices are added up where they are computed, before their sums come to this memory."""
        whole = work.kind is Kind.TRAIN and not self._skips
        return whole and self._replica.apart and self._strategy.rounding is None

    def _inspect(self, position: Position) -> None:
        """Tells in which of the slices a tick that diverged began: computes each by itself."""
        slices, self._inspects = self._inspects, ()
        work, out = self._schedule.at(position.version), self._strategy.spare()
        found = Inspected(name=self._name, tick=work.tick)
        for number in slices:
            with suppress(Exception, Interrupted):  # there is nothing to be said of it then
                if self._gradient(work, number, out, _How(onto=False)) and (
                    parameter := self._odd_in(work, out)
                ):
                    weight = len(self._batches.rows(work, number)) / work.num_records
                    cost = f"{float(out.groups[-1][0]) / weight:g}"
                    found = Inspected(
                        name=self._name, tick=work.tick, slice=number, parameter=parameter, cost=cost
                    )
                    break
        self._strategy.give_back(out)
        self._link.send(found)

    def _odd_in(self, work: Work, out: Vector) -> str:
        if self._sums_apart(work):
            self._replica.deliver(out)
        return odd_gradient(out)

    def _take(self, sums: Sums, work: Work, number: int) -> None:
        """Computes one slice, and adds it to the others, unless the program raises on it."""
        onto = sums.onto(number)
        vector = onto or self._strategy.spare()
        filled: bool | None = False
        try:
            filled = self._slice(work, number, vector, _How(onto=onto is not None))
        finally:
            if onto is None and not filled:
                self._strategy.give_back(vector)
        if filled is not None:
            sums.take(number, vector if filled else None)

    def _slice(self, work: Work, number: int, out: Vector, how: _How) -> bool | None:
        """Computes one slice into ``out``, or adds it to what is there. Whether it holds any records.

        None if the program raises on it, twice, which the master is told. Raises ProgramError if it does so
        when part of the slice may have been sent: it can no more be left out.
        """
        self._computes = number, time.monotonic()
        try:
            return self._try_slice(work, number, out, how)
        finally:
            self._computes = None

    def _try_slice(self, work: Work, number: int, out: Vector, how: _How) -> bool | None:
        outgoing = how.outgoing
        for attempt in (1, 2):
            try:
                if work.kind is Kind.EVALUATE:
                    return self._evaluate(work, number, out, how.onto)
                return self._gradient(work, number, out, how)
            except TOLD_AS_THEY_ARE:
                raise  # no record is to blame
            except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever the user's program raises)
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

    def _gradient(self, work: Work, number: int, out: Vector, how: _How) -> bool:
        batch, num_records = self._batches.train(work, number)
        if batch is None:
            return False
        weight = 1.0 if self._schedule.asynchronous else num_records / work.num_records
        seed = slice_seed(self._seed, work.tick, number)
        self._replica.compute(
            batch,
            seed,
            weight,
            out,
            onto=how.onto,
            ready=how.outgoing.ready if how.outgoing else None,
            lefts=how.lefts,
            deliver=not self._sums_apart(work),
            meanwhile=how.meanwhile,
        )
        if self._skips and odd_gradient(out):
            self._link.send(
                Skipped(name=self._name, generation=self.generation, tick=work.tick, slice=number)
            )
            return False
        return True

    def _evaluate(self, work: Work, number: int, out: Vector, onto: bool) -> bool:
        seed = slice_seed(self._seed, work.tick, number)
        target = out.groups[-1]  # the report is the last entry, in a group of its own
        report = np.zeros_like(target)
        for batch, num_records in self._batches.test(work, number):
            weight = num_records / work.num_records
            for place, value in enumerate(self._replica.evaluate(batch, seed)):
                report[place] += value * weight
        np.add(target, report, out=target) if onto else np.copyto(target, report)
        return True

    def _report_fault(self, work: Work, number: int, error: BaseException) -> None:
        scratch = self._strategy.spare()
        rows = self._batches.rows(work, number)
        alone = rows if work.kind is Kind.TRAIN else rows[:0]
        try:
            path, moves = self._loaded.program.path, self._count_try
            found = blame(error, path, self._replica, self._batches, alone, scratch, moves)
        finally:
            self._strategy.give_back(scratch)
        self._faulty[number] = Faulty(
            name=self._name,
            tick=work.tick,
            slice=number,
            rows=found.rows,
            text=found.text,
            traceback=found.traceback,
        )
        self._link.send(self._faulty[number])

    def _fetch_ahead(self, work: Work, mine: range, node: Node | None = None) -> None:
        """While others still compute: reads what this worker will most likely need next.

        node: whose last slice is under way on another device.
        """
        under_way = range(node.first, node.stop) if node else ()
        left = set(mine) - self._done - self._faulty.keys() - set(under_way)
        if mine and not left and work.tick + 1 < self._schedule.total_ticks:
            following = self._schedule.at(work.tick + 1)
            with suppress(Exception):  # it raises again in its own tick, and is dealt with there
                self._batches.fetch(following, mine)
                batch = self._batches.fetched(following, mine[0])
                if batch is not None and not self._schedule.applies_slices(work.tick):
                    self._replica.ask_early(batch)

    @property
    def doing(self) -> str:
        """What it does or waits for, in words that follow its name. For any thread."""
        computes, position = self._computes, self._position
        if computes:
            number, since_s = computes
            what = "evaluates" if self._schedule.evaluates(self.tick) else "computes"
            return f"{what} slice {number} of tick {self.tick}, for {time.monotonic() - since_s:.0f} s"
        if position:
            return f"waits for version {position.version + 1}"
        return "waits for other servers" if self._severed else "waits for a version to begin with"

    def heartbeat(self) -> Heartbeat:
        """Called by the master link's thread."""
        return Heartbeat(
            name=self._name,
            tick=self.tick,
            generation=self.generation,
            slice_s=self._usual_s,
            usage=self._timeline.usage(),
            dropped=self._strategy.dropped,
            tries=self._tries,
        )

    def last_word(self) -> Leaving:
        """Once it has run."""
        ended = self.generation if self._ended else 0
        return Leaving(name=self._name, usage=self._timeline.usage(), ended=ended)


def _slices_of(position: Position, name: str) -> range:
    for share in position.shares:
        if share.worker == name:
            return range(share.first, share.stop)
    return range(0)


def main(settings: MemberSettings, keys: MemberKeys) -> int:
    """A worker's whole life; returns its exit code."""
    running: list[Worker] = []
    activity = Activity()

    def loading() -> Heartbeat:
        return Heartbeat(name=settings.name, tick=-1, activity=activity.look())

    link = MasterLink.of(
        settings,
        keys,
        lambda: running[0].heartbeat() if running else loading(),
        lambda: running[0].doing if running else "loads the program and its data",
    )
    on_notice(lambda reason: link.send(Departing(name=settings.name, reason=reason)))
    try:
        link.start_heartbeats()  # the master answers them: whoever loads for long must not think it gone
        loaded = Loaded(settings)
        join = _join_of(loaded)
        assignment = _admitted(join, link)
        if assignment is None:
            return 0
        _train(loaded, join, assignment, keys, link, running)
        link.send(running[0].last_word())
        return 0
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the master is told, whatever it is)
        text = str(error) if isinstance(error, ElasticFlowError) else f"{type(error).__name__}: {error}"
        trace = traceback.format_exc()
        for_all = isinstance(error, OutsideError) and error.for_all
        kind = type(error).__name__
        link.send(Failed(name=settings.name, kind=kind, text=text, traceback=trace, for_all=for_all))
        traceback.print_exc()
        return 1
    finally:
        link.close()


def _join_of(loaded: Loaded) -> Join:
    """Who this is."""
    settings = loaded.settings
    since_s = time.monotonic()
    spec = loaded.rehearse()
    try:
        checked(Join(name=settings.name, role="worker", host="", pid=0, spec=spec))
    except ProtocolError as error:
        raise ProgramError(
            f"{settings.program}: there is something in what it says of the model that cannot be: {error}."
        ) from error
    return Join(
        name=settings.name,
        role="worker",
        host=sockets.gethostname(),
        pid=os.getpid(),
        fingerprint={**fingerprint(settings.threads, loaded.replica.facts), PROBE: loaded.probe},
        spec=spec,
        rehearsed_s=time.monotonic() - since_s,
    )


def _admitted(join: Join, link: MasterLink) -> Assignment | None:
    """Tells the master who this is; None: it is not needed."""
    while True:
        link.send(join)
        answer = link.wait_for((Assignment, Quit, Beat))  # Beat: of another master
        if not isinstance(answer, Beat):
            return answer if isinstance(answer, Assignment) else None


def _train(
    loaded: Loaded,
    join: Join,
    assignment: Assignment,
    keys: MemberKeys,
    link: MasterLink,
    running: list[Worker],
) -> None:
    settings = loaded.settings
    strategy_class = load_strategy(settings.strategy)
    strategy = strategy_class(settings, keys, loaded.replica.state, link.wake_fd)
    path = Path(settings.run_dir, "timelines", f"{settings.name}.jsonl") if settings.timeline else None
    timeline = Timeline(path, time.time() - settings.started_s)
    running.append(Worker(loaded, join, assignment, strategy, link, timeline))
    gc.freeze()  # what is there now stays; later collections need not look at it
    try:
        running[0].run()
    finally:
        timeline.close()
        strategy.close()
