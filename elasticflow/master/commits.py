"""Checkpoints under way: whose parts are written, what is being committed, what was given up."""

from __future__ import annotations

from elasticflow.checkpoint import Part
from elasticflow.wire.messages import Written


class Commits:
    """tick: the version that a checkpoint is of. committed_tick: the newest that is committed.

    last_given_up: the newest version whose checkpoint will not come to be; 0: of all it did.
    troubles: by server, why it cannot write its part just now.
    unsure: a master before may have committed more than is known; that is read as soon as it can be.
    """

    def __init__(self, committed_tick: int | None, last_given_up: int = 0) -> None:
        self.committed_tick = committed_tick
        self.last_given_up = last_given_up
        self.unsure = False
        self.troubles: dict[str, str] = {}
        self._parts: dict[int, dict[str, Part]] = {}
        self._under_way: dict[int, bool] = {}
        """By tick: whether the run ends with it."""
        self._given_up: set[int] = set()

    @property
    def final_under_way(self) -> bool:
        """All parts of the checkpoint with which the run ends are written."""
        return any(self._under_way.values())

    def under_way(self, tick: int) -> bool:
        """Whether a checkpoint of this version, or of an earlier one, may still come to be."""
        return any(each <= tick for each in (*self._parts, *self._under_way))

    def written(self, event: Written, holders: list[str]) -> tuple[Part, ...]:
        """A part is written. The parts in order, if it was the last one and they are to be committed now."""
        assert event.part is not None
        if event.tick in self._given_up:
            return ()
        parts = self._parts.setdefault(event.tick, {})
        parts[event.name] = event.part
        if not parts.keys() >= set(holders):
            return ()
        del self._parts[event.tick]
        again = event.tick in self._under_way  # written by the servers of an earlier generation as well
        self._under_way[event.tick] = event.last or self._under_way.get(event.tick, False)
        return () if again else tuple(parts[name] for name in holders)

    def end_with(self, tick: int) -> None:
        """The run ends with this checkpoint."""
        self._under_way[tick] = True

    def is_committed(self, tick: int) -> bool:
        """Whether there is a checkpoint of this version, or of a later one."""
        return self.committed_tick is not None and tick <= self.committed_tick

    def needs_no_more(self, tick: int) -> bool:
        """Whether nobody has to be able to write parts of this version any more.

        Its checkpoint is there, or is being committed, or was given up.
        """
        return self.is_committed(tick) or tick in self._under_way or tick <= self.last_given_up

    def committed(self, tick: int) -> bool:
        """A checkpoint is there. Returns whether the run ends with it."""
        self.committed_tick = max(tick, self.committed_tick or 0)
        return self._under_way.pop(tick, False)

    def give_up(self, tick: int, last: bool) -> tuple[bool, bool]:
        """A checkpoint will not come to be. Returns whether that is news, and whether it was the last one."""
        last |= self._under_way.pop(tick, False)
        self._parts.pop(tick, None)
        news = tick not in self._given_up
        self._given_up.add(tick)
        self.last_given_up = max(tick, self.last_given_up)
        return news, last

    def forget(self) -> None:
        """The servers begin another generation, and write their parts anew."""
        self._parts.clear()
        self._given_up.clear()
