"""What a leader's backend knows of SLURM without asking it again."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from elasticflow.cluster.contract import MASTER
from elasticflow.errors import RunError
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob, RunDir, publish
from elasticflow_slurm import backend
from elasticflow_slurm.client import SlurmBusy, SlurmJob, SlurmRefused
from tests.slurm.fakes import FakeClient

ID, COMMENT = 12, "elasticflow 0123456789ab leader"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create(Config(backend="slurm", program=__file__))
    publish(made.job, HostJob("slurm", str(ID), "0123456789ab"))
    return made


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_leader_hands_over_to_a_requeue_of_before(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """SLURM, which had lost sight of its node, has requeued the job: it refuses to do so while that waits."""
    client = FakeClient(SlurmJob(id=ID, state="PENDING", comment=COMMENT, restarts=restarts))
    client.refusals["requeue"] = SlurmRefused("scontrol failed: Job is pending execution for job 12.")
    monkeypatch.setattr(backend, "choose", lambda environ: client)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    slurm = backend.SlurmBackend(run.config(), str(run.folder))
    try:
        with nullcontext() if restarts else pytest.raises(SlurmRefused):
            slurm.hand_over()
        assert slurm.comes_again() == bool(restarts)
    finally:
        slurm.close()


@pytest.mark.parametrize(("array", "named"), [(ID, f"{ID}_3"), (ID - 1, ID)])
def test_a_task_of_an_array_hands_over_alone(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, array: int, named: object
) -> None:
    """A requeue of the array's id begins all of its tasks again. One of another array, or that such a task
    has submitted with its own variables, has an id for itself."""
    client = FakeClient()
    monkeypatch.setattr(backend, "choose", lambda environ: client)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", str(array))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    slurm = backend.SlurmBackend(run.config(), str(run.folder))
    try:
        slurm.hand_over()
        assert client.calls == [("requeue", named)]
    finally:
        slurm.close()


def test_the_leaders_end_is_known_when_slurm_is_not_asked_any_more(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no worker is left, and the last checkpoint waits for its storage."""
    now = time.time()
    leader = SlurmJob(id=ID, state="RUNNING", comment=COMMENT, start_at=now - 980, end_at=now + 220)
    monkeypatch.setattr(backend, "choose", lambda environ: FakeClient(leader))
    slurm = backend.SlurmBackend(run.config(), str(run.folder))
    try:
        assert slurm.living() == {} and slurm.next_time_s() == pytest.approx(time.monotonic() + 100, abs=5)
        assert list(slurm.ends_s()) == list(slurm.ends_s()) == [MASTER]
        near_s = time.monotonic() + 120
        monkeypatch.setattr(time, "monotonic", lambda: near_s)
        assert list(slurm.ends_s()) == [MASTER]
        assert slurm.ends_s() == {} and slurm.next_time_s() is None
    finally:
        slurm.close()


@pytest.mark.parametrize("refused", [False, True])
def test_where_the_servers_component_is_over_the_leader_moves(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """As where somebody has cancelled that alone. Seen twice: it may just be on its way to a requeue."""
    servers = SlurmJob(id=ID + 1, state="CANCELLED", comment=COMMENT, leader_id=ID, het=1)
    others = SlurmJob(id=ID + 2, state="CANCELLED", comment=COMMENT)  # a leader's of before
    client = FakeClient(SlurmJob(id=ID, state="RUNNING", comment=COMMENT, leader_id=ID, het=0, restarts=0))
    client.known += [servers, others]
    if refused:
        client.refusals["requeue"] = SlurmRefused("Job requeue is disabled")
    monkeypatch.setattr(backend, "choose", lambda environ: client)
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    slurm = backend.SlurmBackend(run.config(), str(run.folder))
    try:
        slurm.living()
        assert slurm.ended() == [] and client.calls == []
        slurm.living()
        if not refused:
            client.refusals["requeue"] = SlurmBusy("slurmctld does not answer")
            assert slurm.ended() == [] and slurm.notes() == [], "it is asked again"
            del client.refusals["requeue"]
            client.calls.clear()
        told = f"the servers' job {ID + 1} is over .CANCELLED.: no server starts there any more"
        if refused:
            with pytest.raises(RunError, match=f"{told}, and SLURM does not requeue it: Job requeue is dis"):
                slurm.ended()
        else:
            assert slurm.ended() == slurm.ended() == [] and slurm.comes_again()
            ((kind, text),) = slurm.notes()
            assert kind == "warning" and re.fullmatch(f"{told}; the leader is requeued", text)
        assert client.calls == [("requeue", ID)]
    finally:
        slurm.close()
