"""The processes that compute parts: begun, told what to do, and replaced when they die."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import msgspec

from elasticflow.applying.orders import (
    LoadOrder,
    Order,
    PartAt,
    PartDone,
    ProcessReady,
    SumDone,
    SumOrder,
    Word,
    WorkRefused,
)
from elasticflow.applying.part_processes import PartProcess, PartProcesses
from elasticflow.applying.progress import DeadlyPartError, PartProgress
from elasticflow.errors import RunError
from elasticflow.process.decoding import from_msgpack
from elasticflow.process.ending import how_it_ended
from elasticflow.run.folder import last_line

MOST_UNREADY = 3
"""So many processes in a row may end before they have loaded the program; then no others are begun."""
END_S = 30.0


@dataclass
class _Hand:
    """One process. at: the records that it has named last; ready: it has loaded the program."""

    name: str
    process: PartProcess
    pipe: Connection[bytes, bytes]
    log: Path
    ready: bool = False
    at: PartAt | None = None


class Crew:
    """As many processes as are wanted, at most. To be used as a context manager, which leaves none behind.

    order: what each is to load. folder: of their logs. environment: theirs.
    """

    def __init__(self, order: LoadOrder, folder: Path, environment: Mapping[str, str]) -> None:
        self._order, self._folder = order, folder
        self._origin = PartProcesses(order.settings.program, folder / f"{order.verb}.log", environment)
        self._hands: dict[int, _Hand] = {}
        self._count = 0
        self._unready = 0
        self._facts: ProcessReady | None = None
        self.deaths = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        for hand in self._hands.values():
            hand.pipe.close()
            hand.process.kill()
        for hand in self._hands.values():
            with suppress(subprocess.TimeoutExpired):
                hand.process.wait(END_S)
        self._hands.clear()
        self._origin.close()

    def first(self) -> ProcessReady:
        """Begins one process, and waits until it has loaded the program; or another, if it dies of it.

        Raises what it refuses with; RunError if several die.
        """
        self._begin()
        while True:
            for hand, word in self._words():
                if isinstance(word, ProcessReady):
                    hand.ready, self._unready, self._facts = True, 0, word
                    return word
                if word is None:
                    self._bury(hand)
                    self._begin()

    def work(
        self, parts: Iterable[int], most: int, take: Callable[[int, bytes], None] = lambda part, value: None
    ) -> None:
        """Has all parts done. most: processes. take: called with a part that is done, and what came of it.

        Raises what a process refuses with, DeadlyPartError, RunError.
        """
        progress = PartProgress(parts)
        self._fill(min(most, progress.left))
        self._give(progress)
        while progress.left:
            for hand, word in self._words():
                self._hear(hand, word, progress, take)
            self._fill(min(most, progress.left))
            self._give(progress)

    def sum_up(self, total: bytes) -> dict[str, float | None]:
        """What people see of a sum. Some process makes it."""
        while True:
            hand = next((hand for hand in self._hands.values() if hand.ready), None)
            if hand is None:
                self.first()
                continue
            self._say(hand, SumOrder(total))
            while hand.pipe.fileno() in self._hands:
                for heard, word in self._words():
                    if isinstance(word, SumDone):
                        return word.values
                    if word is None:
                        self._bury(heard)

    # --- what is heard ---------------------------------------------------------------------------

    def _hear(
        self, hand: _Hand, word: Word | None, progress: PartProgress, take: Callable[[int, bytes], None]
    ) -> None:
        if word is None:
            at = hand.at
            how = self._bury(hand)
            try:
                progress.died(hand.name, at, how)
            except DeadlyPartError as error:
                words = last_line(hand.log)
                raise DeadlyPartError(f"{error}; its last words were: {words}") from error
        elif isinstance(word, ProcessReady):
            if word != self._facts:
                raise RunError(
                    f"{self._order.data}: a process finds other records there, or computes otherwise, "
                    "than the one before. Leave data and packages as they are, and try again."
                )
            hand.ready, self._unready = True, 0
        elif isinstance(word, PartAt):
            hand.at = word
        elif isinstance(word, PartDone):
            hand.at = None
            if progress.done(hand.name):
                take(word.part, word.value)

    def _give(self, progress: PartProgress) -> None:
        """Something to do to all who have nothing."""
        for hand in self._hands.values():
            if hand.ready and not progress.is_busy(hand.name) and (todo := progress.next_for(hand.name)):
                self._say(hand, todo)

    def _words(self) -> list[tuple[_Hand, Word | None]]:
        """Waits for what processes say; None: one has ended. Raises what one refuses with."""
        poller = select.poll()
        for fd in self._hands:
            poller.register(fd, select.POLLIN)
        found: list[tuple[_Hand, Word | None]] = []
        for fd, _ in poller.poll():
            hand = self._hands[fd]
            try:
                word: Word | None = from_msgpack(hand.pipe.recv_bytes(), Word)
            except (EOFError, OSError):
                word = None
            if isinstance(word, WorkRefused):
                raise word.error
            found.append((hand, word))
        return found

    # --- processes -------------------------------------------------------------------------------

    def _fill(self, wanted: int) -> None:
        """Begins processes. Where there is no room for more, those go on that are there."""
        while len(self._hands) < wanted and self._unready < MOST_UNREADY:
            self._begin()

    def _begin(self) -> None:
        self._count += 1
        name = f"{self._order.verb}-{self._count - 1}"
        ours, theirs = Pipe()
        log = self._folder / f"{name}.log"
        with theirs:
            process = self._origin.begin(name, theirs.fileno(), log)
        hand = self._hands[ours.fileno()] = _Hand(name, process, ours, log)
        settings = msgspec.structs.replace(self._order.settings, name=name)
        self._say(hand, msgspec.structs.replace(self._order, settings=settings))

    def _say(self, hand: _Hand, order: Order) -> None:
        with suppress(OSError):  # it has ended, which reading from it shows
            hand.pipe.send_bytes(msgspec.msgpack.encode(order))

    def _bury(self, hand: _Hand) -> str:
        """How a process ended. Raises RunError if none comes to load the program."""
        del self._hands[hand.pipe.fileno()]
        hand.pipe.close()
        try:
            status = hand.process.wait(END_S)
        except subprocess.TimeoutExpired:
            hand.process.kill()
            status = hand.process.wait()
        self.deaths += 1
        how = how_it_ended(status)
        self._unready += not hand.ready
        if self._unready >= MOST_UNREADY and not any(other.ready for other in self._hands.values()):
            raise RunError(
                f"{self._order.settings.program}: {MOST_UNREADY} processes in a row have ended before they "
                f"had loaded the program; the last {how}, and its last words were: {last_line(hand.log)}"
            )
        return how
