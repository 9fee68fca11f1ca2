"""The master's process: sockets, the backend and the storage around MasterState."""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from elasticflow.cluster.contract import How, load_backend
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master import wanting
from elasticflow.master.announcing import Announcing
from elasticflow.master.board import Board
from elasticflow.master.connections import Connections, listen
from elasticflow.master.fence import LOOK_S, Fence, Superseded
from elasticflow.master.ground import Ground
from elasticflow.master.journal import Journal, read_journal
from elasticflow.master.keyring import Keyring
from elasticflow.master.log import say
from elasticflow.master.measuring import begin_metrics
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.noticing import exited, noticed
from elasticflow.master.orders import ORDERS
from elasticflow.master.saving import Saving
from elasticflow.master.starting import Starting
from elasticflow.master.state import MasterState
from elasticflow.master.status import Story
from elasticflow.master.succession import Succession
from elasticflow.master.tracking import begin_tracking
from elasticflow.run import reserve
from elasticflow.run.config import Config
from elasticflow.run.folder import Address, RunDir, publish
from elasticflow.run.telling import Status
from elasticflow.storage.background import Background
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MasterKeys, read_keys, role_of
from elasticflow.wire.messages import (
    Answer,
    Beat,
    Departing,
    Grant,
    Heartbeat,
    Join,
    Progress,
    Quit,
    ScaleRequest,
    StatusRequest,
    StopRequest,
    ToMaster,
    Written,
)  # fmt: skip
from elasticflow.wire.polling import Polling
from elasticflow.wire.sockets import Context
from elasticflow.worker.strategy import load_strategy

FAREWELL_S = 5.0
"""How long members may take to leave once the run is over."""
OVERSLEPT_S = 0.5
"""A master that wakes so much later than it meant to had no chance to hear anybody."""
LAST_WORD_S = 1.0
"""How long to wait for the last word of a member that has ended by itself."""


