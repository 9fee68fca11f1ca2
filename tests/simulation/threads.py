"""Threads of simulated processes: one runs at a time, by a clock that nobody has to wait for.

Each is a greenlet. It runs until it waits, for something or some time; then the hub goes on to whatever comes
next, which follows from the seed alone. What a thread does between two waits takes no time.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")
FOR_EVER = float("inf")
WAKE_S = 20e-6
"""A thread runs so much later, at most, than it could, mostly."""
HICCUP, HICCUP_S = 1 / 64, 0.005
"""Now and then it is much later."""
MOST_CALLS = 20_000
"""Of the system, without time passing: more is a loop that never ends."""


class Violation(AssertionError):
    """A law is broken."""


class Waitable:
    """Something that threads wait for. Whoever changes it wakes them, and they look.

    Those that pollers wait for have ``pending``, true while they are ready: it is looked at more often than
    anything else.
    """

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[Task] = []

    def wake(self, hub: Hub) -> None:
        for task in self.waiters:
            hub.wake(task)


class Task:
    """One thread of a simulated process."""

    __slots__ = ("process", "name", "greenlet", "turn", "parked", "waking", "done", "_run", "_hub")

    def __init__(self, hub: Hub, process: Process, name: str, run: Callable[[], Any]) -> None:
        self._hub, self.process, self.name, self._run = hub, process, name, run
        self.turn, self.parked, self.waking = 0, True, False
        self.done = Waitable()
        self.greenlet: greenlet | None = greenlet(self._main, parent=hub.greenlet)

    def _main(self) -> None:
        try:
            self._run()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001  (the process ends as it would)
            self.process.crash(error)
        finally:
            self.greenlet = None
            self.parked = False
            if self.process.alive:
                self.done.wake(self._hub)


class Process:
    """A simulated process. fuse: it dies at so many calls of the system from now; None: it does not.

    frozen_s: until then none of its threads runs; hung_s: its first one does not. skew_s: how far its clock
    is off.
    ended: called once it has.
    """

    def __init__(self, hub: Hub, name: str, ended: Callable[[Process], None]) -> None:
        self.hub, self.name, self._ended = hub, name, ended
        self.pid = hub.new_pid(self)
        self.host = "here"
        self.alive = True
        self.how = ""
        """How it ended: ``exit CODE``, ``killed``."""
        self.frozen_s = self.hung_s = 0.0
        self.fuse: int | None = None
        self.skew_s = hub.rng.uniform(0, 1000)
        self.wall_s = 0.0
        self.tasks: list[Task] = []
        self.at_end: list[Callable[[], None]] = []
        """What the system does when a process ends: closes its files and connections."""

    def __repr__(self) -> str:
        return f"{self.name} ({self.pid})"

    def start(self, name: str, run: Callable[[], Any]) -> Task:
        task = Task(self.hub, self, name, run)
        self.tasks.append(task)
        self.hub.wake(task)
        return task

    def exit(self, code: int) -> None:
        """It ends by itself."""
        self._end(f"exit {code}")

    def crash(self, error: BaseException) -> None:
        if self.alive:
            self.hub.note("".join(traceback.format_exception(error)))
            self.hub.violate(Violation(f"{self.name} dies of {type(error).__name__}: {error}"))
            self.exit(1)

    def kill(self) -> None:
        self._end("killed")

    def _end(self, how: str) -> None:
        if not self.alive:
            return
        self.alive, self.how = False, how
        self.hub.note(f"{self.name}: {how}")
        for act in self.at_end:
            act()
        self.at_end.clear()
        self.hub.at(self.hub.now_s, self._reap)
        self._ended(self)

    def vanish(self) -> None:
        """The world is over."""
        self.alive = False
        self.at_end.clear()
        self._reap()

    def _reap(self) -> None:
        """Unwinds its threads. What they still do on their way has no effect: see ``Hub.point``."""
        for task in self.tasks:
            if task.greenlet is not None and task.greenlet is not getcurrent():
                self.hub.running = task
                if task.greenlet:
                    task.greenlet.throw()
                else:
                    task.greenlet = None  # never began
        self.hub.running = None
        self.tasks.clear()


class Hub:
    """Time, chance and whose turn it is. story: what happened, for people."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.greenlet = getcurrent()
        self.running: Task | None = None
        self.story: deque[str] = deque(maxlen=400)
        self.violation: BaseException | None = None
        self.num_events = 0
        self.pauses = False
        self.by_pid: dict[int, Process] = {}
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = count()
        self._calls = 0

    def new_pid(self, process: Process) -> int:
        pid = 10_000_000 + len(self.by_pid)
        self.by_pid[pid] = process
        return pid

    def note(self, text: str) -> None:
        self.story.append(f"{self.now_s:10.6f} {text}")

    def violate(self, error: BaseException) -> None:
        self.violation = self.violation or error

    # --- time ------------------------------------------------------------------------------------

    def at(self, when_s: float, call: Callable[..., None], *arguments: Any) -> None:
        heappush(self._queue, (when_s, next(self._numbers), call, arguments))

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now_s + seconds, call, *arguments)

    def play(self, most: int) -> None:
        """The next things happen: so many, or fewer if it ``pauses``."""
        queue, self.pauses = self._queue, False
        while most > 0 and not self.pauses:
            if not queue:
                raise Violation("nothing will ever happen any more")
            when_s, _, call, arguments = heappop(queue)
            if when_s > self.now_s:
                self.now_s, self._calls = when_s, 0
            self.num_events += 1
            most -= 1
            call(*arguments)
            if self.violation is not None:
                raise self.violation

    # --- threads ---------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        """The one that runs."""
        assert self.running is not None
        return self.running.process

    def point(self) -> None:
        """A call of the system: where a process may end, and one that has does nothing any more."""
        task = self.running
        if task is None:
            return  # the world itself looks
        process = task.process
        if not process.alive:
            raise GreenletExit
        if process.fuse is not None:
            process.fuse -= 1
            if process.fuse < 0:
                process.kill()
                raise GreenletExit
        self._calls += 1
        if self._calls > MOST_CALLS:
            error = Violation(f"{process.name} spins")
            self.violate(error)
            raise error

    def wake(self, task: Task) -> None:
        if task.parked and not task.waking and task.process.alive:
            task.waking = True
            draw = self.rng.random
            most_s = HICCUP_S if draw() < HICCUP else WAKE_S
            when_s = self.now_s + most_s * draw()
            heappush(self._queue, (when_s, next(self._numbers), self._resume, (task, task.turn)))

    def _resume(self, task: Task, turn: int) -> None:
        process = task.process
        if task.turn != turn or not task.parked or not process.alive:
            return
        until_s = process.frozen_s
        if process.hung_s > until_s and task is process.tasks[0]:
            until_s = process.hung_s
        if until_s > self.now_s:
            if until_s < FOR_EVER:
                self.at(until_s, self._resume, task, turn)
            return
        task.parked = task.waking = False
        self.running = task
        assert task.greenlet is not None
        task.greenlet.switch()
        self.running = None

    def park(self, timeout_s: float | None = None) -> None:
        """The thread that runs waits until it is woken, or for so long."""
        task = self.running
        assert task is not None
        task.turn += 1
        task.parked = True
        if timeout_s is not None and timeout_s < FOR_EVER:
            when_s = self.now_s + timeout_s if timeout_s > 0.0 else self.now_s
            heappush(self._queue, (when_s, next(self._numbers), self._resume, (task, task.turn)))
        self.greenlet.switch()
        if not task.process.alive:
            raise GreenletExit

    def sleep(self, seconds: float) -> None:
        self.point()
        until_s = self.now_s + seconds
        self.park(seconds)
        while self.now_s < until_s:
            self.park(until_s - self.now_s)

    def wait(self, sources: Sequence[Waitable], ready: Callable[[], T], timeout_s: float | None) -> T:
        """Waits until something is ``ready``; what it returned last, when the time is over."""
        self.point()
        until_s = None if timeout_s is None else self.now_s + timeout_s
        task = self.running
        assert task is not None
        while not (found := ready()):
            if until_s is not None and self.now_s >= until_s:
                break
            for source in sources:
                source.waiters.append(task)
            try:
                self.park(None if until_s is None else until_s - self.now_s)
            finally:
                for source in sources:
                    source.waiters.remove(task)
        return found

    def poll(self, sources: Sequence[Any], timeout_s: float | None) -> bool:
        """Waits until one of these has something ``pending``; False: none had until the time was over."""
        self.point()
        until_s = None if timeout_s is None else self.now_s + timeout_s
        task = self.running
        assert task is not None
        while True:
            for source in sources:
                if source.pending:
                    return True
            if until_s is None:
                left_s = None
            elif (left_s := until_s - self.now_s) <= 0.0:
                return False
            for source in sources:
                source.waiters.append(task)
            try:
                self.park(left_s)
            finally:
                for source in sources:
                    source.waiters.remove(task)


