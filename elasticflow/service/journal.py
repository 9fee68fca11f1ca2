"""The service's journal: what has happened, and when. Appended to, and on the disk before anybody acts on it.

Each service claims a term (``master.fence``) and writes a file of its own, ``journal/TERM.jsonl``. Its first
line names the file before and how much of it was read: what an older service, which was not dead, wrote after
that never counts, and that service finds after each line that it is superseded, before it acts on it. A line
that was torn by a crash, the last one, never counts either: nobody acted on it. Nor does a last one that the
policy cannot decide, for a fault of its own: it would be the end of each service.

A file that has become long is followed by another, ``TERM-PART.jsonl``, which begins with all that is known.
The service goes on from what it has written there, as whoever reads it will. So a service that begins reads
little, however long ago the first one began; the files before are kept for ``elasticflow replay``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from elasticflow.errors import ConfigError, RunError
from elasticflow.master.fence import Superseded, claim, newest
from elasticflow.process.decoding import from_json
from elasticflow.process.texts import as_json
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.fairness import Quotas
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies import policy
from elasticflow.service.happenings import Happening
from elasticflow.service.records import StateRecord, recall_all, record_all
from elasticflow.service.state import ServiceState
from elasticflow.storage import storage_of

T = TypeVar("T")
FILES = "journal"
"""Where it lies in a service's folder."""
LONG_BYTES = 1 << 20
"""A file that is longer is followed by another, unless what is known takes more than a quarter of that."""
KEPT_BYTES = 64 << 20
"""Of all files; of more the oldest are removed that nobody has to read."""


class UserQuota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of a user. weight: of what is left over, beside others'. most_workers: for promises; None: any."""

    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    most_workers: Annotated[int, Meta(ge=0)] | None = None


class ServiceRules(msgspec.Struct, frozen=True, kw_only=True):
    """By what is decided: the same for all of a journal."""

    policy: str
    nodes: int
    gpus_per_node: int
    overheads: Overheads
    cluster: str = "local"
    quotas: dict[str, UserQuota] = {}

    def new_state(self, numbered: int = 0) -> ServiceState:
        """Of a service that knows of no task, after so many. Raises ConfigError."""
        shape = ClusterShape(self.nodes, self.gpus_per_node)
        quotas = Quotas(
            {user: each.weight for user, each in self.quotas.items()},
            {user: each.most_workers for user, each in self.quotas.items() if each.most_workers is not None},
        )
        return ServiceState(policy(self.policy, shape, self.overheads, quotas), numbered)


class UndecidedError(RunError):
    """What happened cannot be decided, for a fault of the policy: it has never happened."""


class ChapterId(NamedTuple):
    """Of a journal's file. part: of those of one term, which follow each other."""

    term: int
    part: int = 0

    def __str__(self) -> str:
        return f"{self.term:08}{f'-{self.part:06}' if self.part else ''}.jsonl"


class Opening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line. before, part: the file that this one goes on from; 0: none. taken: its bytes.

    numbered: of a file that goes on from none, so many tasks there were before. known: all that came of the
    files before.
    """

    rules: ServiceRules
    before: int
    taken: int
    numbered: int = 0
    part: int = 0
    known: StateRecord | None = None

    def begun(self, before: ServiceState | None) -> ServiceState:
        """With what the file begins. before: the state at the end of the file before, if that was read."""
        state = before or self.rules.new_state(self.numbered)
        if self.known is not None:
            recall_all(state, self.rules.new_state().policy, self.known)
        return state


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What happened at one time."""

    now_s: float
    happened: list[Happening]


class Chapter(NamedTuple):
    """A file of a journal, as far as it counts: of ``num_bytes``, its last line of ``last_bytes``."""

    opening: Opening
    turns: list[Turn]
    num_bytes: int
    last_bytes: int

    @property
    def but_last(self) -> Chapter:
        """Without its last turn."""
        return self._replace(turns=self.turns[:-1], num_bytes=self.num_bytes - self.last_bytes)


