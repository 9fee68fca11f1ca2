"""The disk that runs lie on: room, and whether rename, fsync and locks do what they must."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.run.config import Config
from elasticflow.storage.urls import is_url

LITTLE_BYTES, LEAST_BYTES = 5 << 30, 100 << 20
LITTLE_FILES = 10_000
SLOW_S = 0.5
APART_S = 2.0
"""So far may the clock of a file system's server be from this machine's."""


def run_folder(config: Config) -> Iterator[Diagnosis]:
    """Of these settings' runs; nothing, if they are on HDFS."""
    if is_url(config.run_dir):
        return
    wanted = Path(config.run_dir or "runs").absolute()
    folder = next((each for each in (wanted, *wanted.parents) if each.is_dir()), Path("/"))
    yield _room(folder)
    yield from _acts(folder)


def _room(folder: Path) -> Diagnosis:
    found = os.statvfs(folder)
    free, files = found.f_bavail * found.f_frsize, found.f_favail
    return room_finding(str(folder), free, files if found.f_files else LITTLE_FILES)


def room_finding(folder: str, free: int, files: int) -> Diagnosis:
    """free: bytes. files: that can still be made."""
    text = f"{folder}: {free / (1 << 30):.1f} GB free"
    cure = (
        "A checkpoint is as large as model and slots, and two are kept: make room, or name another --run-dir."
    )
    if free < LEAST_BYTES:
        return broken("disk", text, cure)
    if files < LITTLE_FILES:
        return hurts("disk", f"{text}, and room for {files:,} more files", cure)
    return hurts("disk", text, cure) if free < LITTLE_BYTES else ok("disk", text)


def _acts(folder: Path) -> Iterator[Diagnosis]:
    """Makes a folder of its own there, and removes it."""
    try:
        own = Path(tempfile.mkdtemp(prefix=".elasticflow-doctor-", dir=folder))
    except OSError as error:
        cure = "Name a folder that may be written: --run-dir, or 'run_dir' in the settings."
        yield broken("run folder", f"{folder}: {error.strerror}", cure)
        return
    try:
        yield from _tried(folder, own)
    except OSError as error:
        cure = (
            "Checkpoints become visible by renaming a file that is on the disk: use a file system that can "
            "do it."
        )
        yield broken("run folder", f"{folder}: fsync or rename: {error.strerror}", cure)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _tried(folder: Path, own: Path) -> Iterator[Diagnosis]:
    since_s = time.monotonic()
    with (own / "one").open("xb") as file:
        file.write(bytes(1 << 16))
        file.flush()
        os.fsync(file.fileno())
    (own / "one").replace(own / "two")
    descriptor = os.open(own, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    took_s = time.monotonic() - since_s
    text = f"{folder}: a file was written, synced and renamed in {took_s * 1000:.0f} ms"
    if took_s > SLOW_S:
        yield hurts(
            "run folder",
            text,
            "Steps do not wait for it, but commits do: a quicker disk, or rarer checkpoints.",
        )
    else:
        yield ok("run folder", text)
    yield from _locks(folder, own)
    now = time.time()
    (own / "three").touch()
    apart_s = abs((own / "three").stat().st_mtime - now)
    if apart_s > APART_S:
        yield hurts(
            "clock of the run folder",
            f"{folder}: its server's clock is {apart_s:.0f} s from this one's",
            "Keep both right (NTP): what is the newest there is judged by such times.",
        )
    try:
        os.link(own / "two", own / "four")
    except OSError as error:
        yield ok("hard links", f"{folder}: {error.strerror}; files get their names by renaming there")


def _locks(folder: Path, own: Path) -> Iterator[Diagnosis]:
    with (own / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP):
                yield broken(
                    "locks",
                    f"{folder}: flock: {error.strerror}",
                    "Two masters of one run are kept apart by it: mount it with locks (NFS: without "
                    "nolock; Lustre: -o flock).",
                )
                return
            raise
    yield ok("locks", f"{folder}: flock works here")
