"""One service with hundreds of runs: its decisions, from a grant to the order, and what following costs.

``python -m benchmarks serving [--gpus N...] [--alone N...] [--seconds N] [--png FILE]``. The service is
real, with its journal and sockets; the cluster's hands and the masters are simulated, the latter in another
process: ``benchmarks.masters``. There are half as many runs as GPUs; every two seconds one ends, on average,
and another is handed in, and every fifteen a node goes or comes back. Larger sizes are decided ``alone``: by
the service's state, without journal, sockets and processes. A picture shows how that goes on with the size.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec

from benchmarks.figures import Figure, figure, line
from benchmarks.growth import pyplot_of
from benchmarks.masters import KEYS, WorldHands, WorldShare, play, rate_of
from elasticflow import __version__
from elasticflow.errors import RunError
from elasticflow.run.config import Config, differences
from elasticflow.run.folder import RunDir, publish
from elasticflow.service import happenings as hp
from elasticflow.service import server, talk
from elasticflow.service.journal import ServiceJournal
from elasticflow.service.memory import Known, kind_of
from elasticflow.service.settings import ServiceConfig
from elasticflow.wire.keys import CLIENT, make_keys, write_secret

COMMAND = "python -m benchmarks serving"
GPUS, ALONE = (100, 300, 1000), (100, 300, 1000, 3000, 10_000)
CHANGES = 12
"""So often, alone, a run is handed in, and one ends."""
DEMANDED = 1000
"""GPUs with which ``MUST_DECIDE_S`` and ``MUST_ORDER_S`` must be kept."""
MUST_DECIDE_S, MUST_ORDER_S, MUST_ANSWER_S = 0.1, 1.0, 1.0
SECONDS = 60.0
SLOTS, MOST_WORKERS = 4, 8
EVERY_S, NODE_S = 2.0, 15.0
"""Between two that are handed in; between two changes of the nodes."""
LIFE_S = 2.0
"""Of a run, for each run that there is: then one ends as often as one comes."""
SLACK = (0.9, 2.0)
"""Deadlines, in what a run takes on two workers."""
PROGRAMS = 8
MANY_STEPS = 1 << 40
"""Of an epoch of them; a run has no more than it is told."""
PART = 250
"""So many at once are handed in before the service begins."""
SETTLE_S = 35.0
"""Until what runs do from their beginning on is measured."""


class Noted(msgspec.Struct):
    """What was seen of a service, by a monotonic clock.

    decisions: (when, seconds, of CPU, whether the policy was asked). grants: (when, of which run, number,
    whether its master is there). ordered: (when, of which run a leader was asked for). used: (when, CPU
    seconds so far). replayed_s: until the journal was read.
    """

    decisions: list[tuple[float, float, float, bool]] = []
    grants: list[tuple[float, str, int, bool]] = []
    ordered: list[tuple[float, str]] = []
    used: list[tuple[float, float]] = []
    replayed_s: float = 0.0


class WatchedService(server.Service):
    """A service that notes what it does."""

    def __init__(self, config: ServiceConfig, folder: Path, world: Connection) -> None:
        self.noted, began_s = Noted(), time.monotonic()
        self._begins: set[str] = set()
        """Whose leaders were asked for, and do not listen yet: they cannot be told."""
        share = WorldShare(folder, config.nodes, config.workers_per_node)
        with (
            patch.object(server, "load_share", lambda *_: share),
            patch.object(server, "Hands", lambda *_: WorldHands(share, world, self._order)),
        ):
            super().__init__(config)
        self.noted.replayed_s = time.monotonic() - began_s
        self._decides = self._state.handle
        self._state.handle = self._timed  # type: ignore[method-assign]

    def _order(self, what: str, run: str) -> None:
        if what == "begin":
            self.noted.ordered.append((time.monotonic(), run))
            self._begins.add(run)
        else:
            self._begins.discard(run)

    def _timed(self, happened: Sequence[hp.Happening], now_s: float) -> None:
        wall_s, cpu_s = time.monotonic(), time.thread_time()
        asked = any(not isinstance(each, hp.Held | hp.Advanced) for each in happened)
        self._decides(happened, now_s)
        took = time.monotonic() - wall_s, time.thread_time() - cpu_s
        self.noted.decisions.append((wall_s, *took, asked))

    def _handle(self, happened: Sequence[hp.Happening]) -> None:
        now_s = time.monotonic()
        before = {name: each.number for name, each in self._state.ledger.accounts.items()}
        spoke = {name for name, each in self._followers.items() if each.situation is not None}
        self._begins -= {self._followers[name].run.path.name for name in spoke}
        begins = set(self._begins)
        super()._handle(happened)
        for name, account in self._state.ledger.accounts.items():
            run = Path(self._state.tickets[name].task.run_dir).name
            is_to_hear = name in spoke or account.granted and run not in begins
            if account.number != before.get(name, 0) and is_to_hear:
                self.noted.grants.append((now_s, run, account.number, name in spoke))

    def _wait(self) -> set[object]:
        now_s = time.monotonic()
        if not self.noted.used or now_s >= self.noted.used[-1][0] + 0.5:
            self.noted.used.append((now_s, time.process_time()))
        return super()._wait()


def served(config: ServiceConfig, folder: Path, world: Connection, told: Connection) -> None:
    """A service's whole life: it is asked to end by a signal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log = os.open(folder / "service.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    service = WatchedService(config, folder, world)
    with suppress(KeyboardInterrupt):
        service.run()
    told.send_bytes(msgspec.json.encode(service.noted))
    service.close()


