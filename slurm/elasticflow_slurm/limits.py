"""Times that a partition would never give: SLURM takes such a job, and lets it wait for ever. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.run.dates import span
from elasticflow_slurm.client import Partition, time_s
from elasticflow_slurm.config import PlaceConfig, SlurmConfig


def objection(slurm: SlurmConfig, partitions: Sequence[Partition]) -> str:
    """Which setting asks for more time than there is; "": none."""
    asked = [("leader_time", slurm.leader_time, slurm.leader)]
    name = "time_min" if slurm.time_min else "time"
    asked += [(name, getattr(slurm, name), place) for place in slurm.workers]
    for name, text, place in asked:
        most_s = _most_s(place, partitions)
        if most_s is not None and (time_s(text) or 0.0) > most_s:
            return (
                f"slurm.{name}: {text} is more than {place} allows ({span(most_s)}): SLURM would let the job "
                "wait for ever. Ask for less: who comes to the end of its time hands over; or name another "
                "partition."
            )
    return ""


def _most_s(place: PlaceConfig, partitions: Sequence[Partition]) -> float | None:
    """The longest time there; None: there is no limit, or a QOS may have another, or it is not known."""
    names = place.partition.split(",") if place.partition else [p.name for p in partitions if p.is_default]
    found = {partition.name: partition.time_limit_s for partition in partitions}
    limits = [found.get(name) for name in names]
    if place.qos or not limits or None in limits:
        return None
    return max(limit for limit in limits if limit is not None)
