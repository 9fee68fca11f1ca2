"""Which client is chosen, and when pyslurm is not."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from elasticflow.errors import ConfigError
from elasticflow_slurm import bindings
from elasticflow_slurm.bindings import PyslurmClient, check, choose, job_of, probe
from elasticflow_slurm.client import SlurmBusy, SlurmJob, SlurmNotInstalled, SlurmRefused
from elasticflow_slurm.command_line import SlurmClient
from tests.slurm.client.fake_slurm import FakeSlurm

TOLD = {
    "id": 7, "name": "n", "comment": None, "state": "RUNNING", "state_reason": "None", "partition": "gpu",
    "allocated_nodes": "g[1-2]", "submit_time": 5, "start_time": 6, "end_time": 66, "time_limit": 1,
    "exit_code": 0, "exit_code_signal": 0, "priority": 3, "requeue_count": 1, "user_id": os.getuid(),
    "heterogeneous_id": None, "heterogeneous_offset": None, "array_id": None, "array_task_id": None,
}  # fmt: skip


class RPCError(Exception):
    pass


def told(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(**{**TOLD, **fields})


class FakePyslurm:
    """As much of pyslurm 25.11 as is used."""

    RPCError = RPCError

    def __init__(self, *jobs: SimpleNamespace) -> None:
        self.told = {job.id: job for job in jobs}
        self.cancelled: list[int] = []
        self.error = "Invalid job id specified"
        self.Jobs = SimpleNamespace(load=lambda: self.told)
        self.Job = type(
            "Job", (), {"__init__": self._init, "load": staticmethod(self._load), "cancel": self._cancel}
        )

    @staticmethod
    def _init(job, id):
        job.id = id

    def _load(self, id):
        if id not in self.told:
            raise RPCError(self.error)
        return self.told[id]

    @property
    def _cancel(self):
        def cancel(job):
            self._load(job.id)
            self.cancelled.append(job.id)

        return cancel


@pytest.fixture
def pyslurm(monkeypatch, tmp_path):
    """A client that finds the fake; its commands are fakes, too."""
    slurm = FakeSlurm(tmp_path)
    slurm.answer("sinfo", "slurm 25.11.7\n")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(bindings, "probe", lambda environ: "25.11.2")

    def make(*jobs: SimpleNamespace) -> tuple[PyslurmClient, FakePyslurm, FakeSlurm]:
        fake = FakePyslurm(*jobs)
        monkeypatch.setitem(sys.modules, "pyslurm", fake)
        return PyslurmClient(slurm.environ), fake, slurm

    return make


@pytest.mark.parametrize("environ", [{}, {"ELASTICFLOW_SLURM": ""}, {"ELASTICFLOW_SLURM": "cli"}])
def test_the_command_line_is_the_default(environ):
    assert type(choose(environ)) is SlurmClient


def test_an_unknown_name():
    with pytest.raises(
        ConfigError, match="ELASTICFLOW_SLURM: 'rest' is no way to SLURM; there are cli .*, pyslurm.*auto"
    ):
        choose({"ELASTICFLOW_SLURM": "rest"})


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """An environment in which pyslurm ends the interpreter, as libslurm does without slurm.conf."""
    (tmp_path / "pyslurm.py").write_text(
        "import os, sys\nprint('fatal: Could not establish a configuration source', file=sys.stderr)\n"
        "sys.stderr.flush()\nos._exit(1)\n"
    )
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}


def test_pyslurm_that_ends_the_interpreter(broken):
    with pytest.raises(
        SlurmNotInstalled, match="its import failed: fatal: Could not establish a configuration source"
    ):
        choose({**broken, "ELASTICFLOW_SLURM": "pyslurm"})
    assert type(choose({**broken, "ELASTICFLOW_SLURM": "auto"})) is SlurmClient


def test_pyslurm_that_ends_without_words(tmp_path):
    (tmp_path / "pyslurm.py").write_text("import os\nos._exit(7)\n")
    with pytest.raises(SlurmNotInstalled, match="ended with exit code 7"):
        probe({"PYTHONPATH": str(tmp_path)})


def test_the_version_of_pyslurm(tmp_path):
    (tmp_path / "pyslurm.py").write_text("__version__ = '25.11.2'\n")
    assert probe({"PYTHONPATH": str(tmp_path)}) == "25.11.2"


@pytest.mark.parametrize(
    ("pyslurm", "slurm"), [("25.11.2", (25, 11)), ("23.2.0", (23, 2)), ("23.02.0", (23, 2))]
)
def test_releases_that_fit(pyslurm, slurm):
    check(pyslurm, slurm)


@pytest.mark.parametrize(("pyslurm", "slurm"), [("25.11.2", (25, 5)), ("25.5.0", (25, 11)), ("?", (25, 11))])
def test_releases_that_do_not_fit(pyslurm, slurm):
    with pytest.raises(
        SlurmNotInstalled, match=rf"install pyslurm 25.{slurm[1]:02}, or leave ELASTICFLOW_SLURM unset"
    ):
        check(pyslurm, slurm)


def test_pyslurm_reads_the_conf_of_this_process(pyslurm, tmp_path):
    client, _, slurm = pyslurm()
    with pytest.raises(SlurmNotInstalled, match="SLURM_CONF is not that of this process"):
        PyslurmClient({**slurm.environ, "SLURM_CONF": str(tmp_path / "other.conf")})


def test_a_job_of_pyslurm():
    assert job_of(told()) == SlurmJob(
        id=7, name="n", state="RUNNING", partition="gpu", node="g1", submit_at=5, start_at=6, end_at=66,
        priority=3, restarts=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"time_limit": None}, {"end_at": None}),
        ({"time_limit": None, "state": "COMPLETED"}, {"end_at": 66.0, "exit_code": 0}),
        ({"state": "CANCELLED", "exit_code_signal": 15}, {"exit_code": 143}),
        ({"heterogeneous_id": 5}, {"leader_id": 5, "het": 0}),
        ({"heterogeneous_id": 5, "heterogeneous_offset": 1}, {"leader_id": 5, "het": 1}),
        ({"array_id": 5, "array_task_id": 0}, {"task": "5_0"}),
        ({"allocated_nodes": None, "start_time": None}, {"node": "", "start_at": None}),
    ],
)
def test_fields_of_pyslurm(fields, expected):
    job = job_of(told(**fields))
    assert {name: getattr(job, name) for name in expected} == expected


def test_the_jobs_of_others_are_left_out(pyslurm):
    client, _, _ = pyslurm(told(id=1), told(id=2, user_id=os.getuid() + 1))
    assert [job.id for job in client.jobs()] == [1]


def test_a_job_that_pyslurm_does_not_know(pyslurm):
    client, fake, _ = pyslurm(told(id=1))
    assert client.job(1) is not None
    assert client.job(2) is None
    fake.error = "Unable to contact slurm controller (connect failure)"
    with pytest.raises(SlurmBusy, match="pyslurm failed: Unable to contact slurm controller"):
        client.job(2)


def test_exit_codes_of_failed_jobs_are_asked_once(pyslurm):
    from tests.slurm.client.test_parsing import record

    client, _, slurm = pyslurm(told(id=1, state="FAILED", exit_code=9, end_time=66))
    slurm.answer("squeue", record(JobId="1", State="FAILED", EndTime="66", exit_code="137:0"))
    assert [job.exit_code for job in client.jobs()] == [137]
    (slurm.folder / "squeue").unlink()
    assert [job.exit_code for job in client.jobs()] == [137]


def test_a_task_of_an_array_is_changed_by_slurms_commands(pyslurm):
    client, fake, slurm = pyslurm(told(id=7))
    for command in ("scancel", "scontrol"):
        slurm.answer(command)
    client.cancel(["7_1"])
    client.requeue("7_1")
    assert slurm.asked("scancel") == ["7_1"] and slurm.asked("scontrol") == ["requeue", "7_1"]
    assert not fake.cancelled


def test_cancel_goes_on_after_an_unknown_job(pyslurm):
    client, fake, _ = pyslurm(told(id=1))
    client.cancel([9, 1])
    assert fake.cancelled == [1]
    fake.error = "Access/permission denied"
    with pytest.raises(SlurmRefused, match="Access/permission denied"):
        client.cancel([9])
