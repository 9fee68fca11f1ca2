"""A run's folder: what lies where, and who may use it. A directory, or a URL on HDFS.

lock            held by the run's master and its supervisor as long as one of them lives
submitting      held by whoever has a cluster go on with the run, until that has taken it
run.json        the settings of the run that are not the defaults, and the version that wrote them
program/        the run's own copy of its program, see elasticflow.program.copy
job.json        on a cluster: the job in which the master is
master.json     the master's endpoint and process number; stays while another master takes over
journal.json    what the next master has to know if this one dies
keys/           for the run's owner alone: the keys of the job, master.json, client.json, and of each member
                in of/NAME.json; and what the local backend keeps of its processes
checkpoints/    see elasticflow.checkpoint; with ``checkpoint_dir`` elsewhere, see its module ``place``
owner.json      then, the run's claim to that place
logs/           one file a process
.reserve        space for report and journal where the file system is full, see elasticflow.run.reserve
attempts.json   of a run that was resumed: when each time before began, and how long it took
status.json     with ``share: group``, how it goes, for those who may not ask the master
report.json     how the run went, once it is over

On HDFS there are no lock, logs and local backend.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from elasticflow import __version__
from elasticflow.errors import ConfigError, NoRunError, RunError, UnknownError
from elasticflow.process.decoding import converted, from_json
from elasticflow.process.locked_files import LOOK_S, is_locked, wait_until_free
from elasticflow.process.packages import require
from elasticflow.process.retry import is_away
from elasticflow.process.stamps import unstamped
from elasticflow.process.texts import as_json
from elasticflow.run.config import Config, differences
from elasticflow.run.telling import Report
from elasticflow.run.tracks import check_packages
from elasticflow.storage import Storage, storage_of
from elasticflow.storage.hdfs import HdfsPath
from elasticflow.storage.urls import is_hdfs
from elasticflow.wire.keys import CLIENT, MemberKeys, make_keys, write_secret

T = TypeVar("T")
RunPath = Path | HdfsPath
UNKNOWN = "0"
"""A job's id in the run's folder, until the cluster has told it."""
EXIT_CODES = {"finished": 0, "failed": 1, "stopped": 3, "diverged": 4, "stalled": 5, "broken": 6}
"""Of a run, by how it ended."""
ENDED = tuple(EXIT_CODES)
"""States of a run that is over."""
FAILURES = EXIT_CODES.keys() - {"finished", "stopped"}
"""Ends that nobody asked for."""
MOST_BYTES = 64 << 20
"""Of a file of JSON in a run's folder: a report of thousands of members and events has some megabytes."""
PRIVATE = ("keys", "program", "checkpoints", "rows")
"""Folders that are shown to nobody: what is in them opens the run, or is the model."""
LAST_WORDS_BYTES = 1 << 16
"""Of a log, as much as its last line is looked for in."""
LOOKS = 5
"""How often ``hold`` tries a lock that is taken."""


class HostJob(msgspec.Struct, frozen=True):
    """A cluster's job that hosts a run's master. run: tells the jobs of this run from all others."""

    backend: str
    id: str
    run: str


class Address(msgspec.Struct, frozen=True):
    """Where a run's master listens."""

    endpoint: str
    host: str
    pid: int


class PastAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run from its beginning, or ``--resume``, to its end, however that was. started_at: since 1970.

    evaluation: its last one, if it had any.
    """

    started_at: float
    elapsed_s: float
    evaluation: dict[str, Any] | None = None


class _Claim(msgspec.Struct, frozen=True):
    """What matters of it here. See ``checkpoint.place.PlaceOwner``."""

    id: str = ""


class _Told(msgspec.Struct):
    """Of a report, or of a journal's story, how long it has been, and what was measured last."""

    started_at: float
    elapsed_s: float = 0.0
    time_s: float = 0.0
    evaluation: dict[str, Any] | None = None
    """A report's."""
    evaluations: list[dict[str, Any]] | dict[int, dict[str, Any]] = []
    """A journal's are by tick."""


class _Storied(msgspec.Struct):
    story: _Told


def _attempt_of(path: RunPath) -> PastAttempt | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        data = read_bounded(path)
        is_journal = path.name == "journal.json"
        told = from_json(data, _Storied).story if is_journal else from_json(data, _Told)
        by_tick = told.evaluations if isinstance(told.evaluations, dict) else {}
        last = by_tick[max(by_tick)] if by_tick else told.evaluation
        return PastAttempt(told.started_at, max(told.elapsed_s, told.time_s), last)
    return None


