"""The master's process: sockets, the backend and the storage around MasterState."""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from elasticflow.checkpoint import (
    Manifest,
    ProgramUse,
    check_model,
    commit,
    commits,
    discard_unfinished,
    folder_of,
    load_manifest,
    newest_intact,
    prune,
    verify,
)
from elasticflow.cluster.contract import MASTER, How, load_backend
from elasticflow.errors import CheckpointError, ElasticFlowError, RunError
from elasticflow.master import actions as ac
from elasticflow.master import events as ev
from elasticflow.master.board import Board
from elasticflow.master.fence import LOOK_S, Fence, Superseded
from elasticflow.master.journal import Journal, JournalWriter, read_journal
from elasticflow.master.log import say
from elasticflow.master.members import MemberState, RunState
from elasticflow.master.state import MasterState
from elasticflow.master.status import Story
from elasticflow.run.config import Config
from elasticflow.run.folder import Address, RunDir, publish
from elasticflow.run.settings import MemberSettings
from elasticflow.run.telling import Status
from elasticflow.run.work import check_same_files, check_same_optimizer, check_same_work, files_told, work_of
from elasticflow.step.layout import Layout
from elasticflow.step.schedule import SLICING
from elasticflow.storage.background import Background
from elasticflow.wire.control import ControlListener
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MasterKeys, read_keys
from elasticflow.wire.messages import (
    Answer,
    Attempt,
    Beat,
    Cut,
    Departing,
    Drain,
    Excluded,
    Finish,
    FromMaster,
    Halt,
    Heartbeat,
    Inspect,
    Join,
    Leaving,
    Look,
    Plan,
    Progress,
    Quarantine,
    Quit,
    ScaleRequest,
    Settled,
    StatusRequest,
    StopRequest,
    ToMaster,
    Written,
)  # fmt: skip
from elasticflow.wire.sockets import Context, poll_ms
from elasticflow.worker.strategy import load_strategy
from elasticflow_ps.optimizers import kernel_for

