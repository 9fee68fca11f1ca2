"""A short piece of ``python -m benchmarks fuzz``: mutated bytes against real sockets in real processes."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

import pytest

from benchmarks.fuzz import Attack, Mutator, attack_control, attack_data

ROOM_MB = 64
"""For what a frame of the largest size, read and dropped, may leave behind; not for what piles up."""


@pytest.mark.parametrize(
    ("attack", "mad", "count"),
    [
        (attack_data, False, 8000),
        (attack_data, True, 6000),
        (attack_control, False, 1000),
        (attack_control, True, 5000),
    ],
    ids=["data, strangers", "data, a mad member", "control, strangers", "control, a mad member"],
)
def test_mutated_messages_do_nothing(
    attack: Callable[[random.Random, int, bool], Attack], mad: bool, count: int
) -> None:
    """Raises if the target dies, or the healthy member is not served, or not right."""
    seed = secrets.randbits(32)
    print(f"seed: {seed}")  # shown if this fails
    done = attack(random.Random(seed), count, mad)
    assert done.thrown == count and done.rounds >= 20
    assert done.outcome.dropped + done.outcome.refused > count / 2
    assert done.outcome.peak_mb - done.outcome.begun_mb < ROOM_MB


def test_mutations_of_a_seed_are_always_the_same() -> None:
    corpus = [bytes(range(50)), b"another"]
    one, other = (Mutator(random.Random(7), corpus) for _ in range(2))
    made = [one() for _ in range(500)]
    assert made == [other() for _ in range(500)]
    assert len(set(made)) > 300 and not {*made} <= {*corpus}
