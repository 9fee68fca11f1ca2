"""Kills and freezes processes of a run that is under way, by a plan that follows from a seed.

``strikes``, ``roster`` and ``choose`` are pure: the same seed, rate and kinds give the same strikes, and
the same members the same victims. ``Hand`` sends the signals, ``HarmNews`` tells what the run is about, and
``harass`` brings them together. Only processes of this host are touched, and only while they are what
the run's master says they are: a process number that has passed on to somebody else is left alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from elasticflow.cli.connection import Connection
from elasticflow.cluster.presence import is_alive
from elasticflow.errors import ConfigError, RunError
from elasticflow.local.process import recorded
from elasticflow.run.folder import ENDED, RunDir
from elasticflow.run.telling import Status, ToldMember

LOOK_S = 0.2
"""How often somebody who waits for news looks whether there still is the master that was asked."""
SHORTEST_S, LONGEST_S = 0.1, 10.0
"""How long a process is frozen: from a hiccup to well beyond ``suspect_s``."""


# --- the plan ------------------------------------------------------------------------------------


class Victim(NamedTuple):
    """A process of a run. mark: what the kernel has to say of it, as its name or in its command line."""

    name: str
    host: str
    pid: int
    mark: str


class Roster(NamedTuple):
    """Who there is at one moment; a role that is not there, or not known of, is empty."""

    workers: tuple[Victim, ...] = ()
    servers: tuple[Victim, ...] = ()
    master: tuple[Victim, ...] = ()
    supervisor: tuple[Victim, ...] = ()
    nursery: tuple[Victim, ...] = ()
    client: tuple[Victim, ...] = ()


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do. after_s: seconds after the one before. pick: decides whom, see ``choose``.

    frozen_s: for how long; 0: it is killed. count: how many, where the kind leaves that open.
    """

    after_s: float
    kind: str
    pick: int
    frozen_s: float = 0.0
    count: int = 1


class Harm(NamedTuple):
    """What a kind of strike does, for people, and whom it may hit."""

    text: str
    whom: Callable[[Roster, Strike], Sequence[Victim]]
    freezes: bool = False
    usual: bool = True
    """Done unless other kinds are named: one thing at a time, and nothing that needs the user."""


def _some(processes: Sequence[Victim], pick: int, count: int = 1) -> Sequence[Victim]:
    """``count`` of them, one after the other in the row; all, if there are not as many."""
    first = pick % len(processes) if processes else 0
    return [*processes[first:], *processes[:first]][:count]


def _a_server(there: Roster, strike: Strike) -> Sequence[Victim]:
    return _some(there.servers, strike.pick)


def _a_worker(there: Roster, strike: Strike) -> Sequence[Victim]:
    return _some(there.workers, strike.pick)


KINDS = {
    "worker": Harm("kill a worker", _a_worker),
    "server": Harm("kill a parameter server", _a_server),
    "master": Harm("kill the master", lambda there, _: there.master),
    "nursery": Harm("kill the process that forks the others", lambda there, _: there.nursery),
    "freeze-worker": Harm("stop a worker, let it go on later", _a_worker, freezes=True),
    "freeze-server": Harm("stop a server, let it go on later", _a_server, freezes=True),
    "freeze-master": Harm("stop the master, let it go on later", lambda there, _: there.master, freezes=True),
    "workers": Harm(
        "kill several workers at once",
        lambda there, strike: _some(there.workers, strike.pick, strike.count),
        usual=False,
    ),
    "servers": Harm("kill all servers at once", lambda there, _: there.servers, usual=False),
    "server+keeper": Harm(
        "kill a server and the one that keeps its snapshots at once",
        lambda there, strike: _some(there.servers, strike.pick, 2),
        usual=False,
    ),
    "server+worker": Harm(
        "kill a server and a worker at once",
        lambda there, strike: (*_a_server(there, strike), *_a_worker(there, strike)),
        usual=False,
    ),
    "master+worker": Harm(
        "kill the master and a worker at once",
        lambda there, strike: (*there.master, *_a_worker(there, strike)),
        usual=False,
    ),
    "master+server": Harm(
        "kill the master and a server at once",
        lambda there, strike: (*there.master, *_a_server(there, strike)),
        usual=False,
    ),
    "supervisor": Harm("kill the process that restarts the master", lambda t, _: t.supervisor, usual=False),
    "client": Harm("kill 'elasticflow train'", lambda there, _: there.client, usual=False),
}
GROUPS = {
    "usual": tuple(name for name, kind in KINDS.items() if kind.usual),
    "freeze": tuple(name for name, kind in KINDS.items() if kind.freezes),
    "kill": tuple(name for name, kind in KINDS.items() if not kind.freezes and kind.usual),
    "several": ("workers", "servers", "server+keeper", "server+worker", "master+worker", "master+server"),
    "all": tuple(KINDS),
}


