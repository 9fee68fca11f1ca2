"""What must hold at all times, whatever happens; each breach is an AssertionError.

That every value is that of an undisturbed run is checked where it is made, sent and taken. Here is what
concerns several processes, by *key*: a life of the run, a generation of servers in it, and their names. (If
all who knew of a generation have died, the next master may begin another one of the same number.)
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.failures import MOST_EARLY
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.row import Phase
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Assignment, Departing
from elasticflow_ps import state as st

if TYPE_CHECKING:
    from .member import Member
    from .server import Generation, SimServer
    from .world import World

Key = tuple[int, int, tuple[str, ...]]
STAY = (MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.SUSPECT)
"""Of workers that are meant to stay."""


class Limit(NamedTuple):
    """What was known when a master heard of the end of its place."""

    state: MasterState
    leave_s: float
    version: int


class Laws:
    """stopped: somebody has asked the run to stop. spares_workers: nothing has happened but to servers.

    regroupings: all that there were.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.spares_workers, self.stopped = True, False
        self.regroupings: list[ac.RegroupedAction] = []
        self._orders: dict[tuple[Key, int], st.Orders] = {}
        self._members: dict[tuple[Key, str], SimServer] = {}
        self._applied: set[tuple[Key, str, int, int]] = set()
        self._made: dict[tuple[Key, int], st.VersionAction] = {}
        self._newest: dict[Key, dict[str, int]] = {}
        self._safe: dict[Key, int] = {}
        self._assigned: dict[Key, Assignment] = {}
        self._asked: set[tuple[Key, str, tuple[str, int], int, int]] = set()
        self._last: set[int] = set()
        self._cut: set[int] = set()
        self._latest: Key = (0, 0, ())
        self._committed = 0
        self._limit: Limit | None = None
        self.num_handed_over = 0
        self.deaths: Counter[tuple[int, int]] = Counter()
        """By (tick, slice): workers that it has ended."""

    # --- servers ---------------------------------------------------------------------------------

    def key_of(self, server: SimServer, names: tuple[str, ...]) -> Key:
        """What the generation that a server takes up is known by.

        Whoever follows a master whose journal lagged may begin one of the same number, with another server of
        the same name, once that of before is dead.
        """
        key = self._world.life, server.generation, names
        while (before := self._members.setdefault((key, server.name), server)) is not server:
            assert not before.alive, f"two servers are {server.name}"
            key = *key[:2], (*key[2], "again")
        if key[:2] == self._latest[:2]:
            self._latest = key
        return key

    def ordered(self, key: Key, version: int, orders: st.Orders) -> None:
        known = self._orders.setdefault((key, version), orders)
        assert known == orders, f"two orders for version {version}: {known} and {orders}"

    def applied(self, server: SimServer, action: st.ApplyAction) -> None:
        what = (server.key, server.name, action.tick, action.parcel)
        assert what not in self._applied, f"{server.name} applies tick {action.tick} twice"
        self._applied.add(what)

    def made(self, server: SimServer, now: Generation, action: st.VersionAction) -> None:
        key, version = server.key, action.version
        start = now.assignment.start_tick
        newest = self._newest.setdefault(key, dict.fromkeys(now.names, start))
        holding = [now.names[place] for place in sorted(now.row.holding)]
        assert version == newest[server.name] + 1, f"{server} leaves out a version: {newest}"
        newest[server.name] = version
        made = [newest[name] for name in holding]
        assert max(made) - min(made) <= 1, f"servers are more than a step apart: {newest}"
        seen = self._made.setdefault((key, version), action)
        assert seen == action, f"servers disagree: {seen} and {action}"
        if action.last:
            self._last.add(version)
        if action.cut:
            self._cut.add(version)
        orders = self._orders.get((key, version - 1))
        if action.cut and not action.last:
            assert orders is not None and orders.cut, f"nobody ordered {action}"
            assert not self._world.truth.schedule.evaluates(version), "a cut before an evaluation"
        if action.snapshot:
            assert orders is not None and orders.snapshot, f"nobody ordered {action}"

    def safe(self, key: Key, version: int) -> None:
        assert version > self._safe.get(key, -1), "safe for a second time"
        self._safe[key] = version

    def asked(self, server: SimServer, action: st.ComputeAction) -> None:
        for number in action.slices:
            connection = action.worker, server.openings[action.worker]
            what = (server.key, server.name, connection, action.tick, number)
            assert what not in self._asked, f"{server} asks again: {action}"
            self._asked.add(what)

    def died_of(self, tick: int, number: int) -> None:
        """A worker has computed a deadly slice, and taken no care."""
        self.deaths[tick, number] += 1
        most = self._most_deaths()
        assert self.deaths[tick, number] <= most, (
            f"slice {number} of tick {tick} ends one worker after another"
        )

    def _most_deaths(self) -> int:
        """Two for each server, and those who were at it already; for each generation of servers anew."""
        generations, shape = 1 + len(self.regroupings), self._world.shape
        return generations * (2 * len(shape.parcels) + shape.workers) + 2 * len(self._world.all_faults)

    # --- the master ------------------------------------------------------------------------------

    def assigned(self, action: ac.AssignAction) -> None:
        if self._world.members[action.name].role == "server":
            assignment = action.assignment
            names = tuple(info.name for info in assignment.servers)
            key = self._world.life, assignment.generation, names
            assert self._assigned.setdefault(key, assignment) == assignment, f"two generations {key}"
            self._latest = key
            if assignment.ends:
                self._cut.add(assignment.start_tick)

    def regrouped(self, state: MasterState, action: ac.RegroupedAction) -> None:
        """What all servers but one, at least, have in two memories is not lost."""
        self.regroupings.append(action)
        if self._limit:
            self._limit = self._limit._replace(version=min(action.start, self._limit.version))
        assert action.start >= self._committed, f"{action}, though {self._committed} is committed"
        life, _, names = key = self._latest
        lost = [name for name in names if name not in state.row.names]
        if self._world.shape.snapshot_s and life == self._world.life and len(lost) <= 1:
            safe = self._safe.get(key, 0)
            assert action.start >= safe, f"{lost} lost, {action}, though version {safe} was safe"

    def master(self, state: MasterState) -> None:
        """After each event: it knows of nothing that only servers that are gone have made."""
        assert (state.committed_tick or 0) >= self._committed, "commits go back"
        self._committed = state.committed_tick or 0
        if state.row.phase is Phase.SERVING and not state.ended:
            key = self._world.life, state.generation, tuple(state.row.names)
            assigned = self._assigned[key]
            now = self._latest if self._latest[:2] == key[:2] else key
            newest = max(self._newest.get(now, {}).values(), default=assigned.start_tick)
            assert state.version <= newest, f"the master knows of version {state.version}, {newest} is made"

    # --- places that somebody else takes away ----------------------------------------------------

    def blame(self, state: MasterState) -> tuple[int, int]:
        """What counts against the program."""
        memory = state.memory()
        return memory.failures, memory.early_deaths

    def taken(
        self,
        state: MasterState,
        event: Departing | ev.ExitedEvent,
        actions: list[ac.Action],
        blame: tuple[int, int],
    ) -> None:
        """That a place is taken away is nobody's fault, and another worker is asked for at once."""
        assert self.blame(state) == blame, f"blamed for {event}"
        if state.ended:
            return
        member = state.members.get(event.name)
        assert member is None or member.role == "server" or member.state not in STAY, f"it stays: {event}"
        if isinstance(event, Departing):
            faults = [a for a in actions if isinstance(a, ac.FaultAction) and a.name == event.name]
            assert not faults, f"a fault, though it said so: {event}"
            if any(isinstance(action, (ac.DrainAction, ac.QuitAction, ac.KillAction)) for action in actions):
                staying = [m for m in state.of("worker", *STAY) if not m.expiring]
                ends = state.memory().state is RunState.FINISHING
                assert ends or len(staying) >= state.target, f"nobody is asked for in its stead: {event}"

    def relieved(self, state: MasterState) -> None:
        """After each look at the clock: who must have left by now has been told to."""
        now_s = self._world.clock.now_s
        for member in [] if state.ended else state.of("worker", *STAY):
            assert member.leave_s is None or member.leave_s > now_s, f"{member.name} stays too long"

    def limited(self, state: MasterState, leave_s: float) -> None:
        """The master is told of the end of its own place, once more maybe."""
        if self._limit is None or self._limit.state is not state:
            self._limit = Limit(state, leave_s, state.version)

    def handed_over(self, state: MasterState) -> None:
        """Once, and not before all is committed that was done when that was asked for, if there is time."""
        assert self._limit and self._limit.state is state, "nobody asked for another place"
        _, leave_s, version = self._limit
        self._limit = None
        self.num_handed_over += 1
        if state.state is not RunState.STARTING and self._world.clock.now_s < leave_s:
            committed = state.committed_tick or 0
            assert committed >= version, f"handed over with {committed}, though {version} was made"

    def committed(self, action: ac.CommitAction) -> None:
        total = self._world.truth.schedule.total_ticks
        assert action.tick in self._cut or action.tick == total, f"committed {action.tick}, not cut"

    def ended(self, member: Member) -> None:
        """Workers that take part leave when they have the last version, and not before."""
        world = self._world
        spared = self.spares_workers and getattr(member, "was_ready", False)
        assert not spared or self._last or world.master.end, f"{member} ends, because of a server"

    def end(self, end: ac.EndAction) -> None:
        world = self._world
        total, newest = world.truth.schedule.total_ticks, world.storage.newest
        if "died before they were ready" in end.text and world.num_killed >= MOST_EARLY:
            return
        assert end.state is not RunState.FAILED, end.text
        if end.state is RunState.STALLED:
            assert world.num_hung > 1, f"nobody hung again: {end.text}"
            return
        if end.state is RunState.DIVERGED:
            first = min(tick for tick, _ in world.shape.poisoned)
            assert world.shape.on_nan == "stop", "a step is not left out"
            assert not newest or newest[1].tick <= first, f"committed {newest} beyond tick {first}"
            return
        if end.state is RunState.FINISHED:
            assert not world.shape.poisoned or world.shape.on_nan == "skip", "nobody saw the poisoned step"
            assert world.master.state.divergence.skipped <= {(tick, -1) for tick in world.shape.skipped}
            assert newest and newest[1].tick == total, f"finished, with {newest} of {total}"
        else:
            limit_s = world.shape.limit_s
            in_time = limit_s is None or world.clock.now_s < limit_s
            assert self.stopped or not in_time, f"nobody asked for it: {end}"
            enough = newest and newest[1].tick >= min(self._last, default=0)
            assert "before the first step" in end.text or enough or not self._last
