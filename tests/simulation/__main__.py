"""``python -m tests.simulation SEED`` plays one history and tells it; ``FIRST..LAST`` plays many."""

from __future__ import annotations

import sys
import time

from .histories import history
from .world import simulated


def tell(seed: int, *, always: bool) -> bool:
    """Plays a history, and tells of it if it goes wrong. Whether it went well."""
    world = history(seed)
    try:
        end = world.run()
    except Exception as error:
        print(f"history {seed}: {type(error).__name__}: {error}")
        if always:
            print(world.shape, *world.all_faults, *world.hub.story, sep="\n")
        return False
    if always:
        print(world.shape, *world.all_faults, *world.hub.story, end, sep="\n")
    return True


def main() -> int:
    """See the module's docstring."""
    first, _, last = sys.argv[1].partition("..")
    begun_s, wrong = time.monotonic(), 0
    seeds = range(int(first), int(last or first) + 1)
    with simulated():
        for seed in seeds:
            wrong += not tell(seed, always=not last)
    print(f"{len(seeds)} histories in {time.monotonic() - begun_s:.1f} s, {wrong} went wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
