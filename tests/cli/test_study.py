"""A sweep's memory: what is asked for, and what is told of a database that fails."""

from __future__ import annotations

import sqlite3
import warnings
from pathlib import Path

import pytest

from elasticflow.cli import sweep
from elasticflow.cli.main import main
from elasticflow.errors import ConfigError
from elasticflow.sweep.space import Value, read_space

optuna = pytest.importorskip("optuna")
from elasticflow.sweep.study import FINISHED, Goal, Study, size_of_grid  # noqa: E402

GOAL = Goal("cost", "min")
PROGRAM = Path(__file__).parents[1] / "e2e" / "programs" / "swept_torch.py"


def begun(folder: Path, space: str, sampler: str = "grid") -> Study:
    return Study(f"sqlite:///{folder}/study.db", "sweep", read_space([space]), GOAL, {}, sampler=sampler)


def asked(study: Study) -> dict[str, Value]:
    number, values = study.ask()
    study.end(number, FINISHED, 1.0, "")
    return values


def test_a_large_grid_is_not_written_down_as_a_whole(tmp_path: Path) -> None:
    space = "a=1..1000,b=0..0.3:0.1"
    assert size_of_grid(read_space([space])) == 4000
    assert [asked(begun(tmp_path, space))["b"] for _ in range(3)] == [0.0, 0.1, 0.2]  # each goes on anew
    study = begun(tmp_path, space)
    assert [asked(study) for _ in range(2)] == [{"a": 1, "b": 0.3}, {"a": 2, "b": 0.0}]
    stored = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path}/study.db")
    assert len(stored.trials) == 10
    study = begun(tmp_path, space)
    found = [tuple(asked(study).values()) for _ in range(7)]
    assert found == [(a, b) for a in (2, 3) for b in (0.0, 0.1, 0.2, 0.3)][1:]


def test_a_grid_that_nobody_can_try_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 100,000,000 values; give a larger step"):
        size_of_grid(read_space(["a=1..100000000"]))
    with pytest.raises(ConfigError, match="has no end of values"):
        size_of_grid(read_space(["a=0.1..0.2"]))


@pytest.mark.parametrize(("space", "last"), [("a=2..9:2", 8), ("a=0.1..1.0:0.35", 0.8)])
def test_an_end_that_no_step_reaches_is_no_reason_to_warn(tmp_path: Path, space: str, last: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = begun(tmp_path, space, "random")
        assert max(float(asked(study)["a"]) for _ in range(20)) == pytest.approx(last)


def test_why_a_database_fails_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **options: object) -> Study:
        error = optuna.exceptions.StorageInternalError("This typically happens due to invalid data")
        raise error from sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sweep, "Study", full)
    words = ("--space", "width=4|8", "--metric", "cost", "--folder", str(tmp_path / "sweep"))
    assert main(["sweep", str(PROGRAM), *words]) == 1
    assert "study.db: cannot be read or written: database or disk is full." in capsys.readouterr().err