class JournalFiles:
    """Of a journal, to read, in one folder. Raises RunError where one is damaged, OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, file: ChapterId) -> Path:
        """Of this file."""
        return self.folder / str(file)

    def all(self) -> list[ChapterId]:
        """In the order in which they were begun."""
        return sorted(each for path in self.folder.glob("*.jsonl") if (each := chapter_id(path)))

    def newest(self) -> ChapterId | None:
        """That holds anything: whoever made a later one died before it had decided anything."""
        return max((each for each in self.all() if _has_begun(self.path(each))), default=None)

    def chapters(
        self, newest: ChapterId, *, taken: int | None = None, all_kept: bool = False
    ) -> list[Chapter]:
        """What has happened, by files: from the last one on that begins with all that is known.

        taken: so many bytes of the newest one count; None: all. all_kept: from the oldest one that there is.
        """
        found: list[Chapter] = []
        file = newest
        while True:
            lines = self._sound(file, self.path(file).read_bytes()[:taken].splitlines(keepends=True))
            opening = self._decoded(file, lines[0], Opening)
            turns = [self._decoded(file, line, Turn) for line in lines[1:]]
            found.append(Chapter(opening, turns, sum(map(len, lines)), len(lines[-1])))
            file, taken = ChapterId(opening.before, opening.part), opening.taken
            if not opening.before or (opening.known and not (all_kept and self.path(file).exists())):
                return found[::-1]

    def _sound(self, file: ChapterId, lines: list[bytes]) -> list[bytes]:
        """Those that are whole. Raises RunError if another than the last one is not."""
        if lines and not _is_whole(lines[-1]):
            lines.pop()
        damaged = next((number for number, line in enumerate(lines, 1) if not _is_whole(line)), None)
        if damaged or not lines:
            raise RunError(
                f"{self.path(file)}: line {damaged or 1} is damaged. Put back a copy of the folder, or move "
                f"{self.folder} away: then nothing of what was promised is known any more."
            )
        return lines

    def _decoded(self, file: ChapterId, line: bytes, kind: type[T]) -> T:
        try:
            return from_json(line[9:], kind)
        except msgspec.MsgspecError as error:
            raise RunError(
                f"{self.path(file)}: was written by another ElasticFlow, and cannot be read: {error}"
            ) from error


def chapter_id(path: Path) -> ChapterId | None:
    """None: it is no journal's."""
    numbers = path.stem.split("-")
    if path.suffix != ".jsonl" or len(numbers) > 2 or not all(map(str.isdecimal, numbers)):
        return None
    return ChapterId(*map(int, numbers))


