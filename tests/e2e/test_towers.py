"""Steps of two ticks: the same model whoever encodes, computes, and dies between the two."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Run, digest_in

OPTIONS = ("--epochs", 2, "--batch-size", 40, "--slices", 8)
LATE = "step 9"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Run(tmp_path_factory.mktemp("undisturbed") / "run", "towers.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


@pytest.mark.parametrize(
    ("workers", "servers", "dies"), [(2, 2, "worker-1"), (5, 1, "server-0"), (3, 2, "master")]
)
def test_whoever_computes_and_dies(
    start: Callable[..., Run],
    undisturbed: str,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    servers: int,
    dies: str,
) -> None:
    monkeypatch.setenv("SLICE_S", "0.005")
    run = start("towers.py", *OPTIONS, "--workers", workers, "--servers", servers, shut=[LATE])
    run.wait_for_workers(workers)
    run.kill(dies)
    run.open(LATE)
    assert run.digest() == undisturbed


def test_stopped_and_resumed(start: Callable[..., Run], undisturbed: str) -> None:
    """Never in the middle of a step."""
    run = start("towers.py", *OPTIONS, "--workers", 2, shut=[LATE], name="run")
    run.wait_for_step(8)
    run.stop(held_at=LATE)
    code, output = run.wait()
    assert code == 3 and "go on with --resume" in output
    again = start("towers.py", *OPTIONS, "--workers", 1, "--resume", name="run")
    assert again.digest() == undisturbed


def test_a_record_that_cannot_be_encoded_is_left_out(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAD", "57")
    digests = set()
    for workers, servers in ((1, 1), (3, 2)):
        run = start("towers.py", *OPTIONS, "--workers", workers, "--servers", servers, "--max-quarantined", 1)
        output = run.finish()
        digests.add(digest_in(output))
        assert "row 57 is left out from now on" in output
    assert len(digests) == 1


def test_in_tensorflow(start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_TENSORFLOW", "1")
    digests = {start("towers.py", *OPTIONS, "--workers", workers).digest() for workers in (1, 2)}
    assert len(digests) == 1
