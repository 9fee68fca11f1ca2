"""What each fault of a run cost: pure, times are seconds since the run's start.

worker   seconds: what the ticks around it took beyond twice the usual, for everybody. It lasts until there
         are as many workers as there should be.
server   seconds: from the fault until the first new version. steps: were made, and must be made again.
         It lasts until they are.
master   seconds: as for a worker; none, if the steps went on. It lasts until the next one hears of steps.
storage  Costs nothing: steps go on. It lasts until it can be written again.

Of faults at once each has its own seconds; the sums count no second and no step twice.
"""

from __future__ import annotations

import msgspec

KEPT = 1000
"""So many of each kind of thing are remembered; of those before, only how many there were."""
RECENT_STALLS = 100


class Fault(msgspec.Struct, kw_only=True):
    """See the module's docstring.

    done: what was done about it. told: how often there was news of it. reached: the version that a server's
    fault found. start: the one it went back to. moving: there is a new version since.
    """

    number: int
    time_s: float
    role: str
    member: str
    text: str
    seconds: float = 0.0
    steps: int = 0
    lasted_s: float | None = None
    done: str = ""
    told: int = 1
    start: int | None = None
    reached: int | None = None
    moving: bool = False


class Faults(msgspec.Struct, kw_only=True):
    """All faults, and what they cost together.

    window_s: a tick that takes long belongs to a worker's or master's fault that is at most so far away.
    """

    window_s: float
    kept: list[Fault] = []
    num: int = 0
    standstill_s: float = 0.0
    """No version could be made, since a server was lost."""
    stalled_s: float = 0.0
    """What ticks took beyond twice the usual, because of workers or the master."""
    ticks_lost: int = 0
    steps_lost: int = 0
    still_since_s: float | None = None
    stalls: list[tuple[float, float]] = []
    """(time, seconds) of long ticks that no fault explains yet."""

    def open(self, role: str, member: str | None = None) -> list[Fault]:
        """Those that are not over."""
        return [
            fault
            for fault in self.kept
            if fault.lasted_s is None and fault.role == role and member in (None, fault.member)
        ]

    def add(self, member: str, role: str, text: str, time_s: float, *, early: bool = False) -> Fault:
        """A fault has happened; or there is more to tell of one that is not over.

        early: of a server before all were put in order first: it lasts until there is a version.
        """
        for fault in self.open(role, member):
            if not fault.moving:
                fault.told += 1
                fault.text = text if role == "storage" else f"{fault.text}; {text}"
                return fault
        self.num += 1
        fault = Fault(number=self.num, time_s=time_s, role=role, member=member, text=text)
        self.kept.append(fault)
        del self.kept[:-KEPT]
        if role == "worker":
            fault.done = "the others did its slices"
        if role == "server" and self.still_since_s is None:
            self.still_since_s = time_s
        if role == "server" and early:
            fault.start = fault.reached = 0
            fault.done = "another took its place"
        if role in ("worker", "master"):
            self._blame(fault)
        return fault

    def over(self, member: str, role: str, done: str, time_s: float) -> None:
        """A member's fault is over: what was done about it."""
        for fault in self.open(role, member):
            fault.lasted_s = max(0.0, time_s - fault.time_s)
            fault.done = "; ".join(text for text in (fault.done, done) if text)

    # --- workers, masters ---------------------------------------------------------------------------

    def stalled(self, seconds: float, time_s: float) -> None:
        """A tick took so much longer than twice the usual. News of it may come before that of its cause."""
        if self.still_since_s is not None:
            return  # that is a server's fault, and counted as such
        self.stalls.append((time_s, seconds))
        del self.stalls[:-RECENT_STALLS]
        near = [f for f in self.kept if f.role in ("worker", "master") and self._is_near(f, time_s)]
        if near:
            self._blame(near[-1])

    def _is_near(self, fault: Fault, time_s: float) -> bool:
        if fault.role == "master" and fault.lasted_s is None and time_s >= fault.time_s:
            return True  # it is the next one that is told
        return abs(time_s - fault.time_s) <= self.window_s

    def _blame(self, fault: Fault) -> None:
        mine = [stall for stall in self.stalls if self._is_near(fault, stall[0])]
        self.stalls = [stall for stall in self.stalls if stall not in mine]
        seconds = sum(seconds for _, seconds in mine)
        fault.seconds += seconds
        self.stalled_s += seconds

    def manned(self, time_s: float) -> None:
        """There are as many workers as there should be."""
        for fault in self.open("worker"):
            self.over(fault.member, "worker", "", time_s)

    # --- servers ------------------------------------------------------------------------------------

    def regrouped(
        self, reached: int, start: int, steps: int, source: str, time_s: float, *, moved: bool = False
    ) -> None:
        """The servers go on from version ``start``; ``steps`` of those up to ``reached`` are lost.

        moved: since places have, or one that stands by has come: without a loss, that is no fault.
        """
        waiting = [fault for fault in self.open("server") if fault.start is None]
        if (
            not waiting and self.still_since_s is None and not moved
        ):  # nobody died: a new master could not be sure
            waiting = [self.add("", "server", "the servers were put in order again", time_s)]
        self.ticks_lost += max(0, reached - start)
        self.steps_lost += max(0, steps)
        where = {
            "memory": "from what the others held in memory",
            "storage": "from the last checkpoint",
            "beginning": "from the beginning",
        }[source]
        for fault in waiting:
            fault.reached, fault.steps = max(reached, start), max(0, steps)
            fault.done = f"went on {where}"
        for fault in self.open("server"):
            if not fault.moving:  # also those that were set back again before there was a new version
                fault.start = start

    def version(self, version: int, time_s: float) -> None:
        """There is a new version."""
        told = [fault for fault in self.open("server") if fault.start is not None]
        for fault in told:
            assert fault.start is not None and fault.reached is not None
            if version > fault.start and not fault.moving:
                fault.moving = True
                fault.seconds = max(0.0, time_s - fault.time_s)
            if fault.moving and version >= fault.reached:
                fault.lasted_s = max(0.0, time_s - fault.time_s)
        if self.still_since_s is not None and all(fault.moving for fault in self.open("server")):
            self.standstill_s += max(0.0, time_s - self.still_since_s)
            self.still_since_s = None

    def standing_still_s(self, time_s: float) -> float:
        """All standstill, with that of now."""
        now_s = 0.0 if self.still_since_s is None else max(0.0, time_s - self.still_since_s)
        return self.standstill_s + now_s
