"""What must hold at all times, whatever happens; each breach is a Violation.

The state machines inside the processes are watched as they act. What concerns several processes is known by
*key*: a life of the run, a generation of servers in it, and their names. (If all who knew of one
have died, the next master may begin another one of the same number.)
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import elasticflow.checkpoint
from elasticflow.checkpoint import Manifest, Reader, load_manifest, verify
from elasticflow.checkpoint.chains import KEYS
from elasticflow.checkpoint.names import VALUE
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.failures import MOST_EARLY
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.row import Phase
from elasticflow.master.state import MasterState
from elasticflow.step.layout import Array, Rule
from elasticflow.storage import DirectoryStorage, Storage
from elasticflow.wire.messages import Assignment, Departing
from elasticflow_ps import snapshots as sn
from elasticflow_ps import state as st
from elasticflow_ps.keeping import Keeping
from elasticflow_ps.serving import Serving

from .threads import Process, Violation

if TYPE_CHECKING:
    from .world import World

Key = tuple[int, int, tuple[str, ...]]
Hashes = dict[int, dict[str, str]]
"""Of all arrays of a commit, by chunk and name."""
STAY = (MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.SUSPECT)
"""Of workers that are meant to stay."""


def require(holds: object, text: object) -> None:
    if not holds:
        raise Violation(str(text))


class Limit(NamedTuple):
    """What was known when a master heard of the end of its place."""

    state: MasterState
    leave_s: float
    version: int


class Laws:
    """stopped: somebody has asked the run to stop. spares_workers: nothing has happened but to servers.

    has_truth: there is something to compare with. regroupings: all that there were.
    row: names of the servers, as they were assigned last.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.has_truth = True
        self.spares_workers, self.stopped = True, False
        self.regroupings: list[ac.RegroupedAction] = []
        self.row: tuple[str, ...] = ()
        self._orders: dict[tuple[Key, int], st.Orders] = {}
        self._members: dict[tuple[Key, str], Process] = {}
        self._applied: set[tuple[object, ...]] = set()
        self._made: dict[tuple[Key, int], st.VersionAction] = {}
        self._newest: dict[Key, dict[str, int]] = {}
        self._safe: dict[Key, int] = {}
        self._assigned: dict[Key, Assignment] = {}
        self._asked: set[tuple[object, ...]] = set()
        self._last: set[int] = set()
        self._cut: set[int] = set()
        self._latest: Key = (0, 0, ())
        self._committed = 0
        self._limit: Limit | None = None
        self.num_handed_over = 0
        self.deaths: Counter[int] = Counter()
        """By record: workers that it has ended."""
        self.commits: dict[int, Hashes] = {}
        """All there ever were, by step."""

    # --- servers ---------------------------------------------------------------------------------

    def key_of(self, serving: WatchedServing) -> Key:
        """What a generation is known by.

        Whoever follows a master whose journal lagged may begin one of the same number, with another server of
        the same name, once that of before is dead.
        """
        key: Key = self._world.life, serving.generation, serving.row.names
        while (
            before := self._members.setdefault((key, serving.name), serving.process)
        ) is not serving.process:
            require(not before.alive, f"two servers are {serving.name}")
            key = *key[:2], (*key[2], "again")
        if key[:2] == self._latest[:2]:
            self._latest = key
        return key

    def acts(self, serving: WatchedServing, action: st.Action) -> None:
        """A server is about to do what its state says."""
        if isinstance(action, st.ServeAction) and action.orders:
            known = self._orders.setdefault((serving.key, action.version), action.orders)
            require(known == action.orders, f"two orders for version {action.version}: {action}")
        elif isinstance(action, st.ApplyAction):
            what = (serving.key, serving.name, action.tick, action.parcel, action.slice)
            require(what not in self._applied, f"{serving.name} applies {what} twice")
            self._applied.add(what)
        elif isinstance(action, st.VersionAction):
            self._has_made(serving, action)
        elif isinstance(action, st.ComputeAction):
            for number in action.slices:
                connection = action.worker, serving.openings[action.worker]
                asked = (serving.key, serving.name, connection, action.tick, number)
                require(asked not in self._asked, f"{serving.name} asks again: {action}")
                self._asked.add(asked)

    def _has_made(self, serving: WatchedServing, action: st.VersionAction) -> None:
        key, version, names = serving.key, action.version, serving.row.names
        newest = self._newest.setdefault(key, dict.fromkeys(names, serving.start_tick))
        require(version == newest[serving.name] + 1, f"{serving.name} leaves out a version: {newest}")
        newest[serving.name] = version
        made = [newest[names[place]] for place in sorted(serving.row.holding)]
        require(max(made) - min(made) <= 1, f"servers are more than a step apart: {newest}")
        seen = self._made.setdefault((key, version), action)
        require(seen == action, f"servers disagree: {seen} and {action}")
        if action.last:
            self._last.add(version)
        if action.cut:
            self._cut.add(version)
        orders = self._orders.get((key, version - 1))
        if action.cut and not action.last:
            require(orders is not None and orders.cut, f"nobody ordered {action}")
            require(not self._world.shape.schedule.evaluates(version), "a cut before an evaluation")
        if action.snapshot:
            require(orders is not None and orders.snapshot, f"nobody ordered {action}")

    def safe(self, generation: int, names: tuple[str, ...], version: int) -> None:
        """All places of a generation are held in two memories."""
        key: Key = self._world.life, generation, names
        if key != self._latest[:3]:
            return  # one with another's number; see ``key_of``
        require(version > self._safe.get(key, -1), "safe for a second time")
        self._safe[key] = version

    def died_of(self, rows: Array) -> None:
        """A worker has computed deadly records, and taken no care."""
        for row in {int(row) for row in rows}.intersection(self._world.shape.deadly):
            self.deaths[row] += 1
            require(self.deaths[row] <= self._most_deaths(), f"record {row} ends one worker after another")

    def _most_deaths(self) -> int:
        """Two for each server, and those who were at it already; for each generation of servers anew."""
        generations, shape = 1 + len(self.regroupings), self._world.shape
        return generations * (2 * shape.servers + shape.workers) + 2 * len(self._world.all_faults)

    # --- the master ------------------------------------------------------------------------------

    def decides(self, state: MasterState, event: ev.Event | None, actions: list[ac.Action]) -> None:
        """After each event. One that has another in its place already knows nothing, and decides nothing."""
        if self._world.hub.process is not self._world.master:
            return
        if isinstance(event, ev.LimitEvent) and (self._limit is None or self._limit.state is not state):
            self._limit = Limit(state, event.leave_s, state.version)
        for action in actions:
            if isinstance(action, ac.AssignAction):
                self._assign(action)
            elif isinstance(action, ac.RegroupedAction):
                self._regroup(state, action)
            elif isinstance(action, ac.HandOverAction):
                self._hand_over(state)
        require((state.committed_tick or 0) >= self._committed, "commits go back")
        self._committed = state.committed_tick or 0
        if state.row.phase is Phase.SERVING and not state.ended:
            key: Key = self._world.life, state.generation, tuple(state.row.names)
            assigned = self._assigned[key]
            now = self._latest if self._latest[:2] == key[:2] else key
            newest = max(self._newest.get(now, {}).values(), default=assigned.start_tick)
            text = f"the master knows of version {state.version}, {newest} is made"
            require(state.version <= newest, text)
        if isinstance(event, ev.ClockEvent) and not state.ended:
            self._relieved(state)

    def _assign(self, action: ac.AssignAction) -> None:
        if not action.name.startswith("server"):
            return
        assignment = action.assignment
        self.row = names = tuple(info.name for info in assignment.servers)
        key: Key = self._world.life, assignment.generation, names
        known = self._assigned.get(key, assignment)
        same = [info.endpoint for info in known.servers] == [info.endpoint for info in assignment.servers]
        require(
            known == assignment or not same, f"two generations {key}"
        )  # else one of them is another process
        self._assigned[key] = assignment
        self._latest = key
        if assignment.ends:
            self._cut.add(assignment.start_tick)

    def _regroup(self, state: MasterState, action: ac.RegroupedAction) -> None:
        """What all servers but one, at least, have in two memories is not lost."""
        self.regroupings.append(action)
        if self._limit:
            self._limit = self._limit._replace(version=min(action.start, self._limit.version))
        require(action.start >= self._committed, f"{action}, though {self._committed} is committed")
        life, _, names = key = self._latest
        lost = [name for name in names if name not in state.row.names]
        if self._world.shape.snapshot_s and life == self._world.life and len(lost) <= 1:
            safe = self._safe.get(key, 0)
            require(action.start >= safe, f"{lost} lost, {action}, though version {safe} was safe")

    def _relieved(self, state: MasterState) -> None:
        """After each look at the clock: who must have left by now has been told to."""
        now_s = self._world.hub.now_s + self._world.hub.process.skew_s
        for member in state.of("worker", *STAY):
            require(member.leave_s is None or member.leave_s > now_s, f"{member.name} stays too long")

    def _hand_over(self, state: MasterState) -> None:
        """Once, and not before all is committed that was done when that was asked for, if there is time."""
        limit = self._limit
        if limit is None or limit.state is not state:
            raise Violation("nobody asked for another place")
        self._limit = None
        self.num_handed_over += 1
        now_s = self._world.hub.now_s + self._world.hub.process.skew_s
        if state.state is not RunState.STARTING and now_s < limit.leave_s:
            text = f"handed over with {state.committed_tick}, though {limit.version} was made"
            require((state.committed_tick or 0) >= limit.version, text)

    # --- places that somebody else takes away ----------------------------------------------------

    def taken(
        self, state: MasterState, event: Departing | ev.ExitedEvent, actions: list[ac.Action], before: Any
    ) -> None:
        """That a place is taken away is nobody's fault, and another worker is asked for at once."""
        require(blame(state) == before, f"blamed for {event}")
        if state.ended:
            return
        member = state.members.get(event.name)
        stays = member is not None and member.role != "server" and member.state in STAY
        require(not stays, f"it stays: {event}")
        if isinstance(event, Departing):
            faults = [a for a in actions if isinstance(a, ac.FaultAction) and a.name == event.name]
            require(not faults, f"a fault, though it said so: {event}")
            if any(isinstance(action, (ac.DrainAction, ac.QuitAction, ac.KillAction)) for action in actions):
                staying = [m for m in state.of("worker", *STAY) if not m.expiring]
                ends = state.memory().state is RunState.FINISHING
                text = f"nobody is asked for in its stead: {event}"
                require(ends or len(staying) >= state.target, text)

    def ended(self, process: Process) -> None:
        """Workers that take part leave when they have the last version, and not before."""
        state = self._world.state
        member = state.members.get(process.name) if state else None
        spared = self.spares_workers and member and member.role == "worker" and member.was_ready
        require(not spared or self._last or state and state.ended, f"{process} ends, because of a server")

    # --- commits, and the end --------------------------------------------------------------------

    def commit(self, storage: Storage, manifest: Manifest) -> None:
        """A checkpoint becomes visible."""
        total = self._world.shape.schedule.total_ticks
        require(manifest.tick in self._cut or manifest.tick == total, f"commits {manifest.tick}, not cut")
        elasticflow.checkpoint.commit(storage, manifest)
        found = {
            number: {name: saved.sha256 for name, saved in arrays.items()}
            for part in manifest.parts
            for number, arrays in part.chunks.items()
        }
        known = self.commits.setdefault(manifest.step, found)
        require(known == found or self._world.shape.asynchronous, f"two commits of step {manifest.step}")
        self.commits[manifest.step] = found

    def _compare(self, step: int) -> None:
        """A commit with that of an undisturbed run; of two, since one cannot commit each step."""
        from .world import truth_of

        for every in ("1 step", "2 steps"):
            truth = truth_of(self._world.shape.work, every).commits.get(step)
            if truth:
                found = self.commits[step]
                wrong = [number for number in found if found[number] != truth.get(number)]
                require(not wrong, f"another model at step {step}: chunks {wrong}")
                return

    def end(self, end: ac.EndAction | None) -> None:
        from .world import truth_of

        world, shape = self._world, self._world.shape
        total, newest = shape.schedule.total_steps, max(self.commits, default=0)
        for step in sorted(self.commits) if self.has_truth else ():
            if step == total or not shape.asynchronous:
                self._compare(step)
        assert end is not None
        if "died before they were ready" in end.text and world.num_killed >= MOST_EARLY:
            return
        require(end.state is not RunState.FAILED, end.text)
        if end.state is RunState.STALLED:
            require(world.num_hung > 1, f"nobody hung again: {end.text}")
        elif end.state is RunState.DIVERGED:
            require(shape.poisoned and shape.on_nan == "stop", "a step is not left out")
        elif end.state is RunState.FINISHED:
            require(not shape.poisoned or shape.on_nan == "skip", "nobody saw the poisoned step")
            require(newest == total, f"finished with the commit of step {newest} of {total}")
        else:
            in_time = shape.limit_s is None or world.hub.now_s < shape.limit_s
            require(self.stopped or not in_time, f"nobody asked for it: {end}")
        if not newest:
            return
        storage = DirectoryStorage(world.path)
        require(not (damages := verify(storage, newest)), f"damaged: {damages}")
        if newest == total and self.has_truth and shape.tables:
            found, truth = rows_of(storage, newest), truth_of(shape.work, "1 step").rows
            require(found == truth, "other rows of the table")


