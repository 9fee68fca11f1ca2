"""What a worker does when servers and masters come and go: with a way to the servers made of a script."""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from elasticflow.api import SGD
from elasticflow.errors import ProgramError
from elasticflow.frameworks import Interrupted
from elasticflow.process.gpus import visible
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Entry, Layout, Rule, Vector
from elasticflow.step.schedule import Schedule
from elasticflow.step.slices import Node
from elasticflow.training.advice import Advice, Question, Tuning, go_on, stop
from elasticflow.wire.messages import (
    Assignment,
    Attempt,
    Audited,
    Beat,
    Drain,
    Excluded,
    Faulty,
    Inspect,
    Inspected,
    Join,
    Lost,
    Quarantine,
    Quit,
    Ready,
    Share,
    Spec,
)
from elasticflow.worker import tried
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.strategy import Event, Outgoing, Overdue, Position, Severed, Strategy
from elasticflow.worker.timeline import Timeline
from elasticflow.worker.trial import Begin, TrialOutcome
from elasticflow.worker.worker import Worker

ENTRIES = (Entry("w", (4,), "float32", Rule.UPDATE), Entry("report", (1,), "float64", Rule.REPORT))
SCHEDULE = Schedule(num_records=40, num_test=0, batch_size=4, num_slices=4, epochs=1)
ALL = (Share("worker-1", 0, 4),)
SPEC = Spec(
    framework="symbols",
    entries=ENTRIES,
    optimizer=SGD(lr=0.1),
    metrics=(),
    num_records=40,
    num_test=0,
    data_signature="",
)
JOIN = Join(name="worker-1", role="worker", host="h", pid=1, spec=SPEC)
READY = Ready(name="worker-1", generation=1, started_s=0.0)
LOST = Lost(name="worker-1", member="server-1")


def assignment(generation: int = 1, **more: Any) -> Assignment:
    more = {"in_memory": True, "schedule": SCHEDULE, **more}
    return Assignment(generation=generation, spec=SPEC, seed=0, servers=(), **more)


def at(version: int, shares: tuple[Share, ...] = ALL, **orders: bool) -> Position:
    return Position(version=version, shares=shares, **orders)


class Begun(Outgoing):
    """A push that was begun: who says what of it is ready."""

    def __init__(self, said: list[Any], what: Any) -> None:
        self.begun, self._said, self._what = False, said, what

    def ready(self, number: int) -> None:
        self.begun = True
        self._said.append(("ready", number))

    def finish(self, slice_s: float) -> None:
        self._said.append(self._what)


class Script(Strategy):
    """Events, and in between messages from the master, in the order given."""

    streams = False

    def __init__(self, *lines: Any, streams: bool = False) -> None:
        self.lines = deque(lines)
        self.streams = streams  # type: ignore[misc]
        self.spares = 0
        """Vectors that are out."""
        self.gone = False
        self.connected: list[int] = []
        self.said: list[Any] = []
        """What was pushed, as (tick, node), asked for, as a tick, and sent to the master."""
        self.link = SimpleNamespace(send=self._send, received=self._received, wake_fd=-1)
        self._news: list[Any] = []

    def _send(self, message: Any) -> None:
        if isinstance(message, Ready):
            message = Ready(name=message.name, generation=message.generation)
        self.said.append(message)

    def _received(self) -> list[Any]:
        news, self._news = self._news, []
        return news

    @property
    def dropped(self) -> int:
        return 7

    def connect(self, assignment: Assignment) -> None:
        self.connected.append(assignment.generation)

    def wait(self) -> Event:
        line = self.lines.popleft()
        if line is None or isinstance(line, (Position, Overdue, Question, Severed)):
            return line
        self._news = line if isinstance(line, list) else [line]
        return None

    def push(self, position: Position, node: Node, total: Vector | None, **more: Any) -> None:
        self.said.append((position.version, node))

    def begin(self, position: Position, node: Node, parts: Any, **more: Any) -> Outgoing:
        return Begun(self.said, (position.version, node, len(parts)))

    def read(self, table: int, keys: Any, urgent: Any, *, early: bool = False) -> Any:
        """Rows come at once, or never: then only what is urgent ends the wait."""
        if self.gone or urgent():
            raise Interrupted("gone")

    def recall(self, position: Position, slices: Any, *, rest: bool = False) -> bool:
        if rest:
            self.said.append(("rest", slices))
        return not rest

    def ask(self, position: Position) -> None:
        self.said.append(position.version)

    def advise(self, question: Question, advice: Advice) -> None:
        self.said.append((question.tick, advice))

    def spare(self) -> Vector:
        self.spares += 1
        return Vector(Layout(ENTRIES))

    def give_back(self, vector: Vector) -> None:
        self.spares -= 1

    def close(self) -> None:
        pass


