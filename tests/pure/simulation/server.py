"""A parameter server's process: ``elasticflow_ps.server`` and what is around ServerState and Snapshots."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticflow.checkpoint import Part, part_name
from elasticflow.wire.messages import (
    AllSafe,
    Assignment,
    Beat,
    Clip,
    Compute,
    Cut,
    Diverged,
    Fetch,
    Finish,
    FromMaster,
    Gone,
    Halt,
    Heartbeat,
    Hello,
    Initial,
    Join,
    Keep,
    Kept,
    Lost,
    Norms,
    Offer,
    Plan,
    Progress,
    Pull,
    Push,
    Quit,
    Ready,
    Safe,
    Settled,
    Skipped,
    State,
    Troubled,
    Uninitialised,
    Version,
    Welcome,
    Written,
)  # fmt: skip
from elasticflow_ps import snapshots as sn
from elasticflow_ps import state as st
from elasticflow_ps.parts import REMEMBERED
from elasticflow_ps.serving import PROGRESS_S, agrees

from .member import Member
from .network import CLOSED, Connection, Timer
from .truth import Parcel, combine, norm_of, square, together, updated

if TYPE_CHECKING:
    from .laws import Key
    from .world import World


class Store:
    """``elasticflow_ps.store``: values of some versions, slots of the newest."""

    def __init__(self) -> None:
        self.values: dict[int, dict[int, int]] = {}
        self.slots: dict[int, int] = {}
        self._leaves: dict[int, tuple[Parcel, list[int]]] = {}
        """By parcel of the tick in work: what it was, and the slices applied to it since."""
        self._since: dict[int, int] = {}

    def fill(self, version: int, parcel: int, copy: Parcel) -> None:
        self.values.setdefault(version, {})[parcel], self.slots[parcel] = copy
        self._since[parcel] = version
        self._leaves.pop(parcel, None)

    def is_whole(self, version: int, num_parcels: int) -> bool:
        values = self.values.get(version, {})
        return all(n in values and self._since[n] <= version for n in range(num_parcels))

    def copy(self, version: int) -> list[Parcel]:
        return [(value, self.slots[n]) for n, value in sorted(self.values[version].items())]

    def go_back_to(self, version: int, copy: list[Parcel]) -> None:
        self.values.clear()
        for parcel, each in enumerate(copy):
            self.fill(version, parcel, each)

    def apply(self, action: st.ApplyAction, evaluates: bool) -> None:
        parcel = action.parcel
        value = self.values[action.tick][parcel]
        if action.root is not None and not evaluates:
            before = (value, self.slots[parcel])
            value, self.slots[parcel] = updated(before, action.root, action.lr, action.norm)
            self._since[parcel] = action.tick + 1
        self.values.setdefault(action.tick + 1, {})[parcel] = value

    def apply_slice(self, action: st.ApplyAction) -> None:
        """Makes the parcel anew from all slices that there are by now."""
        parcel, (value, slots) = action.parcel, (self.values[action.tick][action.parcel], -1)
        after = self.values.setdefault(action.tick + 1, {})
        if parcel not in after:
            self._leaves[parcel] = ((value, self.slots[parcel]), [])
        before, leaves = self._leaves[parcel]
        assert len(leaves) == action.before and 0 <= action.late <= action.before
        if action.root is not None:
            assert action.root not in leaves, f"applied twice: {action}"
            leaves.append(action.root)
            value, slots = updated(before, together(leaves), action.lr, None)
            self.slots[parcel], self._since[parcel] = slots, action.tick + 1
            after[parcel] = value
        after.setdefault(parcel, value)

    def num_leaves(self, version: int, parcel: int) -> int:
        """Slices in a parcel of the version that is being made."""
        return len(self._leaves[parcel][1]) if parcel in self.values.get(version, {}) else 0


class Generation:
    """``elasticflow_ps.server._Generation``."""

    def __init__(self, world: World, assignment: Assignment, name: str) -> None:
        self.assignment = assignment
        infos = assignment.servers
        self.names = tuple(info.name for info in infos)
        self.place = self.names.index(name)
        self.info = infos[self.place]
        parcels = world.truth.parcels
        assert [bool(info.chunks) for info in infos] == [count > 0 for count in parcels]
        self.start = assignment.start_tick if assignment.in_memory else None
        self.row = sn.ServerRow(
            names=self.names,
            parcels=parcels,
            place=self.place,
            last_version=assignment.schedule.total_ticks,
            snapshots=assignment.snapshot_s > 0,
        )
        keeper, asks = self.row.keeper(self.place), agrees(assignment)
        leader = self.names[0] if self.info.chunks and self.place > 0 and (keeper or asks) else ""
        self.linked = [info.name for info in infos if info.name in (keeper, leader)]


class Serving:
    """``elasticflow_ps.serving``."""

    def __init__(self, server: SimServer, now: Generation, store: Store, start: int | None) -> None:
        self._server, self._world, self._now, self._store = server, server.world, now, store
        self._truth = server.world.truth
        self._numbers = self._truth.of_place(now.place)
        self._norms: dict[int, dict[str, Norms]] = {}
        self._skips = now.assignment.on_nan == "skip"
        self._skipped: list[Skipped] = []
        self.diverged: Diverged | None = None
        self._told_s, self._told_version = 0.0, -1
        self._state = st.ServerState(
            schedule=now.assignment.schedule,
            num_parcels=len(self._numbers),
            combine=combine,
            leads=now.row.leads,
            agrees=agrees(now.assignment),
            start=start,
            cut_every_steps=now.assignment.cut_every_steps,
            snapshots=server.keeping.snapshots,
        )

    @property
    def version(self) -> int:
        return self._state.version

    @property
    def finished(self) -> bool:
        return self._state.finished

    # --- what comes ---

    def obey(self, message: Any) -> None:
        if isinstance(message, Plan):
            self.handle(st.PlanEvent(message.number, message.shares))
        elif isinstance(message, Settled):
            self.handle(st.SettledEvent(message.tick))
        else:
            self.handle(st.CutEvent() if isinstance(message, Cut) else st.FinishEvent())

    def receive(self, worker: str, message: Any, value: Any) -> None:
        if isinstance(message, Push):
            self.handle(st.PushEvent(worker, message, value))
        elif isinstance(message, Pull):
            self.handle(st.PullEvent(worker, message))
        else:
            self.handle(st.InitialEvent(message.parcel, value))

    # --- time ---

    def turn(self) -> None:
        news = self._now.row.leads and self._told_version < self.version and not self.diverged
        if news and (self._server.clock.now_s >= self._told_s + PROGRESS_S or self.finished):
            self.tell_progress()

    def due_s(self) -> float | None:
        due_s = None if self.diverged else self._state.next_due_s()
        if not self.diverged and self._now.row.leads and self._told_version < self.version:
            due_s = min(float("inf") if due_s is None else due_s, self._told_s + PROGRESS_S)
        return due_s

    def repeat(self) -> None:
        for message in (self.diverged, *self._skipped):
            if message:
                self._server.send(message)
        if self._now.row.leads and not self.diverged:
            self.tell_progress()

    def tell_progress(self) -> None:
        self._told_s, self._told_version = self._server.clock.now_s, self.version
        self._server.send(
            Progress(
                name=self._server.name,
                generation=self._now.assignment.generation,
                version=self.version,
                last=self.finished,
            )
        )

    # --- what is done ---

    def handle(self, event: st.Event) -> None:
        for action in self._state.handle(event, self._server.clock.now_s):
            serves = isinstance(action, st.ServeAction) and self.diverged is not None
            if not self.diverged or (serves and action.version <= self.diverged.tick):
                _SERVING[type(action)](self, action)

    def _serve(self, action: st.ServeAction) -> None:
        orders, version = action.orders or st.Orders(), action.version
        value = self._store.values[version + (action.updates > 0)][action.parcel]
        expected = self._truth.model(version)[self._numbers[action.parcel]]
        if self.version == version and self._truth.schedule.applies_slices(version):
            assert action.updates == self._store.num_leaves(version + 1, action.parcel)
        if not action.updates:
            assert value == expected, f"{self._server.name} serves another version {version}"
        if action.orders:
            self._world.laws.ordered(self._server.key, version, orders)
        message = Version(
            version=version,
            parcel=action.parcel,
            same=action.same,
            shares=orders.shares,
            cut=orders.cut,
            snapshot=orders.snapshot,
            finish=orders.finish,
            updates=action.updates,
            given=action.given,
        )
        self._server.answer(action.worker, message, () if action.same else value)

    def _apply(self, action: st.ApplyAction) -> None:
        if self._truth.schedule.applies_slices(action.tick):
            leaves = self._truth.leaves(action.tick, self._numbers[action.parcel])
            assert action.root is None or action.root in leaves, f"{self._server.name} applies another"
            return self._store.apply_slice(action)
        root = self._truth.total(action.tick, self._truth.top, self._numbers[action.parcel])
        if action.tick in self._truth.skipped:
            root = None
        assert action.root == root, f"{self._server.name} made another sum"
        if self._is_poisoned(action.tick, (self._numbers[action.parcel],)) and not self._skips:
            return self._diverge(action.tick)
        self._world.laws.applied(self._server, action)
        action = action if self._truth.clips else replace(action, norm=None)
        self._store.apply(action, self._truth.schedule.evaluates(action.tick))

    def _complete(self, action: st.VersionAction) -> None:
        whole = self._store.copy(action.version)
        assert whole == self._truth.copy(self._now.place, action.version), f"{self._server} made another"
        self._world.laws.made(self._server, self._now, action)
        self._server.made(action)
        for old in [version for version in self._store.values if version < action.version - 1]:
            del self._store.values[old]

    def _initialise(self, action: st.InitialiseAction) -> None:
        number = self._numbers[action.parcel]
        assert action.value == self._truth.model(0)[number], "other first values"
        self._store.fill(0, action.parcel, self._truth.state(0)[number])

    def _hand_out(self, action: st.ComputeAction) -> None:
        self._world.laws.asked(self._server, action)
        asked = Compute(tick=action.tick, slices=action.slices, careful=action.careful)
        self._server.answer(action.worker, asked)

    def _drop(self, action: st.DropAction) -> None:
        raise AssertionError(f"{self._server.name} drops a message of {action.worker}: {action.reason}")

    # --- numbers that are none, and clipping ---

    def _is_poisoned(self, tick: int, numbers: Iterable[int]) -> bool:
        return any((tick, number) in self._world.shape.poisoned for number in numbers)

    def _diverge(self, tick: int) -> None:
        generation = self._now.assignment.generation
        self.diverged = Diverged(name=self._server.name, generation=generation, tick=tick, parameter="w")
        self._server.send(self.diverged)

    def _send_norms(self, action: st.NormsAction) -> None:
        norms = tuple(
            (number, square(root)) for number, root in zip(self._numbers, action.roots, strict=True)
        )
        finite = not self._is_poisoned(action.tick, self._numbers)
        if not finite and not self._skips:
            return self._diverge(action.tick)
        message = Norms(tick=action.tick, norms=norms, finite=finite)
        if self._now.row.leads:
            self._collect_norms(self._server.name, message)
        else:
            self._server.tell(self._now.names[0], message)

    def take_norms(self, server: str, message: Norms) -> None:
        assert self.version <= message.tick <= self.version + 1, f"norms of tick {message.tick} of {server}"
        self._collect_norms(server, message)

    def _collect_norms(self, server: str, message: Norms) -> None:
        tick = message.tick
        known = self._norms.setdefault(tick, {})
        known.setdefault(server, message)
        if len(known) < len(self._now.row.holding) or self.diverged:
            return
        pairs = [(number, int(norm)) for each in known.values() for number, norm in each.norms]
        norm = norm_of(pairs) if self._truth.clips else 0.0
        skip = not all(each.finite for each in known.values())
        del self._norms[tick]
        if skip:
            generation = self._now.assignment.generation
            self._skipped.append(Skipped(name=self._server.name, generation=generation, tick=tick))
            self._server.send(self._skipped[-1])
        for name in known:
            self._server.answer(name, Clip(tick=tick, norm=norm, skip=skip))
        self.handle(st.ClipEvent(tick, norm, skip))


_SERVING: dict[type, Any] = {
    st.ServeAction: Serving._serve,
    st.ApplyAction: Serving._apply,
    st.VersionAction: Serving._complete,
    st.ComputeAction: Serving._hand_out,
    st.GoneAction: lambda serving, a: serving._server.answer(a.worker, Gone(latest=a.latest)),
    st.InitialiseAction: Serving._initialise,
    st.AskInitialAction: lambda serving, a: serving._server.answer(a.worker, Uninitialised()),
    st.NormsAction: Serving._send_norms,
    st.DropAction: Serving._drop,
}


class Keeping:
    """``elasticflow_ps.keeping``."""

    def __init__(self, server: SimServer) -> None:
        self.snapshots = sn.Snapshots()
        self.store: Store | None = None
        self._server = server
        self._row = sn.ServerRow((), (), -1, 0)
        self._copies: dict[sn.Copy, tuple[Store | None, dict[int, Parcel]]] = {}
        """Of which store, and its parcels."""
        self._outgoing: deque[tuple[int, int]] = deque()

    def enter(self, row: sn.ServerRow, start: int | None, snapshot_s: float) -> None:
        self._row = row
        self._outgoing.clear()
        self._do(self.snapshots.enter(row, start, snapshot_s, self._server.clock.now_s))

    def copy_of(self, place: int, version: int) -> tuple[Store | None, list[Parcel]] | None:
        if (place, version) not in self.snapshots.held:
            return None
        store, parcels = self._copies[place, version]
        copy = [parcels[number] for number in sorted(parcels)]
        assert copy == self._server.world.truth.copy(place, version), f"a bad copy at {self._server.name}"
        return store, copy

    def made(self, version: int) -> None:
        self._do(self.snapshots.made(version, self._server.clock.now_s))

    def receive(self, sender: str, message: Any, parcel: Parcel | None = None) -> None:
        if isinstance(message, Fetch):
            self._answer(sender, message)
        else:
            self._do(self.snapshots.receive(sender, message, self._server.clock.now_s), parcel)

    def _answer(self, sender: str, fetch: Fetch) -> None:
        copy = self.copy_of(fetch.place, fetch.version)
        assert copy, f"{self._server.name} has not got what {sender} fetches: {fetch}"
        assert sender == self._row.names[fetch.place]
        for parcel, each in enumerate(copy[1]):
            state = State(place=fetch.place, version=fetch.version, parcel=parcel)
            self._server.answer(sender, state, each)

    def turn(self) -> None:
        version, number = self._outgoing.popleft()
        keep = Keep(place=self._row.place, version=version, parcel=number)
        copy = self._copies[self._row.place, version][1][number]
        self._server.links[self._row.keeper(self._row.place)].up.send((keep, copy))

    @property
    def busy(self) -> bool:
        if not self._outgoing:
            return False
        link = self._server.links.get(self._row.keeper(self._row.place))
        return link is not None and link.greeted

    def _do(self, actions: list[sn.Action], parcel: Parcel | None = None) -> None:
        for action in actions:
            _KEEPING[type(action)](self, action, parcel)
        if actions:
            places = [place for place, _ in self._copies]
            assert all(places.count(place) <= 2 for place in places), f"copies {sorted(self._copies)}"
            assert set(self.snapshots.held) <= self._copies.keys()

    def _take(self, action: sn.TakeAction, _: Any) -> None:
        assert self.store and self.store.is_whole(action.version, self._row.parcels[self._row.place])
        copy = self.store.copy(action.version)
        self._copies[self._row.place, action.version] = (self.store, dict(enumerate(copy)))
        self.copy_of(self._row.place, action.version)

    def _keep(self, action: sn.KeepAction, _: Any) -> None:
        self._outgoing.extend((action.version, n) for n in range(self._row.parcels[self._row.place]))

    def _put(self, action: sn.StoreAction, parcel: Parcel | None) -> None:
        copy = (action.place, action.version)
        assert parcel == self._server.world.truth.copy(*copy)[action.parcel], f"a bad copy is sent: {action}"
        self._copies.setdefault(copy, (None, {}))[1][action.parcel] = parcel

    def _tell_kept(self, action: sn.KeptAction, _: Any) -> None:
        self.copy_of(action.place, action.version)
        kept = Kept(place=action.place, version=action.version)
        self._server.answer(self._row.names[action.place], kept)

    def _tell_safe(self, action: sn.SafeAction, _: Any) -> None:
        self._server.tell(self._row.names[0], Safe(place=self._row.place, version=action.version))

    def _tell_all(self, action: sn.AllSafeAction, _: Any) -> None:
        self._server.world.laws.safe(self._server.key, action.version)
        for place in sorted(self._row.holding - {self._row.place}):
            self._server.answer(self._row.names[place], AllSafe(version=action.version))

    def _forget(self, action: sn.ForgetAction, _: Any) -> None:
        del self._copies[action.place, action.version]
        if action.place == self._row.place:
            self._outgoing = deque(each for each in self._outgoing if each[0] != action.version)

    def _refuse(self, action: sn.RefuseAction, _: Any) -> None:
        raise AssertionError(f"{self._server.name} refuses a message of {action.sender}: {action.reason}")


_KEEPING: dict[type, Any] = {
    sn.TakeAction: Keeping._take,
    sn.KeepAction: Keeping._keep,
    sn.StoreAction: Keeping._put,
    sn.KeptAction: Keeping._tell_kept,
    sn.SafeAction: Keeping._tell_safe,
    sn.AllSafeAction: Keeping._tell_all,
    sn.ForgetAction: Keeping._forget,
    sn.RefuseAction: Keeping._refuse,
}


class SimServer(Member):
    """``elasticflow_ps.server.ParameterServer``."""

    role = "server"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.links: dict[str, Connection] = {}
        self._peers: dict[str, Connection] = {}
        self._known: dict[Connection, str] = {}
        """Who has been greeted in this generation; see ``elasticflow.wire.data.DataListener``."""
        self._proved: dict[Connection, None] = {}
        self._early: dict[Connection, Hello] = {}
        self.keeping = Keeping(self)
        self.generation, self._halted = 0, 0
        self.key: Key = (0, 0, ())
        self._now: Generation | None = None
        self._store: Store | None = None
        self._live: sn.Copy | None = None
        self._serving: Serving | None = None
        self._fetching: tuple[str, dict[int, Parcel]] | None = None
        self._loads = 0
        """Loading of a generation that is over comes to nothing."""
        self._ready = False
        self._tick = 0
        self._lost: set[str] = set()
        self._written: list[Written] = []
        self._writes_until_s = 0.0
        self._timer = Timer(self, lambda: self.in_main(self._due))
        self._turning = False
        self.openings: Counter[str] = Counter()
        """How often each worker has connected."""
        self.later(self.clock.rng.uniform(0.01, 0.05), self._begin_to_live)

    def __repr__(self) -> str:
        what = "halted" if self._halted else "serving" if self._serving else "waiting"
        return f"{super().__repr__()} {what} {self.version} of {self.generation}"

    @property
    def version(self) -> int:
        return self._serving.version if self._serving else self._tick

    def _begin_to_live(self) -> None:
        self._join()
        self.start_heartbeats()

    def _join(self) -> None:
        self.send(Join(name=self.name, role="server", host="", pid=1, endpoint=self.name))

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(name=self.name, tick=self.version, generation=self.generation)

    # --- the loop --------------------------------------------------------------------------------

    def _turned(self) -> None:
        """The end of each turn."""
        if not self.alive:
            return
        if self._serving:
            self._serving.turn()
            self._timer.set(self._serving.due_s())
        if not self._halted and not self._turning and self.keeping.busy:
            self._turning = True
            self.later(0.0, lambda: self.in_main(self._keep))

    def _keep(self) -> None:
        self._turning = False
        if not self._halted and self.keeping.busy:
            self.keeping.turn()
        self._turned()

    def _due(self) -> None:
        if self._serving:
            self._serving.handle(st.TimeEvent())
        self._turned()

    # --- the master ------------------------------------------------------------------------------

    def obey(self, message: FromMaster) -> None:
        if isinstance(message, Assignment):
            self._begin(message)
        elif isinstance(message, Halt):
            self._halt(message.generation)
        elif isinstance(message, Beat):
            self._repeat()
        elif isinstance(message, Quit):
            return self.leave()
        elif isinstance(message, (Plan, Cut, Finish, Settled)) and self._serving:
            self._serving.obey(message)
            if isinstance(message, Settled):
                self._written = [written for written in self._written if written.tick > message.tick]
        self._turned()

    def _repeat(self) -> None:
        self._join()
        if self._halted:
            self._offer()
        elif self._ready:
            self.send(Ready(name=self.name, generation=self.generation))
            if self._serving:
                self._serving.repeat()
            for written in self._written:
                self.send(written)
            for member in sorted(self._lost):
                self.send(Lost(name=self.name, member=member))

    def _halt(self, generation: int) -> None:
        if generation <= self.generation or generation < self._halted:
            return
        if not self._halted:
            self._stop()
        self._halted = generation
        self._offer()

    def _offer(self) -> None:
        live = {self._live} if self._live else set()
        held = tuple(sorted(live.union(self.keeping.snapshots.held)))
        for copy in self.keeping.snapshots.held:
            self.keeping.copy_of(*copy)
        self.send(Offer(name=self.name, generation=self._halted, held=held))

    def _tell_lost(self, member: str) -> None:
        if not self._halted and member not in self._lost:
            self._lost.add(member)
            self.send(Lost(name=self.name, member=member))

    # --- generations -----------------------------------------------------------------------------

    def _stop(self) -> None:
        self._ready = False
        if self._serving and self._now and self._store:
            self._tick = self._serving.version
            whole = not self._serving.diverged and self._store.is_whole(
                self._tick, self._now.row.parcels[self._now.place]
            )
            self._live = (self._now.place, self._tick) if whole else None
        self._serving = self._fetching = None
        self._timer.set(None)
        self._loads += 1

    def _begin(self, assignment: Assignment) -> None:
        if assignment.generation <= self.generation or assignment.generation < self._halted:
            return
        self._stop()
        self._now = now = Generation(self.world, assignment, self.name)
        self.generation, self._halted, self._tick = assignment.generation, 0, assignment.start_tick
        self.key = self.world.laws.key_of(self, now.names)
        self._lost.clear()
        self._written.clear()
        self._enter_ways()
        self.keeping.enter(now.row, now.start, assignment.snapshot_s)
        self._link(*now.linked)
        live, self._live = self._live, None
        if not now.info.chunks:
            self._store = None
            self._tell_ready()
        elif now.start is not None:
            self._go_on(now, now.start, live)
        elif assignment.restore_step is not None:
            self._load(now, assignment.restore_step)
        else:
            self._serve(now, Store(), None)

    def _go_on(self, now: Generation, start: int, live: sn.Copy | None) -> None:
        found = self.keeping.copy_of(now.place, start)
        if self._store and live == (now.place, start):
            copy = self._store.copy(start)
            assert copy == self.world.truth.copy(now.place, start), f"{self.name} goes on from another"
            self._store.go_back_to(start, copy)
            self._serve(now, self._store, start)
        elif found and found[0] is self._store and self._store:
            self._store.go_back_to(start, found[1])
            self._serve(now, self._store, start)
        elif found:
            self._serve(now, self._filled(start, found[1]), start)
        else:
            self._fetch(now, start)

    def _filled(self, start: int, copy: list[Parcel]) -> Store:
        store = Store()
        for parcel, each in enumerate(copy):
            store.fill(start, parcel, each)
        return store

    def _fetch(self, now: Generation, start: int) -> None:
        holder = now.info.holder
        assert holder in now.names and holder != self.name, f"nobody has {start} of place {now.place}"
        self._store = None
        self._link(holder)
        self._fetching = holder, {}
        self.tell(holder, Fetch(place=now.place, version=start))

    def _load(self, now: Generation, step: int) -> None:
        def load() -> None:
            if loads == self._loads:
                assert step >= self.world.storage.oldest_step, f"the checkpoint at step {step} is gone"
                commit = self.world.storage.commits[step]
                assert commit.tick == start, f"step {step} is tick {commit.tick}, not {start}"
                self._serve(now, self._filled(start, commit.copies[now.place]), start)
                self._turned()

        self._store, start, loads = None, now.assignment.start_tick, self._loads
        self.later(self.clock.rng.uniform(0.0, 2 * self.world.shape.write_s), lambda: self.in_main(load))

    def _serve(self, now: Generation, store: Store, start: int | None) -> None:
        self._store = self.keeping.store = store
        self._serving = Serving(self, now, store, start)
        for name in self._peers:
            if name not in now.names:
                self._serving.handle(st.OpenedEvent(name))
        self._tell_ready()
        if now.start is not None:
            self.keeping.made(now.start)
            if self._serving.finished or now.assignment.ends:
                self.made(st.VersionAction(now.start, cut=True, snapshot=False, last=True))

    def _tell_ready(self) -> None:
        self._ready = True
        self.send(Ready(name=self.name, generation=self.generation))

    def made(self, action: st.VersionAction) -> None:
        """A version is whole."""
        assert self._now and self._store
        if action.cut:
            self._write(self._now, action, self._store.copy(action.version))
        if action.snapshot:
            self.keeping.made(action.version)

    # --- parts -----------------------------------------------------------------------------------

    def _write(self, now: Generation, action: st.VersionAction, copy: list[Parcel]) -> None:
        """One after the other; what fails in a generation that is over is given up."""
        clock, shape = self.clock, self.world.shape
        generation, name = self.generation, part_name(self.generation, self.name)
        fails = clock.rng.random() < shape.failing and not action.last

        def done() -> None:
            part = None if fails else Part(name, 1, {})
            if part:
                self.world.storage.files[self._step(action), name] = action.version, now.place, copy
            written = Written(
                name=self.name,
                generation=generation,
                tick=action.version,
                last=action.last,
                part=part,
                error="the disk is full" if fails else "",
            )
            if generation == self.generation:
                self._written = [*self._written, written][-REMEMBERED:]
            if fails:
                self.send(Troubled(name=self.name, text="the disk is full"))
            self.send(written)

        self._writes_until_s = max(self._writes_until_s, clock.now_s) + clock.rng.uniform(0, shape.write_s)
        self.later(self._writes_until_s - clock.now_s, lambda: self.in_main(done))

    def _step(self, action: st.VersionAction) -> int:
        return self.world.shape.schedule.steps_before(action.version)

    # --- connections -----------------------------------------------------------------------------

    def _enter_ways(self) -> None:
        """``Ways.enter`` and ``DataListener.enter``."""
        for link in list(self.links.values()):
            link.close(self, lossy=True)
        for known in (self.links, self._peers, self._known, self._proved):
            known.clear()
        early, self._early = self._early, {}
        for connection, hello in early.items():
            self._greet(connection, hello)

    def _link(self, *names: str) -> None:
        for name in names:
            if name not in self.links:
                link = self.links[name] = self.world.connect(
                    self, name, partial(self._hear_link, name), self.generation
                )
                link.up.send(Hello(name=self.name, generation=self.generation, nonce=b""))

    def tell(self, name: str, message: Any) -> None:
        """To a server that this one has connected to."""
        if name in self.links:
            self.links[name].say((message, None))

    def answer(self, name: str, message: Any, arrays: Any = ()) -> None:
        """To somebody who has connected to this server."""
        if name in self._peers:
            self._peers[name].down.send((message, arrays))

    def _greet(self, connection: Connection, hello: Hello) -> None:
        if hello.generation > self.generation:
            self._early[connection] = hello
        elif hello.generation == self.generation > 0:
            self._known[connection] = hello.name
            connection.down.send((Welcome(nonce=b""), ()))

    def take(self, connection: Connection, message: Any) -> None:
        """From somebody who has connected to this server; the main thread reads it."""
        self.in_main(partial(self._take, connection, message))

    def _take(self, connection: Connection, message: Any) -> None:
        if message is CLOSED:
            self._early.pop(connection, None)
            name = self._known.pop(connection, "")
            if name and connection in self._proved:
                del self._proved[connection]
                if self._peers.get(name) is connection:
                    del self._peers[name]
                    self._closed(name)
        elif connection not in self._known:
            if isinstance(message, Hello) and connection not in self._early:
                self._greet(connection, message)
        else:
            name = self._known[connection]
            assert connection.generation == self.generation
            if connection not in self._proved:
                self._proved[connection] = None
                self._peers[name] = connection
                self._opened(name)
            if not self._halted:
                self._receive(name, *message)
        self._turned()

    def _opened(self, name: str) -> None:
        self.openings[name] += 1
        if not self._halted and self._serving and self._now and name not in self._now.names:
            self._serving.handle(st.OpenedEvent(name))

    def _closed(self, name: str) -> None:
        if self._halted or not self._now:
            return
        if name in self._now.names:
            self._tell_lost(name)
        elif self._serving:
            self._serving.handle(st.ClosedEvent(name))
            if self._now.row.leads:
                self.send(Lost(name=self.name, member=name))

    def _receive(self, name: str, message: Any, arrays: Any) -> None:
        if isinstance(message, (Push, Pull, Initial)) and self._serving:
            self._serving.receive(name, message, arrays)
        elif isinstance(message, (Keep, Safe, Fetch)):
            self.keeping.receive(name, message, arrays)
        elif isinstance(message, Norms) and self._serving:
            self._serving.take_norms(name, message)
        else:
            raise AssertionError(f"{self} drops a message of {name}: {message}")

    def _hear_link(self, name: str, connection: Connection, message: Any) -> None:
        """From a server that this one has connected to."""
        self.in_main(partial(self._take_link, name, connection, message))

    def _take_link(self, name: str, connection: Connection, message: Any) -> None:
        if self.links.get(name) is not connection:
            return
        if message is CLOSED:
            del self.links[name]
            self._tell_lost(name)
        elif isinstance(message[0], Welcome):
            connection.greet()
        elif not self._halted:
            self._hear_server(name, *message)
        self._turned()

    def _hear_server(self, name: str, message: Any, arrays: Any) -> None:
        if isinstance(message, (Kept, AllSafe)):
            self.keeping.receive(name, message)
        elif isinstance(message, Clip) and self._serving:
            self._serving.handle(st.ClipEvent(message.tick, message.norm, message.skip))
        elif isinstance(message, State) and self._fetching and self._fetching[0] == name:
            self._take_state(name, self._fetching[1], message, arrays)
        else:
            raise AssertionError(f"{self} drops a message of {name}: {message}")

    def _take_state(self, holder: str, parcels: dict[int, Parcel], message: State, arrays: Parcel) -> None:
        now = self._now
        assert now and (message.place, message.version) == (now.place, now.start)
        parcels[message.parcel] = arrays
        if len(parcels) == now.row.parcels[now.place]:
            copy = [parcels[number] for number in sorted(parcels)]
            assert copy == self.world.truth.copy(now.place, message.version), f"{self.name} got another copy"
            self._fetching = None
            self.keeping.snapshots.fetched(message.version, holder)
            self._serve(now, self._filled(message.version, copy), message.version)
