"""What must hold at all times, whatever happens; each breach is a Violation.

The state machines inside the processes are watched as they act. What concerns several processes is known by
*key*: a life of the run, a generation of servers in it, their names and where they listen. (If all who knew
of one have died, the next master may begin another one of the same number, by servers of the same names.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

import elasticflow.checkpoint
from elasticflow.checkpoint import Manifest, Reader, load_manifest, verify
from elasticflow.checkpoint.chains import KEYS
from elasticflow.checkpoint.names import VALUE
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.failures import MOST_EARLY
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.row import Phase
from elasticflow.master.server import FAREWELL_S
from elasticflow.master.state import MasterState
from elasticflow.step.layout import Array, Rule
from elasticflow.storage import DirectoryStorage, Storage
from elasticflow.wire.messages import Assignment, Departing, Paused
from elasticflow_ps import snapshots as sn
from elasticflow_ps import state as st
from elasticflow_ps.backups import ComputeAction
from elasticflow_ps.client_state import Action, ClientState, Event
from elasticflow_ps.keeping import Keeping
from elasticflow_ps.ordering import Orders
from elasticflow_ps.serving import Serving

from .threads import Process, Violation

if TYPE_CHECKING:
    from .world import World

Key = tuple[int, int, tuple[str, ...], tuple[str, ...]]
Hashes = dict[int, dict[str, str]]
"""Of all arrays of a commit, by chunk and name."""
KEEP_UP_S, SLICES = 3.0, 8
"""A worker that hears of no version for so long, and so many slices' time, would never hear of one."""
ROUNDED_S = 1e-3
"""To which a master remembers how long the run has lasted."""
SILENCES = ("silent", "lost its connections", "not come", "never")
CUT_OFF = "lost its connection"
"""Why a worker is given up whose connections to servers have closed, and who says nothing of that."""
TELLS_S, RECONNECTS = 0.4, 8
"""It is told, and of it, within so long, and so many times what connections lag."""
STAY = (MemberState.STARTING, MemberState.LOADING, MemberState.READY, MemberState.SUSPECT)
"""Of workers that are meant to stay."""