class Batches:
    def __init__(self, bad: set[int]) -> None:
        self.bad, self.excluded = bad, ()

    def exclude(self, excluded: tuple[Excluded, ...]) -> None:
        self.excluded += excluded
        if excluded:
            self.bad.clear()

    def train(self, work: Any, number: int) -> tuple[int, int]:
        return number, 1

    def rows(self, work: Any, number: int) -> list[int]:
        return [number]

    def of_rows(self, kind: Any, rows: Any) -> int:
        return int(rows[0])

    def fetch(self, work: Any, numbers: Any) -> None:
        pass

    order_ahead = fetch

    def fetched(self, work: Any, number: int) -> tuple[int, int]:
        return work.tick, number


class Program:
    """Stands for a loaded program; slices in ``bad`` raise until something is excluded.

    late: they do so when one of their gradients is ready. looks_up: slices that read rows of a table.
    """

    def __init__(
        self, bad: tuple[int, ...] = (), *, late: bool = False, looks_up: tuple[int, ...] = ()
    ) -> None:
        self.late, self.looks_up = late, looks_up
        self.settings: Any = SimpleNamespace(name="worker-1", started_s=0.0, read_processes=0, audit=0)
        self.program = SimpleNamespace(path="program.py", learning_rate=None)
        self.made: Batches = Batches({*bad})
        self.entered: list[Any] = []
        """Versions that were, and slices asked for early, as (tick, number)."""
        self.replica: Any = SimpleNamespace(
            apart=False,
            encoded=[],
            refresh=lambda *, was_put: None,
            gpu_state=lambda: None,
            state=None,
            compute=self._compute,
            begin_slice=lambda work, number: None,
            ask_early=self.entered.append,
            lookups=SimpleNamespace(ahead=SimpleNamespace(enter=self.entered.append)),
        )
        self.first_values = 0

    def _compute(self, batch: int, *rest: Any, ready: Any = None, **more: Any) -> None:
        if batch in self.looks_up:
            self.replica.lookups.read_rows(0, None)
        if ready and (self.late or batch not in self.made.bad):
            ready(0)
        if batch in self.made.bad:
            raise ValueError("a bad slice")

    def batches(self, schedule: Schedule) -> Batches:
        return self.made

    def learning_rate(self, work: Any, tuning: Tuning, num_steps: int) -> None:
        return None

    def make_first_values(self) -> None:
        self.first_values += 1


def played(
    *lines: Any,
    bad: tuple[int, ...] = (),
    program: Any = None,
    streams: bool = False,
    schedule: Schedule = SCHEDULE,
) -> tuple[Worker, Any]:
    """The worker after these lines, at the end of which it must have left, and all it said."""
    script = Script(*lines, streams=streams)
    first = assignment(schedule=schedule)
    worker = Worker(program or Program(bad), JOIN, first, script, script.link, Timeline(None, 0.0))
    worker.run()
    assert not script.lines
    return worker, script


TOP = Node(2, 0)


def test_a_run_goes_from_version_to_version() -> None:
    worker, script = played(at(0), at(1, finish=True), at(2))
    assert script.said == [READY, (0, TOP), (1, TOP)]
    beat = worker.heartbeat()
    assert (beat.tick, beat.generation, beat.dropped) == (1, 1, 7)


def test_it_says_what_the_program_says_to_an_evaluation() -> None:
    """Whether it has a version of these servers yet or not."""
    told: list[Any] = []
    program: Any = Program()
    program.program.on_epoch = lambda info: told.append(info) or go_on(lr_scale=0.5)
    program.replica.optimizers = SimpleNamespace(optimizer=SGD(lr=0.1))
    program.replica.tables = ()
    schedule = msgspec.structs.replace(SCHEDULE, num_test=4, epochs=2)  # tick 10 evaluates
    question = Question(tick=10, values='{"cost": NaN, "auc": 0.5}', memory='{"n": 1}', tuning=Tuning())
    _, script = played(
        question, at(11), question, at(12, finish=True), at(13), program=program, schedule=schedule
    )
    advised = (10, Advice(lr_scale=0.5))
    assert script.said == [advised, READY, (11, TOP), advised, (12, TOP)]
    assert [(each.epoch, each.step, each.learning_rate, each.memory) for each in told] == [
        (0, 10, 0.1, {"n": 1})
    ] * 2
    assert math.isnan(told[0].cost) and told[0].metrics == {"auc": 0.5}


