"""How much memory a process may still take: of its host's, and of each cgroup's that it is in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HOST = "the host"
UNLIMITED = 1 << 60
"""cgroup v1 writes no limit as a number near 2**63."""
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))
_V2 = ("memory.max", "memory.current", ("active_file", "inactive_file"))


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> dict[str, int]:
    """Bytes by what grants them: ``HOST``, and each cgroup with a limit; without what cannot be known.

    Two processes of one host share what has the same name. Cached files are free: the kernel drops them.
    Source: Linux's Documentation/filesystems/proc.rst and admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst.
    """
    found: dict[str, int] = {}
    with suppress(OSError, KeyError, ValueError):
        found[HOST] = _numbers(proc / "meminfo")["MemAvailable:"] * 1024
    with suppress(OSError):
        for folder, files in _own_cgroups((proc / "self/cgroup").read_text(), cgroups):
            with suppress(OSError, KeyError, ValueError):  # it has no limit, or is not to be seen from here
                # The path alone may be "/" in each of several containers.
                name = f"cgroup /{folder.relative_to(cgroups)} (inode {folder.stat().st_ino})"
                found[name] = _left(folder, *files)
    return found


def _own_cgroups(text: str, top: Path) -> Iterator[tuple[Path, tuple[str, str, tuple[str, str]]]]:
    """This process's cgroups of memory, and all above them, with the names of their files."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, files = (top / "memory", _V1) if controllers else (top, _V2)
        folder = root / path.lstrip("/")
        yield from ((each, files) for each in (folder, *folder.parents) if each.is_relative_to(root))


def _left(folder: Path, limit: str, use: str, cached: tuple[str, ...]) -> int:
    """Raises ValueError if there is no limit, and OSError or KeyError if there is no telling."""
    most = int((folder / limit).read_text())
    if most >= UNLIMITED:
        raise ValueError
    stat = _numbers(folder / "memory.stat")
    return max(0, most - int((folder / use).read_text()) + sum(stat[name] for name in cached))


def _numbers(path: Path) -> dict[str, int]:
    """Of lines that are a name, a number, and maybe a unit."""
    return {name: int(value) for name, value, *_ in map(str.split, path.read_text().splitlines())}
