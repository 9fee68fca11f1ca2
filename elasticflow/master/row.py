"""The row of parameter servers: who holds which place, and from where all of them can go on together.

A place's chunks are fixed for the whole run; servers come and go. Each row of living servers is a
*generation*. When one is lost, the others halt and offer what they have in memory: their chunks as they
are, and snapshots, their own and those they keep for others. The next generation goes on from the newest
version that there is of every place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

import msgspec


class Phase(str, Enum):
    """Where a generation is."""

    GATHERING = "gathering"
    """The next one is being put together: some have still to join, or to say what they have."""
    RESTORING = "restoring"
    """All have been told, and get their chunks."""
    SERVING = "serving"
    """All serve."""


class Start(msgspec.Struct, frozen=True):
    """Where a generation begins. holders: by place, the server in whose memory the chunks are; "" if
    they come from storage, from a worker, or there are none. source: for people."""

    tick: int
    source: str
    holders: tuple[str, ...]


class Row(msgspec.Struct):
    """Servers by place. chunks: by place, fixed once the program is known; none: it stands by.

    start: where the present generation began. coming: by server, the one that is to take its place while it
    lives. leaving: those whose places were taken so; they have copies, until all serve again. pausing: the
    leading server was told that after the next step no server goes on. paused: those that have told that they
    do not.
    """

    names: list[str]
    generation: int = 0
    phase: Phase = Phase.GATHERING
    start: Start | None = None
    chunks: tuple[tuple[int, ...], ...] = ()
    offers: dict[str, tuple[tuple[int, int], ...]] = msgspec.field(default_factory=dict)
    """By server that was halted: the (place, version) it holds."""
    coming: dict[str, str] = msgspec.field(default_factory=dict)
    leaving: list[str] = msgspec.field(default_factory=list)
    relays: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """By relay: its group and its place, whether there already or not."""
    groups: dict[str, int] = msgspec.field(default_factory=dict)
    """By worker: the group that it is in, in the present generation."""
    relaying: list[str] = msgspec.field(default_factory=list)
    """The relays of the present generation."""
    pausing: bool = False
    paused: list[str] = msgspec.field(default_factory=list)

    @property
    def leader(self) -> str:
        return self.names[0]

    @property
    def holders(self) -> list[str]:
        """Servers that hold chunks; none as long as a new master does not know the program."""
        pairs = zip(self.names, self.chunks, strict=True) if self.chunks else ()
        return [name for name, chunks in pairs if chunks]

    def pause(self, name: str) -> bool:
        """A server does not go on. Whether none does."""
        self.paused += [] if name in self.paused else [name]
        return set(self.holders) <= set(self.paused)

    def go_on(self) -> None:
        """What there was of a pause is over."""
        self.pausing = False
        self.paused.clear()

    def replace(self, old: str, new: str) -> None:
        """Another server takes the place of one that is lost."""
        self.names[self.names.index(old)] = new
        self.offers.pop(old, None)

    def hand_over(self) -> None:
        """All that are coming take their places."""
        for old, new in self.coming.items():
            self.names[self.names.index(old)] = new
            self.leaving.append(old)
        self.coming.clear()

    def begin(self, committed_tick: int | None, fits: Callable[[int], bool] = lambda version: True) -> Start:
        """The newest point that all places can be brought to; memory before storage, if as new.

        fits: asked of a version in memory, whether it will do.
        """
        nowhere = ("",) * len(self.names)
        places = [place for place, chunks in enumerate(self.chunks) if chunks]
        found = newest_common(places, self.offers, fits)
        if found is not None and found >= (committed_tick or 0):
            holders = tuple(
                holder_of(place, found, name, self.offers) if self.chunks[place] else ""
                for place, name in enumerate(self.names)
            )
            return Start(found, "memory", holders)
        if committed_tick is not None:
            return Start(committed_tick, "storage", nowhere)
        return Start(0, "beginning", nowhere)


def newest_common(
    places: Sequence[int],
    offers: Mapping[str, Iterable[tuple[int, int]]],
    fits: Callable[[int], bool] = lambda version: True,
) -> int | None:
    """The newest version that fits of which somebody offers every place; None if there is none."""
    versions: dict[int, set[int]] = {place: set() for place in places}
    for held in offers.values():
        for place, version in held:
            if place in versions:
                versions[place].add(version)
    common = set.intersection(*versions.values()) if versions else set()
    return max(filter(fits, common), default=None)


def holder_of(
    place: int, version: int, preferred: str, offers: Mapping[str, Iterable[tuple[int, int]]]
) -> str:
    """Who has a place's chunks at a version: the server at that place itself, if it does."""
    having = [name for name, held in offers.items() if (place, version) in set(held)]
    return preferred if preferred in having else min(having)
