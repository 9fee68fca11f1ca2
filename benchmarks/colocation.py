"""Beside a service whose demand rises and falls: how soon it has its slots, and how many are in use.

ElasticDL's published experiment: nginx scales with its load, training takes what is left, the cluster stays
above 90 %. Here 8 slots of this machine are shared by ``elasticflow serve --share``: the neighbour says what
it needs, and starts its processes, one a slot, when the runs have given back the rest. Three runs without
a deadline take what is left; a step takes as long as its records say, without computing. Then the same with
8 GPUs of a real SLURM, and of a real Kubernetes: the neighbour's slots are jobs there, or Pods, and count
when they run.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.deadlines import EPOCH_STEPS, PROGRAM, STEP_S, Bench
from benchmarks.figures import Figure, figure
from benchmarks.sites import GPUS, ClusterRuns, OnKubernetes, OnSlurm, Site
from elasticflow import checkpoint
from elasticflow.cli.train import make_folder
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.service import talk

COMMAND = "python -m benchmarks colocation"
SLOTS, RUNS, START_S = GPUS, 3, 1.0
CHANGES, EVERY_S, SEED = 14, 12.0, 7
"""So often the neighbour's demand changes, and so far apart."""
LOOK_S = 0.1
EPOCHS, BATCH = 50, 64
MUST_GIVE_S, MUST_USE = 5.0, 0.90


@dataclass
class Neighbour:
    """A service next door: as many processes as it has slots. given_s: how long each rise took."""

    folder: Path
    given_s: list[float] = field(default_factory=list)
    slots: list[Any] = field(default_factory=list)
    """What it has begun."""

    def need(self, slots: int) -> None:
        """Takes them when they are free; gives back at once what it does not need."""
        while len(self.slots) > slots:
            self._end(self.slots.pop())
        began_s, rises = time.monotonic(), slots > len(self.slots)
        answer = talk.ask(self.folder, talk.SetShare(workers=SLOTS - slots))
        while held(answer) > answer.capacity:
            time.sleep(0.02)  # it is asked until they have left
            answer = talk.ask(self.folder, talk.ListTasks())
        if rises:
            self._begin(slots - len(self.slots))
            self.given_s.append(time.monotonic() - began_s)

    def close(self) -> None:
        """Ends it."""
        while self.slots:
            self._end(self.slots.pop())

    def _begin(self, count: int) -> None:
        self.slots += [subprocess.Popen(["sleep", "3600"]) for _ in range(count)]

    def _end(self, slot: Any) -> None:
        slot.kill()
        slot.wait()


class NeighbourOnCluster(Neighbour):
    """Its slots are jobs there, or Pods, with a GPU each, beside the workers."""

    def __init__(self, folder: Path, site: Site) -> None:
        super().__init__(folder)
        self._site = site

    def _begin(self, count: int) -> None:
        self.slots += self._site.take(count)

    def _end(self, slot: Any) -> None:
        self._site.give(slot)


def held(answer: talk.ServiceAnswer) -> int:
    """Slots that runs have."""
    return sum(task.held for task in answer.tasks)


def demands() -> list[int]:
    """Slots that the neighbour needs, one change after the other: from 1 to 6 of 8."""
    chance, found = random.Random(SEED), [1]
    while len(found) < CHANGES:
        found.append(chance.choice([slots for slots in range(1, 7) if slots != found[-1]]))
    return found


class Here:
    """A service that shares this machine's slots."""

    def __init__(self, folder: Path) -> None:
        self._bench = Bench(folder, SLOTS, START_S)
        self.folder, self.service = folder, Path(self._bench.config.folder)
        self._bench.start()

    def neighbour(self) -> Neighbour:
        """Of this service."""
        return Neighbour(self.service)

    def hand_in(self, name: str, epochs: int) -> str:
        """Without a deadline; its name there."""
        config = Config(
            program=str(PROGRAM), run_dir=str(self.folder / name), workers="1", least_gain=0.0,
            epochs=epochs, batch_size=BATCH, slices=8, checkpoint_every="10s",
        )  # fmt: skip
        run = make_folder(config, resume=False).run
        (task,) = talk.ask(self.service, talk.HandIn(run_dir=str(run.path))).tasks
        return task.name

    def close(self) -> None:
        """Leaves nothing behind."""
        self._bench.end()


