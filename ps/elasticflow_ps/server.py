"""The parameter server's process, through all the generations that it lives in.

    joining ── Assignment ──> getting its chunks ── Ready ──> serving, or standing by
                   ^                   │                          │
                   └── Offer ─── halted <───────── Halt ──────────┘          and Quit at any time

Each generation has connections of its own. What a process keeps from one to the next is its memory: the
store, as it stands, and snapshots. Whatever it has told the master and still holds it can tell again.
"""

from __future__ import annotations

import os
import resource
import socket as sockets
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import zmq

from elasticflow.checkpoint import folder_of
from elasticflow.cluster.member import MasterLink
from elasticflow.errors import CheckpointError, ProtocolError
from elasticflow.process.available import available_memory
from elasticflow.process.fingerprint import OURS, own_code
from elasticflow.process.network import own_address
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Layout
from elasticflow.storage import Storage
from elasticflow.wire.data import Closed, DataListener, Opened, Received
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import (
    AllSafe,
    Assignment,
    Beat,
    Clip,
    Cut,
    Failed,
    Fetch,
    Finish,
    FromMaster,
    FromServer,
    Gone,
    Halt,
    Heartbeat,
    Initial,
    Join,
    Keep,
    Kept,
    Leaving,
    Lend,
    Lost,
    Mapped,
    Norms,
    Offer,
    Plan,
    Pull,
    Push,
    Quit,
    Read,
    Ready,
    Safe,
    Settled,
    State,
    ToMaster,
    ToServer,
    Troubled,
)  # fmt: skip
from elasticflow.wire.sockets import Context, poll_ms
from elasticflow_ps import native
from elasticflow_ps import state as st
from elasticflow_ps.compression import compression_of
from elasticflow_ps.keeping import Keeping
from elasticflow_ps.neighbours import Neighbours
from elasticflow_ps.optimizers import Kernel, kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.parts import Parts
from elasticflow_ps.row_files import changes
from elasticflow_ps.serving import Evaluations, Serving, agrees, norm_chunks_of
from elasticflow_ps.snapshots import Copy, ServerRow
from elasticflow_ps.sources import Fetching, Loading
from elasticflow_ps.store import Snapshot, Store
from elasticflow_ps.tables import tables_of
from elasticflow_ps.ways import Ways


class MasterLine(Protocol):
    """What a server needs of its ``MasterLink``."""

    @property
    def wake_fd(self) -> int: ...

    def send(self, message: ToMaster) -> None: ...

    def start_heartbeats(self) -> None: ...

    def received(self) -> list[FromMaster]: ...


class _Generation:
    """What follows from an Assignment for one of the servers in it. lends: see ``Store``."""

    def __init__(self, assignment: Assignment, name: str, *, lends: bool) -> None:
        self.assignment, self._lends = assignment, lends
        infos, spec = assignment.servers, assignment.spec
        self.place = [info.name for info in infos].index(name)
        self.info = infos[self.place]
        self.layout = Layout(spec.entries)
        self.kernel: Kernel = kernel_for(spec.optimizer)
        self.parcels = [parcels_of(self.layout, info.chunks) if info.chunks else [] for info in infos]
        self.shapes = [[parcel.copied(self.kernel.slots) for parcel in parcels] for parcels in self.parcels]
        self.copy_bytes = [sum(span.num_bytes for shape in each for span in shape) for each in self.shapes]
        """Of a copy of all of a place's chunks."""
        self.start = assignment.start_tick if assignment.in_memory else None
        """The version to go on from in memory."""
        self.row = ServerRow(
            names=tuple(info.name for info in infos),
            parcels=tuple(len(parcels) for parcels in self.parcels),
            place=self.place,
            last_version=assignment.schedule.total_ticks,
            snapshots=assignment.snapshot_s > 0,
        )
        keeper, asks = self.row.keeper(self.place), agrees(assignment)
        leader = infos[0].name if self.info.chunks and self.place > 0 and (keeper or asks) else ""
        self.linked = [info for info in infos if info.name in (keeper, leader)]
        """The servers that this one connects to."""

    def new_store(self) -> Store:
        """With slots as they are before the first update, and without values."""
        parcels, assignment = self.parcels[self.place], self.assignment
        spec = assignment.spec
        tables = tables_of(self.layout, spec.tables, spec.optimizer, parcels, assignment.seed)
        return Store(parcels, self.kernel, lends=self._lends, tables=tables)


