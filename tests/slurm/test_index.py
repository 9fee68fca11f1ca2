"""Runs found by the id or the name of their leader's job."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from elasticflow.cluster import index as entries
from elasticflow.errors import UnknownError
from elasticflow_slurm import index
from elasticflow_slurm.client import SlurmBusy, SlurmJob, SlurmNotInstalled
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
    entry = msgspec.json.decode(path.read_bytes(), type=entries.IndexEntry)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(entry, begun_at=at_s)))
    os.utime(path, (at_s, at_s))


def find(text: str) -> Path | None:
    """The folder of the newest run of that id or name. Raises UnknownError."""
    found = entries.look_up(text, [index])
    if found.silent:
        raise UnknownError(*found.silent)
    return Path(found.entries[0].run_dir) if found.entries else None


def test_a_run_is_found_by_its_jobs_id_and_name(tmp_path: Path) -> None:
    a, b = run_dir(tmp_path, "a"), run_dir(tmp_path, "b")
    index.add(11, "digits", a)
    index.add(12, "words", b)
    assert find("11") == find("digits") == a
    assert find("12") == find("words") == b
    assert find("1") is find("dig") is None
    assert [entry.id for entry in index.entries("")] == [12, 11], "all"


def test_a_task_of_an_array_is_found_as_squeue_names_it(tmp_path: Path, slurm: FakeClient) -> None:
    """Where this home has no word of it. A list has it once."""
    for id, task in ((9, "8_0"), (8, "8_1")):
        comment = str(Comment("0123456789ab", "leader", f"/runs/{task}"))
        slurm.known.append(SlurmJob(id=id, state="RUNNING", comment=comment, task=task))
    assert find("8_1") == find("8") == Path("/runs/8_1") and find("8_0") == find("9") == Path("/runs/8_0")
    assert sorted(str(entry.id) for entry in entries.look_up("", [index]).entries) == ["8_0", "8_1"]


def test_of_one_name_the_newest_is_meant(tmp_path: Path) -> None:
    paths = [run_dir(tmp_path, str(number)) for number in range(3)]
    for number, path in enumerate(paths):
        index.add(number, "digits", path)
        age(number, 100 * abs(number - 1))
    assert find("digits") == paths[1]


def test_an_id_that_slurm_gave_again(tmp_path: Path) -> None:
    index.add(11, "digits", run_dir(tmp_path, "a"))
    index.add(11, "words", run_dir(tmp_path, "b"))
    assert find("11") == run_dir(tmp_path, "b") and find("digits") is None


def test_a_folder_that_is_gone_is_not_found_by_its_name(tmp_path: Path) -> None:
    old, new = run_dir(tmp_path, "old"), run_dir(tmp_path, "new")
    index.add(11, "digits", old)
    index.add(12, "digits", new)
    age(11, 100)
    new.rmdir()
    assert find("digits") == old
    assert find("12") == new, "whoever names the job itself is told that its folder is gone"


def test_nothing_is_known(tmp_path: Path) -> None:
    assert find("11") is None


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
    assert find("11") == run_dir(tmp_path, "a") and find("1") is None
    index.add(12, "words", run_dir(tmp_path, "b"))
    assert find("words") == run_dir(tmp_path, "b")


def test_old_entries_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "KEPT", 3)
    path = run_dir(tmp_path, "a")
    for number in range(6):
        index.add(number, f"name-{number}", path)
        age(number, 100 - number)
    assert [find(f"name-{number}") is not None for number in range(6)] == [False] * 3 + [True] * 3


def test_many_add_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "KEPT", 4)
    path = run_dir(tmp_path, "a")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: index.add(number, "digits", path), range(40)))
    assert find("digits") == path


def test_a_home_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    index.add(11, "digits", run_dir(tmp_path, "a"))
    assert find("11") is None


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
    assert find("11") == a and find("13") == find("digits") == b
    assert find("15") is find("16") is find("99") is None


def test_slurm_is_not_asked_without_need(tmp_path: Path, slurm: FakeClient) -> None:
    index.add(11, "digits", run_dir(tmp_path, "a"))
    assert find("digits") and slurm.asked["jobs"] == 0


def test_a_machine_without_slurm(slurm: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.error = SlurmNotInstalled("no squeue")
    monkeypatch.setenv("PATH", "/nowhere")
    assert index.unasked() == "SLURM was not asked: there is no squeue here"
    assert find("11") is None


def test_a_slurm_that_does_not_answer_is_not_one_without_the_job(tmp_path: Path, slurm: FakeClient) -> None:
    slurm.error = SlurmBusy("no answer")
    with pytest.raises(UnknownError, match="SLURM does not answer: no answer"):
        find("11")
    index.add(11, "digits", run_dir(tmp_path, "a"))
    assert find("11") == find("digits") == run_dir(tmp_path, "a"), "this home knows it"
    assert not index.is_of(12, run_dir(tmp_path, "a")), "a leader begins all the same"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_looked_at_may_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As where a network file system is away."""
    index.add(11, "digits", run_dir(tmp_path, "a"))

    def stale(path: str) -> os.stat_result:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(index, "os", SimpleNamespace(stat=stale, environ=os.environ))
    assert find("digits") == run_dir(tmp_path, "a")


def test_several_runs_of_one_name(tmp_path: Path) -> None:
    """A run that went on has several jobs, and is one run."""
    for job_id, name in ((11, "a"), (12, "b"), (13, "a")):
        index.add(job_id, "digits", run_dir(tmp_path, name))
    found = entries.look_up("digits", [index]).entries
    assert [(entry.id, Path(entry.run_dir).name) for entry in found] == [(13, "a"), (12, "b")]
