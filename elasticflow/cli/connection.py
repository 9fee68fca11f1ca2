"""A client's line to the master of a run; if that dies, to the one that takes its place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import TracebackType

import msgspec
import zmq

from elasticflow.cluster.presence import (
    NoMaster,
    Presence,
    find_address,
    how_to_kill,
    presence_of,
    wait_for_master,
)
from elasticflow.errors import RunError, UnknownError
from elasticflow.process.decoding import converted
from elasticflow.run.folder import Address, RunDir
from elasticflow.run.telling import LiveStatus
from elasticflow.wire.control import control_link, signed_frame
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.wire.messages import Answer, StatusRequest, ToMaster, decode_from_master
from elasticflow.wire.sockets import Socket

LOOK_S = 1.0
"""How often somebody who waits for an answer looks whether there still is a master, and where."""
START_S = 3.0
"""How long a run that has just begun may take to say where its master listens."""
PROBE_S = 10.0
"""A master that has had no news for so long is asked whether it is still there."""
SILENT_S = 120.0
"""One that says nothing for so long hangs; time in which this process was stopped does not count."""


class Unanswered(UnknownError):
    """A run goes on, as far as one can see, but its master says nothing."""


class Connection:
    """Asks the master and waits for its answers, as long as there is a run. Raises RunError if there is none.

    A master that is asked and dies takes the question with it, so it is asked again of the next one:
    all that a client may ask means the same when it is asked twice.
    """

    def __init__(
        self, run: RunDir, presence: Presence | None = None, waiting: Callable[[str], None] | None = None
    ) -> None:
        """presence: how to tell whether there is a run; None: as its place decides.

        waiting: is told what a run waits for that has no master, until it has one; None: that is NoMaster.
        """
        self._run = run
        self._presence = presence or presence_of(run)
        self._waiting = waiting
        self.address = self._find()
        self._keys = read_keys(run.client_keys, MemberKeys)
        self._context: zmq.Context[Socket] = zmq.Context()
        self.socket = control_link(self._context, self._keys, self.address.endpoint)
        self._standing: list[ToMaster] = []
        self._news = -1
        self._waits_for_news = False
        self._silent_s = self._probed_s = 0.0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close(linger=500)
        self._context.term()

    def send(self, message: ToMaster) -> None:
        """Sends once."""
        self.socket.send(signed_frame(self._keys, message))

    def receive(self, timeout_s: float) -> Answer | None:
        """The next answer; None if none comes in time."""
        if not self.socket.poll(int(timeout_s * 1000)):
            return None
        answer = decode_from_master(self.socket.recv())
        assert isinstance(answer, Answer)
        return answer

    def ask(self, message: ToMaster, timeout_s: float = 10.0) -> Answer:
        """Raises RunError if the run is over, no master answers in time, or it refuses."""
        self.send(message)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            answer = self.receive(min(left_s, LOOK_S))
            if answer is None:
                if self._has_moved():
                    self.send(_anew(message))
            elif answer.error:
                raise RunError(answer.error)
            else:
                return answer
        where = f"its master ({self.address.endpoint}) does not answer"
        silence = self._presence.silence()
        raise Unanswered(f"{self._run.path}: {where}; {silence or how_to_kill(self._run, self._presence)}")

    def status(self, timeout_s: float = 10.0) -> LiveStatus:
        """As it is now. Raises as ``ask`` does."""
        status = status_of(self.ask(StatusRequest(), timeout_s))
        assert status is not None
        return status

    def insist(self, message: ToMaster) -> None:
        """Sends now, and to every master to come; does not wait for the answer."""
        self._standing.append(message)
        self.send(message)

    def next_status(self, timeout_s: float = LOOK_S, news: int = 1) -> LiveStatus | None:
        """The next status that is news; None if there is none in time. Raises RunError if the run is over.

        news: so much has to be new since the one before, or ten seconds have passed, or the run is over.
        Raises Unanswered if nothing has come for too long.
        """
        if not self._waits_for_news:
            self._waits_for_news = True
            more = news - 1 if self._news >= 0 else 0
            self.send(StatusRequest(newer_than=self._news + more))
        answer = self.receive(timeout_s)
        status = status_of(answer) if answer else None
        self._listen(timeout_s, answer)
        if status:
            self._news, self._waits_for_news = status.news or 0, False
        # Another master listens at the same port if it can: then this line has come to it by itself.
        if (status is None or status.master.pid != self.address.pid) and self._has_moved():
            self._news, self._waits_for_news = -1, False
            for message in self._standing:
                self.send(message)
        return status

    def _listen(self, waited_s: float, answer: Answer | None) -> None:
        """Tells a master that has nothing to say from one that cannot say anything."""
        if answer:
            self._silent_s = self._probed_s = 0.0
            return
        self._silent_s += waited_s
        if self._silent_s >= SILENT_S:
            nothing = f"its master has said nothing for {self._silent_s:.0f} s"
            raise Unanswered(f"{self._run.path}: {nothing}; {how_to_kill(self._run, self._presence)}")
        if self._silent_s >= self._probed_s + PROBE_S:
            self._probed_s = self._silent_s
            self.send(StatusRequest())

    def _has_moved(self) -> bool:
        """Whether there is another master, connected to now. Raises RunError if the run is over."""
        try:
            address = self._find()
        except RunError:
            if self._run.path.exists():
                raise
            return False  # its folder was moved, or removed: the master is about to say so
        if address == self.address:
            return False
        if self._is_anothers():  # whose master lets nobody in by these keys
            raise RunError(f"{self._run.path}: is another run's folder by now, or this one was resumed.")
        self.socket.close(linger=0)
        self.address, self._silent_s, self._probed_s = address, 0.0, 0.0
        self.socket = control_link(self._context, self._keys, address.endpoint)
        return True

    def _find(self) -> Address:
        """Where the master listens, see ``waiting``. Raises RunError if the run is over."""
        while True:
            try:
                return find_address(self._run, self._presence, START_S)
            except NoMaster:  # where processors are scarce one that begins takes long
                if self._waiting is None:
                    raise
                wait_for_master(self._run, self._waiting, self._presence)

    def _is_anothers(self) -> bool:
        with contextlib.suppress(RunError):
            return read_keys(self._run.client_keys, MemberKeys) != self._keys
        return False


def status_of(answer: Answer) -> LiveStatus | None:
    """What a master answers to a StatusRequest, if this is that. Raises RunError if it cannot be read."""
    try:
        return None if answer.status is None else converted(answer.status, LiveStatus)
    except msgspec.ValidationError as error:
        raise RunError(
            f"the run is of another ElasticFlow, whose status this one cannot read ({error}): use that one."
        ) from error


def _anew(message: ToMaster) -> ToMaster:
    """What to ask of another master: its news are counted from the beginning."""
    return msgspec.structs.replace(message, newer_than=-1) if isinstance(message, StatusRequest) else message