FAREWELL_S = 5.0
"""How long members may take to leave once the run is over."""
OVERSLEPT_S = 0.5
"""A master that wakes so much later than it meant to had no chance to hear anybody."""
SESSIONS = 1_000_000
"""More connections than a member ever makes to one master."""
MOST_WATCHERS = 1000
"""Clients that wait for news at the same time."""
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
        self._run, self._config = run, config
        self._storage = run.storage()
        self._fence = Fence(self._storage, term, LOOK_S, config.storage_patience_s) if term else None
        load_strategy(config.strategy)
        before = read_journal(run.journal) if again else None
        self._adopts = before is not None
        self._incarnation = before.incarnation + 1 if before else 1
        self._manifest, self._damages = self._restore(resume, self._adopts)
        restored = None
        if self._manifest:
            excluded = tuple(Excluded(row, tick) for row, tick in self._manifest.quarantined)
            restored = (self._manifest.step, self._manifest.tick, excluded)
        self._backend = load_backend(config.backend)(config, str(run.path))
        self._listener = _listen(context, keys, self._backend.host, config.port, before)
        self.endpoint = f"tcp://{self._backend.host}:{self._listener.port}"
        start_step = self._manifest.step if self._manifest else 0
        remembered, past = before.story if before else None, run.past_attempts()
        self._story = Story(config, str(run.path), start_step, remembered, past=past)
        self._story.goes_by(self._programs())
        self._state = MasterState(
            config,
            restored=restored,
            made_with=self._manifest.fingerprint if self._manifest else None,
            memory=before.memory if before else None,
            stop_at_s=self._story.stop_at_s,
        )
        self._background = Background(config.storage_patience_s)
        self._journal = JournalWriter(run.journal)
        self._board = Board(run, config.share)
        self._routes: dict[str, bytes] = {}
        self._sessions: dict[str, int] = {}
        """By member: a number that changes with the master, and with the member's connection."""
        self._watchers: list[tuple[bytes, int]] = []
        self._news = 0
        self._size: tuple[int, int, str] | None = None
        self._progress = 0
        self._end: ac.EndAction | None = None
        self._woken_s = time.monotonic()

    def _restore(self, resume: bool, adopts: bool) -> tuple[Manifest | None, list[str]]:
        """The newest whole checkpoint, None if there is none yet; and the damages of newer ones.

        One who adopts a run that goes on only needs to know the newest.
        """
        if adopts:
            with contextlib.suppress(CheckpointError):  # without it, the journal's word must do
                steps = commits(self._storage)
                return (load_manifest(self._storage, steps[-1]) if steps else None), []
            return None, []
        if not resume:
            return None, []
        manifest, damages = newest_intact(self._storage)
        if damages and manifest is None:
            raise CheckpointError(
                f"{self._run.path}: none of its checkpoints is whole: {'; '.join(damages)}. "
                "Start anew in another --run-dir."
            )
        if manifest:
            check_same_work(manifest, self._config)
        return manifest, damages

    # --- the loop --------------------------------------------------------------------------------

    def run(self, client_fd: int | None) -> ac.EndAction:
        """Runs until the run is over. client_fd: readable when the client is gone."""
        self._client_fd = client_fd
        if self._adopts:
            self._adopt()
        else:
            self._begin()
        while self._end is None:
            at_s = self._state.next_time_s()
            self._turn(None if at_s is None else at_s - time.monotonic())
            self._excuse(time.monotonic() - self._woken_s)
            self._handle(ev.ClockEvent())
            self._tell_size()
            self._tell_outlook()
            self._tell_progress()
            self._answer_watchers()
        return self._farewell(self._end)

    def _begin(self) -> None:
        discard_unfinished(self._storage)
        for damage in self._damages:
            self._note("warning", f"a checkpoint is damaged: {damage}")
        if self._manifest:
            self._note("info", f"going on from step {self._manifest.step}{self._by_which_program()}")
        try:
            self._journal.write_now(self._remembered())
        except OSError as error:
            raise RunError(f"{self._run.path}: cannot be written: {error.strerror}.") from error
        self._story.resized(0, self._state.target, self._state.reason)
        self._do(self._state.start(time.monotonic()))

    def _programs(self) -> tuple[ProgramUse, ...]:
        """Those that this run went by so far, as of its newest checkpoint, and the present one."""
        before = self._manifest.programs if self._manifest else ()
        sha256 = self._config.program_sha256
        if before and before[-1].sha256 == sha256 or not sha256:
            return before
        step = self._manifest.step if self._manifest else 0
        return (*before, ProgramUse(step, os.path.basename(self._config.program), sha256))

    def _by_which_program(self) -> str:
        """For people, of a run that goes on."""
        before, name = self._manifest.programs if self._manifest else (), self._config.program
        if before and self._programs() != before:
            old, new = before[-1].sha256[:16], self._config.program_sha256[:16]
            return f", and from here on with another program, {name} ({new}, until now {old})"
        return f", with the run's copy of {name}" if before else ""

    def _adopt(self) -> None:
        """Goes on where the master before this one died, with those of its members that live."""
        with contextlib.suppress(OSError):  # so that the next one has another number
            self._journal.write_now(self._remembered())
        living = self._backend.living(self._state.members)
        self._story.fault("master", "master", f"died; master {self._incarnation} goes on", time.monotonic())
        self._note("info", f"master {self._incarnation} goes on with {len(living)} members")
        mine = list(self._state.members)
        self._do(self._state.adopt(living, time.monotonic()))
        self._bury()
        for name in mine:
            if name not in living:
                self._handle(ev.ExitedEvent(name, False, "ended while there was no master", taken=True))

    def _turn(self, timeout_s: float | None) -> None:
        """Waits for something to happen, and handles it."""
        poller = zmq.Poller()
        ours = [self._listener.socket, self._listener.monitor, self._background.fd, self._journal.fd]
        ours += [self._fence.fd] if self._fence else []
        if (backend_s := self._backend.next_time_s()) is not None:
            left_s = backend_s - time.monotonic()
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        for source in (*ours, *self._backend.wait_fds()):
            poller.register(source, zmq.POLLIN)
        if self._client_fd is not None:
            poller.register(self._client_fd, zmq.POLLIN)
        begun_s = time.monotonic()
        ready = {source for source, _ in poller.poll(poll_ms(timeout_s))}
        self._woken_s = time.monotonic()
        if timeout_s is not None:
            self._excuse(self._woken_s - begun_s - max(0.0, timeout_s))
        self._receive()
        self._background.turn()
        if self._fence and self._fence.fd in ready:
            self._fence.check()
        self._journal.turn()
        self._board.look(self._woken_s, self._status)
        if self._client_fd in ready:
            self._lose_client()
        if ready.difference(ours, (self._client_fd,)) or backend_s is not None and self._woken_s >= backend_s:
            self._bury()

    def _excuse(self, late_s: float) -> None:
        """This process did not run for so long: it is not the members who were silent."""
        if late_s > OVERSLEPT_S:
            self._handle(ev.OversleptEvent(late_s))

    def _bury(self) -> None:
        for ended in self._backend.ended():
            if ended.how in (How.DONE, How.FAILED):
                self._hear_out(ended.name)
            failed, taken = ended.how is How.FAILED, ended.how is How.TAKEN
            self._handle(ev.ExitedEvent(ended.name, failed, ended.text, taken))
        for kind, text in self._backend.notes():
            self._note(kind, text)
        for name in self._backend.placed():
            self._handle(ev.PlacedEvent(name))
        for name, why in self._backend.returns().items():
            self._handle(Departing(name=name, reason=why))
        for name, (replace_s, leave_s) in self._backend.ends_s().items():
            if name != MASTER:
                self._handle(ev.ExpiryEvent(name, replace_s, leave_s))
            elif time.monotonic() >= replace_s:
                self._handle(ev.LimitEvent(leave_s))

    def _tell_size(self) -> None:
        """Writes down how many workers there are, and why there are not more, when that changes."""
        size = self._state.num_ready, self._state.target, self._backend.shortage()
        if size != self._size and self._state.state in (RunState.STARTING, RunState.RUNNING):
            self._size = size
            self._story.sized(*size)
            self._news += 1

    def _tell_outlook(self) -> None:
        """Says that the run is going to miss its deadline, or is not any more, when that changes."""
        if self._end is None and (note := self._story.outlook()):
            self._note(note.kind, note.text)
            self._journal.write(self._remembered())

    def _tell_progress(self) -> None:
        """Tells the cluster each further hundredth of the work."""
        progress = int(100 * self._story.done)
        if progress != self._progress:
            self._progress = progress
            self._backend.tell_progress(progress / 100)

    def _lose_client(self) -> None:
        """Whoever started the run is gone, or has let go of it."""
        self._client_fd = None
        if self._end:
            return
        if self._config.client_gone == "stop":
            self._handle(ev.StopEvent("its client is gone"))
        else:
            self._note(
                "info", f"its client is gone; 'elasticflow attach {self._run.path}' shows the run again"
            )

    def _hear_out(self, name: str) -> None:
        """A member that ended by itself said why; its last word may come after the news of its end."""
        deadline = time.monotonic() + LAST_WORD_S
        poller = zmq.Poller()
        for source in (self._listener.socket, self._listener.monitor):
            poller.register(source, zmq.POLLIN)
        while not self._end and (left_s := deadline - time.monotonic()) > 0:
            member = self._state.members.get(name)
            if member is None or member.state is MemberState.DRAINING or name not in self._routes:
                return
            poller.poll(poll_ms(left_s))
            self._receive()

    def _farewell(self, end: ac.EndAction) -> ac.EndAction:
        """Lets the members leave, and writes the report. Those that took no part have nothing to lose."""
        taking_part = (MemberState.READY, MemberState.DRAINING, MemberState.HALTED)
        for member in list(self._state.members.values()):
            if member.state not in taking_part:
                self._backend.kill(member.name)
        deadline = time.monotonic() + FAREWELL_S
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._backend.num_running and not self._background.busy:
                break
            self._turn(left_s)
        self._backend.close()
        self._leave_report(end)
        self._answer_watchers()
        self._close()
        return end

    def _leave_report(self, end: ac.EndAction) -> None:
        """Writes it, as patiently as a checkpoint: without it the run would seem to have been killed."""
        report = self._story.report(self._state, end, **self._counters())
        outcome: list[str] = []
        self._background.submit(
            lambda: publish(self._run.report, report),
            lambda _, error: outcome.append(error),
            lambda text: say(f"warning: {self._run.report} is tried again: {text}") if text else None,
        )
        deadline = time.monotonic() + self._config.storage_patience_s
        poller = zmq.Poller()
        poller.register(self._background.fd, zmq.POLLIN)
        while not outcome and (left_s := deadline - time.monotonic()) > 0:
            poller.poll(poll_ms(left_s))
            self._background.turn()
        if outcome != [""]:
            why = outcome[0] if outcome else "the storage does not answer"
            say(f"warning: {self._run.report} cannot be written: {why}")

    def _close(self) -> None:
        if self._fence:
            self._fence.close()
        self._background.close()
        self._journal.close()
        self._board.close()
        self._listener.close(linger_ms=1000)

    def close(self) -> None:
        """Ends all processes at once; for a run that failed to start, or is told to end."""
        self._backend.close()
        self._close()

    def leave(self) -> None:
        """Whoever told this master to end may mean it alone."""
        if self._backend.comes_again():
            with contextlib.suppress(OSError):
                self._journal.write_now(self._remembered())
            self.abandon()
        else:
            self.close()

    def abandon(self) -> None:
        """Leaves the run to another master, which is there, or will come."""
        self._backend.abandon()
        self._close()

    # --- messages --------------------------------------------------------------------------------

    def _receive(self) -> None:
        for route, message in self._listener.receive():
            self._take(route, message)
        closed = set(self._listener.closed())
        for name, route in list(self._routes.items()):
            if route in closed:
                del self._routes[name]
                self._handle(ev.DisconnectedEvent(name))
                self._backend.look()

    def _take(self, route: bytes, message: ToMaster) -> None:
        if isinstance(message, StatusRequest):
            self._watchers = [*self._watchers[-MOST_WATCHERS:], (route, message.newer_than)]
        elif isinstance(message, ScaleRequest):
            self._send(route, Answer(error=self._scale(message.workers)))
        elif isinstance(message, StopRequest):
            self._send(route, Answer())
            self._handle(ev.StopEvent(message.reason))
        elif message.name not in self._state.members:
            self._send(route, Quit(reason="not a member of this run (any more)"))
        else:
            self._meet(message.name, route)
            if isinstance(message, Heartbeat):
                self._send(route, Beat(incarnation=self._sessions[message.name]))
            elif isinstance(message, Join) and not self._is_welcome(message):
                return
            elif isinstance(message, Departing):
                self._backend.give_way()
            self._handle(message)

    def _meet(self, name: str, route: bytes) -> None:
        """A member is heard; over another connection than before, or by another master, it is told again
        what may have got lost, and counts as another session."""
        if self._routes.get(name) == route:
            return
        self._routes[name] = route
        again = self._adopts or name in self._sessions
        self._sessions[name] = self._sessions.get(name, self._incarnation * SESSIONS) + 1
        if again:
            self._handle(ev.ReconnectedEvent(name))

    def _is_welcome(self, join: Join) -> bool:
        """False if the run is over, or ends now since the program is not the checkpoint's."""
        if self._manifest and join.spec and not self._state.spec and not self._end:
            try:
                check_model(self._manifest, Layout(join.spec.entries), join.spec.tables)
                _check_same_data(self._manifest, join.spec)
                check_same_files(self._manifest, join.spec)
                optimizer = join.spec.optimizer
                check_same_optimizer(self._manifest, optimizer, kernel_for(optimizer).slots)
                self._remove_damaged(self._manifest)
            except ElasticFlowError as error:
                self._give_up(str(error))
        if self._end:
            self._tell(join.name, Quit(reason=self._end.text))
        return self._end is None

    def _remove_damaged(self, manifest: Manifest) -> None:
        """Makes room: the run will come to the steps of the damaged checkpoints again.

        Raises RunError if one of them is whole after all: the storage had failed to read it.
        """
        for step in commits(self._storage):
            if step > manifest.step:
                if not verify(self._storage, step):
                    raise RunError(
                        f"the checkpoint of step {step} was damaged when this run began, and is whole now: "
                        "its storage is not to be relied on. Go on with --resume once it is."
                    )
                self._storage.remove(folder_of(step))
                self._note("warning", f"the damaged checkpoint of step {step} is removed")

    def _scale(self, workers: int) -> str:
        most = self._config.num_slices
        if not 1 <= workers <= most:
            return f"workers must be from 1 to {most}, the number of slices of a batch, not {workers}."
        self._handle(ev.ScaleEvent(workers))
        return ""

    def _send(self, route: bytes, message: FromMaster) -> None:
        self._listener.send(route, message)

    def _tell(self, name: str, message: FromMaster) -> None:
        if name in self._routes:
            self._send(self._routes[name], message)

    def _answer_watchers(self) -> None:
        """Answers those who wait for news, with one status for all of them."""
        due = [route for route, seen in self._watchers if seen < self._news or self._end]
        if due:
            status = self._status()
            answer = Answer(status={**msgspec.to_builtins(status), "news": self._news})
            for route in due:
                self._send(route, answer)
            self._watchers = [(route, seen) for route, seen in self._watchers if route not in due]

    def _status(self) -> Status:
        return self._story.status(self._state, places=self._places(), **self._counters())

    def _counters(self) -> dict[str, int]:
        listener = self._listener
        return {"incarnation": self._incarnation, "dropped": listener.dropped, "refused": listener.refused}

    def _places(self) -> dict[str, str]:
        return {name: where for name in self._state.members if (where := self._backend.where(name))}

    def _note(self, kind: str, text: str) -> None:
        self._story.note(ac.NoteAction(kind, text))
        say(f"{kind}: {text}")
        self._news += 1

    # --- events and actions ----------------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        accepted = isinstance(event, (Progress, Written)) and self._state.accepts(event)
        actions = self._state.handle(event, time.monotonic())
        if isinstance(event, (Heartbeat, Leaving)):
            self._story.keep_usage(self._state)
        elif isinstance(event, Progress) and accepted:
            self._story.progress(self._state, event)
            self._news += 1
        elif isinstance(event, Written) and accepted and self._state.schedule:
            self._story.written(self._state.schedule.steps_before(event.tick), event)
        self._do(actions)
        if actions or not isinstance(event, _TOLD_AGAIN):
            self._journal.write(self._remembered())

    def _remembered(self) -> Journal:
        return Journal(
            incarnation=self._incarnation,
            port=self._listener.port,
            memory=self._state.memory(),
            story=self._story.remembered(),
        )

    def _do(self, actions: list[ac.Action]) -> None:
        for action in actions:
            try:
                _DO[type(action)](self, action)
            except ElasticFlowError as error:
                self._give_up(str(error))
            self._news += 1

    def _give_up(self, text: str) -> None:
        """Ends the run for a reason that the state does not know of."""
        for name in self._routes:
            self._tell(name, Quit(reason=text))
        self._state.state = RunState.FAILED
        self._finish(ac.EndAction(RunState.FAILED, text))

    def _start(self, action: ac.StartAction) -> None:
        self._backend.start(
            MemberSettings.of(
                self._config,
                name=action.name,
                role=action.role,
                host=self._backend.member_host,
                master=self.endpoint,
                run_dir=str(self._run.path),
                started_s=time.time(),
            )
        )

    def _kill(self, action: ac.KillAction) -> None:
        if action.never_came:
            self._backend.give_up(action.name)
        else:
            self._backend.kill(action.name)

    def _assign(self, action: ac.AssignAction) -> None:
        self._tell(action.name, action.assignment)

    def _plan(self, action: ac.PlanAction) -> None:
        for name in action.servers:
            self._tell(name, Plan(number=action.number, shares=action.shares))

    def _commit(self, action: ac.CommitAction) -> None:
        manifest = self._manifest_of(action)
        self._background.submit(
            lambda: self._commit_now(manifest),
            lambda _, error: self._handle(ev.CommittedEvent(action.tick, error)),
            self._tell_trouble,
        )

    def _commit_now(self, manifest: Manifest) -> None:
        if self._fence:
            self._fence.check()
        commit(self._storage, manifest)

    def _prune(self, action: ac.PruneAction) -> None:
        assert self._state.schedule is not None
        step, keep = self._state.schedule.steps_before(action.tick), self._config.keep_checkpoints
        self._background.submit(
            lambda: prune(self._storage, keep, step),
            lambda _, error: self._not_pruned(error),
            lambda text: None,
        )

    def _not_pruned(self, error: str) -> None:
        if error:
            self._note("warning", f"old checkpoints cannot be removed: {error}")

    def _tell_trouble(self, text: str) -> None:
        """The storage refuses a commit, and is asked again; an empty text: it took it."""
        if text:
            self._state.troubles["master"] = text
            self._note("fault", f"the master cannot commit a checkpoint, and tries again: {text}")
        elif self._state.troubles.pop("master", ""):
            self._note("info", "the master can commit again")

    def _manifest_of(self, action: ac.CommitAction) -> Manifest:
        assert self._state.schedule is not None and self._state.spec is not None
        schedule, spec = self._state.schedule, self._state.spec
        step = schedule.steps_before(action.tick)
        data = {name: getattr(spec, name) for name in ("num_records", "num_test", "data_signature")}
        return Manifest(
            program=os.path.basename(self._config.program),
            tick=action.tick,
            step=step,
            epoch=step // schedule.steps_per_epoch,
            optimizer=spec.optimizer.settings(),
            work={**work_of(self._config), "slicing": SLICING, **data},
            fingerprint=dict(self._state.fingerprint),
            quarantined=tuple((each.row, each.from_tick) for each in self._state.excluded),
            signature=Layout(spec.entries).signature,
            entries=spec.entries,
            tables=spec.tables,
            parts=action.parts,
            programs=self._programs(),
            sources=files_told(spec.files),
        )

    def _settle(self, action: ac.SettledAction) -> None:
        for name in action.names:
            self._tell(name, Settled(tick=action.tick))

    def _tell_fault(self, action: ac.FaultAction) -> None:
        self._story.fault(action.name, action.role, action.text, time.monotonic())
        self._note("fault", f"{action.name} {action.text}")

    def _tell_regrouped(self, action: ac.RegroupedAction) -> None:
        self._story.regrouped(action.reached, action.start, action.source, time.monotonic())
        assert self._state.schedule
        back, step = (self._state.schedule.steps_before(v) for v in (action.reached, action.start))
        text = f"the servers go on from step {step}, {_SOURCES[action.source]}"
        self._note("info", f"{text}: {back - step} steps back" if back > step else f"{text}: no step is lost")

    def _tell_resized(self, action: ac.ResizedAction) -> None:
        self._story.resized(action.old, action.new, action.reason)
        self._note("info", f"from {action.old} to {action.new} workers, {action.reason}")

    def _quarantine(self, action: ac.QuarantineAction) -> None:
        for name in action.names:
            self._tell(name, Quarantine(excluded=action.excluded))

    def _attempt(self, action: ac.AttemptAction) -> None:
        for name in action.names:
            self._tell(name, Attempt(tick=action.tick, slice=action.slice, careful=action.careful))

    def _look(self, action: ac.LookAction) -> None:
        for name in action.names:
            self._tell(name, Look(number=action.number))

    def _hand_over(self, action: ac.HandOverAction) -> None:
        with contextlib.suppress(OSError):
            self._journal.write_now(self._remembered())
        try:
            self._backend.hand_over()
        except RunError as error:
            self._note("warning", f"no other master can take over: {error}")
            self._handle(ev.StopEvent("the time limit of master and servers is near"))

    def _finish(self, action: ac.EndAction) -> None:
        self._note("end", action.text)
        if action.detail:
            say(action.detail)
        self._end = action


