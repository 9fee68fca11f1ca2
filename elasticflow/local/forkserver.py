"""Forks nurseries from a process that has imported a framework, which takes seconds of a processor's time.

Who has many runs on one machine, as a service or a sweep does, starts such a process for each framework that
they use, in a folder of its own, and names the folder in the environment of the runs (``VARIABLE``). A run's
master asks there first, and starts a nursery by itself if nobody answers, or the answer is no.

    master       -> fork server   ForkRequest, with the descriptors that become the nursery's
    fork server  -> master        Forked, or Refused; when the nursery has ended, Exited

A nursery is forked only for who would have got the same by starting one: the same user, code and interpreter,
limits, processors, control groups, and an environment that differs in nothing but names of which the fork
server was told that they do not matter. After that it is a nursery as any other: it lives on when the fork
server goes. One for which nobody asks any more ends by itself. (Python's own ``multiprocessing.forkserver``
is made for functions that are pickled; the idea is the same, and Android's zygote's.)

``python -m elasticflow.local.forkserver FOLDER FRAMEWORK [INDIFFERENT...]``
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import importlib
import os
import select
import signal
import socket as sockets
import subprocess
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from elasticflow.errors import ElasticFlowError
from elasticflow.local import nursery
from elasticflow.local.modules import modules_of
from elasticflow.local.process import Process, end, recorded
from elasticflow.process.decoding import from_json
from elasticflow.process.fingerprint import environment, own_code
from elasticflow.process.locked_files import has_left
from elasticflow.process.stacks import num_threads
from elasticflow.process.stamps import FORMAT, PROCESS
from elasticflow.process.unix_sockets import nearby, uid_of
from elasticflow.run.folder import RunDir

VARIABLE = "ELASTICFLOW_FORK_SERVERS"
"""Of the environment: the folder in which runs look for fork servers."""
FRAMEWORKS = ("torch", "tensorflow")
INDIFFERENT = frozenset({"PWD", "OLDPWD", "SHLVL", "_", VARIABLE, FORMAT, PROCESS})
"""Of the environment: nothing that is loaded reads these."""
ANSWER_S = 2.0
"""So long a master waits for an answer: a fork server does nothing else, so one that is silent is stuck."""
IDLE_S = 600.0
"""A fork server without requests and nurseries ends after so long."""
REQUEST_BYTES = 1 << 20


class ForkRequest(msgspec.Struct, frozen=True):
    """A nursery for a run. arguments: the nursery's, but the descriptor of its listener, which comes along.

    surroundings: of who asks, see ``surroundings``. folder: where it is to work.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    surroundings: str


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The nursery is there; it begins when it reads a byte from its standard input."""

    process: Process


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It would not be the same process as one that the master starts."""

    why: str


class Exited(msgspec.Struct, frozen=True, tag=True):
    """The nursery's exit status, negative: of the signal."""

    status: int


Answer: TypeAlias = Forked | Refused | Exited


# --- what a process has from those that started it ------------------------------------------------

_STATUS = ("Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Mems_allowed")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def surroundings(framework: str) -> str:
    """A hash of what a child of this process inherits, but its environment, and of the code that it loads."""
    proc = Path("/proc/self")
    status = proc.joinpath("status").read_text(encoding="utf-8").splitlines()
    found = [
        sys.executable,
        sys.version,
        own_code(),
        _installed(framework),
        *(line for line in status if line.startswith(_STATUS)),
        *(proc.joinpath(name).read_text(encoding="utf-8") for name in ("limits", "cgroup", "oom_score_adj")),
        *(os.readlink(proc / "ns" / name) for name in _NAMESPACES),
        str((os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))),
    ]
    return hashlib.sha256("\0".join(found).encode()).hexdigest()


def _installed(framework: str) -> str:
    """Which one, as far as its files tell: it may be replaced while a fork server lives."""
    spec = PathFinder.find_spec(framework)
    if spec is None or spec.origin is None:
        return ""
    file = os.stat(spec.origin)
    return f"{spec.origin} {file.st_ino} {file.st_mtime_ns} {file.st_size}"


def differing(first: Mapping[str, str], other: Mapping[str, str], indifferent: Collection[str]) -> list[str]:
    """Names of variables that matter and differ."""
    names = {*first, *other} - set(indifferent)
    return sorted(name for name in names if first.get(name) != other.get(name))


# --- the master's side ----------------------------------------------------------------------------


