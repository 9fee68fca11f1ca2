"""What a GPU tells of itself, put into words: by a library as NVIDIA's, which cannot be had without a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.frameworks import nvml
from elasticflow.frameworks.nvml import Nvml

UUID = "6f3a"


class Library:
    """As ``pynvml``. gone: the GPU does not answer. xids: that have come up, and were not told of."""

    NVML_TEMPERATURE_GPU = NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.reasons, self.errors, self.rows, self.gone = 0x4, 0, (0, 0, 0, 0), False
        self.xids: list[int] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == f"GPU-{UUID}"
        return uuid

    def nvmlEventSetCreate(self) -> list[int]:
        return self.xids

    def nvmlDeviceRegisterEvents(self, gpu: str, kind: int, events: list[int]) -> None:
        assert kind == self.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not events:
            raise RuntimeError("Timeout")
        return SimpleNamespace(eventData=events.pop(0))

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = {
            "Name": "H100",
            "MemoryInfo": SimpleNamespace(used=61 << 30, total=80 << 30),
            "UtilizationRates": SimpleNamespace(gpu=98),
            "PowerUsage": 640_000,
            "Temperature": 66,
            "ClockInfo": 1980,
            "TotalEccErrors": self.errors,
            "RemappedRows": self.rows,
            "CurrentClocksEventReasons": self.reasons,
        }
        if self.gone:
            raise RuntimeError("GPU is lost")
        return lambda gpu, *more: values[name.removeprefix("nvmlDeviceGet")]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)  # type: ignore[arg-type]
    monkeypatch.setattr(nvml, "LOOK_S", 0.0)
    return made


def test_what_it_does(library: Library) -> None:
    state = Nvml(UUID).look()
    assert state is not None
    assert (state.name, state.memory_bytes, state.busy, state.power_w) == ("H100", 61 << 30, 0.98, 640.0)
    assert (state.temperature_c, state.clock_mhz, state.trouble) == (66, 1980, "")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ({"reasons": 0x64}, "slowed by heat"),
        ({"errors": 2}, "2 errors of its memory that cannot be corrected"),
        ({"rows": (0, 1, 1, 0)}, "a row of its memory is to be replaced"),
        ({"rows": (0, 9, 0, 1)}, "rows of its memory cannot be replaced any more"),
        ({"gone": True}, "it does not answer any more"),
    ],
)
def test_its_troubles(library: Library, harm: dict[str, Any], words: str) -> None:
    watched = Nvml(UUID)
    vars(library).update(harm)
    state = watched.look()
    assert state is not None and words in state.trouble


def test_the_last_of_its_errors_is_named_from_then_on(library: Library) -> None:
    watched = Nvml(UUID)
    library.xids += [43]
    state = watched.look()
    assert state is not None and state.trouble == "", "another process' error"
    library.xids += [92, 79, 31]
    for _ in range(2):
        state = watched.look()
        assert state is not None and state.trouble == "Xid 79: it has fallen off the bus: its hardware"
    library.gone = True
    state = watched.look()
    assert state is not None and state.trouble.startswith("Xid 79")


def test_without_the_library_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml(UUID).look() is None


def test_it_is_not_asked_all_the_time(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LOOK_S", 1000.0)
    watched = Nvml(UUID)
    first = watched.look()
    library.errors = 5
    assert watched.look() is first
