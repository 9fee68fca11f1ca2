"""What a leader's backend knows of SLURM without asking it again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from elasticflow.cluster.contract import MASTER
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob, RunDir, publish
from elasticflow_slurm import backend
from elasticflow_slurm.client import SlurmJob
from tests.slurm.fakes import FakeClient


def test_the_leaders_end_is_known_when_slurm_is_not_asked_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where no worker is left, and the last checkpoint waits for its storage."""
    run, now = RunDir(tmp_path / "run"), time.time()
    run.create(Config(backend="slurm", program=__file__))
    publish(run.job, HostJob("slurm", "12", "0123456789ab"))
    comment = "elasticflow 0123456789ab leader"
    leader = SlurmJob(id=12, state="RUNNING", comment=comment, start_at=now - 980, end_at=now + 220)
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
