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
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import zmq

from elasticflow.checkpoint import folder_of
from elasticflow.cluster.member import MasterLink
from elasticflow.errors import ProtocolError
from elasticflow.process.available import available_memory
from elasticflow.process.fingerprint import OURS, own_code
from elasticflow.process.network import own_address
from elasticflow.run.settings import MemberSettings
from elasticflow.storage import Storage
from elasticflow.wire.data import Closed, DataListener, Opened, Received
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MemberKeys, role_of
from elasticflow.wire.messages import (
    Advise,
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
    Pause,
    Plan,
    Pull,
    Push,
    Quit,
    Read,
    RelayInfo,
    Safe,
    Settled,
    State,
    ToMaster,
    ToServer,
    Troubled,
)  # fmt: skip
from elasticflow.wire.polling import Polling
from elasticflow.wire.sockets import Context
from elasticflow_ps import native
from elasticflow_ps import state as st
from elasticflow_ps.chunks import Chunks
from elasticflow_ps.decisions import Decisions
from elasticflow_ps.generation import Generation
from elasticflow_ps.keeping import Keeping
from elasticflow_ps.membership import Membership
from elasticflow_ps.neighbours import Neighbours
from elasticflow_ps.parts import Parts
from elasticflow_ps.relaying import Relaying
from elasticflow_ps.row_files import changes
from elasticflow_ps.serving import Serving
from elasticflow_ps.store import Store
from elasticflow_ps.ways import Ways


class MasterLine(Protocol):
    """What a server needs of its ``MasterLink``."""

    @property
    def wake_fd(self) -> int: ...

    def send(self, message: ToMaster) -> None: ...

    def start_heartbeats(self) -> None: ...

    def received(self) -> list[FromMaster]: ...


