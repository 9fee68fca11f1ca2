"""A share of a SLURM cluster: nodes of some partitions, or of a reservation, with an account and a QOS."""

from __future__ import annotations

import os
from typing import Any

from elasticflow.cluster.share import ClusterShare, ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.folder import HostJob
from elasticflow_slurm.bindings import choose
from elasticflow_slurm.client import LimitReached, SlurmBusy, SlurmNode
from elasticflow_slurm.command_line import SlurmClient
from elasticflow_slurm.comments import jobs_of
from elasticflow_slurm.config import SlurmConfig, read


class SlurmShare(ClusterShare):
    """See ClusterShare."""

    passing = (SlurmBusy, LimitReached)
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
        wanted = {place.partition or default: place.reservation for place in self._slurm.workers}
        if missing := [name for name in wanted if name not in known]:
            raise ConfigError(
                f"slurm.workers: SLURM has no partition {missing[0] or '(and none is the default)'}; there "
                f"are {', '.join(sorted(known))}."
            )
        found: dict[str, ShareNode] = {}
        for node in self._client.nodes():
            if node.partition in wanted:
                closed = "" if known[node.partition].is_up else f"partition {node.partition} is down"
                away = closed or node.away(reserved=bool(wanted[node.partition]))
                told = ShareNode(node.name, slots_of(node, self._slurm), away, node.doubtful)
                if node.name not in found or not away:  # in one partition may be what in another may not
                    found[node.name] = told
        return list(found.values())

    def num_places(self, job: HostJob) -> int:
        jobs = jobs_of(job.run, self._client.jobs())
        return sum(name.startswith("worker-") and not each.over for name, each in jobs)


def slots_of(node: SlurmNode, slurm: SlurmConfig) -> int:
    """Workers that fit on a node: by its GPUs and its CPUs."""
    by_cpus = node.cpus // max(1, slurm.cpus)
    return min(by_cpus, node.num_gpus(slurm.gpu_type) // slurm.gpus) if slurm.gpus else by_cpus


def share(section: dict[str, Any]) -> ClusterShare:
    """See ``load_share``."""
    return SlurmShare(section)
