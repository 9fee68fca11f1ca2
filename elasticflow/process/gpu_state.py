"""How a GPU does, as it is told from process to process."""

from __future__ import annotations

import msgspec


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's GPU does. busy: the part of the time that any kernel runs. trouble: "": none."""

    name: str
    memory_bytes: int = 0
    memory_total_bytes: int = 0
    busy: float = 0.0
    power_w: float = 0.0
    temperature_c: float = 0.0
    clock_mhz: float = 0.0
    trouble: str = ""
