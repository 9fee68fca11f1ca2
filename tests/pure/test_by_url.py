"""Runs that are named by a URL: where their folder and their checkpoints lie."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elasticflow.checkpoint import commit
from elasticflow.checkpoint.place import PlaceOwner, check, owner_of, settle, take_over
from elasticflow.cli import by_url
from elasticflow.cli.by_url import placed, resumed, run_of
from elasticflow.cli.main import main
from elasticflow.cli.train import settings
from elasticflow.cli.ui.command import _shelf
from elasticflow.cli.verbs import parser
from elasticflow.errors import CheckpointError, ConfigError, RunError, UnknownError
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.work import work_of
from elasticflow.step.schedule import SLICING
from elasticflow.storage import storage_of
from elasticflow.storage.refusals import Passing, refusal
from elasticflow_slurm import submit as slurm_submit
from tests.checkpoint.saving import make_manifest, make_model, write_parts


@pytest.mark.parametrize(
    ("run_dir", "folder", "base", "several"),
    [
        ("s3://bucket/runs/night-1", "runs/night-1", "s3://bucket/runs", "s3://bucket/runs/night-1"),
        ("s3://bucket/runs/night-1/", "runs/night-1", "s3://bucket/runs", "s3://bucket/runs/night-1"),
        ("s3://bucket/night-1", "runs/night-1", "s3://bucket", "s3://bucket/night-1"),
        ("hdfs:///user/me/night-1", "runs/night-1", "hdfs:///user/me", "hdfs:///user/me/night-1"),
        ("hdfs://nn:8020/night-1", "runs/night-1", "hdfs://nn:8020", "hdfs://nn:8020/night-1"),
        ("runs/night-1", "runs/night-1", "", ""),
        ("", "", "", ""),
    ],
)
def test_where_things_lie(run_dir: str, folder: str, base: str, several: str) -> None:
    chosen = placed(Config(run_dir=run_dir), "runs")
    assert (chosen.run_dir, chosen.checkpoint_dir) == (folder, base)
    chosen = placed(Config(run_dir=run_dir), "runs", several=True)
    assert (chosen.run_dir, chosen.checkpoint_dir) == (folder, several)


@pytest.mark.parametrize(
    "run_dir", ["s3://bucket", "s3://bucket/", "s3://bucket/runs/.", "hdfs:///", "hdfs:///name", "s3://"]
)
def test_a_url_without_a_folder(run_dir: str) -> None:
    with pytest.raises(ConfigError, match="bucket"):
        placed(Config(run_dir=run_dir), "runs")


def test_what_says_the_same_twice_or_two_things() -> None:
    url = "s3://bucket/runs/night-1"
    same = placed(Config(run_dir=url, checkpoint_dir="s3://bucket/runs/"), "runs")
    assert same.checkpoint_dir == "s3://bucket/runs"
    with pytest.raises(ConfigError, match="with run_dir s3://bucket/runs/night-1 checkpoints lie there"):
        placed(Config(run_dir=url, checkpoint_dir="s3://bucket/other"), "runs")
    with pytest.raises(ConfigError, match="holds a secret"):
        placed(Config(run_dir="s3://me:word@bucket/runs/night-1"), "runs")


def refused_by(place: str, run: str, claim: PlaceOwner) -> str:
    with pytest.raises(ConfigError, match="this run not any more") as refusal:
        check(place, run, claim.id)
    return str(refusal.value)


def test_who_is_sent_to_a_url_may_go_there(tmp_path: Path) -> None:
    """Not where checkpoints lie in a folder, nor on YARN, where the URL of a run is that of its folder."""
    folder, store = str(tmp_path / "of" / "night-1"), f"file://{tmp_path}/store/night-1"
    on_hdfs = "hdfs:///user/me/night-1"
    for place, run in ((folder, str(tmp_path / "a")), (store, str(tmp_path / "a")), (store, on_hdfs)):
        first = take_over(place, run) if place == store and run == on_hdfs else settle(place, run)
        take_over(place, str(tmp_path / "b"))
        is_sent = place == store and run != on_hdfs
        assert ("--resume --run-dir" in refused_by(place, run, first)) == is_sent
        with pytest.raises(ConfigError, match="holds the checkpoints of a run already") as refusal:
            settle(place, run)
        assert ("--resume --run-dir" in str(refusal.value)) == is_sent


def test_a_slash_too_many_names_the_same_run(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store//night-1"
    chosen = placed(Config(run_dir=url), tmp_path)
    RunDir(chosen.run_dir).create(chosen)
    for each in (url, f"{url}/", url.replace("//night", "/night")):
        assert run_of(each).path == Path(chosen.run_dir)


def test_one_run_is_listed_and_shown_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/store/night-1"
    chosen = placed(Config(run_dir=url, program="a.py"), "runs")
    RunDir(chosen.run_dir).create(chosen)
    assert main(["runs", url]) == 0
    assert "night-1" in capsys.readouterr().out
    assert list(_shelf(parser().parse_args(["ui", url])).runs()) == ["night-1"]
    assert main(["runs", f"{url}-none"]) == 1
    assert "there is no run, and no checkpoints of one" in capsys.readouterr().err


def test_a_store_that_is_called_otherwise_has_the_same_run(tmp_path: Path) -> None:
    """As hdfs:///x and hdfs://nn:8020/x are one place: the claim tells."""
    url = f"file://{tmp_path}/store/night-1"
    chosen = placed(Config(run_dir=url), tmp_path)
    RunDir(chosen.run_dir).create(chosen)
    assert run_of(f"local://{tmp_path}/store/night-1").path == Path(chosen.run_dir)


