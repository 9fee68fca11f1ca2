"""The logs of a run on YARN: they are nowhere near its folder.

While an application runs, the NodeManagers show what its containers write, on a web page. Afterwards that
is gone, and YARN has gathered it in files of its own on HDFS, which Hadoop's own tool can read. Both wrap a
log in the same lines, of which one says how long it is:

    LogType:worker.log
    LogLastModifiedTime:Sat Nov 21 22:00:00 +0000 2026
    LogLength:1234
    LogContents:
    (as many bytes, or those at the end of it that were asked for)
    End of LogType:worker.log

What Skein writes where: a service's containers into ``<service>.log``, and the script in the
ApplicationMaster's container, which is the master, into ``application.driver.log``.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from elasticflow.cluster.contract import MASTER
from elasticflow.cluster.logbook import CHUNK, LogBook, LogFile, by_number
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.process.stamps import unstamped
from elasticflow.run.folder import UNKNOWN, RunDir
from elasticflow_yarn.cluster import ResourceManager, listed, new_session
from elasticflow_yarn.containers import PlacedContainer, read
from elasticflow_yarn.errors import YarnError
from elasticflow_yarn.java import SMALL

if TYPE_CHECKING:
    import requests

DRIVER = "application.driver.log"
PATTERN = r"(application\.driver|worker|server)\.log"
TOOL = "org.apache.hadoop.yarn.client.cli.LogsCLI"
PLACES_S = 2.0
"""So long the list of containers is taken to be right."""
CALL_S = 10.0
MARGIN = 1 << 16
"""A log may grow by so many bytes between a question for its length and one for its end."""
GATHER_S, AGAIN_S = 30.0, 1.0
"""YARN gathers the logs of an application within so long after its end, as a rule."""
ASKING_S = 600.0
"""Hadoop's tool may take so long."""
_LATER = "its nodes have not gathered all logs yet; try again later"
_FAILED = "some of its nodes could not gather their logs"
WHY_NO_LOGS = {
    "DISABLED": "nodes of this cluster keep their logs to themselves (yarn.log-aggregation-enable is off)",
    **dict.fromkeys(("NOT_START", "RUNNING"), _LATER),
    **dict.fromkeys(("FAILED", "RUNNING_WITH_FAILURE"), _FAILED),
    "TIME_OUT": "a node that had some of its logs is gone, or has not gathered them in time",
}
"""By YARN's word for how far it has come with that."""


def file_of(name: str) -> str:
    """The file, in its container, that a member's output is in."""
    role = name.partition("-")[0]
    return DRIVER if role == MASTER else f"{role}.log"


# --- how YARN wraps logs --------------------------------------------------------------------------


class Bytes(Protocol):
    """That come one after the other."""

    def read(self, size: int = -1, /) -> bytes: ...


class Stream(Bytes, Protocol):
    """That has lines, too."""

    def readline(self) -> bytes: ...


class Header(NamedTuple):
    """What comes before a log. container: "" where the answer is of one alone. length: of the whole file."""

    container: str
    file: str
    length: int


def read_header(stream: Stream) -> Header | None:
    """Of the next log; None if there is none. What follows in the stream is what is in it."""
    container, file, length = "", "", 0
    for line in iter(stream.readline, b""):
        text = line.decode(errors="replace").rstrip("\n")
        if text.startswith("Container: "):
            container = text.split()[1]
        elif text.startswith("LogType:"):
            file = text.removeprefix("LogType:").strip()
        elif text.startswith("LogLength:") and file:
            length = int(text.removeprefix("LogLength:"))
        elif text.startswith("LogContents:") and file:
            return Header(container, file, length)
    return None


def pieces(stream: Bytes, size: int) -> Iterator[bytes]:
    """The next so many bytes, or as many as there are."""
    while size and (piece := stream.read(min(size, CHUNK))):
        size -= len(piece)
        yield piece


def last_lines(tail: bytes, lines: int) -> int | None:
    """Where the last so many lines begin in the end of a log; None if it has not as many."""
    if not lines:
        return len(tail)
    place, wanted = len(tail), lines + tail.endswith(b"\n")
    while wanted:
        place = tail.rfind(b"\n", 0, place)
        if place < 0:
            return None
        wanted -= 1
    return place + 1