@pytest.mark.parametrize(
    ("on_epoch", "text"),
    [
        (lambda info: 1 / 0, "program.py: on_epoch() raised ZeroDivisionError: division by zero"),
        (
            lambda info: info.loss,
            "on_epoch() raised AttributeError: 'EpochInfo' object has no attribute 'loss'",
        ),
        (lambda info: sys.exit(3), "on_epoch() raised SystemExit: 3"),
        (lambda info: True, "program.py: on_epoch() returned True; it must return ef.stop(why), ef.go_on("),
        (lambda info: stop(""), "program.py: stop(why=''): why must be a text"),
        (lambda info: go_on(lr=1, lr_scale=1), "program.py: go_on(lr=..., lr_scale=...): give one of them"),
        (lambda info: go_on(lr_scale=math.nan), "lr_scale must be a number >= 0"),
        (lambda info: go_on(memory={1, 2}), "it must be what JSON can have"),
        (lambda info: go_on(memory="x" * 20_000), "20,002 characters as JSON, of which there can be 16,384"),
    ],
)
def test_what_on_epoch_raises_is_what_it_says(on_epoch: Any, text: str) -> None:
    program: Any = Program()
    program.program.on_epoch = on_epoch
    program.replica.optimizers = SimpleNamespace(optimizer=SGD(lr=0.1))
    schedule = msgspec.structs.replace(SCHEDULE, num_test=4, epochs=2)
    question = Question(tick=10, values='{"cost": 1.0}', memory="", tuning=Tuning())
    _, script = played(question, at(11, finish=True), at(12), program=program, schedule=schedule)
    advice = script.said[0][1]
    assert text in advice.error and not advice.stop, advice


def test_the_rows_of_the_next_slice_are_asked_for_while_others_compute() -> None:
    program = Program()
    here = (Share("worker-1", 1, 3),)
    lines = [at(3, here), Severed("server-1"), assignment(2), at(4, here), at(5, finish=True), at(6)]
    played(*lines, program=program)
    none, lost = -1, -1
    assert program.entered == [none, 3, (4, 1), lost, none, 4, (5, 1), 5, (6, 0), 6]


def test_asynchronously_each_slice_is_computed_from_a_newer_state() -> None:
    """One by one, those that it cannot do left out; others' too. What is asked for twice is done once."""
    one_by_one = msgspec.structs.replace(SCHEDULE, asynchronous=True)
    first_half = (Share("worker-1", 0, 2),)
    _, script = played(
        at(0, first_half),
        Overdue(0, (1,)),
        Overdue(0, (2, 3)),
        Overdue(0, (3,)),
        Overdue(0, (2,)),
        at(1, finish=True),
        at(2),
        bad=(2,),
        schedule=one_by_one,
    )
    said = [what for what in script.said if not isinstance(what, Faulty)]
    zero, one, three = (Node(0, number) for number in (0, 1, 3))
    asked = 0
    assert said[:7] == [READY, (0, zero), ("rest", (1,)), (0, one), ("rest", (3,)), (0, three), asked]
    assert said[7:] == [(1, zero), ("rest", (1, 2, 3))]


def test_a_lost_server_is_told_and_the_next_row_is_gone_over_to() -> None:
    worker, script = played(
        at(5), Severed("server-1"), None, assignment(2), at(4), at(5), at(6, finish=True), at(7)
    )
    ready = Ready(name="worker-1", generation=2)
    assert script.said == [READY, (5, TOP), LOST, ready, (4, TOP), (5, TOP), (6, TOP)]
    assert script.connected == [1, 2]
    usage = worker.heartbeat().usage
    assert usage is not None
    assert usage.recovering_s > 0
    assert 0 < usage.redone_s < usage.computing_s


def test_a_newer_generation_is_taken_though_all_looks_well() -> None:
    _, script = played(at(5), assignment(2), at(3), Quit(reason=""))
    assert script.said == [READY, (5, TOP), Ready(name="worker-1", generation=2), (3, TOP)]
    _, script = played(None, assignment(2), assignment(3), at(3), Quit(reason=""))
    assert script.connected == [1, 2, 3]


