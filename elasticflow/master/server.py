"""The master's process: sockets, the backend and the storage around MasterState."""

from __future__ import annotations

import os
import socket as sockets
import time
from collections.abc import Callable
from typing import Any

import zmq

from elasticflow.backend import How, load_backend
from elasticflow.checkpoint import (
    Manifest,
    check_model,
    commit,
    commits,
    discard_unfinished,
    folder_of,
    newest_intact,
    prune,
)
from elasticflow.config import Config
from elasticflow.errors import CheckpointError, ElasticFlowError, ProtocolError, RunError
from elasticflow.keys import MasterKeys, read_keys
from elasticflow.layout import Layout
from elasticflow.master import state as st
from elasticflow.master.status import Journal
from elasticflow.messages import (
    Answer,
    Attempt,
    Beat,
    Cut,
    Drain,
    Excluded,
    Finish,
    FromMaster,
    Heartbeat,
    Join,
    Leaving,
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
    decode_to_master,
    encode,
)  # fmt: skip
from elasticflow.run_dir import Address, RunDir, publish
from elasticflow.settings import MemberSettings
from elasticflow.storage import DirectoryStorage
from elasticflow.strategies import load_strategy
from elasticflow.transport import Context, admit_only_members, control_listener, poll_ms

FAREWELL_S = 5.0
"""How long members may take to leave once the run is over."""
LAST_WORD_S = 1.0
"""How long to wait for the last word of a member that has ended by itself."""