# --- while the application runs -------------------------------------------------------------------


class LogGone(Exception):
    """A NodeManager does not have, or does not show, a container's log: the text says why."""


class NotThere(LogGone):
    """It has none: the container has not begun, or its application is over."""


class LivePages:
    """Logs as the NodeManagers show them."""

    def __init__(self, user: str, *, kerberos: bool = False, https: bool = False) -> None:
        self._scheme = "https" if https else "http"
        self._who = {} if kerberos else {"user.name": user}
        self._session = new_session(kerberos)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> LivePages:
        """Those of the cluster to which this machine belongs."""
        from elasticflow.storage.hadoop import HadoopConf

        conf = HadoopConf.load(environ)
        https = conf.get("yarn.http.policy").upper() == "HTTPS_ONLY"
        return cls(conf.user(environ), kerberos=conf.is_secure, https=https)

    def length(self, placed: PlacedContainer, file: str) -> int:
        """In bytes; 0 if the container has not begun to write it. Raises LogGone."""
        try:
            answer = self._get(placed, "").json()
            logs = answer if isinstance(answer, list) else answer["containerLogsInfo"]
            logs = logs if isinstance(logs, list) else [logs]
            infos = [info for each in logs for info in listed(each, "containerLogInfo")]
            return max((int(info["fileSize"]) for info in infos if info["fileName"] == file), default=0)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LogGone(f"the answer of {placed.node} cannot be read: {error!r}") from error

    @contextlib.contextmanager
    def opened(self, placed: PlacedContainer, file: str, last: int | None) -> Iterator[tuple[int, Bytes]]:
        """Where in the log the stream begins, and the stream: its last bytes, or all. Raises LogGone."""
        from urllib3.exceptions import HTTPError

        parameters = {} if last is None else {"size": str(-last)}
        answer = self._get(placed, f"/{file}", parameters, stream=True)
        with contextlib.closing(answer):
            stream = io.BufferedReader(answer.raw, CHUNK)
            try:
                header = read_header(stream)
                if header is None:
                    raise NotThere(f"{placed.node} has no {file} of {placed.container}")
                size = header.length if last is None else min(last, header.length)
                yield header.length - size, _Limited(stream, size)
            except HTTPError as error:
                raise LogGone(f"{placed.node} broke off: {type(error).__name__}") from error

    def _get(
        self,
        placed: PlacedContainer,
        path: str,
        parameters: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> requests.Response:
        import requests

        node = placed.node if "://" in placed.node else f"{self._scheme}://{placed.node}"
        url = f"{node}/ws/v1/node/containers/{placed.container}/logs{path}"
        accept = "*/*" if path else "application/json"
        try:
            answer = self._session.get(
                url,
                params={**self._who, **(parameters or {})},
                headers={"Accept": accept, "Accept-Encoding": "identity"},
                stream=stream,
                timeout=CALL_S,
            )
        except requests.RequestException as error:
            raise LogGone(f"{placed.node} does not answer: {type(error).__name__}") from error
        if answer.status_code != 200:
            answer.close()
            kind = NotThere if answer.status_code == 404 else LogGone
            raise kind(f"{placed.node} answers {answer.status_code} {answer.reason}")
        return answer


class _Limited:
    """The next so many bytes of a stream."""

    def __init__(self, stream: Bytes, size: int) -> None:
        self._stream, self._left = stream, size

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        return piece


class LiveLog:
    """What is new in a log of a container of an application that runs."""

    def __init__(self, pages: LivePages, placed: PlacedContainer, file: str) -> None:
        self._pages, self.placed, self._file = pages, placed, file
        self.offset: int | None = None
        """So far it has been read; None: not at all."""

    def new(self, lines: int | None = None) -> Iterator[bytes]:
        """See LogBook. Raises LogGone."""
        length = self._pages.length(self.placed, self._file)
        if self.offset is None:
            self.offset = self._start(length, lines) if length and lines is not None else 0
        if length <= self.offset:
            return
        last = None if not self.offset else length - self.offset + MARGIN
        while True:
            with self._pages.opened(self.placed, self._file, last) as (begin, stream):
                if begin > self.offset and last is not None:  # it has grown by more than that meanwhile
                    last *= 2
                    continue
                for _ in pieces(stream, self.offset - begin):
                    pass  # has been read
                while piece := stream.read(CHUNK):
                    self.offset += len(piece)
                    yield piece
                return

    def _start(self, length: int, lines: int) -> int:
        last = MARGIN
        while True:
            with self._pages.opened(self.placed, self._file, last) as (begin, stream):
                place = last_lines(b"".join(pieces(stream, length - begin)), lines)
            if place is not None or not begin:
                return begin + (place or 0)
            last *= 4


# --- when it is over ------------------------------------------------------------------------------


def gather(
    application: str, folder: Path, environ: Mapping[str, str] = os.environ
) -> dict[str, dict[str, Path]]:
    """All logs of an application that is over, by container and file, as files in the folder.

    Empty if YARN has none (yet). Raises RunError if Hadoop's own tool cannot be used.
    """
    command = [_java(environ), "-Xmx512m", *SMALL, "-cp", _class_path(environ), TOOL]
    command += ["-applicationId", application, "-log_files_pattern", PATTERN]
    gathered: dict[str, dict[str, Path]] = {}
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environ, bufsize=CHUNK
        ) as tool:
            assert tool.stdout is not None
            try:
                _unwrap(tool.stdout, folder, gathered)
                code = tool.wait(ASKING_S)
            except BaseException:
                tool.kill()
                raise
        errors.seek(0)
        said = errors.read().decode(errors="replace").splitlines()
    if code and any(line.startswith("Error: ") or "Exception" in line for line in said) and not gathered:
        words = next(line for line in said if line.startswith("Error: ") or "Exception" in line)
        raise RunError(f"Hadoop's tool for logs failed: {words.strip()}")
    return gathered


