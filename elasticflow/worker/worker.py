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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from elasticflow.data import Sources, open_path, open_source
from elasticflow.errors import DataError, ElasticFlowError, ProgramError
from elasticflow.fingerprint import fingerprint
from elasticflow.frameworks import CostError, Replica, open_replica, set_up
from elasticflow.keys import MemberKeys
from elasticflow.layout import Vector
from elasticflow.member import MasterLink
from elasticflow.messages import (
    Assignment,
    Attempt,
    Drain,
    Failed,
    Faulty,
    FromMaster,
    Heartbeat,
    Join,
    Leaving,
    Quarantine,
    Quit,
    Ready,
    Spec,
)  # fmt: skip
from elasticflow.program import Program, bind, blaming, load, naming
from elasticflow.schedule import Kind, Schedule, Work
from elasticflow.settings import MemberSettings
from elasticflow.slices import Node, nodes_of
from elasticflow.strategies import Overdue, Position, Strategy, load_strategy
from elasticflow.worker.batches import Batches, slice_seed
from elasticflow.worker.faults import Blame, blame
from elasticflow.worker.sums import Total, total_of
from elasticflow.worker.timeline import Timeline


class Loaded:
    """The user's program, ready to compute, before anything is known of the run.

    Raises ProgramError or DataError, with a text for the user.
    """

    def __init__(self, settings: MemberSettings) -> None:
        set_up(settings.seed, settings.threads)
        self.program: Program = load(settings.program)
        self.sources = _open_sources(self.program, settings.data)
        train, test = self.sources.train, self.sources.test
        names = [column.name for column in train.columns]
        self.binding = bind(self.program, "forward", names, train.positional)
        measured = None
        if test is not None and self.program.metrics is not None:
            self.program, measured = _measuring(self.program, self.binding, names, train.positional)
        columns = train.rows(np.arange(min(2, train.num_rows)))
        with naming(settings.program):
            self.replica: Replica = open_replica(
                self.program,
                seed=settings.seed,
                threads=settings.threads,
                sample={argument: columns[column] for argument, column in self.binding.items()},
                metric_arguments=measured,
            )
        self.schedule = Schedule(
            num_records=train.num_rows,
            num_test=test.num_rows if test else 0,
            batch_size=settings.batch_size,
            num_slices=settings.num_slices,
            epochs=1,
        )
        self.settings = settings

    def batches(self, schedule: Schedule) -> Batches:
        return Batches(schedule, self.sources, self.settings.seed, self.binding, self.replica)

    def learning_rate(self, work: Work) -> float | None:
        """The program's learning rate for a tick; None if it has none."""
        if self.program.learning_rate is None or work.kind is Kind.EVALUATE:
            return None
        with blaming(self.program, "learning_rate"):
            value = float(self.program.learning_rate(work.step - 1, work.epoch))
        if not 0 <= value < float("inf"):
            raise ProgramError(
                f"{self.program.path}: learning_rate({work.step - 1}, {work.epoch}) returned {value}; "
                "it must be a number >= 0."
            )
        return value

    def cost_of_first_slice(self) -> float:
        """Forward and backward on the first slice of the first step; returns its cost."""
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        out = Vector(self.replica.layout)
        self.replica.compute(batches.of_rows(Kind.TRAIN, batches.rows(work, 0)), 0, 1.0, out)
        return float(out.groups[-1][0])

    def rehearse(self) -> Spec:
        """Computes one slice, and tells what there is to know of the program.

        Raises ProgramError if forward() raises on that slice and on each of its records alone.
        """
        batches, work = self.batches(self.schedule), self.schedule.at(0)
        number = next(n for n in range(self.schedule.num_slices) if len(batches.rows(work, n)))
        rows = batches.rows(work, number)
        out = Vector(self.replica.layout)
        self.learning_rate(work)
        try:
            self.replica.compute(batches.of_rows(Kind.TRAIN, rows), 0, 1.0, out)
        except Exception as error:  # noqa: BLE001  (whatever the user's program raises)
            found = blame(error, self.program.path, self.replica, batches, rows, out)
            if len(found.rows) == len(rows):
                text = found.text if isinstance(error, CostError) else f"forward() raised {found.text}"
                raise ProgramError(f"{self.program.path}: {text}") from error
        unused = ", ".join(self.replica.unused)
        warnings = [f"these parameters got no gradient and will stay as they are: {unused}"] if unused else []
        if self.program.metrics is not None and self.sources.test is None:
            warnings.append('metrics() is not called: data() returns no "test" source')
        return Spec(
            framework=self.replica.framework,
            entries=self.replica.layout.entries,
            optimizer=self.replica.optimizer,
            metrics=self.replica.metrics,
            num_records=self.schedule.num_records,
            num_test=self.schedule.num_test,
            data_signature=self.sources.train.signature,
            warnings=tuple(warnings),
        )


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


