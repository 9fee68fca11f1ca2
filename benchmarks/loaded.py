"""Runs on a machine that is far too busy, of mixed sizes and settings: one digest a program.

``python -m benchmarks loaded --help`` tells the options. Each run has settings at random of all the switches
that must not matter. What it is follows from the seed and its number, so ``--seed S --run N`` does one of
them again. Its digest is held against that of a run of one worker and one server, made before without load.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.busy import busy, num_cores
from benchmarks.figures import Figure, figure
from benchmarks.soak import MARK, marked

COMMAND = "python -m benchmarks loaded"
RUNS = 200
LOAD = 4
"""Busy processes a core."""
TOGETHER = 2
"""Runs a core at the same time: most of a run is starting, and they are a load for each other."""
HANG_S = 300.0
"""A run takes some seconds, and under such a load some dozen."""
FOLDER = Path(__file__).parent / "programs"


class Program(NamedTuple):
    """What is computed: fixed, since it decides the digest."""

    name: str
    batch_size: int
    slices: int


PROGRAMS = (
    Program("conv_torch", 64, 16),
    Program("huge_tensorflow", 400, 4),
    Program("mixed_torch", 400, 16),
    Program("tables_tensorflow", 200, 8),
    Program("many_torch", 400, 8),
    Program("tables_torch", 200, 8),
)


class Switches(NamedTuple):
    """What must not matter."""

    workers: int = 1
    servers: int = 1
    shared_memory: bool = True
    overlap: bool = True
    snapshot_s: float = 1.0
    server_threads: int = 1
    checkpoint_every: str = "60s"


class Plan(NamedTuple):
    """One run."""

    seed: int
    number: int
    program: Program
    switches: Switches

    @property
    def command(self) -> str:
        return f"{COMMAND} --seed {self.seed} --run {self.number}"


class Outcome(NamedTuple):
    """How it ended. code: None if it had to be ended."""

    plan: Plan
    code: int | None
    digest: str
    seconds: float
    folder: str


def plan_of(seed: int, number: int) -> Plan:
    """A pure function of its arguments."""
    rng = random.Random(f"{seed}, run {number}")
    program = PROGRAMS[number % len(PROGRAMS)]
    switches = Switches(
        workers=rng.randint(2, min(6, program.slices)),
        servers=rng.randint(1, 3),
        shared_memory=rng.random() < 0.4,  # by TCP more can happen
        overlap=rng.random() < 0.5,
        snapshot_s=rng.choice((0.0, 0.1, 1.0)),
        server_threads=rng.randint(1, 3),
        checkpoint_every=rng.choice(("3", "1s", "60s")),
    )
    return Plan(seed, number, program, switches)


# --- one run -------------------------------------------------------------------------------------


def one(plan: Plan) -> Outcome:
    """Does it, in a folder of its own, and ends what is left of it."""
    folder = tempfile.mkdtemp(prefix=f"loaded-{plan.seed}-{plan.number}-")
    switches = plan.switches._asdict()
    more = {"epochs": 1, "batch_size": plan.program.batch_size, "slices": plan.program.slices}
    Path(folder, "loaded.yaml").write_text(json.dumps({**switches, **more}), encoding="utf-8")
    command = [
        sys.executable, "-m", "elasticflow.cli", "train", str(FOLDER / f"{plan.program.name}.py"),
        "--run-dir", f"{folder}/run", "--config", f"{folder}/loaded.yaml",
    ]  # fmt: skip
    environment = {**os.environ, MARK: secrets.token_hex(8)}
    begin_s, path = time.monotonic(), Path(folder, "output.txt")
    code: int | None = None
    with path.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(HANG_S)
    seconds = time.monotonic() - begin_s
    if code is None:
        for number in (signal.SIGABRT, signal.SIGKILL):  # the first one leaves the stacks in their logs
            for pid in marked(environment):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(1.0)
        process.wait()
    found = re.search(r"^digest: ([0-9a-f]{64})$", path.read_text(errors="replace"), re.MULTILINE)
    return Outcome(plan, code, found[1] if found else "", seconds, folder)


def undisturbed(program: Program) -> str:
    """The digest of one worker and one server, by the defaults of all else."""
    outcome = one(Plan(0, 0, program, Switches()))
    if outcome.code != 0:
        raise RuntimeError(f"the undisturbed run of {program.name} failed, see {outcome.folder}")
    shutil.rmtree(outcome.folder)
    return outcome.digest


# --- many runs -----------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """What there was. expected: digests, by program. load: the machine's load average, as it ended."""

    seed: int
    outcomes: list[Outcome]
    expected: dict[str, str]
    busy: int
    load: float

    @property
    def differing(self) -> list[Outcome]:
        """Those that ended as if all were well, with another model: there must be none."""
        return [one for one in self.outcomes if one.code == 0 and not self._fits(one)]

    @property
    def failed(self) -> list[Outcome]:
        """Those that said that they failed, or never ended: there should be none."""
        return [one for one in self.outcomes if one.code != 0]

    def _fits(self, outcome: Outcome) -> bool:
        return outcome.digest == self.expected[outcome.plan.program.name]