def _unwrap(stream: Stream, folder: Path, gathered: dict[str, dict[str, Path]]) -> None:
    container = ""
    while (header := read_header(stream)) is not None:
        container = header.container or container  # it is said once for all files of a container
        path = folder / f"{len(gathered)}-{len(gathered.get(container, {}))}"
        with path.open("wb") as file:
            for piece in pieces(stream, header.length):
                file.write(piece)
        gathered.setdefault(container, {})[header.file] = path


def _java(environ: Mapping[str, str]) -> str:
    home = environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH"))
    if java and os.access(java, os.X_OK):
        return java
    raise RunError(
        "logs of an application that is over are read by Hadoop's own tool, which needs Java: "
        f"{java + ' is not there; ' if java else ''}set JAVA_HOME."
    )


def _class_path(environ: Mapping[str, str]) -> str:
    yarn = shutil.which("yarn", path=environ.get("PATH"))
    if yarn is None:
        raise RunError(
            "logs of an application that is over are read by Hadoop's own tool: no 'yarn' is on PATH; "
            "read them where there is one, such as on the cluster's gateway."
        )
    done = subprocess.run([yarn, "classpath", "--glob"], capture_output=True, text=True, env=environ)
    if done.returncode or not done.stdout.strip():
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"'{yarn} classpath --glob' failed with exit code {done.returncode}: {words}")
    return done.stdout.strip()


# --- both -----------------------------------------------------------------------------------------


