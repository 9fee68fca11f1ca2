"""What people ask a service, and its answers: lines of JSON over the Unix socket in its folder.

Who asks is known from the kernel (``SO_PEERCRED``), and has to be the service's own user or root: it starts
runs with its own rights, and to see them is to be able to end them. The folder is for its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from elasticflow.errors import RunError, UnknownError
from elasticflow.process.decoding import from_json, json_decoder
from elasticflow.process.locked_files import is_locked
from elasticflow.process.texts import as_json
from elasticflow.process.unix_sockets import nearby, uid_of
from elasticflow.service.marks import LOCK

SOCKET = "socket"
MOST_PRIORITY = 1000
"""Of a run; the least is this below zero."""
MOST_BYTES = 1 << 20
"""Of a question; one that goes on for longer is no question."""
MOST_PEOPLE = 128
"""So many may be connected at a time; of more, who came first has to go."""
ANSWER_S = 20.0
"""So long somebody who asks waits; a service answers within a fraction of a second."""
REST_S = 0.5
"""Nobody is let in for so long after somebody could not be."""
AGAIN_S = 0.2
"""Until one that went away is asked again."""
RESTART_S = 5.0
"""So long a run that is handed in waits for the next service, where there was one."""


class _Question(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    pass


class HandIn(_Question, frozen=True):
    """Please have this run done. Its folder is ready; asked twice, it is handed in once.

    deadline_s: since 1970; None: best effort. most_workers: 0: as many as can share a batch. soft: (seconds
    after the deadline, what it is worth to be done then, of 1).
    """

    run_dir: str
    deadline_s: float | None = None
    priority: Annotated[int, Meta(ge=-MOST_PRIORITY, le=MOST_PRIORITY)] = 0
    most_workers: int = 0
    soft: list[tuple[float, float]] = []


class ListTasks(_Question, frozen=True):
    """What is there, please: all that is under way, unless that is not wanted, and so many of those that are
    over, the last ones."""

    under_way: bool = True
    over: Annotated[int, Meta(ge=0)] = 20


class Cancel(_Question, frozen=True):
    """Please have this task end with a checkpoint."""

    name: str


class MarkNode(_Question, frozen=True):
    """A node is to be used no more, or again."""

    node: int
    up: bool


class SetShare(_Question, frozen=True):
    """Others need what is above so many workers; None: nobody does any more."""

    workers: Annotated[int, Meta(ge=0)] | None = None


Question: TypeAlias = HandIn | ListTasks | Cancel | MarkNode | SetShare


class ToldShare(msgspec.Struct, kw_only=True):
    """So many workers from the end of the share before, or from now, until then."""

    until_at: float
    workers: int


class ToldTask(msgspec.Struct, kw_only=True):
    """A task as people see it. earliest_at: the deadline that could be promised. Times are since 1970.

    held: workers that it may have, being more than ``workers`` until those have left that are too many.
    plan: what it gets at least until it is done, if it is planned; else what it has now, for as long as it
    would take so. by_at: what is promised, which is later than the deadline, which is soft.
    """

    name: str
    run: str
    user: str
    standing: str
    state: str
    said: str
    why: str
    workers: int
    held: int
    step: int
    steps: int | None
    rates: dict[int, float]
    handed_at: float
    deadline_at: float | None
    promised_at: float | None
    ended_at: float | None
    eta_at: float | None
    earliest_at: float | None
    plan: list[ToldShare] = []
    planned: bool = False
    by_at: float | None = None


class ServiceAnswer(msgspec.Struct, kw_only=True):
    """error: empty where all is well. capacity: workers that there can be.

    cluster: on which its runs are, with the section of their settings. away: nodes that are not there, and
    why. now_at: when that was so, by the service's clock.
    """

    error: str = ""
    term: int = 0
    capacity: int = 0
    tasks: list[ToldTask] = []
    cluster: str = "local"
    section: dict[str, Any] = {}
    away: dict[str, str] = {}
    now_at: float = 0.0


class RefusedError(RunError):
    """A service's answer, in its words."""


class Asker(msgspec.Struct):
    """Somebody at the other end of the socket. uid: as the kernel says."""

    uid: int
    line: socket.socket
    heard: bytes = b""
    unsent: bytes = b""


