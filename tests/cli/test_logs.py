"""``elasticflow logs``: which logs, how they look, and for how long it looks at them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticflow.cli.logs import LONGEST
from elasticflow.run.folder import RunDir
from tests.e2e.conftest import ctrl_c_is_heard

__all__ = ["ctrl_c_is_heard"]
CLI = (sys.executable, "-m", "elasticflow.cli")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.logs.mkdir(parents=True)
    write(
        found, master="hello\nworld\n", **{"worker-2": "two\n", "worker-10": "ten\nmore\n", "server-0": "s\n"}
    )
    return found


def write(run: RunDir, **texts: str | bytes) -> None:
    for name, text in texts.items():
        with (run.logs / f"{name}.log").open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)


def logs(run: RunDir, *options: object) -> subprocess.CompletedProcess[bytes]:
    command = [*CLI, "logs", str(run.path), *map(str, options)]
    return subprocess.run(command, capture_output=True, timeout=60)


def said(run: RunDir, *options: object) -> str:
    done = logs(run, *options)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.decode()


def refused(run: RunDir, *options: object) -> str:
    done = logs(run, *options)
    assert done.returncode == 1 and not done.stdout
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("Error: ")
    return line


def test_several_logs_have_their_names_before_each_line(run: RunDir) -> None:
    assert said(run).splitlines() == [
        "master    | hello",
        "master    | world",
        "server-0  | s",
        "worker-2  | two",
        "worker-10 | ten",
        "worker-10 | more",
    ]
    assert said(run, "--role", "worker", "--lines", 1) == "worker-2  | two\nworker-10 | more\n"


def test_one_log_is_printed_as_it_is_but_for_what_a_terminal_obeys(run: RunDir) -> None:
    write(run, **{"worker-3": bytes(range(256)) * 1000 + "ü ☃\n\x1b]0;mine\x07\u202e".encode()})
    text = logs(run, "--name", "worker-3").stdout.decode()
    once = "".join(f"\\u{n:04x}" if n not in (9, 10) else chr(n) for n in range(32))
    once += bytes(range(32, 127)).decode() + "\\u007f" + "".join(f"\\x{n:02x}" for n in range(128, 256))
    assert text == once * 1000 + "ü ☃\n\\u001b]0;mine\\u0007\\u202e"
    assert said(run, "--role", "server") == "s\n"
    assert said(run, "--role", "leader") == said(run, "--role", "master") == "hello\nworld\n"


def test_garbage_and_half_lines_among_others(run: RunDir) -> None:
    write(run, **{"worker-2": b"\xff\x00\xfehalf", "worker-10": b"x" * (LONGEST + 5)})
    lines = logs(run, "--role", "worker").stdout.split(b"\n")
    assert rb"worker-2  | \xff\u0000\xfehalf" in lines
    assert b"worker-10 | " + b"x" * LONGEST in lines and b"worker-10 | xxxxx" in lines
    assert lines[-1] == b""


@pytest.mark.parametrize(
    ("text", "lines", "shown"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\n\n", 1, "\n"),
        ("a\n", 5, "a\n"),
        ("x" * 3_000_000 + "\n" + "y" * 2_000_000 + "\n", 1, "y" * 2_000_000 + "\n"),
    ],
    ids=["two", "the last unfinished", "an empty one", "fewer than asked for", "long"],
)
def test_the_last_lines(run: RunDir, text: str, lines: int, shown: str) -> None:
    write(run, other=text)
    assert said(run, "--name", "other", "--lines", lines) == shown


def test_that_there_is_nothing_in_a_log_is_told(run: RunDir) -> None:
    write(run, other="")
    done = logs(run, "--name", "other")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr.decode() == f"{run.path}: nothing is in the log of other.\n"
    assert logs(run, "--lines", 0).stdout == b""


def test_what_cannot_be_shown(run: RunDir, tmp_path: Path) -> None:
    names = "there are master, server-0, worker-2, worker-10."
    assert refused(run, "--name", "worker-1").endswith(f"there is no log of 'worker-1'; {names}")
    assert names in refused(run, "--name", "../run.json", "--follow")
    for path in run.logs.iterdir():
        path.unlink()
    assert "there is no log of a worker; there are none" in refused(run, "--role", "worker")
    assert refused(run).endswith(f"there is no log yet. 'elasticflow status {run.path}' says how it goes.")
    assert "is not the folder of a run" in refused(RunDir(tmp_path))
    assert "is neither the folder of a run, nor" in refused(RunDir("nosuch"))
    assert logs(run, "--lines", "-1").returncode == logs(run, "--role", "x").returncode == 2


class Following:
    """``logs --follow`` of a run that is under way until it is told to end."""

    def __init__(self, run: RunDir, *options: object) -> None:
        self.run, self._lock = run, run.hold()
        self.process = subprocess.Popen(
            [*CLI, "logs", str(run.path), "--follow", *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def lines(self, number: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().decode() for _ in range(number)]

    def end_run(self) -> None:
        if self._lock >= 0:
            self.run.report.write_text("{}")
            os.close(self._lock)
            self._lock = -1

    def rest(self) -> str:
        # Not by communicate(), which passes over what was read ahead with a line.
        assert self.process.stdout is not None and self.process.stderr is not None
        with self.process.stdout as stdout, self.process.stderr as stderr:
            out, errors = stdout.read(), stderr.read()
        assert self.process.wait(60) == 0 and not errors, errors
        return out.decode()


@pytest.fixture
def follow(run: RunDir) -> Iterator[Callable[..., Following]]:
    begun: list[Following] = []

    def begin(*options: object) -> Following:
        begun.append(Following(run, *options))
        return begun[-1]

    yield begin
    for each in begun:
        each.end_run()
        each.process.kill()
        each.process.communicate()


def test_following_shows_what_is_written_until_the_run_is_over(
    run: RunDir, follow: Callable[..., Following]
) -> None:
    """Also by those who come later, and whole lines only."""
    following = follow("--role", "worker", "--lines", 1)
    assert following.lines(2) == ["worker-2  | two\n", "worker-10 | more\n"]
    write(run, **{"worker-2": "a ha"})
    write(run, **{"worker-11": "late\nlater\n"}, master="not shown\n")
    assert following.lines(2) == ["worker-11 | late\n", "worker-11 | later\n"]
    write(run, **{"worker-2": "lf\n", "worker-10": "cut off"})
    assert following.lines(1) == ["worker-2  | a half\n"]
    following.end_run()
    assert following.rest() == "worker-10 | cut off\n"


def test_following_waits_for_the_first_log(run: RunDir, follow: Callable[..., Following]) -> None:
    for path in run.logs.iterdir():
        path.unlink()
    following = follow()
    time.sleep(0.5)
    write(run, master="at last\n")
    assert following.lines(1) == ["master | at last\n"]


def test_a_log_that_is_emptied_is_shown_anew(run: RunDir, follow: Callable[..., Following]) -> None:
    following = follow("--name", "master")
    assert following.lines(2) == ["hello\n", "world\n"]
    (run.logs / "master.log").write_text("anew\n")
    assert following.lines(1) == ["anew\n"]


def test_a_run_that_is_over_is_not_followed(run: RunDir, follow: Callable[..., Following]) -> None:
    following = follow("--role", "server")
    following.end_run()
    assert following.rest() == "server-0 | s\n"
    again = subprocess.run([*CLI, "logs", str(run.path), "-f", "--name", "server-0"], capture_output=True)
    assert (again.returncode, again.stdout, again.stderr) == (0, b"s\n", b"")


def test_the_reader_goes(run: RunDir, follow: Callable[..., Following]) -> None:
    """At once, though nothing more is written."""
    following = follow("--role", "master")
    following.lines(1)
    assert following.process.stdout is not None and following.process.stderr is not None
    following.process.stdout.close()
    assert following.process.wait(30) == 0
    assert following.process.stderr.read() == b""
    write(run, master="line\n" * 1_000_000)
    command = " ".join([*CLI, "logs", str(run.path), "--role", "master", "| head -1"])
    done = subprocess.run(["bash", "-c", command], capture_output=True)
    assert (done.stdout, done.stderr) == (b"hello\n", b"")


def test_ctrl_c(run: RunDir, follow: Callable[..., Following]) -> None:
    following = follow()
    following.lines(1)
    following.process.send_signal(signal.SIGINT)
    _, errors = following.process.communicate(timeout=30)
    assert following.process.returncode == 130 and not errors


def test_names_have_colours_on_a_terminal(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)

    def on_terminal() -> bytes:
        ours, theirs = pty.openpty()
        command = [*CLI, "logs", str(run.path), "--role", "worker", "--lines", "1"]
        done = subprocess.run(command, stdout=theirs, timeout=60)
        os.close(theirs)
        text = os.read(ours, 10_000)
        os.close(ours)
        assert done.returncode == 0
        return text

    assert on_terminal().splitlines()[0] == b"\x1b[36mworker-2  | \x1b[0mtwo"
    monkeypatch.setenv("NO_COLOR", "1")
    assert on_terminal().splitlines()[0] == b"worker-2  | two"


def test_each_line_as_json_however_it_was_written(run: RunDir) -> None:
    facts = {"time": "T", "level": "error", "process": "worker-3", "stream": "stderr"}
    json_line = json.dumps({**facts, "message": 'Error: "no"'}) + "\n"
    write(run, **{"worker-3": "2026-11-23T08:50:00.123+01:00 warning: late\n" + json_line + "no end"})
    found = [json.loads(line) for line in said(run, "--name", "worker-3", "--json").splitlines()]
    assert [(each.get("level", "info"), each["process"], each["message"]) for each in found] == [
        ("warning", "worker-3", "warning: late"),
        ("error", "worker-3", 'Error: "no"'),
        ("info", "worker-3", "no end"),
    ]
    assert found[0]["time"] == "2026-11-23T08:50:00.123+01:00" and found[1]["time"] == "T"
    assert len(said(run, "--json").splitlines()) == 9
