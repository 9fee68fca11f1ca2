"""What a submission makes, what it asks of YARN, and what it leaves behind when that fails: nothing."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml

from elasticflow import leading
from elasticflow.cli.main import main
from elasticflow.errors import ConfigError
from elasticflow.leading import begin
from elasticflow.program.copy import fetch
from elasticflow.run.config import make
from elasticflow.run.folder import RunDir
from elasticflow.storage.webhdfs import WebHdfs
from elasticflow_yarn import preflight, submit
from elasticflow_yarn.cluster import ResourceManager
from elasticflow_yarn.errors import YarnBusy
from elasticflow_yarn.share import YarnShare
from tests.yarn.fakes import FakeManager, app
from tests.yarn.local_hdfs import LocalHdfs

PROGRAM = "import helper\n\n\ndef model():\n    pass\n\n\ndef forward(x, params):\n    pass\n"
ID = "application_1700000000000_0007"
RUNS = "user/ann/elasticflow/runs"
CORE = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property></configuration>"


class FakeDriver:
    """Skein's. submitted: specifications. refusal: what it raises instead."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.killed: list[str] = []
        self.refusal: BaseException | None = None
        self.is_closed = False

    def submit(self, spec: dict[str, Any]) -> str:
        if self.refusal:
            raise self.refusal
        self.submitted.append(spec)
        return ID

    def kill_application(self, id: str) -> None:
        self.killed.append(id)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHdfs:
    hdfs = LocalHdfs(tmp_path / "hdfs")
    (hdfs.root / "user" / "ann").mkdir(parents=True)
    monkeypatch.setattr(WebHdfs, "of", hdfs.of)
    return hdfs