def blame(state: MasterState) -> tuple[int, int]:
    """What counts against the program."""
    memory = state.memory()
    return memory.failures, memory.early_deaths


def parameters_of(storage: Storage, step: int) -> Array:
    """All parameters of a commit, without the tables', as they lie."""
    manifest = load_manifest(storage, step)
    layout = manifest.layout()
    with Reader(storage, manifest) as reader:
        chunks = [c for c in layout.chunks if layout.groups[c.group].rule is Rule.UPDATE]
        flat = np.concatenate([reader.read_chunk(chunk.number)[VALUE] for chunk in chunks])
    places = [layout.places[entry.name][1] for entry in layout.of_rule(Rule.UPDATE)]
    sizes = [entry.size for entry in layout.of_rule(Rule.UPDATE)]
    return np.concatenate([flat[first : first + size] for first, size in zip(places, sizes, strict=True)])


def rows_of(storage: Storage, step: int) -> dict[int, bytes]:
    """All rows of all tables of a commit: their values, by key."""
    manifest = load_manifest(storage, step)
    layout, found = manifest.layout(), dict[int, bytes]()
    with Reader(storage, manifest) as reader:
        for chunk in layout.chunks:
            if layout.table_of(chunk) is not None:
                for arrays in reader.read_rows(chunk.number):
                    pairs = zip(arrays[KEYS].tolist(), arrays[VALUE], strict=True)
                    found.update((key, row.tobytes()) for key, row in pairs)
    return found