class Desk:
    """Where people ask. Nobody who is slow, silent or wordy holds up anybody else."""

    def __init__(self, folder: Path) -> None:
        path = folder / SOCKET
        path.unlink(missing_ok=True)  # of a service that was killed: the lock is held
        self._listener = socket.socket(socket.AF_UNIX)
        with nearby(folder / SOCKET) as near:
            self._listener.bind(near)
        path.chmod(0o600)
        self._listener.listen(MOST_PEOPLE)
        self._listener.setblocking(False)
        self._people: dict[int, Asker] = {}
        self._listens_s = 0.0

    @property
    def waiting(self) -> list[tuple[int, bool]]:
        """Descriptors to wait for; whether for them to take what is still to be sent, or to say something."""
        people = [(fd, bool(person.unsent)) for fd, person in self._people.items()]
        return people if time.monotonic() < self._listens_s else [(self._listener.fileno(), False), *people]

    def receive(self) -> list[tuple[Asker, Question]]:
        """What was asked meanwhile; those that may ask nothing, or ask nonsense, have had their answer."""
        with contextlib.suppress(BlockingIOError):
            while time.monotonic() >= self._listens_s:
                try:
                    line, _ = self._listener.accept()
                except BlockingIOError:
                    raise
                except OSError:  # too many open files, which is no reason to end
                    self._listens_s = time.monotonic() + REST_S
                    break
                line.setblocking(False)
                self._people[line.fileno()] = Asker(uid_of(line), line)
                if len(self._people) > MOST_PEOPLE:
                    self._drop(next(iter(self._people.values())))
        return [(person, asked) for person in list(self._people.values()) for asked in self._listen(person)]

    def answer(self, person: Asker, answer: ServiceAnswer) -> None:
        """Sends as much as goes at once, the rest when the other one reads."""
        person.unsent += as_json(answer) + b"\n"
        self._send(person)

    def close(self) -> None:
        """Asked no more."""
        for person in list(self._people.values()):
            self._drop(person)
        self._listener.close()

    def _listen(self, person: Asker) -> list[Question]:
        if person.unsent:
            self._send(person)
            return []
        try:
            said = person.line.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            said = b""
        person.heard += said
        if not said or len(person.heard) > MOST_BYTES:
            self._drop(person)
            return []
        if not person.heard.endswith(b"\n"):
            return []
        line, person.heard = person.heard, b""
        if person.uid not in (os.geteuid(), 0):
            who = f"this service is of the user with the number {os.geteuid()}"
            self.answer(person, ServiceAnswer(error=f"{who}, and answers nobody else; you are {person.uid}."))
            return []
        try:
            return [_questions.decode(line)]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.answer(person, ServiceAnswer(error=f"not a question to this service: {error}."))
            return []

    def _send(self, person: Asker) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                sent = person.line.send(person.unsent)
            except BlockingIOError:
                raise
            except OSError:
                self._drop(person)
                return
            person.unsent = person.unsent[sent:]

    def _drop(self, person: Asker) -> None:
        self._people.pop(person.line.fileno(), None)
        person.line.close()


def ask(folder: Path, question: Question) -> ServiceAnswer:
    """Asks a service. Raises RunError if there is none, or it refuses, UnknownError if it says nothing."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(ANSWER_S)
        try:
            with nearby(folder / SOCKET) as near:
                line.connect(near)
            line.sendall(as_json(question) + b"\n")
            with line.makefile("rb") as answers:
                said = answers.readline()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if _begins(folder):
                raise UnknownError(
                    f"{folder}: the service begins, and does not listen yet; ask again."
                ) from error
            raise RunError(
                f"{folder}: no service is there; 'elasticflow serve FILE' starts one. Runs that it has begun "
                "go on with what they were granted."
            ) from error
        except OSError as error:
            raise UnknownError(f"{folder}: the service cannot be asked: {error}.") from error
    if not said.endswith(b"\n"):
        raise UnknownError(f"{folder}: the service went away before it answered; ask again.")
    answer = from_json(said, ServiceAnswer)
    if answer.error:
        raise RefusedError(answer.error)
    return answer


def insist(folder: Path, question: HandIn | ListTasks) -> ServiceAnswer:
    """Asks a service, or the next one if it goes away: twice means the same as once. Raises as ``ask``.

    Where there was one a next one may begin just now, as after it was killed: that is waited for.
    """
    begun_s = time.monotonic()
    unknown: UnknownError | None = None
    while True:
        try:
            return ask(folder, question)
        except UnknownError as error:
            unknown = error
        except RefusedError:
            raise
        except RunError:
            is_early = (folder / SOCKET).exists() and time.monotonic() < begun_s + RESTART_S
            if unknown is None and not is_early:
                raise  # nobody has ever heard of it
        if unknown and time.monotonic() > begun_s + ANSWER_S:
            if isinstance(question, ListTasks):
                raise unknown
            raise UnknownError(
                f"{question.run_dir}: whether this run was taken in is not known: {unknown} Its folder "
                f"stays; 'elasticflow jobs --service {folder}' will tell."
            )
        time.sleep(AGAIN_S)  # until the next service listens


def _begins(folder: Path) -> bool:
    """Whether one has the folder, though it does not listen there."""
    with contextlib.suppress(OSError):
        return is_locked(folder / LOCK)
    return False


_questions: Any = json_decoder(Question)
