"""Runs found by the id or the name of their leader's job."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elasticflow.cluster import index as entries
from elasticflow_slurm import index
from elasticflow_slurm.client import SlurmJob, SlurmNotInstalled
from elasticflow_slurm.comments import Comment
from tests.slurm.fakes import FakeClient


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A user's home, and a SLURM that knows nothing."""
    client = FakeClient()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(index, "choose", lambda environ: client)
    return client


def run_dir(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "runs" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def age(job_id: int, seconds: float) -> None:
    """Makes an entry older."""
    path = index.folder() / f"{job_id}.json"
    at_s = path.stat().st_mtime - seconds
    os.utime(path, (at_s, at_s))


def test_a_run_is_found_by_its_jobs_id_and_name(tmp_path: Path) -> None:
    a, b = run_dir(tmp_path, "a"), run_dir(tmp_path, "b")
    index.add(11, "digits", a)
    index.add(12, "words", b)
    assert index.find("11") == index.find("digits") == a
    assert index.find("12") == index.find("words") == b
    assert index.find("1") is index.find("dig") is index.find("") is None


def test_of_one_name_the_newest_is_meant(tmp_path: Path) -> None:
    paths = [run_dir(tmp_path, str(number)) for number in range(3)]
    for number, path in enumerate(paths):
        index.add(number, "digits", path)
        age(number, 100 * abs(number - 1))
    assert index.find("digits") == paths[1]


def test_an_id_that_slurm_gave_again(tmp_path: Path) -> None:
    index.add(11, "digits", run_dir(tmp_path, "a"))
    index.add(11, "words", run_dir(tmp_path, "b"))
    assert index.find("11") == run_dir(tmp_path, "b") and index.find("digits") is None


def test_a_folder_that_is_gone_is_not_found_by_its_name(tmp_path: Path) -> None:
    old, new = run_dir(tmp_path, "old"), run_dir(tmp_path, "new")
    index.add(11, "digits", old)
    index.add(12, "digits", new)
    age(11, 100)
    new.rmdir()
    assert index.find("digits") == old
    assert index.find("12") == new, "whoever names the job itself is told that its folder is gone"


def test_nothing_is_known(tmp_path: Path) -> None:
    assert index.find("11") is None


def test_files_that_are_no_entries(tmp_path: Path) -> None:
    index.add(11, "digits", run_dir(tmp_path, "a"))
    for name, text in {
        "1.json": "",
        "2.json": "{",
        "3.json": "[1]",
        "4.json": '{"id": "x"}',
        "5": "5",
    }.items():
        (index.folder() / name).write_text(text)
    (index.folder() / "6.json").symlink_to("nowhere")
    (index.folder() / "7.json").mkdir()
    assert index.find("11") == run_dir(tmp_path, "a") and index.find("1") is None
    index.add(12, "words", run_dir(tmp_path, "b"))
    assert index.find("words") == run_dir(tmp_path, "b")


def test_old_entries_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "KEPT", 3)
    path = run_dir(tmp_path, "a")
    for number in range(6):
        index.add(number, f"name-{number}", path)
        age(number, 100 - number)
    assert [index.find(f"name-{number}") is not None for number in range(6)] == [False] * 3 + [True] * 3


def test_many_add_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "KEPT", 4)
    path = run_dir(tmp_path, "a")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: index.add(number, "digits", path), range(40)))
    assert index.find("digits") == path


def test_a_home_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    index.add(11, "digits", run_dir(tmp_path, "a"))
    assert index.find("11") is None


def test_without_a_folder_of_its_own_it_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("XDG_STATE_HOME")
        else:
            monkeypatch.setenv("XDG_STATE_HOME", value)
        monkeypatch.setenv("HOME", "/home/me")
        assert index.folder() == Path("/home/me/.local/state/elasticflow/slurm")


# --- what SLURM tells ----------------------------------------------------------------------------


def leader(job_id: int, run: Path, *, het: int | None = 0, name: str = "digits") -> SlurmJob:
    text = str(Comment("0123456789ab", "leader", str(run)))
    return SlurmJob(id=job_id, name=name, comment=text, state="RUNNING", het=het)


def test_slurm_knows_a_job_that_this_machine_does_not(tmp_path: Path, slurm: FakeClient) -> None:
    a, b = run_dir(tmp_path, "a"), run_dir(tmp_path, "b")
    worker = SlurmJob(id=15, name="digits", comment=str(Comment("0123456789ab", "worker-1")), state="RUNNING")
    slurm.known = [
        leader(11, a),
        leader(12, a, het=1),
        leader(13, b, het=None),
        worker,
        SlurmJob(id=16, state="RUNNING"),
    ]
    assert index.find("11") == a and index.find("13") == index.find("digits") == b
    assert index.find("15") is index.find("16") is index.find("99") is None


def test_slurm_is_not_asked_without_need(tmp_path: Path, slurm: FakeClient) -> None:
    index.add(11, "digits", run_dir(tmp_path, "a"))
    assert index.find("digits") and slurm.asked["jobs"] == 0


def test_a_machine_without_slurm(slurm: FakeClient) -> None:
    slurm.error = SlurmNotInstalled("no squeue")
    assert index.find("11") is None
