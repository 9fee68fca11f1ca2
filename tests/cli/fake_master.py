"""A master that only talks to clients: over a real socket, in a thread, with the run's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from elasticflow.run.config import Config
from elasticflow.run.folder import Address, RunDir, publish
from elasticflow.wire.control import ControlListener
from elasticflow.wire.gate import admit_only_members
from elasticflow.wire.keys import MasterKeys, read_keys
from elasticflow.wire.messages import Answer, ScaleRequest, StatusRequest, StopRequest, ToMaster
from elasticflow.wire.sockets import Context

from ..telling import Told


def new_run(path: Path, **settings: Any) -> RunDir:
    run = RunDir(path)
    run.create(Config(program="some.py", run_dir=str(path), **settings))
    return run


class FakeMaster:
    """Answers like a master, until it has to ``die``; then it leaves unanswered what it was asked.

    number: its incarnation, and what it calls its process. mute: it reads what it is asked, and says nothing.
    """

    def __init__(self, run: RunDir, number: int = 1, port: int = 0, mute: bool = False) -> None:
        self.told = Told()
        self.told.state.has("worker-1", "worker-2")
        self.heard: list[ToMaster] = []
        self.told_of = threading.Condition()
        self._number, self._mute, self._news = number, mute, 0
        self._context: Context = zmq.Context()
        self._gate = admit_only_members(self._context, read_keys(run.master_keys, MasterKeys).of("master"))
        self._listener = ControlListener(
            self._context, read_keys(run.master_keys, MasterKeys), "127.0.0.1", port
        )
        self.port = self._listener.port
        self._waiting: list[tuple[bytes, int]] = []
        self._dying = threading.Event()
        self._changes: list[Callable[[Told], None]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        publish(run.address, Address(f"tcp://127.0.0.1:{self.port}", "here", number))

    def _run(self) -> None:
        while not self._dying.is_set():
            self._listener.socket.poll(5)
            with self.told_of:
                while self._changes:
                    self._changes.pop(0)(self.told)
                    self._news += 1
                for route, message in self._listener.receive():
                    self.heard.append(message)
                    self._take(route, message)
                self.told_of.notify_all()
                self._answer()
        self._listener.close(linger_ms=100)

    def _take(self, route: bytes, message: ToMaster) -> None:
        if self._mute:
            return
        if isinstance(message, StatusRequest):
            self._waiting.append((route, message.newer_than))
        elif isinstance(message, ScaleRequest) and message.workers > 8:
            self._listener.send(route, Answer(error="workers must be from 1 to 8"))
        else:
            self._listener.send(route, Answer())

    def _answer(self) -> None:
        status = {**msgspec.to_builtins(self.told.status()), "news": self._news}
        status["master"] |= {"pid": self._number, "incarnation": self._number}
        for route, seen in list(self._waiting):
            if seen < self._news or status["state"] not in ("starting", "running", "finishing"):
                self._waiting.remove((route, seen))
                self._listener.send(route, Answer(status=status))

    def change(self, what: Callable[[Told], None]) -> None:
        """Something happens, of which all who wait are told."""
        with self.told_of:
            self._changes.append(what)

    def wait_for(self, kind: type) -> None:
        """Until it has been asked this."""
        with self.told_of:
            assert self.told_of.wait_for(lambda: any(isinstance(each, kind) for each in self.heard), 20)

    def wait_for_changes(self) -> None:
        """Until all changes so far have happened."""
        with self.told_of:
            assert self.told_of.wait_for(lambda: not self._changes, 20)

    def die(self) -> None:
        if self._dying.is_set():
            return
        self._dying.set()
        self._thread.join()
        self._gate.stop()
        self._context.term()

    @property
    def was_stopped(self) -> bool:
        return any(isinstance(each, StopRequest) for each in self.heard)
