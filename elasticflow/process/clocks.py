"""A clock that nobody sets, for times that outlive a process: wall clocks jump."""

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
