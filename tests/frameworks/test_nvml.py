"""What a GPU tells of itself, put into words: by a library as NVIDIA's, which cannot be had without a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elasticflow.frameworks import nvml
from elasticflow.frameworks.nvml import Nvml

UUID = "6f3a"


class NotSupported(Exception):
    """As ``NVMLError_NotSupported``."""


class Library:
    """As ``pynvml``. gone: the GPU is lost. lacks: what it does not know. xids: that have come up, and were
    not told of."""

    class NVMLError_GpuIsLost(Exception):
        pass

    NVML_TEMPERATURE_GPU = NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    nvmlEventTypeXidCriticalError = 8

    def __init__(self) -> None:
        self.reasons, self.errors, self.rows, self.gone = 0x4, 0, (0, 0, 0, 0), False
        self.lacks: tuple[str, ...] = ()
        self.num_opened = 0
        self.xids: list[int] = []

    def nvmlInit(self) -> None:
        self.num_opened += 1

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

        def ask(gpu: str, *more: object) -> Any:
            if self.gone:
                raise self.NVMLError_GpuIsLost
            if (what := name.removeprefix("nvmlDeviceGet")) in self.lacks:
                raise NotSupported
            return values[what]

        return ask


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
    assert (state.temperature_c, state.clock_mhz, state.trouble, state.slowed) == (66, 1980, "", "")


FIGURES = {
    "Name": [],
    "MemoryInfo": ["memory_bytes", "memory_total_bytes"],
    "UtilizationRates": ["busy"],
    "PowerUsage": ["power_w"],
    "Temperature": ["temperature_c"],
    "ClockInfo": ["clock_mhz"],
    "TotalEccErrors": [],
    "RemappedRows": [],
    "CurrentClocksEventReasons": [],
}


@pytest.mark.parametrize("lacks", FIGURES)
def test_one_figure_that_it_does_not_know_is_missing_alone(library: Library, lacks: str) -> None:
    whole = Nvml(UUID).look()
    library.lacks = (lacks,)
    state = Nvml(UUID).look()
    assert whole is not None and state is not None
    unknown = dict.fromkeys(FIGURES[lacks])
    assert state == msgspec.structs.replace(whole, **unknown | ({"name": "GPU"} if lacks == "Name" else {}))


def test_heat_is_no_trouble_but_comes_and_goes(library: Library) -> None:
    library.reasons = 0x64
    state = Nvml(UUID).look()
    assert state is not None and (state.trouble, state.slowed) == ("", "by heat")
    library.reasons = 0xA8
    state = Nvml(UUID).look()
    assert state is not None and state.slowed == "by heat, by its hardware, by the power supply"


@pytest.mark.parametrize(
    ("harm", "words"),
    [
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


def test_a_gpu_that_is_lost_keeps_its_name(library: Library) -> None:
    watched = Nvml(UUID)
    watched.look()
    library.gone = True
    state = watched.look()
    assert state is not None and (state.name, state.busy) == ("H100", None)


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


def test_it_is_opened_once_and_only_by_who_looks(library: Library) -> None:
    watched = Nvml(UUID)
    assert library.num_opened == 0
    for _ in range(2):
        watched.look()
    assert library.num_opened == 1


def test_without_the_library_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml(UUID).look() is None


def test_it_is_not_asked_all_the_time(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LOOK_S", 1000.0)
    watched = Nvml(UUID)
    first = watched.look()
    library.errors = 5
    assert watched.look() is first
