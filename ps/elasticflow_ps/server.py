"""The parameter server's process: sockets, arrays and the checkpoint's writer around ServerState."""

from __future__ import annotations

import os
import socket as sockets
import time
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

from elasticflow.checkpoint import Part, Reader, folder_of, load_manifest, part_name, write_part
from elasticflow.errors import ElasticFlowError, ProtocolError
from elasticflow.keys import MemberKeys
from elasticflow.layout import Layout, Rule
from elasticflow.member import MasterLink
from elasticflow.messages import (
    Assignment,
    Clip,
    Compute,
    Cut,
    Failed,
    Finish,
    FromMaster,
    Gone,
    Heartbeat,
    Initial,
    Join,
    Leaving,
    Lost,
    Norms,
    Plan,
    Progress,
    Pull,
    Push,
    Quit,
    Ready,
    Settled,
    Uninitialised,
    Version,
    Written,
)  # fmt: skip
from elasticflow.schedule import Kind
from elasticflow.settings import MemberSettings
from elasticflow.storage import Storage
from elasticflow.transport import (
    Closed,
    Context,
    DataLink,
    DataListener,
    Opened,
    Peer,
    Received,
    admit_only_members,
    poll_ms,
)  # fmt: skip
from elasticflow_ps import state as st
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import Parcel, parcels_of
from elasticflow_ps.store import Snapshot, Store, Sum, scale_for

PROGRESS_S = 0.1
"""The leading server tells the master how far it is at most this often."""


