"""One generation of a server that holds chunks: arrays and messages around ServerState."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Array, Layout, Rule
from elasticflow.step.rows import EARLY_MOST, Keys, Rows, blocks
from elasticflow.step.schedule import Kind
from elasticflow.step.slices import Node
from elasticflow.wire.messages import (
    Assignment,
    Clip,
    Compute,
    Cut,
    Diverged,
    Finish,
    Gone,
    Initial,
    Norms,
    Plan,
    Progress,
    Pull,
    Push,
    Read,
    RowsRead,
    Settled,
    Skipped,
    ToMaster,
    Uninitialised,
    Version,
)  # fmt: skip
from elasticflow_ps import native
from elasticflow_ps import state as st
from elasticflow_ps.compression import Compression
from elasticflow_ps.finite import first_odd
from elasticflow_ps.neighbours import FRAME, Neighbours
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.snapshots import ServerRow, Snapshots
from elasticflow_ps.stalls import Stalls
from elasticflow_ps.store import Alone, Store, Sum, parse, scale_for
from elasticflow_ps.tables import parse_keys, parse_rows
from elasticflow_ps.watch import Watched
from elasticflow_ps.ways import Ways

PROGRESS_S = 0.1
"""The leading server tells the master how far it is at most this often."""

Evaluations = dict[int, tuple[float, ...]]
"""Cost and metrics by tick."""


class _RowsQuestion(NamedTuple):
    """A worker asks for rows."""

    worker: str
    message: Read
    keys: Keys


class Serving:
    """Serves ``store`` from version ``start`` on; None: from the first values, which a worker sends.

    made: called with each version that is whole, before anything becomes of it. send: takes messages to
    the master. evaluations: all that this process knows of; more are added. norm_chunks: by server with
    chunks, those of which it tells norms. ``dropped`` counts messages that made no sense.
    """

    def __init__(
        self,
        assignment: Assignment,
        row: ServerRow,
        store: Store,
        start: int | None,
        *,
        ways: Ways,
        neighbours: Neighbours,
        snapshots: Snapshots,
        evaluations: Evaluations,
        norm_chunks: dict[str, frozenset[int]],
        made: Callable[[st.VersionAction], None],
        send: Callable[[ToMaster], None],
        compression: Compression,
    ) -> None:
        self.dropped = 0
        self._compression = compression
        self._generation = assignment.generation
        self._schedule, self._optimizer = assignment.schedule, assignment.spec.optimizer
        self._specs = assignment.spec.tables
        self._rule = assignment.staleness_rule
        self._row, self._store, self._ways, self._neighbours = row, store, ways, neighbours
        self._parcels = store.parcels
        self._made, self._send = made, send
        self._norm_chunks = norm_chunks
        self._norms: dict[int, dict[str, Norms]] = {}
        self._layout = Layout(assignment.spec.entries)
        self._clips, self._skips = assignment.spec.optimizer.clip_norm is not None, _skips(assignment)
        self._skipped: list[Skipped] = []
        """What the master was told of."""
        self.diverged: Diverged | None = None
        """From then on no version is made any more; the one before is still served."""
        self._losses: list[float] = []
        self._stalls, self._made_s = Stalls(), time.monotonic()
        self._evaluations = evaluations
        self._untold = sorted(evaluations)
        self._early: dict[int, list[_RowsQuestion]] = {}
        """Those that wait for the next version, by parcel."""
        self._num_early: Counter[str] = Counter()
        """How many of each worker wait."""
        self._due: list[_RowsQuestion] = []
        """Those whose version has just been made."""
        self._told_s, self._told_version = 0.0, -1
        self._state = st.ServerState(
            schedule=assignment.schedule,
            num_parcels=len(self._parcels),
            combine=_combined,
            leads=row.leads,
            agrees=agrees(assignment),
            start=start,
            cut_every_steps=assignment.cut_every_steps,
            snapshots=snapshots,
        )
        self._first_version = self.version

    @property
    def version(self) -> int:
        """The newest whole version."""
        return self._state.version

    @property
    def finished(self) -> bool:
        """Whether the run ends with this version."""
        return self._state.finished

    # --- what comes ------------------------------------------------------------------------------

    def obey(self, message: Plan | Cut | Finish | Settled) -> None:
        """A message of the master."""
        if isinstance(message, Plan):
            self._handle(st.PlanEvent(message.number, message.shares))
        elif isinstance(message, Cut):
            self._handle(st.CutEvent())
        elif isinstance(message, Finish):
            self._handle(st.FinishEvent())
        else:
            self._handle(st.SettledEvent(message.tick))

    def opened(self, worker: str) -> None:
        """A worker has connected."""
        self._forget_early(worker)
        self._handle(st.OpenedEvent(worker))

    def closed(self, worker: str) -> None:
        """A worker's connection has closed."""
        self._forget_early(worker)
        self._handle(st.ClosedEvent(worker))

    def receive(self, worker: str, message: Push | Pull | Initial | Read, frames: list[memoryview]) -> None:
        """A worker's message. Raises ProtocolError if it makes no sense."""
        if isinstance(message, Push):
            value = self._pushed(worker, message, frames)
            self._neighbours.has(worker, message.tick)
            self._handle(st.PushEvent(worker, message, value))
        elif isinstance(message, Pull):
            self._neighbours.has(worker, message.version - 1 if message.version >= 0 else message.have)
            self._handle(st.PullEvent(worker, message))
        elif isinstance(message, Read):
            self._read(worker, message, frames)
        else:
            values = parse(self._parcel(message.parcel).state, frames)
            self._handle(st.InitialEvent(message.parcel, values))

    def _parcel(self, number: int) -> Parcel:
        if not 0 <= number < len(self._parcels):
            raise ProtocolError(f"there is no parcel {number}")
        return self._parcels[number]

    def _read(self, worker: str, message: Read, frames: list[memoryview]) -> None:
        """Rows of this version or the one before, or, asynchronously, as they are by now.

        Those of the next version wait for it.
        """
        parcel = self._parcel(message.parcel)
        table = self._store.tables.get(parcel.number)
        if parcel.table is None or table is None:
            raise ProtocolError(f"there are no rows in parcel {message.parcel}")
        newest = table.version if self._schedule.asynchronous else table.version + 1
        if not 0 <= message.version <= newest:
            raise ProtocolError(f"there are no rows of version {message.version} yet")
        keys = parse_keys(parcel, frames)
        if message.version > table.version:
            if self._num_early[worker] >= EARLY_MOST:
                raise ProtocolError(f"more than {EARLY_MOST} questions for rows of version {message.version}")
            self._num_early[worker] += 1
            self._early.setdefault(parcel.number, []).append(_RowsQuestion(worker, message, keys))
        else:
            self._answer(_RowsQuestion(worker, message, keys))

    def _answer(self, question: _RowsQuestion) -> None:
        worker, message, keys = question
        parcel, table = self._parcels[message.parcel], self._store.tables[message.parcel]
        assert parcel.table is not None
        if message.version < table.version - 1:
            self._ways.answer(worker, RowsRead(number=message.number, gone=True))
            return
        values = np.empty((len(keys), self._specs[parcel.table].dim), np.float32)
        now = table.version if self._schedule.asynchronous else message.version
        table.read(keys, now, self._schedule.steps_before(message.version) + 1, values)
        cut = [values[block] for block in blocks(*values.shape)]
        self._ways.answer(worker, RowsRead(number=message.number), cut)

    def _pushed(self, worker: str, push: Push, frames: list[memoryview]) -> Sum | Rows | None:
        parcel = self._parcel(push.parcel)
        if not 0 <= push.tick < self._schedule.total_ticks:
            raise ProtocolError(f"there is no tick {push.tick}")
        kind = self._schedule.at(push.tick).kind
        watched = Watched(push.checks, push.tick, partial(self._words_of, worker, push))
        if push.lent < 0:
            watched.compare(frames, parcel.pushed(kind), self._name)
        if parcel.table is not None and kind is Kind.TRAIN and not push.empty:
            return parse_rows(parcel, self._specs[parcel.table].dim, frames)
        spans = () if push.empty or push.lent >= 0 else parcel.pushed(kind)
        value = self._compression.sum_of(spans, frames)
        if push.lent >= 0:
            arrays = self._neighbours.pushed(worker, push.lent, parcel, kind)
            compare = partial(watched.compare, arrays, parcel.pushed(kind), self._name)
            value = Sum(arrays, [span.rule for span in parcel.pushed(kind)], compare)
        return None if push.empty else value

    @property
    def _name(self) -> str:
        return self._row.names[self._row.place]

    def _words_of(self, worker: str, push: Push) -> str:
        node = Node(push.level, push.index)
        step = self._schedule.at(push.tick).step
        return f"what {worker} pushed in step {step} for slices {node.first}..{node.stop - 1}"

    def _forget_early(self, worker: str) -> None:
        """What it asked for over another connection is not to be answered over this one."""
        if self._num_early.pop(worker, 0):
            early = self._early.items()
            self._early = {parcel: [q for q in asked if q.worker != worker] for parcel, asked in early}

    # --- time ------------------------------------------------------------------------------------

    def turn(self) -> None:
        """To be called when ``due_s`` has passed, and after anything else."""
        self._handle(st.TimeEvent())
        if self.diverged:
            return
        now_s, news = time.monotonic(), self._told_version < self.version
        if self._row.leads and news and (now_s >= self._told_s + PROGRESS_S or self.finished):
            self._tell_progress(self._untold)

    def due_s(self) -> float | None:
        """When to call ``turn`` at the latest; None if nothing becomes due."""
        due_s = None if self.diverged else self._state.next_due_s()
        if self._row.leads and not self.diverged and self._told_version < self.version:
            due_s = min(float("inf") if due_s is None else due_s, self._told_s + PROGRESS_S)
        return due_s

    @property
    def doing(self) -> str:
        """What is missing of the tick in work, and who waits for it. For any thread."""
        missing, waiting = self._state.standing()
        slices = ", ".join(map(str, sorted(missing))) or "nothing"
        return f"lacks {slices} of tick {self.version}, for which {', '.join(waiting) or 'nobody'} waits"

    def repeat(self) -> None:
        """Tells a new master what the one before knew."""
        for message in (self.diverged, *self._skipped):
            if message:
                self._send(message)
        if self._row.leads and not self.diverged:
            self._tell_progress(sorted(self._evaluations))

    def _tell_progress(self, ticks: list[int]) -> None:
        losses, self._losses, self._untold = self._losses, [], []
        # The first version that is made is news that does not wait: the run may end soon after.
        self._told_s = time.monotonic() if self.version > self._first_version else 0.0
        self._told_version = self.version
        self._send(
            Progress(
                name=self._name,
                generation=self._generation,
                version=self.version,
                last=self.finished,
                loss=sum(losses) / len(losses) if losses else None,
                evaluations=tuple((tick, self._evaluations[tick]) for tick in ticks),
                stalls=self._stalls.take(),
            )
        )

    # --- doing what the state says ---------------------------------------------------------------

    def _handle(self, event: st.Event) -> None:
        for action in self._state.handle(event, time.monotonic()):
            if not self.diverged or self._may_still(action, self.diverged.tick):
                self._act(action)
        due, self._due = self._due, []
        for question in due if not self.diverged else ():
            self._num_early[question.worker] -= 1
            self._answer(question)

    def _may_still(self, action: st.Action, tick: int) -> bool:
        """Workers may want the version of a tick that diverged again, to find out where that began."""
        if isinstance(action, st.ServeAction):
            return action.version <= tick and not action.updates
        return isinstance(action, st.GoneAction)

    def _act(self, action: st.Action) -> None:
        if isinstance(action, st.ServeAction):
            self._serve(action)
        elif isinstance(action, st.ApplyAction):
            self._apply(action)
        elif isinstance(action, st.VersionAction):
            tick, now_s = action.version - 1, time.monotonic()
            if self._row.leads:
                self._stalls.done(tick, self._schedule.at(tick).kind, now_s - self._made_s)
            self._made_s = now_s
            self._made(action)
            self._store.retire(action.version - 1)
        elif isinstance(action, st.ComputeAction):
            self._ways.answer(
                action.worker, Compute(tick=action.tick, slices=action.slices, careful=action.careful)
            )
        elif isinstance(action, st.GoneAction):
            self._ways.answer(action.worker, Gone(latest=action.latest))
        elif isinstance(action, st.InitialiseAction):
            self._store.initialise(0, self._parcels[action.parcel], action.value.arrays)
        elif isinstance(action, st.AskInitialAction):
            self._ways.answer(action.worker, Uninitialised())
        elif isinstance(action, st.NormsAction):
            self._send_norms(action)
        else:
            self.dropped += 1

    def _serve(self, action: st.ServeAction) -> None:
        worker, version = action.worker, action.version
        parcel, orders = self._parcels[action.parcel], action.orders or st.Orders()
        made = version + (action.updates > 0)  # what is made of it, whole or not
        arrays = [] if action.same else self._arrays(made, parcel)
        checks = self._store.checks(made, parcel, arrays, version) if arrays else ()
        lent = self._neighbours.lend(worker, self._store.places(made, parcel)) if arrays else ()
        if lent:
            arrays = [array for array, place in zip(arrays, lent, strict=True) if place == FRAME]
            self._store.track(made, parcel, self._neighbours.reading(worker, version))
        message = Version(
            version=version,
            parcel=action.parcel,
            same=action.same,
            shares=orders.shares,
            cut=orders.cut,
            snapshot=orders.snapshot,
            finish=orders.finish,
            lent=lent,
            updates=action.updates,
            given=action.given,
            checks=checks,
            heard=self._ways.heard(worker),
        )
        self._store.track(made, parcel, self._ways.answer(worker, message, arrays))

    def _arrays(self, version: int, parcel: Parcel) -> list[Array]:
        if self._compression.packs_versions:
            return self._store.packed(version, parcel, self._compression.packed)
        return self._store.arrays(version, parcel)

    def _apply(self, action: st.ApplyAction) -> None:
        self._due += self._early.pop(action.parcel, ())
        parcel, root = self._parcels[action.parcel], action.root
        if isinstance(root, Sum):
            root.use()
        work = self._schedule.at(action.tick)
        if root is None or work.kind is Kind.EVALUATE:
            self._store.carry(action.tick, parcel)
        else:
            lr = self._lr_of(parcel) if action.lr is None else action.lr
            alone = Alone(work.step, action.before, 1 / self._schedule.used_slices(work.num_records))
            finite = self._store.apply(
                action.tick,
                parcel,
                root,
                lr=slowed(lr, action.late, self._rule),
                update=self._schedule.update(work, action.before),
                scale=scale_for(action.norm, self._optimizer.clip_norm),
                alone=alone if self._schedule.asynchronous else None,
            )
            if not finite:
                return self._diverge(action.tick, parcel, root, action.slice)
        if isinstance(root, Sum):
            self._note_report(action.tick, work.kind, root)

    def _lr_of(self, parcel: Parcel) -> float:
        of_table = None if parcel.table is None else self._specs[parcel.table].optimizer
        return (of_table or self._optimizer).lr

    def _note_report(self, tick: int, kind: Kind, root: Sum) -> None:
        for array, rule in zip(root.arrays, root.rules, strict=True):
            if rule is Rule.REPORT and kind is Kind.TRAIN:
                self._losses.append(float(array[0]))
            elif rule is Rule.REPORT:
                self._evaluations[tick] = tuple(float(value) for value in array)
                self._untold.append(tick)

    # --- numbers that are none -------------------------------------------------------------------

    def _diverge(self, tick: int, parcel: Parcel, root: Sum | Rows, number: int = -1) -> None:
        """Nothing is made of this tick, or of what comes after it. The master ends the run."""
        made = self._store.is_sound(tick, parcel, root)
        if parcel.table is not None:
            name = self._layout.tables[parcel.table].name
        elif isinstance(root, Sum):
            pieces = zip(parcel.spans, root.arrays, strict=True)
            if made:
                pieces = zip(parcel.state, self._store.arrays(tick + 1, parcel), strict=True)
            name = first_odd(self._layout, pieces)
        self._tell_diverged(tick, name, made=made, number=number)

    def _tell_diverged(self, tick: int, parameter: str, *, made: bool = False, number: int = -1) -> None:
        if self._row.leads and self._told_version < tick:  # nothing is told of progress from now on
            self._send(Progress(name=self._name, generation=self._generation, version=tick))
        self.diverged = Diverged(
            name=self._name,
            generation=self._generation,
            tick=tick,
            parameter=parameter,
            made=made,
            slice=number,
        )
        self._send(self.diverged)

    # --- what servers agree on before they apply anything ----------------------------------------

    def _send_norms(self, action: st.NormsAction) -> None:
        for root in action.roots:
            if isinstance(root, Sum) and root.compare:
                root.compare()  # what was written too early is no divergence
        roots = list(zip(self._parcels, action.roots, strict=True))
        norms = [norm for parcel, root in roots for norm in self._store.norms(parcel, root) if self._clips]
        odd = (pair for pair in roots if not self._store.is_sound(action.tick, *pair))
        first = next(odd, None)
        if first is not None and not self._skips:
            assert first[1] is not None
            return self._diverge(action.tick, *first)
        names = self._row.names
        message = Norms(tick=action.tick, norms=tuple(norms), finite=first is None)
        if self._row.leads:
            self._collect_norms(names[0], message)
        else:
            self._ways.send(names[0], message)

    def take_norms(self, server: str, message: Norms) -> None:
        """From another server to the leading one. Raises ProtocolError if it makes no sense.

        Who is ahead of this server is so by one tick: nobody gets past a step without the others' norms.
        """
        near = self.version <= message.tick <= self.version + 1
        if not self._row.leads or server not in self._norm_chunks or not near:
            raise ProtocolError(f"norms of tick {message.tick} from {server}")
        chunks = [chunk for chunk, _ in message.norms]
        if chunks and sorted(chunks) != sorted(self._norm_chunks[server]):
            raise ProtocolError(f"norms of chunks {chunks} from {server}")
        if any(norm < 0 for _, norm in message.norms):
            raise ProtocolError(f"a norm below 0 from {server}")
        self._collect_norms(server, message)

    def _collect_norms(self, server: str, message: Norms) -> None:
        """Adds up in the order of the chunks, once every server's are there."""
        tick = message.tick
        known = self._norms.setdefault(tick, {})
        known.setdefault(server, message)
        if len(known) < len(self._norm_chunks) or self.diverged:
            return
        total = 0.0
        for _, squared in sorted(pair for each in known.values() for pair in each.norms):
            total += squared
        self._norms = {later: value for later, value in self._norms.items() if later > tick}
        skip = not math.isfinite(total) or not all(each.finite for each in known.values())
        if skip and not self._skips:
            return self._tell_diverged(tick, "")
        if skip:
            self._skipped.append(Skipped(name=self._name, generation=self._generation, tick=tick))
            self._send(self._skipped[-1])
        norm = 0.0 if skip else total**0.5
        for name in known:
            self._ways.answer(name, Clip(tick=tick, norm=norm, skip=skip))
        self._handle(st.ClipEvent(tick, norm, skip))

    def clip(self, message: Clip) -> None:
        """The leading server's answer to Norms."""
        self._handle(st.ClipEvent(message.tick, message.norm, message.skip))


