"""Members as processes of this machine, forked by a nursery that outlives the master."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket as sockets
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection
from pathlib import Path

import msgspec

from elasticflow.cluster.contract import Backend, Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.errors import RunError
from elasticflow.local import forkserver, nursery
from elasticflow.local.forkserver import ForkedNursery
from elasticflow.local.modules import modules_of
from elasticflow.local.process import Process, end, has_ended, recorded, recorded_in
from elasticflow.process.decoding import from_json
from elasticflow.process.ending import how_it_ended
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.fingerprint import environment
from elasticflow.process.unix_sockets import nearby
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir, last_line
from elasticflow.run.settings import MemberSettings

SOCKET = "nursery.sock"
HELLO_S = 30.0
"""How long a nursery may take to say what lives; one that does not is stuck, and is replaced."""
TRIES, KILLS = 2, 10
"""How many nurseries in a row may end before one could start anything: by themselves, and by SIGKILL."""


class LocalBackend(Backend):
    """See Backend. Who lives is known from the nursery, or else from the files of those before it.

    A member whose nursery has died is watched by a descriptor of its own: ``_orphans``.
    """

    host = member_host = "127.0.0.1"

    def __init__(self, config: Config, run_dir: str) -> None:
        self._config, self._run_dir, self._place = config, run_dir, _Records(run_dir)
        self._place.members.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._logs = Path(run_dir, "logs")
        self._logs.mkdir(parents=True, exist_ok=True)
        self._members: dict[str, Process] = {}
        self._orphans: dict[str, int] = {}
        self._asked: dict[str, bytes] = {}
        self._doomed: set[str] = set()
        self._placed: list[str] = []
        self._unsent: deque[bytes] = deque()
        self._ends = _Ends()
        self._child: subprocess.Popen[bytes] | ForkedNursery | None = None
        self._heard = False
        self._barren = 0
        try:
            self._nursery = self._place.connect()
        except ConnectionRefusedError:
            self._adopt()
            self._nursery = self._launch()
        else:
            self._nursery.setblocking(False)

    # --- the interface ---------------------------------------------------------------------------

    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        deadline = time.monotonic() + HELLO_S
        while self._child is None and not self._heard:
            poller = select.poll()
            poller.register(self._nursery, select.POLLIN)
            if poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._listen()
            else:
                end(self._place.nurseries())
                self._replace()
        return {name: process.pid for name, process in self._members.items()}

    def start(self, settings: MemberSettings) -> None:
        log = str(self._logs / f"{settings.name}.log")
        packet = msgspec.json.encode(nursery.StartOrder(settings, log))
        self._asked[settings.name] = packet
        self._say(packet)

    def kill(self, name: str) -> None:
        if name in self._members:
            self._members[name].kill()
        elif name in self._asked:
            self._doomed.add(name)

    def placed(self) -> list[str]:
        placed, self._placed = self._placed, []
        return placed

    def wait_fds(self) -> list[int]:
        return [self._nursery.fileno(), *self._orphans.values(), self._ends.untold.fd]

    def ended(self) -> list[Ended]:
        self._forget()
        self._listen()
        for name, watched in list(self._orphans.items()):
            if has_ended(watched):
                self._bury(name, None)
        self._say()
        return self._ends.tell()

    @property
    def num_running(self) -> int:
        return len(self._asked) + len(self._members)

    def close(self) -> None:
        self._nursery.close()
        self._ends.untold.close()
        if not self._place.are_anothers():
            self.clear(self._run_dir)
        end(self._members.values())
        for watched in self._orphans.values():
            os.close(watched)
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        for names in (self._members, self._orphans, self._asked):
            names.clear()

    @staticmethod
    def clear(run_dir: str) -> None:
        place = _Records(run_dir)
        end(place.nurseries())  # first: it starts no more
        end(place.recorded().values())
        place.remove()

    # --- the nursery -----------------------------------------------------------------------------

    def _launch(self) -> sockets.socket:
        """Starts a nursery. It may take seconds to import; what it is told until then waits for it."""
        place = self._place
        modules = modules_of(self._config, RunDir(self._run_dir))
        arguments = [str(place.members), str(self._config.lost_s), *modules]
        with (self._logs / "nursery.log").open("ab") as log:
            forked = self._fork(modules, arguments, log.fileno())
            child, connection = forked or self._spawn(arguments, log.fileno())
        self._child = child
        connection.setblocking(False)
        self._heard = False
        # First it is written down, then it may begin: whoever comes next finds it.
        # One that a fork server has buried already is nowhere to be looked up.
        process = child.process if isinstance(child, ForkedNursery) else Process.of(child.pid)
        place.begin(process)
        assert child.stdin is not None
        with child.stdin as go, contextlib.suppress(BrokenPipeError):
            go.write(b"\n")
        return connection

    def _fork(
        self, modules: list[str], arguments: list[str], log: int
    ) -> tuple[ForkedNursery, sockets.socket] | None:
        """By a fork server, if one is there for this run."""
        server = forkserver.socket_for(modules)
        if server is None:
            return None
        with self._place.listen() as listener:
            variables = environment(self._config.threads)
            child = forkserver.fork_nursery(server, listener.fileno(), log, arguments, variables)
            return (child, self._place.connect()) if child is not None else None

    def _spawn(self, arguments: list[str], log: int) -> tuple[subprocess.Popen[bytes], sockets.socket]:
        with self._place.listen() as listener:
            child = subprocess.Popen(
                [sys.executable, "-m", nursery.__name__, str(listener.fileno()), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(self._config.threads),
                pass_fds=[listener.fileno()],
                bufsize=0,
            )
            return child, self._place.connect()

    def _say(self, *packets: bytes) -> None:
        """Sends packets, or keeps them until the nursery has read some: its answers lead here again."""
        self._unsent.extend(packets)
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._unsent:
                self._nursery.send(self._unsent[0])
                self._unsent.popleft()

    def _listen(self) -> None:
        while True:
            try:
                packet = self._nursery.recv(nursery.PACKET)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it died with commands unread; what it had said still comes
                continue
            if not packet:
                self._replace()
                return
            news = from_json(packet, nursery.News)
            if news.living:
                self._barren = 0
            for name, process in news.living.items():
                self._begin(name, process)
            for name, status in news.ended.items():
                self._bury(name, status)
            if self._child is None and not self._heard:  # what it does not know of is of one before it
                self._adopt(spared={*self._members, *self._asked})
            self._heard = True

    def _replace(self) -> None:
        """The nursery has died. Raises RunError if that is a habit of this run's."""
        code = self._child.wait() if self._child else -signal.SIGKILL
        self._barren = 0 if self._heard and not self._asked else self._barren + 1
        if self._barren >= (KILLS if code == -signal.SIGKILL else TRIES):
            raise RunError(
                f"the nursery, which starts members, {how_it_ended(code)}, again and again; "
                f"see {self._logs}/nursery.log"
            )
        self._nursery.close()
        self._adopt()
        self._unsent = deque(self._asked.values())
        self._nursery = self._launch()
        self._say()

    # --- members ---------------------------------------------------------------------------------

    def _begin(self, name: str, process: Process) -> None:
        self._asked.pop(name, None)
        self._members[name] = process
        self._placed.append(name)
        if name in self._doomed:
            self._doomed.discard(name)
            process.kill()

    def _adopt(self, spared: Collection[str] = ()) -> None:
        """Watches all members that no nursery will tell of."""
        for name, process in {**self._place.recorded(), **self._members}.items():
            if name not in self._ends and name not in self._orphans and name not in spared:
                self._begin(name, process)
                watched = process.watch()
                if watched is None:
                    self._bury(name, None)
                else:
                    self._orphans[name] = watched

    def _bury(self, name: str, status: int | None) -> None:
        """status: None if it is not known; nobody could see it."""
        self._members.pop(name, None)
        if name in self._orphans:
            os.close(self._orphans.pop(name))
        if name not in self._ends:
            self._ends.add(self._ending(name, status))

    def _ending(self, name: str, status: int | None) -> Ended:
        if status is None:
            return Ended(name, How.KILLED, "ended")
        left = status < 0 or status == EXIT_ABANDONED  # by no error of its own
        how = How.KILLED if left else How.FAILED if status > 0 else How.DONE
        text = how_it_ended(status)
        if status > 0:
            text += f"; its last words, in {self._logs / name}.log: {last_line(self._logs / f'{name}.log')}"
        return Ended(name, how, text)

    def _forget(self) -> None:
        """What the last call of ``ended`` told has been dealt with: another master need not hear of it."""
        if told := self._ends.dealt_with():
            for name in told:
                self._place.forget(name)
            self._say(msgspec.json.encode(nursery.Forget(tuple(told))))


