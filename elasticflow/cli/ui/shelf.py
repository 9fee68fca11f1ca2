"""The runs that a page shows, by short names, and what is asked of each."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import msgspec

from elasticflow.cli.asking import killed
from elasticflow.cli.comparing import Comparison, compared
from elasticflow.cli.connection import Connection
from elasticflow.cli.folders import find_run, find_shown, trust_or_check
from elasticflow.cli.history import runs_in
from elasticflow.cli.outside import is_outside, shown
from elasticflow.cli.report import remembered
from elasticflow.cli.runs import stop_run
from elasticflow.cli.summaries import RunSummary, summary_of
from elasticflow.cluster.presence import presence_of
from elasticflow.errors import ElasticFlowError, NoRunError, RunError
from elasticflow.process.texts import sendable
from elasticflow.run.folder import ENDED, RunDir
from elasticflow.run.telling import Past, Untold
from elasticflow.service import talk
from elasticflow.wire.messages import ScaleRequest

T = TypeVar("T")
Shown: TypeAlias = Past | Untold
_Mark: TypeAlias = tuple[tuple[int, ...], ...]
FRESH_S = 2.0
"""So old what is told of all runs may be, however many look."""
GOES_ON = ("running", "starting", "finishing", "unknown")
AT_ONCE = 8
"""So many runs are asked at a time."""
NEWS = 20
"""So much a master has to tell before it is asked again; or after ten seconds."""
LEAST_S = 0.5
"""Between two pictures of a run."""
LOOK_S = 2.0
"""So often it is looked whether a run that waits for its place has one."""


class NamedSummary(msgspec.Struct, kw_only=True):
    """A run, by the name that the page has for it."""

    name: str
    summary: RunSummary


class _Kept(Generic[T]):
    """What is asked for at most so often, by one at a time."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask, self._lock = ask, threading.Lock()
        self._value: tuple[float, T] | None = None

    def now(self) -> T:
        with self._lock:
            if self._value is None or time.monotonic() >= self._value[0] + FRESH_S:
                value = self._ask()
                self._value = time.monotonic(), value
            return self._value[1]


class RunShelf:
    """Runs that may come and go while a page is open. trust: whoever has a hand in their folders."""

    title = ""

    def __init__(self, trust: bool) -> None:
        self._trust = trust
        self._summaries = _Kept(self._all_summaries)
        self._over: dict[str, tuple[_Mark, RunSummary]] = {}
        """By path: of runs that are over, not looked into again while their folders do not change."""

    def runs(self) -> dict[str, RunDir]:
        """By name, as it is now."""
        raise NotImplementedError

    def service(self) -> talk.ServiceAnswer | None:
        """What the service tells whose runs these are; None: they are nobody's."""
        return None

    def summaries(self) -> list[NamedSummary]:
        """The newest first."""
        return self._summaries.now()

    def _all_summaries(self) -> list[NamedSummary]:
        named = self.runs()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(self._summary, named.values())
            told = [NamedSummary(name=name, summary=each) for name, each in zip(named, found, strict=True)]
        return sorted(told, key=lambda each: (each.summary.begun_at or 0.0, each.name), reverse=True)

    def _summary(self, run: RunDir) -> RunSummary:
        """One of which nobody thought that it could be like that hides none of the others."""
        path, mark = str(run.path), _mark(run)
        before = self._over.get(path)
        if before is not None and before[0] == mark:
            return before[1]
        try:
            summary = summary_of(run, self._trust)
        except Exception as error:  # noqa: BLE001
            traceback.print_exc(file=sys.stderr)
            return RunSummary(run=path, state="unreadable", text=f"{type(error).__name__}: {error}")
        if mark is not None and summary.state in ENDED:
            self._over[path] = mark, summary
        return summary

    def run(self, name: str) -> RunDir:
        """Raises NoRunError if there is none of that name."""
        found = self.runs().get(name)
        if found is None:
            raise NoRunError(f"{name}: there is no such run any more.")
        return found

    def compare(self, names: list[str]) -> Comparison:
        """Raises RunError."""
        return compared([self.run(name) for name in names], self._trust)

    def pictures(self, name: str) -> Generator[Shown | None, None, None]:
        """How a run is, whenever there is news of it, until it is over. None: it is still as it was.

        Raises RunError, OSError.
        """
        run = self.run(name)
        if is_outside(run, self._trust):
            while (picture := shown(run)).state not in ENDED:
                yield picture
                time.sleep(LOOK_S)
            yield picture
            return
        trust_or_check(run, self._trust)
        run.config()  # raises, and says that this is no run
        presence = presence_of(run)
        while presence.is_alive():
            if not presence.has_master():
                yield Untold(state="waiting", text=presence.waits_for())
                time.sleep(LOOK_S)
                continue
            try:
                yield from _live(run)
            except RunError as error:
                if presence.is_alive():
                    yield Untold(state="unknown", text=str(error))
                    time.sleep(LOOK_S)
        yield _last(run)

    def scale(self, name: str, workers: int) -> None:
        """Raises RunError."""
        with Connection(find_run(str(self.run(name).path), self._trust)) as connection:
            connection.ask(ScaleRequest(workers=workers))

    def stop(self, name: str) -> str:
        """Returns what has become of it. Raises RunError."""
        return stop_run(find_run(str(self.run(name).path), self._trust))


