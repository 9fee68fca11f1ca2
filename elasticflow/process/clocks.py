"""Clocks that nobody sets, for times that outlive a process: wall clocks jump."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


def since_boot() -> tuple[str, float]:
    """Which boot of which machine this is, and how many seconds it has lasted; "": that cannot be known."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, time.clock_gettime(time.CLOCK_BOOTTIME)
    return "", 0.0


def process_began_ticks(pid: int) -> int:
    """When a process began, or was forked, in the kernel's clock ticks. Raises OSError if there is none."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[19])  # the name, in brackets, may hold anything


def process_began_s() -> float:
    """When this process did: seconds since 1970, as the clock is now."""
    began_s = process_began_ticks(os.getpid()) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


LEAP_S = 1.0
"""A wall clock that is ahead by less is not followed: it was not set, but read a moment later."""


class SteadyClock:
    """Seconds since 1970, which never go back: where a wall clock is set back, it goes on from there.

    Where that is ahead, it was set, or this machine slept: moments that people name have come nearer.
    """

    def __init__(self) -> None:
        self._began_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        began_s = time.time() - time.monotonic()
        if began_s > self._began_s + LEAP_S:
            self._began_s = began_s
        return self._began_s + time.monotonic()
