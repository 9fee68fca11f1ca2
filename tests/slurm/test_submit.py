"""What a submission looks at before it asks SLURM for anything: whether the run's folder is free."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from elasticflow.cli.main import main
from elasticflow.cluster.folder import FolderBefore
from elasticflow.errors import RunError
from elasticflow.leading import begin, check_resume
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, publish
from elasticflow_slurm import finder
from elasticflow_slurm.client import SlurmJob
from tests.slurm.fakes import FakeClient
from tests.telling import report_of

PROGRAM = "def model():\n    pass\n\ndef forward(x, params):\n    pass\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "p.py").write_text(PROGRAM)
    made = RunDir(tmp_path / "run")
    made.create(Config(program=str(tmp_path / "p.py"), run_dir=str(made.path)))
    return made


def test_a_run_that_goes_on_here_is_not_submitted(run: RunDir) -> None:
    lock = run.hold()
    try:
        with pytest.raises(RunError, match="this run is under way, here"):
            check_resume(run, run.config())
    finally:
        os.close(lock)
    check_resume(run, run.config())


def test_a_run_that_is_in_a_job_does_not_go_on_here(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(run.job, HostJob("slurm", "12", "0123456789ab"))
    keys = run.client_keys.read_bytes()
    monkeypatch.setattr(finder, "choose", lambda environ: FakeClient(SlurmJob(id=12, state="PENDING")))
    assert main(["train", "--resume", "--run-dir", str(run.path)]) == 1
    assert "this run is under way, in job 12 (slurm)" in capsys.readouterr().err
    assert run.job.exists() and run.client_keys.read_bytes() == keys


def test_a_run_that_is_done_does_not_go_on(run: RunDir) -> None:
    done = report_of("finished", "all 20 steps are done", epochs=10, step=20, steps_total=20)
    publish(run.report, done)
    with pytest.raises(RunError, match="nothing left to do: all 20 steps are done"):
        check_resume(run, run.config())
    check_resume(run, msgspec.structs.replace(run.config(), epochs=11))


@pytest.mark.parametrize("there", [True, False])
def test_a_submission_that_fails_leaves_nothing(tmp_path: Path, there: bool) -> None:
    """Also where the folder was made by hand, and is empty."""
    run = RunDir(tmp_path / "runs" / "one")
    if there:
        run.path.mkdir(parents=True)
    folder = FolderBefore(run)
    folder.make()
    begin(run, Config(program=__file__), UNKNOWN)
    folder.put_back()
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == (
        [Path("runs"), Path("runs/one")] if there else []
    )


def test_settings_may_be_named_as_for_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, program = tmp_path / "slurm.yaml", tmp_path / "p.py"
    config.write_text("backend: slurm\nslurm: {job_name: nightly}\n")
    program.write_text(PROGRAM)
    said = []
    for words in ([config], ["--config", config]):
        command = ["submit", *words, program, "--run-dir", tmp_path / "run", "--dry-run"]
        assert main(list(map(str, command))) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and "--job-name=nightly" in said[0]
    assert main(["submit", str(config), str(program), "--config", str(config)]) == 1
    assert "name one file of settings" in capsys.readouterr().err