class Master:
    """One run's master; after a death, the one that goes on in its place."""

    def __init__(
        self,
        run: RunDir,
        config: Config,
        context: Context,
        keys: MasterKeys,
        resume: bool,
        again: bool,
        term: int | None,
    ) -> None:
        self._run = run
        fence = Fence(run.storage(), term, LOOK_S, config.storage_patience_s) if term else None
        load_strategy(config.strategy)
        before = read_journal(run.journal, keys) if again else None
        self._saving = Saving(run, config, fence, resume=resume, adopts=before is not None)
        manifest = self._saving.manifest
        self._backend = load_backend(config.backend)(config, str(run.path))
        listener = listen(context, keys, self._backend.host, config.port, before)
        listener.suspect = lambda text: self._announcing.note("warning", text)
        self._connections = Connections(listener, self._backend.host, adopts=before is not None)
        remembered, past = before.story if before else None, run.past_attempts()
        start_step = manifest.step if manifest else 0
        self._story = Story(config, str(run.path), start_step, remembered, past=past)
        self._story.goes_by(self._saving.programs())
        board = Board(run, config.share)
        self._announcing = Announcing(self._story, self._backend, self._connections, board)
        self._state = MasterState(
            config,
            restored=self._saving.restored,
            made_with=self._saving.made_with(),
            memory=before.memory if before else None,
            stop_at_s=self._story.stop_at_s,
            standing=manifest.standing if manifest else None,
        )
        self._background = Background(config.storage_patience_s)
        self._ground = Ground(run, config.checkpoint_place, self._background)
        waits_for_keys = partial(self._announcing.waits_for_keys, self._state)
        self._keyring = Keyring(run, keys, config.storage_patience_s, waits_for_keys)
        self._starting = Starting(
            run,
            self._state,
            self._backend,
            self._connections,
            self._keyring,
            is_wanted=lambda name: not self._end and name in self._state.members,
            failed=lambda name, why: self._handle(ev.ExitedEvent(name, True, why)),
        )
        self._succession = Succession(run, fence, before, self._remembered)
        self._end: ac.EndAction | None = None
        self._polling = Polling()

    @property
    def endpoint(self) -> str:
        """Where members and clients reach it."""
        return self._connections.endpoint

    # --- the loop --------------------------------------------------------------------------------

    def run(self, client_fd: int | None) -> ac.EndAction:
        """Runs until the run is over. client_fd: readable when the client is gone."""
        self._client_fd = client_fd
        if self._succession.adopts:
            self._adopt()
        else:
            self._begin()
        reserve.keep(self._run.path)
        while self._end is None:
            at_s = self._state.next_time_s()
            woken_s = self._turn(None if at_s is None else at_s - time.monotonic())
            self._excuse(time.monotonic() - woken_s)
            self._handle(ev.ClockEvent())
            self._announcing.size(self._state)
            if self._end is None and self._announcing.outlook():
                self._succession.write()
            self._announcing.progress()
            self._connections.answer_watchers(self._status, all_=self._end is not None)
        return self._farewell(self._end)

    def _begin(self) -> None:
        self._saving.begin()
        for damage in self._saving.damages:
            self._announcing.note("warning", f"a checkpoint is damaged: {damage}")
        if self._saving.manifest:
            self._announcing.note(
                "info", f"going on from step {self._saving.manifest.step}{self._saving.by_which_program()}"
            )
        for severity, text in self._saving.lines():
            self._announcing.note(severity, text)
        try:
            self._succession.write_now()
        except OSError as error:
            raise RunError(f"{self._run.path}: cannot be written: {error.strerror}.") from error
        self._story.resized(0, self._state.target, self._state.reason)
        self._do(self._state.start(time.monotonic()))

    def _adopt(self) -> None:
        """Goes on where the master before this one died, with those of its members that live."""
        with contextlib.suppress(OSError):  # so that people see the next one by another number
            self._succession.write_now()
        own = [each.name for each in self._state.members.values() if not self._starting.is_carried(each)]
        living = self._backend.living(own)
        how = (self._succession.in_another_term and self._backend.began_again()) or "died"
        goes_on = f"master {self._succession.incarnation} goes on"
        self._story.fault("master", "master", f"{how}; {goes_on}", time.monotonic())
        self._announcing.note("info", f"{goes_on} with {len(living)} members")
        if self._saving.unread:
            self._read_newest()
        carried = [each for each in self._state.members.values() if each.carrier in living]
        living = {**living, **{each.name: each.pid for each in carried}}
        homeless = {each.name for each in self._state.of("server") if not each.carrier}.difference(own)
        # Before adopting, which adds members: those are about to start, and have not ended.
        mine = self._state.members.keys() - homeless
        if self._state.staff.grant:
            self._backend.limit_workers(self._state.target)
        unread, incarnation = self._saving.unread, self._succession.incarnation
        self._do(self._state.adopt(living, time.monotonic(), unread=unread, incarnation=incarnation))
        self._bury()
        for server in carried:
            self._starting.start(ac.StartAction(server.name, "server", server.carrier), waits=True)
        for name in sorted(mine):
            if name not in living:
                self._handle(ev.ExitedEvent(name, False, "ended while there was no master", taken=True))

    def _read_newest(self) -> None:
        """The one before may have committed a checkpoint, and died before that was written down."""
        self._background.submit(
            self._saving.newest,
            lambda manifest, error: self._handle(
                ev.FoundEvent(manifest.tick, manifest.standing) if manifest else ev.FoundEvent(None)
            ),
            lambda text: self._announcing.trouble(text, self._state),
        )

    def _turn(self, timeout_s: float | None) -> float:
        """Waits for something to happen, and handles it. Returns when it happened."""
        ours: list[Any] = [
            self._connections.listener.socket,
            self._connections.listener.monitor,
            self._background.fd,
            self._keyring.fd,
            *self._succession.fds,
        ]
        ours += [] if self._client_fd is None else [self._client_fd]
        if (backend_s := self._backend.next_time_s()) is not None:
            timeout_s = _sooner(timeout_s, backend_s - time.monotonic())
        begun_s = time.monotonic()
        timeout_s = _sooner(timeout_s, max(0.0, self._ground.turn(begun_s) - begun_s))
        ready = self._polling.wait([*ours, *self._backend.wait_fds()], timeout_s)
        woken_s = time.monotonic()
        self._excuse(woken_s - begun_s - max(0.0, timeout_s))
        self._receive()
        self._background.turn()
        if self._ground.story and self._end is None:
            self._succession.check_if_seen()
            self._give_up(self._ground.story)
        self._keyring.turn()
        self._succession.turn(ready)
        self._announcing.show(woken_s, self._status)
        if self._client_fd in ready:
            self._lose_client()
        if ready.difference(ours) or backend_s is not None and woken_s >= backend_s:
            self._bury()
        return woken_s

    def _excuse(self, late_s: float) -> None:
        """This process did not run for so long: it is not the members who were silent."""
        if late_s > OVERSLEPT_S:
            self._handle(ev.OversleptEvent(late_s))

    def _bury(self) -> None:
        for ended in self._backend.ended():
            if ended.how in (How.DONE, How.FAILED):
                self._hear_out(ended.name)
            self._handle(exited(ended))
        for kind, text in self._backend.notes():
            self._announcing.note(kind, text)
        for event in noticed(self._backend):
            self._handle(event)

    def _lose_client(self) -> None:
        """Whoever started the run is gone, or has let go of it."""
        self._client_fd = None
        if self._end:
            return
        if self._state.config.client_gone == "stop":
            self._handle(ev.StopEvent("its client is gone"))
        else:
            self._announcing.note(
                "info", f"its client is gone; 'elasticflow attach {self._run.path}' shows the run again"
            )

    def _hear_out(self, name: str) -> None:
        """A member that ended by itself said why; its last word may come after the news of its end."""
        deadline = time.monotonic() + LAST_WORD_S
        while not self._end and (left_s := deadline - time.monotonic()) > 0:
            member = self._state.members.get(name)
            if member is None or member.state is MemberState.DRAINING or not self._connections.has(name):
                return
            self._connections.wait(left_s)
            self._receive()

    def _farewell(self, end: ac.EndAction) -> ac.EndAction:
        """Lets the members leave, and writes the report. Those that took no part have nothing to lose.

        Raises Superseded: then members and report are another master's affair.
        """
        self._succession.check_if_seen()
        taking_part = (MemberState.READY, MemberState.DRAINING, MemberState.HALTED)
        for member in list(self._state.members.values()):
            if member.state not in taking_part:
                self._starting.kill(ac.KillAction(member.name))
        deadline = time.monotonic() + FAREWELL_S
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._backend.num_running and not self._background.busy:
                break
            self._turn(left_s)
        self._succession.check_if_seen()  # who has begun meanwhile would take this one's report for its end
        self._backend.close()
        if self._story.parts_failed:
            self._ground.tidy(self._saving.tidy)
        report = self._story.report(self._state, end, **self._counters())
        self._ground.leave(report, self._state.config.storage_patience_s)
        self._connections.answer_watchers(self._status, all_=self._end is not None)
        self._close()
        return end

    def _close(self) -> None:
        self._succession.close()
        self._background.close()
        self._ground.whereabouts.close()
        self._keyring.close()
        self._announcing.close()
        self._connections.listener.close(linger_ms=1000)

    def close(self) -> None:
        """Ends all processes at once; for a run that failed to start, or is told to end."""
        self._backend.close()
        self._close()

    def leave(self) -> None:
        """Whoever told this master to end may mean it alone."""
        if self._backend.comes_again():
            self._succession.write_if_possible()
            self.abandon()
        else:
            self.close()

    def abandon(self) -> None:
        """Leaves the run to another master, which is there, or will come."""
        self._backend.abandon()
        self._close()

    # --- messages --------------------------------------------------------------------------------

    def _receive(self) -> None:
        for route, message in self._connections.listener.receive():
            self._take(route, message)
        for name in self._connections.lost():
            self._handle(ev.DisconnectedEvent(name))
            self._backend.look()

    def _take(self, route: bytes, message: ToMaster) -> None:
        if isinstance(message, StatusRequest):
            self._connections.watch(route, message.newer_than)
        elif isinstance(message, ScaleRequest):
            if not (error := wanting.refusal(self._state, message.workers)):
                self._handle(ev.ScaleEvent(message.workers))
            self._connections.send(route, Answer(error=error))
        elif isinstance(message, Grant):
            self._obey(message)
            self._connections.send(route, wanting.situation(self._state, self._backend))
        elif isinstance(message, StopRequest):
            self._connections.send(route, Answer())
            self._handle(ev.StopEvent(message.reason))
        elif (member := self._state.members.get(message.name)) is None or self._starting.is_homeless(member):
            self._connections.send(route, Quit(reason="not a member of this run (any more)"))
        else:
            if self._connections.meet(message.name, route):  # first: plans are numbered anew
                self._connections.send(route, Beat(incarnation=self._connections.session(message.name)))
                self._handle(ev.ReconnectedEvent(message.name))
                if self._state.config.all_reduce and role_of(message.name) == "worker":
                    self._starting.tell_carrier(message.name)
            if isinstance(message, Heartbeat):
                self._connections.send(route, Beat(incarnation=self._connections.session(message.name)))
            elif isinstance(message, Join) and not self._is_welcome(message):
                return
            elif isinstance(message, Departing):
                self._backend.give_way()
            self._handle(message)

    def _is_welcome(self, join: Join) -> bool:
        """False if the run is over, or ends now since the program is not the checkpoint's."""
        if self._saving.manifest and join.spec and not self._state.spec and not self._end:
            try:
                for note in self._saving.admit(join.spec, self._state.config):
                    self._announcing.note("warning", note)
            except ElasticFlowError as error:
                self._give_up(str(error))
        if self._end:
            self._connections.tell(join.name, Quit(reason=self._end.text))
        return self._end is None

    def _obey(self, grant: Grant) -> None:
        """Has as many workers as a service grants."""
        if self._end is None and (news := wanting.news_of(self._state, grant)):
            self._handle(news)
        self._backend.limit_workers(self._state.target)

    def _status(self) -> Status:
        return self._story.status(self._state, places=self._starting.places(), **self._counters())

    def _counters(self) -> dict[str, int]:
        return {"incarnation": self._succession.incarnation, **self._connections.counters()}

    # --- events and actions ----------------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        accepted = isinstance(event, (Progress, Written)) and self._state.accepts(event)
        if isinstance(event, (Written, ev.CommittedEvent)) and event.error:
            self._ground.look_now()
        actions = self._state.handle(event, time.monotonic())
        self._announcing.happened(event, self._state, accepted=accepted)
        self._do(actions)
        if actions or not isinstance(event, _TOLD_AGAIN):
            self._succession.write()

    def _remembered(self) -> Journal:
        return Journal(
            incarnation=self._succession.incarnation,
            port=self._connections.listener.port,
            memory=self._state.memory(),
            story=self._story.remembered(),
            term=self._succession.term,
            keys=self._keyring.public,
        )

    def _do(self, actions: list[ac.Action]) -> None:
        for action in actions:
            try:
                if (order := ORDERS.get(type(action))) is not None:
                    names, message = order(action)
                    for name in names:
                        self._connections.tell(name, message)
                else:
                    _DO[type(action)](self, action)
            except ElasticFlowError as error:
                self._give_up(str(error))
            self._connections.news += 1

    def _give_up(self, text: str) -> None:
        """Ends the run for a reason that the state does not know of."""
        self._connections.tell_all(Quit(reason=text))
        self._state.state = RunState.FAILED
        self._finish(ac.EndAction(RunState.FAILED, text))

    def _fix(self, action: ac.FixAction) -> None:
        self._saving.fix(action.config)
        self._story.goes_with(action.config)

    def _commit(self, action: ac.CommitAction) -> None:
        manifest = self._saving.manifest_of(self._state, action)
        self._background.submit(
            lambda: self._ground.guard(partial(self._saving.commit, manifest)),
            lambda _, error: self._handle(ev.CommittedEvent(action.tick, error, manifest.standing)),
            lambda text: self._announcing.trouble(text, self._state),
        )

    def _prune(self, action: ac.PruneAction) -> None:
        assert self._state.schedule is not None
        step = self._state.schedule.steps_before(action.tick)
        standing = self._state.standings.at(action.tick)
        best = standing.best.step if standing else 0

        def pruned(refusal: str | None, error: str) -> None:
            if text := refusal or error:
                self._announcing.note("warning", f"old checkpoints cannot be removed: {text}")

        self._background.submit(lambda: self._saving.prune(step, best), pruned, lambda text: None)

    def _hand_over(self, action: ac.HandOverAction) -> None:
        self._succession.write_if_possible()  # what the other one begins with
        try:
            self._backend.hand_over()
        except RunError as error:
            self._announcing.note("warning", f"no other master can take over: {error}")
            self._handle(ev.StopEvent("the time limit of master and servers is near"))

    def _finish(self, action: ac.EndAction) -> None:
        self._announcing.note("end", action.text)
        if action.detail:
            say(action.detail)
        self._end = action