class _Ends:
    """How members have ended: each is told once. ``untold`` is set while there are some to tell."""

    def __init__(self) -> None:
        self.untold = FdEvent()
        self._known: set[str] = set()
        self._untold: list[Ended] = []
        self._told: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def add(self, ended: Ended) -> None:
        self._known.add(ended.name)
        self._untold.append(ended)
        self.untold.set()

    def tell(self) -> list[Ended]:
        """Those since the last time."""
        self.untold.clear()
        ended, self._untold = self._untold, []
        self._told = [each.name for each in ended]
        return ended

    def dealt_with(self) -> list[str]:
        """Names of those that were told last, once: whoever asks for more has taken them in."""
        told, self._told = self._told, []
        return told


class _Records:
    """Where a run's nursery is met, and where it is written down which processes there are."""

    def __init__(self, run_dir: str) -> None:
        self._keys = Path(run_dir, "keys")
        self.members = self._keys / "members"
        self.nursery = self._keys / "nursery.json"
        self._last = self.nurseries()

    def nurseries(self) -> list[Process]:
        """The last nursery, if any was written down."""
        found = recorded(self.nursery)
        return [found] if found else []

    def begin(self, nursery: Process) -> None:
        """Writes a new one down."""
        nursery.record(self.nursery)
        self._last = [nursery]

    def are_anothers(self) -> bool:
        """Whether another run has the folder by now: with a nursery that was not begun here."""
        return self.nurseries() not in ([], self._last)

    def recorded(self) -> dict[str, Process]:
        """Members that were started, and whose ends have not been dealt with."""
        return {name: process for name, process in recorded_in(self.members).items() if process}

    def forget(self, name: str) -> None:
        with contextlib.suppress(OSError):  # a read-only disk: another master hears of it again
            (self.members / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Leaves nothing of the nurseries' behind, where that can be."""
        shutil.rmtree(self.members, ignore_errors=True)
        for path in (self.nursery, self._keys / SOCKET):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def connect(self) -> sockets.socket:
        """A line to the nursery. Raises ConnectionRefusedError if there is none."""
        socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            with nearby(self._keys / SOCKET) as address:
                socket.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            socket.close()
            raise ConnectionRefusedError(str(error)) from error
        return socket

    def listen(self) -> sockets.socket:
        """Raises RunError if there can be no socket in this folder."""
        (self._keys / SOCKET).unlink(missing_ok=True)
        socket = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            with nearby(self._keys / SOCKET) as address:
                socket.bind(address)
            socket.listen()
        except OSError as error:
            socket.close()
            raise RunError(
                f"{self._keys}: there can be no socket in this folder: {error.strerror}; "
                "choose a --run-dir on another disk."
            ) from error
        return socket
