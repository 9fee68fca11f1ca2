"""What a leader does before its master begins, and what it tells YARN when that has ended."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticflow import leading
from elasticflow.cli.train import OPTIONS, SWITCHES
from elasticflow.errors import ConfigError, ProgramError, RunError
from elasticflow.leading import begin
from elasticflow.master.supervisor import SUPERSEDED
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, RunDir
from elasticflow.storage.webhdfs import WebHdfs
from elasticflow_yarn import ending, leader
from elasticflow_yarn.leader import application_id, lead
from elasticflow_yarn.preflight import check_imports
from tests.yarn.local_hdfs import LocalHdfs

Ends = list[tuple[int, str]]
"""Exit codes and words."""
HERE = "application_1700000000000_0007"
ELSEWHERE = "application_1700000000000_0008"
RUN = "hdfs:///user/ann/elasticflow/runs/digits-1"
PROGRAM = "import json\nimport helper\n\n\ndef model():\n    pass\n\n\ndef forward(x, params):\n    pass\n"
CORE = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property></configuration>"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Exit codes and words with which applications were ended."""
    told: Ends = []
    monkeypatch.setattr(leader, "finish", lambda code, text: told.append((code, text)))
    return told


@pytest.fixture(autouse=True)
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHdfs:
    """The working directory of an ApplicationMaster's first attempt, and its HDFS."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "digits.py").write_text(PROGRAM)
    (tmp_path / "program" / "helper.py").write_text("")
    (tmp_path / "core-site.xml").write_text(CORE)
    hdfs = LocalHdfs(tmp_path / "hdfs")
    hdfs.root.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WebHdfs, "of", hdfs.of)
    monkeypatch.setattr(leader, "end_with_parent", lambda number: None)
    for name, value in {
        "SKEIN_APPLICATION_ID": HERE,
        "CONTAINER_ID": f"container_e01_{HERE.removeprefix('application_')}_01_000001",
        "HADOOP_CONF_DIR": str(tmp_path),
        "HADOOP_USER_NAME": "ann",
    }.items():
        monkeypatch.setenv(name, value)
    return hdfs


@pytest.fixture
def masters(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """How those that are begun will end: exit code, and text. None is begun if there is nothing."""
    ends: Ends = []

    class Supervisor:
        def __init__(self, master: Any, clear: Any) -> None:
            self._master = master

        def run(self, again: bool) -> int:
            return int(self._master(again))

    def masters(run: RunDir, term: int, resume: bool, patience_s: float, ended: Any) -> Any:
        def master(again: bool) -> int:
            code, text = ends.pop(0)
            if text:
                ended(code, text)
            return code

        return master

    monkeypatch.setattr(leading, "Supervisor", Supervisor)
    monkeypatch.setattr(leading, "masters", masters)
    return ends


def arguments(**given: Any) -> argparse.Namespace:
    names = ("program", "config", *SWITCHES, *OPTIONS)
    return argparse.Namespace(**{**dict.fromkeys(names), "resume": False, **given})


def submitted(job: str = UNKNOWN) -> RunDir:
    run = RunDir(RUN)
    begin(run, Config(program="program/digits.py", backend="yarn"), job)
    return run


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "finished: all 69 steps are done"),
        (1, "failed: forward() raised ValueError: no luck"),
        (3, "stopped: as asked for"),
    ],
)
def test_yarn_is_told_how_a_run_ended(code: int, text: str, told: Ends, masters: Ends) -> None:
    submitted()
    masters.append((code, text))
    assert lead(arguments(run_dir=RUN)) == code
    assert told == [(code, text)]


def test_the_next_attempt_says_the_same_and_trains_nothing(
    told: Ends, masters: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted()
    masters.append((1, "failed: no luck"))
    assert lead(arguments(run_dir=RUN)) == lead(arguments(run_dir=RUN)) == 1
    assert told == [(1, "failed: no luck")] * 2 and not masters


def test_a_run_that_finished_has_finished_though_its_words_cannot_be_read(
    told: Ends, masters: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(run: RunDir, code: int, text: str) -> None:
        def read(run: RunDir, name: str) -> None:
            raise ConnectionRefusedError("no NameNode answers")

        monkeypatch.setattr(ending, "read", read)

    submitted()
    monkeypatch.setattr(leader, "_leave", away)
    masters.append((0, "finished: all 69 steps are done"))
    assert lead(arguments(run_dir=RUN)) == 0
    assert [(code, text.split(",")[0]) for code, text in told] == [(0, "finished")]


def test_yarn_is_told_how_a_run_ended_whose_folder_was_removed(
    told: Ends, masters: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is left that tells why."""

    def write(run: RunDir, name: str, left: ending.Ending) -> None:
        raise FileNotFoundError(2, "File does not exist", str(run.path))

    submitted()
    monkeypatch.setattr(ending, "write", write)
    masters.append((1, f"failed: its folder {RUN} was removed while it ran"))
    assert lead(arguments(run_dir=RUN)) == 1
    assert told == [(1, f"failed: its folder {RUN} was removed while it ran")]