def test_the_same_generation_is_taken_only_by_who_is_cut_off() -> None:
    _, script = played(at(5), assignment(1), Severed("server-1"), assignment(1), at(6), Quit(reason=""))
    assert script.said == [READY, (5, TOP), LOST, READY, (6, TOP)]
    assert script.connected == [1, 1]
    _, script = played(at(5), assignment(3), Severed("server-1"), assignment(2), Quit(reason=""))
    assert script.connected == [1, 3]


def test_an_order_to_finish_is_not_that_of_the_next_generation() -> None:
    _, script = played(at(5, finish=True), Severed("server-1"), assignment(2), at(6), at(7), Quit(reason=""))
    assert script.said[-2:] == [(6, TOP), (7, TOP)]


@pytest.mark.parametrize("started", [False, True])
def test_first_values_are_made_anew_by_who_has_others(started: bool) -> None:
    program = Program()
    lines = [at(0), at(1)] if started else []
    others = [assignment(2, in_memory=False, restore_step=1), assignment(3, in_memory=False)]
    played(*lines, *others, Quit(reason=""), program=program)
    assert program.first_values == started


def test_orders_are_heard_while_there_is_no_server() -> None:
    excluded = (Excluded(3, 2),)
    worker, script = played(
        at(2), Severed("server-1"), [Quarantine(excluded), Attempt(tick=2, slice=1)], Drain(), bad=(3,)
    )
    tick = [message for message in script.said if not isinstance(message, (Ready, Lost, Faulty))]
    assert tick == [(2, Node(1, 0)), (2, Node(0, 2))]
    assert worker._computing.batches.excluded == excluded
    _, script = played(at(2), Severed("server-1"), Quit(reason=""))
    assert script.said == [READY, (2, TOP), LOST]


def test_what_stands_is_said_again_to_another_master() -> None:
    beat = Beat(incarnation=2)
    _, script = played(beat, at(2), beat, Severed("server-1"), beat, Quit(reason=""), bad=(3,))
    (faulty,) = {id(each): each for each in script.said if isinstance(each, Faulty)}.values()
    pushes = [(2, Node(1, 0)), (2, Node(0, 2))]
    assert script.said == [JOIN, READY, faulty, *pushes, JOIN, READY, faulty, LOST, JOIN, LOST]


def test_a_bad_slice_stands_until_it_is_left_out() -> None:
    _, script = played(at(2), Overdue(2, (2, 3)), Quarantine((Excluded(3, 2),)), Quit(reason=""), bad=(3,))
    assert script.said[-2:] == [(2, Node(0, 2)), (2, Node(0, 3))]


def test_who_cannot_look_at_a_step_says_so_at_once() -> None:
    """The run's end waits for its answer."""
    asked = Inspect(tick=2, slices=(0, 1))
    _, script = played(asked, at(3), asked, Quit(reason=""))
    nothing = Inspected(name="worker-1", tick=2)
    assert [each for each in script.said if isinstance(each, Inspected)] == [nothing, nothing]


# --- pushes that begin early ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "stop", "nodes"),
    [
        (0, 4, [(TOP, 2)]),
        (0, 2, [(Node(1, 0), 1)]),
        (3, 4, [(Node(0, 3), 1)]),
        (0, 3, [(Node(1, 0), 1), (Node(0, 2), 1)]),
        (1, 4, [(Node(0, 1), 1), (Node(1, 1), 1)]),
    ],
)
def test_the_last_slice_of_a_node_is_sent_while_it_is_computed(
    first: int, stop: int, nodes: list[tuple[Node, int]]
) -> None:
    """Onto its left sibling; the sums further left are added to before what is ready leaves."""
    shares = (Share("worker-1", first, stop),)
    _, script = played(at(2, shares), Quit(reason=""), streams=True)
    assert script.said == [READY, *(each for n, parts in nodes for each in (("ready", 0), (2, n, parts)))]


def test_who_raises_before_anything_is_sent_is_left_out() -> None:
    _, script = played(at(2), Quarantine((Excluded(3, 2),)), Quit(reason=""), bad=(3,), streams=True)
    pushes = [message for message in script.said if not isinstance(message, (Ready, Faulty))]
    assert pushes == [(2, Node(1, 0)), (2, Node(0, 2)), ("ready", 0), (2, Node(0, 3), 1)]
    _, script = played(at(2), Quit(reason=""), bad=(0,), streams=True)
    assert [each for each in script.said if isinstance(each, tuple)] == [(2, Node(0, 1)), (2, Node(1, 1))]


