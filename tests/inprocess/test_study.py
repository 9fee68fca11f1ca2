"""A sweep's memory, as a real Optuna database, and who goes on with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from elasticflow.errors import ConfigError
from elasticflow.sweep.space import read_space
from elasticflow.sweep.study import FAILED, FINISHED, UNDER_WAY, WAS_PRUNED, Goal, Study

SPACE = read_space(["lr=1e-4..1e-1:log,width=4|8"])
ABOUT = {"space": "lr", "data": ""}


def study(folder: Path, mode: str = "max", space: str = "", **more: Any) -> Study:
    about = more.pop("about", ABOUT)
    url, chosen = f"sqlite:///{folder}/study.db", read_space([space]) if space else SPACE
    return Study(url, "sweep", chosen, Goal("right", mode), about, **more)


def test_whoever_goes_on_finds_each_trial_as_it_was(tmp_path: Path) -> None:
    first = study(tmp_path)
    asked = dict(first.ask() for _ in range(4))
    for number in asked:
        first.put(number, f"runs/{number}")
        first.report(number, 1, 0.5)
    first.end(0, FINISHED, 0.75, "done")
    first.end(1, FAILED, None, "a disk was full")
    first.prune(2)
    second = study(tmp_path)
    assert second.under_way() == {number: asked[number] for number in (2, 3)} and second.num_trials == 4
    assert second.is_pruned(2) and not second.is_pruned(3)
    second.report(3, 1, 0.5)  # it is told again
    second.end(2, WAS_PRUNED, None, "")
    told = {each.trial: (each.state, each.value, each.values, each.run) for each in second.told()}
    assert told == {
        0: (FINISHED, 0.75, asked[0], "runs/0"),
        1: (FAILED, None, asked[1], "runs/1"),
        2: (WAS_PRUNED, 0.5, asked[2], "runs/2"),
        3: (UNDER_WAY, None, asked[3], "runs/3"),
    }
    assert second.told()[1].text == "a disk was full"
    best = second.best()
    assert best and best.trial == 0


def test_nothing_is_chosen_twice_by_who_goes_on(tmp_path: Path) -> None:
    chosen = [study(tmp_path, sampler="random").ask()[1]["lr"] for _ in range(5)]
    assert len(set(chosen)) == 5


def test_a_study_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    study(tmp_path)
    with pytest.raises(ConfigError, match=r"begun with data , not other\.npz.*--folder"):
        study(tmp_path, about={**ABOUT, "data": "other.npz"})


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_is_of_those_that_have_finished_and_of_equals_the_first(tmp_path: Path, mode: str) -> None:
    kept = study(tmp_path, mode)
    for value in (2.0, 1.0, 2.0, 1.0):
        kept.end(kept.ask()[0], FINISHED, value, "")
    kept.end(kept.ask()[0], FINISHED, math.nan, "")
    kept.end(kept.ask()[0], FAILED, 100.0 if mode == "max" else 0.0, "")
    best = kept.best()
    assert best and best.trial == (0 if mode == "max" else 1)
    assert [each.state for each in kept.told()[4:]] == [FAILED, FAILED]


def test_who_promises_little_is_not_worth_to_go_on(tmp_path: Path) -> None:
    kept = study(tmp_path, "min")
    for value in (1.0, 2.0, 3.0, 4.0, 5.0):
        number = kept.ask()[0]
        assert not kept.report(number, 1, value)
        kept.end(number, FINISHED, value, "")
    good, bad = kept.ask()[0], kept.ask()[0]
    assert not kept.report(good, 1, 2.5) and kept.report(bad, 1, 3.5)
    assert not study(tmp_path, "min", pruner="none").report(bad, 1, 3.5)


def test_a_grid_is_all_there_is_once(tmp_path: Path) -> None:
    space, found = "width=4|8,drop=0..0.3:0.1,layers=1..2", []
    for _ in range(4):  # whoever goes on
        kept = study(tmp_path, space=space, sampler="grid")
        found += [tuple(kept.ask()[1].values()) for _ in range(4)]
    drops = sorted({round(float(drop), 6) for _, drop, _ in found})
    assert len(set(found)) == 16 and drops == [0.0, 0.1, 0.2, 0.3]
    with pytest.raises(ConfigError, match="has no end of values"):
        study(tmp_path, space="lr=0..0.5", sampler="grid")
