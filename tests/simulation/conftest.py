"""The system is simulated for all tests of a module: to put that in place takes longer than a history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .world import simulated


@pytest.fixture(scope="module", autouse=True)
def system() -> Iterator[None]:
    with simulated():
        yield
