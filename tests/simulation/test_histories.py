"""Random histories of whole runs by the product's own processes: the same model, and an end, in each of them.

A history that fails is played again, and told, by ``python -m tests.simulation SEED``.
``ELASTICFLOW_HISTORIES`` says how many are tried.
"""

from __future__ import annotations

import os

import pytest

from .__main__ import play_many
from .histories import history
from .world import Fault, Shape, World

NUM_HISTORIES = int(os.environ.get("ELASTICFLOW_HISTORIES", "600"))
AT_ONCE = 100
"""Histories of one test."""


@pytest.mark.parametrize("first", range(0, NUM_HISTORIES, AT_ONCE))
def test_random_histories(first: int) -> None:
    _, wrong = play_many(range(first, min(first + AT_ONCE, NUM_HISTORIES)), stops=False)
    assert not wrong, "they are told above"


def test_a_history_is_the_same_each_time() -> None:
    for seed in range(10):
        one, other = history(seed), history(seed)
        assert one.run() == other.run()
        assert (one.hub.num_events, one.hub.now_s) == (other.hub.num_events, other.hub.now_s)


@pytest.mark.parametrize("seed", range(12))
def test_a_late_answer_is_not_taken_for_that_to_the_last_question(seed: int) -> None:
    """Who computes slices of an evaluation for others asks for the next version once more. The answer to that
    came when it had asked for what was applied since, asynchronously; and memory was used again too early."""
    shape = Shape(
        num_records=24,
        num_test=9,
        asynchronous=True,
        optimizer="sgd",
        servers=1 + seed % 2,
        shared_memory=True,
        slice_s=0.05,
        delay_s=0.02,
        checkpoint_every="60s",
        heartbeat_s=0.1,
        suspect_s=0.3,
        lost_s=4.0,
    )
    World(shape, [Fault(60 + seed, "kill worker", 343), Fault(100, "slow worker", seed, 0.5)], seed).run()
