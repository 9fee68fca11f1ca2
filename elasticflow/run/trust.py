"""Whose folder a run lies in: what is in it names programs, so nobody else may have a hand in it.

As ssh looks at its files: before anything of them is read. Folders above the run's are not looked at: who may
put another folder in its place cannot make it yours.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from elasticflow.errors import RunError
from elasticflow.storage.hdfs import HdfsPath

if TYPE_CHECKING:
    from elasticflow.storage.remote import FileStatus

ROOT, HDFS_ROOT = 0, "hdfs"
FOR_PEOPLE = ("logs", "timelines")
"""Folders of which nothing is executed, and that may hold very many files."""


class Person(NamedTuple):
    """Whoever runs the command. private_gid: of a group of theirs alone, as many systems give to each."""

    uid: int
    private_gid: int | None

    @classmethod
    def me(cls) -> Person:
        uid, gid = os.geteuid(), os.getegid()
        try:
            name, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
        except KeyError:  # as in a container that knows no names
            return cls(uid, None)
        alone = group.gr_name == name and not set(group.gr_mem) - {name}
        return cls(uid, gid if alone else None)


def objection(me: Person, uid: int, gid: int, mode: int, enclosed: bool = False) -> str:
    """Why a file or folder is not to be trusted, to follow its name; "" if it is.

    enclosed: it is in a folder that nobody else may enter, where its mode does not matter.
    """
    if uid not in (me.uid, ROOT):
        return f"belongs to {name_of(uid)}, and not to you or root"
    if enclosed:
        return ""
    if mode & 0o002 or (mode & 0o020 and gid != me.private_gid):
        who = "everybody" if mode & 0o002 else "its group"
        return f"may be written by {who} (mode {mode & 0o7777:04o}; 'chmod -R go-w' ends that)"
    return ""


def is_anothers(me: Person, path: Path) -> bool:
    """Whether a folder is there, and neither mine nor root's."""
    try:
        return path.stat().st_uid not in (me.uid, ROOT)
    except OSError:
        return False


def check_trust(path: Path | HdfsPath) -> None:
    """Raises RunError if somebody else has a hand in the run's folder; one that is not there is fine."""
    for place, why in _objections(path):
        if why:
            raise RunError(
                f"{place}: {why}. What a run's folder holds is executed as you. Look at it; to go on all the "
                "same, add --trust."
            )


def _objections(path: Path | HdfsPath) -> Iterator[tuple[object, str]]:
    if isinstance(path, Path):
        me = Person.me()
        for place, found, enclosed in _walk(path):
            yield place, objection(me, found.st_uid, found.st_gid, found.st_mode, enclosed)
    else:
        name = ""
        for each in path.walk(FOR_PEOPLE):
            name = name or path.whoami()
            yield each.path, _hdfs_objection(name, each)


def _hdfs_objection(me: str, found: FileStatus) -> str:
    if found.owner not in (me, HDFS_ROOT):
        return f"belongs to {found.owner}, and not to you ({me}) or {HDFS_ROOT}"
    if found.permission & 0o022:
        return f"may be written by others (mode {found.permission:04o}; 'hdfs dfs -chmod -R go-w' ends that)"
    return ""


def _walk(path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """The folder first, then what is in it, and whether it is enclosed. Each folder is entered once.

    Links are followed; what they lead to is not enclosed by where they lie.
    """
    waiting, seen = [(path, False)], set[tuple[int, int]]()
    while waiting:
        place, enclosed = waiting.pop()
        try:
            enclosed = enclosed and not place.is_symlink()
            found = place.stat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # it is not there (any more), or cannot be used either: whoever tries says so
        yield place, found, enclosed
        if stat.S_ISDIR(found.st_mode) and (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            enclosed = enclosed or not found.st_mode & 0o077
            with contextlib.suppress(PermissionError):  # nor can anything in it be used
                names = sorted(place.iterdir())
                waiting += [
                    (each, enclosed) for each in names if place != path or each.name not in FOR_PEOPLE
                ]


def name_of(uid: int) -> str:
    """Of a user, for people."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