def test_a_master_that_another_attempt_has_followed_leaves_no_end(
    told: Ends, masters: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted()
    monkeypatch.setattr(leading, "newest", lambda storage: 2)
    masters.append((1, "failed: the ApplicationMaster refuses"))
    assert lead(arguments(run_dir=RUN)) == 1
    assert ending.read(run, leader.MASTER) is None


def test_another_application_that_resumes_it_begins_anew(
    told: Ends, masters: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted()
    masters += [(1, "failed: no luck"), (0, "finished")]
    lead(arguments(run_dir=RUN))
    submitted()
    monkeypatch.setenv("SKEIN_APPLICATION_ID", ELSEWHERE)
    monkeypatch.setenv("CONTAINER_ID", f"container_{ELSEWHERE.removeprefix('application_')}_01_000001")
    assert lead(arguments(run_dir=RUN, resume=True)) == 0
    assert told[-1] == (0, "finished")


def test_a_master_that_was_superseded_tells_nobody(told: Ends, masters: Ends) -> None:
    submitted()
    masters.append((SUPERSEDED, ""))
    assert lead(arguments(run_dir=RUN)) == SUPERSEDED and not told


def test_the_run_finds_its_application_and_is_found(told: Ends, masters: Ends) -> None:
    run = submitted()
    before = run.host()
    masters.append((0, "finished"))
    lead(arguments(run_dir=RUN))
    after = run.host()
    assert before and after and (after.id, after.run) == (HERE, before.run)
    for text in ("digits", HERE):
        assert [entry.run_dir for entry in leader.index.entries(text)] == [RUN]


def test_a_plain_specification_makes_its_folder_once(told: Ends, masters: Ends, container: LocalHdfs) -> None:
    """The next attempt goes on in it."""
    masters += [(70, ""), (0, "finished")]
    lead(arguments(program="program/digits.py", epochs=3))
    run = RunDir(f"hdfs:///user/ann/elasticflow/runs/digits-{HERE}")
    keys = run.client_keys.read_bytes()
    assert run.config().program == "program/digits.py" and run.config().epochs == 3
    assert run.config().backend == "yarn"
    assert lead(arguments(program="program/digits.py", epochs=3)) == 0
    assert run.client_keys.read_bytes() == keys


def test_a_folder_that_is_anothers(told: Ends, masters: Ends) -> None:
    submitted(ELSEWHERE)
    with pytest.raises(RunError, match=f"this run goes on in application {ELSEWHERE}, and not in this one"):
        lead(arguments(run_dir=RUN))
    with pytest.raises(RunError, match="holds a run already; go on with it by --resume"):
        lead(arguments(program="program/digits.py", run_dir=RUN))
    assert [code for code, _ in told] == [1, 1]


def test_a_module_that_is_missing_is_told_in_one_line(told: Ends, container: LocalHdfs) -> None:
    """Before anything is made, where nothing is there yet."""
    Path("program/digits.py").write_text(f"import torch_of_nowhere.nn\n{PROGRAM}")
    with pytest.raises(ProgramError, match=r"digits\.py: imports torch_of_nowhere, which the containers'"):
        lead(arguments(program="program/digits.py"))
    assert told[0][0] == 1 and "torch_of_nowhere" in told[0][1]
    assert not container.tree()


def test_a_missing_module_of_a_submitted_run_is_remembered(told: Ends) -> None:
    submitted()
    Path("program/digits.py").write_text(f"import torch_of_nowhere\n{PROGRAM}")
    with pytest.raises(ProgramError):
        lead(arguments(run_dir=RUN))
    assert lead(arguments(run_dir=RUN)) == 1
    assert told[0] == told[1]


def test_what_a_program_has_beside_it_is_not_missing() -> None:
    before = list(sys.path)
    check_imports("program/digits.py")
    assert sys.path == before


def test_elsewhere_than_in_an_application_master() -> None:
    with pytest.raises(ConfigError, match=r"this is no ApplicationMaster of Skein's.*'elasticflow submit'"):
        application_id({})