class ForkedNursery:
    """A nursery that a fork server has forked. It begins once something is written to ``stdin``."""

    def __init__(self, line: sockets.socket, process: Process, stdin: IO[bytes]) -> None:
        self._line, self.process, self.stdin = line, process, stdin

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or that of SIGKILL where nobody says it."""
        self.process.wait()
        self._line.settimeout(ANSWER_S)  # the fork server may be stuck, or gone
        with self._line, contextlib.suppress(OSError):
            if said := self._line.recv(REQUEST_BYTES):
                answer = from_json(said, Answer)
                if isinstance(answer, Exited):
                    return answer.status
        return -signal.SIGKILL

    def kill(self) -> None:
        """Does nothing if it has ended."""
        self.process.kill()


def framework_of(modules: Sequence[str]) -> str:
    """Of a program that imports these; "" if it is none of those that fork servers have, or not one alone."""
    found = {module.partition(".")[0] for module in modules}.intersection(FRAMEWORKS)
    return found.pop() if len(found) == 1 else ""


def socket_for(modules: Sequence[str]) -> Path | None:
    """Where there should be a fork server for a program that imports these."""
    folder, framework = os.environ.get(VARIABLE), framework_of(modules)
    path = _Place(folder, framework).socket if folder and framework else None
    return path if path and path.exists() else None


def fork_nursery(
    server: Path, listener: int, log: int, arguments: Sequence[str], variables: dict[str, str]
) -> ForkedNursery | None:
    """A nursery from the fork server at this socket; None if it is gone, or has none for us."""
    read, write = os.pipe()
    answer: Answer | None = None
    line = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
    try:
        line.settimeout(ANSWER_S)
        with nearby(server) as address:
            line.connect(address)
        if uid_of(line) != os.getuid():
            raise OSError(errno.EPERM, "a fork server of another user")
        request = ForkRequest(list(arguments), variables, os.getcwd(), surroundings(server.stem))
        sockets.send_fds(line, [msgspec.json.encode(request)], [read, log, listener])
        answer = from_json(line.recv(REQUEST_BYTES), Answer)
    except (FileNotFoundError, ConnectionRefusedError):  # it has ended
        why = ""
    except (OSError, ValueError, msgspec.MsgspecError) as error:  # ValueError: a name that is no text
        why = str(error)
    else:
        why = answer.why if isinstance(answer, Refused) else ""
    finally:
        os.close(read)
    if isinstance(answer, Forked):
        line.settimeout(None)
        return ForkedNursery(line, answer.process, os.fdopen(write, "wb", buffering=0))
    with contextlib.suppress(OSError):  # a full disk
        os.write(
            log,
            f"not from the fork server {server}, but anew: {why}\n".encode(errors="replace") if why else b"",
        )
    line.close()
    os.close(write)  # with it, one that is forked after all does not begin
    return None


# --- the owner's side -----------------------------------------------------------------------------


class _Place:
    """Where a fork server is met, and where it is written down."""

    def __init__(self, folder: Path | str, framework: str) -> None:
        self.socket = Path(folder, f"{framework}.sock")
        self.process = Path(folder, f"{framework}.json")
        self.log = Path(folder, f"{framework}.log")


class ForkServers:
    """Those of one owner, in a folder that is its own. They live on when the owner is killed.

    indifferent: names of variables in which runs may differ, since nothing reads them while it is loaded.
    """

    def __init__(self, folder: Path, indifferent: Collection[str] = ()) -> None:
        self.folder, self._indifferent = folder, sorted(indifferent)
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._place = os.open(folder, os.O_PATH | os.O_DIRECTORY)

    def ensure(self, framework: str, threads: int, module: str = __name__) -> None:
        """Starts one for this framework unless it lives; runs find it when it has imported the framework.

        "" is none. Where one cannot be started, each run imports its framework itself.
        """
        if not framework:
            return
        place = _Place(self.folder, framework)
        started = self._started.get(framework)
        if started is not None and ((code := started.poll()) is None or code > 0):
            return  # it lives, or could not be one, and the next could not either
        found = recorded(place.process)
        if found is not None and (watched := found.watch()) is not None:
            os.close(watched)
            return
        with contextlib.suppress(OSError):
            self._started[framework] = self._start(framework, threads, module)

    def ensure_for(self, run: RunDir) -> None:
        """The same, for what a run's program imports. Whatever is wrong with that run it says itself."""
        with contextlib.suppress(ElasticFlowError, OSError):
            config = run.config()
            self.ensure(framework_of(modules_of(config, run)), config.threads)

    def _start(self, framework: str, threads: int, module: str) -> subprocess.Popen[bytes]:
        place = _Place(self.folder, framework)
        place.socket.unlink(missing_ok=True)  # of one that has ended
        with place.log.open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", module, str(self.folder), framework, *self._indifferent],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(threads),
                start_new_session=True,
            )
        Process.of(child.pid).record(place.process)
        return child

    def close(self) -> None:
        """Ends them; nurseries live on."""
        if not has_left(self.folder, self._place):  # else those that are told of there are another owner's
            found = [recorded(_Place(self.folder, framework).process) for framework in FRAMEWORKS]
            end(process for process in found if process is not None)
        os.close(self._place)
        for child in self._started.values():
            child.kill()  # where nothing tells of it any more
        for child in self._started.values():
            child.wait()


