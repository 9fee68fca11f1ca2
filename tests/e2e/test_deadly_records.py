"""A record on which the process itself ends, or hangs, is named and left out like one on which the program
raises; and what is wrong with a machine is never a record's fault."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clusters.processes import command_line, parent_of

from .conftest import PROGRAMS, Run, cli, digest_in

OPTIONS = ("--epochs", 2, "--batch-size", 32, "--max-quarantined", 2)
CARRIED = ("--strategy", "all_reduce")
DEATHS = {
    "exits": "ended by itself, with exit code 3",
    "exits well": "ended by itself, with exit code 0",
    "segmentation fault": "was killed by SIGSEGV",
    "is killed": "was killed by SIGKILL",
    "a kernel fails": "was killed by SIGABRT",
}
OTHERS = {
    "full disk": "OSError: [Errno 28] No space left on device",
    "no memory": "can't allocate memory",
    "lost file": "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/at/all.png'",
    "leaves": "SystemExit: good bye",
    "no module": "ModuleNotFoundError: No module named 'no_such_module'",
}


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The digest of a run in which these rows raise; "": in which none does. more: options of it."""
    known: dict[tuple[object, ...], str] = {}

    def digest(bad: str, *more: object) -> str:
        key = (bad, *more)
        if key not in known:
            path = tmp_path_factory.mktemp("raised") / "run"
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("BAD", bad)
                environment.setenv("HOW", "raises")
                with Run(path, "deadly.py", *OPTIONS, "--workers", 1, *more) as run:
                    known[key] = run.digest()
        return known[key]

    return digest


def quarantined(run: Run) -> list[int]:
    return sorted(run.report().quarantined)


def settings(path: Path, text: str) -> tuple[str, str]:
    """An option that gives settings that have none of their own."""
    file = path / "settings.yaml"
    file.write_text(text)
    return "--config", str(file)


@pytest.mark.parametrize("how", DEATHS)
def test_a_record_that_ends_the_process_is_left_out(
    how: str, start: Callable[..., Run], raised: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same step on as if it had raised, and after two workers, no more."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", how)
    run = start("deadly.py", *OPTIONS, "--workers", 1)
    output = run.finish()
    assert digest_in(output) == raised("57")
    assert quarantined(run) == [57]
    assert f"row 57 is left out from now on: a process that computed it {DEATHS[how]}" in output
    assert "worker-3 has joined" in output and "worker-4" not in output, output


