"""The master's process, those that come after it, and the backend: ``elasticflow.master.server``."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from elasticflow.cluster.contract import MASTER
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.members import MemberState
from elasticflow.master.server import OVERSLEPT_S, SESSIONS
from elasticflow.master.state import MasterState, Memory
from elasticflow.wire.messages import (
    Attempt,
    Beat,
    Cut,
    Departing,
    Drain,
    Finish,
    FromMaster,
    Halt,
    Heartbeat,
    Inspect,
    Join,
    Look,
    Plan,
    Progress,
    Quarantine,
    Quit,
    Settled,
)  # fmt: skip

from .member import Member
from .network import CLOSED, Connection, Process, Timer

if TYPE_CHECKING:
    from .world import World

RESTART_S = (0.01, 0.2)
LAGS = (1, 1, 1, 1, 2, 3, 10)
"""How many writes back the journal is that a dead master leaves behind."""


class Backend:
    """Tells of each end at least once, to one master or the next; of places that end, to each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._untold: list[tuple[str, str, str]] = []
        self._told: list[tuple[str, str, str]] = []
        self._expiring: dict[str, tuple[float, float]] = {}
        self._news: dict[str, tuple[float, float]] = {}

    def bury(self, member: Member, how: str, text: str) -> None:
        """A member has ended."""
        self._untold.append((member.name, how, text))
        self._world.laws.ended(member)
        self.tell_soon()

    def tell_soon(self) -> None:
        """Wakes the master."""
        clock, master = self._world.clock, self._world.master
        clock.at(clock.now_s + clock.delay(), partial(master.run, master.bury))

    def ended(self) -> list[tuple[str, str, str]]:
        self._told, self._untold = self._untold, []
        return self._told

    def hand_over(self) -> None:
        """The master is dead: what it was told last is told again."""
        self._untold = self._told + self._untold
        self._told = []
        self._news = dict(self._expiring)

    def expire(self, name: str, replace_s: float, leave_s: float) -> None:
        """A place ends at a known time, or at another one than was known."""
        self._news[name] = self._expiring[name] = replace_s, leave_s
        self.tell_soon()

    def ends_s(self) -> dict[str, tuple[float, float]]:
        news, self._news = self._news, {}
        return news

    def leave_s(self, name: str) -> float | None:
        """When a place ends."""
        return self._expiring[name][1] if name in self._expiring else None

    def move(self) -> None:
        """The master has another place, of which no end is known."""
        self._expiring.pop(MASTER, None)
        self._news.pop(MASTER, None)

    def living(self) -> dict[str, int]:
        return {name: 1 for name, member in self._world.members.items() if member.alive}

    def kill(self, name: str) -> None:
        """At once, or later: on other machines it may take its time."""
        member, clock = self._world.members.get(name), self._world.clock
        if member:
            wait_s = clock.rng.uniform(0, self._world.shape.kill_s)
            clock.at(clock.now_s + wait_s, member.kill) if wait_s else member.kill()


