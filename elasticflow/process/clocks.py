"""Clocks that nobody sets, for times that outlive a process: wall clocks jump."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


def since_boot() -> tuple[str, float]:
    """Which boot of which machine this is, and how many seconds it has lasted; "": that cannot be known."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, time.clock_gettime(time.CLOCK_BOOTTIME)
    return "", 0.0


class SteadyClock:
    """Seconds since 1970, as they were known when it was made, and on from there."""

    def __init__(self) -> None:
        self._began_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        return self._began_s + time.monotonic()
