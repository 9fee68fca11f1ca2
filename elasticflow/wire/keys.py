"""The keys of one job: made for it, in files that only its owner can read, named nowhere else."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq

from elasticflow.errors import RunError
from elasticflow.storage.hdfs import HdfsPath


class MemberKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What workers, servers and clients hold.

    CURVE keys are in Z85 text, ``data`` is 32 random bytes.
    """

    master_public: str
    member_public: str
    member_secret: str
    server_public: str
    server_secret: str
    data: bytes


class MasterKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What only the master holds."""

    secret: str
    member: MemberKeys


def make_keys() -> MasterKeys:
    """Fresh keys for a job."""
    pairs = [tuple(half.decode() for half in zmq.curve_keypair()) for _ in range(3)]
    (master, member, server) = pairs
    members = MemberKeys(
        master_public=master[0],
        member_public=member[0],
        member_secret=member[1],
        server_public=server[0],
        server_secret=server[1],
        data=secrets.token_bytes(32),
    )
    return MasterKeys(secret=master[1], member=members)


def data_password(keys: MemberKeys) -> bytes:
    """The password before the data plane, in hex: it goes over the wire as it is, the key never does."""
    return hashlib.blake2b(key=keys.data, digest_size=32, person=b"data password").hexdigest().encode()


def write_secret(path: Path | HdfsPath, data: bytes) -> None:
    """Writes a file that only its owner can read, in place of any that is there."""
    if isinstance(path, HdfsPath):
        path.replace_bytes(data, secret=True)
        return
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


Keys = TypeVar("Keys", MemberKeys, MasterKeys)


def read_keys(path: Path | HdfsPath, kind: type[Keys]) -> Keys:
    """Raises RunError if the file is missing, unreadable, damaged or open to others."""
    try:
        if path.stat().st_mode & 0o077:
            raise RunError(f"{path}: keys that others may read; make new ones, or 'chmod 600' the file.")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise RunError(f"{path}: keys cannot be read: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise RunError(f"{path}: keys are damaged: {error}.") from error