class Server:
    """One parameter server, from its assignment on."""

    def __init__(
        self,
        name: str,
        assignment: Assignment,
        listener: DataListener,
        link: MasterLink,
        storage: Storage,
        lead: DataLink | None,
    ) -> None:
        self.name = name
        self._listener, self._link, self._storage, self._lead = listener, link, storage, lead
        self._schedule, spec = assignment.schedule, assignment.spec
        self._optimizer = spec.optimizer
        self.layout = Layout(spec.entries)
        self._num_servers = len(assignment.servers)
        mine = next(server for server in assignment.servers if server.name == name)
        self._parcels = parcels_of(self.layout, mine.chunks)
        self._store = Store(self._parcels, kernel_for(spec.optimizer))
        self._leads = assignment.servers[0].name == name
        restored = assignment.restore_step is not None
        self._state = st.ServerState(
            schedule=assignment.schedule,
            num_parcels=len(self._parcels),
            combine=Sum.plus,
            leads=self._leads,
            clips=spec.optimizer.clip_norm is not None,
            start=assignment.start_tick if restored else None,
            cut_every_steps=assignment.cut_every_steps,
        )
        if assignment.restore_step is not None:
            self._restore(assignment.restore_step, assignment.start_tick)
        self._workers: dict[str, Peer] = {}
        self._norms: dict[int, dict[str, tuple[tuple[int, float], ...]]] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._written: deque[tuple[Written, list[Any]]] = deque()
        self._written_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._losses: list[float] = []
        self._evaluations: list[tuple[int, tuple[float, ...]]] = []
        self._told_s = 0.0
        self._told_version = -1
        self._dropped = 0
        self._quit = False

    def _restore(self, step: int, tick: int) -> None:
        manifest = load_manifest(self._storage, step)
        with Reader(self._storage, manifest) as reader:
            self._store.restore(tick, reader.read_chunk)

    def heartbeat(self) -> Heartbeat:
        """Called by the master link's thread."""
        dropped = self._dropped + self._listener.dropped
        return Heartbeat(name=self.name, tick=self._state.version, dropped=dropped)

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until the master says Quit."""
        poller = zmq.Poller()
        waited = [self._listener.socket, self._listener.monitor, self._link.wake_fd, self._written_fd]
        for source in [*waited, *([self._lead.socket, self._lead.monitor] if self._lead else [])]:
            poller.register(source, zmq.POLLIN)
        while not self._quit:
            ready = {source for source, _ in poller.poll(poll_ms(self._timeout_s()))}
            if self._listener.socket in ready or self._listener.monitor in ready:
                for news in self._listener.receive():
                    self._take(news)
                for closed in self._listener.closed():
                    self._take(closed)
            if self._link.wake_fd in ready:
                for message in self._link.received():
                    self._obey(message)
            if self._written_fd in ready:
                self._tell_written()
            if self._lead and self._lead.socket in ready:
                self._hear_lead(self._lead)
            if self._lead and not self._quit and self._lead.is_closed():
                raise ProtocolError("the connection to the leading server is lost")
            self._handle(st.TimeEvent())
            self._tell_progress()
        self._writer.shutdown()

    def _timeout_s(self) -> float | None:
        due = self._state.next_due_s()
        if self._leads and self._told_version < self._state.version:
            due = min(due or float("inf"), self._told_s + PROGRESS_S)
        return None if due is None else due - time.monotonic()

    def _obey(self, message: FromMaster) -> None:
        if isinstance(message, Plan):
            self._handle(st.PlanEvent(message.number, message.shares))
        elif isinstance(message, Cut):
            self._handle(st.CutEvent())
        elif isinstance(message, Finish):
            self._handle(st.FinishEvent())
        elif isinstance(message, Settled):
            self._handle(st.SettledEvent(message.tick))
        elif isinstance(message, Quit):
            self._quit = True

    def _take(self, news: Opened | Closed | Received) -> None:
        worker = news.peer.name
        if isinstance(news, Received):
            try:
                self._receive(news)
            except ProtocolError:
                self._dropped += 1
        elif isinstance(news, Opened):
            self._workers[worker] = news.peer
            self._handle(st.OpenedEvent(worker))
        elif self._workers.get(worker) == news.peer:  # not if it has come back on another connection
            del self._workers[worker]
            self._handle(st.ClosedEvent(worker))
            if self._leads:
                self._link.send(Lost(name=self.name, worker=worker))

    def _receive(self, news: Received) -> None:
        message, worker = news.message, news.peer.name
        if isinstance(message, Push):
            self._handle(st.PushEvent(worker, message, self._pushed(message, news.frames)))
        elif isinstance(message, Pull):
            self._handle(st.PullEvent(worker, message))
        elif isinstance(message, Initial):
            parcel = self._parcel(message.parcel)
            values = self._store.parse(parcel.state, news.frames)
            self._handle(st.InitialEvent(message.parcel, values))
        elif isinstance(message, Norms) and self._leads:
            self._collect_norms(worker, message.tick, message.norms)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for this server")

    def _parcel(self, number: int) -> Parcel:
        if not 0 <= number < len(self._parcels):
            raise ProtocolError(f"there is no parcel {number}")
        return self._parcels[number]

    def _pushed(self, push: Push, frames: list[memoryview]) -> Sum | None:
        parcel = self._parcel(push.parcel)
        if not 0 <= push.tick < self._schedule.total_ticks:
            raise ProtocolError(f"there is no tick {push.tick}")
        spans = () if push.empty else parcel.pushed(self._schedule.at(push.tick).kind)
        value = self._store.parse(spans, frames)
        return None if push.empty else value

    # --- doing what the state says ---------------------------------------------------------------

    def _handle(self, event: st.Event) -> None:
        for action in self._state.handle(event, time.monotonic()):
            self._act(action)

    def _act(self, action: st.Action) -> None:
        if isinstance(action, st.ServeAction):
            self._serve(action)
        elif isinstance(action, st.ApplyAction):
            self._apply(action)
        elif isinstance(action, st.VersionAction):
            self._store.retire(action.version - 1)
            if action.cut:
                self._cut(action.version, action.last)
        elif isinstance(action, st.ComputeAction):
            self._send(action.worker, Compute(tick=action.tick, slices=action.slices))
        elif isinstance(action, st.GoneAction):
            self._send(action.worker, Gone(latest=action.latest))
        elif isinstance(action, st.InitialiseAction):
            self._store.initialise(0, self._parcels[action.parcel], action.value.arrays)
        elif isinstance(action, st.AskInitialAction):
            self._send(action.worker, Uninitialised())
        elif isinstance(action, st.NormsAction):
            self._send_norms(action)
        else:
            self._dropped += 1

    def _send(self, worker: str, message: Any) -> None:
        peer = self._workers.get(worker)
        if peer:
            self._listener.send(peer, message)

    def _serve(self, action: st.ServeAction) -> None:
        peer = self._workers.get(action.worker)
        if not peer:
            return
        parcel, orders = self._parcels[action.parcel], action.orders or st.Orders()
        message = Version(
            version=action.version,
            parcel=action.parcel,
            same=action.same,
            plan=orders.plan,
            shares=orders.shares,
            cut=orders.cut,
            finish=orders.finish,
        )
        arrays = [] if action.same else self._store.arrays(action.version, parcel)
        self._store.track(action.version, parcel, self._listener.send(peer, message, arrays))

    def _apply(self, action: st.ApplyAction) -> None:
        parcel, root = self._parcels[action.parcel], action.root
        work = self._schedule.at(action.tick)
        if root is None or work.kind is Kind.EVALUATE:
            self._store.carry(action.tick, parcel)
        else:
            self._store.apply(
                action.tick,
                parcel,
                root,
                lr=self._optimizer.lr if action.lr is None else action.lr,
                update=work.step,
                scale=scale_for(action.norm, self._optimizer.clip_norm),
            )
        if root is not None:
            self._note_report(action.tick, work.kind, root)

    def _note_report(self, tick: int, kind: Kind, root: Sum) -> None:
        for array, rule in zip(root.arrays, root.rules, strict=True):
            if rule is Rule.REPORT and kind is Kind.TRAIN:
                self._losses.append(float(array[0]))
            elif rule is Rule.REPORT:
                self._evaluations.append((tick, tuple(float(value) for value in array)))

    # --- clipping --------------------------------------------------------------------------------

    def _send_norms(self, action: st.NormsAction) -> None:
        norms = [
            norm
            for parcel, root in zip(self._parcels, action.roots, strict=True)
            for norm in self._store.norms(parcel, root)
        ]
        if self._lead:
            self._lead.send(Norms(tick=action.tick, norms=tuple(norms)))
        else:
            self._collect_norms(self.name, action.tick, tuple(norms))

    def _collect_norms(self, server: str, tick: int, norms: tuple[tuple[int, float], ...]) -> None:
        """Adds up in the order of the chunks, once every server's are there."""
        known = self._norms.setdefault(tick, {})
        known[server] = norms
        if len(known) < self._num_servers:
            return
        total = 0.0
        for _, squared in sorted(pair for pairs in known.values() for pair in pairs):
            total += squared
        self._norms = {later: value for later, value in self._norms.items() if later > tick}
        for name in known:
            self._send(name, Clip(tick=tick, norm=total**0.5))
        self._handle(st.ClipEvent(tick, total**0.5))

    def _hear_lead(self, lead: DataLink) -> None:
        while received := lead.receive():
            message, _ = received
            if isinstance(message, Clip):
                self._handle(st.ClipEvent(message.tick, message.norm))

    # --- checkpoints and news --------------------------------------------------------------------

    def _cut(self, version: int, last: bool) -> None:
        """Copies what the next step changes; the rest is written in the background."""
        begun_s = time.monotonic()
        saved, held = self._store.snapshot(version)
        copy_s = time.monotonic() - begun_s
        self._writer.submit(self._write, version, last, saved, held, copy_s)

    def _write(self, version: int, last: bool, saved: Snapshot, held: list[Any], copy_s: float) -> None:
        begun_s = time.monotonic()
        part: Part | None = None
        error = ""
        try:
            folder = folder_of(self._schedule.steps_before(version))
            name = part_name(int(self.name.rpartition("-")[2]), self._num_servers)
            part = write_part(self._storage, folder, name, self.layout, saved)
        except ElasticFlowError as problem:
            error = str(problem)
        except Exception as problem:  # noqa: BLE001  (whatever it is, training goes on, and people are told)
            error = f"{type(problem).__name__}: {problem}"
        write_s = time.monotonic() - begun_s
        message = Written(
            name=self.name, tick=version, last=last, part=part, error=error, copy_s=copy_s, write_s=write_s
        )
        self._written.append((message, held))
        os.eventfd_write(self._written_fd, 1)

    def _tell_written(self) -> None:
        os.eventfd_read(self._written_fd)
        while self._written:
            message, held = self._written.popleft()
            self._store.release(held)
            self._link.send(message)

    def _tell_progress(self) -> None:
        now_s = time.monotonic()
        news = self._told_version < self._state.version
        if not (self._leads and news and (now_s >= self._told_s + PROGRESS_S or self._state.finished)):
            return
        losses, self._losses = self._losses, []
        evaluations, self._evaluations = tuple(self._evaluations), []
        self._told_s, self._told_version = now_s, self._state.version
        loss = sum(losses) / len(losses) if losses else None
        self._link.send(
            Progress(
                name=self.name,
                version=self._state.version,
                last=self._state.finished,
                loss=loss,
                evaluations=evaluations,
            )
        )


