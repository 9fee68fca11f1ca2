"""What a submission looks at before it asks SLURM for anything: whether the run's folder is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cli.main import main
from elasticflow.cluster.folder import FolderBefore
from elasticflow.errors import ConfigError, RunError
from elasticflow.leading import FolderTaken, begin, check_resume, in_new_folder, submission
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, publish
from elasticflow_slurm import finder
from elasticflow_slurm import submit as submitting
from elasticflow_slurm.client import (
    JobRequest,
    PlaceClosed,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmRefused,
)
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


@pytest.mark.parametrize("there", [True, False])
def test_of_two_who_submit_into_one_folder_at_once_one_begins(tmp_path: Path, there: bool) -> None:
    """Who comes while the other still asks SLURM, and has written nothing, takes nothing of it along."""
    chosen = Config(program=__file__, run_dir=str(tmp_path / "run"))
    if there:
        (tmp_path / "run").mkdir()
    with submission(chosen, False, lambda run: None) as run:
        with pytest.raises(FolderTaken), submission(chosen, False, lambda run: None):
            pass
        begin(run, chosen, UNKNOWN)
    assert run.config().program == __file__ and run.host() is not None


def test_of_two_who_go_on_with_a_run_at_once_one_does(run: RunDir) -> None:
    """Whoever is killed at it leaves nothing in the way of the next one."""
    chosen = run.config()
    with submission(chosen, True, lambda run: None):
        with pytest.raises(RunError, match="somebody else goes on with this run just now"):
            with submission(chosen, True, lambda run: None):
                pass
    assert run.submitting.exists()
    with submission(chosen, True, lambda run: None) as again:
        assert again.folder == run.folder


def test_who_looked_before_somebody_else_made_the_folder_is_refused(tmp_path: Path) -> None:
    looked = [FolderBefore(RunDir(tmp_path / "run")) for _ in range(2)]
    looked[0].make()
    with pytest.raises(FileExistsError):
        looked[1].make()


def test_two_who_name_no_folder_have_one_each(tmp_path: Path) -> None:
    def begun(chosen: Config) -> str:
        with submission(chosen, False, lambda run: None) as run:
            begin(run, chosen, UNKNOWN)
        return chosen.run_dir

    names = [str(tmp_path / name) for name in ("p-1", "p-1", "p-2")]
    chosen, left = Config(program=__file__), iter([*names, names[-1]])
    assert in_new_folder(begun, chosen, lambda: next(left)) == names[0]
    assert in_new_folder(begun, chosen, lambda: next(left)) == names[2]
    with pytest.raises(FolderTaken, match="is not empty"):
        in_new_folder(begun, msgspec.structs.replace(chosen, run_dir=names[0]), lambda: names[2])


def test_a_run_that_is_being_submitted_is_in_no_job_yet(run: RunDir) -> None:
    publish(run.job, HostJob("slurm", UNKNOWN, "0123456789ab"))
    with pytest.raises(RunError, match="under way, or is submitted just now: the cluster has not said yet"):
        check_resume(run, run.config())


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


class PartlyClosed(FakeClient):
    """One partition takes no jobs now."""

    def __init__(self, closed: str) -> None:
        super().__init__()
        self._closed = closed

    def would_start_at(self, request: JobRequest) -> float:
        if request.options["partition"] == self._closed:
            raise PlaceClosed("sbatch failed: Required partition not available (inactive or drain).")
        return 0.0


def test_of_partitions_that_take_nothing_for_now_the_leaders_alone_is_in_the_way(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    section = {"leader": {"partition": "cpu"}, "workers": [{"partition": "old"}, {"partition": "new"}]}
    names = {"program": str(tmp_path / "p.py"), "run_dir": str(tmp_path / "other"), "slurm": section}
    monkeypatch.setattr(submitting, "choose", lambda environ: PartlyClosed("old"))
    assert submitting.submit(Config(**names), resume=False)[0] == 1
    monkeypatch.setattr(submitting, "choose", lambda environ: PartlyClosed("cpu"))
    names["run_dir"] = str(tmp_path / "third")
    with pytest.raises(PlaceClosed, match="slurm.leader: partition cpu takes no jobs just now: .* another"):
        submitting.submit(Config(**names), resume=False)
    assert not (tmp_path / "third").exists()


class Estimating(FakeClient):
    """A SLURM whose estimates leave out what is down or reserved, as they do."""

    def __init__(self, *nodes: SlurmNode, reserved: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.nodes_known = list(nodes)
        self.reserved = [Reservation(name="maint", start_at=0.0, end_at=1.0, nodes=reserved)]

    def would_start_at(self, request: JobRequest) -> float:
        if "gres" in request.options:
            raise SlurmRefused("sbatch failed: Requested node configuration is not available.")
        return 0.0


@pytest.mark.parametrize(
    ("state", "reserved", "gpus", "is_taken"),
    [
        ("idle", (), 1, False),
        ("drained", (), 1, True),
        ("down*", (), 1, True),
        ("idle*", (), 1, True),
        ("idle", ("g1",), 1, True),
        ("drained", (), 8, False),
    ],
)
def test_a_run_whose_nodes_are_away_may_wait_for_them(
    run: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: str,
    reserved: tuple[str, ...],
    gpus: int,
    is_taken: bool,
) -> None:
    node = SlurmNode(name="g1", partition="gpu", state=state, cpus=8, gpus=(("", 2),))
    others = SlurmNode(name="g2", partition="other", state="drained", cpus=8, gpus=(("", 8),))
    monkeypatch.setattr(submitting, "choose", lambda environ: Estimating(node, others, reserved=reserved))
    places = {"leader": {"partition": "cpu"}, "workers": [{"partition": "gpu"}]}
    section = {**places, "gpus": gpus, "time": "20"}
    chosen = Config(program=str(tmp_path / "p.py"), run_dir=str(tmp_path / "other"), slurm=section)
    if is_taken:
        assert submitting.submit(chosen, resume=False)[0] == 1
    else:
        words = r"slurm.workers: SLURM takes no worker in partition gpu \(--gres=gpu:[18] .* --time=20\)"
        with pytest.raises(ConfigError, match=words):
            submitting.submit(chosen, resume=False)


@pytest.mark.parametrize("more", [{}, {"servers": 3, "nodes": 2}, {"reservation": "maint"}])
def test_a_leader_whose_components_would_never_have_nodes_of_their_own_is_refused(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, Any]
) -> None:
    """SLURM takes it, and lets it wait for ever."""
    names = [f"c{number}" for number in range(1 if not more else 2)]
    client = Estimating(*(SlurmNode(name=name, partition="cpu", state="idle") for name in names))
    client.reserved = [Reservation(name="maint", start_at=0.0, end_at=1.0, nodes=("c0",))]
    monkeypatch.setattr(submitting, "choose", lambda environ: client)
    leader = {"partition": "cpu", "reservation": more.get("reservation", "")}
    section = {"leader": leader, "gpus": 0, "server_nodes": more.get("nodes", 1)}
    chosen = {"program": str(tmp_path / "p.py"), "servers": more.get("servers", 1), "slurm": section}
    with pytest.raises(ConfigError, match=r"slurm.leader: .* alone, and the leader needs [23] nodes"):
        submitting.submit(Config(**chosen, run_dir=str(tmp_path / "other")), resume=False)
    client.nodes_known += [SlurmNode(name=name, partition="cpu", state="down*") for name in ("c8", "c9")]
    (reserved,), client.reserved = client.reserved, []
    assert submitting.submit(Config(**chosen, run_dir=str(tmp_path / "third")), resume=False)[0] == 1
    client.reserved = [msgspec.structs.replace(reserved, flags=frozenset({"FLEX"}))]
    assert submitting.submit(Config(**chosen, run_dir=str(tmp_path / "fourth")), resume=False)[0] == 2