# --- the fork server itself -----------------------------------------------------------------------


class ForkServer:
    """Of one framework, in this process, which has imported it."""

    def __init__(self, framework: str, indifferent: Collection[str]) -> None:
        # Before the import: what is changed meanwhile is not what others would load.
        self._surroundings = surroundings(framework)
        self._environment = dict(os.environ)
        self._indifferent = INDIFFERENT.union(indifferent)
        nursery.preload([framework])
        os.environ.clear()
        os.environ.update(self._environment)
        self._listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        self._lines: dict[int, sockets.socket] = {}
        """By descriptor: of masters whose request has not come yet, or whose nursery lives."""
        self._children: dict[int, tuple[int, sockets.socket]] = {}
        """By the descriptor that is readable when it has ended: its number, and who is to be told."""

    def listen(self, path: Path) -> None:
        """From now on."""
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with nearby(new) as address:
            self._listener.bind(address)
        self._listener.listen()
        new.rename(path)  # whoever sees it can connect

    def run(self) -> None:
        """Until all nurseries have ended, and nobody has asked for ``IDLE_S``."""
        while ready := self._wait():
            for fd in ready:
                if fd in self._children:
                    self._bury(fd)
                elif fd in self._lines:
                    self._hear(self._lines.pop(fd))
                else:
                    line, _ = self._listener.accept()
                    line.settimeout(ANSWER_S)
                    self._lines[line.fileno()] = line

    def _wait(self) -> list[int]:
        poller = select.poll()
        for fd in (self._listener.fileno(), *self._lines, *self._children):
            poller.register(fd, select.POLLIN)
        return [fd for fd, _ in poller.poll(None if self._children else IDLE_S * 1000)]

    def _hear(self, line: sockets.socket) -> None:
        """A request; or the end of a line, whose nursery lives on."""
        fds: list[int] = []
        try:
            said, fds, _, _ = sockets.recv_fds(line, REQUEST_BYTES, 3)
            if not said or len(fds) != 3:
                line.close()
                return
            request = from_json(said, ForkRequest)
            if why := self._refusal(line, request):
                line.send(msgspec.json.encode(Refused(why)))
                line.close()
                return
            self._fork(line, request, fds)
        except (OSError, msgspec.MsgspecError):
            line.close()
        finally:
            for fd in fds:
                os.close(fd)

    def _refusal(self, line: sockets.socket, request: ForkRequest) -> str:
        if uid_of(line) != os.getuid():
            return "another user"
        if request.surroundings != self._surroundings:
            return "other surroundings"
        names = differing(self._environment, request.environment, self._indifferent)
        return f"another environment: {', '.join(names)}" if names else ""

    def _fork(self, line: sockets.socket, request: ForkRequest, fds: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_nursery(line, request, fds)
        process = Process.of(pid)
        self.forked(process, request)
        self._children[os.pidfd_open(pid)] = pid, line
        line.send(msgspec.json.encode(Forked(process)))

    def forked(self, process: Process, request: ForkRequest) -> None:
        """Before the nursery begins. For tests."""

    def _become_nursery(self, line: sockets.socket, request: ForkRequest, fds: list[int]) -> None:
        """In the child; does not return."""
        try:
            os.setsid()
            stdin, log, listener = fds
            os.dup2(stdin, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # Whoever else holds these makes others look alive.
            for socket in (self._listener, line, *self._lines.values()):
                socket.close()
            for fd, (_, other) in self._children.items():
                os.close(fd)
                other.close()
            os.close(stdin)
            os.close(log)
            os.chdir(request.folder)
            os.environ.clear()
            os.environ.update(request.environment)
            if not getattr(sys.flags, "safe_path", False):  # Python 3.11
                sys.path[0] = request.folder  # as "python -m" has it
            importlib.invalidate_caches()
            nursery.main([str(listener), *request.arguments])
        except BaseException:  # noqa: BLE001  (its log is all that is left of this child)
            traceback.print_exc()
        finally:
            os._exit(1)

    def _bury(self, fd: int) -> None:
        pid, line = self._children.pop(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        with line, contextlib.suppress(OSError):
            line.send(msgspec.json.encode(Exited(os.waitstatus_to_exitcode(status))))


def main(argv: Sequence[str], kind: type[ForkServer] = ForkServer) -> None:
    """See the module's docstring."""
    folder, framework, *indifferent = argv
    path = _Place(folder, framework).socket
    server = kind(framework, indifferent)
    if num_threads() > 1 or framework not in sys.modules:
        sys.exit(
            f"{framework} cannot be forked: it is not there, or has started threads, which children lack"
        )
    gc.freeze()
    gc.enable()
    server.listen(path)
    server.run()
    os._exit(0)  # as a nursery does


if __name__ == "__main__":
    main(sys.argv[1:])
