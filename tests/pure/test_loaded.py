"""What the benchmark of runs under load draws, and what it takes for right."""

from __future__ import annotations

import pytest

from benchmarks.loaded import PROGRAMS, Loaded, Outcome, plan_of, table


@pytest.mark.parametrize("seed", range(3))
def test_plans(seed: int) -> None:
    """Each program as often as the others, each switch both ways; no more workers than slices."""
    plans = [plan_of(seed, number) for number in range(60)]
    assert plans == [plan_of(seed, number) for number in range(60)]
    assert {plan.program for plan in plans} == set(PROGRAMS)
    for values in zip(*(plan.switches for plan in plans), strict=True):
        assert len(set(values)) > 1
    assert all(2 <= plan.switches.workers <= plan.program.slices for plan in plans)


def test_what_differs_and_what_failed() -> None:
    """A failure that says so is no wrong model; neither is good."""
    name = plan_of(1, 0).program.name
    ends = {0: (0, "a"), 6: (0, "b"), 12: (6, ""), 18: (None, ""), 24: (0, "")}
    outcomes = [Outcome(plan_of(1, number), *end, 2.0, "") for number, end in ends.items()]
    found = Loaded(1, outcomes, {name: "a"}, 8, 9.0)
    assert [one.plan.number for one in found.differing] == [6, 24]
    assert [one.plan.number for one in found.failed] == [12, 18]
    text = table(found)
    assert f"| {name} | 5 | 2 | 0: 3, 6: 1, none: 1 | 2 s | 2 |" in text
    assert "5 runs, exit codes 0: 3, 6: 1, none: 1; 2 differ, 2 failed; 8 busy" in text
