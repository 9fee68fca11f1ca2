"""Histories drawn from a seed: what is to be computed, and what goes wrong when."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec

from elasticflow.training.standing import Plateau, Watch, WatchRules

from .world import CUTS, KINDS, MOVES, SPARES_WORKERS, TRAPS, Fault, Shape, World

WORKS = 40
"""So many kinds of work there are: what each comes to has to be found out, which is dear."""
CARRIED = 0.4
"""Of the synchronous histories in so many the workers carry the servers."""
RELAYED = 0.7
"""Of these, if there are slices for more than two workers, in so many relays stand between."""
LAGS, LAGS_S = 0.35, (0.05, 0.25)
"""In so many histories connections lag by so much, at most."""
ONLY_CUTS, TRAPPING = 0.15, 0.25
BEREFT = 0.15
"""In so many a new master loses, before it has heard much, those who know what it does not."""
ASKED = 0.4
"""Of the kinds of work that have evaluations in so many the program is asked what it says to them."""
CROWDED, STILLBORN, STRICT, FAILING = 0.2, 0.1, 0.3, 0.1
HOMELESS, HOMELESS_S = 0.3, (2.0, 8.0, 20.0)
"""In so many of those with one server others have no place for so long: who stands by, or takes its place."""
APART = (5, 20, 100)
"""So many events, at most, lie between two faults of which the second meets what the first has left."""
SELDOM = (("stop", 0.08), ("kill master at the end", 0.05), ("black out", 0.04), ("power cut", 0.04))
FOR_GOOD = float("inf")


def history(seed: int) -> World:
    """The same one for the same seed."""
    rng = random.Random(seed)
    shape = draw_shape(rng)
    if not shape.asynchronous and random.Random(~seed).random() < CARRIED:
        shape = replace(shape, carried=True, moves=False)
        if random.Random(f"relays {seed}").random() < RELAYED and shape.slices > 2:
            workers = random.Random(f"workers {seed}").randint(3, min(5, shape.slices))
            # Longer ones: relays begin once workers and places have come to rest.
            shape = replace(shape, workers=workers, peers=2, epochs=3 * shape.epochs)
    faults = draw_faults(rng, moves=shape.moves)
    shape, faults = draw_more(random.Random(f"more {seed}"), shape, faults)
    return World(*draw_seldom(random.Random(f"seldom {seed}"), shape, faults), seed)


def draw_more(rng: random.Random, shape: Shape, faults: list[Fault]) -> tuple[Shape, list[Fault]]:
    """Connections of which some are slower than others; connections that are lost, and made anew, again and
    again; deaths of those who depend on what somebody just does; and a master's death before another's."""
    if rng.random() < LAGS:
        shape = replace(shape, lag_s=rng.choice(LAGS_S))
    if rng.random() < ONLY_CUTS:
        kinds, after = rng.choice([CUTS[:1], CUTS[:3], CUTS]), 0
        faults = []
        for _ in range(rng.randint(1, 8)):
            after += rng.choice([rng.randint(0, 20), 1 + int(rng.expovariate(1 / 200))])
            faults.append(
                Fault(after, rng.choice(kinds), rng.randrange(1 << 10), rng.choice([0.1, 0.5, 1.5]))
            )
    elif rng.random() < TRAPPING:
        for _ in range(rng.randint(1, 4)):
            after = 1 + int(rng.expovariate(1 / 250))
            faults = [*faults, Fault(after, rng.choice(TRAPS), rng.randrange(1 << 10))]
    elif rng.random() < BEREFT:
        after = 1 + int(rng.expovariate(1 / 500))
        soon = after + rng.randint(0, rng.choice(APART))
        faults = [
            *faults,
            Fault(after, "kill master"),
            Fault(soon, rng.choice(["kill leader", "kill worker"])),
        ]
    return shape, faults


def draw_seldom(rng: random.Random, shape: Shape, faults: list[Fault]) -> tuple[Shape, list[Fault]]:
    """Several servers with each worker; who hangs before it is anybody; losses while the program is asked;
    records that end the run; places that have run out of something; and a cluster that is full."""
    if shape.carried and shape.slices > 1 and shape.peers > 2 and rng.random() < CROWDED:
        workers = max(2, shape.workers)
        shape = replace(shape, workers=workers, servers=2 * workers, parcel_bytes=64)
    if rng.random() < STILLBORN:
        after = 1 + int(rng.expovariate(1 / 400))
        faults = [*faults, Fault(after, "freeze newcomer", 0, rng.choice([0.5, FOR_GOOD, FOR_GOOD]))]
    if shape.rules.consults and rng.random() < TRAPPING:
        after = 1 + int(rng.expovariate(1 / 250))
        faults = [*faults, Fault(after, "trap consult", rng.randrange(1 << 10))]
    if (shape.bad or shape.deadly) and rng.random() < STRICT:
        shape = replace(shape, strict=True, checkpoint_every=rng.choice([shape.checkpoint_every, "60s"]))
    if rng.random() < FAILING:
        often = rng.choice([shape.checkpoint_every, "60s"])
        shape = replace(shape, max_failures=rng.choice([0, 1, 100]), checkpoint_every=often)
        faults = rng.choice([faults, []])
        for _ in range(rng.randint(1, 3)):
            after = 1 + int(rng.expovariate(1 / 400))
            faults = [*faults, Fault(after, "fail worker", rng.randrange(1 << 10))]
    if shape.servers == 1 and not shape.carried and rng.random() < HOMELESS:
        shape = replace(shape, homeless_s=rng.choice(HOMELESS_S))
    return shape, faults


def draw_work(number: int) -> dict[str, object]:
    """What decides the bits."""
    rng = random.Random(number)
    slices, per_slice = rng.choice([1, 2, 2, 4, 4, 8]), rng.randint(1, 2)
    batch = slices * per_slice
    asynchronous = rng.random() < 0.25
    num_records = batch * rng.randint(1, 4) + rng.choice([0, 0, batch // 2])
    num_test = rng.choice([0, 3, 9])
    rules = draw_rules(rng, asynchronous) if num_test and rng.random() < 0.6 else WatchRules()
    odd = rng.choice(["", "", "", "", "bad", "deadly", "poisoned", "poisoned"])
    work: dict[str, object] = {
        **({odd: (rng.randrange(num_records),)} if odd else {}),
        "on_nan": rng.choice(["stop", "skip", "skip"]),
        "num_records": num_records,
        "num_test": num_test,
        "per_slice": per_slice,
        "slices": slices,
        "epochs": 2 if rules.any else rng.choice([1, 1, 1, 2]),
        "asynchronous": asynchronous,
        "optimizer": "sgd" if asynchronous else rng.choice(["sgd", "momentum", "adam"]),
        "clips": not asynchronous and rng.random() < 0.2,
        "tables": rng.random() < 0.2,
        "compression": "bf16" if not asynchronous and rng.random() < 0.15 else "none",
        "evaluate_every": rng.choice([1, 1, 2] if rules.any else [0, 0, 1, 2, 3]),
        "rules": rules,
        "staged": not asynchronous and rng.random() < 0.15,
    }
    if rng.random() < 0.2:
        work |= {"thaws": True, "epochs": 2}
    if num_test and random.Random(~number).random() < ASKED:
        work["rules"] = msgspec.structs.replace(rules, consults="its hash")
    return work


def draw_rules(rng: random.Random, asynchronous: bool) -> WatchRules:
    """What evaluations decide, if there are any; a learning rate is only the synchronous program's."""
    watch = {"metric": rng.choice(["cost", "error"]), "mode": rng.choice(["min", "max"])}
    stopping = Watch(**watch, patience=rng.choice([1, 2])) if rng.random() < 0.8 else None
    plateau = Plateau(**watch, patience=1, factor=0.5, least=0.01) if rng.random() < 0.5 else None
    best = Watch(**watch) if rng.random() < 0.5 else None
    return WatchRules(stopping=stopping, best=best, plateau=None if asynchronous else plateau)


