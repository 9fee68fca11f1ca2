"""A real Hadoop cluster on this machine: HDFS and YARN, every daemon a process of its own, all in one folder.

`HadoopCluster` is for tests, `python -m tests.clusters.hadoop up` for people. Nothing of it is simulated but
the GPUs, which are numbers that YARN counts, and the nodes, which are daemons on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import http.client
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from tests.clusters import hadoop_conf
from tests.clusters.hadoop_conf import GPUS_PER_NODE, MARK, SUPERUSER, YARN_USER, Layout
from tests.clusters.hadoop_jars import fetch, java_home, skip_reason
from tests.clusters.processes import (
    ClusterError,
    environ,
    free_ports,
    is_alive,
    is_program,
    own_line,
    pids,
    tail,
    wait,
)

DAEMON = "ELASTICFLOW_TEST_HADOOP_DAEMON"
"""In the environment of every daemon: its name. Containers do not inherit it."""

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_S = 100.0
JAVA_FLAGS = (
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED", "--add-opens", "java.base/java.util=ALL-UNNAMED"),
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),  # starts a third sooner
    "-Djava.net.preferIPv4Stack=true",
)
HEAP = "-Xmx256m"
STARTED = "--- started by the tests"
APP_ENDED = ("FINISHED", "FAILED", "KILLED")

COMMANDS = {
    "yarn": {
        **dict.fromkeys(
            ("application", "app", "applicationattempt", "container"),
            'org.apache.hadoop.yarn.client.cli.ApplicationCLI "$command"',
        ),
        "logs": "org.apache.hadoop.yarn.client.cli.LogsCLI",
        "node": "org.apache.hadoop.yarn.client.cli.NodeCLI",
        "queue": "org.apache.hadoop.yarn.client.cli.QueueCLI",
        "rmadmin": "org.apache.hadoop.yarn.client.cli.RMAdminCLI",
        "version": "org.apache.hadoop.util.VersionInfo",
    },
    "hdfs": {
        "dfs": "org.apache.hadoop.fs.FsShell",
        "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
        "fsck": "org.apache.hadoop.hdfs.tools.DFSck",
    },
    "hadoop": {
        "fs": "org.apache.hadoop.fs.FsShell",
        "version": "org.apache.hadoop.util.VersionInfo",
    },
}
"""What the commands on the cluster's PATH can do: main class, and what comes before the arguments."""


class _Kind(NamedTuple):
    main: str
    registered: str
    """What its log says when it belongs to the cluster: a manager may still count on one that is dead."""


_KINDS = {
    "namenode": _Kind("org.apache.hadoop.hdfs.server.namenode.NameNode", ""),
    "datanode": _Kind("org.apache.hadoop.hdfs.server.datanode.DataNode", "successfully registered with NN"),
    "resourcemanager": _Kind("org.apache.hadoop.yarn.server.resourcemanager.ResourceManager", ""),
    "node": _Kind(
        "org.apache.hadoop.yarn.server.nodemanager.NodeManager", "Registered with ResourceManager as"
    ),
}


class Container(NamedTuple):
    """YARN's id, and the name of the daemon that runs it, "node-0"."""

    id: str
    node: str


