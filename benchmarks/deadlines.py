"""Jobs of a trace, scaled to minutes, as real runs of a service; and the simulator on the same jobs.

``python -m benchmarks deadlines [--jobs N] [--times N] [--kills N] [--workers N] [--wrong PART] [--slurm]
[--lose]``. A step takes as long as its records say, without computing; everything else is what it is. The
first run measures how fast the program is with 1, 2, 4, ... workers, and how long one takes to begin. Plans
count on both, and on beginnings that are seen to take longer; the simulator counts on what was seen in the
end. With ``--times 3`` jobs are three times as long, and as far apart: beginnings matter less.

With ``--wrong .2`` the service believes that each number of workers is faster or slower than it is, by up to
that part. With ``--slurm`` runs are jobs of a real SLURM, with two workers a node; with ``--lose`` one of
its nodes is down for the middle third, with all that runs there, of which the simulator knows nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.figures import Figure, figure, line
from benchmarks.sites import CLI, OnSlurm
from elasticflow.cli.train import make_folder
from elasticflow.cluster.presence import wait_until_over
from elasticflow.errors import RunError
from elasticflow.program.loading import parse
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.policies import policy
from elasticflow.scheduler.simulator import simulate
from elasticflow.scheduler.traces import find_profiles, read_trace
from elasticflow.service import talk
from elasticflow.service.history import read_history
from elasticflow.service.learned import believed
from elasticflow.service.memory import KindMemory
from elasticflow.service.settings import ServiceConfig

COMMAND = "python -m benchmarks deadlines"
HERE = Path(__file__).parent
TRACE = HERE / "data" / "scheduler" / "traces" / "195job.csv"
PROGRAM = HERE / "programs" / "waiting.py"
BATCH, EPOCH_STEPS, STEP_S = 64, 10, 0.8
"""Records of a step, steps of an epoch, and seconds of a step on one worker."""
MEDIAN_S, LEAST_S, MOST_S = 40.0, 16.0, 160.0
"""What a job takes on one worker."""
WORK: dict[str, Any] = {"batch_size": BATCH, "slices": 8, "checkpoint_every": "10s", "least_gain": 0.0}
EVERY_S = 7.0
"""Mean time between two jobs."""


class Planned(NamedTuple):
    """A job to come: seconds after the first one, epochs, and seconds until it is to be done."""

    submit_s: float
    epochs: int
    within_s: float


def planned(
    count: int, most_workers: int, start_s: float, speedup: dict[int, float], times: float = 1.0
) -> list[Planned]:
    """The first jobs of the trace: gaps, work and slack are to each other as they are there.

    times: so many times as long, and as far apart.
    """
    jobs = sorted(read_trace(TRACE, find_profiles(TRACE)), key=lambda job: job.submit_s)[:count]
    work = [job.iterations * job.curve.gpu_seconds(job.curve.sizes[0]) for job in jobs]
    usual = statistics.median(work)
    span_s = jobs[-1].submit_s - jobs[0].submit_s or 1.0
    found = []
    for job, seconds in zip(jobs, work, strict=True):
        takes_s = min(MOST_S, max(LEAST_S, MEDIAN_S * (seconds / usual) ** 0.5))
        size = max(each for each in speedup if each <= min(max(1, job.requested_gpus), most_workers))
        alone_s = job.iterations / job.curve.rate(max(s for s in job.curve.sizes if s <= job.requested_gpus))
        assert job.deadline_s is not None
        slack = min(3.0, max(1.0, (job.deadline_s - job.submit_s) / alone_s))
        epochs = max(2, round(times * takes_s / STEP_S / EPOCH_STEPS))
        within_s = 2 * start_s + slack * epochs * EPOCH_STEPS * STEP_S / speedup[size]
        gap_s = (job.submit_s - jobs[0].submit_s) / span_s * times * EVERY_S * count
        found.append(Planned(gap_s, epochs, within_s))
    return found


class Bench:
    """A service in a folder of its own, and the runs handed in to it."""

    def __init__(self, folder: Path, workers: int, start_s: float, site: OnSlurm | None = None) -> None:
        self.folder, self._site = folder, site
        record_s = STEP_S / BATCH
        bench = {
            "record_s": record_s,
            "records": BATCH * EPOCH_STEPS,
            "slowness": 1,
            "lock": str(folder / "lock"),
        }
        section: dict[str, Any] = {}
        if site:
            section = {**site.section, "setup": f"export BENCH={shlex.quote(json.dumps(bench))}"}
        where: dict[str, Any] = {"cluster": "slurm", "slurm": section, "look_s": 1.0} if site else {}
        self.config = ServiceConfig(
            folder=str(folder / "service"),
            nodes=workers // 2 if site else workers, workers_per_node=2 if site else 1,
            start_s=start_s, grow_s=0.0, shrink_s=1.0, measure_s=4.0, poll_s=0.2, **where,
        )  # fmt: skip
        settings, job = folder / "service.yaml", folder / "job.yaml"
        settings.write_text(json.dumps(msgspec.to_builtins(self.config)))
        job.write_text(json.dumps({"backend": "slurm", **WORK, "slurm": section}))
        self._command = [sys.executable, "-m", "elasticflow.cli", "serve", str(settings)]
        self._environment = {**os.environ, "BENCH": json.dumps(bench)}
        self._service: subprocess.Popen[bytes] | None = None
        os.environ["BENCH"] = self._environment["BENCH"]

    def start(self) -> None:
        """Until it answers."""
        with (self.folder / "service.log").open("ab") as log:
            self._service = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        while True:
            with suppress(RunError):
                self.tasks()
                return
            assert self._service.poll() is None, (self.folder / "service.log").read_text()
            time.sleep(0.05)  # a socket that is not there yet cannot be waited for

    def kill(self) -> None:
        assert self._service is not None
        self._service.kill()
        self._service.wait()

    def end(self) -> None:
        """Leaves nothing behind, whatever has happened."""
        self.kill()
        for address in self.folder.glob("*/master.json"):
            with suppress(RunError, ProcessLookupError):
                os.kill(RunDir(address.parent).read_address().pid, signal.SIGTERM)
                wait_until_over(RunDir(address.parent))

    def tasks(self) -> dict[str, talk.ToldTask]:
        answer = talk.ask(Path(self.config.folder), talk.ListTasks(over=1000))
        return {task.name: task for task in answer.tasks}

    def hand_in(self, name: str, epochs: int, within_s: float | None) -> talk.ToldTask:
        if self._site:
            return self._submit(name, epochs, within_s)
        parse(str(PROGRAM))
        config = Config(
            program=str(PROGRAM), run_dir=str(self.folder / name), workers="1", epochs=epochs, **WORK
        )
        run = make_folder(config, resume=False).run
        deadline_s = None if within_s is None else time.time() + within_s
        question = talk.HandIn(run_dir=str(run.path), deadline_s=deadline_s)
        (task,) = talk.ask(Path(self.config.folder), question).tasks
        return task

    def _submit(self, name: str, epochs: int, within_s: float | None) -> talk.ToldTask:
        """As people do; what the service refuses is listed too."""
        due = ["--best-effort"] if within_s is None else ["--deadline", f"+{within_s:.0f}s"]
        command = [*CLI, "submit", self.folder / "job.yaml", PROGRAM, "--epochs", epochs, *due]
        command += ["--service", self.config.folder, "--run-dir", self.folder / name]
        done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
        task = next((task for task in self.tasks().values() if Path(task.run).name == name), None)
        assert task and (done.returncode == 0 or task.state == "refused"), done.stderr
        return task

    def spoil(self, part: float) -> None:
        """What is known of the program's speed is wrong by up to this part. While no service runs."""
        chance, file = random.Random(3), Path(self.config.folder, "known.json")
        kinds = msgspec.json.decode(file.read_bytes(), type=dict[str, KindMemory])
        for kind in kinds.values():
            for workers, rates in kind.rates.items():
                wrong = 1 + chance.uniform(-part, part)
                kind.rates[workers] = [rate * wrong for rate in rates]
        file.write_bytes(msgspec.json.encode(kinds))

    def lose(self, *, lost: bool) -> None:
        """The last node of the share is down, or is there again."""
        assert self._site
        cluster, node = self._site.cluster, f"g{self.config.nodes}"
        (cluster.set_down if lost else cluster.resume)(node)


