"""Logs of runs on YARN: from NodeManagers' pages while they run, from Hadoop's own tool when they are over.

Both are played here, in the words of Hadoop 3.4.2: a server on this machine, and a script.
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticflow.errors import RunError
from elasticflow.run.folder import HostJob, RunDir, publish
from elasticflow_yarn import logs
from elasticflow_yarn.containers import KEPT, PlacedContainer, path, read, with_master, write
from elasticflow_yarn.finder import YarnPresence
from elasticflow_yarn.logs import Header, YarnLogs, file_of, last_lines, pieces, read_header

APP = "application_1700000000000_0001"
FIRST, SECOND, THIRD = (f"container_1700000000000_0001_01_00000{i}" for i in (1, 2, 3))
TRICKY = (
    b"caf\xc3\xa9 \xff\x00\nLogType:worker.log\nLogLength:3\nLogContents:\nx\n\nEnd of LogType:worker.log\n"
)


def wrapped(container: str, file: str, length: int, shown: bytes, kind: str = "LOCAL") -> bytes:
    head = f"Container: {container} on localhost:1234\nLogAggregationType: {kind}\n{'=' * 68}\n"
    log = f"LogType:{file}\nLogLastModifiedTime:Sat Nov 21 22:28:31 +0000 2026\nLogLength:{length}\n"
    return (
        (head + log + "LogContents:\n").encode()
        + shown
        + f"\nEnd of LogType:{file}.\n{'*' * 75}\n\n\n".encode()
    )


class Cluster:
    """A ResourceManager and a NodeManager, as far as logs need them, and an application's gathered logs.

    finished_at: when the application was over, seconds since 1970; 0: it runs.
    """

    def __init__(self, folder: Path) -> None:
        self.logs: dict[tuple[str, str], bytes] = {}
        self.gathered: dict[tuple[str, str], bytes] = {}
        self.finished_at = 0.0
        self.is_away = False
        """The ResourceManager."""
        self.cut_bytes: int | None = None
        """After so many of an answer the connection is closed."""
        self.before: Callable[[str], None] = lambda path: None
        self.asked: list[str] = []
        self.gathering = ""
        """YARN's word for how far it has gathered the logs; "": it does not tell."""
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                where = self.path.partition("?")[0].removeprefix("/ws/v1/")
                cluster.asked.append(self.path)
                cluster.before(self.path)
                is_manager = where.startswith("cluster/")
                known = cluster.attempts if where.endswith("/appattempts") else cluster.application
                body = known() if is_manager else cluster.page(self.path)
                self.send_response(503 if is_manager and cluster.is_away else 404 if body is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write((body or b"")[: cluster.cut_bytes])

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.node = f"127.0.0.1:{self._server.server_port}"
        self.folder = folder
        (folder / "conf").mkdir()
        (folder / "bin").mkdir()
        (folder / "jdk" / "bin").mkdir(parents=True)
        self.configure("core-site.xml", {"fs.defaultFS": "hdfs://localhost:8020"})
        self.configure("yarn-site.xml", {"yarn.resourcemanager.webapp.address": self.node})
        self.script("bin/yarn", 'test "$*" = "classpath --glob" && echo /conf:/jars/a.jar')
        self.script("jdk/bin/java", f'echo "$@" >> {folder}/calls\ncat {folder}/gathered')
        self.environ = {
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "JAVA_HOME": f"{folder}/jdk",
            "HADOOP_CONF_DIR": str(folder / "conf"),
            "HADOOP_USER_NAME": "alice",
        }

    def configure(self, name: str, properties: dict[str, str]) -> None:
        each = "".join(
            f"<property><name>{k}</name><value>{v}</value></property>" for k, v in properties.items()
        )
        (self.folder / "conf" / name).write_text(f"<configuration>{each}</configuration>")

    def script(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(stat.S_IRWXU)

    def over(self, gathered: bool = True, ago_s: float = 0.0) -> None:
        """The application ends: its pages are gone, its logs are gathered."""
        self.finished_at = time.time() - ago_s
        named = self.logs.items() if gathered else ()
        text = b"".join(wrapped(*key, len(log), log, "AGGREGATED") for key, log in named)
        (self.folder / "gathered").write_bytes(text)
        self.logs = {}

    def application(self) -> bytes:
        state = "FINISHED" if self.finished_at else "RUNNING"
        app = {
            **({"logAggregationStatus": self.gathering} if self.gathering else {}),
            "id": APP,
            "user": "alice",
            "name": "x",
            "queue": "q",
            "state": state,
            "finalStatus": "UNDEFINED",
        }
        return json.dumps(
            {"app": {**app, "startedTime": 1, "finishedTime": 1000 * self.finished_at}}
        ).encode()

    def attempts(self) -> bytes:
        attempt = {"id": 1, "containerId": FIRST, "nodeHttpAddress": self.node}
        return json.dumps({"appAttempts": {"appAttempt": [attempt]}}).encode()

    def page(self, path: str) -> bytes | None:
        _, _, container, _, *file = path.partition("?")[0].removeprefix("/ws/v1/").split("/")
        theirs = {name: log for (of, name), log in self.logs.items() if of == container}
        if not theirs:
            return None
        if not file:
            infos = [{"fileName": name, "fileSize": str(len(log))} for name, log in theirs.items()]
            listed = {"containerLogInfo": infos, "logAggregationType": "LOCAL", "containerId": container}
            return json.dumps({"containerLogsInfo": listed}).encode()
        if file[0] not in theirs:
            return None
        log = theirs[file[0]]
        size = next(
            (int(part[6:]) for part in path.split("?")[1].split("&") if part.startswith("size=-")), None
        )
        return wrapped(container, file[0], len(log), log if size is None else log[-size:])

    def calls(self) -> list[str]:
        """Of Hadoop's tool."""
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.close()


@pytest.fixture
def run(tmp_path: Path, cluster: Cluster) -> RunDir:
    (tmp_path / "run").mkdir()
    run = RunDir(tmp_path / "run")
    containers = {"worker-10": THIRD, "worker-2": SECOND, "master": FIRST}
    write(run, {name: PlacedContainer(container, cluster.node) for name, container in containers.items()})
    cluster.logs[FIRST, "application.driver.log"] = b"hello\nworld\n"
    cluster.logs[FIRST, "application.master.log"] = b"java\n"
    cluster.logs[SECOND, "worker.log"] = b"one\ntwo\n"
    cluster.logs[THIRD, "worker.log"] = TRICKY
    return run


@pytest.fixture
def book(run: RunDir, cluster: Cluster) -> Iterator[YarnLogs]:
    book = YarnLogs(str(run.path), cluster.environ)
    yield book
    book.close()


def new(book: YarnLogs, name: str, lines: int | None = None) -> bytes:
    return b"".join(book.new(name, lines))


# --- pure -----------------------------------------------------------------------------------------


def test_a_wrapped_log_is_as_long_as_it_says_whatever_is_in_it() -> None:
    text = wrapped(FIRST, "worker.log", len(TRICKY), TRICKY) + wrapped(SECOND, "server.log", 3, b"abc")
    stream = io.BytesIO(text)
    assert read_header(stream) == Header(FIRST, "worker.log", len(TRICKY))
    assert b"".join(pieces(stream, len(TRICKY))) == TRICKY
    assert read_header(stream) == Header(SECOND, "server.log", 3)
    assert b"".join(pieces(stream, 3)) == b"abc"
    assert read_header(stream) is None


def test_a_log_that_is_cut_off() -> None:
    stream = io.BytesIO(wrapped(FIRST, "worker.log", 1000, b"abc")[:-100])
    assert read_header(stream) is not None
    assert b"".join(pieces(stream, 1000)).startswith(b"abc")
    assert read_header(io.BytesIO(b"Container: x on y\nLogType:worker.log\nLog")) is None


@pytest.mark.parametrize(
    ("tail", "lines", "begin"),
    [
        (b"a\nb\nc\n", 2, 2),
        (b"a\nb\nc", 2, 2),
        (b"a\n\n", 1, 2),
        (b"a\nb", 0, 3),
        (b"a\nb\n", 2, None),
        (b"", 1, None),
    ],
)
def test_where_the_last_lines_begin(tail: bytes, lines: int, begin: int | None) -> None:
    assert last_lines(tail, lines) == begin


def test_which_file_a_member_writes() -> None:
    assert [file_of(name) for name in ("master", "master-1", "worker-10", "server-0")] == [
        "application.driver.log",
        "application.driver.log",
        "worker.log",
        "server.log",
    ]


# --- which container is which ---------------------------------------------------------------------


def test_places_are_written_and_read(run: RunDir, tmp_path: Path) -> None:
    assert list(read(run)) == ["worker-10", "worker-2", "master"]
    assert read(run)["master"].application == APP
    assert (
        PlacedContainer("container_e17_1700000000000_0042_03_000005", "").application
        == "application_1700000000000_0042"
    )
    assert PlacedContainer("", "").application == ""
    write(run, {f"worker-{i}": PlacedContainer(str(i), "") for i in range(KEPT + 5)})
    assert len(read(run)) == KEPT and "worker-4" not in read(run)
    write(
        run,
        {"master": PlacedContainer("0", "")}
        | {f"worker-{i}": PlacedContainer(str(i), "") for i in range(KEPT + 5)},
    )
    assert "master" in read(run)
    assert read(RunDir(tmp_path / "none")) == {}
    (run.path / "containers.json").write_text("{}}")  # type: ignore[union-attr]
    with pytest.raises(RunError, match="containers.json: cannot be read"):
        read(run)
    assert path(run).name == "containers.json"


def test_masters_of_earlier_attempts_keep_their_logs() -> None:
    first, second, third = (PlacedContainer(f"container_1_0001_0{i}_000001", "n:1") for i in (1, 2, 3))
    placed = with_master({"worker-1": first}, first)
    assert with_master(placed, first) == placed
    placed = with_master(with_master(placed, second), third)
    assert placed == {"worker-1": first, "master": third, "master-1": first, "master-2": second}


# --- while it runs --------------------------------------------------------------------------------


def test_logs_of_a_run_that_goes_on(book: YarnLogs, cluster: Cluster) -> None:
    assert book.names() == ["master", "worker-2", "worker-10"]
    assert new(book, "master") == b"hello\nworld\n"
    assert new(book, "worker-10") == TRICKY
    assert new(book, "worker-10") == b""
    cluster.logs[THIRD, "worker.log"] += b"and more\n"
    assert new(book, "worker-10") == b"and more\n"
    assert all("user.name=alice" in asked for asked in cluster.asked)


@pytest.mark.parametrize(
    ("lines", "shown"), [(0, b""), (1, b"two\n"), (2, b"one\ntwo\n"), (9, b"one\ntwo\n")]
)
def test_the_last_lines_first(book: YarnLogs, cluster: Cluster, lines: int, shown: bytes) -> None:
    assert new(book, "worker-2", lines) == shown
    cluster.logs[SECOND, "worker.log"] += b"three\n"
    assert new(book, "worker-2", lines) == b"three\n"


def test_the_last_lines_are_long(book: YarnLogs, cluster: Cluster) -> None:
    long = b"x" * (3 * logs.MARGIN) + b"\n"
    cluster.logs[SECOND, "worker.log"] = b"first\n" + long + long
    assert new(book, "worker-2", 2) == long + long


def test_a_log_that_grows_fast_loses_nothing(book: YarnLogs, cluster: Cluster) -> None:
    """By more than the margin, between the two questions."""
    assert new(book, "worker-2") == b"one\ntwo\n"
    cluster.logs[SECOND, "worker.log"] += b"three\n"
    grown = b"y" * (5 * logs.MARGIN) + b"\n"

    def grow(path: str) -> None:
        if "worker.log" in path:
            cluster.before = lambda path: None
            cluster.logs[SECOND, "worker.log"] += grown

    cluster.before = grow
    assert new(book, "worker-2") == b"three\n" + grown


def test_a_container_that_has_not_begun_has_nothing_yet(
    book: YarnLogs, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    del cluster.logs[SECOND, "worker.log"]
    assert new(book, "worker-2", 5) == b""
    cluster.logs[SECOND, "prelaunch.out"] = b"x"
    assert new(book, "worker-2") == b""
    cluster.logs[SECOND, "worker.log"] = b"begun\n"
    assert new(book, "worker-2") == b"begun\n"
    assert capsys.readouterr().err == ""


def test_a_node_that_is_lost_is_told_once_and_the_others_are_shown(
    book: YarnLogs, run: RunDir, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    write(run, {**read(run), "worker-2": PlacedContainer(SECOND, "127.0.0.1:9")})
    assert new(book, "worker-2") == new(book, "worker-2") == b""
    assert new(book, "master") == b"hello\nworld\n"
    why = "its log cannot be read just now: 127.0.0.1:9 does not answer: ConnectionError"
    assert capsys.readouterr().err == f"{run.path}: worker-2: {why}.\n"


def test_a_page_that_breaks_off_is_read_on_at_the_next_look(
    book: YarnLogs, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    log = cluster.logs[SECOND, "worker.log"] = bytes(range(256)) * 20_000
    cluster.cut_bytes = 3_000_000
    got = new(book, "worker-2")
    assert 0 < len(got) < len(log) and log.startswith(got)
    assert "its log cannot be read just now" in capsys.readouterr().err
    cluster.cut_bytes = None
    assert got + new(book, "worker-2") == log


def test_a_resource_manager_that_is_away_is_told(
    book: YarnLogs, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.over()
    cluster.is_away = True
    assert new(book, "worker-2") == b""
    told = capsys.readouterr().err
    assert "it is not known just now where its log is: the ResourceManager does not answer" in told
    cluster.is_away = False
    assert new(book, "worker-2") == b"one\ntwo\n"


def test_a_master_that_began_anew_elsewhere(
    book: YarnLogs, run: RunDir, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PLACES_S", 0.0)
    assert new(book, "master") == b"hello\nworld\n"
    container = FIRST.replace("_01_", "_02_")
    cluster.logs[container, "application.driver.log"] = b"again\n"
    write(run, with_master(read(run), PlacedContainer(container, cluster.node)))
    assert new(book, "master") == b"again\n"


def test_a_master_that_never_began_has_a_log(
    run: RunDir, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what its container's script said, before any Python ran."""
    path(run).unlink()
    why = b"Error: there is no /no/python on node1; see yarn.python and yarn.environment\n"
    cluster.logs[FIRST, "application.driver.log"] = why
    assert YarnLogs(str(run.path), cluster.environ).names() == [], "nor has it an application yet"
    publish(run.job, HostJob("yarn", APP, "0123456789ab"))
    with contextlib.closing(YarnLogs(str(run.path), cluster.environ)) as book:
        assert book.names() == ["master"] and new(book, "master") == why
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    cluster.over()
    assert YarnPresence(str(run.path)).last_words() == ""
    presence = YarnPresence(str(run.path))
    assert not presence.is_alive()
    assert presence.last_words() == f"the last line in its master's log: {why.decode().strip()}"


# --- when it is over ------------------------------------------------------------------------------


def test_logs_of_a_run_that_is_over(book: YarnLogs, cluster: Cluster) -> None:
    cluster.over()
    assert new(book, "worker-10") == TRICKY
    assert new(book, "worker-2", 1) == b"two\n"
    assert new(book, "master") == b"hello\nworld\n" and new(book, "master") == b""
    (call,) = cluster.calls()
    assert call.endswith(
        f"-cp /conf:/jars/a.jar {logs.TOOL} -applicationId {APP} -log_files_pattern {logs.PATTERN}"
    )


def test_the_end_of_a_log_that_was_being_read(book: YarnLogs, cluster: Cluster) -> None:
    assert new(book, "worker-2") == b"one\ntwo\n"
    assert new(book, "master", 0) == b""
    cluster.logs[SECOND, "worker.log"] += b"the end\n"
    cluster.logs[FIRST, "application.driver.log"] += b"good bye\n"
    cluster.over()
    assert (new(book, "worker-2"), new(book, "master")) == (b"the end\n", b"good bye\n")
    assert (new(book, "worker-2"), new(book, "master")) == (b"", b"")


def test_logs_that_are_being_gathered_are_waited_for(
    book: YarnLogs, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "AGAIN_S", 0.01)
    logs_then = dict(cluster.logs)
    cluster.over(gathered=False)
    flag = cluster.folder / "flag"
    cluster.script(
        "jdk/bin/java", f"echo x >> {cluster.folder}/calls; [ -e {flag} ] && cat {cluster.folder}/later"
    )
    later = b"".join(wrapped(*key, len(log), log) for key, log in logs_then.items())
    (cluster.folder / "later").write_bytes(later)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(new(book, "worker-2")))
    reader.start()
    while not cluster.calls():
        time.sleep(0.01)  # a process of a process tells nobody
    flag.touch()
    reader.join(60)
    assert got == [b"one\ntwo\n"] and len(cluster.calls()) > 1
    assert book._folder and len(list(Path(book._folder.name).iterdir())) == 1, "what had nothing is removed"


def test_logs_that_nobody_has_kept(
    book: YarnLogs, run: RunDir, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.over(gathered=False, ago_s=3600.0)
    assert new(book, "worker-2") == new(book, "worker-2") == b""
    assert (
        capsys.readouterr().err == f"{run.path}: worker-2: YARN has kept no log of its container {SECOND}.\n"
    )
    assert len(cluster.calls()) == 1


def test_why_there_is_no_log(
    book: YarnLogs, cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ResourceManager that has lost its state does not know the application."""
    cluster.gathering = "RUNNING"
    cluster.over(gathered=False, ago_s=3600.0)
    new(book, "worker-2")
    assert (
        f"{SECOND}: its nodes have not gathered all logs yet; try again later.\n" in capsys.readouterr().err
    )
    cluster.gathering = "DISABLED"
    new(book, "worker-10")
    assert "keep their logs to themselves (yarn.log-aggregation-enable is off).\n" in capsys.readouterr().err
    monkeypatch.setattr(cluster, "application", lambda: None)
    new(book, "master")
    assert f"{FIRST}: {APP} is not known to YARN any more, which forgets" in capsys.readouterr().err


def test_what_hadoops_tool_needs(book: YarnLogs, cluster: Cluster) -> None:
    cluster.over(ago_s=3600.0)
    environ = cluster.environ
    assert logs.gather(APP, cluster.folder, environ)[SECOND]["worker.log"].read_bytes() == b"one\ntwo\n"
    with pytest.raises(RunError, match="no 'yarn' is on PATH"):
        logs.gather(APP, cluster.folder, {**environ, "PATH": "/usr/bin:/bin"})
    with pytest.raises(RunError, match="/nowhere/bin/java is not there; set JAVA_HOME"):
        logs.gather(APP, cluster.folder, {**environ, "JAVA_HOME": "/nowhere"})
    cluster.script("bin/yarn", "echo no Hadoop >&2; exit 3")
    with pytest.raises(RunError, match="classpath --glob' failed with exit code 3: no Hadoop"):
        logs.gather(APP, cluster.folder, environ)


def test_hadoops_tool_fails(cluster: Cluster) -> None:
    cluster.script(
        "jdk/bin/java", 'echo "INFO connecting" >&2; echo "java.net.ConnectException: refused" >&2; exit 1'
    )
    with pytest.raises(RunError, match="Hadoop's tool for logs failed: java.net.ConnectException: refused"):
        logs.gather(APP, cluster.folder, cluster.environ)


def test_nothing_is_left_on_disk(run: RunDir, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(cluster.folder / "bin"))
    monkeypatch.setattr("tempfile.tempdir", None)
    cluster.over()
    book = YarnLogs(str(run.path), cluster.environ)
    assert new(book, "worker-2") == b"one\ntwo\n"
    assert len(os.listdir(cluster.folder / "bin")) == 2
    book.close()
    assert os.listdir(cluster.folder / "bin") == ["yarn"]
