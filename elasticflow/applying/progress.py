"""Who is to do which part next, and what a process died of: pure.

A part whose process died is done again by another. If that dies too, a third says before each batch which
records it has; then they are computed one by one. A record counts as deadly only if a process died of it
alone twice: somebody else may have ended one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TypeAlias

from elasticflow.applying.orders import PartAt, PartOrder, SearchOrder
from elasticflow.errors import ProgramError

CAREFUL_AFTER = 2
"""Deaths over one part, after which it is not simply done again."""
MOST_DEATHS = 20
"""Over one part: whatever it is, it does not go away."""

PartTodo: TypeAlias = PartOrder | SearchOrder


class DeadlyPartError(ProgramError):
    """Processes die of a record, or of some records together."""


class PartProgress:
    """Of all parts that are still to be done. Nothing is lost: each is waiting, in work or done."""

    def __init__(self, parts: Iterable[int]) -> None:
        self._waiting: deque[PartTodo] = deque(PartOrder(part) for part in parts)
        self._in_work: dict[str, PartTodo] = {}
        self._deaths: Counter[int] = Counter()
        self._cleared: dict[int, int] = {}
        """The first record of the batch whose records were all survived one by one, by part."""
        self.left = len(self._waiting)

    def is_busy(self, name: str) -> bool:
        """Whether it has something to do."""
        return name in self._in_work

    def next_for(self, name: str) -> PartTodo | None:
        """What this process is to do; None: there is nothing now."""
        assert name not in self._in_work
        if not self._waiting:
            return None
        todo = self._in_work[name] = self._waiting.popleft()
        return todo

    def done(self, name: str) -> bool:
        """Whether that was a part, and no search."""
        todo = self._in_work.pop(name)
        if isinstance(todo, PartOrder):
            self.left -= 1
            return True
        if todo.last - todo.first > 1:
            self._cleared[todo.part] = todo.first
        self._waiting.appendleft(PartOrder(todo.part, careful=True))
        return False

    def died(self, name: str, at: PartAt | None, how: str) -> None:
        """A process is gone. at: what it said last, over what it had to do. how: it ended.

        Raises DeadlyPartError.
        """
        todo = self._in_work.pop(name, None)
        if todo is None:
            return
        self._deaths[todo.part] += 1
        if self._deaths[todo.part] >= MOST_DEATHS:
            raise DeadlyPartError(f"{MOST_DEATHS} processes have ended over part {todo.part}; the last {how}")
        if at is None or at.last == at.first:
            self._waiting.appendleft(todo)
            if isinstance(todo, PartOrder) and self._deaths[todo.part] >= CAREFUL_AFTER:
                self._waiting[0] = PartOrder(todo.part, careful=True)
        elif isinstance(todo, PartOrder):
            if self._cleared.get(todo.part) == at.first:
                raise DeadlyPartError(
                    f"records {at.first} to {at.last - 1} ({at.where}): a process that computes them "
                    f"together {how}, though it computes each of them alone"
                )
            self._waiting.appendleft(SearchOrder(todo.part, at.first, at.last))
        elif todo.last - todo.first == 1:
            raise DeadlyPartError(f"record {at.first} ({at.where}): a process that computes it {how}")
        else:
            self._waiting.appendleft(SearchOrder(todo.part, at.first, at.first + 1))