_DO: dict[type, Callable[[Master, Any], None]] = {
    ac.StartAction: Master._start,
    ac.KillAction: Master._kill,
    ac.AssignAction: Master._assign,
    ac.HaltAction: lambda master, action: master._tell(action.name, Halt(generation=action.generation)),
    ac.PlanAction: Master._plan,
    ac.DrainAction: lambda master, action: master._tell(action.name, Drain()),
    ac.CutAction: lambda master, action: master._tell(action.name, Finish() if action.finish else Cut()),
    ac.SettledAction: Master._settle,
    ac.CommitAction: Master._commit,
    ac.PruneAction: Master._prune,
    ac.QuarantineAction: Master._quarantine,
    ac.AttemptAction: Master._attempt,
    ac.InspectAction: lambda master, action: master._tell(
        action.name, Inspect(tick=action.tick, slices=action.slices)
    ),
    ac.QuitAction: lambda master, action: master._tell(action.name, Quit(reason=action.reason)),
    ac.NoteAction: lambda master, action: master._note(action.kind, action.text),
    ac.FaultAction: Master._tell_fault,
    ac.RegroupedAction: Master._tell_regrouped,
    ac.ResizedAction: Master._tell_resized,
    ac.HandOverAction: Master._hand_over,
    ac.LookAction: Master._look,
    ac.EndAction: Master._finish,
}