def require(holds: object, text: object) -> None:
    """text: or what makes it, where that takes long."""
    if not holds:
        raise Violation(str(text() if callable(text) else text))


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
        self.only_cuts = True
        """Nothing has happened but to connections, and all can speak with the master."""
        self.regroupings: list[ac.RegroupedAction] = []
        self._paused: tuple[Key, int] | None = None
        """A generation all of whose servers have paused, and with which version."""
        self.num_pauses = 0
        """Of those after which all went on from that version."""
        self.row: tuple[str, ...] = ()
        self._orders: dict[tuple[Key, int], Orders] = {}
        self._members: dict[tuple[Key, str], Process] = {}
        self._keys: dict[Process, Key] = {}
        """Of each server's newest generation."""
        self._applied: set[tuple[object, ...]] = set()
        self._made: dict[tuple[Key, int], st.VersionAction] = {}
        self._newest: dict[Key, dict[str, int]] = {}
        self._safe: dict[Key, int] = {}
        self._assigned: dict[Key, Assignment] = {}
        self._decided: dict[Key, Process] = {}
        """By which master."""
        self._asked: set[tuple[object, ...]] = set()
        self._last: set[int] = set()
        self._cut: set[int] = set()
        self._latest: Key = (0, 0, (), ())
        self._committed = 0
        self._known = 0
        """The newest version that a master knew of."""
        self._limit: Limit | None = None
        self._behind: dict[tuple[str, int], float] = {}
        """Since when workers are behind."""
        self.num_handed_over = 0
        self.deaths: Counter[int] = Counter()
        """By record: workers that it has ended."""
        self.commits: dict[int, Hashes] = {}
        """All there ever were, by step."""

    # --- servers ---------------------------------------------------------------------------------

    def key_of(self, assignment: Assignment) -> Key:
        """What a generation is known by."""
        servers = [server for server in assignment.servers if not server.leaves]
        names, endpoints = tuple(each.name for each in servers), tuple(each.endpoint for each in servers)
        return self._world.life, assignment.generation, names, endpoints

    def begins(self, process: Process, name: str, assignment: Assignment) -> Key:
        """A server takes part in a generation."""
        key = self._keys[process] = self.key_of(assignment)
        require(self._members.setdefault((key, name), process) is process, f"two servers are {name}")
        return key

    def acts(self, serving: WatchedServing, action: st.Action) -> None:
        """A server is about to do what its state says."""
        self._world.ambush("server", action)
        if isinstance(action, st.ServeAction) and action.orders:
            known = self._orders.setdefault((serving.key, action.version), action.orders)
            require(known == action.orders, f"two orders for version {action.version}: {action}")
        elif isinstance(action, st.ApplyAction):
            what = (serving.key, serving.name, action.tick, action.parcel, action.slice)
            require(what not in self._applied, f"{serving.name} applies {what} twice")
            self._applied.add(what)
        elif isinstance(action, st.VersionAction):
            self._has_made(serving, action)
        elif isinstance(action, ComputeAction):
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

    def safe(self, version: int) -> None:
        """All places of the generation of the server that runs are held in two memories."""
        key = self._keys[self._world.hub.process]
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
        if isinstance(event, Paused) and any(isinstance(action, ac.HaltAction) for action in actions):
            self._paused = self._latest, event.version
        for action in actions:
            if isinstance(action, ac.AssignAction):
                self._assign(action)
            elif isinstance(action, ac.RegroupedAction):
                self._regroup(state, action)
            elif isinstance(action, ac.HandOverAction):
                self._hand_over(state)
            elif isinstance(action, ac.NoteAction):
                self._blames_nobody(action)
            elif isinstance(action, ac.FaultAction):
                self._gives_up(action)
        if not state.commits.unsure:  # the disk was dark when this master began: it has yet to read them
            require((state.committed_tick or 0) >= self._committed, "commits go back")
        self._committed = max(self._committed, state.committed_tick or 0)
        self._known = max(self._known, state.version)
        if state.row.phase is Phase.SERVING and not state.ended:
            names = tuple(state.row.names)
            endpoints = tuple(state.members[name].endpoint for name in names)
            key: Key = self._world.life, state.generation, names, endpoints
            if assigned := self._assigned.get(key):  # else by one of before, that nobody had sight of
                newest = max(self._newest.get(key, {}).values(), default=assigned.start_tick)
                text = f"the master knows of version {state.version}, {newest} is made"
                require(state.version <= newest, text)
        if isinstance(event, ev.ClockEvent) and not state.ended:
            self._relieved(state)
            self._keep_up(state)

    def _assign(self, action: ac.AssignAction) -> None:
        if not action.name.startswith("server"):
            return
        assignment = action.assignment
        self._latest = key = self.key_of(assignment)
        self.row = key[2]
        assignment = replace(assignment, relays=())  # of these each is told its own
        if self._decided.get(key) is not self._world.master and all(key != each for each, _ in self._members):
            self._assigned.pop(key, None)  # that master died as it decided so, and nobody has heard of it
        self._decided[key] = self._world.master
        require(self._assigned.setdefault(key, assignment) == assignment, f"two generations {key}")
        if assignment.ends:
            self._cut.add(assignment.start_tick)

    def _regroup(self, state: MasterState, action: ac.RegroupedAction) -> None:
        """What all servers but one, at least, have in two memories is not lost."""
        self.regroupings.append(action)
        if self._limit:
            self._limit = self._limit._replace(version=min(action.start, self._limit.version))
        require(action.start >= self._committed, f"{action}, though {self._committed} is committed")
        life, _, names, _ = key = self._latest
        here = (*state.row.names, *state.row.leaving)
        lost = [name for name in names if name not in here or not self._lives(key, name)]
        assigned = self._assigned.get(key)
        carriers = {server.name: server.carrier for server in assigned.servers} if assigned else {}
        together = len({carriers[name] for name in lost} | {""}) == 2 < len(set(carriers.values()) | {""})
        if self._paused and self._paused[0] == key and life == self._world.life and not lost:
            # One that servers of before wrote may be committed only now; nobody goes back behind a commit.
            newest = max(self._paused[1], state.committed_tick or 0)
            require(action.start == newest, f"{action}, though all had paused at {self._paused[1]}")
            self.num_pauses += 1
        kept = len(lost) <= 1 or together  # of what one worker carries there are copies with others
        if self._world.shape.snapshot_s and life == self._world.life and kept:
            safe = self._safe.get(key, 0)
            require(action.start >= safe, f"{lost} lost, {action}, though version {safe} was safe")

    def serve(self, state: MasterState) -> None:
        """All servers of a generation are said to have what is theirs."""
        for name, chunks in zip(state.row.names, state.row.chunks, strict=True):
            process = self._world.cluster.members[name]
            key = self._keys.get(process)
            serves = not chunks or not process.alive or key and key[1] >= state.generation
            require(serves, f"{name} does not serve yet")

    def _lives(self, key: Key, name: str) -> bool:
        """Whether the server of this name is still the one that it was in that generation."""
        process = self._members.get((key, name))
        return process is not None and process.alive

    def _blames_nobody(self, action: ac.NoteAction) -> None:
        """Whether all stood still though nothing had happened to anybody for as long; or a checkpoint failed,
        though each disk comes back before anybody loses patience."""
        require(not action.text.startswith("a checkpoint failed"), action.text)
        if action.text == "all connect anew":
            calm_s = self._world.hub.now_s - self._world.calm_s
            require(calm_s < self._world.shape.stall_s, lambda: f"nothing moves: {self._world.where()}")

    def _gives_up(self, action: ac.FaultAction) -> None:
        """Whether a member to which nothing happens is taken to be gone."""
        world, process = self._world, self._world.cluster.members.get(action.name)
        if process is None or not process.alive:
            return
        if action.text != CUT_OFF and not any(word in action.text for word in SILENCES):
            return
        now_s = world.hub.now_s
        if self.only_cuts and action.text == CUT_OFF:
            since_s = now_s - world.network.changed_s.get(process, now_s)
            text = f"{action}, though it lives, and has known for {since_s:.2f} s which connections it has"
            require(since_s < self._until_told_s, text)
        stopped = max(process.frozen_s, process.hung_s) > world.calm_s or process.fuse is not None
        require(stopped or now_s - world.calm_s < world.patience_s, lambda: f"{action}: {world.where()}")

    @property
    def _until_told_s(self) -> float:
        """Whoever has lost a connection is back by then."""
        shape = self._world.shape
        slices_s = 1.5 * shape.slices * shape.slice_s * (max(shape.slowness) + self._world.slowdown)
        return TELLS_S + RECONNECTS * shape.lag_s + shape.start_s + slices_s

    def _is_stopped(self, name: str) -> bool:
        """Whether it is frozen, or hangs: how long that takes to be noticed is for others to say."""
        process = self._world.cluster.members.get(name)
        return process is not None and max(process.frozen_s, process.hung_s) > self._world.hub.now_s

    def _keep_up(self, state: MasterState) -> None:
        """A worker that takes part, and to which nothing happens, has the newest version soon; but that which
        ends the run, of which nobody has any. Where connections lag, it has soon come further."""
        world, shape = self._world, self._world.shape
        serves, ready = state.row.phase is Phase.SERVING and not state.divergence.pending, MemberState.READY
        serves &= not any(map(self._is_stopped, state.row.names))  # and nothing happens to those who have it
        workers = [each for each in state.members.values() if each.role == "worker" and each.state is ready]
        behind = [
            (each.name, each.tick if shape.lag_s else 0)
            for each in workers
            if serves and each.tick + 1 < state.version and not self._is_stopped(each.name)
        ]
        self._behind = {each: self._behind.get(each, world.hub.now_s) for each in behind}
        slice_s = shape.slice_s * max(shape.slowness) * (1 + world.slowdown)
        most_s = KEEP_UP_S + 2 * shape.suspect_s + SLICES * slice_s
        for (name, _), since_s in self._behind.items():
            late_s = world.hub.now_s - max(since_s, world.calm_s)
            require(late_s < most_s, lambda name=name: f"{name} falls behind: {world.where()}")

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

    def kills(self, process: Process) -> None:
        """Who takes part leaves by itself once the run is over, unless something has happened to it, or it
        computes a slice that takes longer than it is waited for; or it stays for such servers."""
        world, state = self._world, self._world.state
        member = state.members.get(process.name) if state and state.ended else None
        if member is None or member.role != "worker" or member.state is not MemberState.READY:
            return
        carried = [world.cluster.members.get(m.name) for m in state.of("server") if m.carrier == process.name]
        stopped = any(
            max(each.frozen_s, each.hung_s) > world.hub.now_s or each.fuse is not None
            for each in (process, *filter(None, carried))
        )
        calm = world.hub.now_s - world.calm_s > FAREWELL_S / 2
        computes = world.shape.longest_slice_s > FAREWELL_S and world.computes(process)
        require(stopped or computes or not calm, lambda: f"{process} has to be ended: {world.where()}")

    # --- commits, and the end --------------------------------------------------------------------

    def commit(self, storage: Storage, manifest: Manifest) -> None:
        """A checkpoint becomes visible."""
        total = self._world.shape.schedule.total_ticks
        require(manifest.tick in self._cut or manifest.tick == total, f"commits {manifest.tick}, not cut")
        elasticflow.checkpoint.commit(storage, manifest)
        self._committed_is(manifest)

    def _committed_is(self, manifest: Manifest) -> None:
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

    def _last_step(self, end: ac.EndAction | None) -> int:
        """Of a run that comes to its end, as an undisturbed one does."""
        from .world import truth_of

        shape = self._world.shape
        may_stop = shape.rules.stopping is not None or bool(shape.rules.consults)
        if self.has_truth and may_stop:
            return max(truth_of(shape.work, "1 step").commits, default=0)
        early = end is not None and may_stop and "stopped early" in end.text
        return max(self.commits) if early else shape.schedule.total_steps

    def end(self, end: ac.EndAction | None) -> None:
        from .world import truth_of

        world, shape = self._world, self._world.shape
        storage = DirectoryStorage(world.path)
        for step in elasticflow.checkpoint.commits(storage):
            if step not in self.commits:  # its master died of it
                self._committed_is(load_manifest(storage, step))
        total, newest = self._last_step(end), max(self.commits, default=0)
        for step in sorted(self.commits) if self.has_truth else ():
            if step == total or not shape.asynchronous:
                self._compare(step)
        assert end is not None
        if "died before they were ready" in end.text and world.num_killed >= MOST_EARLY:
            return
        if end.state is RunState.FAILED:
            fails = [fault for fault in world.all_faults if fault.kind == "fail worker"]
            too_many = len(fails) > shape.max_failures and "max_failures is" in end.text
            require(too_many or shape.strict and (shape.bad or shape.deadly), end.text)
            # Asynchronously servers may have none of the versions whole: updates are made where numbers lie.
            undisturbed = fails == world.all_faults and not shape.asynchronous and not shape.poisoned
            undisturbed &= not (shape.carried and shape.deadly)  # who dies takes along what it carries
            made = self._made_by_all()
            kept = made is None or self._committed >= made or not shape.schedule.may_cut(made)
            require(kept or not undisturbed, f"version {made} was made, {self._committed} is kept")
        elif end.state is RunState.STALLED:
            require(world.num_hung > 1, f"nobody hung again: {end.text}")
        elif end.state is RunState.DIVERGED:
            require(shape.poisoned and shape.on_nan == "stop", "a step is not left out")
        elif end.state is RunState.FINISHED:
            require(not shape.poisoned or shape.on_nan == "skip", "nobody saw the poisoned step")
            require(newest == total, f"finished with the commit of step {newest} of {total}")
        else:
            in_time = shape.limit_s is None or world.hub.now_s < shape.limit_s - ROUNDED_S
            require(self.stopped or not in_time, f"nobody asked for it: {end}")
        if not newest:
            return
        require(not (damages := verify(storage, newest)), f"damaged: {damages}")
        if newest == total and self.has_truth and shape.tables:
            found, truth = rows_of(storage, newest), truth_of(shape.work, "1 step").rows
            require(found == truth, "other rows of the table")

    def _made_by_all(self) -> int | None:
        """The newest version, if all servers have come to it, and the master knows: else they have what was
        copied before."""
        state, last = self._world.state, [*self._newest.values()][-1:]
        names = state.row.holders if state else ()
        made = {newest[name] for newest in last for name in names if name in newest} or {self._known}
        return self._known if made == {self._known} else None