class Crowded(NamedTuple):
    """What was measured with so many GPUs. Seconds; decides_cpu_s: of CPU; used: of a core.

    orders_s: from a grant until the run's master has heard of it; begins_s: until a leader is asked for.
    """

    gpus: int
    runs: int
    promised: int
    decides_s: list[float]
    decides_cpu_s: list[float]
    orders_s: list[float]
    begins_s: list[float]
    unheard: int
    answers_s: list[float]
    used: float
    replayed_s: float


class Town:
    """A service, its world, and who hands runs in to it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.folder, self.gpus, self.num_runs = folder, gpus, gpus // 2
        self.config = ServiceConfig(
            folder=str(folder / "service"), nodes=gpus // SLOTS, workers_per_node=SLOTS, cluster="slurm"
        )
        self._chance, self._number = random.Random(gpus), 0
        self._keys = make_keys()
        (folder / KEYS).write_bytes(msgspec.json.encode(self._keys))
        (folder / "down").write_text("")
        spawn = multiprocessing.get_context("spawn")
        self._world, of_driver = spawn.Pipe()
        of_service, of_hands = spawn.Pipe()
        self._told, telling = spawn.Pipe()
        self._masters = spawn.Process(target=play, args=(folder, (of_driver, of_hands)))
        self._service = spawn.Process(target=served, args=(self.config, folder, of_service, telling))

    def measure(self, seconds: float) -> Crowded:
        """After all have begun, so long."""
        self._masters.start()
        try:
            self._seed()
            self._service.start()
            asked = self._wait_until_all_run()
            time.sleep(SETTLE_S)
            begun_s = time.monotonic()
            answers_s = self._go_on(begun_s, seconds)
            over_s = time.monotonic()
            assert self._service.pid is not None
            os.kill(self._service.pid, signal.SIGTERM)
            noted = msgspec.json.decode(self._told.recv_bytes(), type=Noted)
            self._world.send(("over",))
            heard = self._world.recv()
        finally:
            for process in (self._service, self._masters):
                if process.pid is not None:
                    process.kill()
                    process.join()
        promised = sum(task.promised_at is not None for task in asked.tasks)
        return self._measured(noted, heard, begun_s, over_s, answers_s, promised)

    def _measured(
        self, noted: Noted, heard: Any, begun_s: float, over_s: float, answers_s: list[float], promised: int
    ) -> Crowded:
        decisions = [each for each in noted.decisions if begun_s <= each[0] < over_s and each[3]]
        grants = [each for each in noted.grants if begun_s <= each[0] < over_s - MUST_ORDER_S]
        found = [(grant[3], _order_s(grant, heard, noted.ordered)) for grant in grants]
        within = [(at_s, cpu_s) for at_s, cpu_s in noted.used if begun_s <= at_s < over_s]
        (first_s, first_cpu_s), (last_s, last_cpu_s) = within[0], within[-1]
        return Crowded(
            gpus=self.gpus,
            runs=self.num_runs,
            promised=promised,
            decides_s=[each[1] for each in decisions],
            decides_cpu_s=[each[2] for each in decisions],
            orders_s=[took_s for is_there, took_s in found if is_there and took_s is not None],
            begins_s=[took_s for is_there, took_s in found if not is_there and took_s is not None],
            unheard=sum(took_s is None for _, took_s in found),
            answers_s=answers_s,
            used=(last_cpu_s - first_cpu_s) / (last_s - first_s),
            replayed_s=noted.replayed_s,
        )

    # --- before it begins ------------------------------------------------------------------------

    def _seed(self) -> None:
        """What a service before this one knew: its nodes, and its runs."""
        Path(self.config.folder).mkdir(mode=0o700)
        known = Known(Path(self.config.folder) / "known.json")
        for number in range(PROGRAMS):
            kind = kind_of(self._config(number, 1))
            for rung in range(MOST_WORKERS.bit_length()):
                known.paced(kind, 1 << rung, rate_of(1 << rung))
            known.counted(kind, self._config(number, 0), MANY_STEPS)
        journal = ServiceJournal(Path(self.config.folder), self.config.rules)
        names = WorldShare(self.folder, self.config.nodes, SLOTS).nodes()
        seen = [hp.NodeSeen(node=n, up=True, name=each.name) for n, each in enumerate(names)]
        journal.handle(seen, time.time())
        for first in range(0, self.num_runs, PART):
            tasks = [self._task() for _ in range(min(PART, self.num_runs - first))]
            journal.handle([hp.HandedIn(task=task) for task in tasks], time.time())
        journal.close()

    def _config(self, number: int, steps: int) -> Config:
        return Config(program=f"program-{number % PROGRAMS}.py", backend="slurm", epochs=1, max_steps=steps)

    def _new(self) -> tuple[RunDir, Config, int, float]:
        """A run's folder, and its master; with its steps, and seconds on two workers."""
        takes_s = self._chance.uniform(0.0, 2 * LIFE_S * self.num_runs)
        steps, self._number = max(10, round(takes_s * rate_of(2))), self._number + 1
        run, config = RunDir(self.folder / f"run-{self._number}"), self._config(self._number, steps)
        run.client_keys.parent.mkdir(mode=0o700, parents=True)
        publish(run.settings, {"version": __version__, **differences(config)}, durable=False)
        write_secret(run.client_keys, msgspec.json.encode(self._keys.of(CLIENT)))
        self._world.send(("new", run.path.name, steps, 0.0))
        return run, config, steps, steps / rate_of(2)

    def _task(self) -> hp.Task:
        run, config, steps, takes_s = self._new()
        rates = {1 << rung: rate_of(1 << rung) for rung in range(MOST_WORKERS.bit_length())}
        return hp.Task(
            name=f"{self._number}-{Path(config.program).stem}",
            run_dir=str(run.path),
            user="ann",
            kind=kind_of(config),
            most_workers=MOST_WORKERS,
            deadline_s=time.time() + self._slack_s(takes_s),
            steps=steps,
            rates=rates,
        )

    def _slack_s(self, takes_s: float) -> float:
        return 30.0 + takes_s * self._chance.uniform(*SLACK)

    # --- while it goes on ------------------------------------------------------------------------

    def _wait_until_all_run(self) -> talk.ServiceAnswer:
        while True:
            time.sleep(1.0 + self.num_runs / 500)  # nobody tells that all have begun; to ask has its price
            assert self._service.is_alive() and self._masters.is_alive()
            with suppress(RunError):
                answer = talk.ask(Path(self.config.folder), talk.ListTasks())
                if all(task.state or task.step or not task.workers for task in answer.tasks):
                    return answer

    def _go_on(self, begun_s: float, seconds: float) -> list[float]:
        """People and nodes; how long each who handed in had to wait for the answer."""
        answers_s, node_s, number = [], begun_s + NODE_S, 0
        while (now_s := time.monotonic()) < begun_s + seconds:
            run, _, _, takes_s = self._new()
            question = talk.HandIn(
                run_dir=str(run.path),
                deadline_s=time.time() + self._slack_s(takes_s),
                most_workers=MOST_WORKERS,
            )
            asked_s = time.monotonic()
            talk.ask(Path(self.config.folder), question)
            answers_s.append(time.monotonic() - asked_s)
            if now_s >= node_s:
                number, node_s = number + 1, node_s + NODE_S
                (self.folder / "down").write_text(f"n{number:05}" if number % 2 else "")
            time.sleep(max(0.0, now_s + EVERY_S - time.monotonic()))
        return answers_s