class FolderShelf(RunShelf):
    """All runs of a folder, or one alone."""

    def __init__(self, where: str, trust: bool, one: RunDir | None = None) -> None:
        super().__init__(trust)
        self.title = where
        self._where, self._one = where, one

    @classmethod
    def of(cls, where: str, trust: bool, *, is_folder: bool) -> FolderShelf:
        """Raises RunError if there is neither such a folder nor such a run."""
        if is_folder:
            return cls(where, trust)
        run, outside = find_shown(where, trust)
        if not outside:
            run.config()
        return cls(str(run.path), trust, run)

    def runs(self) -> dict[str, RunDir]:
        found = [self._one] if self._one else runs_in(self._where)[0]
        return {_name(run): run for run in found}


class ServiceShelf(RunShelf):
    """All runs of which a service tells."""

    def __init__(self, folder: Path, trust: bool) -> None:
        super().__init__(trust)
        self.title = f"service {folder.name}"
        self._tasks = _Kept(lambda: talk.ask(folder, talk.ListTasks()))

    def service(self) -> talk.ServiceAnswer:
        """Raises RunError."""
        return self._tasks.now()

    def runs(self) -> dict[str, RunDir]:
        return {task.name: RunDir(task.run) for task in self.service().tasks}

    def _waits(self, name: str) -> str | None:
        """Why the service has nobody compute this run just now; None: somebody does, or it is over."""
        task = next((each for each in self.service().tasks if each.name == name), None)
        if task is None or task.state or presence_of(RunDir(task.run)).is_alive():
            return None
        return task.why or task.standing

    def _all_summaries(self) -> list[NamedSummary]:
        """One that waits, with a folder in which nothing goes on, was not killed."""
        told = super()._all_summaries()
        for each in told:
            if each.summary.state not in GOES_ON and (why := self._waits(each.name)) is not None:
                each.summary = msgspec.structs.replace(each.summary, state="waiting", text=why)
        return told

    def pictures(self, name: str) -> Generator[Shown | None, None, None]:
        while True:
            if (why := self._waits(name)) is not None:
                yield Untold(state="waiting", text=why)
            else:
                yield from super().pictures(name)
                if self._waits(name) is None:
                    return
            time.sleep(LOOK_S)


def _name(run: RunDir) -> str:
    """The last part of its path, also of one that is called ``.`` here, as a page can ask for it again."""
    name = os.path.basename(os.path.abspath(run.path)) if isinstance(run.path, Path) else run.path.name
    return sendable(name)


def _mark(run: RunDir) -> _Mark | None:
    """Of a run's folder: another one once the run goes on, or something in it is others'. None: far away.

    Whoever goes on with a run writes its settings anew, and who deletes a checkpoint changes their folder.
    """
    if not isinstance(run.path, Path):
        return None
    try:
        found = [os.stat(path) for path in (run.path, run.report, run.path / "checkpoints")]
    except OSError:
        return None
    return tuple((each.st_ino, each.st_ctime_ns) for each in found)


def _live(run: RunDir) -> Generator[Shown | None, None, None]:
    """Raises RunError once the run is over."""
    with Connection(run) as connection:
        while True:
            begun_s = time.monotonic()
            status = connection.next_status(news=NEWS)
            yield status
            if status is not None and status.state in ENDED:
                return
            time.sleep(max(0.0, begun_s + LEAST_S - time.monotonic()))


def _last(run: RunDir) -> Shown:
    presence = presence_of(run)
    if report := run.read_report():
        return report
    try:
        return remembered(run, presence)
    except (ElasticFlowError, OSError):
        return killed(run, presence)