class SimMaster(Process):
    """journal: of the master before this one, which died."""

    def __init__(self, world: World, incarnation: int, port: int, journal: bytes | None) -> None:
        super().__init__(world.clock, f"master {incarnation}")
        self.world, self.incarnation, self.port = world, incarnation, port
        self.end: ac.EndAction | None = None
        self.notes: deque[str] = deque(maxlen=12)
        self.fuse: int | None = None
        """It dies after so many actions more."""
        self.in_order = False
        """Whether its journal is whole when it dies."""
        self._adopts = journal is not None
        memory = msgspec.json.decode(journal, type=Memory) if journal else None
        newest = world.storage.newest
        restored = (newest[0], newest[1].tick, newest[1].excluded) if newest else None
        limit_s = world.shape.limit_s
        self.state = MasterState(world.config, restored=restored, memory=memory, stop_at_s=limit_s)
        self._journal: deque[bytes] = deque(maxlen=max(LAGS))
        self._routes: dict[str, Connection] = {}
        self._sessions: dict[str, int] = {}
        self._timer = Timer(self, self._turned)
        self._storage_until_s = 0.0
        self._behind = False

    # --- the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        self._write_journal()
        if self._adopts:
            self._adopt()
        else:
            self.world.storage.discard_unfinished()
            self._do(self.state.start(self.clock.now_s))
        self._turned()

    def _adopt(self) -> None:
        living = self.world.backend.living()
        mine = list(self.state.members)
        self._do(self.state.adopt(living, self.clock.now_s))
        self.bury()
        for name in mine:
            if name not in living:
                self._handle(ev.ExitedEvent(name, False, "ended while there was no master", taken=True))

    def _turned(self) -> None:
        if not self.alive or self._behind:
            return
        at_s = self.state.next_time_s()
        if at_s is not None and at_s <= self.clock.now_s:  # before that it would change nothing
            self._handle(ev.ClockEvent())
            self.world.laws.relieved(self.state)
            at_s = self.state.next_time_s()
        self._timer.set(None if self.end else at_s)

    def bury(self) -> None:
        """Tells of those who have ended, after what they said, if they had time to say it."""
        for name, how, text in self.world.backend.ended():
            if how != "killed":
                self._hear_out(name)
            self._handle(ev.ExitedEvent(name, how == "failed", text, how == "taken"))
        for name, (replace_s, leave_s) in self.world.backend.ends_s().items():
            if name != MASTER:
                self._handle(ev.ExpiryEvent(name, replace_s, leave_s))
            else:
                self.world.laws.limited(self.state, leave_s)
                self._handle(ev.LimitEvent(leave_s))
        self._turned()

    def _hear_out(self, name: str) -> None:
        member = self.state.members.get(name)
        if member and member.state is not MemberState.DRAINING and name in self._routes:
            self._routes[name].up.flush()

    def thawed(self, seconds: float) -> None:
        due_s, self._behind = self._timer.at_s, True
        if due_s is not None:
            late_s = min(seconds, self.clock.now_s - due_s)
            if late_s > OVERSLEPT_S:
                self._handle(ev.OversleptEvent(late_s))

    def caught_up(self) -> None:
        self._behind = False
        self._turned()

    # --- death -----------------------------------------------------------------------------------

    def kill(self) -> None:
        if self.alive:
            self.die(lossy=True)
            self.world.supervise()

    def journal(self) -> bytes:
        """As it was found on the disk after this one's death."""
        lag = 1 if self.in_order else min(self.clock.rng.choice(LAGS), len(self._journal))
        return self._journal[-lag]

    def _write_journal(self) -> None:
        if self.world.journals:
            self._journal.append(msgspec.json.encode(self.state.memory()))

    # --- messages --------------------------------------------------------------------------------

    def hear(self, connection: Connection, message: Any) -> None:
        if message is CLOSED:
            for name, route in list(self._routes.items()):
                if route is connection:
                    del self._routes[name]
                    self._handle(ev.DisconnectedEvent(name))
        else:
            self._take(connection, message)
        self._turned()

    def _take(self, route: Connection, message: Any) -> None:
        self._meet(message.name, route)
        if isinstance(message, Heartbeat):
            route.down.send(Beat(incarnation=self._sessions[message.name]))
        elif isinstance(message, Join) and self.end:
            return self._tell(message.name, Quit(reason=self.end.text))
        self._handle(message)

    def _meet(self, name: str, route: Connection) -> None:
        if self._routes.get(name) is route:
            return
        self._routes[name] = route
        again = self._adopts or name in self._sessions
        self._sessions[name] = self._sessions.get(name, self.incarnation * SESSIONS) + 1
        if again:
            self._handle(ev.ReconnectedEvent(name))

    def _tell(self, name: str, message: FromMaster) -> None:
        if name in self._routes:
            down = self._routes[name].down
            down.send(message)
            if self.world.duplicates and self.clock.rng.random() < 0.1:
                down.send(message)

    # --- events and actions ----------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Something happens."""
        self._handle(event)
        self._turned()

    def _handle(self, event: ev.Event) -> None:
        if not self.alive:
            return
        laws = self.world.laws
        taken = isinstance(event, Departing) or isinstance(event, ev.ExitedEvent) and event.taken
        blame = laws.blame(self.state) if taken else None
        actions = self.state.handle(event, self.clock.now_s)
        if blame is not None:
            laws.taken(self.state, event, actions, blame)
        laws.master(self.state)
        self._do(actions)
        quiet = isinstance(event, (Heartbeat, Progress, ev.ClockEvent))
        if self.alive and (actions or not quiet):
            self._write_journal()

    def _do(self, actions: list[ac.Action]) -> None:
        for action in actions:
            if self.fuse is not None:
                self.fuse -= 1
                if self.fuse < 0:
                    self.kill()
            if not self.alive:
                return
            _DO[type(action)](self, action)

    def _start(self, action: ac.StartAction) -> None:
        self.world.start_process(action.name, action.role)

    def _assign(self, action: ac.AssignAction) -> None:
        self.world.laws.assigned(action)
        self._tell(action.name, action.assignment)

    def _tell_each(self, names: tuple[str, ...], message: FromMaster) -> None:
        for name in names:
            self._tell(name, message)

    def _commit(self, action: ac.CommitAction) -> None:
        """In the background: what it comes to is told later, and to nobody if the master is dead then."""
        clock, shape, state = self.clock, self.world.shape, self.state
        step, excluded = shape.schedule.steps_before(action.tick), state.excluded
        fails = clock.rng.random() < shape.failing and not state.commits.final_under_way

        def commit() -> None:
            error = "no space left" if fails else self.world.storage.commit(step, action, excluded)
            if not error:
                self.world.laws.committed(action)
            self.later(clock.delay(), lambda: self.handle(ev.CommittedEvent(action.tick, error)))

        until_s = max(self._storage_until_s, clock.now_s) + clock.rng.uniform(0, shape.write_s)
        self._storage_until_s = until_s
        self.later(until_s - clock.now_s, commit)

    def _prune(self, action: ac.PruneAction) -> None:
        """In the background, too, and after what was to be done there before."""
        step = self.world.shape.schedule.steps_before(action.tick)
        until_s = max(self._storage_until_s, self.clock.now_s) + self.clock.delay()
        self._storage_until_s = until_s
        self.later(until_s - self.clock.now_s, lambda: self.world.storage.prune(step))

    def _note(self, action: ac.NoteAction | ac.FaultAction) -> None:
        who = f"{action.name} " if isinstance(action, ac.FaultAction) else ""
        self.notes.append(f"{self.clock.now_s:.3f} {who}{action.text}")

    def _regroup(self, action: ac.RegroupedAction) -> None:
        self.notes.append(f"{self.clock.now_s:.3f} {action}")
        self.world.laws.regrouped(self.state, action)

    def _hand_over(self, action: ac.HandOverAction) -> None:
        self._write_journal()
        self.world.laws.handed_over(self.state)
        self.world.hand_over()

    def _finish(self, action: ac.EndAction) -> None:
        self.end = action
        if self.world.dies_at_end:
            self.world.dies_at_end = False
            self.kill()


