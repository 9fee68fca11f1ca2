"""Which worker carries which places, under ``strategy: all_reduce``: a pure function of who is there."""

from __future__ import annotations

from collections.abc import Sequence


def assign(carriers: Sequence[str], current: Sequence[str]) -> tuple[str, ...]:
    """By place, the carrier that it is to have: as even as can be, and only those move that must.

    carriers: all that there are, none twice, in the order in which they get one more where it does not come
    out even. current: by place, who carries it now; somebody who is not among them any more, or "", carries
    none. Of those that must go from a carrier it is the last places, so the leading one seldom moves.
    """
    held: dict[str, list[int]] = {name: [] for name in carriers}
    homeless = [place for place, name in enumerate(current) if name not in held]
    for place, name in enumerate(current):
        if name in held:
            held[name].append(place)
    if not carriers:
        return ("",) * len(current)
    least, more = divmod(len(current), len(carriers))
    fullest_first = sorted(carriers, key=lambda name: -len(held[name]))
    room = {name: least + (rank < more) for rank, name in enumerate(fullest_first)}
    for name, places in held.items():
        homeless += places[room[name] :]
        del places[room[name] :]
    homeless.sort(reverse=True)
    for name in carriers:
        while len(held[name]) < room[name]:
            held[name].append(homeless.pop())
    found = {place: name for name, places in held.items() for place in places}
    return tuple(found[place] for place in range(len(current)))
