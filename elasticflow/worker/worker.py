"""The worker: computes its slices of each tick, pushes their sums, waits for the next version.

All it does in a tick follows from the version it has and the orders that came with it; the master is
not asked. Slices that the servers find overdue are computed while waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from elasticflow.cluster.member import MasterLink
from elasticflow.frameworks import Interrupted
from elasticflow.step.schedule import Work
from elasticflow.step.slices import nodes_of
from elasticflow.training.advice import Question
from elasticflow.wire.messages import (
    Assignment,
    Attempt,
    Beat,
    Drain,
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
)  # fmt: skip
from elasticflow.worker import advising
from elasticflow.worker.adding import Adding
from elasticflow.worker.computing import Computing
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.present import Present
from elasticflow.worker.strategy import Event, Overdue, Position, Severed, Strategy
from elasticflow.worker.timeline import Timeline
from elasticflow.worker.trial import Nurse


class Course(IntEnum):
    """What becomes of a worker, from the one to the next."""

    STAYS = 0
    DRAINS = 1
    """Leaves once its slices are done."""
    LEAVES = 2
    ENDS = 3
    """Leaves because the run has come to its end."""


class Worker:
    """A worker from its first assignment on, through all generations of servers. nurse: see ``Trial``."""

    def __init__(
        self,
        loaded: Loaded,
        join: Join,
        assignment: Assignment,
        strategy: Strategy,
        link: MasterLink,
        timeline: Timeline,
        nurse: Nurse | None = None,
    ) -> None:
        self._loaded, self._join, self._strategy, self._link = loaded, join, strategy, link
        self._schedule, self._timeline = assignment.schedule, timeline
        lookups = loaded.replica.lookups
        lookups.read_rows = lambda table, keys: strategy.read(table, keys, self._is_urgent)
        lookups.read_next = lambda table, keys: strategy.read(table, keys, self._is_urgent, early=True)
        lookups.hurry = strategy.hurry
        self._present = Present(loaded.settings.name)
        self._computing = Computing(loaded, assignment, strategy, link, self._present, nurse)
        self._adding = Adding(
            loaded, self._schedule, self._computing, strategy, timeline, self._present, self._is_urgent
        )
        self._started_s: float | None = None
        """Seconds from the process's start until it was ready for the first time."""
        self._position: Position | None = None
        """In the present generation; None until there is one, and once the way there is lost."""
        self._severed: Severed | None = None
        self._unread: list[FromMaster] = []
        """What the master has said, and is still to be obeyed."""
        self._course = Course.STAYS
        self._is_asking = False
        """The program's ``on_epoch``, just now."""
        self._take_up(assignment)

    def run(self) -> None:
        """Trains until the run ends, or the worker is drained or told to quit."""
        while self._course < Course.LEAVES:
            self._catch_up()
            while self._position and self._course < Course.LEAVES:
                self._do_tick(self._position)

    # --- generations of servers ------------------------------------------------------------------

    def _take_up(self, assignment: Assignment) -> None:
        """Goes over to these servers."""
        from_nothing = not assignment.in_memory and assignment.restore_step is None
        # Before it connects: servers that have nothing ask for what is in the state.
        if from_nothing and self._started_s is not None:
            self._loaded.make_first_values()
        self._part()
        self._severed, self._present.is_following = None, False
        self._present.careful_to = assignment.careful_to
        self._present.generation = assignment.generation
        self._strategy.connect(assignment)

    def _part(self) -> None:
        """The present tick is not to be gone on with."""
        self._position = None
        self._loaded.replica.lookups.ahead.enter(-1)
        self._present.part()

    def _lose(self, event: Severed) -> None:
        """Tells the master, who answers with an Assignment, sooner or later."""
        self._part()
        self._severed = event
        self._link.send(Lost(name=self._present.name, member=event.member))

    def _catch_up(self) -> None:
        """Waits for a version to go on from."""
        first, since_s = self._started_s is None, time.monotonic()
        while self._course < Course.LEAVES and self._position is None:
            event = self._next_event()
            since_s = (
                time.monotonic() if first else self._timeline.add("recovering", self._present.tick, since_s)
            )
            if isinstance(event, Position):
                self._enter(event)
            elif isinstance(event, Severed):
                self._lose(event)
            elif isinstance(event, Question):
                self._advise(event)
            elif event is None:
                self._obey_all()
                if self._course is Course.DRAINS:  # it has no slices to end
                    self._course = Course.LEAVES
        if self._position:
            if self._started_s is None:
                self._started_s = max(0.0, time.time() - self._loaded.settings.started_s)  # clocks are set
            self._say_ready()

    def _say_ready(self) -> None:
        assert self._started_s is not None
        self._link.send(
            Ready(
                name=self._present.name,
                generation=self._present.generation,
                started_s=self._started_s,
            )
        )

    def _enter(self, position: Position) -> None:
        self._position = position
        self._present.enter()
        # It is in the state's memory so far: a device's copies, and TensorFlow's variables, follow.
        self._loaded.replica.refresh(was_put=self._present.is_following)
        self._present.is_following = True
        self._loaded.replica.lookups.ahead.enter(position.version)

    # --- ticks -----------------------------------------------------------------------------------

    def _do_tick(self, position: Position) -> None:
        """Computes this worker's slices, and overdue ones, until there is something else to be done."""
        mine = position.slices_of(self._present.name)
        ends = position.ends or position.version >= self._schedule.total_ticks
        if ends or self._course is Course.DRAINS and not mine:
            self._course = Course.ENDS if ends else Course.LEAVES
            return
        self._present.tick = position.version
        work = self._schedule.at(self._present.tick)
        if position.version <= self._present.careful_to:
            self._present.careful.update(mine)
        self._computing.batches.order_ahead(work, mine)
        self._compute(position, work, mine)
        self._computing.fetch_ahead(work, mine)
        if again := self._computing.audit.given_to(self._present.name, work, position.shares):
            since_s = time.monotonic()
            self._computing.compute_again(work, again, self._is_urgent)
            self._timeline.add("computing", work.tick, since_s)
        since_s = time.monotonic()
        while self._course < Course.LEAVES and self._position is position:
            event = self._next_event()
            since_s = self._timeline.add("waiting", self._present.tick, since_s)
            if isinstance(event, Position):
                if position.finish and event.version == position.version + 1:
                    self._course = Course.ENDS
                self._enter(event)
            elif isinstance(event, Severed):
                self._lose(event)
            elif isinstance(event, Question):
                self._advise(event)
            elif isinstance(event, Overdue):
                if self._present.inspects:
                    self._computing.inspect(position)
                elif event.tick == self._present.tick:
                    self._help_out(position, work, mine, event)
            else:
                self._obey_all()
                if self._course is Course.DRAINS and not mine and not self._present.faulty:
                    self._course = max(self._course, Course.LEAVES)
            since_s = time.monotonic()

    def _help_out(self, position: Position, work: Work, mine: range, overdue: Overdue) -> None:
        """Computes overdue slices of the present tick, as far as this worker has not done so already."""
        present = self._present
        present.careful.update(overdue.slices if work.tick <= present.careful_to else overdue.careful)
        # Each server asks for itself, and for the same slices.
        fresh = [n for n in overdue.slices if n not in present.faulty and n not in present.done]
        one_by_one = self._schedule.applies_slices(work.tick)
        if one_by_one:  # before it was asked, the newest values were put into its state
            self._loaded.replica.refresh(was_put=True)
        self._timeline.num_backup += sum(n not in mine for n in (fresh[:1] if one_by_one else fresh))
        if fresh:
            self._compute(position, work, fresh)
            self._computing.fetch_ahead(work, mine)
        elif one_by_one:
            self._strategy.ask(position)  # to be told of this it had to stop waiting

    def _advise(self, question: Question) -> None:
        """Asks the program's ``on_epoch``, which may take long."""
        self._is_asking = True
        self._strategy.advise(question, advising.ask(self._loaded, self._schedule, question))
        self._is_asking = False

    def _next_event(self) -> Event:
        """Waits for what the servers have to say. None: the master has said something."""
        return None if self._unread else self._strategy.wait()

    def _obey_all(self) -> None:
        """What the master has said, one by one: what is still to come may end a wait for rows."""
        self._unread += self._link.received()
        while self._unread:
            self._obey(self._unread.pop(0))

    def _is_urgent(self) -> bool:
        """Whether the master has said something, not obeyed yet, for which rows are not to be waited for, and
        no other slice of a node is computed.

        A new master is answered at once: servers that it has halted, since it knows nothing of the program,
        answer nobody until it does.
        """
        self._unread += self._link.received()
        if any(isinstance(message, Beat) for message in self._unread):
            self._unread = [message for message in self._unread if not isinstance(message, Beat)]
            self._repeat()
        return any(
            self._is_news(message) if isinstance(message, Assignment) else isinstance(message, Quit)
            for message in self._unread
        )

    def _is_news(self, assignment: Assignment) -> bool:
        """Whether it leads elsewhere. A new master, which cannot know, may say once more what it goes by.

        Who has lost its way there is told of the same generation again, if it still goes on.
        """
        return assignment.generation >= self._present.generation + (self._severed is None)

    def _obey(self, message: FromMaster) -> None:
        position = self._position
        if isinstance(message, Quit):
            self._course = max(self._course, Course.LEAVES)
        elif isinstance(message, Drain):
            self._course = max(self._course, Course.DRAINS)
        elif isinstance(message, Assignment):
            self._computing.batches.exclude(message.excluded)
            if self._is_news(message):
                self._take_up(message)
        elif isinstance(message, Quarantine):
            self._computing.batches.exclude(message.excluded)
            again = sorted(self._present.faulty.keys() | self._present.careful - self._present.done)
            self._present.faulty.clear()
            if position:
                self._compute_more(position, again)
        elif isinstance(message, Attempt):
            if position and message.tick == position.version and message.slice not in self._present.faulty:
                self._present.careful.update([message.slice] if message.careful else [])
                self._compute_more(position, [message.slice])
        elif isinstance(message, Inspect):
            if position and message.tick == position.version:
                self._present.inspects = message.slices
                if self._strategy.recall(position, message.slices):
                    self._computing.inspect(position)
            else:  # it cannot be looked at from here, which is not to be waited for
                self._link.send(Inspected(name=self._present.name, tick=message.tick))
        elif isinstance(message, Beat):
            self._repeat()

    def _repeat(self) -> None:
        """Tells a new master what the one before may have taken with it."""
        self._link.send(msgspec.structs.replace(self._join, excluded=self._computing.batches.excluded))
        if self._severed:
            self._link.send(Lost(name=self._present.name, member=self._severed.member))
        elif self._position:
            self._say_ready()
        for faulty in self._present.faulty.values():
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
            if self._present.careful.intersection(slices):
                safe = tuple(number for number in slices if number not in self._present.careful)
                self._adding.push(position, work, nodes_of(safe), asks=False)
                slices = self._survivors(
                    work, [number for number in slices if number in self._present.careful]
                )
            asked = self._adding.push(position, work, nodes_of(slices), asks=not later)
        except Interrupted:
            asked, later = False, ()
        if later:
            self._strategy.recall(position, later, rest=True)
        elif not asked:
            self._strategy.ask(position)

    def _survivors(self, work: Work, numbers: Sequence[int]) -> tuple[int, ...]:
        """Those of these slices that another process survives."""
        since_s = time.monotonic()
        passed = self._computing.survivors(work, numbers, self._is_urgent)
        self._timeline.add("waiting", work.tick, since_s)
        return passed

    def _compute_more(self, position: Position, numbers: Sequence[int]) -> None:
        """By the master's order: now, or as soon as this tick's version is here again."""
        if not numbers:
            self._strategy.ask(position)
        elif self._strategy.recall(position, numbers):
            self._compute(position, self._schedule.at(position.version), numbers)

    @property
    def doing(self) -> str:
        """What it does or waits for, in words that follow its name. For any thread."""
        computes, position = self._computing.under_way, self._position
        if self._is_asking:
            return "calls on_epoch()"
        if computes:
            number, since_s = computes
            what = "evaluates" if self._schedule.evaluates(self._present.tick) else "computes"
            return (
                f"{what} slice {number} of tick {self._present.tick}, for {time.monotonic() - since_s:.0f} s"
            )
        if position:
            return f"waits for version {position.version + 1}"
        return "waits for other servers" if self._severed else "waits for a version to begin with"

    def heartbeat(self) -> Heartbeat:
        """Called by the master link's thread."""
        return Heartbeat(
            name=self._present.name,
            tick=self._present.tick,
            generation=self._present.generation,
            slice_s=self._adding.usual_s,
            usage=self._timeline.usage(),
            dropped=self._strategy.dropped,
            tries=self._computing.tries,
            gpu=self._computing.replica.gpu_state(),
        )

    def close(self) -> None:
        """Ends the processes that are its own."""
        self._computing.close()

    def last_word(self) -> Leaving:
        """Once it has run."""
        ended = self._present.generation if self._course is Course.ENDS else 0
        return Leaving(name=self._present.name, usage=self._timeline.usage(), ended=ended)
