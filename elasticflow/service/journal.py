"""The service's journal: what has happened, and when. Appended to, and on the disk before anybody acts on it.

Each service claims a term (``master.fence``) and writes a file of its own, ``journal/TERM.jsonl``. Its first
line names the file before and how much of it was read: what an older service, which was not dead, wrote after
that never counts, and that service finds after each line that it is superseded, before it acts on it. A line
that was torn by a crash, the last one, never counts either: nobody acted on it.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from elasticflow.errors import ConfigError, RunError
from elasticflow.master.fence import Superseded, claim, newest
from elasticflow.process.texts import as_json
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies import policy
from elasticflow.service.happenings import Happening
from elasticflow.service.state import ServiceState
from elasticflow.storage import storage_of

T = TypeVar("T")
MOST_BYTES = 1 << 20
"""A service that starts when nothing is under way begins a new journal, if the old one is longer."""


class ServiceRules(msgspec.Struct, frozen=True, kw_only=True):
    """By what is decided: the same for all of a journal."""

    policy: str
    nodes: int
    gpus_per_node: int
    overheads: Overheads
    cluster: str = "local"

    def new_state(self, numbered: int = 0) -> ServiceState:
        """Of a service that knows of no task, after so many. Raises ConfigError."""
        shape = ClusterShape(self.nodes, self.gpus_per_node)
        return ServiceState(policy(self.policy, shape, self.overheads), numbered)


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. before: the term of the file that this one goes on from; 0: none. taken: its bytes.

    numbered: of a file that goes on from none, so many tasks there were before.
    """

    rules: ServiceRules
    before: int
    taken: int
    numbered: int = 0


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What happened at one time."""

    now_s: float
    happened: list[Happening]


class ServiceJournal:
    """Of one service, in its folder. ``state`` is what came of all before.

    Raises RunError, ConfigError, OSError.
    """

    def __init__(self, folder: Path, rules: ServiceRules) -> None:
        self._files = folder / "journal"
        self._files.mkdir(mode=0o700, exist_ok=True)
        self._storage = storage_of(str(folder))
        self.term = claim(self._storage)
        before = max((int(path.stem) for path in self._files.glob("*.jsonl") if _has_begun(path)), default=0)
        self.state, taken = self._replayed(before) if before else (rules.new_state(), 0)
        found = self._opening(before).rules if before else rules
        if self.state.under_way() and found != rules:
            raise ConfigError(
                f"{folder}: {len(self.state.under_way())} runs are under way, and rely on "
                f"{found.nodes} nodes of {found.gpus_per_node} ({found.cluster}), {found.policy} and "
                f"{found.overheads}; "
                "the settings say something else by now. Set them back until 'elasticflow jobs' shows none."
            )
        num_bytes = sum(path.stat().st_size for path in self._files.glob("*.jsonl"))
        if before and not self.state.under_way() and (found != rules or num_bytes > MOST_BYTES):
            before, taken, self.state = 0, 0, rules.new_state(self.state.numbered)
        self._file = os.open(self._path(self.term), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        numbered = 0 if before else self.state.numbered
        self._append(Opening(rules=rules, before=before, taken=taken, numbered=numbered))
        descriptor = os.open(self._files, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)
        if not before:
            for path in self._files.glob("*.jsonl"):
                if path != self._path(self.term):
                    path.unlink()

    def handle(self, happened: Sequence[Happening], now_s: float) -> None:
        """Writes it down, then has the state decide; before that, raises Superseded if it is."""
        self._append(Turn(now_s=now_s, happened=list(happened)))
        self.state.handle(happened, now_s)

    def close(self) -> None:
        """Writes no more."""
        os.close(self._file)

    def _append(self, value: Opening | Turn) -> None:
        line = as_json(value)
        told = b"%08x %s\n" % (zlib.crc32(line), line)
        # A disk that becomes full takes a part. Nothing may follow that: the next service begins a file.
        if os.write(self._file, told) < len(told):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path(self.term)))
        os.fsync(self._file)
        if (now := newest(self._storage)) > self.term:
            raise Superseded(f"service of term {self.term} is superseded by that of term {now}")

    def _replayed(self, term: int) -> tuple[ServiceState, int]:
        """What came of a file and those before it, and how many bytes of it count."""
        chain, opening = [(term, self._lines(term))], self._opening(term)
        while opening.before:
            chain.append((opening.before, self._lines(opening.before, opening.taken)))
            opening = self._opening(opening.before)
        state = opening.rules.new_state(opening.numbered)
        for each, lines in reversed(chain):
            for line in lines[1:]:
                turn = self._decoded(each, line, Turn)
                state.handle(turn.happened, turn.now_s)
        return state, sum(map(len, chain[0][1]))

    def _opening(self, term: int) -> Opening:
        lines = self._lines(term)
        return self._decoded(term, lines[0], Opening)

    def _lines(self, term: int, most_bytes: int | None = None) -> list[bytes]:
        """Those that are whole. Raises RunError if another than the last one is not."""
        lines = self._path(term).read_bytes()[:most_bytes].splitlines(keepends=True)
        if lines and not _is_whole(lines[-1]):
            lines.pop()
        damaged = next((number for number, line in enumerate(lines, 1) if not _is_whole(line)), None)
        if damaged or not lines:
            raise RunError(
                f"{self._path(term)}: line {damaged or 1} is damaged. Put back a copy of the folder, or move "
                f"{self._files} away: then nothing of what was promised is known any more."
            )
        return lines

    def _decoded(self, term: int, line: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(line[9:], type=kind)
        except msgspec.MsgspecError as error:
            raise RunError(
                f"{self._path(term)}: was written by another ElasticFlow, and cannot be read: {error}"
            ) from error

    def _path(self, term: int) -> Path:
        return self._files / f"{term:08}.jsonl"


def _has_begun(path: Path) -> bool:
    """Else whoever made the file died before it had decided anything."""
    with path.open("rb") as file:
        return _is_whole(file.readline())


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:9] == b"%08x " % zlib.crc32(line[9:-1])