def test_a_folder_that_was_moved_keeps_its_claim(tmp_path: Path) -> None:
    """Though it was lost whether the store has heard of it."""
    url = f"file://{tmp_path}/store/night-1"
    first = settle(url, str(tmp_path / "night-1"))
    for _ in range(2):
        moved = check(url, str(tmp_path / "moved"), first.id)
        assert moved.id == first.id and moved.run == str(tmp_path / "moved")
    assert owner_of(url) == moved


def test_who_may_not_look_is_told_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not pass, and a script that waits for it would wait for hours."""

    def denied(place: str) -> None:
        raise PermissionError(errno.EACCES, "Access Denied", place)

    monkeypatch.setattr(by_url, "owner_of", denied)
    with pytest.raises(RunError, match="Access Denied") as refusal:
        run_of(f"file://{tmp_path}/store/night-1")
    assert not isinstance(refusal.value, UnknownError)


def test_checkpoints_on_hdfs_that_cannot_be_read_just_now_are_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the DataNodes that have them are away. A run on YARN of that name there is not."""

    def away(place: str) -> None:
        told = {"exception": "IOException", "message": "No active nodes contain this block"}
        said = msgspec.json.encode({"RemoteException": told})
        answer = refusal(403, said, place, "NameNode nn", "ann")
        assert isinstance(answer, Passing)
        raise answer.error

    monkeypatch.setattr(by_url, "owner_of", away)
    monkeypatch.setattr(by_url, "RunDir", lambda _: SimpleNamespace(settings=Path("/nowhere/run.json")))
    with pytest.raises(UnknownError, match=r"night-1: cannot be read: .*the DataNodes that have it are away"):
        run_of("hdfs://nn:8020/user/me/night-1")


def test_as_many_slices_as_the_first_worker_has_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command goes on elsewhere, though what it left open was decided in a folder that is gone."""
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/store/night-1"
    settle(url, "/gone/night-1")
    storage, model, chosen = storage_of(url), make_model(), Config(run_dir=url, program="a.py")
    work = {**work_of(chosen.fixed(2)), "slicing": SLICING}
    commit(storage, make_manifest(model, 100, write_parts(storage, model, 100, 1), work=work))
    other = msgspec.structs.replace(chosen, slices=4)
    with pytest.raises(CheckpointError, match="was made with slices 2, now it is 4"):
        resumed(url, lambda: other, "runs", anew=False, only_look=False)
    with pytest.raises(ConfigError, match="4 workers cannot share 2 slices"):
        resumed(
            url, lambda: msgspec.structs.replace(chosen, workers="4"), "runs", anew=False, only_look=False
        )
    assert not Path("runs").exists()
    with storage.create("checkpoints/step-0000000200/manifest.json") as file:
        file.write(b"damaged")
    assert (
        resumed(chosen.run_dir, lambda: chosen, "runs", anew=False, only_look=False).config().num_slices == 2
    )


def test_what_only_makes_sense_with_the_settings_of_a_run_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on by its URL as by its folder: what it had stands, also where the command does not say it."""
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("def model(): ...\ndef forward(x, params): ...\n")
    url = f"file://{tmp_path}/store/night-1"
    asynchronous = Config(run_dir=url, program=f"{tmp_path}/a.py", mode="async", staleness=3, workers="2")
    chosen = placed(asynchronous, "runs")
    RunDir(chosen.run_dir).create(chosen)
    words = ["train", "--resume", "--run-dir", url, "--staleness", "7", "--workers", "4"]
    again = settings(parser().parse_args(words))
    assert (again.mode, again.staleness, again.workers) == ("async", 7, "4")
    assert RunDir(again.run_dir).folder == tmp_path / "runs/night-1"


def test_where_nothing_can_be_written_nobody_loses_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/store/night-1"
    before = settle(url, "/gone/night-1")

    def full(path: Path, value: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(by_url, "publish", full)
    with pytest.raises(RunError, match="night-1: cannot be written: No space left on device"):
        resumed(url, lambda: Config(run_dir=url, program="a.py"), "runs", anew=False, only_look=False)
    assert owner_of(url) == before and not Path("runs/night-1").exists()


def test_wrong_usage_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"file://{tmp_path}/store/night-1"
    before = settle(url, "/gone/night-1")
    Path("a.py").write_text("")
    assert main(["submit", "a.py", "--service", "s", "--resume", "--run-dir", url]) == 1
    assert "--service: not together with --resume" in capsys.readouterr().err
    assert owner_of(url) == before and not Path("runs").exists()


@pytest.mark.parametrize("cluster", ["slurm", "nowhere"])
def test_what_the_cluster_would_not_take_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cluster: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_submit, "choose", lambda environ: None)
    url = f"file://{tmp_path}/store/night-1"
    before = settle(url, "/gone/night-1")
    Path("a.py").write_text("def model(): ...\ndef forward(x, params): ...\n")
    words = ["submit", "a.py", "--on", cluster, "--resume", "--run-dir", url, "--data", "none.npz"]
    assert main(words) == 1
    said = "none.npz" if cluster == "slurm" else "'nowhere' is no cluster"
    assert said in capsys.readouterr().err
    assert owner_of(url) == before and not Path("runs").exists()