def loaded(
    seed: int,
    numbers: Sequence[int],
    *,
    load: int | None = None,
    seconds: float = math.inf,
    tell: Callable[[str], None] = print,
) -> Loaded:
    """The runs of these numbers, beside ``load`` busy processes; none begins after so many seconds.

    Folders of runs that went wrong stay.
    """
    ends_s, load = time.monotonic() + seconds, LOAD * num_cores() if load is None else load
    plans = [plan_of(seed, number) for number in numbers]
    tell(f"loaded: seed {seed}, {len(plans)} runs, {load} busy processes on {num_cores()} cores")
    programs = {plan.program.name: plan.program for plan in plans}
    with ThreadPoolExecutor(TOGETHER * num_cores()) as pool:
        expected = dict(zip(programs, pool.map(undisturbed, programs.values()), strict=True))
        found = Loaded(seed, [], expected, load, 0.0)
        with busy(load):
            for outcome in _in_turn(pool, plans, TOGETHER * num_cores(), ends_s):
                found.outcomes.append(outcome)
                tell(_told(outcome, expected))
            found = found._replace(load=os.getloadavg()[0])
    return found


def _in_turn(
    pool: ThreadPoolExecutor, plans: Sequence[Plan], together: int, ends_s: float
) -> Iterator[Outcome]:
    """Runs as they end; the next one begins then, while there is time."""
    waiting = iter(plans)
    under_way: set[Future[Outcome]] = set()
    while True:
        while len(under_way) < together and time.monotonic() < ends_s and (plan := next(waiting, None)):
            under_way.add(pool.submit(one, plan))
        if not under_way:
            return
        done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
        yield from (each.result() for each in done)


def _told(outcome: Outcome, expected: dict[str, str]) -> str:
    plan, right = outcome.plan, expected[outcome.plan.program.name]
    switches = ", ".join(f"{name} {value}" for name, value in plan.switches._asdict().items())
    text = f"run {plan.number}: {plan.program.name}: {switches}: {outcome.seconds:.0f} s"
    if outcome.code == 0 and outcome.digest == right:
        shutil.rmtree(outcome.folder)
        return text
    what = "it does not end" if outcome.code is None else f"exit code {outcome.code}"
    return (
        f"{text}\n  {what}, digest {outcome.digest or 'none'}, not {right}"
        f"\n  its folder: {outcome.folder}\n  once more: {plan.command}"
    )


def table(found: Loaded) -> str:
    """By program, for docs/faults.md."""
    lines = ["| program | runs | digests | exit codes | median | differ |", "|---|---|---|---|---|---|"]
    for name in found.expected:
        runs = [one for one in found.outcomes if one.plan.program.name == name]
        if not runs:
            continue
        digests = len({one.digest for one in runs if one.digest})
        median_s = statistics.median(one.seconds for one in runs)
        differ = sum(one in runs for one in found.differing)
        lines.append(f"| {name} | {len(runs)} | {digests} | {_codes(runs)} | {median_s:.0f} s | {differ} |")
    total = (
        f"seed {found.seed}: {len(found.outcomes)} runs, exit codes {_codes(found.outcomes)}; "
        f"{len(found.differing)} differ, {len(found.failed)} failed; {found.busy} busy processes "
        f"on {num_cores()} cores, load average {found.load:.0f}"
    )
    return "\n".join([*lines, "", total])


def _codes(outcomes: Sequence[Outcome]) -> str:
    counts = Counter("none" if one.code is None else str(one.code) for one in outcomes)
    return ", ".join(f"{code}: {count}" for code, count in sorted(counts.items()))


def figures(found: Loaded) -> Iterator[Figure]:
    """The promise, and what was found."""
    yield figure("loaded: runs", len(found.outcomes), "", RUNS, COMMAND, f"reference: {RUNS}")
    for name, runs in (("differ", found.differing), ("failed", found.failed)):
        yield figure(f"loaded: runs that {name}", len(runs), "", 0, COMMAND, "reference: 0")


def run() -> Iterator[Figure]:
    """200 runs; what happens is told on stderr. Exits with 1 if one of them was not as it must be."""
    tell = partial(print, file=sys.stderr, flush=True)
    found = loaded(secrets.randbelow(10**6), range(RUNS), tell=tell)
    tell(table(found))
    yield from figures(found)
    if found.differing or found.failed:
        raise SystemExit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring. Returns 1 if a run was not as it must be."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="default: any")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"so many (default: {RUNS})")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no run begins after so many")
    parser.add_argument("--load", type=int, help=f"busy processes (default: {LOAD} a core)")
    parser.add_argument("--run", type=int, metavar="N", help="only the run of this number")
    options = parser.parse_args(argv)
    found = loaded(
        options.seed,
        range(options.runs) if options.run is None else [options.run],
        load=options.load,
        seconds=60 * options.minutes,
        tell=partial(print, flush=True),
    )
    print(table(found))
    return int(bool(found.differing or found.failed))


if __name__ == "__main__":
    sys.exit(main())