def main(settings: MemberSettings, keys: MemberKeys, storage: Storage) -> None:
    """A parameter server's whole life."""
    context: Context = zmq.Context()
    authenticator = admit_only_members(context, keys) if settings.encrypt_data else None
    listener = DataListener(context, keys, settings.host, 0, settings.encrypt_data)
    beat: list[Server] = []
    link = MasterLink(
        keys,
        settings.master,
        heartbeat=lambda: beat[0].heartbeat() if beat else Heartbeat(name=settings.name, tick=0),
        heartbeat_s=settings.heartbeat_s,
        lost_s=settings.lost_s,
    )
    endpoint = f"tcp://{settings.host}:{listener.port}"
    host, pid = sockets.gethostname(), os.getpid()
    link.send(Join(name=settings.name, role="server", host=host, pid=pid, endpoint=endpoint))
    link.start_heartbeats()
    try:
        assignment = link.wait_for((Assignment, Quit))
        if isinstance(assignment, Assignment):
            lead = _link_to_lead(context, keys, settings, assignment)
            beat.append(Server(settings.name, assignment, listener, link, storage, lead))
            link.send(Ready(name=settings.name))
            beat[0].run()
        link.send(Leaving(name=settings.name))
    except Exception as error:
        text = traceback.format_exc()
        link.send(Failed(name=settings.name, kind=type(error).__name__, text=str(error), traceback=text))
        raise
    finally:
        link.close()
        if authenticator:
            authenticator.stop()


def _link_to_lead(
    context: zmq.Context[zmq.Socket[bytes]],
    keys: MemberKeys,
    settings: MemberSettings,
    assignment: Assignment,
) -> DataLink | None:
    """Where gradients are clipped, servers other than the first talk to it."""
    lead = assignment.servers[0]
    if lead.name == settings.name or assignment.spec.optimizer.clip_norm is None:
        return None
    link = DataLink(context, keys, lead.endpoint, settings.encrypt_data)
    link.greet(settings.name, timeout_s=None)  # it answers once it has restored its chunks
    return link