def calibrate(bench: Bench) -> tuple[dict[int, float], float]:
    """Steps a second by workers, and the seconds until a run's first step."""
    task = bench.hand_in("first", 20, None)
    while not (told := bench.tasks()[task.name]).state:
        time.sleep(0.2)  # it is asked until it is over
    report = RunDir(bench.folder / "first").read_report()
    assert report is not None and report.state == "finished", told
    return {int(size): rate for size, rate in told.rates.items()}, report.first_step_s or 0.0


def run_all(bench: Bench, jobs: Sequence[Planned], kills: int, *, lose: bool) -> dict[str, talk.ToldTask]:
    """Hands in each at its time, and kills the service now and then; what has become of them, by name.

    lose: a node is lost for the middle third.
    """
    begun_s, chance = time.monotonic(), random.Random(1)
    last_s = jobs[-1].submit_s
    killings = sorted(chance.uniform(0.0, last_s) for _ in range(kills))
    names: list[str] = []

    def hand_in(job: Planned) -> None:
        names.append(bench.hand_in(f"job-{len(names)}", job.epochs, job.within_s).name)

    def begin_anew() -> None:
        bench.kill()
        bench.start()

    agenda: list[tuple[float, Callable[[], None]]] = [(job.submit_s, partial(hand_in, job)) for job in jobs]
    agenda += [(at_s, begin_anew) for at_s in killings]
    if lose:
        agenda += [
            (last_s / 3, partial(bench.lose, lost=True)),
            (last_s / 1.5, partial(bench.lose, lost=False)),
        ]
    for at_s, act in sorted(agenda, key=lambda due: due[0]):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        act()
    while not all((tasks := bench.tasks())[name].state for name in names):
        time.sleep(0.5)  # it is asked until all are over
    return {name: tasks[name] for name in names}