class Worker:
    """A worker from its assignment on."""

    def __init__(
        self, loaded: Loaded, assignment: Assignment, strategy: Strategy, link: MasterLink, timeline: Timeline
    ) -> None:
        self._loaded, self._strategy, self._link = loaded, strategy, link
        self._name, self._seed = loaded.settings.name, assignment.seed
        self._replica = loaded.replica
        self._schedule = assignment.schedule
        self._batches = loaded.batches(self._schedule)
        self._batches.exclude(assignment.excluded)
        self._timeline = timeline
        self._faulty: dict[int, Blame] = {}
        self._done: set[int] = set()
        """Slices of the present tick that this worker has pushed to all servers."""
        self._slice_s = 0.0
        self._draining = self._quit = False
        self.tick = -1

    def run(self) -> None:
        """Trains until the run ends, or the worker is drained or told to quit."""
        position = self._strategy.catch_up()
        self._replica.refresh()
        self._link.send(Ready(name=self._name, started_s=time.time() - self._loaded.settings.started_s))
        while not self._quit and position.version < self._schedule.total_ticks:
            mine = _slices_of(position, self._name)
            if self._draining and not mine:
                break
            following = self._do_tick(position, mine)
            if following is None or position.finish and following.version == position.version + 1:
                break
            position = following

    def _do_tick(self, position: Position, mine: range) -> Position | None:
        """Computes this worker's slices, and overdue ones, until there is another version."""
        self.tick = position.version
        work = self._schedule.at(self.tick)
        self._faulty.clear()
        self._done.clear()
        self._compute(position, work, mine)
        self._fetch_ahead(work, mine)
        since_s = time.monotonic()
        while not self._quit:
            event = self._strategy.wait()
            since_s = self._timeline.add("waiting", self.tick, since_s)
            if isinstance(event, Position):
                self._replica.refresh()
                return event
            if isinstance(event, Overdue):
                if event.tick == self.tick:
                    # Each server asks for itself, and for the same slices.
                    fresh = [n for n in event.slices if n not in self._faulty and n not in self._done]
                    self._timeline.num_backup += len(fresh)
                    if fresh:
                        self._compute(position, work, fresh)
            else:
                for message in self._link.received():
                    self._obey(message, position, work)
                if self._draining and not mine and not self._faulty:
                    return None
            since_s = time.monotonic()
        return None

    def _obey(self, message: FromMaster, position: Position, work: Work) -> None:
        if isinstance(message, Quit):
            self._quit = True
        elif isinstance(message, Drain):
            self._draining = True
        elif isinstance(message, Quarantine):
            self._batches.exclude(message.excluded)
            again = sorted(self._faulty)
            self._faulty.clear()
            self._compute(position, work, again)
        elif isinstance(message, Attempt) and message.tick == self.tick and message.slice not in self._faulty:
            self._compute(position, work, [message.slice])

    # --- computing -------------------------------------------------------------------------------

    def _compute(self, position: Position, work: Work, numbers: Iterable[int]) -> None:
        """Computes slices, pushes their sums, and says that there is nothing more to push."""
        lr = self._loaded.learning_rate(work)
        nodes = nodes_of(tuple(numbers))
        asked = False
        for node in nodes:
            since_s = time.monotonic()
            totals = total_of(node, work.kind, partial(self._leaf, work), self._strategy.give_back)
            num_slices = node.stop - node.first
            slice_s = (self._timeline.add("computing", work.tick, since_s) - since_s) / num_slices
            self._timeline.num_slices += num_slices
            self._slice_s = slice_s
            for number, (part, total) in enumerate(totals):
                self._done.update(range(part.first, part.stop))
                asked = node is nodes[-1] and number == len(totals) - 1
                self._strategy.push(position, part, total, lr=lr, slice_s=slice_s, last=asked)
        if not asked:
            self._strategy.ask(position)

    def _leaf(self, work: Work, number: int, onto: Vector | None) -> Total | None:
        """One slice, added to ``onto`` if that is given.

        None if the program raises on it, twice, which the master is told.
        """
        vector = onto or self._strategy.spare()
        calculate = self._evaluate if work.kind is Kind.EVALUATE else self._gradient
        for attempt in (1, 2):
            try:
                filled = calculate(work, number, vector, onto is not None)
            except Exception as error:  # noqa: BLE001  (whatever the user's program raises)
                if attempt == 2:
                    self._report_fault(work, number, error)
            else:
                if not filled and onto is None:
                    self._strategy.give_back(vector)
                return Node(0, number), vector if filled else None
        if onto is None:
            self._strategy.give_back(vector)
        return None

    def _gradient(self, work: Work, number: int, out: Vector, onto: bool) -> bool:
        batch, num_records = self._batches.train(work, number)
        if batch is None:
            return False
        weight = num_records / work.num_records
        seed = slice_seed(self._seed, work.tick, number)
        self._replica.compute(batch, seed, weight, out, onto=onto)
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

    def _report_fault(self, work: Work, number: int, error: Exception) -> None:
        scratch = self._strategy.spare()
        rows = self._batches.rows(work, number)
        alone = rows if work.kind is Kind.TRAIN else rows[:0]
        found = blame(error, self._loaded.program.path, self._replica, self._batches, alone, scratch)
        self._strategy.give_back(scratch)
        self._faulty[number] = found
        self._link.send(
            Faulty(
                name=self._name,
                tick=work.tick,
                slice=number,
                rows=found.rows,
                text=found.text,
                traceback=found.traceback,
            )
        )

    def _fetch_ahead(self, work: Work, mine: range) -> None:
        """While others still compute: reads what this worker will most likely need next."""
        if mine and work.tick + 1 < self._schedule.total_ticks:
            with suppress(Exception):  # it raises again in its own tick, and is dealt with there
                self._batches.fetch(self._schedule.at(work.tick + 1), mine)

    def heartbeat(self) -> Heartbeat:
        """Called by the master link's thread."""
        return Heartbeat(name=self._name, tick=self.tick, slice_s=self._slice_s, usage=self._timeline.usage())