def kinds_of(text: str) -> tuple[str, ...]:
    """The kinds in a list of names and groups, with commas. Raises ConfigError if one is unknown."""
    found: dict[str, None] = {}
    for word in (word.strip() for word in text.split(",")):
        if word not in KINDS and word not in GROUPS:
            raise ConfigError(
                f"kinds: {word!r} is unknown; there are {', '.join(KINDS)}, "
                f"and for several of them {', '.join(GROUPS)}."
            )
        found.update(dict.fromkeys(GROUPS.get(word, (word,))))
    return tuple(found)


def strikes(seed: int, rate: float, kinds: Sequence[str]) -> Iterator[Strike]:
    """Endless; ``rate`` a minute on average. Another rate changes when, but not what."""
    rng = random.Random(seed)
    while True:
        pause, length = rng.expovariate(1.0), rng.random()
        kind, pick, count = rng.choice(kinds), rng.getrandbits(31), rng.randint(2, 4)
        yield Strike(
            after_s=round(pause * 60 / rate, 3),
            kind=kind,
            pick=pick,
            frozen_s=round(SHORTEST_S * (LONGEST_S / SHORTEST_S) ** length, 3)
            if KINDS[kind].freezes
            else 0.0,
            count=count if kind == "workers" else 1,
        )


def choose(strike: Strike, there: Roster) -> tuple[Victim, ...]:
    """Whom a strike hits. Nobody, where nobody of that role is there."""
    return tuple(KINDS[strike.kind].whom(there, strike))


def roster(status: Status, around: Roster | None = None) -> Roster:
    """Who there is, by a run's status; ``around``: the processes of which the status does not tell.

    Members that have been asked for, but have not joined yet, have no process number that is known.
    """
    around = around or Roster()

    def members(of: Sequence[ToldMember]) -> tuple[Victim, ...]:
        return tuple(
            Victim(each.name, each.host, each.pid, f"ef-{each.name}"[:15]) for each in of if each.pid
        )

    master = status.master
    return around._replace(
        workers=members(status.workers),
        servers=members(status.servers),
        master=(Victim("master", master.host, master.pid, "elasticflow.master"),),
    )


# --- processes of this host ------------------------------------------------------------------------


def _command(pid: int) -> list[str]:
    """A process's command line; empty if there is no such process, or it is nothing of ours to see."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    return []


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _is_still(process: Victim) -> bool:
    """Whether the process number is (still) that of the process that is meant, and that lives."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    if stat[stat.rindex(")") + 2] in "ZX":
        return False
    return process.mark == name or process.mark in _command(process.pid)


def _has_argument(pid: int, command: Sequence[str], path: Path) -> bool:
    """Whether a path is among the words of a command line, however it is written there."""
    wanted = path.resolve()
    with contextlib.suppress(OSError):
        here = Path(f"/proc/{pid}/cwd").readlink()
        return any((here / word).resolve() == wanted for word in command if word)
    return False


def around(run: RunDir, master: int) -> Roster:
    """The run's processes on this host that are no members. master: the process number of its master."""
    family = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        command = _command(pid)
        if "elasticflow.master" in command and _has_argument(pid, command, run.folder):
            family[pid] = _parent(pid)
    host = socket.gethostname()
    supervisors = [pid for pid, parent in family.items() if pid != master and parent not in family]
    clients = [pid for pid in map(_parent, supervisors) if "train" in _command(pid)]
    nursery = recorded(run.folder / "keys" / "nursery.json")
    forks = [nursery.pid] if nursery else []
    return Roster(
        supervisor=tuple(Victim("supervisor", host, pid, "elasticflow.master") for pid in supervisors),
        nursery=tuple(Victim("nursery", host, pid, "ef-nursery") for pid in forks),
        client=tuple(Victim("client", host, pid, "train") for pid in clients),
    )