def blame(state: MasterState) -> tuple[int, int]:
    """What counts against the program."""
    memory = state.memory()
    return memory.failures, memory.early_deaths


def parameters_of(storage: Storage, step: int) -> Array:
    """All parameters of a commit, without the tables', as they lie."""
    manifest = load_manifest(storage, step)
    layout = manifest.layout()
    flat: dict[int, list[Array]] = {}
    with Reader(storage, manifest) as reader:
        for chunk in layout.chunks:
            if layout.groups[chunk.group].rule is Rule.UPDATE:
                flat.setdefault(chunk.group, []).append(reader.read_chunk(chunk.number)[VALUE])
    groups = {group: np.concatenate(arrays) for group, arrays in flat.items()}
    regions = [layout.region(entry) for entry in layout.of_rule(Rule.UPDATE)]
    return np.concatenate([groups[group][first:stop] for group, first, stop in regions])


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
        self.row, self.start_tick = row, assignment.start_tick
        self.name = row.names[row.place]
        self.openings: Counter[str] = Counter()
        self.key = self.laws.begins(self.laws._world.hub.process, self.name, assignment)
        super().__init__(assignment, row, *others, **named)

    def opened(self, worker: str) -> None:
        self.openings[worker] += 1
        super().opened(worker)

    def _act(self, action: st.Action) -> None:
        self.laws.acts(self, action)
        super()._act(action)


