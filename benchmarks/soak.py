"""Hundreds of seeded kills and freezes over all roles, in runs of both frameworks: what each kind costs.

``python -m benchmarks soak --help`` tells the options. A run's plan follows from the seed and the run's
number, so ``--seed S --run N`` does one of them again. What the model must be at the end is known: for
nets from an undisturbed run, for programs that count their records from arithmetic.

Other processes compute all the time beside it (``--load``). With ``--throttled`` all that workers and servers
tell each other goes by TCP through a relay, which delays it, cuts it, pauses for up to a second and resets.
With ``--strategy all_reduce`` it is workers that carry the servers, so one who dies takes some along.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.busy import busy, num_cores
from benchmarks.figures import Figure, figure, median
from benchmarks.jobs import Interval
from benchmarks.soak_costs import USUAL_S, gap, idle_of_others, recovery
from elasticflow import checkpoint
from elasticflow.cli.killing import KINDS, Hand, HarmNews, Strike, Struck, hit, kinds_of
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.run.config import ALL_REDUCE, PARAMETER_SERVER, STRATEGIES
from elasticflow.run.folder import ENDED, RunDir
from elasticflow.run.telling import Status
from elasticflow.storage import DirectoryStorage
from tests.relay import Manner, Relay

COMMAND = "python -m benchmarks soak"
FAULTS = 200
HEAVY = ("mixed_torch", "many_torch", "huge_tensorflow")
PROGRAMS = (
    "soak_torch",
    "soak_counted_tensorflow",
    "mixed_torch",
    "soak_tensorflow",
    "many_torch",
    "soak_counted_torch",
    "huge_tensorflow",
)
RECORDS, BATCH = 3200, 64
EPOCHS, EPOCHS_OF_HEAVY, EPOCHS_OF_THROTTLED = 24, 4, 2
SLICE_S, SLICES = 0.004, 8
SNAPSHOT_S = 0.2
MOST_RESET = 24
"""A throttled run's connections below this number may be reset."""
AIMS = 8
"""Strikes a run."""
LONGEST_S = 5.0
"""A frozen process is one for at most so long: well above ``suspect_s``."""
HANG_S = 60.0
FAREWELL_S = 15.0
"""How long processes may outlive their run."""
ROOM_S = 30.0
"""With less time than this left, no other run is begun."""
MOST_MASTERS = 4
"""A master that dies more often in a minute is given up, by design."""

EVERYTHING = "everything"
"""Not one of chaos' kinds: all processes of a run are killed, and it is resumed."""
SOAKED = (*KINDS, EVERYTHING)
OF_WORKERS = ("worker", "workers", "freeze-worker", "master+worker")
OF_SERVERS = (
    "server",
    "freeze-server",
    "servers",
    "server+keeper",
    "server+worker",
    "master+server",
    EVERYTHING,
)
MARK = "ELASTICFLOW_SOAK"


# --- the plan ------------------------------------------------------------------------------------


class Aim(NamedTuple):
    """Strike ``strike.after_s`` after the moment: a step is reached and all is well (``settled``), the
    strike before has been made (``at once``), or the run is not well because of it (``unwell``)."""

    step: int
    moment: str
    strike: Strike


class Plan(NamedTuple):
    """One run, and what is done to it. servers: under ``all_reduce`` the places that workers carry; peers:
    with more workers than these relays stand between."""

    seed: int
    number: int
    program: str
    workers: int
    servers: int
    checkpoint_every: str
    kinds: tuple[str, ...]
    aims: tuple[Aim, ...]
    throttled: bool = False
    strategy: str = PARAMETER_SERVER
    peers: int = 32

    @property
    def epochs(self) -> int:
        return epochs_of(self.program, self.throttled)

    @property
    def steps(self) -> int:
        return steps_in(self.epochs)


def epochs_of(program: str, throttled: bool) -> int:
    """Where steps take longer fewer of them give as much time to be hit."""
    if program not in HEAVY:
        return EPOCHS
    return EPOCHS_OF_THROTTLED if throttled else EPOCHS_OF_HEAVY


def steps_in(epochs: int) -> int:
    return epochs * RECORDS // BATCH