@pytest.fixture
def driver(tmp_path: Path, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A gateway whose user is in a folder with a program, and a cluster with room for it."""
    driver = FakeDriver()
    (tmp_path / "core-site.xml").write_text(CORE)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "digits.py").write_text(PROGRAM)
    (tmp_path / "work" / "helper.py").write_text("")
    (tmp_path / "work" / "yarn.yaml").write_text("backend: yarn\nyarn: {queue: train}\n")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    monkeypatch.setattr(preflight, "check_tools", lambda environ: None)
    monkeypatch.setattr(preflight, "check_cluster", lambda cluster, config, yarn: True)
    monkeypatch.setattr(submit, "_make_credentials", lambda: None)
    monkeypatch.setattr(submit, "_start_driver", lambda log: driver)
    return driver


def test_where_a_node_must_not_be_lost_the_master_asks_for_all_containers(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["submit", "yarn.yaml", "digits.py"]) == 0
    monkeypatch.setattr(preflight, "check_cluster", lambda cluster, config, yarn: False)
    assert main(["submit", "yarn.yaml", "digits.py"]) == 0
    assert [spec["services"]["worker"]["instances"] for spec in driver.submitted] == [2, 0]


def test_what_is_made_and_asked_for(
    driver: FakeDriver, hdfs: LocalHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "yarn.yaml", "digits.py", "--epochs", "3"]) == 0
    told = capsys.readouterr()
    assert told.out == f"{ID}\n" and f"elasticflow status {ID}" in told.err
    run = RunDir(f"hdfs:///{RUNS}/digits-1")
    host = run.host()
    assert host and (host.backend, host.id) == ("yarn", ID) and driver.is_closed
    assert run.config().program == "program/digits.py" and run.config().epochs == 3
    assert hdfs.root.joinpath(RUNS, "digits-1", "keys", "master.json").stat().st_mode & 0o777 == 0o600
    (spec,) = driver.submitted
    assert spec["master"]["files"]["program"]["source"] == f"hdfs:///{RUNS}/digits-1/program.tar.gz"
    assert f"--run-dir hdfs:///{RUNS}/digits-1;" in spec["master"]["script"]
    with tarfile.open(hdfs.root / RUNS / "digits-1" / "program.tar.gz") as tar:
        assert {"digits.py", "helper.py"} <= set(tar.getnames())
    assert main(["submit", "yarn.yaml", "digits.py"]) == 0
    assert hdfs.root.joinpath(RUNS, "digits-2", "run.json").exists()


def test_all_is_done_as_the_user_whom_the_settings_name(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first look at the run's folder on, which nobody else may look into."""
    asked_as = set()

    def of(url: str, patience_s: float = 0.0) -> tuple[LocalHdfs, str]:
        asked_as.add(os.environ["HADOOP_USER_NAME"])
        return hdfs.of(url, patience_s)

    monkeypatch.setattr(WebHdfs, "of", of)
    Path("yarn.yaml").write_text("backend: yarn\nyarn: {queue: train, user: bob}\n")
    assert main(["submit", "yarn.yaml", "digits.py", "--run-dir", "hdfs:///user/bob/one"]) == 0
    assert asked_as == {"bob"}


def test_a_dry_run_prints_the_specification_and_asks_nobody(
    driver: FakeDriver, hdfs: LocalHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "yarn.yaml", "digits.py", "--dry-run"]) == 0
    spec = yaml.safe_load(capsys.readouterr().out)
    assert spec["queue"] == "train" and set(spec["services"]) == {"worker", "server", "pulse"}
    assert not driver.submitted and hdfs.tree() == ["user", "user/ann"]


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (
            RuntimeError("Failed to submit,\n  exception: AccessControl"),
            "YARN does not take this application: Failed",
        ),
        (
            RuntimeError(
                "Failed, exception: AccessControlException: User ann may not submit to queue closed\n"
                "\tat org.apache.hadoop.Server.run(Server.java:1)\nCaused by: Other\n\t... 14 more"
            ),
            "YARN does not take this application: Failed, exception: AccessControlException: User ann may "
            "not submit to queue closed.\n",
        ),
        (ValueError("bad file"), "yarn: Skein refuses this application: bad file"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_a_submission_that_fails_leaves_nothing(
    refusal: Exception,
    text: str,
    there: bool,
    driver: FakeDriver,
    hdfs: LocalHdfs,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where the folder was made by hand, and is empty."""
    if there:
        hdfs.mkdirs("/runs/one")
    before = hdfs.tree()
    driver.refusal = refusal
    assert main(["submit", "yarn.yaml", "digits.py", "--run-dir", "hdfs:///runs/one"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith(f"Error: {text}") and len(told.err.splitlines()) == 1 and not told.out
    assert hdfs.tree() == before and driver.is_closed


@pytest.mark.parametrize("named", [False, True])
def test_of_two_submissions_at_once_each_has_its_folder(
    named: bool,
    driver: FakeDriver,
    hdfs: LocalHdfs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other one is at the same point, with a program of the same name."""
    other = hdfs.root / RUNS / "digits-1"

    def meanwhile(program: str) -> None:
        other.mkdir(parents=True)
        (other / "run.json").write_text("{}")

    monkeypatch.setattr(preflight, "check_imports", meanwhile)
    where = ["--run-dir", f"hdfs:///{RUNS}/digits-1"] if named else []
    assert main(["submit", "yarn.yaml", "digits.py", *where]) == int(named)
    assert [path.name for path in other.iterdir()] == ["run.json"] and len(driver.submitted) == int(not named)
    if named:
        assert "somebody else begins a run there just now" in capsys.readouterr().err
    else:
        assert RunDir(f"hdfs:///{RUNS}/digits-2").host() is not None


def test_of_two_who_go_on_with_a_run_at_once_one_does(
    driver: FakeDriver,
    hdfs: LocalHdfs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other one comes while the first asks YARN. What one who was killed has left counts for a while."""
    again = ["submit", "yarn.yaml", "--resume", "--run-dir", f"hdfs:///{RUNS}/digits-1"]
    claim, others = hdfs.root / RUNS / "digits-1" / "submitting", []
    assert main(["submit", "yarn.yaml", "digits.py"]) == 0
    monkeypatch.setattr("elasticflow.leading.is_alive", lambda run: False)

    def meanwhile(cluster: object, config: object, yarn: object) -> bool:
        if not others:
            others.append(0)
            others[0] = main(again)
        return True

    monkeypatch.setattr(preflight, "check_cluster", meanwhile)
    assert main(again) == 0 and others == [1] and len(driver.submitted) == 2
    assert "somebody else goes on with this run just now" in capsys.readouterr().err and not claim.exists()
    claim.mkdir()
    assert main(again) == 1 and claim.exists()
    long_ago = claim.stat().st_mtime - submit.SUBMIT_S - 1
    os.utime(claim, (long_ago, long_ago))
    assert main(again) == 0 and not claim.exists()


def test_a_claim_that_another_has_taken_over_stays(driver: FakeDriver, hdfs: LocalHdfs) -> None:
    """Of one whose submission takes longer than any may: it does not let a third one in."""
    folder = submit.prepare(make(None, {"backend": "yarn", "program": os.path.abspath("digits.py")}))
    claim = hdfs.root / RUNS / folder.path.name / "submitting"
    with contextlib.ExitStack() as second:
        with submit._claimed(folder.run):
            long_ago = claim.stat().st_mtime - submit.SUBMIT_S - 1
            os.utime(claim, (long_ago, long_ago))
            second.enter_context(submit._claimed(folder.run))
        assert claim.exists()
    assert not claim.exists()


def test_a_service_that_was_killed_as_it_submitted_tries_again(driver: FakeDriver, hdfs: LocalHdfs) -> None:
    """What the one before has left of its claim is gone in minutes: the run has not failed meanwhile."""
    folder = submit.prepare(make(None, {"backend": "yarn", "program": os.path.abspath("digits.py")}))
    (hdfs.root / RUNS / folder.path.name / "submitting").mkdir()
    with pytest.raises(YarnShare.passing, match="somebody else goes on with this run just now"):
        submit.submit(msgspec.structs.replace(folder.run.config(), run_dir=str(folder.path)), True)
    assert not driver.submitted


def test_what_others_have_put_on_the_way_stays(driver: FakeDriver, hdfs: LocalHdfs) -> None:
    def submit_meanwhile(spec: dict[str, Any]) -> str:
        hdfs.mkdirs("/user/ann/elasticflow/runs/other-1")
        raise RuntimeError("no")

    driver.submit = submit_meanwhile  # type: ignore[method-assign]
    assert main(["submit", "yarn.yaml", "digits.py"]) == 1
    assert hdfs.tree()[-1] == f"{RUNS}/other-1"


def test_an_application_whose_id_cannot_be_written_is_ended(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(path: Any, value: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(submit, "publish", publish)
    assert main(["submit", "yarn.yaml", "digits.py"]) == 1
    assert driver.killed == [ID] and hdfs.tree() == ["user", "user/ann"]


def test_who_may_not_write_is_told_so(
    driver: FakeDriver, hdfs: LocalHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    hdfs.refused = PermissionError("Permission denied: user=ann")
    assert main(["submit", "yarn.yaml", "digits.py"]) == 1
    assert "digits-1: cannot be written: Permission denied: user=ann" in capsys.readouterr().err
    assert not driver.submitted
    hdfs.refused = BlockingIOError(errno.EAGAIN, "SafeModeException: Name node is in safe mode")
    assert main(["submit", "yarn.yaml", "digits.py"]) == 1
    told = capsys.readouterr().err
    assert "digits-1: cannot be written just now: " in told and told.endswith("safe mode; try again later.\n")
    hdfs.refused = OSError(errno.EDQUOT, "The DiskSpace quota of /user/ann is exceeded")
    assert main(["submit", "yarn.yaml", "digits.py"]) == 1
    assert "is exceeded; make room there, or have its quota raised." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--run-dir", "runs/one"], "--run-dir runs/one: a run on YARN has its folder on HDFS"),
        (
            ["--run-dir", "hdfs:///user"],
            "hdfs:///user: is not empty, and holds no run (there is no run.json); choose another --run-dir.",
        ),
    ],
)
def test_folders_that_are_refused(
    options: list[str], text: str, driver: FakeDriver, hdfs: LocalHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "yarn.yaml", "digits.py", *options]) == 1
    assert f"Error: {text}" in capsys.readouterr().err
    assert not driver.submitted and hdfs.tree() == ["user", "user/ann"]


def test_a_missing_module_is_told_before_anything_is_made(
    driver: FakeDriver, hdfs: LocalHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("digits.py").write_text(f"import torch_of_nowhere\n{PROGRAM}")
    assert main(["submit", "yarn.yaml", "digits.py"]) == 1
    assert "imports torch_of_nowhere, which the containers' Python does not have" in capsys.readouterr().err
    assert not driver.submitted and hdfs.tree() == ["user", "user/ann"]


def test_a_run_goes_on_with_the_program_that_it_has(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["submit", "yarn.yaml", "digits.py"])
    run = RunDir(f"hdfs:///{RUNS}/digits-1")
    archive, before = (run.path / "program.tar.gz").read_bytes(), run.host()
    monkeypatch.setattr(leading, "is_alive", lambda run: False)
    os.unlink("digits.py")
    assert main(["submit", "--resume", "--run-dir", str(run.path)]) == 0
    after = run.host()
    assert (run.path / "program.tar.gz").read_bytes() == archive
    assert run.config().program == "program/digits.py" and run.config().yarn == {"queue": "train"}
    assert before and after and before.run != after.run
    assert " --resume;" in driver.submitted[1]["master"]["script"]


def test_of_what_a_submission_that_was_killed_has_left_it_is_said_what_it_is(
    driver: FakeDriver, hdfs: LocalHdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    """--resume would say that this is no run."""
    hdfs.root.joinpath(RUNS, "one", "keys").mkdir(parents=True)
    chosen = ["--run-dir", f"hdfs:///{RUNS}/one"]
    assert main(["submit", "yarn.yaml", "digits.py", *chosen]) == 1
    assert (
        "/one: is not empty, and holds no run (there is no run.json): somebody begins one there just now"
        in (told := capsys.readouterr().err)
    )
    assert told.endswith("or was killed at that; remove it then, or choose another --run-dir.\n")
    hdfs.root.joinpath(RUNS, "one", "keys").rmdir()
    assert main(["submit", "yarn.yaml", "digits.py", *chosen]) == 0
    assert main(["submit", "yarn.yaml", "digits.py", *chosen]) == 1
    assert "/one: is not empty; go on with the run that is in it by --resume, or" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "stays"),
    [(app("FAILED"), False), (None, False), (app("RUNNING"), True), (YarnBusy("no answer"), True)],
)
def test_what_an_application_that_died_has_left_goes_as_its_run_goes_on(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch, found: Any, stays: bool
) -> None:
    """Skein's folder, with the key to it; not that of one which only ends, or may."""

    def application(manager: object, id: str) -> Any:
        if isinstance(found, YarnBusy):
            raise found
        return found

    monkeypatch.setattr(ResourceManager, "of", lambda: FakeManager(app("RUNNING")))
    monkeypatch.setattr(FakeManager, "application", application)
    main(["submit", "yarn.yaml", "digits.py"])
    left = hdfs.root / "user" / "ann" / ".skein" / ID
    left.mkdir(parents=True)
    left.joinpath(".skein.pem").write_text("secret")
    monkeypatch.setattr(leading, "is_alive", lambda run: False)
    assert main(["submit", "--resume", "--run-dir", f"hdfs:///{RUNS}/digits-1"]) == 0
    assert left.exists() == stays and left.parent.exists()


def test_a_run_that_its_own_specification_has_begun_goes_on_with_its_copy(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is sent to the containers as what 'submit' sends is."""
    run = RunDir(f"hdfs:///{RUNS}/digits-1")
    begin(run, make(None, {"program": "digits.py", "backend": "yarn", "yarn": {"queue": "train"}}), ID)
    assert run.config().program == "digits.py"
    monkeypatch.setattr(leading, "is_alive", lambda run: False)
    source = Path("digits.py").read_bytes()
    os.unlink("digits.py")
    assert main(["submit", "--resume", "--run-dir", str(run.path)]) == 0
    assert run.config().program == "program/digits.py"
    with tarfile.open(fileobj=io.BytesIO((run.path / "program.tar.gz").read_bytes())) as archive:
        found = archive.extractfile("digits.py")
        assert archive.getnames() == ["digits.py", "helper.py"] and found and found.read() == source
    assert driver.submitted[0]["master"]["files"]["program"]["source"].endswith("/program.tar.gz")


def test_containers_run_what_was_submitted_until_another_is_named_on_purpose(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their source is the run's copy, whatever the archive that is sent to them holds."""

    def source() -> tuple[str, bytes]:
        copy = fetch(run, run.config().program_sha256)
        return copy.files[copy.program].decode(), (run.path / "program.tar.gz").read_bytes()

    Path("digits.py").write_text(PROGRAM)
    main(["submit", "yarn.yaml", "digits.py"])
    run = RunDir(f"hdfs:///{RUNS}/digits-1")
    first, archive = source()
    assert first == PROGRAM
    monkeypatch.setattr(leading, "is_alive", lambda run: False)
    Path("digits.py").write_text(f"SCALE = 2\n{PROGRAM}")
    capsys.readouterr()
    assert main(["submit", "--resume", "--run-dir", str(run.path), "digits.py"]) == 0
    assert "digits.py has changed since this run began (digits.py)" in capsys.readouterr().err
    assert source() == (first, archive) and run.config().program == "program/digits.py"
    assert main(["submit", "--resume", "--run-dir", str(run.path), "--program", "digits.py"]) == 0
    second, sent = source()
    assert second == f"SCALE = 2\n{PROGRAM}" and sent != archive
    assert run.config().program == "program/digits.py"


def test_a_run_that_goes_on_is_as_it_was_when_that_fails(
    driver: FakeDriver, hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["submit", "yarn.yaml", "digits.py"])
    folder = hdfs.root / RUNS / "digits-1"
    (folder / "journal.json").write_text("{}")
    names = ("run.json", "job.json", "journal.json", "program.tar.gz")
    before = {name: (folder / name).read_bytes() for name in names}
    monkeypatch.setattr(leading, "is_alive", lambda run: False)
    driver.refusal = RuntimeError("no")
    assert main(["submit", "--resume", "--run-dir", f"hdfs:///{RUNS}/digits-1", "--epochs", "20"]) == 1
    assert {name: (folder / name).read_bytes() for name in names} == before


# --- the program ------------------------------------------------------------------------------------


def test_kerberos_and_another_user(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit.HadoopConf, "load", lambda: SimpleNamespace(is_secure=True))
    with pytest.raises(ConfigError, match=r"yarn\.user: 'bob': with Kerberos you are who your ticket says"):
        submit._be("bob")
