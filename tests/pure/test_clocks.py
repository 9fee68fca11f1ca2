"""Clocks that outlive what is done to a machine's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from elasticflow.process import clocks


def test_a_steady_clock_follows_one_that_is_set_forward_and_none_that_is_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that went on by the clock of its beginning promised what was to be done an hour ago."""
    wall, since_boot = [1000.0], [10.0]
    told = SimpleNamespace(time=lambda: wall[0], monotonic=lambda: since_boot[0])
    monkeypatch.setattr(clocks, "time", told)
    clock = clocks.SteadyClock()

    def later(by_wall_s: float, by_boot_s: float) -> float:
        wall[0] += by_wall_s
        since_boot[0] += by_boot_s
        return clock.now_s()

    assert later(5, 5) == 1005
    assert later(5.5, 5) == 1010, "it was read a moment later"
    assert later(3600, 5) == 4610.5, "it was set, or the machine slept"
    assert later(-7200, 5) == 4615.5
    assert later(5, 5) == 4620.5