_DO: dict[type, Any] = {
    ac.StartAction: SimMaster._start,
    ac.KillAction: lambda master, a: master.world.backend.kill(a.name),
    ac.HaltAction: lambda master, a: master._tell(a.name, Halt(generation=a.generation)),
    ac.AssignAction: SimMaster._assign,
    ac.PlanAction: lambda master, a: master._tell_each(a.servers, Plan(number=a.number, shares=a.shares)),
    ac.DrainAction: lambda master, a: master._tell(a.name, Drain()),
    ac.CutAction: lambda master, a: master._tell(a.name, Finish() if a.finish else Cut()),
    ac.SettledAction: lambda master, a: master._tell_each(a.names, Settled(tick=a.tick)),
    ac.CommitAction: SimMaster._commit,
    ac.PruneAction: SimMaster._prune,
    ac.QuarantineAction: lambda master, a: master._tell_each(a.names, Quarantine(excluded=a.excluded)),
    ac.AttemptAction: lambda master, a: master._tell_each(
        a.names, Attempt(tick=a.tick, slice=a.slice, careful=a.careful)
    ),
    ac.InspectAction: lambda master, a: master._tell(a.name, Inspect(tick=a.tick, slices=a.slices)),
    ac.QuitAction: lambda master, a: master._tell(a.name, Quit(reason=a.reason)),
    ac.NoteAction: SimMaster._note,
    ac.FaultAction: SimMaster._note,
    ac.RegroupedAction: SimMaster._regroup,
    ac.ResizedAction: lambda master, a: None,
    ac.HandOverAction: SimMaster._hand_over,
    ac.EndAction: SimMaster._finish,
    ac.LookAction: lambda master, a: master._tell_each(a.names, Look(number=a.number)),
}
