"""What memory a process may have, as Linux tells it in its several ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.process.available import HOST, available_memory

MB = 1 << 20
MEMINFO = "MemTotal: 2048 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\nHugePages_Total: 0\n"
FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file {}\ntotal_inactive_file 7\n"),
    2: ("memory.max", "memory.current", "active_file {}\ninactive_file 7\n"),
}


class Linux:
    """What of /proc and /sys/fs/cgroup is looked at."""

    def __init__(self, folder: Path, cgroup: str = "") -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text(MEMINFO)
        (self.proc / "self/cgroup").write_text(cgroup)

    def limit(self, path: str, most: object, used: int, cached: int = 0, *, version: int = 2) -> None:
        """Of one cgroup; ``cached`` of what it uses can be dropped."""
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        limit, use, stat = FILES[version]
        (folder / limit).write_text(f"{most}\n")
        (folder / use).write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 5\n" + stat.format(cached - 7))

    def available(self) -> dict[str, int]:
        """Without the numbers of the cgroups' folders."""
        found = available_memory(self.proc, self.cgroups)
        return {name.partition(" (")[0]: value for name, value in found.items()}


def test_here() -> None:
    """Linux tells at least what the host has."""
    assert available_memory()[HOST] > 10 * MB


def test_without_cgroups(tmp_path: Path) -> None:
    assert Linux(tmp_path, "").available() == {HOST: MB}


def test_cgroup_v2_counts_each_limit_above_a_process(tmp_path: Path) -> None:
    linux = Linux(tmp_path, "0::/user/job/step\n")
    linux.limit("user/job/step", "max", 5 * MB)
    linux.limit("user/job", 9 * MB, 4 * MB, cached=MB)
    linux.limit("user", 3 * MB, 4 * MB)
    linux.limit("other", 1, 1)
    assert linux.available() == {HOST: MB, "cgroup /user/job": 6 * MB, "cgroup /user": 0}


def test_cgroup_v1(tmp_path: Path) -> None:
    linux = Linux(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/job/step\n0::/unused\n")
    linux.limit("memory/job/step", 8 * MB, 4 * MB, cached=MB, version=1)
    linux.limit("memory/job", 9223372036854771712, 4 * MB, version=1)
    assert linux.available() == {HOST: MB, "cgroup /memory/job/step": 5 * MB}


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_that_is_shown_its_path_outside(tmp_path: Path, version: int) -> None:
    linux = Linux(tmp_path, "4:memory:/docker/abc\n" if version == 1 else "0::/docker/abc\n")
    linux.limit("memory" if version == 1 else "", 8 * MB, 4 * MB, cached=7, version=version)
    (left,) = (value for name, value in linux.available().items() if name != HOST)
    assert left == 4 * MB + 7


def test_two_containers_have_two_names(tmp_path: Path) -> None:
    names = set()
    for number in (1, 2):
        linux = Linux(tmp_path / str(number), "0::/\n")
        linux.limit("", 8 * MB, 4 * MB)
        names |= available_memory(linux.proc, linux.cgroups).keys()
    assert len(names) == 3, "and share the host"


def test_what_cannot_be_known_is_left_out(tmp_path: Path) -> None:
    linux = Linux(tmp_path, "0::/job\n")
    linux.limit("job", 8 * MB, 4 * MB)
    (linux.cgroups / "job/memory.stat").unlink()
    (linux.proc / "meminfo").write_text("MemTotal: 5 kB\n")
    assert linux.available() == {}
    assert available_memory(tmp_path / "no", tmp_path / "such") == {}
