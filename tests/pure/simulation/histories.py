"""Histories drawn from a seed: what is to be computed, and what goes wrong when."""

from __future__ import annotations

import random

from elasticflow.schedule import Schedule

from .simulator import Fault, Shape, World

KINDS = ("kill", "kill", "kill", "freeze", "freeze", "slow", "scale", "cut")


def history(seed: int) -> World:
    """The same one for the same seed."""
    rng = random.Random(seed)
    shape = _shape(rng)
    faults = [_fault(rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 6]))]
    if rng.random() < 0.1:
        faults.append(Fault(rng.randint(50, 300), "stop"))
    return World(shape, faults, seed)


def _shape(rng: random.Random) -> Shape:
    num_slices = rng.choice([1, 2, 4, 4, 8])
    batch_size = num_slices * rng.randint(1, 2)
    schedule = Schedule(
        num_records=batch_size * rng.randint(1, 3) + rng.randint(0, batch_size - 1),
        num_test=rng.choice([0, 0, 3, 9]),
        batch_size=batch_size,
        num_slices=num_slices,
        epochs=rng.randint(1, 2),
    )
    start = None
    if rng.random() < 0.2:
        tick = rng.randrange(schedule.total_ticks)
        start = schedule.steps_before(tick), tick
    bad = ()
    if rng.random() < 0.1:
        tick = rng.randrange(start[1] if start else 0, schedule.total_ticks)
        bad = () if schedule.evaluates(tick) else ((tick, rng.randrange(num_slices)),)
    return Shape(
        schedule=schedule,
        parcels=tuple(rng.randint(1, 2) for _ in range(rng.randint(1, 3))),
        workers=rng.randint(1, min(4, num_slices)),
        clips=rng.random() < 0.2,
        checkpoint_every=rng.choice(["1 step", "2 steps", "3 steps", "0.05s", "60s"]),
        start=start,
        bad=bad,
        slice_s=rng.choice([0.0005, 0.01, 0.05]),
        delay_s=rng.choice([0.0001, 0.001, 0.02]),
        failing_writes=rng.choice([0.0, 0.0, 0.0, 0.5]),
        lost_s=rng.choice([2.0, 60.0]),
    )


def _fault(rng: random.Random) -> Fault:
    seconds = rng.choice([0.02, 0.1, 0.5, 3.0])
    return Fault(1 + int(rng.expovariate(1 / 120)), rng.choice(KINDS), rng.randrange(1 << 10), seconds)
