"""When a run stands still though everybody is there: how long to wait, whom to ask, and who is to blame.

    quiet ── nothing has moved for ``limit_s`` ──> asked ── all have answered, or ANSWER_S ──> Verdict
      ^                                              │                                            │
      └────────────── something moves ───────────────┴────────────────────────────────────────────┘

What is asked of each member (``Look``) is answered twice: by its link's thread, which runs whatever the
main thread does, with what it waits for and its stack (``Stacks``); and by its main thread (``Here``). A
process of which only the first comes hangs, or computes; and whoever still computes after twenty times what a
step takes, with all others waiting, is not waited for any more. Pure: events and the time in, a verdict out.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from elasticflow.master.pace import StepPace
from elasticflow.wire.messages import Stacks

STEPS = 20
"""A run does not stand still before so many times the median step has passed."""
ANSWER_S = 10.0
"""For so long a main thread may be busy with something else: rows, a parcel, a collection of garbage."""
STOP_S = 30.0
"""Once a run is to be stopped, a step that takes longer is given up, unless it is as long as others are."""
MOST_TOLD = 8
"""Of so many members it is told what they do; of others, that there are more."""


class Verdict(NamedTuple):
    """hung: those whose main threads have not answered. silent: of whom nothing has come; a question may get
    lost. text: who waits for whom. stack: of one that hangs, for people."""

    hung: tuple[str, ...]
    silent: tuple[str, ...]
    text: str
    stack: str


class Stall:
    """stall_s: the setting. ``rounds``: how often something was done about it, and no step came of it.

    ``pace``: how long steps take.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s, self.pace = stall_s, StepPace()
        self.rounds = 0
        self.number = 0
        """Of the last question."""
        self._stuck_at = -1
        self._mark: Hashable = None
        self._runs = False
        self._still_s, self._seen_s = 0.0, 0.0
        self._asked: tuple[str, ...] = ()
        self._asked_s: float | None = None
        self._stacks: dict[str, Stacks] = {}
        self._here: set[str] = set()

    # --- how long things may take ------------------------------------------------------------------

    def made(self, version: int, now_s: float) -> None:
        """The run has come to this version."""
        self.pace.made(version, now_s)
        if version > self._stuck_at:
            self.rounds = 0

    def limit_s(self, size: float = 1.0, *, stopping: bool = False) -> float:
        """How long the run may stand still. size: of what is to be done, in steps, such as an evaluation.

        stopping: somebody waits for its end.
        """
        least_s = min(STOP_S, self._stall_s) if stopping else self._stall_s
        return max(least_s, STEPS * self.pace.step_s * max(1.0, size))

    @property
    def answer_s(self) -> float:
        """How long an answer may take."""
        return min(ANSWER_S, self._stall_s / 2)

    # --- whether anything moves --------------------------------------------------------------------

    def see(self, mark: Hashable, runs: bool, now_s: float) -> None:
        """After each event. mark: another one than before if something has moved. runs: whether something
        should; it is not held against a run that its members have no place yet."""
        if mark != self._mark:
            self._mark, self._still_s = mark, 0.0
            self.forget()
        elif self._runs:
            self._still_s += now_s - self._seen_s
        if self._runs and not runs:
            self.forget()
        self._runs, self._seen_s = runs, now_s

    def excuse(self, seconds: float) -> None:
        """For so long nobody could do anything, or be heard."""
        self._seen_s += seconds
        self.pace.excuse(seconds)
        if self._asked_s is not None:
            self._asked_s += seconds

    def due_s(self, limit_s: float) -> float:
        """When to ask, or to judge, if nothing happens until then."""
        if self._asked_s is not None:
            return self._asked_s + self.answer_s
        return self._seen_s + limit_s - self._still_s if self._runs else float("inf")

    # --- who is to blame ---------------------------------------------------------------------------

    @property
    def asking(self) -> bool:
        return self._asked_s is not None

    def ask(self, names: Sequence[str], version: int, now_s: float) -> int:
        """These are asked now; the number of the question."""
        self.number += 1
        self._asked, self._asked_s = tuple(names), now_s
        self._stuck_at = max(self._stuck_at, version)
        return self.number

    def stacks(self, event: Stacks) -> None:
        """What a member's link says of it."""
        if self.asking and event.number == self.number:
            self._stacks[event.name] = event

    def here(self, name: str, number: int) -> None:
        """A member's main thread has answered."""
        if self.asking and number == self.number:
            self._here.add(name)

    def forget(self) -> None:
        """Something has moved, or was done: whatever was asked does not matter any more."""
        self._asked_s, self._asked = None, ()
        self._stacks, self._here = {}, set()

    def verdict(self, now_s: float) -> Verdict | None:
        """Once all have answered, or have had the time to; after it, the run has its whole time again."""
        if self._asked_s is None:
            return None
        left = [name for name in self._asked if name not in self._here]
        if left and now_s < self._asked_s + self.answer_s:
            return None
        told = [self._told(name) for name in sorted(self._asked, key=lambda name: name not in left)]
        more = f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        hung = tuple(name for name in left if name in self._stacks)
        silent = tuple(name for name in left if name not in self._stacks)
        stack = next((self._stacks[name].stack for name in hung if self._stacks[name].stack), "")
        self.forget()
        self._still_s = 0.0
        return Verdict(hung, silent, "; ".join(told[:MOST_TOLD]) + more, stack)

    def _told(self, name: str) -> str:
        stacks = self._stacks.get(name)
        if stacks is None:
            return f"{name} does not answer at all"
        doing = stacks.doing or "says nothing of what it does"
        return f"{name} {doing}" if name in self._here else f"{name} {doing}, and hangs at {stacks.where}"
