"""What ``on_epoch`` of a program decides: the same, whoever is asked, dies, or goes on with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow import checkpoint

from .conftest import Run, cli
from .test_all_reduce import carriers, settled

OPTIONS = ("--epochs", 12, "--batch-size", 32, "--slices", 8, "--keep-checkpoints", 2)
STEPS, DONE = 96, 64
"""Of the run, and those that it makes."""
PROGRAM = Path(__file__).parent / "programs" / "asked_torch.py"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one server, left alone."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "asked_torch.py", *OPTIONS, "--workers", 1) as run:
        digest = run.digest()
        report = run.report()
        assert (report.state, report.step, report.steps_total) == ("finished", DONE, STEPS)
        assert f"stopped early, after {DONE} of {STEPS} steps: on_epoch(): accuracy 0." in run.output()
        assert "on_epoch(): from step 48 on the learning rate is 0.0" in run.output()
        standing = checkpoint.load_manifest(run.dir.storage(), DONE).standing
        assert standing and standing.advised and standing.lr
        costs = [each["cost"] for each in report.evaluations]
        assert json.loads(standing.memory)["costs"] == costs[:-1], "with all bits"
        again = cli("train", "--run-dir", path, "--resume", "--workers", 1)
        assert again.returncode == 0 and "there is nothing left to do: stopped early" in again.stdout
        return digest


def test_who_is_asked_dies_and_so_does_who_asks_and_the_master(
    start: Callable[..., Run], undisturbed: str
) -> None:
    places = ["epoch 1", "epoch 3", "epoch 4", "step 44"]
    run = start("asked_torch.py", *OPTIONS, "--workers", 2, "--servers", 2, shut=places)
    held = {run.held_at("epoch 1")}
    run.kill(next(worker.name for worker in run.status().workers if worker.pid in held))
    run.open("epoch 1")
    run.held_at("epoch 3")
    run.kill("server-0")
    run.wait_until(lambda status: status.regrouping or status.generation == 2)
    run.open("epoch 3")
    run.held_at("epoch 4")
    run.kill("master")
    run.open("epoch 4")
    run.held_at("step 44")
    assert run.stop(held_at="step 44").returncode == 0
    run.wait()
    again = ["train", "--run-dir", str(run.path), "--resume", "--workers", "1"]
    with Run(run.path, "", command=again) as resumed:
        assert resumed.digest() == undisturbed
        assert resumed.report().step == DONE


def test_workers_that_carry_servers(start: Callable[..., Run], undisturbed: str) -> None:
    """Five of them: the one dies that carries who asks; then there are two."""
    carried = ("--strategy", "all_reduce", "--workers", 5)
    run = start("asked_torch.py", *OPTIONS, *carried, shut=["epoch 2", "epoch 5"])
    status = run.wait_until(settled(5))
    run.held_at("epoch 2")
    first = carriers(status)[min(status.servers, key=lambda each: int(each.name[7:])).name]
    run.kill(first)
    run.wait_until(lambda s: first not in {worker.name for worker in s.workers})
    run.open("epoch 2")
    run.held_at("epoch 5")
    assert cli("scale", run.path, 2).returncode == 0
    run.open("epoch 5")
    assert run.digest() == undisturbed


def test_what_it_raises_costs_nothing(
    start: Callable[..., Run], undisturbed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence, with the line; all that was done is kept, and the mended program is asked of it."""
    monkeypatch.setenv("RAISES", "4")
    run = start("asked_torch.py", *OPTIONS, "--workers", 2)
    code, output = run.wait()
    assert code == 1 and run.report().state == "failed"
    said = """asked_torch.py: on_epoch() raised KeyError: 'no such thing' (asked_torch.py, line """
    assert said in output and f"40 of {STEPS} steps are done and kept" in output
    assert checkpoint.commits(run.dir.storage())[-1] == 40
    again = ["train", "--run-dir", str(run.path), "--resume", "--workers", "1"]
    with Run(run.path, "", command=again) as resumed:
        code, output = resumed.wait()
        assert code == 1 and said in output, "it is asked once more, and raises"
    monkeypatch.delenv("RAISES")
    with Run(run.path, "", command=again) as resumed:
        assert resumed.digest() == undisturbed


