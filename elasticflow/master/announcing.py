"""What a run tells: its story and log, its cluster, clients that wait for news, those who see its board."""

from __future__ import annotations

import time
from collections.abc import Callable

from elasticflow.cluster.contract import Backend
from elasticflow.master.actions import FaultAction, NoteAction, RegroupedAction, ResizedAction
from elasticflow.master.board import Board
from elasticflow.master.connections import Connections
from elasticflow.master.deciding.facts import Facts
from elasticflow.master.events import Event
from elasticflow.master.log import say
from elasticflow.master.members import RunState
from elasticflow.master.state import MasterState
from elasticflow.master.status import Story
from elasticflow.run.telling import Status
from elasticflow.wire.messages import Heartbeat, Join, Leaving, Progress, Written

SOURCES = {
    "memory": "which they had in memory",
    "storage": "which is committed",
    "beginning": "as nothing is committed yet",
}
"""Where servers have the version from that they go on from."""


class Announcing:
    """Each thing once: it remembers what was told last."""

    def __init__(self, story: Story, backend: Backend, connections: Connections, board: Board) -> None:
        self._story, self._backend, self._connections, self._board = story, backend, connections, board
        self.close = board.close
        self._size: tuple[int, int, str] | None = None
        self._progress = 0

    def note(self, kind: str, text: str) -> None:
        """An event for people. kind: see ``Event``."""
        self._story.note(NoteAction(kind, text))
        say(f"{kind}: {text}")
        self._connections.news += 1

    def happened(self, event: Event, state: MasterState, *, accepted: bool) -> None:
        """What an event, by now decided on, adds to the story. accepted: whether progress was news."""
        if isinstance(event, (Heartbeat, Leaving)):
            self._story.keep_usage(state)
        elif isinstance(event, Join) and event.role == "worker":
            self._story.began(event.began)
        elif isinstance(event, Progress) and accepted:
            self._story.progress(state, event)
            self._connections.news += 1
        elif isinstance(event, Written) and accepted and state.schedule:
            self._story.written(state.schedule.steps_before(event.tick), event)

    def fault(self, action: FaultAction) -> None:
        self._story.fault(action.name, action.role, action.text, time.monotonic(), early=action.early)
        self.note("fault", f"{action.name} {action.text}")

    def regrouped(self, action: RegroupedAction, facts: Facts) -> None:
        """The servers go on."""
        now_s = time.monotonic()
        self._story.regrouped(action.reached, action.start, action.source, now_s, moved=bool(action.why))
        assert facts.schedule
        back, step = (facts.schedule.steps_before(v) for v in (action.reached, action.start))
        who = f"{action.why}, and the servers" if action.why else "the servers"
        text = f"{who} go on from step {step}, {SOURCES[action.source]}"
        self.note("info", f"{text}: {back - step} steps back" if back > step else f"{text}: no step is lost")

    def resized(self, action: ResizedAction) -> None:
        self._story.resized(action.old, action.new, action.reason)
        self.note("info", f"from {action.old} to {action.new} workers, {action.reason}")

    def trouble(self, text: str, facts: Facts) -> None:
        """The storage refuses a commit, and is asked again; an empty text: it took it."""
        if text:
            facts.troubles["master"] = text
            self.note("fault", f"the master cannot commit a checkpoint, and tries again: {text}")
        elif facts.troubles.pop("master", ""):
            self.note("info", "the master can commit again")

    def waits_for_keys(self, facts: Facts, name: str, text: str) -> None:
        """The run's folder refuses a member's keys, and is asked again; an empty text: not any more."""
        facts.troubles.pop(name, None)
        if text:
            facts.troubles[name] = text
            self.note("fault", f"the keys of {name} cannot be written, and are tried again: {text}")

    def outlook(self) -> bool:
        """Says that the run is going to miss its deadline, or is not any more, when that changes."""
        if note := self._story.outlook():
            self.note(note.kind, note.text)
        return note is not None

    def size(self, facts: Facts) -> None:
        """Writes down how many workers there are, and why there are not more."""
        size = facts.num_ready, facts.target, self._backend.shortage()
        if size != self._size and facts.state in (RunState.STARTING, RunState.RUNNING):
            self._size = size
            self._story.sized(*size)
            self._connections.news += 1

    def progress(self) -> None:
        """Tells the cluster each further hundredth of the work."""
        progress = int(100 * self._story.done)
        if progress != self._progress:
            self._progress = progress
            self._backend.tell_progress(progress / 100)

    def show(self, now_s: float, status: Callable[[], Status]) -> None:
        """On the board; never waits for a disk."""
        self._board.look(now_s, status)
