"""``python -m tests.simulation SEED`` plays one history, and tells it; ``FIRST..LAST`` plays many.

``hunt SECONDS`` plays them from the first until one goes wrong, or so much processor time is used up.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable
from itertools import count, takewhile

from .histories import history
from .world import simulated

LATE_S = 30
"""A history that takes so much longer has no end, and the process is ended."""


def play(seed: int, *, tell: bool = False) -> str:
    """Plays a history. What goes wrong in it; "" if nothing does."""
    world = history(seed)
    try:
        end, wrong = world.run(), ""
    except Exception as error:  # noqa: BLE001  (it is told with its seed)
        end, wrong = None, f"history {seed}: {type(error).__name__}: {error}"
    if tell:
        print(world.shape, *world.all_faults, *world.hub.story, end, sep="\n")
    return wrong


def play_many(seeds: Iterable[int], *, stops: bool) -> tuple[int, int]:
    """How many there were, and how many went wrong. stops: after the first of these."""
    number = wrong = 0
    with simulated():
        for seed in seeds:
            number += 1
            if text := play(seed):
                print(text, flush=True)
                wrong += 1
            if wrong and stops:
                break
    return number, wrong


def main() -> int:
    """See the module's docstring."""
    begun_s = time.monotonic()
    if sys.argv[1] == "hunt":
        seconds = int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds + LATE_S, seconds + LATE_S))
        seeds = takewhile(lambda _: time.process_time() < seconds, count())
        number, wrong = play_many(seeds, stops=True)
    elif ".." not in sys.argv[1]:
        wrong = bool(text := play(int(sys.argv[1]), tell=True))
        print(text or "it went well")
        return wrong
    else:
        first, _, last = sys.argv[1].partition("..")
        number, wrong = play_many(range(int(first), int(last) + 1), stops=False)
    print(f"{number} histories in {time.monotonic() - begun_s:.1f} s, {wrong} went wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