def draw_shape(rng: random.Random) -> Shape:
    """What is to be computed, mostly little."""
    work = draw_work(rng.randrange(WORKS))
    heartbeat_s, suspect_s, lost_s = rng.choice([(0.4, 1.0, 3.0), (1.0, 2.5, 10.0)])
    drawn = Shape(
        **work,  # type: ignore[arg-type]
        workers=rng.randint(1, min(3, int(str(work["slices"])))),
        servers=rng.choice([1, 1, 2, 2, 3]),
        parcel_bytes=rng.choice([128, 256, 1 << 20, 1 << 20]),
        shared_memory=rng.random() < 0.5,
        slowness=rng.choice([(1.0,), (1.0, 1.0, 4.0), (1.0, 1.0, 8.0)]),
        overlap=rng.random() < 0.7,
        checkpoint_every=rng.choice(["1 step", "1 step", "2 steps", "3 steps", "0.05s", "60s"]),
        snapshot_s=rng.choice([0.0, 0.001, 0.02, 0.1, 0.5]),
        slice_s=rng.choice([0.0005, 0.01, 0.01, 0.05, 0.05, 0.15]),
        delay_s=rng.choice([0.0001, 0.001, 0.02]),
        write_s=rng.choice([0.01, 0.01, 0.1, 0.5]),
        kill_s=rng.choice([0.0, 0.0, 0.0, 5.0]),
        heartbeat_s=heartbeat_s,
        suspect_s=suspect_s,
        lost_s=lost_s,
        stall_s=3 * lost_s,
        moves=rng.random() < 0.2,
    )
    return replace(drawn, stall_s=max(drawn.stall_s, 2 * drawn.longest_slice_s))  # nobody sets it to less


def draw_faults(rng: random.Random, *, moves: bool) -> list[Fault]:
    """Some alone, some one right after the other."""
    kinds = sorted(SPARES_WORKERS) if rng.random() < 0.15 else [*KINDS, *(MOVES * 4 if moves else ())]
    if rng.random() < 0.5:  # a few, again and again: what they do to each other is seen by itself
        kinds = rng.sample(kinds, 3)
    faults: list[Fault] = []
    after = 0
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4, 6, 8])):
        close = faults and rng.random() < 0.5
        after = after + rng.randint(0, rng.choice(APART)) if close else 1 + int(rng.expovariate(1 / 350))
        seconds = rng.choice([0.02, 0.1, 0.5, 3.0, FOR_GOOD])
        faults.append(Fault(after, rng.choice(kinds), rng.randrange(1 << 10), seconds))
    for kind, chance in SELDOM:
        if rng.random() < chance and not SPARES_WORKERS.issuperset(kinds):
            faults.append(Fault(rng.randint(1, 1500), kind))
    return faults
