"""The keys of one job: made for it, in files that only its owner can read, named nowhere else.

Each member has a key of its own, which follows from its name and from a root that the master alone holds.
With it a member proves its name to the master; with a pass, which the master makes of a *server's* key, to
that server, and the server proves in the same act that it is that one. Nobody but the two of them and the
master can make that pass. So a server admits a newcomer of which it has never heard, at once.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import zmq

from elasticflow.errors import RunError
from elasticflow.process.decoding import from_json
from elasticflow.storage.hdfs import HdfsPath

CLIENT = "client"
"""The name of all who ask the master from outside."""


class MemberKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker or server holds, or the run's owner as a client.

    member_public, member_secret: CURVE keys (Z85 text) that let a connection to the master in at all, the
    same for all. own: 32 bytes, this member's alone.
    """

    name: str
    master_public: str
    member_public: str
    member_secret: str
    own: bytes

    def pass_for(self, name: str, generation: int) -> Pass:
        """With which another member comes to this one, a server, in that generation."""
        return Pass(name, generation, _derived(self.own, "pass", name, str(generation)))


class MasterKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What only the master holds."""

    master_public: str
    master_secret: str
    member_public: str
    member_secret: str
    root: bytes

    def of(self, name: str) -> MemberKeys:
        """Always the same ones: whoever is master after this one knows its members."""
        return MemberKeys(
            name=name,
            master_public=self.master_public,
            member_public=self.member_public,
            member_secret=self.member_secret,
            own=_derived(self.root, "member", name),
        )

    def passes(self, name: str, servers: Iterable[str], generation: int) -> dict[str, bytes]:
        """A member's ways to the servers of a generation, by their names."""
        return {each: self.of(each).pass_for(name, generation).key for each in servers if each != name}


class Pass(NamedTuple):
    """What a member and one server know of each other in one generation, and nobody else but the master."""

    name: str
    generation: int
    key: bytes

    @property
    def user(self) -> bytes:
        """Who knocks: goes over the wire as it is."""
        return f"{self.name} {self.generation}".encode()

    @property
    def password(self) -> bytes:
        """Goes over the wire as it is, the key never does."""
        return _derived(self.key, "password").hex().encode()


def make_keys() -> MasterKeys:
    """Fresh keys for a job."""
    master, member = ([half.decode() for half in zmq.curve_keypair()] for _ in range(2))
    return MasterKeys(
        master_public=master[0],
        master_secret=master[1],
        member_public=member[0],
        member_secret=member[1],
        root=secrets.token_bytes(32),
    )


def role_of(name: str) -> str:
    """``worker``, ``server`` or ``client``: a name tells, and names are proved."""
    return CLIENT if name == CLIENT else name.rpartition("-")[0]


def _derived(key: bytes, *what: str) -> bytes:
    return hashlib.blake2b(
        "\0".join(what).encode(), key=key, digest_size=32, person=b"elasticflow key"
    ).digest()


def write_secret(path: Path | HdfsPath, data: bytes) -> None:
    """Writes a file that only its owner can read, in place of any that is there."""
    if isinstance(path, HdfsPath):
        path.replace_bytes(data, secret=True)
        return
    # Not into a file that is there: it may be open to others, or a link.
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


Keys = TypeVar("Keys", MemberKeys, MasterKeys)


def read_keys(path: Path | HdfsPath, kind: type[Keys]) -> Keys:
    """Raises RunError if the file is missing, unreadable, damaged or open to others."""
    try:
        if path.stat().st_mode & 0o077:
            raise RunError(f"{path}: keys that others may read; make new ones, or 'chmod 600' the file.")
        return from_json(path.read_bytes(), kind)
    except OSError as error:
        raise RunError(f"{path}: keys cannot be read: {error.strerror}.") from error
    except msgspec.MsgspecError as error:
        raise RunError(f"{path}: keys are damaged: {error}.") from error
