"""Jobs of benchmarks: what is refused is told, and not waited for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.cases import MIDDLE
from benchmarks.jobs import Job, job
from benchmarks.moves import Scene
from elasticflow.errors import RunError

WAITS: list[Callable[[Job], object]] = [lambda one: one.wait_until(1), lambda one: Scene(one).settle(1)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wait", WAITS)
def test_a_command_that_refuses_its_options_ends_the_wait(wait: Callable[[Job], object]) -> None:
    with job(MIDDLE, "--workers", "none") as one, pytest.raises(RunError, match="is neither N nor MIN"):
        wait(one)
