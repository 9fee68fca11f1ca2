"""Where a worker is in its run, and what is known of the slices of the tick that it is in."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticflow.wire.messages import Faulty


@dataclass
class Present:
    """name: the worker's. generation: of servers. tick: the one in work; -1: none was yet.

    faulty: slices on which the program raises, or dies, as the master was told. careful: slices that are
    tried in another process before they are computed in this; careful_to: and all of ticks up to this one.
    done: slices that this worker has pushed to all servers. inspects: slices to look at once the version of
    this tick is here again.
    redo_until: ticks below were computed in a generation before this one. entered: versions, so far.
    is_following: it has had a whole version of these servers.
    """

    name: str
    generation: int = 0
    tick: int = -1
    faulty: dict[int, Faulty] = field(default_factory=dict)
    careful: set[int] = field(default_factory=set)
    careful_to: int = -1
    done: set[int] = field(default_factory=set)
    inspects: tuple[int, ...] = ()
    redo_until: int = 0
    entered: int = 0
    is_following: bool = False

    def enter(self) -> None:
        """Another version is there: its slices are new."""
        self.entered += 1
        self.faulty.clear()
        self.careful.clear()
        self.done.clear()

    def part(self) -> None:
        """The tick is not to be gone on with."""
        self.redo_until = max(self.redo_until, self.tick + (1 if self.done else 0))
        self.inspects = ()
        self.enter()
