"""Policies: all see the same events, and answer with the same decisions."""

from __future__ import annotations

from elasticflow.errors import ConfigError
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.fairness import Quotas
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.policies.edf import Edf, EdfAdmission
from elasticflow.scheduler.policies.elastic import Elastic
from elasticflow.scheduler.policies.queues import Fifo, Fixed, LeastAttained

POLICIES: dict[str, type[Policy]] = {
    one.name: one for one in (Elastic, EdfAdmission, Edf, Fifo, LeastAttained, Fixed)
}


def policy(name: str, shape: ClusterShape, overheads: Overheads, quotas: Quotas | None = None) -> Policy:
    """A new policy by its name. Raises ConfigError with the names there are."""
    if name not in POLICIES:
        raise ConfigError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](shape, overheads, quotas)
