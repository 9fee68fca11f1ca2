"""What is known ahead of a share: hours of the day, windows, and what the cluster says of its nodes. Pure.

Of what comes again each day ``AHEAD_DAYS`` are planned; beyond, there are never more workers than at any time
until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from datetime import time as Clock
from math import inf

import msgspec

from elasticflow.cluster.share import AHEAD_DAYS, ShareNode, units
from elasticflow.errors import ConfigError
from elasticflow.scheduler.cluster import ClusterShape

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
AGAIN_S = 86400.0
"""So often it is told anew: what is known ahead must not come to its end."""
MOST_TOLD = 6


class Hours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """From then until then no more than ``workers``.

    since, until: times of day, "08:00", every day or on those of ``days``, on which it begins; or moments,
    "2026-11-25T06:00". An ``until`` that is no later than ``since`` is on the next day.
    """

    since: str
    until: str
    workers: int
    days: list[str] = []

    def __post_init__(self) -> None:
        told = f"hours: from {self.since} until {self.until}"
        if self.workers < 0:
            raise ConfigError(f"{told}: {self.workers} workers; there cannot be fewer than none.")
        if unknown := [day for day in self.days if day not in DAYS]:
            raise ConfigError(f"{told}: days {', '.join(unknown)}; known are {', '.join(DAYS)}.")
        since, until = _read(self.since), _read(self.until)
        if since is None or until is None or isinstance(since, datetime) != isinstance(until, datetime):
            raise ConfigError(
                f'{told}: both have to be times of day, "08:00", in quotation marks, or both moments, '
                '"2026-11-25T06:00".'
            )
        if isinstance(since, datetime) and (self.days or until <= since):  # type: ignore[operator]
            raise ConfigError(f"{told}: a window ends after it begins, and has no days.")

    def spans(self, first: date, num_days: int) -> list[tuple[datetime, datetime]]:
        """Of local time: those that begin on these days, or the one window."""
        since, until = _read(self.since), _read(self.until)
        if isinstance(since, datetime) and isinstance(until, datetime):
            return [(since, until)]
        assert isinstance(since, Clock) and isinstance(until, Clock)
        found = []
        for number in range(num_days):
            day = first + timedelta(days=number)
            if not self.days or DAYS[day.weekday()] in self.days:
                end = day if until > since else day + timedelta(days=1)
                found.append((datetime.combine(day, since), datetime.combine(end, until)))
        return found


def foreseen(
    hours: Sequence[Hours], workers: int, now_s: float, seconds: Callable[[datetime], float] | None = None
) -> list[tuple[float, int]]:
    """From when on how many workers may be used, the last for ever. Where several apply, the least.

    workers: that there are at other times. seconds: since 1970, of a local time.
    """
    seconds = seconds or datetime.timestamp
    if not hours:
        return [(now_s, workers)]
    today = datetime.fromtimestamp(now_s).date() - timedelta(days=1)
    spans = [
        (seconds(start), seconds(end), each.workers)
        for each in hours
        for start, end in each.spans(today, AHEAD_DAYS + 1)
    ]
    last_s = seconds(datetime.combine(today + timedelta(days=AHEAD_DAYS), Clock()))
    edges_s = sorted({one for span in spans for one in span[:2] if now_s < one < last_s})

    def at(time_s: float) -> int:
        return min([workers, *(most for start_s, end_s, most in spans if start_s <= time_s < end_s)])

    steps = [(time_s, at(time_s)) for time_s in (now_s, *edges_s)]
    steps.append((last_s, min(most for _, most in steps)))
    return _changes(steps)


def left_by(nodes: Sequence[ShareNode], slots: int, workers: int, now_s: float) -> list[tuple[float, int]]:
    """From when on how many workers there may be beside what takes nodes of the share; empty: nothing does.

    slots: of a part of a node. A node that is away counts only if that is because it is taken just now: who
    is drained may be so for long. Begins in 1970: it is the same as long as the nodes are.
    """

    def taken(node: ShareNode, time_s: float) -> bool:
        return any(start_s <= time_s < end_s for start_s, end_s in node.taken)

    edges_s = sorted({one for node in nodes for span in node.taken for one in span if 0.0 < one < inf})
    there = [node for node in nodes if not node.away or taken(node, now_s)]
    steps = [
        (
            time_s,
            min(workers, slots * sum(len(units(node, slots)) for node in there if not taken(node, time_s))),
        )
        for time_s in (0.0, *edges_s)
    ]
    return _changes(steps) if any(node.taken for node in nodes) else []


def both(
    first: Sequence[tuple[float, int]], second: Sequence[tuple[float, int]], now_s: float
) -> list[tuple[float, int]]:
    """The least of two, each from when on how many and the last for ever, from now on. Empty: any number."""
    known = [steps for steps in (first, second) if steps]
    if not known:
        return []
    times_s = sorted({now_s, *(from_s for steps in known for from_s, _ in steps if from_s > now_s)})

    def at(steps: Sequence[tuple[float, int]], time_s: float) -> int:
        return next((most for from_s, most in reversed(steps) if from_s <= time_s), steps[0][1])

    return _changes([(time_s, min(at(steps, time_s) for steps in known)) for time_s in times_s])


def told(steps: Sequence[tuple[float, int]]) -> str:
    """The first ones of what is known ahead, for people."""
    if len(steps) < 2:
        return f"{steps[0][1]} workers from now on" if steps else "all workers from now on"
    later = [f"{most} from {datetime.fromtimestamp(from_s):%Y-%m-%d %H:%M:%S}" for from_s, most in steps[1:]]
    more = ", ..." if len(later) > MOST_TOLD else ""
    return f"{steps[0][1]} workers now, {', '.join(later[:MOST_TOLD])}{more}"


class Foresight:
    """What is known ahead of a share, told when there is news, and each day."""

    def __init__(self, hours: Sequence[Hours], shape: ClusterShape) -> None:
        self._hours, self._shape = hours, shape
        self._left: list[tuple[float, int]] = []
        """By the cluster."""
        self._due_s = 0.0

    def see(self, nodes: Sequence[ShareNode], now_s: float) -> str:
        """So the cluster tells of its nodes. What is new of that, for people; "": nothing."""
        left = left_by(nodes, self._shape.gpus_per_node, self._shape.num_gpus, now_s)
        if left == self._left:
            return ""
        self._left, self._due_s = left, now_s
        return told(both(left, [], now_s))

    def news(self, now_s: float, *, was_told: bool) -> list[tuple[float, int]]:
        """Empty: nothing is to be told. was_told: something was, before."""
        if now_s < self._due_s:
            return []
        self._due_s = now_s + AGAIN_S
        if not self._hours and not self._left and not was_told:
            return []
        return both(foreseen(self._hours, self._shape.num_gpus, now_s), self._left, now_s)


def _changes(steps: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    return [step for number, step in enumerate(steps) if not number or step[1] != steps[number - 1][1]]


def _read(text: str) -> datetime | Clock | None:
    for kind in (Clock, datetime):
        try:
            found = kind.fromisoformat(text)
        except ValueError:
            continue
        return None if found.tzinfo else found
    return None