class OnCluster:
    """A service that shares the GPUs of a cluster."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.folder, self._site = folder, site.__enter__()
        bench: dict[str, object] = {"record_s": STEP_S / BATCH, "records": BATCH * EPOCH_STEPS, "slowness": 1}
        work: dict[str, object] = {"batch_size": BATCH, "slices": 8, "checkpoint_every": "10s"}
        self._runs = ClusterRuns(site, folder, work, bench)
        self.service = self._runs.service
        self._process = self._runs.begin_service()

    def neighbour(self) -> Neighbour:
        """Of this service."""
        return NeighbourOnCluster(self.service, self._site)

    def hand_in(self, name: str, epochs: int) -> str:
        """Without a deadline; its name there."""
        return self._runs.submit(name, "--service", self.service, "--best-effort", epochs=epochs)

    def close(self) -> None:
        """Leaves nothing behind."""
        self._process.kill()
        self._process.wait()
        self._site.__exit__(None, None, None)


def tasks_of(service: Path) -> dict[str, talk.ToldTask]:
    """By their names there."""
    return {task.name: task for task in talk.ask(service, talk.ListTasks(over=1000)).tasks}


class Watcher:
    """Counts the slots in use, every ``LOOK_S``, until it is asked what it has seen."""

    def __init__(self, neighbour: Neighbour) -> None:
        self._neighbour, self._over = neighbour, threading.Event()
        self._seen: list[int] = []
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def seen(self) -> list[int]:
        """All that it has seen."""
        self._over.set()
        self._thread.join()
        return self._seen

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            answer = talk.ask(self._neighbour.folder, talk.ListTasks())
            self._seen.append(held(answer) + len(self._neighbour.slots))


def run() -> Iterator[Figure]:
    """Figures, in the order of the module's docstring."""
    with tempfile.TemporaryDirectory(prefix="elasticflow-colocation-") as name:
        yield from _figures_of(Here(Path(name)), "")
    for make in (OnSlurm, OnKubernetes):
        with tempfile.TemporaryDirectory(prefix="elasticflow-colocation-") as name:
            site = make()
            yield from _figures_of(OnCluster(Path(name), site), f" on {site.title}")


def _figures_of(place: Here | OnCluster, where: str) -> Iterator[Figure]:
    neighbour = place.neighbour()
    try:
        _wait(place.service, [place.hand_in("alone", 4)])
        names = [place.hand_in(f"run-{number}", EPOCHS) for number in range(RUNS)]
        neighbour.need(demands()[0])
        while len([1 for one in names if tasks_of(place.service)[one].step > 2]) < RUNS:
            time.sleep(LOOK_S)  # nobody tells that all have begun
        neighbour.given_s.clear()
        watcher, begun_s = Watcher(neighbour), time.monotonic()
        for number, slots in enumerate(demands()[1:], start=1):
            neighbour.need(slots)
            time.sleep(max(0.0, begun_s + number * EVERY_S - time.monotonic()))
        seen = watcher.seen()
        over = [tasks_of(place.service)[one].state for one in names]
        neighbour.need(0)
        _wait(place.service, names)
        digests = {_digest(place.folder / f"run-{number}") for number in range(RUNS)}
    finally:
        neighbour.close()
        place.close()
    given_s, is_same = sorted(neighbour.given_s), len(digests) == 1 and not any(over)
    load = f"load {os.getloadavg()[0]:.0f}; {len(given_s)} rises; all lasted, digests equal: {is_same}"
    text = f"slots given to the neighbour{where}"
    yield figure(f"{text}, longest", given_s[-1], "s", MUST_GIVE_S, COMMAND, load)
    yield figure(f"{text}, median", given_s[len(given_s) // 2], "s", MUST_GIVE_S, COMMAND)
    used, most = sum(seen) / len(seen) / SLOTS, f"of {SLOTS}, seen {len(seen)} times; at most {max(seen)}"
    yield figure(f"slots in use{where}", used, "", MUST_USE, COMMAND, most)


def _wait(service: Path, names: Sequence[str]) -> None:
    while not all(tasks_of(service)[name].state for name in names):
        time.sleep(LOOK_S)  # it is asked until all are over


def _digest(folder: Path) -> str:
    storage = RunDir(folder).storage()
    manifest, _ = checkpoint.newest_intact(storage)
    assert manifest is not None
    return checkpoint.digest(storage, manifest)