_DO: dict[type, Callable[[Master, Any], None]] = {
    ac.StartAction: lambda master, action: master._starting.start(action),
    ac.FixAction: Master._fix,
    ac.KillAction: lambda master, action: master._starting.kill(action),
    ac.AssignAction: lambda master, action: master._starting.assign(action),
    ac.CommitAction: Master._commit,
    ac.PruneAction: Master._prune,
    ac.NoteAction: lambda master, action: master._announcing.note(action.kind, action.text),
    ac.FaultAction: lambda master, action: master._announcing.fault(action),
    ac.RegroupedAction: lambda master, action: master._announcing.regrouped(action, master._state),
    ac.ResizedAction: lambda master, action: master._announcing.resized(action),
    ac.HandOverAction: Master._hand_over,
    ac.RememberAction: lambda master, action: master._succession.write_if_possible(),
    ac.EndAction: Master._finish,
}
"""What is more than to tell a member something, see ``ORDERS``."""


_TOLD_AGAIN = (Heartbeat, Progress, ev.ClockEvent, ev.PlacedEvent, ev.ExpiryEvent, ev.LimitEvent)
"""What happens often, and the next master need not be told of."""


def serve(
    run_dir: str,
    *,
    resume: bool,
    again: bool,
    ready: Callable[[str], None],
    client_fd: int | None = None,
    term: int | None = None,
) -> ac.EndAction:
    """A master's whole life. The run's lock is held, or the term was claimed, by whoever calls this.

    again: in place of a master that died, or that the cluster has lost sight of; if that one has ended the
    run all the same, so it stays. ready: told once this one listens.
    Raises Superseded if the run is another master's by now.
    """
    run = RunDir(run_dir)
    config = run.config()
    if again and (end := _past_end(run)):
        say(f"this run has ended before: {end.state.value}: {end.text}")
        with contextlib.suppress(OSError):
            run.address.unlink(missing_ok=True)
        return end
    keys = read_keys(run.master_keys, MasterKeys)
    context: Context = zmq.Context()
    authenticator = admit_only_members(context, keys.of("master"))
    try:
        try:
            master = Master(run, config, context, keys, resume, again, term)
        except zmq.ZMQError as error:
            where = f"port {config.port}" if config.port else "a port"
            raise RunError(
                f"{where} cannot be listened on: {error.strerror}; choose another --port."
            ) from error
        if not again:  # and before there is an address: a run with a report is taken to be over
            run.report.unlink(missing_ok=True)
        with contextlib.suppress(OSError) if again else contextlib.nullcontext():
            address = Address(master.endpoint, sockets.gethostname(), os.getpid())
            publish(run.address, address, durable=False)
        ready("")
        begin_tracking(run, config)
        metrics = begin_metrics(run, config)
        try:
            end = master.run(client_fd)
        except Superseded:
            master.abandon()
            raise
        except (SystemExit, ElasticFlowError):  # otherwise another master will go on with the members
            master.leave()
            raise
        with contextlib.suppress(OSError, RunError):  # or another master would begin what is over
            if run.read_address().endpoint == master.endpoint:  # else it has begun
                run.address.unlink(missing_ok=True)
        if metrics:
            metrics.poll()  # it ends with this process
        return end
    finally:
        authenticator.stop()


def _sooner(timeout_s: float | None, other_s: float) -> float:
    return other_s if timeout_s is None else min(timeout_s, other_s)


def _past_end(run: RunDir) -> ac.EndAction | None:
    """How a master before this one has ended the run; None: it is not over. Raises RunError."""
    try:
        report = run.read_report()
    except OSError as error:
        raise RunError(f"{run.report}: cannot be read: {error.strerror or error}.") from error
    return ac.EndAction(RunState(report.state), report.text) if report else None
