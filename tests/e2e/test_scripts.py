"""Plain scripts of other libraries, unchanged: the same model whoever computes and dies."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

import elasticflow as ef

from .conftest import Run


def of(library: str, late: str) -> object:
    """late: where its script can be held."""
    missing = pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")
    return pytest.param(f"train_{library}.py", late, marks=missing, id=library)


@pytest.mark.parametrize(
    ("script", "late"), [of("keras", "epoch 2"), of("lightning", "epoch 2"), of("transformers", "late")]
)
def test_whoever_computes_and_dies(start: Callable[..., Run], script: str, late: str) -> None:
    run = start(script, "--slices", 4, "--workers", 1)
    undisturbed = run.digest()
    found = ef.Run(run.path)
    assert found.metrics["epoch"] == [1, 2, 3], "as the script says"
    assert found.metrics["cost"][-1] < found.metrics["cost"][0]
    both = ("--strategy", "all_reduce") if script != "train_keras.py" else ()
    run = start(script, "--slices", 4, "--workers", 3, *both, shut=[late])
    run.wait_for_workers(3)
    run.held_at(late)
    run.kill("worker-1")
    run.open(late)
    assert run.digest() == undisturbed
    if not both:
        run = start(script, "--slices", 4, "--workers", 2, "--strategy", "all_reduce")
        assert run.digest() == undisturbed