def publish(path: RunPath, value: Any, *, durable: bool = True) -> None:
    """Writes a value as JSON. Whoever reads the file finds the old or the new one, never a part.

    durable: also after a power cut, which takes a disk some milliseconds.
    """
    replace(path, msgspec.json.format(as_json(value)), durable=durable)


def replace(path: RunPath, data: bytes, *, durable: bool = True) -> None:
    """Writes a file, as ``publish`` does."""
    if isinstance(path, HdfsPath):
        path.replace_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if durable:  # before it gets its name: a power cut may leave that, and no bytes
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_bounded(path: RunPath, most_bytes: int = MOST_BYTES) -> bytes:
    """A file of a run's folder. Raises OSError for one that is no file, such as a pipe, or is longer."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is no file", str(path))
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, more than it can have", str(path))
    return path.read_bytes()


def remove_tree(path: RunPath) -> None:
    """Removes a folder with all it holds, as far as that can be done."""
    if isinstance(path, HdfsPath):
        with contextlib.suppress(OSError):
            path.remove_tree()
    else:
        shutil.rmtree(path, ignore_errors=True)


def last_line(path: Path, but_for: str = "\0") -> str:
    """The last words in a log, 300 characters at most. but_for: lines that begin so do not count."""
    with contextlib.suppress(OSError), open(path, "rb", opener=_without_waiting) as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
        lines = [unstamped(line) for line in log.read().decode(errors="replace").splitlines()]
        lines = [line for line in lines if line.strip() and not line.startswith(but_for)]
        if lines:
            return lines[-1][:300]
    return "(none)"


def log_to_add_to(path: Path) -> IO[bytes]:
    """Raises OSError, also for a pipe from which nobody reads: whoever writes there would wait."""
    return open(path, "ab", opener=_without_waiting)


def _without_waiting(path: str, flags: int) -> int:
    """Whoever opens a pipe would wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


