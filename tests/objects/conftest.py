"""A folder of its own in an S3 for every test, and a client whose patience is short."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from elasticflow.storage import RemoteStorage
from tests.clusters.s3 import S3Server

BUCKET = "bucket"


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server, which this process's environment names; it is well again afterwards."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    yield s3_server
    s3_server.heal()


@pytest.fixture
def fs(s3: S3Server) -> Any:
    """The store as its own client sees it."""
    found = fsspec.filesystem("s3")
    if not found.exists(BUCKET):
        found.mkdir(BUCKET)
    return found


@pytest.fixture
def url(s3: S3Server, fs: Any) -> Iterator[str]:
    """Of a folder that is there: there is something in it, which nobody is shown."""
    folder = f"{BUCKET}/{secrets.token_hex(4)}"
    fs.pipe_file(f"{folder}/.there.partial", b"")
    yield f"s3://{folder}"
    s3.heal()
    fs.invalidate_cache()
    if fs.exists(folder):  # the server has all in memory
        fs.rm(folder, recursive=True)


@pytest.fixture
def storage(url: str) -> RemoteStorage:
    return RemoteStorage(url, patience_s=0.5)


@pytest.fixture
def raw(fs: Any) -> Any:
    """Names that are really in a folder, those of uploads that are under way among them."""

    def names(storage: RemoteStorage, folder: str) -> list[str]:
        where = "/".join(part for part in (storage.url.removeprefix("s3://"), folder) if part)
        fs.invalidate_cache()
        found = [one["name"] for one in fs.ls(where, detail=True)] if fs.exists(where) else []
        prefix = where.partition("/")[2] + "/"
        uploads = fs.call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=prefix).get("Uploads", [])
        found += [one["Key"] for one in uploads]
        return sorted(name.rpartition("/")[2] for name in found if not name.endswith(".there.partial"))

    return names
