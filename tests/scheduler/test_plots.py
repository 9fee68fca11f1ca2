"""Pictures are made, and show what the schedule says."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticflow.errors import ConfigError
from elasticflow.scheduler import plots
from elasticflow.scheduler.cluster import shape_of
from elasticflow.scheduler.curves import Curve
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.schedule import DecisionTime, JobSchedule, Outage, Outcome, Segment


def _schedule() -> JobSchedule:
    return JobSchedule(
        policy="by hand",
        shape=shape_of(16),
        segments=(
            Segment("a", (0, 1, 2, 3), 0.0, 3600.0, 10.0, 100.0),
            Segment("b", (4, 5, 12), 1800.0, 7200.0, 5.0, 50.0),
        ),
        outcomes=(
            Outcome("a", 0.0, 3700.0, 0.0, 3600.0),
            Outcome("b", 0.0, 5000.0, 0.0, 7200.0, "node 1 was lost"),
            Outcome("c", 10.0, 20.0, None, None, "rejected: would finish 14 min late even with 64 GPUs"),
            Outcome("d", 10.0, 20.0, None, None, "rejected: would finish 1.5 h late even with 8 GPUs"),
            Outcome("e", 10.0, None, None, None),
        ),
        outages=(Outage(1, 600.0, 900.0),),
        decision_times=tuple(DecisionTime(float(n), 1e-4 * n, n) for n in range(1, 200)),
    )


def test_every_picture_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = plots.all_figures(_schedule())
    assert set(figures) == {"gantt", "utilisation", "deadlines", "decisions"}
    for name, figure in figures.items():
        plots.save(figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_schedule_of_nothing_has_pictures_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    nothing = JobSchedule("none", shape_of(8), (), ())
    for name, figure in plots.all_figures(nothing).items():
        plots.save(figure, tmp_path / f"{name}.png")


def test_several_policies_and_a_bound_in_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plots.save(plots.deadlines([_schedule(), _schedule()], bound=0.9), tmp_path / "both.png")


def test_causes() -> None:
    late = "rejected: would finish … late even with … GPUs"
    assert list(plots.causes(_schedule().outcomes)) == [plots.AT_ONCE, plots.LATE, late, late]
    assert list(plots.causes(_schedule().outcomes, {"c"}))[2:] == [plots.NEVER, late]
    later = Outcome("f", 0.0, 9.0, 1.0, 8.0)
    assert list(plots.causes([later])) == [plots.LATER]


def test_jobs_that_were_never_possible() -> None:
    curve = Curve((1, 2, 8), (1.0, 1.5, 5.0))
    ends_s = {"easy": 100.0, "hard": 30.0, "never": 9.0, "best effort": None}
    jobs = [Job(name, curve, 50, 0.0, end_s) for name, end_s in ends_s.items()]
    assert plots.impossible(jobs, 8) == {"never"}
    assert plots.impossible(jobs, 4) == {"never", "hard"}


def test_rare_causes_are_one() -> None:
    words = "zero one two three four five six seven eight".split()
    outcomes = [Outcome(word, 0.0, 1.0, None, None, f"because of {word}") for word in words]
    found = list(plots.causes(outcomes))
    assert found.count("rejected: other reasons") == len(words) - plots.MOST_REASONS


def test_gpus_that_lie_side_by_side_are_one_bar() -> None:
    assert list(plots._runs((5, 4, 12, 0))) == [(0, 1), (4, 2), (12, 1)]
    assert list(plots._runs(())) == []


def test_levels_and_means() -> None:
    times_s, (held, none) = plots.levels([[(0.0, 4.0, 2), (2.0, 6.0, 3), (5.0, 5.0, 9)], []])
    assert (times_s == [0, 2, 4, 6]).all()
    assert (held == [2, 5, 3, 0]).all() and (none == 0).all()
    assert plots.means(times_s, held, np.array([-1.0, 1.0, 3.0, 7.0])) == pytest.approx([1.0, 3.5, 11 / 4])


def test_growth_is_told_by_how_many_are_active() -> None:
    active, middle_s, slow_s = plots.growth(_schedule().decision_times)
    assert (np.diff(active) > 0).all() and (np.diff(middle_s) > 0).all() and (slow_s >= middle_s).all()


def test_without_matplotlib_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ConfigError, match=r"elasticflow-trainer\[bench\]"):
        plots.utilisation(_schedule())
