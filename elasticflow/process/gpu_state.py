"""How a GPU does, as it is told from process to process."""

from __future__ import annotations

import msgspec


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's GPU does; None: this GPU does not tell.

    busy: the part of the time that any kernel runs. trouble: errors, in words; "": none. slowed: by what just
    now, which comes and goes; "": by nothing.
    """

    name: str
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    busy: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: float | None = None
    trouble: str = ""
    slowed: str = ""
