"""Loops of a program's own: the same model whoever computes, comes, goes and dies, wherever it is resumed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from .conftest import PROGRAMS, Run, cli

OPTIONS = ("--epochs", 2, "--batch-size", 40, "--slices", 8)
HOWS = ("push", "own", "rounds")
LATE = "step 9"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The digest of a run by one worker."""
    found: dict[str, str] = {}

    def digest(how: str) -> str:
        if how not in found:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HOW", how)
                folder = tmp_path_factory.mktemp(how) / "run"
                with Run(folder, "looped_torch.py", *OPTIONS, "--workers", 1) as run:
                    found[how] = run.digest()
        return found[how]

    return digest


def test_it_is_the_model_that_forward_gives(undisturbed: Callable[[str], str]) -> None:
    """Slices are eighths of a batch: the bits are the same, whether gradients are multiplied or costs."""
    assert undisturbed("push") == undisturbed("each") == undisturbed("forward")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    ("workers", "dies", "options"),
    [
        (2, "worker-1", ("--servers", 2)),
        (5, "server-0", ("--servers", 2)),
        (2, "master", ()),
        (2, "worker-2", ("--strategy", "all_reduce")),
    ],
)
def test_whoever_computes_and_dies(
    start: Callable[..., Run],
    undisturbed: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    workers: int,
    dies: str,
    options: tuple[object, ...],
) -> None:
    monkeypatch.setenv("HOW", how)
    monkeypatch.setenv("SLICE_S", "0.005")
    run = start("looped_torch.py", *OPTIONS, "--workers", workers, *options, shut=[LATE])
    run.wait_for_workers(workers)
    run.kill(dies)
    run.open(LATE)
    assert run.digest() == undisturbed(how)


def test_who_joins_between_two_rounds_of_a_step(
    start: Callable[..., Run], undisturbed: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only worker dies with the second round of a step: another one begins with that."""
    monkeypatch.setenv("HOW", "rounds")
    place = "step 6 again"
    run = start("looped_torch.py", *OPTIONS, "--workers", 1, shut=[place])
    pid = run.held_at(place)
    subprocess.run(["kill", "-9", str(pid)], check=True)
    run.open(place)
    assert run.digest() == undisturbed("rounds")


def test_grown_and_shrunk(
    start: Callable[..., Run], undisturbed: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "own")
    monkeypatch.setenv("SLICE_S", "0.005")
    run = start("looped_torch.py", *OPTIONS, "--workers", 1, shut=["step 4", LATE])
    run.held_at("step 4")
    assert cli("scale", run.path, 4).returncode == 0
    run.wait_for_workers(4)
    run.open("step 4")
    run.held_at(LATE)
    assert cli("scale", run.path, 2).returncode == 0
    run.open(LATE)
    assert run.digest() == undisturbed("own")


@pytest.mark.parametrize("how", HOWS)
def test_stopped_and_resumed(
    start: Callable[..., Run], undisturbed: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("HOW", how)
    run = start("looped_torch.py", *OPTIONS, "--workers", 2, shut=[LATE], name="run")
    run.wait_for_step(8)
    run.stop(held_at=LATE)
    code, output = run.wait()
    assert code == 3 and "go on with --resume" in output
    again = start("looped_torch.py", *OPTIONS, "--workers", 1, "--resume", name="run")
    assert again.digest() == undisturbed(how)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("returns late", "loop() returned after step 4"),
        ("another name", "no all_reduce of 'a 1', and in the first step there was one"),
        ("raises between", "loop() raised, outside of the loop over step.slices(), KeyError: 'gone'"),
        ("counts", "loop() gave something else for the same slice when it was given it again"),
    ],
)
def test_who_breaks_a_rule_is_told_so(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, how: str, words: str
) -> None:
    monkeypatch.setenv("HOW", how)
    run = start("unruly_torch.py", "--epochs", 2, "--batch-size", 12, "--slices", 2, "--workers", 1)
    code, output = run.wait()
    assert code == 1 and f"Error: {PROGRAMS / 'unruly_torch.py'}: " in output and words in output


@pytest.mark.parametrize("how", ["own", "rounds"])
def test_no_whole_steps_without_steps(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("HOW", how)
    code, output = start("looped_torch.py", "--batch-size", 40, "--workers", 1, "--mode", "async").wait()
    assert code == 1 and "all this is of whole steps" in output


def test_a_record_on_which_the_loop_raises_is_left_out(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "a bad record")
    digests = set()
    for workers in (1, 3):
        run = start(
            "unruly_torch.py", "--epochs", 2, "--batch-size", 12, "--slices", 4, "--workers", workers,
            "--max-quarantined", 1,
        )  # fmt: skip
        digests.add(run.digest())
        assert "row 31 is left out from now on" in run.output()
    assert len(digests) == 1