class ParameterServer:
    """One parameter server's process, or that of a relay. ``endpoint`` is where ``listener`` is reached."""

    def __init__(
        self,
        settings: MemberSettings,
        storage: Storage,
        context: Context,
        listener: DataListener,
        master: MasterLine,
    ) -> None:
        self._settings, self._master = settings, master
        join = Join(
            name=settings.name,
            role="server",
            host=sockets.gethostname(),
            pid=os.getpid(),
            endpoint=f"tcp://{settings.host}:{listener.port}",
            available_bytes=available_memory(),
            fingerprint={OURS: own_code()},
        )
        self._membership = Membership(join, master.send)
        self._ways = Ways(settings, context, listener)
        self._neighbours = Neighbours(self._ways)
        self._decisions = Decisions()
        self._keeping = Keeping(self._ways, self._decisions)
        patience_s = settings.storage_patience_s
        self._chunks = Chunks(storage, patience_s, self._ways, self._keeping, self._serve, self._tell_trouble)
        alone = not settings.checkpoint_place
        self._parts = Parts(settings.name, storage, patience_s, master.send, alone=alone)
        self._now: Generation | None = None
        self._serving: Serving | None = None
        self._relaying: Relaying | None = None
        self._dropped = 0
        self._quit = False
        self._polling = Polling()

    def heartbeat(self) -> Heartbeat:
        """May be called by any thread."""
        at_work = self._at_work
        dropped = self._dropped + self._ways.dropped + self._keeping.dropped
        return Heartbeat(
            name=self._settings.name,
            tick=at_work.version if at_work else self._membership.tick,
            generation=self._membership.generation,
            dropped=dropped + (at_work.dropped if at_work else 0),
            refused=self._ways.listener.refused,
            memory_bytes=self._memory_bytes(),
        )

    @property
    def doing(self) -> str:
        """What it does or waits for, in words that follow its name. For any thread."""
        if halted := self._membership.halted:
            return f"has halted, and waits for generation {halted}"
        if self._chunks.coming:
            return "gets its chunks"
        at_work = self._at_work
        return at_work.doing if at_work else "stands by"

    @property
    def _at_work(self) -> Serving | Relaying | None:
        """What it does in this generation; None: it stands by, waits for its chunks, or has halted."""
        return self._serving or self._relaying

    def _memory_bytes(self) -> int:
        """Of the store, and of the copies that are kept for another server. For any thread."""
        now, store = self._now, self._chunks.store
        kept = [place for place, _ in self._keeping.snapshots.held if now and place != now.place]
        return (store.num_bytes if store else 0) + sum(now.copy_bytes[place] for place in kept if now)

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Joins, and does what it is told until the master says Quit."""
        self._membership.join()
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
        sources: list[Any] = [self._ways.listener.socket, self._ways.listener.monitor]
        sources += [self._master.wake_fd, self._parts.fd]
        sources += [source for link in self._ways.links.values() for source in link.sources]
        sources += [] if self._chunks.fd is None else [self._chunks.fd]
        return self._polling.wait(sources, self._timeout_s())

    def _timeout_s(self) -> float | None:
        # Who has halted sends nothing of its own: the master, who halted it, has the next word.
        if self._membership.halted:
            return None
        # A snapshot leaves one parcel a turn: pushes and pulls that have come are served in between.
        if self._keeping.busy:
            return 0.0
        at_work = self._at_work
        due_s = at_work.due_s() if at_work else None
        return None if due_s is None else due_s - time.monotonic()

    def _turn(self, ready: set[object]) -> None:
        if self._ways.listener.socket in ready or self._ways.listener.monitor in ready:
            for news in self._ways.listener.receive():
                self._take(news)
                if isinstance(news, Received) and not news.more:
                    self._ways.flush()
            # Last words come before the end of who said them.
            for closed in self._ways.listener.closed():
                self._take(closed)
        for link in list(self._ways.links.values()):
            if not ready.isdisjoint(link.sources):
                for message, frames in link.receive():
                    self._guarded(self._hear, link.name, message, frames)
                if link.is_closed():
                    self._ways.drop(link.name)
                    self._membership.tell_lost(link.name)
        if self._parts.fd in ready:
            self._parts.turn()
        if self._chunks.fd in ready:
            self._chunks.turn()
        if self._master.wake_fd in ready:
            for order in self._master.received():
                self._obey(order)
        if at_work := self._at_work:
            at_work.turn()
        self._ways.flush()
        if not self._membership.halted:
            self._keeping.turn()
            self._ways.flush()

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
        elif isinstance(message, (Plan, Cut, Finish, Pause, Settled)) and self._serving:
            self._serving.obey(message)
            if isinstance(message, Settled):
                self._parts.settled(message.tick)

    def _repeat(self) -> None:
        """There is another master: it may not have heard what the one before was told."""
        self._membership.join()
        # Before its first plan is obeyed, whose number may be lower than that of the last one.
        if self._serving:
            self._serving.follow()
        if self._membership.halted:
            return self._offer(self._membership.halted)
        self._membership.repeat()
        if self._membership.ready:
            if self._serving:
                self._serving.repeat()
            self._parts.repeat()

    def _halt(self, generation: int) -> None:
        if self._membership.is_news(generation):
            if not self._membership.halted:
                self._stop()
            self._offer(generation)

    def _offer(self, generation: int) -> None:
        live = {self._chunks.live} if self._chunks.live else set()
        self._membership.offer(generation, live.union(self._keeping.snapshots.held), self._decisions)

    def _tell_trouble(self, text: str) -> None:
        self._master.send(Troubled(name=self._settings.name, text=text))

    # --- generations -----------------------------------------------------------------------------

    def _stop(self) -> None:
        """From here on nothing is applied, and nothing taken in."""
        if self._serving and self._now:
            # Heartbeats go on, and the master still wants to see how far it had come.
            self._membership.tick = newest = self._serving.version
            self._chunks.stopped((self._now.place, newest), sound=not self._serving.diverged)
        elif self._relaying:
            self._membership.tick = self._relaying.version
        self._serving = self._relaying = None
        self._chunks.stop()

    def _begin(self, assignment: Assignment) -> None:
        """Takes up a new generation, with the chunks at hand if possible."""
        if not self._membership.is_news(assignment.generation):
            return
        self._stop()
        self._membership.begin(assignment.generation, assignment.start_tick)
        for info in assignment.relays:
            if info.name == self._settings.name:
                return self._relay(info, assignment)
        self._now = now = Generation(assignment, self._settings)
        self._decisions.begin(assignment.standing)
        self._parts.enter(assignment.generation)
        self._ways.enter(assignment)
        self._neighbours.enter(now.layout)
        self._keeping.enter(now.row, now.shapes, now.start, assignment.snapshot_s, assignment.snapshot_every)
        self._ways.connect(now.linked)
        if now.info.chunks:
            self._chunks.get(now)
        else:
            if now.info.leaves and now.start is not None:
                self._chunks.lend(now.start)
            self._chunks.let_go()
            self._membership.tell_ready()

    def _relay(self, info: RelayInfo, assignment: Assignment) -> None:
        """Stands for a server, to a group of workers."""
        self._ways.enter(assignment)
        self._relaying = Relaying(info, assignment, self._settings, self._ways, self._neighbours)
        self._membership.tell_ready()

    def _serve(self, store: Store, start: int | None) -> None:
        """The chunks are there."""
        now = self._now
        assert now
        self._decisions.go_on_from(start or 0)
        self._serving = Serving(
            now.assignment,
            now.row,
            store,
            start,
            layout=now.layout,
            ways=self._ways,
            neighbours=self._neighbours,
            snapshots=self._keeping.snapshots,
            decisions=self._decisions,
            made=self._made,
            send=self._master.send,
            compression=now.compression,
            relays=now.relays,
        )
        # They connected while the chunks were still on their way.
        for name in self._ways.peers.keys() - set(now.row.names):
            self._serving.opened(name)
        self._membership.tell_ready()
        if now.start is not None:
            self._keeping.made(now.start)
            if self._serving.finished or now.assignment.ends:  # its parts are those of one that is over
                self._made(st.VersionAction(now.start, cut=True, snapshot=False, last=True))

    def _made(self, action: st.VersionAction) -> None:
        """A version is whole: holds it, as far as that is wanted."""
        store = self._chunks.store
        assert self._now and store
        if action.cut:
            begun_s, step = time.monotonic(), self._now.assignment.schedule.steps_before(action.version)
            # Rows are copied in this turn, too: tables change in place, with the next push that comes.
            snapshot, rows = store.snapshot(action.version), changes(store, step)
            copy_s, layout = time.monotonic() - begun_s, self._now.layout
            standing = self._serving.standing if self._serving else None
            self._parts.write(
                layout, folder_of(step), snapshot, rows, last=action.last, copy_s=copy_s, standing=standing
            )
        if action.snapshot:
            self._keeping.made(action.version)

    # --- other servers, and workers --------------------------------------------------------------

    def _take(self, news: Opened | Closed | Received) -> None:
        """From somebody who has connected to this server."""
        name = news.peer.name
        again = isinstance(news, Opened) and name in self._ways.peers
        changed = isinstance(news, Received) or self._ways.note(news)
        if changed and not isinstance(news, Received):
            self._neighbours.closed(name)  # who has come again may have let go of another connection before
        if self._membership.halted or not changed or not (self._now or self._relaying):
            return
        at_work = self._at_work
        if again and at_work and not (self._now and name in self._now.row.names):
            at_work.closed(name)  # whatever it waits for, it will ask for again
        if self._relaying:
            self._take_for(self._relaying, name, news)
        elif isinstance(news, Received):
            self._guarded(self._receive, name, news.message, news.frames)
        elif self._now and name in self._now.row.names:
            if isinstance(news, Closed):
                self._membership.tell_lost(name)
        elif self._serving and isinstance(news, Opened):
            self._serving.opened(name)
        elif self._serving:
            self._serving.closed(name)
            if self._now and self._now.row.leads:
                self._serving.turn()  # if it left because all is done, that is said first
                self._master.send(Lost(name=self._settings.name, member=name))

    def _take_for(self, relaying: Relaying, name: str, news: Opened | Closed | Received) -> None:
        if isinstance(news, Received):
            if not isinstance(news.message, (Lend, Mapped)):  # it uses no memory of others
                self._guarded(relaying.receive, name, news.message, news.frames)
        elif isinstance(news, Opened):
            relaying.opened(name)
        else:
            relaying.closed(name)
            if relaying.leads:
                self._master.send(Lost(name=self._settings.name, member=name))

    def _receive(self, name: str, message: ToServer, frames: list[memoryview]) -> None:
        assert self._now
        is_server = role_of(name) == "server" and name not in self._now.relays.values()
        if isinstance(message, (Keep, Safe, Fetch, Norms)) != is_server:
            raise ProtocolError(f"{type(message).__name__} is not for {name} to say")
        if isinstance(message, (Keep, Safe, Fetch)):
            self._keeping.receive(name, message, frames)
        elif isinstance(message, (Lend, Mapped)):
            self._neighbours.receive(name, message)
        elif isinstance(message, Norms) and self._serving:
            self._serving.take_norms(name, message)
        elif isinstance(message, (Push, Pull, Initial, Read, Advise)) and self._serving:
            self._serving.receive(name, message, frames)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this server")

    def _hear(self, name: str, message: FromServer, frames: list[memoryview]) -> None:
        """From a server that this one has connected to."""
        if self._membership.halted:
            return
        if self._relaying:
            return self._relaying.hear(name, message, frames)
        assert self._now
        if isinstance(message, (Kept, AllSafe)):
            self._keeping.receive(name, message)
        elif isinstance(message, Clip) and self._serving and name == self._now.row.names[0]:
            self._serving.clip(message)
        elif isinstance(message, (State, Gone)):
            self._chunks.receive(name, message, frames)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this server")


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
    listener = DataListener(context, keys, settings.host, 0)
    # It asks the server, which is made after it, only once that has joined.
    link = MasterLink.of(settings, keys, lambda: server.heartbeat(), lambda: server.doing)
    server = ParameterServer(settings, storage, context, listener, link)
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