class ServiceJournal:
    """Of one service, in its folder. ``state`` is what came of all before.

    Raises RunError, ConfigError, OSError.
    """

    def __init__(self, folder: Path, rules: ServiceRules) -> None:
        self._rules = rules
        self._files = files = JournalFiles(folder / FILES)
        files.folder.mkdir(mode=0o700, exist_ok=True)
        self._storage = storage_of(str(folder))
        self._file: int | None = None
        # A journal that was put back without its terms: what is written goes after all that there is.
        self.term = claim(self._storage, above=max(files.all(), default=ChapterId(0)).term)
        newest_file = files.newest()
        if newest_file is None:
            self.state = rules.new_state()
            self._begin(ChapterId(self.term), Opening(rules=rules, before=0, taken=0))
            return
        chapters = files.chapters(newest_file)
        self.state, num_bytes = self._told_again(newest_file, chapters)
        found = chapters[0].opening.rules
        if self.state.under_way() and found != rules:
            raise ConfigError(
                f"{folder}: {len(self.state.under_way())} runs are under way, and rely on "
                f"{found.nodes} nodes of {found.gpus_per_node} ({found.cluster}), {found.policy} and "
                f"{found.overheads}{', and on quotas' if found.quotas != rules.quotas else ''}; "
                "the settings say something else by now. Set them back until 'elasticflow jobs' shows none."
            )
        if found != rules:
            self.state = rules.new_state(self.state.numbered)
            self._begin(
                ChapterId(self.term), Opening(rules=rules, before=0, taken=0, numbered=self.state.numbered)
            )
            self._prune(0)
        else:
            self._go_on(ChapterId(self.term), newest_file, num_bytes)

    @property
    def path(self) -> Path:
        """Of the file that it writes."""
        return self._files.path(self._id)

    def handle(self, happened: Sequence[Happening], now_s: float) -> None:
        """Writes it down, then has the state decide; before that, raises Superseded if it is.

        Raises UndecidedError if that fails: then it never counts, and the state is as it was.
        """
        if self._num_bytes > max(LONG_BYTES, 4 * self._known_bytes):
            self._go_on(self._next, self._id, self._num_bytes)
        num_bytes = self._num_bytes
        self._append(Turn(now_s=now_s, happened=list(happened)))
        try:
            self.state.handle(happened, now_s)
        except Exception as error:
            before = told_again(self._files.chapters(self._id, taken=num_bytes))
            recall_all(self.state, self._rules.new_state().policy, record_all(before))
            self._go_on(self._next, self._id, num_bytes)
            kinds = ", ".join(dict.fromkeys(type(each).__name__ for each in happened))
            raise UndecidedError(
                f"the policy {self._rules.policy!r} could not decide ({kinds}), and all is as it was before "
                f"that: {type(error).__name__}: {error}"
            ) from error

    def close(self) -> None:
        """Writes no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def _next(self) -> ChapterId:
        return self._id._replace(part=self._id.part + 1)

    def _told_again(self, newest: ChapterId, chapters: list[Chapter]) -> tuple[ServiceState, int]:
        """What came of them, and of how many bytes of the newest one. Raises RunError."""
        last = chapters[-1]
        with contextlib.suppress(Exception):
            return told_again(chapters), last.num_bytes
        try:
            return told_again([*chapters[:-1], last.but_last]), last.but_last.num_bytes
        except Exception as error:
            raise RunError(
                f"{self._files.path(newest)}: what it tells cannot be decided again: {type(error).__name__}: "
                f"{error}. Go on with the ElasticFlow that wrote it, or move {self._files.folder} away: then "
                "nothing of what was promised is known any more."
            ) from error

    def _go_on(self, file: ChapterId, before: ChapterId, taken: int) -> None:
        """Begins a file with all that is known, and goes on from that."""
        known = record_all(self.state)
        opening = Opening(rules=self._rules, before=before.term, part=before.part, taken=taken, known=known)
        self._begin(file, opening).begun(self.state)
        self._prune(KEPT_BYTES)

    def _begin(self, file: ChapterId, opening: Opening) -> Opening:
        """Returns it as whoever reads the file will have it."""
        self.close()
        self._id, self._num_bytes = file, 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(self.path, flags, 0o600)
        line = self._append(opening)
        self._known_bytes = self._num_bytes
        descriptor = os.open(self._files.folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)
        return from_json(line, Opening)

    def _prune(self, most_bytes: int) -> None:
        """Removes the oldest files, as many as it takes; none that has to be read."""
        paths = [self._files.path(each) for each in self._files.all() if each < self._id]
        num_bytes = sum(path.stat().st_size for path in paths)
        for path in paths:
            if num_bytes <= most_bytes:
                break
            num_bytes -= path.stat().st_size
            path.unlink()

    def _append(self, value: Opening | Turn) -> bytes:
        assert self._file is not None
        line = as_json(value)
        told = b"%08x %s\n" % (zlib.crc32(line), line)
        # A disk that becomes full takes a part. Nothing may follow that: the next service begins a file.
        if os.write(self._file, told) < len(told):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        os.fsync(self._file)
        self._num_bytes += len(told)
        if (now := newest(self._storage)) > self.term:
            raise Superseded(f"service of term {self.term} is superseded by that of term {now}")
        return line


def told_again(chapters: Sequence[Chapter]) -> ServiceState:
    """What came of them."""
    state: ServiceState | None = None
    for chapter in chapters:
        state = chapter.opening.begun(state)
        for turn in chapter.turns:
            state.handle(turn.happened, turn.now_s)
    assert state is not None
    return state


def _has_begun(path: Path) -> bool:
    """Whether its first line is whole, or damaged: only to one that is on the disk others are added."""
    with path.open("rb") as file:
        return _is_whole(file.readline()) or bool(file.read(1))


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:9] == b"%08x " % zlib.crc32(line[9:-1])
