"""Where ``checkpoint_dir`` leads, and data in an object store: reached, and does a put do what it must?"""

from __future__ import annotations

import posixpath
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow.storage.remote import RemoteClient, client_of
from elasticflow.storage.urls import is_hdfs, is_url

Look = Callable[[str, RemoteClient, str], Iterator[Diagnosis]]
PATIENCE_S = 5.0
DATA = bytes(range(256)) * 256
REACHED = (
    "Is its address right (AWS_ENDPOINT_URL, ...), are there credentials for it in the environment or in its "
    "client's files, and may they put, read, list and remove there?"
)


def stores(config: Config) -> Iterator[Diagnosis]:
    """Nothing, if there is no ``checkpoint_dir``, and neither run nor data in a store."""
    places = [config.checkpoint_dir.rstrip("/")] if is_url(config.checkpoint_dir) else []
    if is_url(config.run_dir) and not is_hdfs(config.run_dir):
        above = posixpath.dirname(config.run_dir.rstrip("/"))
        places.append(above if is_url(above) else config.run_dir)  # as of a bucket alone
    for place in dict.fromkeys(places):
        yield from _told("checkpoints", place, _written)
    is_here = config.checkpoint_dir and not is_url(config.checkpoint_dir)
    if is_here and not Path(config.checkpoint_dir).parent.is_dir():
        cure = "Name a folder that is there, and that all machines of a run see."
        yield broken("checkpoints", f"{config.checkpoint_dir}: there is no folder above it", cure)
    if is_url(config.data) and not is_hdfs(config.data) and not any(sign in config.data for sign in "*?["):
        yield from _told("data", config.data, _readable)


def _told(subject: str, url: str, look: Look) -> Iterator[Diagnosis]:
    try:
        client, path = client_of(url, PATIENCE_S)
        yield from look(url, client, path)
    except ConfigError as error:
        yield broken(subject, str(error), "See docs/stores.md.")
    except OSError as error:
        yield broken(subject, f"{url}: {error.strerror or error}", REACHED)


def _readable(url: str, client: RemoteClient, path: str) -> Iterator[Diagnosis]:
    client.status(path)
    yield ok("data", f"{url}: is there")


def _written(url: str, client: RemoteClient, path: str) -> Iterator[Diagnosis]:
    """Makes a folder of its own there, and removes it. Raises OSError."""
    while is_hdfs(url) and path != "/" and client.find(path) is None:
        path = posixpath.dirname(path)  # of the others none has folders
    own = posixpath.join(path, f".elasticflow-doctor-{secrets.token_hex(8)}")
    since_s = time.monotonic()
    try:
        client.mkdirs(own)
        _put(client, f"{own}/one", DATA)
        found = bytearray(len(DATA))
        client.read_into(f"{own}/one", 0, memoryview(found))
        if found != DATA or [one.name for one in client.list(own)] != ["one"]:
            cure = "It gives back what was put there, at once, or is no store for checkpoints."
            yield broken("checkpoints", f"{url}: gave back other bytes, or does not list them", cure)
        took_ms = (time.monotonic() - since_s) * 1000
        yield ok("checkpoints", f"{url}: an object was put, read and listed in {took_ms:.0f} ms")
        with suppress(FileExistsError):
            _put(client, f"{own}/one", b"another")
            yield hurts(
                "checkpoints",
                f"{url}: an object was put in the place of another, though only if there were none",
                "This store knows no conditional puts: give each run a name of its own, since two that begin "
                "at once are not told apart.",
            )
    except BaseException:
        with suppress(OSError):  # nothing was made there, or it is away, which is told
            client.remove(own)
        raise
    try:
        client.remove(own)
    except OSError as error:
        cure = (
            "Allow it there: checkpoints beyond keep_checkpoints stay otherwise, and cost; and no run goes "
            "on elsewhere by its URL."
        )
        yield hurts("checkpoints", f"{url}: what was put cannot be removed: {error.strerror}", cure)


def _put(client: RemoteClient, path: str, data: bytes) -> None:
    with client.create(path) as file:
        file.write(data)
