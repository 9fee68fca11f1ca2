"""Which workers share relays, under ``strategy: all_reduce``: pure functions of who is there.

Up to ``most`` workers talk to the servers themselves. Beyond that they make groups of at most so many, and
of each group a server hears by one relay alone. Who is in a group stays there; who comes later takes a free
place, or talks to the servers until there are enough for another group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import count, islice

DIRECT = -1
"""Instead of a group: straight to the servers."""


def arrange(workers: Sequence[str], current: Mapping[str, int], most: int, taken: Set[int]) -> dict[str, int]:
    """By worker, the group that it is to be in. current: those of who is in one. taken: numbers that no new
    group is to have."""
    found = {worker: current.get(worker, DIRECT) for worker in workers}
    groups = {*found.values()} - {DIRECT}
    if len(workers) <= most and (not groups or 2 * len(workers) <= most):
        return dict.fromkeys(workers, DIRECT)
    if 2 * len(workers) <= (len(groups) - 1) * most:  # too few for so many
        return _dealt(workers, most, taken)
    for worker in workers:
        if found[worker] == DIRECT:
            found[worker] = free_group(groups, found.values(), most)
    direct = [worker for worker in workers if found[worker] == DIRECT]
    return found | _dealt(direct, most, taken) if len(groups) + len(direct) > most else found


def free_group(groups: Iterable[int], taken: Iterable[int], most: int) -> int:
    """The smallest of these groups, if it has room for one more. taken: the group of each worker."""
    sizes = Counter(taken)
    smallest = min(groups, key=lambda group: (sizes[group], group), default=DIRECT)
    return smallest if sizes[smallest] < most else DIRECT


def _dealt(workers: Sequence[str], most: int, taken: Set[int]) -> dict[str, int]:
    """In as few groups as can be, as even as can be."""
    size = -(-len(workers) // most)
    numbers = list(islice((number for number in count() if number not in taken), size))
    return {worker: numbers[place * size // len(workers)] for place, worker in enumerate(workers)}