def test_what_it_says_must_follow_from_what_it_is_told(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFERS", "1")
    run = start("asked_torch.py", *OPTIONS, "--workers", 2, shut=["epoch 1"])
    assert run.held_at("epoch 1") != run.held_at("epoch 1")
    run.open("epoch 1")
    code, output = run.wait()
    assert code == 6 and "of the same evaluation: what it says has to follow from what it is told" in output


def test_a_program_that_goes_on_after_another_has_stopped(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path
) -> None:
    """It is asked of the evaluation with which the run had ended."""
    text = PROGRAM.read_text()
    eager = tmp_path / "asked_torch.py"
    eager.write_text(text.replace("info.epoch >= 7", "info.epoch >= 2"))
    (tmp_path / "gates.py").write_text((PROGRAM.parent / "gates.py").read_text())
    run = start(str(eager), *OPTIONS, "--workers", 1)
    assert f"stopped early, after 24 of {STEPS} steps" in run.finish()
    again = ["train", "--run-dir", str(run.path), "--resume", "--program", str(PROGRAM), "--workers", "2"]
    with Run(run.path, "", command=again) as resumed:
        assert resumed.digest() == undisturbed


def test_the_length_of_a_run_is_fixed(start: Callable[..., Run]) -> None:
    run = start("asked_torch.py", *OPTIONS, "--workers", 1, shut=["step 20"])
    run.held_at("step 20")
    assert run.stop(held_at="step 20").returncode == 0
    run.wait()
    for other in ("--epochs=13", "--max-steps=90"):
        refused = cli("train", "--run-dir", run.path, "--resume", "--workers", 1, other)
        assert refused.returncode == 1
        assert f"is of a run of {STEPS} steps, from which its learning rate follows" in refused.stderr


@pytest.mark.parametrize(
    ("mode", "each"),
    [(("--slices", 4), 4), (("--mode", "async", "--staleness", 4), 1)],
    ids=["sync", "async"],
)
def test_keras(start: Callable[..., Run], mode: tuple[object, ...], each: int) -> None:
    options = ("--epochs", 9, "--batch-size", 32, *mode)
    digests = set()
    for workers in (1, 2):
        run = start("asked_tensorflow.py", *options, "--workers", workers)
        digests.add(run.digest())
        output = run.output()
        assert f"stopped early, after {3 * each} of {9 * each} steps: on_epoch(): three epochs" in output
        assert f"on_epoch(): from step {each} on the learning rate is times 0.5" in output
    assert len(digests) == 1 or "async" in mode


def test_check_tries_it(tmp_path: Path) -> None:
    assert "on_epoch(), of an epoch with cost and metrics 1." in cli("check", PROGRAM).stdout
    wrong = tmp_path / "wrong.py"
    text = PROGRAM.read_text().replace("from gates import pass_gate", "pass_gate = print")
    wrong.write_text(text.replace("info.metrics['accuracy']", "info.acc").replace(">= 7", ">= 0"))
    found = cli("check", wrong)
    assert found.returncode == 1
    assert (
        "wrong.py: on_epoch() raised AttributeError: 'EpochInfo' object has no attribute 'acc'"
        in found.stderr
    )
    wrong.write_text(text.replace(', "test": {"x": x[256:], "y": y[256:]}', ""))
    assert 'on_epoch() is told of evaluations, and there are none: data() returns no "test"' in (
        cli("check", wrong).stderr
    )


def test_who_does_not_come_back_is_replaced(
    start: Callable[..., Run], undisturbed: str, tmp_path: Path
) -> None:
    """As one that hangs anywhere else; who comes in its place is asked."""
    settings = tmp_path / "quick.yaml"
    settings.write_text("stall_s: 4\nheartbeat_s: 0.2\nsuspect_s: 2\nlost_s: 20\n")
    run = start(
        "asked_torch.py", "--config", settings, *OPTIONS, "--workers", 1, "--servers", 2, shut=["epoch 1"]
    )
    assert run.held_at("epoch 1") != run.held_at("epoch 1")
    run.open("epoch 1")
    assert run.digest() == undisturbed
