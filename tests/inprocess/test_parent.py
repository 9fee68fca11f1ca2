"""Processes that are forked where nobody expects it."""

from __future__ import annotations

import os

import pytest

from elasticflow.process.parent import EXIT_COPY, without_copies


@pytest.mark.parametrize("raises", [False, True])
def test_a_copy_that_comes_back_ends(raises: bool) -> None:
    """As of a program that forks in ``forward()``: it would send over its parent's connections."""
    own = os.getpid()
    try:
        with without_copies():
            child = os.fork()
            if not child and raises:
                raise ValueError("in the child alone")
    finally:
        if os.getpid() != own:
            os._exit(1)  # it has gone on
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == EXIT_COPY


def test_a_copy_that_ends_by_itself_is_left_alone() -> None:
    with without_copies():
        child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