# --- machines that are watched ---------------------------------------------------------------------


class WatchedServing(Serving):
    """A server that holds chunks, in one generation. openings: of each worker, its connections so far."""

    laws: Laws

    def __init__(self, assignment: Assignment, row: Any, *others: Any, **named: Any) -> None:
        self.generation, self.row, self.start_tick = assignment.generation, row, assignment.start_tick
        self.name = row.names[row.place]
        self.openings: Counter[str] = Counter()
        self.process = self.laws._world.hub.process
        self.key = self.laws.key_of(self)
        super().__init__(assignment, row, *others, **named)

    def opened(self, worker: str) -> None:
        self.openings[worker] += 1
        super().opened(worker)

    def _act(self, action: st.Action) -> None:
        self.laws.acts(self, action)
        super()._act(action)


class WatchedKeeping(Keeping):
    """A server's snapshots."""

    laws: Laws
    _of = 0

    def _act(self, action: sn.Action, arrays: list[Array]) -> None:
        if isinstance(action, sn.AllSafeAction):
            self.laws.safe(self._ways.listener.generation, self._row.names, action.version)
        super()._act(action, arrays)


class WatchedMaster(MasterState):
    """The master's decisions."""

    def __init__(self, laws: Laws, *given: Any, **named: Any) -> None:
        self._laws = laws
        laws._world.state = self
        super().__init__(*given, **named)

    def start(self, now_s: float) -> list[ac.Action]:
        actions = super().start(now_s)
        self._laws.decides(self, None, actions)
        return actions

    def adopt(self, living: Any, now_s: float) -> list[ac.Action]:
        actions = super().adopt(living, now_s)
        self._laws.decides(self, None, actions)
        return actions

    def handle(self, event: ev.Event, now_s: float) -> list[ac.Action]:
        taken = isinstance(event, Departing) or isinstance(event, ev.ExitedEvent) and event.taken
        before = blame(self) if taken else None
        actions = super().handle(event, now_s)
        if isinstance(event, (Departing, ev.ExitedEvent)) and taken:
            self._laws.taken(self, event, actions, before)
        self._laws.decides(self, event, actions)
        world = self._laws._world
        if world.dies_at_end and any(isinstance(action, ac.EndAction) for action in actions):
            world.dies_at_end = False
            world.hub.process.fuse = world.hub.rng.randrange(30)
        return actions