class RunDir:
    """Paths in a run's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: RunPath = HdfsPath(str(path)) if "://" in str(path) else Path(path)
        self.settings = self.path / "run.json"
        self.address = self.path / "master.json"
        self.job = self.path / "job.json"
        self.journal = self.path / "journal.json"
        self.client_keys = self.path / "keys" / "client.json"
        self.master_keys = self.path / "keys" / "master.json"
        self.report = self.path / "report.json"
        self.attempts = self.path / "attempts.json"
        self.shown = self.path / "status.json"
        self.digests = self.path / "digests.json"
        self.mark = self.path / "mark"
        self.claim = self.path / "owner.json"

    @property
    def folder(self) -> Path:
        """The run's folder as a directory. Raises RunError if it is none."""
        if isinstance(self.path, HdfsPath):
            raise RunError(
                f"{self.path}: is no folder of this machine's. A run that is on HDFS goes on where it was; "
                f"'elasticflow checkpoint copy {self.path} FOLDER' makes a folder of it."
            )
        return self.path

    def program_copy(self, name: str) -> RunPath:
        """Where a copy of the program lies, by the first digits of its hash."""
        return self.path / "program" / f"{name}.zip"

    @property
    def submitting(self) -> Path:
        """See above."""
        return self.folder / "submitting"

    @property
    def lock(self) -> Path:
        """See above."""
        return self.folder / "lock"

    @property
    def logs(self) -> Path:
        """See above."""
        return self.folder / "logs"

    @property
    def master_log(self) -> Path:
        """What the master of a run on this machine says."""
        return self.logs / "master.log"

    def storage(self) -> Storage:
        """The folder, which is there: terms, and checkpoints unless these are elsewhere."""
        return storage_of(str(self.path))

    def checkpoints(self) -> Storage:
        """Where checkpoints lie. Raises RunError."""
        return storage_of(self.checkpoint_place)

    @property
    def checkpoint_place(self) -> str:
        """The same, as a path or a URL. Raises RunError."""
        with contextlib.suppress(NoRunError):
            return str(self._read(self.settings, dict[str, Any]).get("checkpoint_place") or self.path)
        return str(self.path)

    def _settled(self, config: Config, is_new: bool) -> Config:
        """Has a new run's checkpoints lie where its settings say. Raises ConfigError, RunError."""
        before = Config() if is_new else self.config()
        if not config.checkpoint_dir and not before.checkpoint_dir:
            return msgspec.structs.replace(config, checkpoint_place="")
        from elasticflow.checkpoint.place import below, check, normal, settle  # brings NumPy along

        wanted = normal(config.checkpoint_dir) if config.checkpoint_dir else ""
        if not is_new and wanted != before.checkpoint_dir:
            raise ConfigError(
                f"checkpoint_dir: {wanted or '(none)'}: the checkpoints of this run are in "
                f"{before.checkpoint_place or 'its folder'}, and stay there; 'elasticflow checkpoint copy' "
                "makes another run."
            )
        place = below(wanted, str(self.path)) if is_new else before.checkpoint_place
        if is_new:
            owner = settle(place, str(self.path))
        else:
            owner = check(place, str(self.path), self.claim_id())
        publish(self.claim, owner)
        return msgspec.structs.replace(config, checkpoint_dir=wanted, checkpoint_place=place)

    def claim_id(self) -> str:
        """That of its claim to where its checkpoints lie; "" if it has none. Raises RunError."""
        try:
            return self._read(self.claim, _Claim).id
        except NoRunError:
            return ""

    def forsake(self) -> None:
        """It did not begin: nothing of it stays where its checkpoints would have been."""
        with contextlib.suppress(RunError):
            if (place := self.checkpoint_place) != str(self.path):
                from elasticflow.checkpoint.place import forsake

                forsake(place, str(self.path))

    def create(self, config: Config) -> None:
        """Makes the folder and the keys of a new job, or new keys for one that is resumed.

        Raises ConfigError, OSError.
        """
        if config.timeline and isinstance(self.path, HdfsPath):
            raise ConfigError(
                "timeline: is recorded in a folder that all see, and not on HDFS; leave it out."
            )
        if config.track and isinstance(self.path, HdfsPath):
            raise ConfigError(
                "track: curves are drawn in a folder of this machine, and not on HDFS; leave it out, and "
                "have them drawn where you look at them: elasticflow track RUN --with NAME --to FOLDER."
            )
        check_packages(config.track)
        if config.metrics_port:
            require("prometheus_client", "metrics_port", "metrics")
        if config.share == "group" and isinstance(self.path, HdfsPath):
            raise ConfigError(
                "share: group is for folders that all see, and not for HDFS; leave it out, and let others "
                "read the report there ('hdfs dfs -setfacl')."
            )
        is_new = not self.settings.exists()
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if isinstance(self.path, Path):
            self.logs.mkdir(exist_ok=True)
            if is_new or config.share == "group":
                self._admit(config.share)
        if config.timeline:
            (self.folder / "timelines").mkdir(exist_ok=True)
        self.client_keys.parent.mkdir(mode=0o700, exist_ok=True)
        remove_tree(self._members_keys)  # of a run that is resumed
        self._members_keys.mkdir(mode=0o700, exist_ok=True)
        keys = make_keys()
        write_secret(self.client_keys, msgspec.json.encode(keys.of(CLIENT)))
        write_secret(self.master_keys, msgspec.json.encode(keys))
        self.write_settings(self._settled(config, is_new))  # last: where they are, there is a run

    def write_settings(self, config: Config) -> None:
        """Those that are not the defaults. Raises OSError."""
        publish(self.settings, {"version": __version__, **differences(config)})

    @property
    def _members_keys(self) -> RunPath:
        return self.path / "keys" / "of"

    def keys_of(self, name: str) -> RunPath:
        """Where a member finds its keys."""
        return self._members_keys / f"{name}.json"

    def hand_out(self, keys: MemberKeys) -> None:
        """Leaves a member's keys for it. Raises OSError."""
        write_secret(self.keys_of(keys.name), msgspec.json.encode(keys))

    def _admit(self, share: str) -> None:
        """Says who may look into the folder: its owner; with ``group`` that group too, at what is shown."""
        mode = 0o750 if share == "group" else 0o700
        with contextlib.suppress(PermissionError):  # a folder of somebody else's, who is trusted
            self.folder.chmod(mode | self.folder.stat().st_mode & stat.S_ISGID)
            for name in PRIVATE if share == "group" else ():
                (self.folder / name).mkdir(exist_ok=True)
                (self.folder / name).chmod(0o700)

    def sweep(self) -> None:
        """Removes what whoever was killed while writing a file of this folder has left. The lock is held."""
        for path in self.folder.glob(".*.json.*"):
            if re.fullmatch(r"\.\w+\.json\.[0-9a-f]{8}", path.name):
                with contextlib.suppress(OSError):  # what stays is in nobody's way
                    path.unlink()

    def config(self) -> Config:
        """The run's settings. Raises RunError if this is no run's folder, or a later ElasticFlow's."""
        values = self._read(self.settings, dict[str, Any])
        version = values.pop("version", "")
        if unknown := sorted(values.keys() - set(Config.__struct_fields__)):
            wrote = f"ElasticFlow {version}" if version else "another ElasticFlow"
            raise RunError(
                f"{self.settings}: was written by {wrote}, this is {__version__}, which does not know the "
                f"setting {', '.join(unknown)}. Go on with the one that wrote it, or a later one; or, if the "
                "run can do without, take the setting out of the file. See docs/upgrade.md."
            )
        try:
            return converted(values, Config)
        except (msgspec.MsgspecError, ValueError) as error:
            raise RunError(f"{self.settings}: cannot be read: {error}") from error

    def read_address(self) -> Address:
        """Where the master listens, or did, if it was killed. Raises RunError if nothing is known."""
        return self._read(self.address, Address)

    def read_report(self) -> Report | None:
        """How the run ended; None if it left no word."""
        if not self.report.exists():
            return None
        try:
            return from_json(read_bounded(self.report), Report)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RunError(f"{self.report}: is damaged: {error}.") from error

    def past_attempts(self) -> tuple[PastAttempt, ...]:
        """Those before this one, the oldest first. Raises RunError."""
        return self._read(self.attempts, tuple[PastAttempt, ...]) if self.attempts.exists() else ()

    def end_attempt(self) -> None:
        """Writes down how long it took so far, before report and journal of it are gone. Raises OSError."""
        found = [_attempt_of(path) for path in (self.report, self.journal)]
        with contextlib.suppress(RunError):
            known = self.past_attempts()
            told = [each for each in found if each]
            latest = max(told, key=lambda each: (each.started_at, each.elapsed_s), default=None)
            if latest and latest.started_at not in [each.started_at for each in known]:
                publish(self.attempts, (*known, latest))

    def refresh(self) -> None:
        """Has a network file system ask its server what is new in the folder.

        NFS believes for up to a minute that a file is not there which it has looked for in vain.
        """
        if isinstance(self.path, Path):
            with contextlib.suppress(OSError):
                os.close(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY))

    def host(self) -> HostJob | None:
        """The job in which the run's master is; None if it is, or was, on this machine alone."""
        return self._read(self.job, HostJob) if self.job.exists() else None

    @property
    def resume_command(self) -> str:
        """What goes on with this run where it has been."""
        verb = "submit" if self.job.exists() else "train"
        return f"elasticflow {verb} --resume --run-dir {self.path}"

    def _read(self, path: RunPath, kind: type[T]) -> T:
        try:
            return from_json(read_bounded(path), kind)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoRunError(f"{self.path}: is not the folder of a run (there is no {path.name}).") from error
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            kind_of = UnknownError if is_away(error) else RunError
            raise kind_of(f"{path}: cannot be read: {error}") from error

    def hold(self) -> int:
        """Takes the run's lock, as long as the descriptor is open in this process or one forked from it.

        Programs that they start do not inherit it. Raises RunError if somebody else has the lock.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be used: {error.strerror}; choose another --run-dir."
            ) from error
        for _ in range(LOOKS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            time.sleep(LOOK_S)  # it may be somebody who only looks, see is_locked
        os.close(descriptor)
        raise RunError(
            f"{self.path}: another run is using this folder; stop it with 'elasticflow stop {self.path}', "
            "or choose another --run-dir."
        )

    def is_locked(self) -> bool:
        """Whether a master runs here."""
        return not isinstance(self.path, HdfsPath) and is_locked(self.lock)

    def wait_until_free(self, timeout_s: float) -> None:
        """Waits until no master runs here, for so long at most."""
        if not isinstance(self.path, HdfsPath):
            wait_until_free(self.lock, timeout_s)


def place_of_checkpoints(where: str) -> str:
    """Of the run in a folder; a file, or a URL of a store, is one itself. Raises RunError."""
    is_run = is_hdfs(where) or os.path.isdir(where)
    return RunDir(where).checkpoint_place if is_run else where
