"""An error whose text cannot be encoded, sent or spoken ends a run like any other: told, and not for ever."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from .conftest import Run, cli

OPTIONS = ("--epochs", 2, "--batch-size", 32)
TOLD = {"torn": "a file named \\udcff\\ud800", "huge": "characters are left out here", "unspeakable": ""}


@pytest.mark.parametrize("words", TOLD)
@pytest.mark.parametrize("where", ["forward", "learning_rate"])
def test_ends_and_is_told(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, where: str, words: str
) -> None:
    monkeypatch.setenv("WHERE", where)
    monkeypatch.setenv("WORDS", words)
    run = start("wordy.py", *OPTIONS, shut=["step 6"])
    run.wait_for_step(5)
    run.open("step 6")
    code, output = run.wait()
    assert code == 1, output[-2000:]
    assert TOLD[words] in output and len(output) < 1 << 20
    report = run.report()
    assert report.state == "failed" and TOLD[words] in report.text
    assert "lost its connection" not in (run.path / "logs" / "master.log").read_text(), "its words come first"
    assert cli("report", run.path, "--json").returncode == 0
    assert TOLD[words] in cli("report", run.path).stdout
    assert cli("logs", run.path, "--lines", 3).returncode == 0


@pytest.mark.parametrize("words", TOLD)
def test_is_told_before_the_first_step(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("WHERE", "model")
    monkeypatch.setenv("WORDS", words)
    code, output = start("wordy.py", *OPTIONS).wait()
    assert code == 1 and TOLD[words] in output and len(output) < 1 << 20, output[-2000:]


def test_is_left_out_and_the_run_can_be_stopped(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that raises so is quarantined; all that shows the run bears its text, and stop ends it."""
    monkeypatch.setenv("WHERE", "forward")
    monkeypatch.setenv("WORDS", "huge")
    run = start("wordy.py", *OPTIONS, "--max-quarantined", 1, "--epochs", 50, shut=["step 40"])
    run.wait_for_step(40)
    assert "characters are left out here" in msgspec.json.encode(run.status()).decode()
    assert "row 57 is left out" in cli("status", run.path).stdout
    stopped = run.stop(held_at="step 40")
    assert stopped.returncode == 0, stopped.stderr
    assert run.wait()[0] == 3


def test_a_metric_whose_name_is_no_text(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "metrics")
    run = start("wordy.py", *OPTIONS)
    assert "m\\udcff" in run.finish()
