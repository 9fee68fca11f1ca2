"""Users: how many GPUs the promises to one may take, and its part of what is left over."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from elasticflow.errors import DataError
from elasticflow.scheduler.tracks import Track


@dataclass(frozen=True)
class Quotas:
    """By user. weights: of what is left over, 1 if not named. most_gpus: for promises, unlimited if not."""

    weights: Mapping[str, float] = field(default_factory=dict)
    most_gpus: Mapping[str, int] = field(default_factory=dict)

    def weight(self, user: str) -> float:
        """The user's part of what is left over, beside those of others."""
        return self.weights.get(user, 1.0)

    def limit(self, user: str) -> float:
        """GPUs that promises to the user may take at once."""
        return self.most_gpus.get(user, inf)


def read_quotas(path: Path | str) -> Quotas:
    """Quotas from a CSV file with the columns user, weight, most_gpus; what is blank has its default."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        return Quotas(
            {row["user"]: float(row["weight"]) for row in rows if row.get("weight")},
            {row["user"]: int(row["most_gpus"]) for row in rows if row.get("most_gpus")},
        )
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (KeyError, ValueError) as error:
        raise DataError(f"{path}: {error}; its columns are user, weight, most_gpus, and numbers") from None


def within_quota(track: Track, others: Iterable[Track], quotas: Quotas) -> bool:
    """Whether the user's promises, with this one, take no more than the user's GPUs, even all at once."""
    limit = quotas.limit(track.job.user)
    if limit == inf:
        return True
    own = [one.plan for one in (*others, track) if one.job.user == track.job.user]
    return sum(plan.most_gpus for plan in own if plan is not None) <= limit
