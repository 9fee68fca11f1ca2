"""A record on which the program raises is named, and left out up to a limit; one that raises once is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 3, "--batch-size", 32)
SOURCE = Path(__file__).parent / "programs" / "faulty.py"
LINE = 1 + SOURCE.read_text().splitlines().index('        raise ValueError(f"cannot read record {min(bad)}")')


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest without any fault."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "faulty.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


def test_stops_by_default_and_can_be_resumed(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row and line are told; what was committed is kept, and goes on once the fault is mended."""
    when = tmp_path / "when"
    monkeypatch.setenv("WHEN", str(when))
    monkeypatch.setenv("BAD", "57")
    run = start("faulty.py", *OPTIONS, "--checkpoint-every", 2, "--servers", 2, shut=["step 7"])
    status = run.wait_until(lambda s: s.checkpoint_step)
    when.touch()
    run.open("step 7")  # two epochs to go
    code, output = run.wait()
    assert code == 1, output
    for said in (
        "Error: the program raises on row 57 of the training data",
        f'File "{SOURCE}", line {LINE}, in forward',
        "ValueError: cannot read record 57",
        "max_quarantined is 0",
        "of 21 steps are missing",
        "which is kept",
    ):
        assert said in output, output
    assert "elasticflow/worker" not in output, output
    when.unlink()
    report = run.report()
    assert report.state == "failed" and report.checkpoint_step >= status.checkpoint_step
    assert cli("checkpoint", "verify", run.path).returncode == 0
    resumed = start("faulty.py", "--resume", "--workers", 1, name="run-0").finish()
    assert f"going on from step {report.checkpoint_step}" in resumed
    assert digest_in(resumed) == undisturbed


def test_no_step_is_lost_with_the_run(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What servers have made since the last checkpoint is written first."""
    when = tmp_path / "when"
    monkeypatch.setenv("WHEN", str(when))
    monkeypatch.setenv("BAD", "57")
    run = start("faulty.py", *OPTIONS, "--checkpoint-every", "1h", "--servers", 2, shut=["step 8"])
    run.wait_for_step(7)
    when.touch()
    run.open("step 8")
    code, output = run.wait()
    assert code == 1 and "row 57 of the training data" in output, output
    step = run.report().checkpoint_step
    assert step is not None and step >= 7 and f"goes on from step {step}, which is kept" in output, output
    assert cli("checkpoint", "verify", run.path).returncode == 0
    when.unlink()
    assert digest_in(start("faulty.py", "--resume", "--workers", 1, name="run-0").finish()) == undisturbed


@pytest.mark.parametrize("strategy", ["parameter_server", "all_reduce"])
def test_a_lack_of_all_places_ends_the_run_and_no_step_is_lost(
    start: Callable[..., Run],
    undisturbed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    """Workers fail one after the other; those that carry servers stay until these have moved, or written."""
    full = tmp_path / "full"
    monkeypatch.setenv("FULL", str(full))
    how = ("--checkpoint-every", "1h", "--strategy", strategy, "--workers", 2)
    run = start("faulty.py", *OPTIONS, *how, shut=["step 8"])
    run.wait_for_workers(2)
    run.wait_for_step(7)
    full.touch()
    run.open("step 8")
    code, output = run.wait()
    assert code == 1 and "No space left on device" in output and "max_failures is 3" in output, output
    step = run.report().checkpoint_step
    assert step is not None and step >= 7, output
    assert f"goes on from step {step}, which is kept" in output, output
    full.unlink()
    assert digest_in(start("faulty.py", "--resume", "--workers", 1, name="run-0").finish()) == undisturbed


def test_quarantine_is_the_same_for_any_workers_and_servers(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two records that raise. One whose cost is NaN, though no gradient is, is no fault: people are told."""
    monkeypatch.setenv("BAD", "57,120")
    monkeypatch.setenv("NAN", "3")
    digests = set()
    for workers, servers in ((1, 1), (3, 2)):
        most = ("--max-quarantined", 2)
        run = start("faulty.py", *OPTIONS, *most, "--workers", workers, "--servers", servers)
        output = run.finish()
        digests.add(digest_in(output))
        for row in (57, 120):
            assert f"row {row} is left out" in output, output
        assert "the cost of a step is not finite" in output and f"faulty.py, line {LINE}" in output
        report = json.loads(cli("status", run.path, "--json").stdout)
        assert sorted(report["quarantined"]) == [57, 120]
        listed = next(line for line in output.splitlines() if line.startswith("quarantined rows: "))
        assert listed in cli("status", run.path).stdout
        assert listed in cli("checkpoint", "show", run.path).stdout
    assert len(digests) == 1


def test_fault_of_one_worker_alone_is_no_fault_of_the_record(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "once"
    monkeypatch.setenv("ONCE", str(once))
    run = start("faulty.py", *OPTIONS, "--workers", 2, shut=["step 7"])
    run.wait_for_workers(2)
    once.touch()
    run.open("step 7")
    assert run.digest() == undisturbed
    assert not once.exists()
    assert run.report().quarantined == []
