"""A relay in one generation: arrays and messages around ``RelayState``."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from elasticflow.errors import ProtocolError
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Array, Layout
from elasticflow.training.advice import Question
from elasticflow.wire.messages import (
    Advise,
    Assignment,
    Compute,
    Consult,
    FromServer,
    Gone,
    Initial,
    Pull,
    Push,
    RelayInfo,
    ToServer,
    Uninitialised,
    Version,
)
from elasticflow_ps import relay_state as rs
from elasticflow_ps import state as st
from elasticflow_ps.backups import ComputeAction
from elasticflow_ps.compression import compression_of
from elasticflow_ps.incoming import Incoming
from elasticflow_ps.neighbours import Neighbours
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Sum
from elasticflow_ps.watch import checks_of
from elasticflow_ps.ways import Ways


class Relaying:
    """Of the relay that ``info`` is about. What travels does so in frames, also within a host: versions are
    handed down as they came. ``dropped`` counts messages that made no sense."""

    def __init__(
        self,
        info: RelayInfo,
        assignment: Assignment,
        settings: MemberSettings,
        ways: Ways,
        neighbours: Neighbours,
    ) -> None:
        self.dropped = 0
        self.leads = info.place == 0
        """Whether it stands for the leading server: who of its workers is lost, it tells the master."""
        self._server = assignment.servers[info.place]
        self._ways, self._schedule = ways, assignment.schedule
        self._parcels = parcels_of(Layout(assignment.spec.entries), self._server.chunks)
        self._compression = compression_of(settings)
        self._incoming = Incoming(info.name, assignment, self._parcels, neighbours, self._compression)
        self._question: Question | None = None
        self._state = rs.RelayState(
            assignment.schedule,
            len(self._parcels),
            assignment.start_tick,
            lambda number, work: self._parcels[number].is_changed(work),
            _combined,
        )
        ways.connect([self._server])

    @property
    def version(self) -> int:
        """The newest that is whole."""
        return self._state.version

    @property
    def doing(self) -> str:
        """What it waits for, in words that follow its name. For any thread."""
        return self._state.doing

    def opened(self, worker: str) -> None:
        """A worker has connected."""
        self._act(self._state.opened(worker))

    def closed(self, worker: str) -> None:
        """A worker's connection has closed."""
        self._act(self._state.closed(worker, time.monotonic()))

    def turn(self) -> None:
        """To be called when ``due_s`` has passed, and after anything else."""
        self._act(self._state.passed(time.monotonic()))

    def due_s(self) -> float | None:
        """When to call ``turn`` at the latest; None if nothing becomes due."""
        return self._state.due_s()

    # --- what comes ------------------------------------------------------------------------------

    def receive(self, worker: str, message: ToServer, frames: list[memoryview]) -> None:
        """A worker's message. Raises ProtocolError if it makes no sense."""
        now_s = time.monotonic()
        if isinstance(message, Push):
            value = self._incoming.pushed(worker, message, frames)
            self._act(self._state.pushed(worker, message, value, now_s))
        elif isinstance(message, Pull):
            self._act(self._state.asked(worker, message, now_s))
        elif not self._is_greeted:  # so it has asked for nothing
            raise ProtocolError(f"{type(message).__name__} comes before the server does")
        elif isinstance(message, Initial):
            self._send(message, self._incoming.initial(message.parcel, frames).arrays)
        elif isinstance(message, Advise):
            self._send(message)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for a relay")

    def hear(self, server: str, message: FromServer, frames: list[memoryview]) -> None:
        """What the server says. Raises ProtocolError if it makes no sense."""
        now_s = time.monotonic()
        if server != self._server.name:
            raise ProtocolError(f"{server} is not the server of this relay")
        if isinstance(message, Version):
            arrays = None if message.same else self._arrays(message, frames)
            self._act(self._state.came(message, arrays, now_s))
        elif isinstance(message, Compute):
            self._act(self._state.is_asked(message, now_s))
        elif isinstance(message, Gone):
            self._act(self._state.gone(message.latest))
        elif isinstance(message, Consult):
            self._question = message.question
            self._act(self._state.is_consulted())
        elif isinstance(message, Uninitialised):
            self._act(self._state.lacks_first())
        else:
            raise ProtocolError(f"{type(message).__name__} is not for a relay")

    def _arrays(self, message: Version, frames: Sequence[memoryview]) -> list[Array]:
        """A parcel's, as they travel. Raises ProtocolError if they are not those of one."""
        spans = self._incoming.parcel(message.parcel).state
        if message.lent or [each.nbytes for each in frames] != [
            self._compression.version_bytes(span) for span in spans
        ]:
            raise ProtocolError(f"not parcel {message.parcel} of a version")
        return [np.frombuffer(frame, np.uint8) for frame in frames]

    # --- doing what the state says ---------------------------------------------------------------

    def _act(self, actions: Sequence[rs.RelayAction]) -> None:
        for action in actions:
            if isinstance(action, rs.PushOnAction):
                self._push_on(action.push, action.value)
            elif isinstance(action, rs.HandDownAction):
                told = replace(action.message, heard=self._ways.heard(action.worker))
                self._ways.answer(action.worker, told, action.value or ())
            elif isinstance(action, rs.PullOnAction):
                self._send(action.pull)
            elif isinstance(action, ComputeAction):
                compute = Compute(tick=action.tick, slices=action.slices, careful=action.careful)
                self._ways.answer(action.worker, compute)
            elif isinstance(action, st.GoneAction):
                self._ways.answer(action.worker, Gone(latest=action.latest))
            elif isinstance(action, st.AskInitialAction):
                self._ways.answer(action.worker, Uninitialised())
            elif isinstance(action, st.ConsultAction):
                assert self._question
                self._ways.answer(action.worker, Consult(question=self._question))
            else:
                self.dropped += 1

    def _push_on(self, push: Push, total: Sum | None) -> None:
        if total is None:
            return self._send(push)
        total.use()
        pairs = zip(total.spans, total.arrays, strict=True)
        arrays = [self._compression.pushed(span, array) for span, array in pairs]
        self._send(replace(push, checks=checks_of(arrays, push.tick)), arrays)

    @property
    def _is_greeted(self) -> bool:
        link = self._ways.links.get(self._server.name)
        return link is None or link.greeted

    def _send(self, message: ToServer, arrays: Sequence[Array] = ()) -> None:
        """To the server; if it is lost, nothing: the generation is over."""
        link = self._ways.links.get(self._server.name)
        if link and arrays:
            link.send_arrays(message, arrays)
        elif link:
            link.send(message)


def _combined(left: Sum, right: Sum) -> Sum:
    """The sum of two siblings' values of one parcel."""
    return left.plus(right)