def measured(
    count: int,
    kills: int,
    workers: int,
    *,
    times: float = 1.0,
    wrong: float = 0.0,
    slurm: bool = False,
    lose: bool = False,
) -> Iterator[Figure]:
    """The figures of one service, and what the simulator says."""
    command = f"{COMMAND} --jobs {count} --kills {kills} --workers {workers}"
    command += f" --times {times:g}" if times != 1 else ""
    command += f"{f' --wrong {wrong:g}' if wrong else ''}{' --slurm' * slurm}{' --lose' * lose}"
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="elasticflow-deadlines-"))
        site = stack.enter_context(OnSlurm()) if slurm else None
        first = Bench(Path(name), workers, 5.0, site)
        first.start()
        try:
            rates, start_s = calibrate(first)
        finally:
            first.end()
        print(f"steps a second by workers: {rates}; first step after {start_s:.1f} s", flush=True)
        speedup = {size: rate / rates[1] for size, rate in zip(*_curve(rates, workers), strict=True)}
        bench = Bench(Path(name), workers, start_s, site)
        if wrong:
            bench.spoil(wrong)
        bench.start()
        jobs = planned(count, workers, start_s, speedup, times)
        try:
            found = run_all(bench, jobs, kills, lose=lose)
        finally:
            bench.end()
        seen = read_history(Path(bench.config.folder)).state.policy.overheads
        print(f"a run that begins counts as {seen.base_s:.1f} s in the end", flush=True)
    curve = believed(rates, workers)
    zero_s = min(task.handed_at for task in found.values())
    there = [
        Job(
            name,
            curve,
            job.epochs * EPOCH_STEPS,
            task.handed_at - zero_s,
            (task.deadline_at or zero_s) - zero_s,
        )  # fmt: skip
        for (name, task), job in zip(found.items(), jobs, strict=True)
    ]
    schedule = simulate(policy("elastic", ClusterShape(workers, 1), seen), there)
    simulated = {outcome.job_id: outcome for outcome in schedule.outcomes}
    met = [n for n, t in found.items() if t.promised_at and t.state == "finished" and _in_time(t)]
    late = [n for n, t in found.items() if t.promised_at and n not in met]
    planned_met = [n for n, outcome in simulated.items() if outcome.in_time]
    apart = [
        abs((task.ended_at or 0.0) - zero_s - outcome.finished_s) / (outcome.finished_s - outcome.submit_s)
        for n, task in found.items()
        if task.state == "finished" and (outcome := simulated[n]).finished_s is not None
    ]
    for n, task in found.items():
        outcome = simulated[n]
        print(
            f"{n}: {task.state}, {'promised' if task.promised_at else 'not promised'}, "
            f"{(task.ended_at or 0) - zero_s:.0f} s of {(task.deadline_at or 0) - zero_s:.0f} s; simulated: "
            f"{f'{outcome.finished_s:.0f} s' if outcome.finished_s else outcome.reason}",
            flush=True,
        )
    yield figure(
        "deadlines promised and met", len(met), "", len(planned_met), command, "reference: the simulator"
    )
    yield figure("promised and late", len(late), "", 0, command, f"{kills} kills of the service")
    yield figure("duration, apart from the simulator's", statistics.median(apart), "", 0.1, command, "median")


def _curve(rates: dict[int, float], workers: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    found = believed(rates, workers)
    return found.sizes, found.rates


def _in_time(task: talk.ToldTask) -> bool:
    return task.ended_at is not None and task.deadline_at is not None and task.ended_at <= task.deadline_at


def run() -> Iterator[Figure]:
    """Ten jobs, and the service killed five times."""
    yield from measured(10, 5, 4)


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=30, help="of the trace (default: 30)")
    parser.add_argument("--times", type=float, default=1.0, help="as long, and as far apart (default: 1)")
    parser.add_argument("--kills", type=int, default=0, help="of the service, while jobs are handed in")
    parser.add_argument("--workers", type=int, default=8, help="that there can be at once (default: 8)")
    parser.add_argument(
        "--wrong", type=float, default=0.0, help="what is believed of speeds, by up to this part"
    )
    parser.add_argument("--slurm", action="store_true", help="as jobs of a real SLURM, of 8 GPUs")
    parser.add_argument("--lose", action="store_true", help="with --slurm: one of its nodes, for a while")
    options = parser.parse_args(argv)
    if options.lose and not options.slurm:
        parser.error("--lose is of a node, so with --slurm")
    if options.slurm and options.workers not in (2, 4, 6, 8):
        parser.error("--slurm has 4 nodes with 2 GPUs each: --workers 2, 4, 6 or 8")
    how = {"times": options.times, "wrong": options.wrong, "slurm": options.slurm, "lose": options.lose}
    for one in measured(options.jobs, options.kills, options.workers, **how):
        print(line(one))
    return 0


if __name__ == "__main__":
    sys.exit(main())
