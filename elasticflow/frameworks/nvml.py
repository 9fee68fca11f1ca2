"""How a GPU does, as NVIDIA's management library (NVML) tells it; nothing, where that is not installed.

Source of what Xids mean: NVIDIA's catalogue of Xid errors.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from elasticflow.process.gpu_state import GpuState

LOOK_S = 5.0
"""What is younger is told again: some of it takes milliseconds to be found out."""
HARDWARE = "its hardware"
OF_PROGRAMS = frozenset({13, 31, 43, 45})
"""Xids by which a GPU ends the work of one process, whose error it is, and which is told of it; not of those
who share the GPU with it."""
XIDS = {
    48: f"memory that cannot be corrected: {HARDWARE}",
    61: f"its controller has halted: {HARDWARE}",
    62: f"its controller has halted: {HARDWARE}",
    63: "a row of its memory is to be replaced, at its next reset",
    64: f"a row of its memory cannot be replaced: {HARDWARE}",
    74: f"NVLink: {HARDWARE}",
    79: f"it has fallen off the bus: {HARDWARE}",
    92: "many errors of its memory were corrected",
    94: f"an error of its memory, which ended the program that had it: {HARDWARE}",
    95: f"an error of its memory, which any program may have had: {HARDWARE}",
    119: "its firmware does not answer: driver or hardware",
    120: "its firmware has failed: driver or hardware",
}
_SLOWED = {0x08: "by its hardware", 0x20: "by heat", 0x40: "by heat", 0x80: "by the power supply"}
"""By NVML's bits. That it keeps to its power limit is usual, and not among them."""


class Nvml:
    """One GPU. uuid: as CUDA has it, without GPU- before it. What is not known is left out.

    The library is loaded at the first look: most processes that compute on a GPU never have one.
    """

    def __init__(self, uuid: str) -> None:
        self._uuid, self._was_opened = uuid, False
        self._nvml: Any = None
        self._gpu: Any = None
        self._name = "GPU"
        self._errors: Any = None
        self._xid, self._seen_s = 0, -LOOK_S
        self._last: GpuState | None = None

    def _open(self) -> None:
        self._was_opened = True
        with contextlib.suppress(Exception):  # not installed, another version, a MIG slice, no rights
            import pynvml

            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{self._uuid}")
            self._nvml = pynvml
            with contextlib.suppress(Exception):
                errors = pynvml.nvmlEventSetCreate()
                pynvml.nvmlDeviceRegisterEvents(self._gpu, pynvml.nvmlEventTypeXidCriticalError, errors)
                self._errors = errors

    def look(self) -> GpuState | None:
        """What it does now, or up to ``LOOK_S`` ago. None: nobody tells. For one thread."""
        if not self._was_opened:
            self._open()
        if self._nvml is not None and time.monotonic() >= self._seen_s + LOOK_S:
            self._seen_s, self._last = time.monotonic(), self._look()
        return self._last

    def _look(self) -> GpuState:
        nvml = self._nvml
        try:
            self._name = str(self._ask("nvmlDeviceGetName") or self._name)
            memory = self._ask("nvmlDeviceGetMemoryInfo")
            rates = self._ask("nvmlDeviceGetUtilizationRates")
            power_mw = self._ask("nvmlDeviceGetPowerUsage")
            return GpuState(
                name=self._name,
                memory_bytes=memory and memory.used,
                memory_total_bytes=memory and memory.total,
                busy=rates and rates.gpu / 100,
                power_w=None if power_mw is None else power_mw / 1000,
                temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
                clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
                trouble=self._trouble(),
                slowed=self._slowed(),
            )
        except nvml.NVMLError_GpuIsLost:
            return GpuState(name=self._name, trouble=self._xid_trouble() or "it does not answer any more")

    def _ask(self, name: str, *arguments: Any) -> Any:
        """What the library says of it; None: nothing, as of much that only some GPUs have.

        Raises NVMLError_GpuIsLost.
        """
        try:
            return getattr(self._nvml, name)(self._gpu, *arguments)
        except self._nvml.NVMLError_GpuIsLost:
            raise
        except Exception:  # noqa: BLE001  (not of this GPU, by this driver, or for this user)
            return None

    def _trouble(self) -> str:
        """In words; "": none."""
        nvml, found = self._nvml, [self._xid_trouble()]
        kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        if errors := self._ask("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC):
            found.append(f"{errors} errors of its memory that cannot be corrected since it was started")
        _, _, pending, failed = self._ask("nvmlDeviceGetRemappedRows") or (0, 0, 0, 0)
        found.append("rows of its memory cannot be replaced any more" if failed else "")
        found.append("a row of its memory is to be replaced, at its next reset" if pending else "")
        return "; ".join(filter(None, found))

    def _slowed(self) -> str:
        """By what; "": by nothing."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return ", ".join(sorted({word for bit, word in _SLOWED.items() if reasons & bit}))

    def _xid_trouble(self) -> str:
        if self._errors is not None:
            with contextlib.suppress(Exception):  # usually: that there was none
                while True:
                    xid = int(self._nvml.nvmlEventSetWait_v2(self._errors, 0).eventData)
                    self._xid = self._xid if xid in OF_PROGRAMS else xid
        return f"Xid {self._xid}: {XIDS.get(self._xid, 'see the catalogue of NVIDIA')}" if self._xid else ""
