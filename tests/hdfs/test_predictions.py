"""Where predictions go on a real HDFS: whole files, and folders whose last file is ``_SUCCESS``."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.applying.target import RemoteTarget
from elasticflow.errors import ConfigError, RunError
from elasticflow.storage.webhdfs import WebHdfs

pytestmark = pytest.mark.hdfs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_file_and_a_folder(url: str, tmp_path: Path) -> None:
    client, root = WebHdfs.of(url)
    (tmp_path / "whole.parquet").write_bytes(b"bytes of a file" * 1000)
    RemoteTarget(f"{url}/new/whole.parquet", is_folder=False).publish(tmp_path / "whole.parquet")
    with client.open(f"{root}/new/whole.parquet") as file:
        assert file.read() == b"bytes of a file" * 1000
    with pytest.raises(ConfigError, match="is there already"):
        RemoteTarget(f"{url}/new/whole.parquet", is_folder=False)
    target = RemoteTarget(f"{url}/whole.parquet", is_folder=False)
    for _ in range(2):
        target.publish(tmp_path / "whole.parquet")
    (tmp_path / "whole.parquet").write_bytes(b"other bytes of a file")
    with pytest.raises(RunError, match="somebody has put .*whole.parquet there"):
        target.publish(tmp_path / "whole.parquet")
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in range(3):
        (parts / f"part-{number:06}.parquet").write_bytes(b"%d" % number)
    target = RemoteTarget(f"{url}/folder", is_folder=True)
    client.mkdirs(f"{root}/folder")
    with client.create(f"{root}/folder/part-000001.parquet") as left:
        left.write(b"of a command that was killed")
    with pytest.raises(ConfigError, match="is there already"):
        RemoteTarget(f"{url}/folder", is_folder=True)  # whose it is nobody knows
    target.work.mkdir()
    client.mkdirs(f"{root}/other")
    other = RemoteTarget(f"{url}/other", is_folder=True)
    with client.create(f"{root}/other/_SUCCESS"):
        pass
    with pytest.raises(RunError, match="somebody has put _SUCCESS there"):
        other.publish(parts)
    for _ in range(2):  # and once more, as after a kill before the place of work was removed
        RemoteTarget(f"{url}/folder", is_folder=True).publish(parts)
    there = [each.name for each in client.list(f"{root}/folder")]
    assert there == ["_SUCCESS", *(f"part-{number:06}.parquet" for number in range(3))]
    with client.open(f"{root}/folder/part-000001.parquet") as file:
        assert file.read() == b"1"
    (parts / "part-000001.parquet").write_bytes(b"2")
    with pytest.raises(RunError, match="somebody has put _SUCCESS there"):
        RemoteTarget(f"{url}/folder", is_folder=True).publish(parts)
    target.work.rmdir()
    with pytest.raises(ConfigError, match="is there already"):
        RemoteTarget(f"{url}/folder", is_folder=True)