# --- what ``threading`` and ``queue`` have ---------------------------------------------------------


class SimThread:
    """``threading.Thread``, as far as it is used."""

    def __init__(
        self,
        hub: Hub,
        target: Callable[..., Any],
        name: str = "",
        args: tuple[Any, ...] = (),
        daemon: bool = True,
    ) -> None:
        self._hub, self._target, self.name, self._arguments = hub, target, name, args
        self._task: Task | None = None

    def start(self) -> None:
        self._hub.point()
        process = self._hub.process
        self._task = process.start(f"{process.name}/{self.name}", lambda: self._target(*self._arguments))

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is not None:
            self._hub.wait([task.done], lambda: task.greenlet is None, timeout)

    def is_alive(self) -> bool:
        return self._task is not None and self._task.greenlet is not None


class SimEvent(Waitable):
    """``threading.Event``."""

    __slots__ = ("_hub", "_set")

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub, self._set = hub, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._hub.point()
        self._set = True
        self.wake(self._hub)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._hub.wait([self], self.is_set, timeout)


class SimLock(Waitable):
    """``threading.Lock``."""

    __slots__ = ("_hub", "_held")

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub, self._held = hub, False

    def __enter__(self) -> SimLock:
        self._hub.wait([self], lambda: not self._held, None)
        self._held = True
        return self

    def __exit__(self, *exception: object) -> None:
        self._held = False
        self.wake(self._hub)


class SimQueue(Waitable):
    """``queue.SimpleQueue``."""

    __slots__ = ("_hub", "_items")

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._hub.point()
        self._items.append(item)
        self.wake(self._hub)

    def get(self) -> Any:
        self._hub.wait([self], lambda: self._items, None)
        return self._items.popleft()