class Master:
    """One run's master."""

    def __init__(self, run: RunDir, config: Config, context: Context, keys: MasterKeys, resume: bool) -> None:
        self._run, self._config = run, config
        self._storage = DirectoryStorage(run.path)
        load_strategy(config.strategy)
        self._manifest, self._damages = self._restore() if resume else (None, [])
        restored = None
        if self._manifest:
            excluded = tuple(Excluded(row, tick) for row, tick in self._manifest.quarantined)
            restored = (self._manifest.step, self._manifest.tick, excluded)
        self._backend = load_backend(config.backend)(config, str(run.path))
        self._socket, port = control_listener(context, keys, self._backend.host, config.port)
        self.endpoint = f"tcp://{self._backend.host}:{port}"
        self._state = st.MasterState(config, restored=restored)
        self._journal = Journal(config, str(run.path), self._manifest.step if self._manifest else 0)
        self._routes: dict[str, bytes] = {}
        self._watchers: list[tuple[bytes, int]] = []
        self._news = 0
        self._end: st.EndAction | None = None

    def _restore(self) -> tuple[Manifest | None, list[str]]:
        """The newest whole checkpoint, None if there is none yet; and the damages of newer ones."""
        manifest, damages = newest_intact(self._storage)
        if damages and manifest is None:
            raise CheckpointError(
                f"{self._run.path}: none of its checkpoints is whole: {'; '.join(damages)}. "
                "Start anew in another --run-dir."
            )
        if manifest:
            _check_same_work(manifest, self._config)
        return manifest, damages

    # --- the loop --------------------------------------------------------------------------------

    def run(self) -> st.EndAction:
        """Runs until the run is over."""
        discard_unfinished(self._storage)
        for damage in self._damages:
            self._note("warning", f"a checkpoint is damaged: {damage}")
        if self._manifest:
            self._note("info", f"going on from step {self._manifest.step}")
        self._do(self._state.start(time.monotonic()))
        while self._end is None:
            at_s = self._state.next_time_s()
            self._turn(None if at_s is None else at_s - time.monotonic())
            self._handle(st.TimeEvent())
            self._answer_watchers()
        return self._farewell(self._end)

    def _turn(self, timeout_s: float | None) -> None:
        """Waits for something to happen, and handles it."""
        poller = zmq.Poller()
        for source in (self._socket, *self._backend.wait_fds()):
            poller.register(source, zmq.POLLIN)
        ready = poller.poll(poll_ms(timeout_s))
        self._receive()
        if any(source != self._socket for source, _ in ready):
            for ended in self._backend.ended():
                if ended.how is not How.KILLED:
                    self._hear_out(ended.name)
                self._handle(st.ExitedEvent(ended.name, ended.how is How.FAILED, ended.text))

    def _hear_out(self, name: str) -> None:
        """A member that ended by itself said why; its last word may come after the news of its end."""
        deadline = time.monotonic() + LAST_WORD_S
        while not self._end and (left_s := deadline - time.monotonic()) > 0:
            member = self._state.members.get(name)
            if member is None or member.state is st.MemberState.DRAINING:
                return
            if self._socket.poll(int(left_s * 1000) + 1):
                self._receive()

    def _farewell(self, end: st.EndAction) -> st.EndAction:
        """Lets the members leave, and writes the report. Those that took no part have nothing to lose."""
        taking_part = (st.MemberState.READY, st.MemberState.DRAINING)
        for member in list(self._state.members.values()):
            if member.state not in taking_part:
                self._backend.kill(member.name)
        deadline = time.monotonic() + FAREWELL_S
        while self._backend.num_running and (left_s := deadline - time.monotonic()) > 0:
            self._turn(left_s)
        self._backend.close()
        report = self._journal.report(self._state, end)
        publish(self._run.report, report)
        self._answer_watchers()
        self._socket.close()
        return end

    def close(self) -> None:
        """Ends all processes at once; for a run that failed to start."""
        self._backend.close()
        self._socket.close(linger=0)

    # --- messages --------------------------------------------------------------------------------

    def _receive(self) -> None:
        while True:
            try:
                route, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                (data,) = frames
                self._take(route, decode_to_master(data))
            except (ProtocolError, ValueError) as error:
                self._note("warning", f"a message was dropped: {error}")

    def _take(self, route: bytes, message: ToMaster) -> None:
        if isinstance(message, StatusRequest):
            self._watchers.append((route, message.newer_than))
        elif isinstance(message, ScaleRequest):
            self._send(route, Answer(error=self._scale(message.workers)))
        elif isinstance(message, StopRequest):
            self._send(route, Answer())
            self._handle(st.StopEvent(message.reason))
        else:
            self._routes[message.name] = route
            if isinstance(message, Heartbeat):
                self._send(route, Beat())
            elif isinstance(message, Join) and not self._is_welcome(message):
                return
            self._handle(message)

    def _is_welcome(self, join: Join) -> bool:
        """False if the run is over, or ends now since the program is not the checkpoint's."""
        if self._manifest and join.spec and not self._state.spec and not self._end:
            try:
                check_model(self._manifest, Layout(join.spec.entries))
                _check_same_data(self._manifest, join.spec)
                self._remove_damaged(self._manifest)
            except ElasticFlowError as error:
                self._give_up(str(error))
        if self._end:
            self._tell(join.name, Quit(reason=self._end.text))
        return self._end is None

    def _remove_damaged(self, manifest: Manifest) -> None:
        """Makes room: the run will come to the steps of the damaged checkpoints again."""
        for step in commits(self._storage):
            if step > manifest.step:
                self._storage.remove(folder_of(step))
                self._note("warning", f"the damaged checkpoint of step {step} is removed")

    def _scale(self, workers: int) -> str:
        most = self._config.num_slices
        if not 1 <= workers <= most:
            return f"workers must be from 1 to {most}, the number of slices of a batch, not {workers}."
        self._handle(st.ScaleEvent(workers))
        return ""

    def _send(self, route: bytes, message: FromMaster) -> None:
        try:
            self._socket.send_multipart([route, encode(message)])
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise

    def _tell(self, name: str, message: FromMaster) -> None:
        if name in self._routes:
            self._send(self._routes[name], message)

    def _answer_watchers(self) -> None:
        """Answers those who wait for news, with one status for all of them."""
        due = [route for route, seen in self._watchers if seen < self._news or self._end]
        if due:
            answer = Answer(status={**self._journal.status(self._state), "news": self._news})
            for route in due:
                self._send(route, answer)
            self._watchers = [(route, seen) for route, seen in self._watchers if route not in due]

    def _note(self, kind: str, text: str) -> None:
        self._journal.note(st.NoteAction(kind, text))
        print(f"{kind}: {text}", flush=True)
        self._news += 1

    # --- events and actions ----------------------------------------------------------------------

    def _handle(self, event: st.Event) -> None:
        actions = self._state.handle(event, time.monotonic())
        if isinstance(event, (Heartbeat, Leaving)):
            self._journal.keep_usage(self._state)
        elif isinstance(event, Progress):
            self._journal.progress(self._state, event)
            self._news += 1
        elif isinstance(event, Written) and self._state.schedule:
            self._journal.written(self._state.schedule.steps_before(event.tick), event)
        self._do(actions)

    def _do(self, actions: list[st.Action]) -> None:
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
        self._state.state = st.RunState.FAILED
        self._finish(st.EndAction(st.RunState.FAILED, text))

    def _start(self, action: st.StartAction) -> None:
        config = self._config
        self._backend.start(
            MemberSettings(
                name=action.name,
                role=action.role,
                host=self._backend.host,
                master=self.endpoint,
                keys=str(self._run.member_keys),
                run_dir=str(self._run.path),
                program=config.program,
                data=config.data,
                strategy=config.strategy,
                seed=config.seed,
                threads=config.threads,
                batch_size=config.batch_size,
                num_slices=config.num_slices,
                heartbeat_s=config.heartbeat_s,
                lost_s=config.lost_s,
                encrypt_data=config.encrypt_data,
                timeline=config.timeline,
                started_s=time.time(),
            )
        )

    def _kill(self, action: st.KillAction) -> None:
        self._backend.kill(action.name)

    def _assign(self, action: st.AssignAction) -> None:
        self._tell(action.name, action.assignment)

    def _plan(self, action: st.PlanAction) -> None:
        for name in action.servers:
            self._tell(name, Plan(number=action.number, shares=action.shares))

    def _commit(self, action: st.CommitAction) -> None:
        assert self._state.schedule is not None and self._state.spec is not None
        schedule, spec = self._state.schedule, self._state.spec
        step = schedule.steps_before(action.tick)
        error = ""
        try:
            commit(
                self._storage,
                Manifest(
                    program=os.path.basename(self._config.program),
                    tick=action.tick,
                    step=step,
                    epoch=step // schedule.steps_per_epoch,
                    optimizer=spec.optimizer.settings(),
                    work={**_work(self._config), "num_records": spec.num_records, "num_test": spec.num_test,
                          "data_signature": spec.data_signature},
                    fingerprint=dict(self._state.fingerprint),
                    quarantined=tuple((each.row, each.from_tick) for each in self._state.excluded),
                    signature=Layout(spec.entries).signature,
                    entries=spec.entries,
                    parts=action.parts,
                ),
            )  # fmt: skip
            prune(self._storage, self._config.keep_checkpoints)
        except ElasticFlowError as problem:
            error = str(problem)
        self._handle(st.CommittedEvent(action.tick, action.last, error))

    def _quarantine(self, action: st.QuarantineAction) -> None:
        for name in action.names:
            self._tell(name, Quarantine(excluded=action.excluded))

    def _attempt(self, action: st.AttemptAction) -> None:
        for name in action.names:
            self._tell(name, Attempt(tick=action.tick, slice=action.slice))

    def _finish(self, action: st.EndAction) -> None:
        self._note("end", action.text)
        if action.detail:
            print(action.detail, flush=True)
        self._end = action