def test_who_raises_after_something_is_sent_ends_the_worker() -> None:
    with pytest.raises(ProgramError, match="slice 3 raised ValueError: a bad slice. Some of its gradients"):
        played(at(2), program=Program((3,), late=True), streams=True)


# --- rows of tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("slice_", [0, 1, 2, 3])
def test_a_slice_whose_rows_are_gone_is_given_up(slice_: int, streams: bool) -> None:
    """With what its node's other slices came to; the vectors are there again, and the worker waits."""
    script = Script(at(2), Quit(reason=""), streams=streams)
    script.gone = True
    program: Any = Program(looks_up=(slice_,))
    worker = Worker(program, JOIN, assignment(), script, script.link, Timeline(None, 0.0))  # type: ignore[arg-type]
    worker.run()
    assert script.said == [READY, 2] and script.spares == 0


def test_what_has_begun_to_be_sent_is_not_computed_into_again() -> None:
    """A backward pass that looks up again is interrupted when some of the sum is on its way."""
    script = Script(at(2), Quit(reason=""), streams=True)
    script.gone = True
    program: Any = Program()
    compute = program.replica.compute

    def interrupted(batch: int, *rest: Any, **more: Any) -> None:
        compute(batch, *rest, **more)
        if more.get("ready"):
            program.replica.lookups.read_rows(0, None)

    program.replica.compute = interrupted
    worker = Worker(program, JOIN, assignment(), script, script.link, Timeline(None, 0.0))  # type: ignore[arg-type]
    worker.run()
    assert script.said == [READY, ("ready", 0), 2] and script.spares == 2


def test_a_master_that_has_said_more_is_heard_while_rows_are_awaited() -> None:
    """Slices are computed again because of its first word; its second ends that, since servers are others."""
    more = [Quarantine((Excluded(3, 2),)), assignment(2)]
    _, script = played(at(2), more, at(2), Quit(reason=""), program=Program((3,), looks_up=(3,)))
    pushes = [(2, Node(1, 0)), (2, Node(0, 2))]
    assert [each for each in script.said if not isinstance(each, (Ready, Faulty))] == [*pushes, 2, (2, TOP)]


def test_what_is_computed_twice_is_told_with_the_records_that_are_left_out() -> None:
    """Its own slices, then those of the share before; one that is left out later counts from its tick on."""
    program = Program()
    program.settings.audit = 1
    shares = Share("worker-9", 0, 2), Share("worker-1", 2, 4)
    condemned = Quarantine((Excluded(9, 3),))
    _, script = played(at(2, shares), condemned, at(3, shares), Quit(reason=""), program=program)
    told = [(each.tick, each.slice, each.left_out) for each in script.said if isinstance(each, Audited)]
    assert told == [*((2, n, 0) for n in (2, 3, 0, 1)), *((3, n, 1) for n in (2, 3, 0, 1))]


# --- first values --------------------------------------------------------------------------------


class Made:
    """A Loaded whose model() makes what ``values`` says."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)
        self.loaded = Loaded.__new__(Loaded)
        self.loaded.program = SimpleNamespace(path="program.py")  # type: ignore[assignment]
        self.loaded._open_replica = self._open  # type: ignore[assignment]
        self.loaded.replica = self._open()
        self.loaded._first_sums = [int(g.view(np.uint64).sum()) for g in self.loaded.replica.state.groups]

    def _open(self) -> Any:
        state = Vector(Layout(ENTRIES))
        state.groups[0][:4] = self._values.pop(0)
        return SimpleNamespace(state=state)


def test_first_values_come_back() -> None:
    made = Made(1.5, 1.5)
    made.loaded.make_first_values()
    state = made.loaded.replica.state.groups[0]
    state[1] = 7.0
    made.loaded.make_first_values()
    assert state[:4].tolist() == [1.5] * 4


def test_other_first_values_than_the_first_are_refused() -> None:
    made = Made(1.5, 1.25)
    made.loaded.replica.state.groups[0][1] = 7.0
    with pytest.raises(ProgramError, match=r"program\.py: model\(\) gave other first values"):
        made.loaded.make_first_values()


# --- slices that others may have died of ----------------------------------------------------------


class Trials:
    """Instead of child processes. deadly: rows, which are the numbers of slices. tried: what was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *deadly: int, urgent: bool = False) -> None:
        self.deadly, self.urgent, self.tried = {*deadly}, urgent, list[Any]()
        monkeypatch.setattr("elasticflow.worker.computing.Trial", self._make)

    def _make(self, begin: Begin, state: Any, way: Any, **more: Any) -> Trials:
        self.begin = begin
        self.deadly -= {each.row for each in begin.excluded}
        return self

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def outcome(self, tick: int, number: int, rows: tuple[int, ...] | None) -> TrialOutcome:
        self.tried.append((tick, number) if rows is None else rows)
        if self.urgent:
            raise Interrupted("there is something else to be done")
        return TrialOutcome(died="was killed by SIGSEGV" if number in self.deadly else "")