def test_a_kernel_that_fails_when_nobody_computes_a_slice_any_more(
    start: Callable[..., Run], raised: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends there too: those that died of the first record are no failures once that is known."""
    monkeypatch.setenv("BAD", "57,120")
    monkeypatch.setenv("HOW", "a kernel fails late")
    config = settings(tmp_path, "device: delayed\noverlap: false\nmax_failures: 2\n")
    run = start("deadly.py", *OPTIONS, *config, "--workers", 1)
    output = run.finish()
    assert digest_in(output) == raised("57,120")
    assert quarantined(run) == [57, 120]
    assert "row 57 is left out from now on: a process that computed it was killed by SIGABRT" in output


@pytest.mark.parametrize("workers, servers", [(1, 2), (3, 1)])
def test_two_such_records_whoever_computes(
    workers: int,
    servers: int,
    start: Callable[..., Run],
    raised: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BAD", "57,120")
    monkeypatch.setenv("HOW", "segmentation fault")
    run = start("deadly.py", *OPTIONS, "--workers", workers, "--servers", servers)
    assert run.digest() == raised("57,120")
    assert quarantined(run) == [57, 120]


@pytest.mark.parametrize("how", ["segmentation fault", "a kernel fails"])
def test_an_audit_of_such_a_record_finds_nothing_else(
    how: str,
    start: Callable[..., Run],
    raised: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slices are computed twice, those also that were begun with the record and ended without it."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", how)
    longer = ("--epochs", 4)  # a worker that is late, on a busy machine, leaves some of its own out
    run = start("deadly.py", *OPTIONS, *settings(tmp_path, "audit: 1\n"), "--workers", 2, *longer)
    assert run.digest() == raised("57", *longer)
    assert quarantined(run) == [57] and run.report().audited > 100


def test_it_is_tried_with_what_has_been_trained(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, buffers and a table's rows: with the first values the record would do no harm."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("TRAINED", "1")
    digests = []
    for how in ("raises", "segmentation fault"):
        monkeypatch.setenv("HOW", how)
        run = start("deadly.py", *OPTIONS, "--workers", 1, "--servers", 2)
        digests.append(run.digest())
        assert quarantined(run) == [57]
    assert digests[0] == digests[1]


def test_one_too_many_ends_the_run_by_its_name(
    start: Callable[..., Run], raised: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed is kept, and goes on once the record does no harm."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", "null pointer")
    options = (*OPTIONS, "--max-quarantined", 0, "--checkpoint-every", 1)
    run = start("deadly.py", *options, "--workers", 1)
    code, output = run.wait()
    assert code == 1, output
    for said in (
        "Error: the program does not come back from row 57 of the training data",
        "a process that computed it was killed by SIGSEGV",
        "max_quarantined is 0",
        "steps are missing",
    ):
        assert said in output, output
    assert quarantined(run) == []
    assert "in forward" in cli("logs", run.path).stdout, "faulthandler shows where"
    monkeypatch.delenv("BAD")
    resumed = start("deadly.py", "--resume", "--workers", 1, name="run-0").finish()
    assert digest_in(resumed) == raised("")


def test_a_record_that_hangs_with_the_interpreters_lock(
    start: Callable[..., Run], raised: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a worker cannot even say that it lives, and is ended after ``lost_s``; so is the process in which
    the record is tried."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", "hangs with the lock")
    config = settings(tmp_path, "lost_s: 5\n")
    run = start("deadly.py", *OPTIONS, *config, "--workers", 1)
    output = run.finish()
    assert digest_in(output) == raised("57")
    assert quarantined(run) == [57]
    assert "row 57 is left out from now on: a process that computed it did not come back within" in output


def test_a_record_that_hangs_though_the_worker_says_that_it_lives(
    start: Callable[..., Run], raised: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers that hang in it are ended by somebody; no third one does."""
    seen = tmp_path / "seen"
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", "hangs")
    monkeypatch.setenv("SEEN", str(seen))
    config = settings(tmp_path, "lost_s: 5\n")
    run = start("deadly.py", *OPTIONS, *config, "--workers", 1)
    for number in (1, 2):
        run.wait_until(lambda status, n=number: seen.exists() and len(seen.read_text().split()) == n)
        os.kill(int(seen.read_text().split()[-1]), signal.SIGKILL)
    output = run.finish()
    assert digest_in(output) == raised("57")
    assert "worker-4" not in output, output


def test_workers_that_are_killed_from_outside_are_no_records_fault(
    start: Callable[..., Run], raised: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time and again in one and the same step, before any slice of it is begun: nothing is suspected."""
    run = start("deadly.py", *OPTIONS, "--workers", 1, shut=["step 7"])
    for _ in range(4):
        os.kill(run.held_at("step 7"), signal.SIGKILL)
    run.held_at("step 7")
    run.open("step 7")
    output = run.finish()
    assert digest_in(output) == raised("")
    assert quarantined(run) == []
    assert "worker-5 has joined" in output


def test_workers_that_are_killed_at_one_slice_have_it_tried_apart(
    start: Callable[..., Run], raised: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is found, and nothing is left out; the log says why that step took so long."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", "waits")
    run = start("deadly.py", *OPTIONS, "--workers", 1, shut=["record"])
    for _ in range(2):
        os.kill(run.held_at("record"), signal.SIGKILL)
    assert run.held_at("record") != run.pid("worker-3"), "it is tried in a process of its own"
    run.open("record")
    output = run.finish()
    assert digest_in(output) == raised("")
    assert quarantined(run) == [] and "worker-4" not in output
    log = (run.path / "logs" / "worker-3.log").read_text()
    tried = re.search(r"may have died of (slices? [\d, ]+ of step \d+): tried in another process\n", log)
    assert tried and re.search(rf"^\S+ {tried[1]}: (\d+) of \1 well, after \d+\.\d s$", log, re.M), log


@pytest.mark.parametrize("workers, how", [(1, "exits"), (3, "segmentation fault")])
def test_a_record_that_takes_those_along_who_know_of_it(
    workers: int,
    how: str,
    start: Callable[..., Run],
    raised: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers die with the workers that carry them."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", how)
    run = start("deadly.py", *OPTIONS, *CARRIED, "--workers", workers)
    output = run.finish()
    assert digest_in(output) == raised("57")
    assert quarantined(run) == [57]
    assert f"row 57 is left out from now on: a process that computed it {DEATHS[how]}" in output


def test_who_tries_slices_beside_a_worker_that_carries_is_forked_by_its_porter(
    start: Callable[..., Run], raised: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It need not import the framework, which all workers would do at the same time."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", "waits")
    run = start("deadly.py", *OPTIONS, *CARRIED, "--workers", 1, shut=["record"])
    while (held := run.held_at("record")) in (pids := [worker.pid for worker in run.status().workers]):
        os.kill(held, signal.SIGKILL)
    forked = parent_of(held)
    worker = parent_of(parent_of(forked))
    assert worker in pids, "between them is the porter"
    assert command_line(forked) == command_line(worker), "whoever is started has a line of its own"
    run.open("record")
    assert digest_in(run.finish()) == raised("")
    assert quarantined(run) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_record_of_the_test_data_ends_the_run_by_its_name(
    workers: int, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD_TEST", "17")
    monkeypatch.setenv("HOW", "segmentation fault")
    code, output = start("deadly.py", *OPTIONS, "--workers", workers).wait()
    assert code == 1, output
    assert "Error: the program does not come back from row 17 of the test data" in output
    assert "was killed by SIGSEGV" in output


@pytest.mark.parametrize("how", ["exits well", "segmentation fault", "raises"])
def test_check_names_a_record_of_the_first_slice(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = PROGRAMS / "deadly.py"
    monkeypatch.setenv("BAD", ",".join(map(str, range(0, 400, 3))))
    monkeypatch.setenv("HOW", how)
    checked = cli("check", program)
    assert checked.returncode == 1 and not checked.stdout
    if how == "raises":
        assert f"Error: {program}: forward() raised ValueError: a bad record" in checked.stderr
        return
    assert f"Error: {program}: forward() does not come back from row " in checked.stderr
    assert f"of the training data: a process that computed it {DEATHS[how]}." in checked.stderr
    rows = checked.stderr.partition("back from row ")[2].partition(" of the training")[0]
    assert rows and all(int(row) % 3 == 0 for row in rows.split(", ")), "no other one"


def test_a_run_that_dies_in_its_first_slice_ends(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD", ",".join(map(str, range(400))))
    monkeypatch.setenv("HOW", "segmentation fault")
    code, output = start("deadly.py", *OPTIONS, "--workers", 1).wait()
    assert code == 1, output
    assert "workers in a row died before they were ready" in output
    assert f"'elasticflow check {PROGRAMS / 'deadly.py'}' tries its first slice" in output


@pytest.mark.parametrize("workers, how", [(1 + number % 2, how) for number, how in enumerate(OTHERS)])
def test_what_is_wrong_with_a_machine_is_no_records_fault(
    workers: int, how: str, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many records might be left out: it ends, and says what is wrong."""
    monkeypatch.setenv("BAD", "57")
    monkeypatch.setenv("HOW", how)
    options = (*OPTIONS, "--max-quarantined", 400, "--force-quarantine")
    run = start("deadly.py", *options, "--workers", workers)
    code, output = run.wait()
    assert code == 1, output
    last = output.splitlines()
    (error,) = [line for line in last if line.startswith("Error: ")]
    assert OTHERS[how] in error and "no record is to blame" in error and "deadly.py, line " in error
    assert ("max_failures is 3" in error) == (how not in ("no module", "leaves")), error
    assert "left out" not in output
