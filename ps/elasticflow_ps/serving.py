"""One generation of a server that holds chunks: the process around ServerState.

Each kind of thing that comes, or that the state says, has somebody who does it:

    frames ──> Incoming ──> ServerState ──> Agreeing ──> Updating ──> Versions ──> workers
               RowReads ──> workers         (servers)                 Reports ──> master
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from elasticflow.step.layout import Layout
from elasticflow.step.rows import Rows
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import (
    Advise,
    Assignment,
    Clip,
    Compute,
    Consult,
    Cut,
    Diverged,
    Finish,
    Gone,
    Initial,
    Norms,
    Pause,
    Plan,
    Pull,
    Push,
    Read,
    Settled,
    ToMaster,
    Uninitialised,
)  # fmt: skip
from elasticflow_ps import native
from elasticflow_ps import state as st
from elasticflow_ps.agreement import Agreeing, rounds
from elasticflow_ps.backups import ComputeAction
from elasticflow_ps.compression import Compression
from elasticflow_ps.decisions import Decisions
from elasticflow_ps.finite import first_odd
from elasticflow_ps.incoming import Incoming
from elasticflow_ps.neighbours import Neighbours
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.reports import Reports
from elasticflow_ps.row_reads import RowReads
from elasticflow_ps.snapshots import ServerRow, Snapshots
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.updating import Updating
from elasticflow_ps.versions import Versions
from elasticflow_ps.ways import Ways


class Serving:
    """Serves ``store`` from version ``start`` on; None: from the first values, which a worker sends.

    made: called with each version that is whole, before anything becomes of it. send: takes messages to
    the master. decisions: all that this process knows of; more are added. relays: see ``ServerState``.
    ``dropped`` counts messages that made no sense.
    """

    def __init__(
        self,
        assignment: Assignment,
        row: ServerRow,
        store: Store,
        start: int | None,
        *,
        layout: Layout,
        ways: Ways,
        neighbours: Neighbours,
        snapshots: Snapshots,
        decisions: Decisions,
        made: Callable[[st.VersionAction], None],
        send: Callable[[ToMaster], None],
        compression: Compression,
        relays: Mapping[int, str],
    ) -> None:
        self.dropped = 0
        self._schedule, self._layout = assignment.schedule, layout
        self._store, self._ways, self._neighbours = store, ways, neighbours
        self._made = made
        self._undecided: st.VersionAction | None = None
        """A version that waits for what ``on_epoch`` says, which its checkpoint is to have."""
        self._state = st.ServerState(
            schedule=assignment.schedule,
            num_parcels=len(store.parcels),
            changes=lambda number, work: store.parcels[number].is_changed(work),
            combine=_combined,
            leads=row.leads,
            rounds=rounds(assignment),
            start=start,
            cut_every_steps=assignment.cut_every_steps,
            snapshots=snapshots,
            standing=assignment.standing,
            relays=relays,
        )
        name, spec = row.names[row.place], assignment.spec
        self._incoming = Incoming(name, assignment, store.parcels, neighbours, compression)
        self._reads = RowReads(assignment.schedule, spec.tables, store.tables, ways)
        self._versions = Versions(store, ways, neighbours, compression)
        self._updating = Updating(assignment, store)
        self._reports = Reports(name, assignment, decisions, send, version=self.version, leads=row.leads)
        self._agreeing = Agreeing(
            assignment, layout, row, self._updating, store, ways, self._reports, self.clip
        )

    @property
    def version(self) -> int:
        """The newest whole version."""
        return self._state.version

    @property
    def finished(self) -> bool:
        """Whether the run ends with this version."""
        return self._state.finished and not self._reports.asks

    @property
    def standing(self) -> WatchStanding | None:
        """What evaluations have decided by now, if this server leads; None: there are no rules."""
        return self._reports.standing

    @property
    def diverged(self) -> Diverged | None:
        """From then on no version is made any more; the one before is still served."""
        return self._reports.diverged

    # --- what comes ------------------------------------------------------------------------------

    def obey(self, message: Plan | Cut | Finish | Pause | Settled) -> None:
        """A message of the master."""
        if isinstance(message, Plan):
            self._handle(st.PlanEvent(message.number, message.shares))
        elif isinstance(message, Cut):
            self._handle(st.CutEvent())
        elif isinstance(message, Finish):
            self._handle(st.FinishEvent())
        elif isinstance(message, Pause):
            self._handle(st.PauseEvent())
        else:
            self._handle(st.SettledEvent(message.tick))

    def opened(self, worker: str) -> None:
        """A worker has connected."""
        self._reads.forget(worker)
        self._handle(st.OpenedEvent(worker))

    def closed(self, worker: str) -> None:
        """A worker's connection has closed."""
        self._reads.forget(worker)
        self._handle(st.ClosedEvent(worker))

    def receive(
        self, worker: str, message: Push | Pull | Initial | Read | Advise, frames: list[memoryview]
    ) -> None:
        """A worker's message. Raises ProtocolError if it makes no sense."""
        if isinstance(message, Push):
            value = self._incoming.pushed(worker, message, frames)
            self._neighbours.has(worker, message.tick)
            self._handle(st.PushEvent(worker, message, value))
        elif isinstance(message, Pull):
            self._neighbours.has(worker, message.version - 1 if message.version >= 0 else message.have)
            self._handle(st.PullEvent(worker, message))
        elif isinstance(message, Read):
            self._reads.take(worker, self._incoming.parcel(message.parcel), message, frames)
        elif isinstance(message, Advise):
            self._advised(worker, message)
        else:
            values = self._incoming.initial(message.parcel, frames)
            self._handle(st.InitialEvent(message.parcel, values))

    def _advised(self, worker: str, message: Advise) -> None:
        """What the program's ``on_epoch`` says; who comes later changes nothing."""
        decided = self._reports.advise(worker, message.tick, message.advice)
        if decided is None:
            return
        made, self._undecided = self._undecided, None
        if made:
            self._made(made)
        self._handle(st.DecidedEvent(self.version, decided))

    def take_norms(self, server: str, message: Norms) -> None:
        """From another server to the leading one. Raises ProtocolError if it makes no sense."""
        self._agreeing.take(server, message, self.version)

    def clip(self, message: Clip) -> None:
        """The leading server's answer to Norms."""
        self._handle(st.ClipEvent(message.tick, message.norm, message.skip, message.round, message.trust))

    # --- time, and other masters -----------------------------------------------------------------

    def turn(self) -> None:
        """To be called when ``due_s`` has passed, and after anything else."""
        self._handle(st.TimeEvent())
        self._reports.turn(self.version, finished=self.finished)

    def due_s(self) -> float | None:
        """When to call ``turn`` at the latest; None if nothing becomes due."""
        if self.diverged:
            return None
        dues = (self._state.next_due_s(), self._reports.due_s(self.version))
        return min((due_s for due_s in dues if due_s is not None), default=None)

    @property
    def doing(self) -> str:
        """What is missing of the tick in work, and who waits for it. For any thread."""
        if self._reports.asks:
            return f"waits for what on_epoch() says to the evaluation before version {self.version}"
        if self._state.paused:
            return f"has version {self.version}, from which all are to begin anew"
        missing, waiting = self._state.standing()
        slices = ", ".join(map(str, sorted(missing))) or "nothing"
        return f"lacks {slices} of tick {self.version}, for which {', '.join(waiting) or 'nobody'} waits"

    def follow(self) -> None:
        """From now on another master has the say."""
        self._handle(st.FollowEvent())

    def repeat(self) -> None:
        """Tells a new master what the one before knew."""
        self._reports.repeat(self.version, finished=self.finished)
        if self._state.paused:
            self._reports.paused(self.version)

    # --- doing what the state says ---------------------------------------------------------------

    def _handle(self, event: st.Event) -> None:
        for action in self._state.handle(event, time.monotonic()):
            if not self.diverged or self._may_still(action, self.diverged.tick):
                self._act(action)
        if not self.diverged:
            # Only now that the updates are made, after which some had asked.
            self._reads.answer_due(self._store.parcels)

    def _may_still(self, action: st.Action, tick: int) -> bool:
        """Workers may want the version of a tick that diverged again, to find out where that began."""
        if isinstance(action, st.ServeAction):
            return action.version <= tick and not action.updates
        return isinstance(action, st.GoneAction)

    def _act(self, action: st.Action) -> None:
        if isinstance(action, st.ServeAction):
            self._versions.serve(action)
        elif isinstance(action, st.ApplyAction):
            self._apply(action)
        elif isinstance(action, st.VersionAction):
            tick = action.version - 1
            decided = self._reports.made(self._schedule.at(tick))
            if self._reports.asks:
                self._undecided = action
            else:
                self._made(action)
            # The version before stays: another server, and so a worker, may be one behind.
            self._store.retire(tick)
            if decided:
                self._handle(st.DecidedEvent(action.version, decided))
            if action.pause:
                self._reports.tell_now(action.version)
                self._reports.paused(action.version)
        elif isinstance(action, ComputeAction):
            compute = Compute(tick=action.tick, slices=action.slices, careful=action.careful)
            self._ways.answer(action.worker, compute)
        elif isinstance(action, st.ConsultAction):
            standing = self._reports.standing
            assert standing
            self._ways.answer(action.worker, Consult(question=standing.question))
        elif isinstance(action, st.GoneAction):
            self._ways.answer(action.worker, Gone(latest=action.latest))
        elif isinstance(action, st.InitialiseAction):
            self._store.initialise(0, self._store.parcels[action.parcel], action.value.arrays)
        elif isinstance(action, st.AskInitialAction):
            self._ways.answer(action.worker, Uninitialised())
        elif isinstance(action, st.NormsAction):
            odd = self._agreeing.tell(action)
            if odd:
                self._diverge(action.tick, *odd)
        else:
            self.dropped += 1

    def _apply(self, action: st.ApplyAction) -> None:
        parcel, root = self._store.parcels[action.parcel], action.root
        self._reads.made(parcel)
        if not self._updating.apply(action, parcel):
            return self._diverge(action.tick, parcel, root, action.slice)
        if isinstance(root, Sum):
            self._reports.measured(action.tick, self._schedule.at(action.tick).kind, root, action.lr)

    def _diverge(self, tick: int, parcel: Parcel, root: Sum | Rows, number: int = -1) -> None:
        """Nothing is made of this tick, or of what comes after it. The master ends the run."""
        made = self._store.is_sound(tick, parcel, root)
        if parcel.table is not None:
            name = self._layout.tables[parcel.table].name
        elif isinstance(root, Sum):
            pieces = zip(root.spans, root.arrays, strict=True)
            if made:
                pieces = zip(parcel.state, self._store.arrays(tick + 1, parcel), strict=True)
            name = first_odd(self._layout, pieces)
        self._reports.diverges(tick, name, made=made, number=number)


def _combined(left: Sum | Rows, right: Sum | Rows) -> Sum | Rows:
    """The sum of two siblings' values of one parcel."""
    if isinstance(left, Sum) and isinstance(right, Sum):
        return left.plus(right)
    assert isinstance(left, Rows) and isinstance(right, Rows)
    return native.merge(left, right)