def deadly(number: int, tick: int = 2) -> Faulty:
    text = "a process that computed it was killed by SIGSEGV"
    rows = (number,)
    return Faulty(name="worker-1", tick=tick, slice=number, rows=rows, text=text, traceback="", dies=True)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """With settings that can be told to another process."""
    found = Program()
    found.settings = msgspec.convert(
        {"role": "worker", "host": "", "master": "", "run_dir": "", "program": "program.py", "seed": 0}
        | {"threads": 1, "batch_size": 4, "num_slices": 4, "heartbeat_s": 1.0, "lost_s": 9.0}
        | {"encrypt_data": False, "timeline": False, "name": "worker-1"},
        MemberSettings,
    )
    return found


NONE = (Share("worker-9", 0, 4),)
"""Of a plan in which this worker has no slices."""


def test_a_slice_that_may_be_deadly_is_tried_before_it_is_computed(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """Those that are not come first, and those that are survived are pushed; in the next tick all is well."""
    trials = Trials(monkeypatch)
    overdue = Overdue(2, (0, 1, 2, 3), careful=(2, 3))
    _, script = played(at(2, NONE), overdue, at(3), Quit(reason=""), program=program)
    assert trials.tried == [(2, 2), (2, 3)]
    assert script.said == [READY, 2, (2, Node(1, 0)), (2, Node(1, 1)), (3, TOP)]


def test_a_deadly_slice_is_told_and_computed_once_its_record_is_left_out(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    trials = Trials(monkeypatch, 3)
    _, script = played(
        at(2, NONE),
        Overdue(2, (2, 3), careful=(2, 3)),
        Overdue(2, (3,)),
        Quarantine((Excluded(3, 2),)),
        Quit(reason=""),
        program=program,
    )
    assert trials.tried == [(2, 2), (2, 3), (3,), (3, 3), (2, 3)]
    assert script.said == [READY, 2, deadly(3), (2, Node(0, 2)), (2, Node(0, 3))]


def test_what_tries_a_slice_computes_where_its_worker_does(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """Who forks it was there before the worker had leased a GPU."""
    trials = Trials(monkeypatch)
    leased = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with monkeypatch.context() as of_worker:
        for name, value in leased.items():
            of_worker.setenv(name, value)
        played(at(2, NONE), Overdue(2, (2,), careful=(2,)), at(3), Quit(reason=""), program=program)
    seen = list[dict[str, str]]()

    def load(settings: MemberSettings) -> None:
        seen.append(visible(os.environ))
        raise EOFError

    monkeypatch.setattr(tried, "Loaded", load)
    ours, theirs = Pipe()
    with ours, theirs, monkeypatch.context() as of_child, pytest.raises(EOFError):
        of_child.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
        of_child.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
        ours.send_bytes(msgspec.msgpack.encode(trials.begin))
        tried._Child(theirs, -1).run()
    assert seen == [leased]


def test_by_the_masters_order_a_deadly_slice_is_tried_too(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    trials = Trials(monkeypatch, 1)
    attempts = [Attempt(tick=2, slice=1, careful=True), Attempt(tick=2, slice=0)]
    _, script = played(at(2, NONE), *attempts, Quit(reason=""), program=program)
    assert trials.tried == [(2, 1), (1,), (1, 1)], "and no other slice"
    assert script.said == [READY, 2, deadly(1), 2, (2, Node(0, 0))]


def test_a_trial_ends_where_there_is_something_else_to_be_done(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """It is begun anew if it is needed still."""
    trials = Trials(monkeypatch, urgent=True)
    said = Quarantine((Excluded(9, 2),))
    _, script = played(at(2, NONE), Overdue(2, (1,), careful=(1,)), said, Quit(reason=""), program=program)
    assert trials.tried == [(2, 1), (2, 1)]
    assert script.said == [READY, 2, 2, 2]