_DO: dict[type, Callable[[Master, Any], None]] = {
    st.StartAction: Master._start,
    st.KillAction: Master._kill,
    st.AssignAction: Master._assign,
    st.PlanAction: Master._plan,
    st.DrainAction: lambda master, action: master._tell(action.name, Drain()),
    st.CutAction: lambda master, action: master._tell(action.name, Finish() if action.finish else Cut()),
    st.SettledAction: lambda master, action: master._tell(action.name, Settled(tick=action.tick)),
    st.CommitAction: Master._commit,
    st.QuarantineAction: Master._quarantine,
    st.AttemptAction: Master._attempt,
    st.QuitAction: lambda master, action: master._tell(action.name, Quit(reason=action.reason)),
    st.NoteAction: lambda master, action: master._note(action.kind, action.text),
    st.EndAction: Master._finish,
}


def _work(config: Config) -> dict[str, Any]:
    """The settings that decide the model's bits."""
    return {
        "seed": config.seed,
        "batch_size": config.batch_size,
        "slices": config.num_slices,
        "threads": config.threads,
    }


def _check_same_work(manifest: Manifest, config: Config) -> None:
    for name, value in _work(config).items():
        before = manifest.work.get(name)
        if before != value:
            option = f"--{name.replace('_', '-')} {before}"
            raise CheckpointError(
                f"the checkpoint at step {manifest.step} was made with {name} {before}, now it is {value}: "
                f"the model would be another. Resume with {option}, or start anew in another --run-dir."
            )


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


def serve(run_dir: str, resume: bool, ready: Callable[[str], None]) -> st.EndAction:
    """A master's whole life. ``ready`` is told once it listens, or with an error's text if it cannot."""
    run = RunDir(run_dir)
    lock = run.hold()
    config = run.config()
    keys = read_keys(run.master_keys, MasterKeys)
    context: Context = zmq.Context()
    authenticator = admit_only_members(context, keys.member)
    try:
        try:
            master = Master(run, config, context, keys, resume)
        except zmq.ZMQError as error:
            where = f"port {config.port}" if config.port else "a port"
            raise RunError(
                f"{where} cannot be listened on: {error.strerror}; choose another --port."
            ) from error
        run.report.unlink(missing_ok=True)
        address = Address(master.endpoint, sockets.gethostname(), os.getpid())
        publish(run.address, address)
        ready("")
        try:
            return master.run()
        except BaseException:
            master.close()
            raise
    finally:
        authenticator.stop()
        run.address.unlink(missing_ok=True)
        os.close(lock)
