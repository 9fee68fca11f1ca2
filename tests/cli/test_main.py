"""What goes wrong is told in one line."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
from pathlib import Path

import pytest

from elasticflow.checkpoint.failures import naming
from elasticflow.cli import runs
from elasticflow.cli.main import main
from elasticflow.cli.verbs import VERBS
from elasticflow.errors import EXIT_UNKNOWN
from elasticflow.run.trust import name_of


def test_a_storage_that_is_away(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def status(arguments: argparse.Namespace) -> int:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused (NameNode http://nn:9870)", "/x")

    monkeypatch.setattr(runs, "status", status)
    assert main(["status", "hdfs://nn/x"]) == EXIT_UNKNOWN
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("Error: ") and shown.err.count("\n") == 1
    assert "NameNode http://nn:9870" in shown.err


@pytest.mark.parametrize("there", ["run/job.json", "run/made/later", "run"])
def test_whose_a_place_is_that_may_not_be_used(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(arguments: argparse.Namespace) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / there))

    run = tmp_path / "run"
    run.mkdir()
    run.chmod(0o700)
    monkeypatch.setattr(runs, "status", status)
    assert main(["status", str(run)]) == 1
    me = name_of(os.geteuid())
    assert capsys.readouterr().err == (
        f"Error: [Errno 13] Permission denied: '{tmp_path / there}': "
        f"{run} belongs to {me} (mode 0700), and you are {me}\n"
    )


def test_whose_checkpoints_are_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A colleague's, who shows how the run goes, and not the model."""
    tmp_path.chmod(0o700)

    def checkpoints(arguments: argparse.Namespace) -> int:
        with naming("checkpoints"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "checkpoints"))

    monkeypatch.setattr(runs, "status", checkpoints)
    assert main(["status", str(tmp_path)]) == 1
    me = name_of(os.geteuid())
    assert capsys.readouterr().err.endswith(
        f"Permission denied: {tmp_path} belongs to {me} (mode 0700), and you are {me}\n"
    )


def test_a_place_that_is_not_here_is_nobodys_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(arguments: argparse.Namespace) -> int:
        raise PermissionError(errno.EACCES, "Permission denied (NameNode http://nn:9870)", "/tmp")

    monkeypatch.setattr(runs, "status", status)
    assert main(["status", "hdfs://nn/tmp"]) == 1
    assert "belongs to" not in capsys.readouterr().err


@pytest.mark.parametrize("number", ["x", "2.5", "1" * 30])
def test_what_is_no_number_of_workers(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["scale", "run", number])
    assert ended.value.code == 2 and f"{number} is no number of workers" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_options_and_somebody_who_does_it(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith(f"usage: elasticflow {verb} ")
    module, _, function = VERBS[verb].run.rpartition(".")
    assert callable(getattr(importlib.import_module(f"elasticflow.cli.{module}"), function))
