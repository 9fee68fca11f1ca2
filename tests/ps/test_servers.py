"""Servers die, freeze and come back from each other's memory: the bits are those of a quiet run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from server_job import SCHEDULE, FakeWorker, Job, Severed, evaluations

from elasticflow.messages import Lost, Progress, Ready, Written
from elasticflow.storage import DirectoryStorage

END = SCHEDULE.total_ticks

Start = Callable[..., tuple[Job, FakeWorker]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers and a worker; ends them after the test."""
    begun: list[Any] = []

    def begin(*arguments: Any, **more: Any) -> tuple[Job, FakeWorker]:
        job, worker = Job(DirectoryStorage(tmp_path / str(len(begun))), *arguments, **more), FakeWorker()
        begun.extend([worker, job])
        worker.connect(job.assign())
        return job, worker

    yield begin
    for each in begun:
        each.close()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[list[bytes], Any]]:
    """The model, and what is told of it, where nothing happens: without and with clipping."""
    found = {}
    for clips in (False, True):
        job, worker = Job(DirectoryStorage(tmp_path_factory.mktemp("quiet")), 1, clips=clips), FakeWorker()
        worker.connect(job.assign())
        worker.train(END)
        job.row[0].link.hear(Progress, lambda progress: progress.last)
        found[clips] = worker.model(), evaluations(job)
        worker.close()
        job.close()
    return found


def finish(job: Job, worker: FakeWorker, quiet: dict[bool, Any], clips: bool = False) -> None:
    """Trains to the end, and looks at what came of it."""
    worker.train(END)
    job.row[0].link.hear(Progress, lambda p: p.last and p.generation == job.generation)
    assert worker.model() == quiet[clips][0]
    assert evaluations(job) == quiet[clips][1]
    assert all(process.server._dropped == 0 for process in job.row)
    assert all(process.server._keeping.dropped == 0 for process in job.row)


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(("servers", "lost"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_a_lost_server_comes_back_from_its_keeper(
    start: Start, quiet: dict[bool, Any], servers: int, lost: int, clips: bool
) -> None:
    job, worker = start(servers, clips=clips)
    worker.train_until_kept(2)
    kept, before = worker.snapshots[-2], worker.version
    job.replace(lost)
    for place, process in enumerate(job.row):
        neighbour = (place - lost) % servers in (1, servers - 1)  # its keeper, and whom it keeps for
        if place != lost and neighbour:
            process.link.hear(Lost, lambda message: message.member == job.dead[0].name)
    assignment = job.regroup(lost)
    assert assignment.in_memory and kept <= assignment.start_tick <= before + 1
    worker.connect(assignment)
    worker.train_until_kept()
    job.replace((lost + 1) % servers)  # who has just become, or just kept for, the new one
    worker.connect(job.regroup((lost + 1) % servers))
    finish(job, worker, quiet, clips)
