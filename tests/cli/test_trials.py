"""How a sweep follows its trials where nobody answers for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticflow.cli import trials
from elasticflow.cli.trials import ClusterTrials, TrialNews
from elasticflow.cluster.presence import Replaced
from elasticflow.errors import UnknownError
from elasticflow.run.folder import RunDir

from .fake_master import new_run


def test_a_trial_that_its_service_has_resumed_meanwhile_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place was taken away and given back before anybody saw that it was over."""
    run, told, attempts = new_run(tmp_path / "run"), list[TrialNews](), iter([1, 2])

    def follow(followed: RunDir, *_: object) -> None:
        if next(attempts) == 1:
            raise Replaced(f"{followed.path}: this run is over, and somebody has resumed it.")

    monkeypatch.setattr(trials, "follow", follow)
    ClusterTrials(told.append, "slurm")._follow(7, run)
    assert told == [TrialNews(7, is_over=True, text="ended, and left no report")]


def test_what_is_in_the_way_of_seeing_a_trial_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = new_run(tmp_path / "run"), list[TrialNews]()
    silent = iter([*["SLURM does not answer"] * 3, "its master does not answer", "SLURM does not answer"])

    def follow(followed: RunDir, *_: object) -> None:
        assert followed == run
        if text := next(silent, ""):
            raise UnknownError(text)

    monkeypatch.setattr(trials, "follow", follow)
    monkeypatch.setattr(trials, "LOOK_S", 0.0)
    ClusterTrials(told.append, "slurm")._follow(7, run)
    over = TrialNews(7, is_over=True, text="ended, and left no report")
    first, second = "SLURM does not answer", "its master does not answer"
    assert told == [*(TrialNews(7, text=text) for text in (first, second, first)), over]