class Hand:
    """Sends the signals. Whatever it has frozen goes on in time, and at the latest when it is closed."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._frozen: list[tuple[float, Victim, int]] = []

    def __enter__(self) -> Hand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.thaw(math.inf)

    def strike(self, process: Victim, frozen_s: float, now_s: float) -> str:
        """Kills a process, or freezes it for some seconds. Returns why not, or nothing."""
        if process.host != self._host:
            return f"is on {process.host}, not here"
        if frozen_s and process in (frozen for _, frozen, _ in self._frozen):
            return "is frozen already"
        try:
            # Whoever has the number is held first and looked at then: it cannot become another's between.
            fd = os.pidfd_open(process.pid)
        except OSError:
            return "has ended"
        try:
            if not _is_still(process):
                return "has ended"
            signal.pidfd_send_signal(fd, signal.SIGSTOP if frozen_s else signal.SIGKILL)
            if frozen_s:
                self._frozen.append((now_s + frozen_s, process, fd))
        except OSError as error:
            return f"cannot be reached: {error.strerror}"
        finally:
            if fd not in (each[2] for each in self._frozen):
                os.close(fd)
        return ""

    @property
    def next_s(self) -> float:
        """When somebody is to go on; never: infinity."""
        return min((at_s for at_s, _, _ in self._frozen), default=math.inf)

    def thaw(self, now_s: float) -> list[Victim]:
        """Lets go on whoever has been frozen for long enough; returns those that still live."""
        due = [each for each in self._frozen if each[0] <= now_s]
        self._frozen = [each for each in self._frozen if each[0] > now_s]
        living = []
        for _, process, fd in due:
            with contextlib.suppress(OSError):  # it has been ended meanwhile
                signal.pidfd_send_signal(fd, signal.SIGCONT)
                living += [process] if _is_still(process) else []
            os.close(fd)
        return living


# --- a run's news ----------------------------------------------------------------------------------


class HarmNews:
    """One status after the other, from one master after the other. Raises RunError if there is no run."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._connection = run, Connection(run, waiting=lambda text: None)

    def __enter__(self) -> HarmNews:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.__exit__(kind, error, trace)

    def next(self, timeout_s: float) -> Status | None:
        """The next status, None if none comes in time; of a run that is over, its report.

        Raises RunError if the run is over and has left no report.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                status = self._connection.next_status(min(left_s, LOOK_S))
            except RunError:
                if is_alive(self._run) or not self._run.report.exists():
                    raise
                return self._run.read_report()
            if status is not None or time.monotonic() >= deadline_s:
                return status


# --- the doing -------------------------------------------------------------------------------------


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, for the record. time_s: wall clock. skipped: who was left alone, and why."""

    time_s: float
    step: int
    state: str
    strike: Strike
    hit: tuple[str, ...]
    pids: tuple[int, ...]
    skipped: tuple[str, ...] = ()


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was frozen goes on. time_s: wall clock."""

    time_s: float
    continued: str
    pid: int


def hit(hand: Hand, strike: Strike, status: Status, run: RunDir) -> Struck:
    """Does it, to whom it falls by this status."""
    roles = ("nursery", "supervisor", "client")
    there = roster(status, around(run, status.master.pid) if strike.kind in roles else None)
    done: list[Victim] = []
    skipped = []
    for process in choose(strike, there):
        why = hand.strike(process, strike.frozen_s, time.monotonic())
        skipped.append(f"{process.name} {why}") if why else done.append(process)
    return Struck(
        time_s=time.time(),
        step=status.step,
        state=status.state,
        strike=strike,
        hit=tuple(process.name for process in done),
        pids=tuple(process.pid for process in done),
        skipped=tuple(skipped),
    )


def _has_master(status: Status) -> bool:
    (master,) = roster(status).master
    return master.host != socket.gethostname() or _is_still(master)


def harass(
    run: RunDir, plan: Iterator[Strike], seconds: float, tell: Callable[[Struck | Continued], None]
) -> Status:
    """Follows the plan until the run is over or the time is; returns the last status.

    Raises RunError if no such run is under way, or it ends without a report.
    """
    with HarmNews(run) as news, Hand() as hand:
        status = news.next(math.inf)
        assert status is not None
        begin_s = now_s = time.monotonic()
        strike = next(plan)
        due_s = begin_s + strike.after_s
        while status.state not in ENDED:
            wait_s = min(due_s, hand.next_s, begin_s + seconds) - now_s
            # Past that time it waits for a master: what is known of the members may be old until then.
            status = news.next(wait_s if wait_s > 0 else LOOK_S) or status
            now_s = time.monotonic()
            for process in hand.thaw(now_s):
                tell(Continued(time_s=time.time(), continued=process.name, pid=process.pid))
            if now_s >= begin_s + seconds:
                break
            if now_s >= due_s and status.state not in ENDED and _has_master(status):
                struck = hit(hand, strike, status, run)
                tell(struck)
                strike = next(plan)
                due_s = now_s + strike.after_s
        return status
