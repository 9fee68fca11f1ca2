"""What operators begin with: conf/nightly.yaml, docs/nightly.md and examples/nightly."""

from __future__ import annotations

import argparse
import ast
import errno
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from elasticflow.cli import main
from elasticflow.cli.submit import add_submit_options
from elasticflow.errors import EXIT_UNKNOWN
from elasticflow.run.config import make
from elasticflow.run.dates import fill
from elasticflow.run.folder import RunDir
from elasticflow.storage.webhdfs import WebHdfs
from elasticflow_yarn.config import read

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf" / "nightly.yaml"
SCRIPT = ROOT / "examples" / "nightly" / "nightly.sh"
DOCS = (ROOT / "docs" / "nightly.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The one block of a language in the document."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_the_example_explains_every_key_and_means_what_it_says() -> None:
    lines = [line for line in CONF.read_text().splitlines() if ":" in line and line.strip()[0] != "#"]
    assert all(len(line.partition("  # ")[2]) > 10 for line in lines if line != "yarn:")
    values = yaml.safe_load(CONF.read_text())
    assert len(lines) == len(values) + len(values["yarn"])
    assert read(values["yarn"]).queue == "nightly"
    night = datetime.fromisoformat("2026-11-21T22:00:00+01:00").timestamp()
    chosen = make(str(CONF), {}, at_s=night)
    assert chosen.data == "hdfs:///clicks/day=2026-11-20/*.parquet"
    assert chosen.run_dir == "hdfs:///models/clicks-2026-11-21"
    assert chosen.deadline == "2026-11-22T06:00:00+01:00" and chosen.time_limit_s == 36000


def test_the_table_of_dates() -> None:
    night = datetime.fromisoformat("2026-11-21T22:00:00").timestamp()
    rows = re.findall(r"^\| (`[{}].*?) \| (`.*?) \|$", DOCS, re.MULTILINE)
    assert len(rows) == 5
    for written, meant in rows:
        patterns, filled = (re.findall("`(.*?)`", column) for column in (written, meant))
        assert [fill("data", each, night) for each in patterns] == filled[: len(patterns)]


def command_of(words: list[str]) -> argparse.Namespace:
    """What follows nightly.sh in a snippet, as 'submit' reads it."""
    run, verb, *rest = words
    assert verb == "submit" and run.startswith("hdfs:///models/clicks-")
    parser = argparse.ArgumentParser()
    add_submit_options(parser)
    return parser.parse_args([*rest, "--run-dir", run])


def test_the_snippets_submit_and_wait() -> None:
    cron = block("crontab").replace("\\%", "%")
    assert "%" not in block("crontab").replace("\\%", ""), "it would end the command"
    words = shlex.split(cron.partition(" >> ")[0])
    assert words[:5] == ["0", "22", "*", "*", "*"] and words[5] == "nightly.sh"
    xml = ElementTree.fromstring(block("xml"))
    shell = "{uri:oozie:shell-action:1.0}"
    oozie = [element.text or "" for element in xml.iter(f"{shell}argument")]
    strings = [n.value for n in ast.walk(ast.parse(block("python"))) if isinstance(n, ast.Constant)]
    (airflow,) = [text for text in strings if isinstance(text, str) and text.startswith("nightly.sh ")]
    rendered = re.sub(r"\{\{.*?\}\}", "2026-11-21", airflow).split()
    for each in (words[6:], oozie, rendered[1:]):
        chosen = command_of(each)
        assert chosen.attach and chosen.date and chosen.names == ["/srv/clicks/nightly.yaml"]


def test_the_script_is_a_plain_shells() -> None:
    subprocess.run(["sh", "-n", str(SCRIPT)], check=True)
    assert SCRIPT.stat().st_mode & 0o111


def test_a_run_that_was_killed_is_told_to_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunDir(tmp_path).create(make(None, {"program": "x.py"}))
    assert main(["status", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "killed" and "go on with --resume: elasticflow train --resume" in told["text"]
    assert main(["status", str(tmp_path)]) == 0, "the same as with --json"
    assert "killed: this run is over, and left no report" in capsys.readouterr().out


def test_what_is_not_there_is_told_to_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("status", "report"):
        assert main([verb, str(tmp_path / "none"), "--json"]) == 1
        told = capsys.readouterr()
        assert json.loads(told.out)["state"] == "absent"
        assert "is not the folder of a run" in json.loads(told.out)["text"] and told.err.startswith("Error: ")


def test_what_cannot_be_asked_is_not_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def away(url: str, patience_s: float = 0.0) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused (NameNode nn)", url)

    monkeypatch.setattr(WebHdfs, "of", away)
    for verb in ("status", "report"):
        assert main([verb, "hdfs://nn/x", "--json"]) == EXIT_UNKNOWN
        told = capsys.readouterr()
        assert json.loads(told.out)["state"] == "unknown" and "NameNode nn" in told.err


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has nightly.sh find an elasticflow whose status is each of these, one after the other, and runs it.

    Returns its exit code, and what else it has called.
    """

    def play(*states: tuple[str, int]) -> list[str]:
        for number, (state, code) in enumerate(states):
            text = f'echo \'{{\n  "state": "{state}",\n  "text": ""\n}}\'\nexit {code}\n'
            (tmp_path / f"status-{number}").write_text(text if state else f"exit {code}\n")
        command = tmp_path / "elasticflow"
        command.write_text(
            f'#!/bin/sh\ncd {tmp_path}\nif [ "$1" = status ]; then\n  n=$(cat n 2>/dev/null || echo 0)\n'
            f'  echo $((n + 1)) > n\n  . ./status-$n\nfi\necho "$@" >> called\n'
        )
        command.chmod(0o755)
        for name in ("n", "called"):
            (tmp_path / name).unlink(missing_ok=True)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("NIGHTLY_AGAIN_S", "0")
        done = subprocess.run([str(SCRIPT), "RUN", "train", "x.py"], capture_output=True, timeout=60)
        called = tmp_path / "called"
        return [str(done.returncode), *(called.read_text().splitlines() if called.exists() else ())]

    return play


BEGIN, RESUME = "train x.py --run-dir RUN", "train x.py --run-dir RUN --resume"


@pytest.mark.parametrize(
    ("states", "called"),
    [
        ([("absent", 1)], ["0", BEGIN]),
        ([("unknown", 75), ("unknown", 75), ("absent", 1)], ["0", BEGIN]),
        ([("unknown", 75), ("killed", 0)], ["0", RESUME]),
        ([("finished", 0), ("finished", 0)], ["0"]),
        ([("running", 0), ("unknown", 75), ("stopped", 0)], ["3", "attach RUN"]),
        ([("diverged", 0), ("diverged", 0)], ["4"]),
        ([("elsewhere", 1), ("elsewhere", 1)], ["1"]),
        ([("", 1)], ["1"]),
        ([("", 127)], ["1"]),
    ],
)
def test_the_script_begins_nothing_anew_that_cannot_be_asked(
    answers: Callable[..., list[str]], states: list[tuple[str, int]], called: list[str]
) -> None:
    """Only what is said not to be there is begun; what nobody answers for is waited for."""
    assert answers(*states) == called


def test_the_script_goes_on_in_another_machines_place_if_it_is_told_to(
    answers: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTLY_TAKE_OVER", "1")
    assert answers(("elsewhere", 1)) == ["0", RESUME]
    assert answers(("absent", 1)) == ["0", BEGIN]


def test_the_script_does_not_wait_for_ever(
    answers: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTLY_TRIES", "2")
    assert answers(("unknown", 75), ("unknown", 75), ("absent", 1)) == ["75"]


def test_a_job_is_given_a_folder_without_dates(capsys: pytest.CaptureFixture[str]) -> None:
    """When it is started again on another day, it looks there."""
    assert main(["lead", "program.py", "--run-dir", "runs/{today}"]) == 1
    assert "in a job there can be no braces in it" in capsys.readouterr().err