class YarnLogs(LogBook):
    """See LogBook: of a run on YARN. A run that was resumed has logs of several applications."""

    def __init__(self, run_dir: str, environ: Mapping[str, str] = os.environ) -> None:
        self._run, self._environ = RunDir(run_dir), environ
        self._pages = LivePages.of(environ)
        self._manager = ResourceManager.of(environ)
        self._places: dict[str, PlacedContainer] = {}
        self._look_s = float("-inf")
        self._live: dict[str, LiveLog] = {}
        self._files: dict[str, LogFile | None] = {}
        """Of members whose application is over; None: there is none."""
        self._gathered: dict[str, tuple[Path, dict[str, dict[str, Path]]]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._told: set[str] = set()

    def names(self) -> list[str]:
        return sorted(self._placed(), key=by_number)

    def new(self, name: str, lines: int | None = None) -> Iterator[bytes]:
        placed = self._placed()[name]
        live = self._live.get(name)
        if live is None or live.placed != placed:  # a restarted master has another container
            live = self._live[name] = LiveLog(self._pages, placed, file_of(name))
            self._files.pop(name, None)
        if name not in self._files:
            try:
                yield from live.new(lines)
                return
            except LogGone as error:
                finished_at = self._finished_at(name, placed.application)
                if finished_at is None:
                    if not isinstance(error, NotThere):
                        self._tell(name, f"its log cannot be read just now: {error}")
                    return
            path = self._find(placed, file_of(name), finished_at)
            self._files[name] = LogFile(path, live.offset) if path else None
            if path is None:
                why = self._why_no_log(placed.application)
                self._tell(name, f"YARN has kept no log of its container {placed.container}{why}")
        file = self._files[name]
        if file is not None:
            yield from file.new(lines)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _placed(self) -> dict[str, PlacedContainer]:
        """Where members are, and were."""
        now_s = time.monotonic()
        if now_s >= self._look_s + PLACES_S:
            self._places, self._look_s = read(self._run), now_s
            if MASTER not in self._places and (began := self._began()):
                self._places[MASTER] = began
        return self._places

    def _began(self) -> PlacedContainer | None:
        """Where a master was to be that never came so far as to write it down; None: not known."""
        host = self._run.host()
        if host is None or host.id == UNKNOWN:
            return None
        try:
            found = self._manager.master(host.id)
        except YarnError as error:
            self._tell(MASTER, f"it is not known just now where its log is: {error}")
            return None
        return PlacedContainer(*found) if found else None

    def _finished_at(self, name: str, application: str) -> float | None:
        """When it was over; None: it runs, or that is not known. 0: YARN has forgotten it."""
        try:
            app = self._manager.application(application)
        except YarnError as error:
            self._tell(name, f"it is not known just now where its log is: {error}")
            return None
        if app is None:
            return 0.0
        return (app.finished_at or 0.0) if app.over else None

    def _find(self, placed: PlacedContainer, file: str, finished_at: float) -> Path | None:
        """The log in what YARN has gathered; waits for it if it is being gathered just now."""
        application = placed.application
        while True:
            if application not in self._gathered:
                folder = self._new_folder()
                self._gathered[application] = folder, gather(application, folder, self._environ)
            folder, gathered = self._gathered[application]
            found = gathered.get(placed.container, {}).get(file)
            if found or time.time() > finished_at + GATHER_S:
                return found
            del self._gathered[application]
            if not any(file.path.parent == folder for file in self._files.values() if file):
                shutil.rmtree(folder, ignore_errors=True)  # or there would be one for each second
            time.sleep(AGAIN_S)  # YARN tells nobody

    def _why_no_log(self, application: str) -> str:
        """To follow that there is none; "": that is not known."""
        try:
            app = self._manager.application(application)
            if app is None:
                return f": {application} {self._manager.why_unknown(application)}"
        except YarnError:
            return ""
        return f": {why}" if (why := WHY_NO_LOGS.get(app.logs)) else ""

    def _new_folder(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="elasticflow-logs-")
        return Path(tempfile.mkdtemp(dir=self._folder.name))

    def _tell(self, name: str, text: str) -> None:
        """Once: the other logs are shown all the same."""
        if (told := f"{self._run.path}: {name}: {text.rstrip('.')}.") not in self._told:
            self._told.add(told)
            print(told, file=sys.stderr)


def last_words_of_master(run_dir: str) -> str:
    """The last line in the log of a run's master, when its application is over; "": it cannot be read."""
    try:
        with contextlib.closing(YarnLogs(run_dir)) as book:
            lines = b"".join(book.new(MASTER, 1) if MASTER in book.names() else ()).decode(errors="replace")
    except ElasticFlowError:
        return ""
    return unstamped(lines.strip())[:300]
