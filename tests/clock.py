"""A clock that tests turn, for modules that ask ``time``."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest


class Clock:
    """Nothing takes time but what a test says. ``time`` is what modules are given in its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        self.now_s = 1000.0
        self.time = SimpleNamespace(monotonic=self.monotonic, time=self.monotonic, sleep=self.sleep)
        for module in modules:
            monkeypatch.setattr(module, "time", self.time)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