class HadoopCluster:
    """A NameNode, DataNodes, a ResourceManager, nodes. One that `up` started is taken over by its folder."""

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        nodes: int = 3,
        datanodes: int = 2,
        yarn: bool = True,
        node_recovery: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`settings` are further properties, of all daemons and clients. Without a folder, one is made.

        With `node_recovery`, a NodeManager that comes back in time takes its containers over.
        """
        self._is_temporary = folder is None
        made = tempfile.mkdtemp(prefix="hadoop-") if folder is None else folder
        self.folder = Path(made).absolute()
        self.nodes = tuple(f"node-{i}" for i in range(nodes))
        self.datanodes = tuple(f"datanode-{i}" for i in range(datanodes))
        self.has_yarn = yarn
        self._node_recovery = node_recovery
        self._settings = dict(settings or {})
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    # What others ask of it

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    @property
    def user(self) -> str:
        """Who works on it: an ordinary user, with the folder /user/<user>. HDFS's superuser is `hdfs`."""
        return getpass.getuser()

    @property
    def daemons(self) -> tuple[str, ...]:
        return ("namenode", *self.datanodes, *(("resourcemanager", *self.nodes) if self.has_yarn else ()))

    @property
    def environment(self) -> dict[str, str]:
        """For commands that shall talk to this cluster: this process's, but nothing of another Hadoop's."""
        kept = {name: value for name, value in os.environ.items() if not _is_hadoop(name)}
        return {
            **kept,
            "PATH": f"{self.folder}/bin:{kept.get('PATH') or SEARCH_PATH}",
            "JAVA_HOME": str(java_home()),
            "HADOOP_CONF_DIR": str(self.conf),
            "HADOOP_USER_NAME": self.user,
        }

    def address(self, daemon: str) -> str:
        """Where it listens; of a node this is also what YARN calls it."""
        return f"localhost:{self._ports[daemon]}"

    @property
    def hdfs_url(self) -> str:
        return f"hdfs://{self.address('namenode')}"

    @property
    def webhdfs_url(self) -> str:
        return f"webhdfs://{self.address('namenode.web')}"

    @property
    def namenode_url(self) -> str:
        return f"http://{self.address('namenode.web')}"

    @property
    def rm_url(self) -> str:
        return f"http://{self.address('resourcemanager.web')}"

    @property
    def _ports(self) -> dict[str, int]:
        try:
            ports: dict[str, int] = json.loads((self.folder / "ports.json").read_text())
        except FileNotFoundError:
            raise ClusterError(f"no cluster was started in {self.folder}") from None
        return ports

    # Life

    def __enter__(self) -> HadoopCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when a file can be written and every node takes containers."""
        if reason := skip_reason():
            raise ClusterError(reason)
        if self.is_running():
            raise ClusterError(f"a cluster runs in {self.folder} already: stop it first")
        stop_orphans()
        try:
            self._write_files()
            for daemon in self.daemons:
                if daemon != "namenode":
                    self._spawn(daemon)
            self._format()
            self._spawn("namenode")
            self._make_folders()
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def start_yarn(self) -> None:
        """For a cluster made with `yarn=False`: the rest of it."""
        self.has_yarn = True
        for daemon in self.daemons:
            self.start_daemon(daemon)
        self.wait_until_ready()

    def stop(self) -> None:
        """Ends every process of the cluster and of its applications; of a folder given, the logs stay."""
        while left := [*self._processes(), *self._clients()]:
            self._kill(left)
        self._forget()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _forget(self) -> None:
        for path in self.folder.glob("conf.*"):
            shutil.rmtree(path, ignore_errors=True)
        for name in ("state", "tmp", "conf", "bin"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("ports.json", "owner"):
            (self.folder / name).unlink(missing_ok=True)

    def is_running(self) -> bool:
        return bool(self._daemons())

    def reset(self, timeout_s: float = START_S) -> None:
        """No application, nothing left of one, every daemon there and well. Files in HDFS stay."""
        for pid in self._processes():
            _signal(pid, signal.SIGCONT)
        for daemon in self.daemons:
            self.start_daemon(daemon)
        if self.has_yarn:
            self.kill_applications(timeout_s)
        self._kill(self._processes_of_containers())
        self.wait_until_ready(timeout_s)

    def wait_until_ready(self, timeout_s: float = START_S) -> None:
        """Until a file is written to all DataNodes, and all nodes are there and have nothing to do."""
        self._wait(self._is_hdfs_ready, "HDFS is well", timeout_s)
        if self.has_yarn:
            self._wait(self._is_yarn_ready, "all nodes are there", timeout_s)

    # Applications

    def run(self, *command: str, check: bool = True, user: str | None = None, timeout_s: float = 60.0) -> str:
        """What the command printed, without the last newline. Its errors are in the ClusterError."""
        done = subprocess.run(
            command,
            env={**self.environment, **({"HADOOP_USER_NAME": user} if user else {})},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise ClusterError(f"`{' '.join(command)}` ended with exit code {done.returncode}: {said}")
        return done.stdout.rstrip("\n")

    def applications(self, *, ended: bool = False) -> dict[str, str]:
        """Every user's applications by id, with YARN's words for their states."""
        found = _list((self._rm("/apps")["apps"] or {}).get("app"))
        return {app["id"]: app["state"] for app in found if ended or app["state"] not in APP_ENDED}

    def application(self, application: str) -> dict[str, Any]:
        """What the ResourceManager tells of it."""
        told: dict[str, Any] = self._rm(f"/apps/{application}")["app"]
        return told

    def containers(self, application: str) -> list[Container]:
        """Those that the ResourceManager gave it and that have not ended: the ApplicationMaster's first."""
        names = {self.address(node): node for node in self.nodes}
        attempts = self._rm(f"/apps/{application}/appattempts")["appAttempts"] or {}
        found = [
            container
            for attempt in _list(attempts.get("appAttempt"))
            for container in _list(
                self._rm(f"/apps/{application}/appattempts/{attempt['appAttemptId']}/containers").get(
                    "container"
                )
            )
        ]
        running = [one for one in found if one["containerState"] == "RUNNING"]
        return sorted(Container(one["containerId"], names[one["assignedNodeId"]]) for one in running)

    def pids(self, container: str) -> list[int]:
        """The processes of a container, those that left its session included."""
        mark = f"CONTAINER_ID={container}"
        return [pid for pid, told in self._processes().items() if mark in told]

    def runs(self, container: str, program: str) -> bool:
        """Whether a container has got so far. YARN calls one running before it is started."""
        return any(is_program(pid, program) for pid in self.pids(container))

    def kill_applications(self, timeout_s: float = START_S) -> None:
        """Returns when none is left and no container runs."""
        patience = time.monotonic() + 3

        def are_gone() -> bool:
            try:
                left = self.applications()
                for application in left:
                    self._kill_application(application)
                used = self._rm("/metrics")["clusterMetrics"]["containersAllocated"]
            except OSError:
                return False  # a ResourceManager that is just starting
            if time.monotonic() > patience:
                self._kill(self._processes_of_containers())
            return not left and not used

        self._wait(are_gone, "no application is left", timeout_s)

    def _kill_application(self, application: str) -> None:
        path = f"/ws/v1/cluster/apps/{application}/state?user.name={YARN_USER}"
        self._ask("PUT", f"{self.rm_url}{path}", {"state": "KILLED"})

    def live_datanodes(self) -> int:
        """As the NameNode counts them: a killed one for 11 s more. OSError if it does not answer."""
        query = "qry=Hadoop:service=NameNode,name=FSNamesystemState"
        beans = self._ask("GET", f"{self.namenode_url}/jmx?{query}")["beans"]
        return int(beans[0]["NumLiveDataNodes"]) if beans else 0

    # Faults

    def kill(self, daemon: str) -> None:
        """With SIGKILL. A node's containers live on, and its place is LOST 10 s later."""
        self._kill(self._pids_of(daemon))

    def start_daemon(self, daemon: str) -> None:
        """Returns at once; see `wait_until_ready`."""
        if not self._pids_of(daemon):
            self._spawn(daemon)

    def restart(self, daemon: str) -> None:
        """Killed, and started again; returns at once."""
        self.kill(daemon)
        self.start_daemon(daemon)

    def freeze(self, daemon: str) -> None:
        """It still has its connections, but says nothing more."""
        for pid in self._pids_of(daemon):
            _signal(pid, signal.SIGSTOP)

    def thaw(self, daemon: str) -> None:
        for pid in self._pids_of(daemon):
            _signal(pid, signal.SIGCONT)

    # Starting

    def _layout(self, ports: Mapping[str, int]) -> Layout:
        return Layout(
            folder=self.folder,
            jars=fetch(),
            java_home=java_home(),
            user=self.user,
            nodes=self.nodes,
            datanodes=self.datanodes,
            node_recovery=self._node_recovery,
            ports=ports,
            settings=self._settings,
        )

    def _write_files(self) -> None:
        self._forget()
        names = hadoop_conf.port_names(self.nodes, self.datanodes)
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        texts = hadoop_conf.files(self._layout(ports))
        texts["ports.json"] = json.dumps(ports)
        if self._is_temporary:
            texts["owner"] = str(os.getpid())
        texts |= {f"bin/{name}": self._command(name) for name in COMMANDS}
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for name in COMMANDS:
            (self.folder / "bin" / name).chmod(0o755)
        # hadoop-hdfs's jar lacks the pages of its web servers, which do not start without the folders.
        for name in ("hdfs", "datanode", "secondary", "static"):
            (self.folder / "tmp" / "web" / "webapps" / name).mkdir(parents=True, exist_ok=True)
        for name in ("state", "log"):
            (self.folder / name).mkdir(exist_ok=True)
        self.folder.chmod(0o755)

    def _class_path(self, conf: str = "conf") -> str:
        return f"{self.folder}/{conf}:{self.folder}/tmp/web:{fetch()}/*"

    def _command(self, name: str) -> str:
        """A shell script that does what Hadoop's own command of this name does, as far as COMMANDS goes."""
        jars = ":".join(str(jar) for jar in sorted(fetch().iterdir()))
        java = f'exec "{java_home()}/bin/java" {" ".join(JAVA_FLAGS)} {HEAP} -cp "{self._class_path()}"'
        lines = [
            "#!/bin/sh",
            'command="$1"',
            "[ $# -gt 0 ] && shift",
            'case "$command" in',
            "classpath)",
            f'    [ "$1" = --glob ] && echo "{self.conf}:{jars}" || echo "{self.conf}:{fetch()}/*" ;;',
            *(f'{command}) {java} {main} "$@" ;;' for command, main in COMMANDS[name].items()),
            f'*) echo "{name}: here only classpath, {", ".join(COMMANDS[name])}" >&2; exit 1 ;;',
            "esac",
        ]
        return "\n".join(lines) + "\n"

    def _java(self, daemon: str, *arguments: str) -> list[str]:
        conf = f"conf.{daemon}" if (self.folder / f"conf.{daemon}").exists() else "conf"
        main = _kind(daemon).main
        java = str(java_home() / "bin" / "java")
        flags = [*JAVA_FLAGS, HEAP, f"-Djava.io.tmpdir={self.folder}/tmp"]
        return [java, *flags, "-cp", self._class_path(conf), main, *arguments]

    def _environment_of(self, daemon: str) -> dict[str, str]:
        """Little, so that containers find what they would find on a node, not what the tests were given."""
        is_yarn = daemon in ("resourcemanager", *self.nodes)
        return {
            "PATH": f"{self.folder}/bin:{SEARCH_PATH}",
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "JAVA_HOME": str(java_home()),
            "HADOOP_CONF_DIR": str(self.conf),
            "HADOOP_USER_NAME": YARN_USER if is_yarn else SUPERUSER,
            MARK: str(self.folder),
            DAEMON: daemon,
        }

    def _format(self) -> None:
        command = self._java("namenode", "-format", "-nonInteractive", "-force")
        done = subprocess.run(
            command,
            env=self._environment_of("format"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise ClusterError(f"the NameNode could not be formatted: {done.stdout[-1000:]}")

    def _spawn(self, daemon: str) -> None:
        """In a session of its own, so that it outlives the terminal that it was started in."""
        with self._log(daemon).open("ab") as out:
            out.write(f"{STARTED}\n".encode())
            out.flush()
            self._children[daemon] = subprocess.Popen(
                self._java(daemon),
                env=self._environment_of(daemon),
                cwd=self.folder / "log",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _log(self, daemon: str) -> Path:
        return self.folder / "log" / f"{daemon}.log"

    def _make_folders(self) -> None:
        def are_made() -> bool:
            try:
                for path, permission in (("/tmp", "1777"), ("/user", "755"), (f"/user/{self.user}", "755")):
                    self._webhdfs("PUT", path, op="MKDIRS", permission=permission)
                self._webhdfs("PUT", f"/user/{self.user}", op="SETOWNER", owner=self.user, group=self.user)
            except OSError:
                return False
            return True

        self._wait(are_made, "HDFS has its first folders", START_S)

    # Asking

    def _is_hdfs_ready(self) -> bool:
        if not all(self._has_registered(datanode) for datanode in self.datanodes):
            return False
        try:
            if self.live_datanodes() != len(self.datanodes):
                return False
            path = f"/tmp/.ready-{secrets.token_hex(4)}"
            place = self._webhdfs(
                "PUT", path, op="CREATE", noredirect="true", replication=str(len(self.datanodes))
            )
            self._ask("PUT", place["Location"], b"ready")
            self._webhdfs("DELETE", path, op="DELETE")
        except OSError:
            return False
        return True

    def _is_yarn_ready(self) -> bool:
        if not all(self._has_registered(node) for node in self.nodes):
            return False
        try:
            found = _list((self._rm("/nodes?states=RUNNING")["nodes"] or {}).get("node"))
        except OSError:
            return False
        return {one["id"] for one in found} == {self.address(node) for node in self.nodes}

    def _has_registered(self, daemon: str) -> bool:
        """Since it was started last."""
        return (
            _kind(daemon).registered in self._log(daemon).read_text(errors="replace").rpartition(STARTED)[2]
        )

    def _rm(self, path: str) -> dict[str, Any]:
        return self._ask("GET", f"{self.rm_url}/ws/v1/cluster{path}")

    def _webhdfs(self, method: str, path: str, **parameters: str) -> dict[str, Any]:
        """As the superuser."""
        query = urlencode({**parameters, "user.name": SUPERUSER})
        return self._ask(method, f"{self.namenode_url}/webhdfs/v1{quote(path)}?{query}")

    def _ask(self, method: str, url: str, body: bytes | Mapping[str, str] | None = None) -> dict[str, Any]:
        """Raises OSError for what was not answered, and for every answer but a good one."""
        parts = urlsplit(url)
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        connection = http.client.HTTPConnection(parts.netloc, timeout=5)
        with contextlib.closing(connection):
            try:
                connection.request(
                    method,
                    f"{parts.path}?{parts.query}",
                    body=sent,
                    headers={"Accept": "application/json", "Content-Type": kind},
                )
                answer = connection.getresponse()
                said = answer.read()
            except http.client.HTTPException as error:
                raise OSError(f"{method} {url}: {error!r}") from error
        if answer.status >= 300:
            raise OSError(f"{method} {url}: {answer.status} {said[:300]!r}")
        try:
            told: dict[str, Any] = json.loads(said or b"{}")
        except ValueError:
            raise OSError(f"{method} {url}: {said[:300]!r}") from None
        return told

    def _wait(self, is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
        def is_so_or_dead() -> bool:
            for daemon, child in self._children.items():
                if child.poll() is not None:
                    raise ClusterError(f"{daemon} ended with {child.returncode}. {self._story()}")
            return is_so()

        wait(is_so_or_dead, what, timeout_s, self._story, every_s=0.1)

    def _story(self) -> str:
        """What the daemons wrote last, for an error's text."""
        tails = [f"{path.name}: {tail(path)}" for path in sorted((self.folder / "log").glob("*.log"))]
        return "Its daemons said last:\n  " + "\n  ".join(tails)

    # Processes

    def _processes(self) -> dict[int, set[str]]:
        """Daemons, containers and what they started, with their environments; never a parent of ours."""
        mark = f"{MARK}={self.folder}"
        mine = own_line()
        found = {pid: environ(pid) for pid in pids() if pid not in mine}
        return {pid: told for pid, told in found.items() if mark in told and is_alive(pid)}

    def _daemons(self) -> dict[str, int]:
        """Those that run, by name."""
        return {
            name: pid
            for pid, told in self._processes().items()
            for name in self.daemons
            if f"{DAEMON}={name}" in told and is_program(pid, "java")
        }

    def _pids_of(self, daemon: str) -> list[int]:
        self._check(daemon)
        return [pid for name, pid in self._daemons().items() if name == daemon]

    def _check(self, daemon: str) -> None:
        if daemon not in self.daemons:
            raise ClusterError(f"no daemon {daemon!r} here, but {', '.join(self.daemons)}")

    def _processes_of_containers(self) -> list[int]:
        return [
            pid
            for pid, told in self._processes().items()
            if not any(one.startswith(f"{DAEMON}=") for one in told)
        ]

    def _clients(self) -> list[int]:
        """Java programs that talk to this cluster, such as Skein's driver: without it they are of no use."""
        conf = f"HADOOP_CONF_DIR={self.conf}"
        return [pid for pid in pids() if is_program(pid, "java") and conf in environ(pid) and is_alive(pid)]

    def _kill(self, ended: Iterable[int]) -> None:
        """Returns when they are gone."""
        killed = list(ended)
        for pid in killed:
            _signal(pid, signal.SIGKILL)

        def are_gone() -> bool:
            self._children = {name: child for name, child in self._children.items() if child.poll() is None}
            mine = {child.pid for child in self._children.values()}
            return not any(pid in mine or is_alive(pid) for pid in killed)

        wait(are_gone, f"processes {killed} are gone", START_S, self._story, every_s=0.01)


def stop_orphans() -> None:
    """Ends the clusters whose tests were killed before they could do it."""
    folders = {
        Path(one.partition("=")[2]) for pid in pids() for one in environ(pid) if one.startswith(f"{MARK}=")
    }
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            if not is_alive(int((folder / "owner").read_text())):
                HadoopCluster(folder).stop()
                shutil.rmtree(folder, ignore_errors=True)


def require() -> None:
    """Skips the test where no cluster can be started; fails it with CI or ELASTICFLOW_REQUIRE_CLUSTERS=1."""
    import pytest  # not at the top: `.ci/hadoop` fetches the jars before anything is installed

    if reason := skip_reason():
        if os.environ.get("CI") or os.environ.get("ELASTICFLOW_REQUIRE_CLUSTERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def _kind(daemon: str) -> _Kind:
    return _KINDS[daemon.partition("-")[0]]


def _list(told: Any) -> list[dict[str, Any]]:
    """YARN tells a list of one without the list, in some places, and an empty one as null."""
    return told if isinstance(told, list) else [told] if told else []


def _signal(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


def _is_hadoop(name: str) -> bool:
    return name.startswith(("HADOOP_", "YARN_", "HDFS_", "MAPRED_")) or name in (MARK, DAEMON)


# The command


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.clusters.hadoop", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("what", choices=("fetch", "up", "down", "status"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "elasticflow-hadoop")
    parser.add_argument("--node-recovery", action="store_true", help="nodes take their containers over")
    given = parser.parse_args(arguments)
    cluster = HadoopCluster(given.folder, node_recovery=given.node_recovery)
    try:
        return {"fetch": _fetch, "up": _up, "down": _down, "status": _status}[given.what](cluster)
    except ClusterError as error:
        print(f"hadoop: {error}", file=sys.stderr)
        return 1


def _fetch(cluster: HadoopCluster) -> int:
    java_home()
    print(f"Hadoop's jars are in {fetch()}.")
    return 0


def _up(cluster: HadoopCluster) -> int:
    if not cluster.is_running():
        cluster.start()
    print(
        f"A Hadoop cluster runs in {cluster.folder}: {cluster.hdfs_url}, {cluster.rm_url},\n"
        f"{len(cluster.nodes)} nodes with {GPUS_PER_NODE} GPUs each, "
        "queues train (20 %) and prod (80 %, preempts what train has borrowed).\n\n"
        f"{_exports(cluster)}\n\n"
        f"End it: python -m tests.clusters.hadoop down --folder {cluster.folder}"
    )
    return 0


def _exports(cluster: HadoopCluster) -> str:
    names = ("JAVA_HOME", "HADOOP_CONF_DIR", "HADOOP_USER_NAME")
    told = [f"    export {name}={cluster.environment[name]}" for name in names]
    return "\n".join([*told, f'    export PATH="{cluster.folder}/bin:$PATH"'])


def _down(cluster: HadoopCluster) -> int:
    cluster.stop()
    print(f"No cluster runs in {cluster.folder}.")
    return 0


def _status(cluster: HadoopCluster) -> int:
    if not cluster.is_running():
        print(f"No cluster runs in {cluster.folder}.")
        return 1
    print(_exports(cluster))
    running = cluster._daemons()
    missing = [daemon for daemon in cluster.daemons if daemon not in running]
    print("daemons: " + (f"no {', '.join(missing)}" if missing else "all there"))
    told = ", ".join(f"{app} {state}" for app, state in cluster.applications().items())
    print("applications: " + (told or "none"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
