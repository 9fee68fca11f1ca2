"""Whose a job is stands in its comment."""

from __future__ import annotations

import pytest

from elasticflow_slurm.client import SlurmJob
from elasticflow_slurm.comments import LEADER, Comment, cancel_jobs, jobs_of, read
from tests.slurm.fakes import FakeClient

RUN = "0123456789ab"


@pytest.mark.parametrize(
    ("comment", "text"),
    [
        (Comment(RUN, "worker-3"), f"elasticflow {RUN} worker-3"),
        (Comment(RUN, LEADER, "/runs/a"), f"elasticflow {RUN} leader /runs/a"),
        (Comment(RUN, LEADER, "/my runs/a  b (2)|'x'"), f"elasticflow {RUN} leader /my runs/a  b (2)|'x'"),
        (Comment(RUN, LEADER, "/läufe/é✓"), f"elasticflow {RUN} leader /läufe/é✓"),
    ],
)
def test_a_comment_is_read_as_it_was_written(comment: Comment, text: str) -> None:
    assert str(comment) == text and read(text) == comment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(null)",
        "my own words",
        "elasticflow",
        "elasticflow ",
        f"elasticflow {RUN}",
        f"elasticflow {RUN} ",
        f"Elasticflow {RUN} worker-1",
        f"elasticflow2 {RUN} worker-1",
        f" elasticflow {RUN} worker-1",
        f"elasticflow  {RUN} worker-1"[:-9],
    ],
)
def test_what_is_no_comment_of_ours(text: str) -> None:
    assert read(text) is None


def test_the_jobs_of_a_run() -> None:
    texts = [
        f"elasticflow {RUN} leader /runs/a",
        f"elasticflow {RUN} leader /runs/a",
        f"elasticflow {RUN} worker-1",
        f"elasticflow {RUN}0 worker-1",
        "elasticflow ffffffffffff worker-1",
        f"see elasticflow {RUN} worker-2",
        "",
    ]
    jobs = [SlurmJob(id=number, state="RUNNING", comment=text) for number, text in enumerate(texts)]
    found = [(name, job.id) for name, job in jobs_of(RUN, jobs)]
    assert found == [("leader", 0), ("leader", 1), ("worker-1", 2)]


def test_a_task_is_cancelled_without_its_array() -> None:
    comment = f"elasticflow {RUN} leader /runs/a"
    client = FakeClient(SlurmJob(id=8, state="RUNNING", comment=comment, task="8_1"))
    cancel_jobs(client, RUN)
    assert client.calls == [("cancel", ["8_1"])]