class WatchedClient(ClientState):
    """A worker's view of the servers."""

    laws: Laws

    def handle(self, event: Event) -> Sequence[Action]:
        actions = super().handle(event)
        for action in actions:
            self.laws._world.ambush("worker", action)
        return actions


class WatchedKeeping(Keeping):
    """A server's snapshots."""

    laws: Laws
    _of = 0

    def _act(self, action: sn.Action, arrays: list[Array]) -> None:
        self.laws._world.ambush("server", action)
        if isinstance(action, sn.AllSafeAction):
            self.laws.safe(action.version)
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

    def adopt(self, living: Any, now_s: float, **more: Any) -> list[ac.Action]:
        actions = super().adopt(living, now_s, **more)
        self._laws.decides(self, None, actions)
        return actions

    def handle(self, event: ev.Event, now_s: float) -> list[ac.Action]:
        taken = isinstance(event, Departing) or isinstance(event, ev.ExitedEvent) and event.taken
        before, restoring = blame(self) if taken else None, self.row.phase is Phase.RESTORING
        actions = super().handle(event, now_s)
        if restoring and self.row.phase is Phase.SERVING:
            self._laws.serve(self)
        if isinstance(event, (Departing, ev.ExitedEvent)) and taken:
            self._laws.taken(self, event, actions, before)
        self._laws.decides(self, event, actions)
        for action in actions:
            self._laws._world.ambush("master", action)
        return actions
