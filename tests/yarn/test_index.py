"""Which run an application is, or was, the leader of."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.cluster import index as entries
from elasticflow.errors import UnknownError
from elasticflow.storage.webhdfs import WebHdfs
from elasticflow_yarn import index
from tests.yarn.local_hdfs import LocalHdfs

CORE = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property></configuration>"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "core-site.xml").write_text(CORE)
    return {"HADOOP_CONF_DIR": str(tmp_path / "conf"), "HADOOP_USER_NAME": "ann"}


@pytest.fixture
def hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHdfs:
    hdfs = LocalHdfs(tmp_path / "hdfs")
    hdfs.root.mkdir()
    monkeypatch.setattr(WebHdfs, "of", hdfs.of)
    return hdfs


def find(text: str, environ: dict[str, str]) -> str | None:
    """The folder of the newest run of that id or name. Raises UnknownError."""
    return next((entry.run_dir for entry in index.entries(text, environ)), None)


def application(number: int) -> str:
    return f"application_1700000000000_{number:04}"


def test_by_id_and_by_name_the_newest(environ: dict[str, str], hdfs: LocalHdfs) -> None:
    """The tenth thousandth is newer than the one before it, though not in the order of letters."""
    for number in (9999, 10000, 3):
        index.add(application(number), "digits", f"hdfs:///runs/{number}", environ)
    index.add(application(10001), "other", "hdfs:///runs/other", environ)
    assert find(application(3), environ) == "hdfs:///runs/3"
    assert find("digits", environ) == "hdfs:///runs/10000"
    assert find("9999", environ) == "hdfs:///runs/9999", "a folder's name does as well"
    assert find("letters", environ) is None and find(application(4), environ) is None


def test_it_is_its_owners_alone_and_keeps_the_newest(
    environ: dict[str, str], hdfs: LocalHdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "KEPT", 3)
    for number in range(1, 6):
        index.add(application(number), "digits", f"hdfs:///runs/{number}", environ)
    jobs = hdfs.root / "user" / "ann" / "elasticflow" / "jobs"
    assert sorted(path.name for path in jobs.iterdir()) == [f"{application(n)}.json" for n in (3, 4, 5)]
    assert jobs.stat().st_mode & 0o777 == 0o700


def test_what_cannot_be_read_is_passed_over(environ: dict[str, str], hdfs: LocalHdfs) -> None:
    index.add(application(1), "digits", "hdfs:///runs/1", environ)
    jobs = hdfs.root / "user" / "ann" / "elasticflow" / "jobs"
    (jobs / f"{application(2)}.json").write_text("{")
    (jobs / "notes.txt").write_text("")
    assert find("digits", environ) == "hdfs:///runs/1"


def test_an_index_that_cannot_be_written_is_no_reason_not_to_run(
    environ: dict[str, str], hdfs: LocalHdfs
) -> None:
    hdfs.refused = PermissionError("no")
    index.add(application(1), "digits", "hdfs:///runs/1", environ)
    hdfs.refused = None
    assert find("digits", environ) is None


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), PermissionError("no")])
def test_an_hdfs_that_cannot_be_asked_is_not_one_without_the_run(
    environ: dict[str, str], hdfs: LocalHdfs, error: OSError
) -> None:
    index.add(application(1), "digits", "hdfs:///runs/1", environ)
    hdfs.away = error
    for text in ("digits", application(1), "nothing"):
        with pytest.raises(UnknownError, match="the list of runs on HDFS cannot be read"):
            find(text, environ)
    hdfs.away = None
    assert find("digits", environ) == "hdfs:///runs/1" and find("nothing", environ) is None


def test_where_there_is_no_hadoop_it_is_quiet(tmp_path: Path) -> None:
    assert find("digits", {"PATH": str(tmp_path)}) is None
    assert find("digits", {"HADOOP_CONF_DIR": str(tmp_path / "nowhere")}) is None


def test_where_there_is_no_hadoop_somebody_who_looks_for_a_run_is_told(
    environ: dict[str, str], tmp_path: Path
) -> None:
    assert "HADOOP_CONF_DIR" in index.unasked({"PATH": str(tmp_path)})
    assert index.unasked(environ) == ""