def _slices_of(position: Position, name: str) -> range:
    for share in position.shares:
        if share.worker == name:
            return range(share.first, share.stop)
    return range(0)


def main(settings: MemberSettings, keys: MemberKeys) -> int:
    """A worker's whole life; returns its exit code."""
    running: list[Worker] = []
    link = MasterLink(
        keys,
        settings.master,
        heartbeat=lambda: running[0].heartbeat() if running else Heartbeat(name=settings.name, tick=-1),
        heartbeat_s=settings.heartbeat_s,
        lost_s=settings.lost_s,
    )
    try:
        link.start_heartbeats()  # the master answers them: whoever loads for long must not think it gone
        loaded = Loaded(settings)
        spec = loaded.rehearse()
        link.send(
            Join(
                name=settings.name,
                role="worker",
                host=sockets.gethostname(),
                pid=os.getpid(),
                fingerprint=fingerprint(settings.threads),
                spec=spec,
            )
        )
        assignment = link.wait_for((Assignment, Quit))
        if isinstance(assignment, Quit):
            return 0
        assert isinstance(assignment, Assignment)
        _train(loaded, assignment, keys, link, running)
        link.send(Leaving(name=settings.name, usage=running[0].heartbeat().usage))
        return 0
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the master is told, whatever it is)
        text = str(error) if isinstance(error, ElasticFlowError) else f"{type(error).__name__}: {error}"
        trace = traceback.format_exc()
        link.send(Failed(name=settings.name, kind=type(error).__name__, text=text, traceback=trace))
        traceback.print_exc()
        return 1
    finally:
        link.close()


def _train(
    loaded: Loaded, assignment: Assignment, keys: MemberKeys, link: MasterLink, running: list[Worker]
) -> None:
    settings = loaded.settings
    strategy_class = load_strategy(settings.strategy)
    strategy = strategy_class(settings, keys, assignment, loaded.replica.state, link.wake_fd)
    path = Path(settings.run_dir, "timelines", f"{settings.name}.jsonl") if settings.timeline else None
    timeline = Timeline(path, time.time() - settings.started_s)
    running.append(Worker(loaded, assignment, strategy, link, timeline))
    gc.freeze()  # what is there now stays; later collections need not look at it
    try:
        running[0].run()
    finally:
        timeline.close()
        strategy.close()