def _order_s(
    grant: tuple[float, str, int, bool],
    heard: Sequence[tuple[str, int, float]],
    ordered: Sequence[tuple[float, str]],
) -> float | None:
    """From a grant until its run's master has heard of it, or of a newer one, or is wanted; None: never."""
    at_s, run, number, _ = grant
    found = [
        when for name, told, when in heard if name == run and when >= at_s and (told >= number or not told)
    ]
    found += [when for when, name in ordered if name == run and when >= at_s]
    return min(found) - at_s if found else None


def percentile(values: Sequence[float], part: float) -> float:
    """That so large a part of the values do not exceed; of nothing, NaN."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def measured(gpus: int, seconds: float) -> Crowded:
    """One size."""
    with tempfile.TemporaryDirectory(prefix="elasticflow-serving-") as name:
        return Town(Path(name), gpus).measure(seconds)


def figures(found: Crowded) -> Iterator[Figure]:
    """Of one size."""
    what, load = f"{found.gpus} GPUs, {found.runs} runs", f"load {os.getloadavg()[0]:.0f}"
    decided = (
        f"{load}; {len(found.decides_s)} decisions, median {1000 * statistics.median(found.decides_s):.0f} ms"
    )
    decided_cpu = f"median {1000 * statistics.median(found.decides_cpu_s):.0f} ms"
    ordered = f"{len(found.orders_s)} grants, median {1000 * statistics.median(found.orders_s):.0f} ms"
    unheard = f", {found.unheard} unheard of" if found.unheard else ""
    for name, value, must, note in (
        ("a decision, p99", percentile(found.decides_s, 0.99), MUST_DECIDE_S, decided),
        ("CPU of a decision, p99", percentile(found.decides_cpu_s, 0.99), MUST_DECIDE_S, decided_cpu),
        ("from grant to order, p99", percentile(found.orders_s, 0.99), MUST_ORDER_S, ordered + unheard),
        (
            "from grant to a leader, p99",
            percentile(found.begins_s, 0.99),
            MUST_ORDER_S,
            f"{len(found.begins_s)}",
        ),
        (
            "answer to a hand-in, p99",
            percentile(found.answers_s, 0.99),
            MUST_ANSWER_S,
            f"{len(found.answers_s)}",
        ),
        ("CPU of the service, of a core", found.used, 1.0, f"{found.promised} of the runs promised"),
        ("read again by the next service", found.replayed_s, 1.0, ""),
    ):
        yield figure(f"{what}: {name}", value, "" if "of a core" in name else "s", must, COMMAND, note)


def alone(gpus: int) -> list[float]:
    """What decisions take of CPU, in seconds, where everybody does at once as is granted."""
    chance, now_s, num_runs = random.Random(gpus), 1e9, gpus // 2
    state = ServiceConfig(nodes=gpus // SLOTS, workers_per_node=SLOTS).rules.new_state()
    rates = {1 << rung: rate_of(1 << rung) for rung in range(MOST_WORKERS.bit_length())}

    def come(first: int, count: int) -> list[hp.Happening]:
        found: list[hp.Happening] = []
        for number in range(first, first + count):
            takes_s = chance.uniform(1.0, 2 * LIFE_S * num_runs)
            task = hp.Task(
                name=f"{number}-program",
                run_dir=f"/runs/{number}",
                user="ann",
                kind=f"{number % PROGRAMS}",
                most_workers=MOST_WORKERS,
                deadline_s=now_s + 30.0 + takes_s * chance.uniform(*SLACK),
                steps=max(10, round(takes_s * rate_of(2))),
                rates=rates,
            )
            found.append(hp.HandedIn(task=task))
        return found

    def obey() -> None:
        accounts = state.ledger.accounts.items()
        held = [hp.Held(name=name, workers=each.granted, number=each.number) for name, each in accounts]
        state.handle(held, now_s)

    for first in range(0, num_runs, PART):
        state.handle(come(first, min(PART, num_runs - first)), now_s)
    took_s = []
    for change in range(CHANGES):
        obey()
        now_s += EVERY_S
        ends = hp.Over(name=next(iter(state.ledger.accounts)), state="finished")
        for happened in (come(num_runs + change, 1), [ends]):
            began_s = time.thread_time()
            state.handle(happened, now_s)
            took_s.append(time.thread_time() - began_s)
    return took_s


def draw(found: Sequence[Crowded], by_itself: dict[int, list[float]], file: Path) -> None:
    """How it grows."""
    pyplot = pyplot_of()
    lines = {
        "a decision": [(each.gpus, percentile(each.decides_s, 0.99)) for each in found],
        "CPU of a decision": [(each.gpus, percentile(each.decides_cpu_s, 0.99)) for each in found],
        "from grant to order": [(each.gpus, percentile(each.orders_s, 0.99)) for each in found],
        "answer to a hand-in": [(each.gpus, percentile(each.answers_s, 0.99)) for each in found],
        "CPU of a decision, alone": [(gpus, percentile(each, 0.99)) for gpus, each in by_itself.items()],
    }
    shown, axes = pyplot.subplots(figsize=(6, 4))
    for label, points in lines.items():
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", label=label)
    sizes = sorted({gpus for points in lines.values() for gpus, _ in points})
    axes.set_xticks(sizes, [f"{gpus:,}" for gpus in sizes])
    axes.minorticks_off()
    axes.set(xlabel="GPUs; half as many runs", ylabel="s, p99")
    axes.legend()
    shown.savefig(file, dpi=120, bbox_inches="tight")
    pyplot.close(shown)


def run() -> Iterator[Figure]:
    """The size that is demanded."""
    yield from figures(measured(DEMANDED, SECONDS))


def main(argv: Sequence[str] | None = None) -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", type=int, nargs="*", default=list(GPUS), help=f"sizes (default: {GPUS})")
    parser.add_argument("--alone", type=int, nargs="*", default=list(ALONE), help=f"(default: {ALONE})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that each size is watched")
    parser.add_argument("--png", type=Path, metavar="FILE", help="a picture of how it grows")
    options = parser.parse_args(argv)
    found, by_itself = [], {}
    for gpus in options.gpus:
        found.append(measured(gpus, options.seconds))
        for one in figures(found[-1]):
            print(line(one), flush=True)
    for gpus in options.alone:
        by_itself[gpus] = took_s = alone(gpus)
        what, note = (
            f"{gpus} GPUs, alone: CPU of a decision, p99",
            f"median {statistics.median(took_s):.3f} s",
        )
        print(line(figure(what, percentile(took_s, 0.99), "s", MUST_DECIDE_S, COMMAND, note)), flush=True)
    if options.png:
        draw(found, by_itself, options.png)
    return 0
