"""Histories drawn from a seed: what is to be computed, and what goes wrong when."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from elasticflow.step.schedule import Schedule

from .world import KINDS, SPARES_WORKERS, Fault, Shape, World

FOR_GOOD = float("inf")
MOST_APART = 20
"""Events between two faults of which the second meets what the first has left."""


def history(seed: int) -> World:
    """The same one for the same seed. One in four is asynchronous."""
    rng = random.Random(seed)
    shape, faults = draw_shape(rng), draw_faults(rng)
    shape = asynchronous(shape) if rng.random() < 0.25 else shape
    return World(with_deadly(shape, random.Random(~seed)), faults, seed)


def with_deadly(shape: Shape, rng: random.Random) -> Shape:
    """The same, in one of ten with one or two slices of which whoever computes them dies."""
    schedule = shape.schedule
    first = shape.start[1] if shape.start else 0
    ticks = [tick for tick in range(first, schedule.total_ticks) if not schedule.evaluates(tick)]
    if rng.random() >= 0.1 or not ticks:
        return shape
    drawn = {(rng.choice(ticks), rng.randrange(schedule.num_slices)) for _ in range(rng.choice((1, 1, 2)))}
    return replace(shape, deadly=tuple(sorted(drawn.difference(shape.bad))))


def asynchronous(shape: Shape) -> Shape:
    """The same, with slices applied one by one."""
    schedule = msgspec.structs.replace(shape.schedule, asynchronous=True)
    return replace(shape, schedule=schedule, clips=False, poisoned=())


def draw_shape(rng: random.Random) -> Shape:
    """What is to be computed, mostly little; from few schedules, since truth is dear."""
    num_slices, per_slice = rng.choice([1, 2, 4, 4, 8]), rng.randint(1, 2)
    batch_size = num_slices * per_slice
    schedule = Schedule(
        num_records=batch_size * rng.randint(1, 3) + rng.choice([0, 0, batch_size // 2]),
        num_test=rng.choice([0, 0, 3, 9]),
        batch_size=batch_size,
        num_slices=num_slices,
        epochs=rng.randint(1, 2),
    )
    start = None
    if rng.random() < 0.15:
        tick = rng.randrange(schedule.total_ticks)
        start = (schedule.steps_before(tick), tick) if not schedule.evaluates(tick) else None
    bad: tuple[tuple[int, int], ...] = ()
    if rng.random() < 0.1:
        tick = rng.randrange(start[1] if start else 0, schedule.total_ticks)
        bad = () if schedule.evaluates(tick) else ((tick, rng.randrange(num_slices)),)
    parcels = rng.choice([(1,), (2,), (1, 1), (1, 1), (2, 1), (1, 1, 1), (1, 0, 1, 1)])
    poisoned: tuple[tuple[int, int], ...] = ()
    if rng.random() < 0.25:
        ticks = range(start[1] if start else 0, schedule.total_ticks)
        steps = [tick for tick in ticks if not schedule.evaluates(tick)]
        chosen = rng.sample(steps, min(len(steps), rng.choice([1, 1, 2])))
        poisoned = tuple((tick, rng.randrange(sum(parcels))) for tick in chosen)
    heartbeat_s, suspect_s, lost_s = rng.choice([(0.1, 0.3, 4.0), (0.5, 2.0, 20.0)])
    return Shape(
        schedule=schedule,
        parcels=parcels,
        workers=rng.randint(1, min(3, num_slices)),
        clips=rng.random() < 0.2,
        checkpoint_every=rng.choice(["1 step", "2 steps", "3 steps", "0.05s", "60s", "60s"]),
        snapshot_s=rng.choice([0.0, 0.001, 0.02, 0.02, 0.1]),
        start=start,
        bad=bad,
        poisoned=poisoned,
        on_nan=rng.choice(["stop", "skip", "skip"]),
        slice_s=rng.choice([0.0005, 0.01, 0.05]),
        delay_s=rng.choice([0.0001, 0.001, 0.02]),
        write_s=rng.choice([0.01, 0.1, 1.0]),
        kill_s=rng.choice([0.0, 0.0, 0.0, 5.0]),
        failing=rng.choice([0.0, 0.0, 0.0, 0.5]),
        duplicates=rng.random() < 0.1,
        heartbeat_s=heartbeat_s,
        suspect_s=suspect_s,
        lost_s=lost_s,
    )


def draw_faults(rng: random.Random) -> list[Fault]:
    """Some alone, some one right after the other."""
    kinds = sorted(SPARES_WORKERS) if rng.random() < 0.15 else KINDS
    faults, after = [], 0
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 6])):
        close = faults and rng.random() < 0.4
        after = after + rng.randint(0, MOST_APART) if close else 1 + int(rng.expovariate(1 / 150))
        seconds = rng.choice([0.02, 0.1, 0.5, 3.0, FOR_GOOD])
        faults.append(Fault(after, rng.choice(kinds), rng.randrange(1 << 10), seconds))
    for kind, chance in (("stop", 0.1), ("kill master at the end", 0.05), ("black out", 0.05)):
        if rng.random() < chance and kinds is KINDS:
            faults.append(Fault(rng.randint(1, 400), kind))
    return faults
