"""A share of a SLURM cluster: nodes of some partitions, or of a reservation, with an account and a QOS."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Any

from elasticflow.cluster.share import AHEAD_DAYS, ClusterShare, ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.folder import HostJob
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import (
    LimitReached,
    Partition,
    PlaceRefused,
    Reservation,
    SlurmBusy,
    SlurmNode,
    time_s,
)
from elasticflow_slurm.command_line import SlurmClient
from elasticflow_slurm.comments import LEADER, jobs_of
from elasticflow_slurm.config import SlurmConfig, read

AGAIN = {
    "HOURLY": timedelta(hours=1),
    "DAILY": timedelta(days=1),
    "WEEKDAY": timedelta(days=1),
    "WEEKEND": timedelta(days=1),
    "WEEKLY": timedelta(days=7),
}
"""Flags of reservations that come again, by local time."""
SATURDAY = 5


class SlurmShare(ClusterShare):
    """See ClusterShare."""

    passing = (SlurmBusy, LimitReached, PlaceRefused)  # the places are the service's: no run is to blame
    of_service = ("leader", "workers", "gpus", "gpu_type", "cpus", "mem", "sbatch")

    def __init__(self, section: dict[str, Any], client: SlurmClient | None = None) -> None:
        super().__init__(section)
        self._slurm = read(section)
        if any(place.constraint for place in self._slurm.workers):
            raise ConfigError(
                "slurm.workers: a service cannot count the nodes of a constraint; give it a partition or a "
                "reservation of its own."
            )
        self._client = client or choose(os.environ)

    def nodes(self) -> list[ShareNode]:
        known = {partition.name: partition for partition in self._client.partitions()}
        default = next((each.name for each in known.values() if each.is_default), "")
        wanted = {(place.partition or default, place.reservation) for place in self._slurm.workers}
        if missing := sorted(name for name, _ in wanted if name not in known):
            raise ConfigError(
                f"slurm.workers: SLURM has no partition {missing[0] or '(and none is the default)'}; there "
                f"are {', '.join(sorted(known))}."
            )
        found: dict[str, ShareNode] = {}
        nodes = self._client.nodes()
        reserved = {each.name: each for each in self._client.reservations()}
        asked = {each for _, names in wanted for each in names.split(",") if each}
        if missing := sorted(asked - reserved.keys()):
            there = f"there are {', '.join(sorted(reserved))}" if reserved else "there is none"
            raise ConfigError(f"slurm.workers: SLURM has no reservation {missing[0]}; {there}.")
        now_s = time.time()
        taken = taken_of(list(reserved.values()), asked, nodes, now_s)
        for node in nodes:
            for name in [name for of, name in wanted if of == node.partition]:
                own = [reserved[each] for each in name.split(",") if each]
                if own and not any(node.name in each.nodes or each.is_flexible for each in own):
                    continue
                closed = "" if known[node.partition].is_up else f"partition {node.partition} is down"
                away = closed or node.away(reserved=bool(name))
                slots = slots_of(node, self._slurm)
                limit_s = self._limit_s(known[node.partition])
                times = [(start_s - limit_s, end_s) for start_s, end_s in taken.get(node.name, ())]
                times += beside(own[0], now_s) if len(own) == 1 else []  # of several SLURM chooses one
                told = ShareNode(node.name, slots, away, node.doubtful, tuple(times))
                before = found.get(node.name)
                if before and not before.away and not away:  # it may be had in either place
                    told = told._replace(taken=in_both(before.taken, told.taken))
                if not before or not away:  # in one partition may be what in another may not
                    found[node.name] = told
        return list(found.values())

    def _limit_s(self, partition: Partition) -> float:
        """So long before a node is taken SLURM begins no worker there any more: it might not have left."""
        asked = self._slurm.time_min or self._slurm.time
        told = time_s(asked) if asked else partition.time_limit_s
        return inf if told is None else told

    def num_places(self, job: HostJob) -> int:
        jobs = jobs_of(job.run, self._client.jobs())
        return sum(name.startswith("worker-") and not each.over for name, each in jobs)

    def leader_of(self, job: HostJob) -> str:
        jobs = [each for name, each in jobs_of(job.run, self._client.jobs()) if name == LEADER]
        ids = [each.leader_id or each.id for each in jobs if not each.over]
        return str(max(ids)) if ids else ""


def slots_of(node: SlurmNode, slurm: SlurmConfig) -> int:
    """Workers that fit on a node: by its GPUs and its CPUs."""
    by_cpus = node.cpus // max(1, slurm.cpus)
    return min(by_cpus, node.num_gpus(slurm.gpu_type) // slurm.gpus) if slurm.gpus else by_cpus


def taken_of(
    reservations: Sequence[Reservation], own: Collection[str], nodes: Sequence[SlurmNode], now_s: float
) -> dict[str, tuple[tuple[float, float], ...]]:
    """When nodes are somebody else's, by their names, as far as ``AHEAD_DAYS``.

    own: reservations that are the share's. One that takes some of its nodes' CPUs only leaves room there,
    nobody can tell how much: it is not counted.
    """
    cpus = {node.name: node.cpus for node in nodes}
    found: dict[str, list[tuple[float, float]]] = {}
    for each in reservations:
        of_nodes = sum(cpus.get(name, 0) for name in each.nodes)
        if each.name in own or each.cpus is not None and each.cpus < of_nodes:
            continue
        for name in each.nodes:
            found.setdefault(name, []).extend(_times(each, now_s + AHEAD_DAYS * 86400.0))
    return {name: tuple(sorted(times)) for name, times in found.items()}


def beside(own: Reservation, now_s: float) -> list[tuple[float, float]]:
    """When a reservation that is the share's does not keep its nodes: SLURM begins no worker there then.

    Nor does one stay beyond its end; how long that may run is not asked.
    """
    if own.is_flexible:
        return []
    spans = _times(own, now_s + AHEAD_DAYS * 86400.0)
    edges = [-inf, *(edge for span in spans for edge in span), inf]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def in_both(
    first: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]
) -> tuple[tuple[float, float], ...]:
    """What lies in spans of each of them."""
    pairs = ((max(one[0], two[0]), min(one[1], two[1])) for one in first for two in other)
    return tuple(sorted({(start, end) for start, end in pairs if start < end}))


def _times(reservation: Reservation, last_s: float) -> list[tuple[float, float]]:
    """Of one that comes again each day, say: each time until then. SLURM tells of the next one."""
    start_s, end_s = reservation.start_at, reservation.end_at
    every = next((step for flag, step in AGAIN.items() if flag in reservation.flags), None)
    if every is None or end_s == inf:
        return [(start_s, end_s)]
    found, start, end = [], datetime.fromtimestamp(start_s), datetime.fromtimestamp(end_s)
    while start.timestamp() < last_s:
        weekend = start.weekday() >= SATURDAY
        if not ("WEEKDAY" in reservation.flags and weekend or "WEEKEND" in reservation.flags and not weekend):
            found.append((start.timestamp(), end.timestamp()))
        start, end = start + every, end + every
    return found


share = SlurmShare
"""See ``load_share``."""