class ParameterServer:
    """One parameter server's process. ``endpoint`` is where ``listener`` is reached."""

    def __init__(
        self,
        settings: MemberSettings,
        keys: MemberKeys,
        storage: Storage,
        context: Context,
        listener: DataListener,
        master: MasterLine,
    ) -> None:
        self.name = settings.name
        self._settings, self._storage = settings, storage
        self._compression = compression_of(settings)
        self._listener, self._master = listener, master
        self._join = Join(
            name=self.name,
            role="server",
            host=sockets.gethostname(),
            pid=os.getpid(),
            endpoint=f"tcp://{settings.host}:{listener.port}",
            available_bytes=available_memory(),
            fingerprint={OURS: own_code()},
        )
        self._ways = Ways(settings, keys, context, listener)
        self._neighbours = Neighbours(self._ways)
        self._keeping = Keeping(self._ways)
        self._parts = Parts(self.name, storage, settings.storage_patience_s, master.send)
        self._evaluations: Evaluations = {}
        self._generation = 0
        """Of the last assignment that was taken up."""
        self._halted = 0
        """The generation to come; 0: none."""
        self._now: _Generation | None = None
        self._store: Store | None = None
        self._live: Copy | None = None
        """What of ``store`` can be gone on from, while this server is halted."""
        self._serving: Serving | None = None
        self._fetching: Fetching | None = None
        self._loading: Loading | None = None
        self._ready = False
        self._tick = 0
        self._lost: set[str] = set()
        self._dropped = 0
        self._quit = False
        self._poller, self._polled = zmq.Poller(), list[Any]()

    def heartbeat(self) -> Heartbeat:
        """May be called by any thread."""
        serving = self._serving
        dropped = self._dropped + self._ways.dropped + self._keeping.dropped
        return Heartbeat(
            name=self.name,
            tick=serving.version if serving else self._tick,
            generation=self._generation,
            dropped=dropped + (serving.dropped if serving else 0),
            refused=self._listener.refused,
            memory_bytes=self._memory_bytes(),
        )

    @property
    def doing(self) -> str:
        """What it does or waits for, in words that follow its name. For any thread."""
        if self._halted:
            return f"has halted, and waits for generation {self._halted}"
        if self._loading or self._fetching:
            return "gets its chunks"
        return self._serving.doing if self._serving else "stands by"

    def _memory_bytes(self) -> int:
        """Of the store, and of the copies that are kept for another server. For any thread."""
        now, store = self._now, self._store
        kept = [place for place, _ in self._keeping.snapshots.held if now and place != now.place]
        return (store.num_bytes if store else 0) + sum(now.copy_bytes[place] for place in kept if now)

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Joins, and does what it is told until the master says Quit."""
        self._master.send(self._join)
        self._master.start_heartbeats()
        while not self._quit:
            self._turn(self._wait())

    def close(self) -> None:
        """Lets go of all connections, and waits for nothing."""
        self._stop()
        for name in list(self._ways.links):
            self._ways.drop(name)
        self._parts.close()

    def _wait(self) -> set[object]:
        sources: list[Any] = [self._listener.socket, self._listener.monitor]
        sources += [self._master.wake_fd, self._parts.fd]
        sources += [source for link in self._ways.links.values() for source in link.sources]
        sources += [self._loading.fd] if self._loading else []
        if sources != self._polled:
            self._polled, self._poller = sources, zmq.Poller()
            for source in sources:
                self._poller.register(source, zmq.POLLIN)
        return {source for source, _ in self._poller.poll(poll_ms(self._timeout_s()))}

    def _timeout_s(self) -> float | None:
        if self._halted:
            return None
        if self._keeping.busy:
            return 0.0
        due_s = self._serving.due_s() if self._serving else None
        return None if due_s is None else due_s - time.monotonic()

    def _turn(self, ready: set[object]) -> None:
        if self._listener.socket in ready or self._listener.monitor in ready:
            for news in self._listener.receive():
                self._take(news)
            for closed in self._listener.closed():
                self._take(closed)
        for link in list(self._ways.links.values()):
            if not ready.isdisjoint(link.sources):
                for message, frames in link.receive():
                    self._guarded(self._hear, link.name, message, frames)
                if link.is_closed():
                    self._ways.drop(link.name)
                    self._tell_lost(link.name)
        if self._parts.fd in ready:
            self._parts.turn()
        if self._loading and self._loading.fd in ready:
            self._loading.turn()
        if self._master.wake_fd in ready:
            for order in self._master.received():
                self._obey(order)
        if self._serving:
            self._serving.turn()
        if not self._halted:
            self._keeping.turn()

    def _guarded(self, take: Callable[..., None], *arguments: Any) -> None:
        """Drops, and counts, a message that makes no sense."""
        try:
            take(*arguments)
        except ProtocolError:
            self._dropped += 1

    # --- the master ------------------------------------------------------------------------------

    def _obey(self, message: FromMaster) -> None:
        if isinstance(message, Assignment):
            self._begin(message)
        elif isinstance(message, Halt):
            self._halt(message.generation)
        elif isinstance(message, Beat):
            self._repeat()
        elif isinstance(message, Quit):
            self._quit = True
        elif isinstance(message, (Plan, Cut, Finish, Settled)) and self._serving:
            self._serving.obey(message)
            if isinstance(message, Settled):
                self._parts.settled(message.tick)

    def _repeat(self) -> None:
        """There is another master: it may not have heard what the one before was told."""
        self._master.send(self._join)
        if self._halted:
            return self._offer()
        for member in sorted(self._lost):
            self._master.send(Lost(name=self.name, member=member))
        if self._ready:
            self._master.send(Ready(name=self.name, generation=self._generation))
            if self._serving:
                self._serving.repeat()
            self._parts.repeat()

    def _halt(self, generation: int) -> None:
        if generation <= self._generation or generation < self._halted:
            return  # from before the last assignment
        if not self._halted:
            self._stop()
        self._halted = generation
        self._offer()

    def _offer(self) -> None:
        live = {self._live} if self._live else set()
        held = tuple(sorted(live.union(self._keeping.snapshots.held)))
        self._master.send(Offer(name=self.name, generation=self._halted, held=held))

    def _tell_lost(self, member: str) -> None:
        """Once the server is halted, connections close because the others have gone on already."""
        if not self._halted and member not in self._lost:
            self._lost.add(member)
            self._master.send(Lost(name=self.name, member=member))

    # --- generations -----------------------------------------------------------------------------

    def _stop(self) -> None:
        """From here on nothing is applied, and nothing taken in."""
        self._ready = False
        if self._serving and self._now and self._store:
            self._tick = self._serving.version
            whole = not self._serving.diverged and self._store.is_whole(self._tick)
            self._live = (self._now.place, self._tick) if whole else None
        self._serving = self._fetching = None
        self._stop_loading()

    def _stop_loading(self) -> None:
        if self._loading:
            self._loading.close()
            self._loading = None

    def _begin(self, assignment: Assignment) -> None:
        """Takes up a new generation, with the chunks at hand if possible."""
        if assignment.generation <= self._generation or assignment.generation < self._halted:
            return
        self._stop()
        lends = self._settings.shared_memory and self._compression.lends
        self._now = now = _Generation(assignment, self.name, lends=lends)
        self._generation, self._halted, self._tick = assignment.generation, 0, assignment.start_tick
        self._lost.clear()
        self._parts.enter(self._generation)
        self._ways.enter(self._generation)
        self._neighbours.enter(now.layout)
        self._keeping.enter(now.row, now.shapes, now.start, assignment.snapshot_s)
        self._ways.connect(now.linked)
        live, self._live = self._live, None
        if not now.info.chunks:
            self._store = None
            self._tell_ready()
        elif now.start is not None:
            self._go_on(now, now.start, live)
        elif assignment.restore_step is not None:
            self._load(now, assignment.restore_step)
        else:
            self._serve(now, now.new_store(), None)

    def _go_on(self, now: _Generation, start: int, live: Copy | None) -> None:
        """From a version that is in somebody's memory."""
        copy = self._keeping.copy_of(now.place, start)
        if self._store and live == (now.place, start):
            self._store.stay_at(start)
            self._serve(now, self._store, start)
        elif isinstance(copy, Snapshot) and copy.store is self._store:
            self._store.go_back_to(copy)
            self._serve(now, self._store, start)
        elif copy:
            store = now.new_store()
            for parcel in store.parcels:
                store.fill(start, parcel, copy.arrays(parcel.number))
            self._serve(now, store, start)
        else:
            self._fetch(now, start)

    def _fetch(self, now: _Generation, start: int) -> None:
        holders = [info for info in now.assignment.servers if info.name == now.info.holder]
        if not holders or now.info.holder == self.name:
            raise CheckpointError(f"nobody is named who has version {start} of place {now.place}")
        self._store = self._keeping.store = None  # there is no room for two
        self._ways.connect(holders)
        link = self._ways.links[now.info.holder]
        self._fetching = Fetching(link, now.place, start, now.new_store(), now.shapes[now.place])

    def _load(self, now: _Generation, step: int) -> None:
        start = now.assignment.start_tick

        def done(store: Store | None, error: str) -> None:
            self._stop_loading()
            if store is None:
                raise CheckpointError(error)
            self._serve(now, store, start)

        def trouble(text: str) -> None:
            self._master.send(Troubled(name=self.name, text=text))

        self._store = self._keeping.store = None  # there is no room for two
        patience_s = self._settings.storage_patience_s
        self._loading = Loading(self._storage, patience_s, step, start, now.new_store, done, trouble)

    def _serve(self, now: _Generation, store: Store, start: int | None) -> None:
        """The chunks are there."""
        self._store = self._keeping.store = store
        self._evaluations = {t: values for t, values in self._evaluations.items() if t < (start or 0)}
        self._serving = Serving(
            now.assignment,
            now.row,
            store,
            start,
            ways=self._ways,
            neighbours=self._neighbours,
            snapshots=self._keeping.snapshots,
            evaluations=self._evaluations,
            norm_chunks=norm_chunks_of(now.assignment, now.layout),
            made=self._made,
            send=self._master.send,
            compression=self._compression,
        )
        for name in self._ways.peers.keys() - set(now.row.names):
            self._serving.opened(name)
        self._tell_ready()
        if now.start is not None:
            self._keeping.made(now.start)
            if self._serving.finished or now.assignment.ends:  # its parts are those of one that is over
                self._made(st.VersionAction(now.start, cut=True, snapshot=False, last=True))

    def _tell_ready(self) -> None:
        self._ready = True
        self._master.send(Ready(name=self.name, generation=self._generation))

    def _made(self, action: st.VersionAction) -> None:
        """A version is whole: holds it, as far as that is wanted."""
        assert self._now and self._store
        if action.cut:
            begun_s, step = time.monotonic(), self._now.assignment.schedule.steps_before(action.version)
            snapshot, rows = self._store.snapshot(action.version), changes(self._store, step)
            copy_s, layout = time.monotonic() - begun_s, self._now.layout
            self._parts.write(layout, folder_of(step), snapshot, rows, last=action.last, copy_s=copy_s)
        if action.snapshot:
            self._keeping.made(action.version)

    # --- other servers, and workers --------------------------------------------------------------

    def _take(self, news: Opened | Closed | Received) -> None:
        """From somebody who has connected to this server."""
        name = news.peer.name
        changed = isinstance(news, Received) or self._ways.note(news)
        if changed and not isinstance(news, Received):
            self._neighbours.closed(name)  # who has come again may have let go of another connection before
        if self._halted or not changed or not self._now:
            return
        if isinstance(news, Received):
            self._guarded(self._receive, name, news.message, news.frames)
        elif name in self._now.row.names:
            if isinstance(news, Closed):
                self._tell_lost(name)
        elif self._serving and isinstance(news, Opened):
            self._serving.opened(name)
        elif self._serving:
            self._serving.closed(name)
            if self._now.row.leads:
                self._master.send(Lost(name=self.name, member=name))

    def _receive(self, name: str, message: ToServer, frames: list[memoryview]) -> None:
        if isinstance(message, (Keep, Safe, Fetch)):
            self._keeping.receive(name, message, frames)
        elif isinstance(message, (Lend, Mapped)):
            self._neighbours.receive(name, message)
        elif isinstance(message, Norms) and self._serving:
            self._serving.take_norms(name, message)
        elif isinstance(message, (Push, Pull, Initial, Read)) and self._serving:
            self._serving.receive(name, message, frames)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this server")

    def _hear(self, name: str, message: FromServer, frames: list[memoryview]) -> None:
        """From a server that this one has connected to."""
        assert self._now
        if self._halted:
            return
        if isinstance(message, (Kept, AllSafe)):
            self._keeping.receive(name, message)
        elif isinstance(message, Clip) and self._serving and name == self._now.row.names[0]:
            self._serving.clip(message)
        elif isinstance(message, (State, Gone)) and self._fetching and name == self._fetching.holder:
            self._take_state(self._now, self._fetching, message, frames)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this server")

    def _take_state(
        self, now: _Generation, fetching: Fetching, message: State | Gone, frames: Sequence[memoryview]
    ) -> None:
        fetching.receive(message, frames)
        if fetching.complete:
            self._fetching = None
            self._keeping.snapshots.fetched(now.assignment.start_tick, fetching.holder)
            self._serve(now, fetching.store, now.assignment.start_tick)


def _host_of(endpoint: str) -> str:
    return endpoint.removeprefix("tcp://").rpartition(":")[0]


def main(settings: MemberSettings, keys: MemberKeys, storage: Storage) -> None:
    """A parameter server's whole life."""
    native.set_threads(settings.server_threads)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # connections, and memory that is lent, take many
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context: Context = zmq.Context()
    gate = admit_only_members(context, keys)
    settings = msgspec.structs.replace(settings, host=own_address(settings.host, _host_of(settings.master)))
    listener = DataListener(context, keys, settings.host, 0, settings.encrypt_data)
    link = MasterLink.of(settings, keys, lambda: server.heartbeat(), lambda: server.doing)
    server = ParameterServer(settings, keys, storage, context, listener, link)
    try:
        server.run()
        link.send(Leaving(name=settings.name))
    except Exception as error:
        text = traceback.format_exc()
        link.send(Failed(name=settings.name, kind=type(error).__name__, text=str(error), traceback=text))
        raise
    finally:
        server.close()
        link.close()
        gate.stop()