_TOLD_AGAIN = (Heartbeat, Progress, ev.ClockEvent, ev.PlacedEvent, ev.ExpiryEvent, ev.LimitEvent)
"""What happens often, and the next master need not be told of."""


def _check_same_data(manifest: Manifest, spec: Any) -> None:
    for name in ("num_records", "num_test", "data_signature"):
        before, now = manifest.work.get(name), getattr(spec, name)
        if before != now:
            what = {"num_records": "records to train on", "num_test": "records to test with"}.get(name, "")
            found = f"had {before} {what}, now it has {now}" if what else "has other columns"
            raise CheckpointError(
                f"the data has changed since the checkpoint at step {manifest.step}: it {found}. "
                "Give the same data, or start anew in another --run-dir."
            )


def _listen(
    context: Context, keys: MasterKeys, host: str, port: int, before: Journal | None
) -> ControlListener:
    """At the port of the master before this one, where there was one: its members look for it there."""
    if before:
        with contextlib.suppress(zmq.ZMQError):
            return ControlListener(context, keys, host, before.port)
        port = 0  # somebody has taken it: the members find another one in RUN/master.json
    return ControlListener(context, keys, host, port)


_SOURCES = {
    "memory": "which they had in memory",
    "storage": "which is committed",
    "beginning": "as nothing is committed yet",
}


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

    again: in place of a master that died. ready: told once this one listens.
    Raises Superseded if the run is another master's by now.
    """
    run = RunDir(run_dir)
    config = run.config()
    keys = read_keys(run.master_keys, MasterKeys)
    context: Context = zmq.Context()
    authenticator = admit_only_members(context, keys.member)
    try:
        try:
            master = Master(run, config, context, keys, resume, again, term)
        except zmq.ZMQError as error:
            where = f"port {config.port}" if config.port else "a port"
            raise RunError(
                f"{where} cannot be listened on: {error.strerror}; choose another --port."
            ) from error
        if not again:
            run.report.unlink(missing_ok=True)
        with contextlib.suppress(OSError) if again else contextlib.nullcontext():
            publish(run.address, Address(master.endpoint, sockets.gethostname(), os.getpid()))
        ready("")
        try:
            end = master.run(client_fd)
        except Superseded:
            master.abandon()
            raise
        except (SystemExit, ElasticFlowError):  # otherwise another master will go on with the members
            master.leave()
            raise
        with contextlib.suppress(OSError):  # or another master would begin what is over
            run.address.unlink(missing_ok=True)
        return end
    finally:
        authenticator.stop()
