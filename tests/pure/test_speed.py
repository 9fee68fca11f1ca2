"""How many steps were made of late, and in which time."""

from __future__ import annotations

from elasticflow.master.speed import TOGETHER_S, StepSpeed


def test_what_is_heard_at_once_was_not_made_at_once() -> None:
    """As by a master that has come in the place of another: 150,000 records/s, and an ETA of now."""
    speed = StepSpeed()
    speed.add(10.0, 40)
    speed.add(10.0003, 48)
    assert speed.recent(10.001) is None
    speed.add(11.0003, 56)
    assert speed.recent(11.0003) == (8, 1.0)


def test_steps_that_are_quick_are_counted_soon() -> None:
    speed = StepSpeed()
    for number in range(8):
        speed.add(number * TOGETHER_S / 4, number)
    found = speed.recent(2 * TOGETHER_S)
    assert found is not None and found[0] == 4