def _deal(seed: int, number: int, kinds: Sequence[str]) -> list[str]:
    """The kinds for a run: all of them come up equally often over the runs, in an order of the seed's."""
    dealt = []
    for place in range(number * AIMS, (number + 1) * AIMS):
        deck = list(kinds)
        random.Random(f"{seed}, deck {place // len(kinds)}").shuffle(deck)
        dealt.append(deck[place % len(kinds)])
    masters = [place for place, kind in enumerate(dealt) if kind.startswith("master")]
    for place in masters[MOST_MASTERS:]:
        dealt[place] = next((kind for kind in kinds if not kind.startswith("master")), kinds[0])
    return sorted(dealt, key=lambda kind: kind == "supervisor")  # nobody would restart a master after it


def plan_of(
    seed: int,
    number: int,
    kinds: Sequence[str] = SOAKED,
    *,
    throttled: bool = False,
    strategy: str = PARAMETER_SERVER,
) -> Plan:
    """A pure function of its arguments."""
    rng = random.Random(f"{seed}, run {number}")
    first = random.Random(f"{seed}, first program").randrange(len(PROGRAMS))
    program = PROGRAMS[(first + number) % len(PROGRAMS)]
    aims = []
    steps = steps_in(epochs_of(program, throttled))
    every = (steps - min(100, steps // 2)) // AIMS
    for place, kind in enumerate(_deal(seed, number, kinds)):
        moment = "settled" if not place else rng.choices(("settled", "at once", "unwell"), (7, 2, 1))[0]
        freezes = kind in KINDS and KINDS[kind].freezes
        strike = Strike(
            after_s=round(rng.random() * (0.05 if moment == "settled" else 1.0), 4),
            kind=kind,
            pick=rng.getrandbits(31),
            frozen_s=round(0.1 * (LONGEST_S / 0.1) ** rng.random(), 3) if freezes else 0.0,
            count=rng.randint(2, 3) if kind == "workers" else 1,
        )
        aims.append(Aim(20 + place * every + rng.randrange(every // 2), moment, strike))
    return Plan(
        seed=seed,
        number=number,
        program=program,
        workers=rng.randint(2, 6),
        servers=rng.randint(1, 3),
        checkpoint_every=rng.choice(("2s", "5s", "150")),
        kinds=tuple(kinds),
        aims=tuple(aims),
        throttled=throttled,
        strategy=strategy,
        peers=random.Random(f"{seed}, peers {number}").choice((2, 3, 32)),
    )


def manner_of(seed: int, number: int, connection: int) -> Manner:
    """How the relay treats a connection of a throttled run: a pure function of its arguments.

    Only early ones are reset: after a reset there are others, and a run that is always hit gets nowhere.
    """
    rng = random.Random(f"{seed}, run {number}, connection {connection}")
    found = rng.choices(
        (
            Manner(pieces=(1, 1 << 10, 1 << 16), delay_s=0.001, until=1 << 18),
            Manner(delay_s=0.002, until=16 << 20),
            Manner(pause_every=2 << 20, pause_s=rng.random(), until=8 << 20),
            Manner(reset=round(10 ** rng.uniform(3, 7.5))),
        ),
        (4, 2, 2, connection < MOST_RESET),
    )
    return found[0]


# --- one run -------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What a status said, and when it came."""

    at_s: float
    step: int
    servers: dict[str, str]
    master: int


@dataclass
class Fault:
    """A strike that hit somebody. until_s: when the next one did. others: workers that it did not hit."""

    aim: Aim
    struck: Struck
    struck_s: float
    others: frozenset[str]
    until_s: float = math.inf
    cost_s: float | None = None
    lost: int | None = None
    start_s: float | None = None

    @property
    def kind(self) -> str:
        return self.aim.strike.kind


@dataclass
class Outcome:
    """How a run took it. wrong: of its model or its exit code; failed: it said itself that it did."""

    plan: Plan
    faults: list[Fault] = field(default_factory=list)
    wrong_digest: str = ""
    wrong_records: str = ""
    false_success: str = ""
    hang: str = ""
    failed: str = ""
    left: str = ""
    folder: str = ""
    steps: int = 0
    seconds: float = 0.0

    @property
    def problems(self) -> dict[str, str]:
        names = ("wrong_digest", "wrong_records", "false_success", "hang", "failed", "left")
        return {name.replace("_", " "): text for name in names if (text := getattr(self, name))}

    @property
    def command(self) -> str:
        kinds = "" if self.plan.kinds == SOAKED else f" --kinds {','.join(self.plan.kinds)}"
        throttled = " --throttled" if self.plan.throttled else ""
        strategy = "" if self.plan.strategy == PARAMETER_SERVER else f" --strategy {self.plan.strategy}"
        return f"{COMMAND} --seed {self.plan.seed} --run {self.plan.number}{kinds}{throttled}{strategy}"


class _Hung(Exception):
    pass


class Trial:
    """One run under its plan, in a folder of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.outcome = Outcome(plan, folder=str(folder))
        self.run = RunDir(folder / "run")
        self.timelines = folder / "timelines"
        self.timelines.mkdir(parents=True)
        settings = {"snapshot_s": SNAPSHOT_S, "checkpoint_every": plan.checkpoint_every,
                    "epochs": plan.epochs, "batch_size": BATCH, "slices": SLICES,
                    "strategy": plan.strategy, "peers": plan.peers,
                    "places" if plan.strategy == ALL_REDUCE else "servers": plan.servers,
                    "shared_memory": not plan.throttled}  # fmt: skip
        (folder / "soak.yaml").write_text(json.dumps(settings), encoding="utf-8")
        self.environment = {
            **os.environ,
            MARK: secrets.token_hex(8),
            "SOAK_TIMELINES": str(self.timelines),
            "SLICE_S": str(SLICE_S),
        }
        self.hand = Hand()
        self._news: HarmNews | None = None
        self.seen: list[Seen] = []
        self._status: Status | None = None
        self._client_killed = False
        self._well_s: float | None = None
        self._moved_s = time.monotonic()

    def go(self, ends_s: float) -> Outcome:
        """Does it all. ends_s: no strike after that time, but the first."""
        if not self.plan.throttled:
            return self._go(ends_s)
        with Relay(partial(manner_of, self.plan.seed, self.plan.number)) as relay:
            self.environment |= relay.environment
            return self._go(ends_s)

    def _go(self, ends_s: float) -> Outcome:
        begin_s = time.monotonic()
        try:
            self._launch()
            for aim in self.plan.aims:
                if self.outcome.faults and time.monotonic() > ends_s or not self._await(aim):
                    break
                self._strike(aim)
            self._finish()
        except _Hung as hung:
            self.outcome.hang = str(hung)
            self._dump()
        except RunError as error:
            self.outcome.failed = str(error)
        finally:
            self.hand.thaw(math.inf)
            self._hang_up()
            self._clear()
        self._measure()
        self.outcome.seconds = time.monotonic() - begin_s
        return self.outcome

    def _launch(self, *options: str) -> None:
        """Starts the run, or goes on with it, and waits until it has a master."""
        before = self.run.address.read_bytes() if self.run.address.exists() else b""
        plan = self.plan
        command = [
            sys.executable, "-m", "elasticflow.cli", "train", str(_program(plan.program)),
            "--run-dir", str(self.run.path), "--config", str(self.folder / "soak.yaml"),
            "--workers", str(plan.workers), *options,
        ]  # fmt: skip
        with (self.folder / "output.txt").open("ab") as output:
            self.client = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._moved_s = time.monotonic()
        while not self.run.address.exists() or self.run.address.read_bytes() == before:
            if self.client.poll() is not None:
                raise RunError(f"it did not start: {self._last_words()}")
            self._check_moves()
            time.sleep(0.02)  # nothing to wait on before there is a master
        self._news = HarmNews(self.run)

    def _hang_up(self) -> None:
        if self._news:
            self._news.__exit__(None, None, None)
            self._news = None

    def _last_words(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")[-500:]

    # --- watching ---

    @property
    def _step(self) -> int:
        return self._status.step if self._status else 0

    @property
    def _state(self) -> str:
        return self._status.state if self._status else "starting"

    @property
    def _has_ended(self) -> bool:
        return self._state in ENDED

    def _observe(self, timeout_s: float) -> None:
        """Waits for news, or for somebody who is to go on."""
        assert self._news is not None
        now_s = time.monotonic()
        status = self._news.next(max(0.0, min(timeout_s, self.hand.next_s - now_s)))
        now_s = time.monotonic()
        self.hand.thaw(now_s)
        if status is not None:
            if self._status is None or status.step != self._status.step or status.state in ENDED:
                self._moved_s = now_s
            self._status = status
            servers = {server.name: server.state for server in status.servers}
            self.seen.append(Seen(now_s, status.step, servers, status.master.pid))
            if not self._is_well():
                self._well_s = None
            elif self._well_s is None:
                self._well_s = now_s
        self._check_moves()

    def _check_moves(self) -> None:
        if (still_s := time.monotonic() - self._moved_s) > HANG_S:
            raise _Hung(f"no step for {still_s:.0f} s, since step {self._step}")

    def _is_well(self) -> bool:
        if (status := self._status) is None:
            return False
        workers = [worker.state for worker in status.workers]
        servers = [server.state for server in status.servers]
        return (
            status.state == "running"
            and not status.regrouping
            and len(workers) >= self.plan.workers  # after a reset the old ones may come back beside the new
            and set(workers) == {"ready"}
            and len(servers) >= self.plan.servers
            and set(servers) == {"ready"}
            and self.hand.next_s == math.inf
        )

    def _await(self, aim: Aim) -> bool:
        """Until the moment has come; False if the run is over before."""
        last_s = self.outcome.faults[-1].struck_s if self.outcome.faults else 0.0
        unwell_s = last_s + 2.0
        while not self._has_ended:
            now_s = time.monotonic()
            if aim.moment == "settled":
                since_s = math.inf if self._well_s is None else max(self._well_s, last_s)
                if self._step >= aim.step and now_s >= since_s + USUAL_S:
                    break
            elif aim.moment == "at once" or now_s > unwell_s:
                break
            elif self.seen and self.seen[-1].at_s > last_s and not self._is_well():
                break
            self._observe(0.2)
        due_s = time.monotonic() + aim.strike.after_s
        while not self._has_ended and (left_s := due_s - time.monotonic()) > 0:
            self._observe(left_s)
        return not self._has_ended

    # --- doing ---

    def _strike(self, aim: Aim) -> None:
        status, struck_s = self._status, time.monotonic()
        assert status is not None
        if aim.strike.kind == EVERYTHING:
            struck = self._kill_everything(aim.strike)
        else:
            struck = hit(self.hand, aim.strike, status, self.run)
        if not struck.hit:
            return
        self._client_killed |= "client" in struck.hit
        self._well_s = None
        for fault in self.outcome.faults[-1:]:
            fault.until_s = struck_s
        others = {worker.name for worker in status.workers if worker.state == "ready"}
        self.outcome.faults.append(Fault(aim, struck, struck_s, frozenset(others - set(struck.hit))))
        if aim.strike.kind == EVERYTHING:
            self._hang_up()
            self._client_killed = False
            self._launch("--resume")

    def _kill_everything(self, strike: Strike) -> Struck:
        pids = marked(self.environment)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that nobody sees another die
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.client.wait()
        self.hand.thaw(math.inf)
        return Struck(
            time_s=time.time(), step=self._step, state=self._state, strike=strike,
            hit=(EVERYTHING,), pids=tuple(pids),
        )  # fmt: skip

    # --- the end ---

    def _finish(self) -> None:
        while not self._has_ended:
            self._observe(0.5)
        deadline_s = time.monotonic() + HANG_S
        while self.run.is_locked() or self.client.poll() is None:
            if time.monotonic() > deadline_s:
                raise _Hung(f"{self._state}, but its processes stay")
            time.sleep(0.05)  # processes that are no children of ours cannot be waited for
        self._judge()

    def _judge(self) -> None:
        """Holds what the run says against what it has left behind."""
        outcome, code = self.outcome, self.client.returncode
        report = self.run.read_report()
        outcome.steps = report.step if report else 0
        state = report.state if report else "no report"
        expected = (0, -signal.SIGKILL) if self._client_killed else (0,)
        if state != "finished" or code not in expected:
            why = report.text if report else ""
            outcome.failed = f"{state}, exit code {code}: {why}; {self._last_words()}"
        if state != "finished" and code != 0:
            return
        covered = report and (report.step, report.records_covered, report.checkpoint_step)
        plan = self.plan
        if state != "finished" or covered != (plan.steps, plan.epochs * RECORDS, plan.steps):
            outcome.false_success = f"{state}, exit code {code}: step, records, checkpoint are {covered}"
            return
        storage = DirectoryStorage(self.run.path)
        try:
            manifest = checkpoint.load_manifest(storage, plan.steps)
            if "counted" in plan.program:
                ((_, seen),) = checkpoint.tensors(storage, manifest)
                times = np.negative(seen)
                wrong = np.flatnonzero(times != EPOCHS)
                if len(wrong) or len(times) != RECORDS:
                    first = f"the first are {wrong[:5]}, {times[wrong[:5]]} times"
                    outcome.wrong_records = f"{len(wrong)} of {len(times)} records: {first}"
            elif (found := checkpoint.digest(storage, manifest)) != undisturbed(plan.program, plan.epochs):
                outcome.wrong_digest = f"{found}, not {undisturbed(plan.program, plan.epochs)}"
        except ElasticFlowError as error:
            outcome.false_success = f"the last checkpoint is not whole: {error}"

    def _dump(self) -> None:
        """Leaves what is known of a run that hangs: its last status, and where each process stands."""
        (self.folder / "status.json").write_bytes(msgspec.json.format(msgspec.json.encode(self._status)))
        for pid in marked(self.environment):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)  # writes the stack of each thread to its log
        time.sleep(1.0)

    def _clear(self) -> None:
        """Ends what outlives the run; only after one that went well is that worth a word."""
        deadline_s = time.monotonic() + (0 if self.outcome.problems else FAREWELL_S)
        while (left := marked(self.environment)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        names = []
        for pid in left:
            with suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
                os.kill(pid, signal.SIGKILL)
        if names and not self.outcome.problems:
            self.outcome.left = f"these outlived the run: {', '.join(names)}"
        self.client.wait()

    # --- costs ---

    def _measure(self) -> None:
        found = {path.stem: _intervals(path) for path in sorted(self.timelines.glob("worker-*.jsonl"))}
        for fault in self.outcome.faults:
            # The next strike, and what came with one that did not wait for this one, are not its cost.
            if fault.aim.moment == "settled":
                others = {name: found[name] for name in fault.others if name in found}
                _measure(fault, others, found, self.seen)


def _measure(
    fault: Fault,
    others: dict[str, list[Interval]],
    everybody: dict[str, list[Interval]],
    seen: list[Seen],
) -> None:
    struck_s, until_s = fault.struck_s, fault.until_s
    quiet_s = struck_s + fault.aim.strike.frozen_s + USUAL_S
    if fault.kind in OF_SERVERS:
        found = recovery(everybody, struck_s, until_s)
        if found:
            fault.cost_s, fault.lost = found
            fault.start_s = _start_s(seen, struck_s, struck_s + found.seconds)
        elif fault.aim.strike.frozen_s:  # it went on before anybody missed it
            fault.cost_s = gap(others, struck_s, min(until_s, quiet_s))
    elif fault.kind in OF_WORKERS:
        fault.cost_s = idle_of_others(others, struck_s, until_s)
    else:
        fault.cost_s = gap(others, struck_s, min(until_s, quiet_s))


def _start_s(seen: list[Seen], since_s: float, until_s: float) -> float | None:
    """Most seconds from when a new server was asked for until it had joined."""
    asked: dict[str, float] = {}
    joined: dict[str, float] = {}
    known = {name for each in seen if each.at_s < since_s for name in each.servers}
    for each in seen:
        for name, state in each.servers.items():
            if name not in known and since_s <= each.at_s:
                (asked if state == "starting" else joined).setdefault(name, each.at_s)
    return max((joined[n] - asked[n] for n in asked if n in joined and asked[n] < until_s), default=None)


def _intervals(path: Path) -> list[Interval]:
    lines = [line for line in path.read_text().splitlines() if line.endswith("]")]
    return [Interval(*json.loads(line)) for line in lines]


def marked(environment: Mapping[str, str]) -> list[int]:
    """Processes of a trial that live: found by a mark in their environment, which they all inherit."""
    wanted = f"{MARK}={environment[MARK]}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _program(name: str) -> Path:
    return Path(__file__).parent / "programs" / f"{name}.py"


@cache
def undisturbed(program: str, epochs: int) -> str:
    """The digest of a run that nobody does anything to: one worker, one server, no waiting."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "elasticflow.cli", "train", str(_program(program)),
            "--run-dir", f"{folder}/run", "--workers", "1", "--servers", "1",
            "--epochs", str(epochs), "--batch-size", str(BATCH), "--slices", str(SLICES),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the undisturbed run of {program} failed: {done.stdout}{done.stderr}")
        storage = DirectoryStorage(f"{folder}/run")
        return checkpoint.digest(storage, checkpoint.load_manifest(storage, steps_in(epochs)))


# --- many runs -----------------------------------------------------------------------------------


def soak(
    seed: int,
    *,
    kinds: Sequence[str] = SOAKED,
    faults: float = math.inf,
    seconds: float = math.inf,
    numbers: Iterator[int] | None = None,
    throttled: bool = False,
    strategy: str = PARAMETER_SERVER,
    load: int | None = None,
    tell: Callable[[str], None] = print,
) -> list[Outcome]:
    """Runs, until there are so many faults, the time is up, or the ``numbers`` of runs are.

    load: processes that compute beside it; None: as many as cores. Folders of runs with problems stay.
    """
    with busy(num_cores() if load is None else load):
        plan = partial(plan_of, seed, kinds=kinds, throttled=throttled, strategy=strategy)
        tell(f"soak: seed {seed}")
        return _soak(plan, faults, seconds, numbers, tell)


def _soak(
    plan: Callable[[int], Plan],
    faults: float,
    seconds: float,
    numbers: Iterator[int] | None,
    tell: Callable[[str], None],
) -> list[Outcome]:
    ends_s = math.inf
    outcomes: list[Outcome] = []
    for number in numbers if numbers is not None else iter(range(10**9)):
        num_faults = sum(len(outcome.faults) for outcome in outcomes)
        if num_faults >= faults or outcomes and time.monotonic() > ends_s - ROOM_S:
            break
        planned = plan(number)
        if "counted" not in planned.program:
            undisturbed(planned.program, planned.epochs)
        if not outcomes:
            ends_s = time.monotonic() + seconds
        folder = Path(tempfile.mkdtemp(prefix=f"soak-{planned.seed}-{number}-"))
        outcome = Trial(planned, folder).go(ends_s)
        outcomes.append(outcome)
        for line in _told(outcome):
            tell(line)
        if not outcome.problems:
            shutil.rmtree(folder)
    return outcomes


def _told(outcome: Outcome) -> Iterator[str]:
    plan = outcome.plan
    what = "places" if plan.strategy == ALL_REDUCE else "servers"
    what += f", {plan.peers} peers" if plan.strategy == ALL_REDUCE else ""
    shape = (
        f"{plan.program}, {plan.workers} workers, {plan.servers} {what}, cut every {plan.checkpoint_every}"
        f"{', throttled' if plan.throttled else ''}"
    )
    yield f"run {plan.number}: {shape}: {len(outcome.faults)} faults, {outcome.seconds:.0f} s"
    for fault in outcome.faults:
        struck, strike = fault.struck, fault.aim.strike
        frozen = f" frozen {strike.frozen_s:.2f} s" if strike.frozen_s else ""
        cost = "" if fault.cost_s is None else f"  {1000 * fault.cost_s:.0f} ms"
        lost = "" if fault.lost is None else f", {fault.lost} steps"
        whom = ", ".join(struck.hit)
        yield f"  step {struck.step:<5} {fault.aim.moment:<8} {fault.kind:<14} {whom}{frozen}{cost}{lost}"
    for name, text in outcome.problems.items():
        yield f"  {name.upper()}: {text}"
    if outcome.problems:
        yield f"  its folder: {outcome.folder}\n  once more: {outcome.command}"


def table(outcomes: Sequence[Outcome]) -> str:
    """What each kind cost, for docs/faults.md. Costs are of those that struck a run that was well."""
    lines = [
        "| kind | faults | measured | median | worst | steps lost, median | worst | process start |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in SOAKED:
        faults = [fault for outcome in outcomes for fault in outcome.faults if fault.kind == kind]
        costs = [fault.cost_s for fault in faults if fault.cost_s is not None]
        lost = [fault.lost for fault in faults if fault.lost is not None]
        starts = [fault.start_s for fault in faults if fault.start_s is not None]
        if not faults:
            continue
        cells = [
            kind, str(len(faults)), str(len(costs)), _ms(costs, median), _ms(costs, max),
            f"{median(lost):.0f}" if lost else "", str(max(lost)) if lost else "", _ms(starts, median),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    num = sum(len(outcome.faults) for outcome in outcomes)
    counts = [f"{len(outcomes)} runs, {num} faults"]
    for name in ("wrong_digest", "wrong_records", "false_success", "hang", "failed", "left"):
        counts.append(f"{name.replace('_', ' ')}: {sum(bool(getattr(one, name)) for one in outcomes)}")
    return "\n".join([*lines, "", "; ".join(counts)])


def _ms(seconds: Sequence[float], of: Callable[[Sequence[float]], float]) -> str:
    return f"{1000 * of(seconds):.0f} ms" if seconds else ""


def figures(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """The promises, and what was found."""
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    yield figure("soak: faults", len(faults), "", FAULTS, COMMAND, "reference: 200")
    for name in ("wrong_digest", "wrong_records", "false_success", "hang", "failed", "left"):
        found = sum(bool(getattr(outcome, name)) for outcome in outcomes)
        yield figure(f"soak: runs with {name.replace('_', ' ')}", found, "", 0, COMMAND, "reference: 0")
    bounds = {"ms": ("idle of the others", 50.0), "s": ("until the first new version", 3.0)}
    for kind in SOAKED:
        costs = [fault.cost_s for fault in faults if fault.kind == kind and fault.cost_s is not None]
        if not costs:
            continue
        unit = "s" if kind in OF_SERVERS else "ms"
        what, bound = bounds[unit]
        if kind not in OF_SERVERS and kind not in OF_WORKERS:
            what, bound = "longer between versions than before", 0.0
        scale = 1 if unit == "s" else 1000
        for name, value in (("median", median(costs)), ("worst", max(costs))):
            note = f"reference: {bound:g} {unit}"
            yield figure(f"{kind}: {what}, {name}", scale * value, unit, bound, COMMAND, note)
        lost = [fault.lost for fault in faults if fault.kind == kind and fault.lost is not None]
        if lost:
            steps_in = SNAPSHOT_S * _steps_per_s(outcomes)
            yield figure(
                f"{kind}: steps lost, worst",
                max(lost),
                "",
                steps_in,
                COMMAND,
                "reference: those in snapshot_s",
            )


def _steps_per_s(outcomes: Sequence[Outcome]) -> float:
    """Of all runs, with all that was done to them."""
    return sum(one.steps for one in outcomes) / max(1e-9, sum(one.seconds for one in outcomes))


def run() -> Iterator[Figure]:
    """At least 200 faults; what happens is told on stderr."""
    outcomes = soak(secrets.randbelow(10**6), faults=FAULTS, tell=lambda text: print(text, file=sys.stderr))
    print(table(outcomes), file=sys.stderr)
    yield from figures(outcomes)


def _kinds_of(word: str) -> Sequence[str]:
    return (word,) if word == EVERYTHING else kinds_of(word) if word else ()


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. Returns 1 if a run had a problem."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="default: any")
    parser.add_argument("--faults", type=float, default=FAULTS, help=f"at least so many (default: {FAULTS})")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no strike after so many seconds")
    parser.add_argument("--kinds", default="", help=f"of {', '.join(SOAKED)} (default: all)")
    parser.add_argument("--run", type=int, metavar="N", help="only the run of this number")
    parser.add_argument(
        "--throttled", action="store_true", help="by TCP, through a relay that is slow and breaks"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, default=PARAMETER_SERVER)
    parser.add_argument("--load", type=int, help="processes that compute beside it (default: one a core)")
    arguments = parser.parse_args(argv)
    named = [kind for word in arguments.kinds.split(",") for kind in _kinds_of(word)]
    outcomes = soak(
        arguments.seed,
        kinds=tuple(dict.fromkeys(named)) or SOAKED,
        faults=arguments.faults,
        seconds=arguments.seconds,
        numbers=None if arguments.run is None else iter([arguments.run]),
        throttled=arguments.throttled,
        strategy=arguments.strategy,
        load=arguments.load,
        tell=lambda text: print(text, flush=True),
    )
    print(table(outcomes))
    return int(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