def _combined(left: Sum | Rows, right: Sum | Rows) -> Sum | Rows:
    """The sum of two siblings' values of one parcel."""
    if isinstance(left, Sum) and isinstance(right, Sum):
        return left.plus(right)
    assert isinstance(left, Rows) and isinstance(right, Rows)
    return native.merge(left, right)


def _skips(assignment: Assignment) -> bool:
    """Whether whole steps are left out: asynchronously workers leave out slices of theirs."""
    return assignment.on_nan == "skip" and not assignment.schedule.asynchronous


def agrees(assignment: Assignment) -> bool:
    """Whether servers apply nothing before all of them know of the whole step."""
    return _skips(assignment) or assignment.spec.optimizer.clip_norm is not None


def slowed(lr: float, late: int, rule: str) -> float:
    """The learning rate of an update computed before ``late`` others were applied.

    ``inverse``: divided by that number. The more workers there are, the later updates are on average, so this
    is also the rule for their number. Source: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep
    Learning", IJCAI 2016.
    """
    return lr / late if rule == "inverse" and late > 1 else lr


def norm_chunks_of(assignment: Assignment, layout: Layout) -> dict[str, frozenset[int]]:
    """By server with chunks, those that hold parameters."""
    return {
        server.name: frozenset(
            number
            for number in server.chunks
            if layout.groups[layout.chunks[number].group].rule in (Rule.UPDATE, Rule.ROWS)
        )
        for server in assignment.servers
        if server.chunks
    }
