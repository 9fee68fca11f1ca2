"""What YARN and Skein are told when a run is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticflow_yarn import finishing
from elasticflow_yarn.finishing import SOURCE, application_master, finish

ABOVE = "from elasticflow_yarn.finishing import application_master; print(*application_master(), sep='\\n')"


@pytest.fixture
def skein(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Final statuses and words that Skein was told."""
    told: list[tuple[str, str]] = []
    client = SimpleNamespace(shutdown=lambda status, text: told.append((status, text)))
    current = SimpleNamespace(from_current=lambda: client)
    monkeypatch.setitem(sys.modules, "skein", SimpleNamespace(ApplicationClient=current))
    return told


def java(folder: Path, code: int) -> str:
    """One that writes down its arguments, and its class path."""
    path = folder / "java"
    path.write_text(f'#!/bin/sh\necho "$CLASSPATH" "$@" > {folder}/told\necho words\nexit {code}\n')
    path.chmod(0o755)
    return str(path)


def test_a_run_that_finished(skein: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(finishing, "application_master")
    finish(0, "finished: all steps are done")
    assert skein == [("SUCCEEDED", "finished: all steps are done")]


@pytest.mark.parametrize(("code", "status"), [(1, "FAILED"), (3, "KILLED")])
def test_yarn_hears_the_truth_first_and_skein_clears_up(
    code: int, status: str, tmp_path: Path, skein: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "application_master", lambda: (java(tmp_path, 0), "conf:jars/*"))
    finish(code, "no 'luck'")
    told = (tmp_path / "told").read_text()
    assert told.startswith("conf:jars/* ") and told.endswith(f" {SOURCE} {status} no 'luck'\n")
    assert skein == [("SUCCEEDED", "no 'luck'")]


def test_where_yarn_does_not_hear_it_skein_tells_what_it_can(
    tmp_path: Path,
    skein: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(finishing, "application_master", lambda: (java(tmp_path, 1), ""))
    finish(3, "stopped")
    monkeypatch.undo()
    assert skein == [("KILLED", "stopped")]
    assert "YARN could not be told at once that the run is over: words" in "".join(capfd.readouterr())


def test_a_skein_that_does_not_answer_changes_nothing(
    skein: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "skein", SimpleNamespace())
    finish(0, "finished")
    assert "could not be told that the run is over (finished)" in "".join(capfd.readouterr())


def test_the_application_master_is_the_java_above(tmp_path: Path) -> None:
    real = tmp_path / "bin" / "java"
    real.parent.mkdir()
    real.write_bytes(Path("/bin/bash").read_bytes())
    real.chmod(0o755)
    script = f"{sys.executable} -c {ABOVE!r}; exit $?"
    paths = os.pathsep.join(filter(None, sys.path))
    said = subprocess.run(
        [str(real), "-c", script],
        env={**os.environ, "CLASSPATH": "conf:jars/*", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said == [str(real), "conf:jars/*"]


def test_where_there_is_none() -> None:
    with pytest.raises(OSError):
        application_master()


def test_the_source_comes_with_the_package() -> None:
    assert "unregisterApplicationMaster" in SOURCE.read_text()
