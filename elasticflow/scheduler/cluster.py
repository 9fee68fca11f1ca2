"""The shape of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from elasticflow.errors import ConfigError


@dataclass(frozen=True)
class ClusterShape:
    """Nodes with as many GPUs each. GPU g is on node ``g // gpus_per_node``."""

    num_nodes: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        size = self.gpus_per_node
        if self.num_nodes < 1 or size < 1 or size & (size - 1):
            raise ConfigError(
                f"a cluster of {self.num_nodes} nodes of {size} GPUs; "
                "there must be a node, and its GPUs a power of two"
            )

    @property
    def num_gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.num_nodes * self.gpus_per_node


def shape_of(num_gpus: int, gpus_per_node: int = 8) -> ClusterShape:
    """The cluster of so many GPUs. Raises ConfigError unless they fill their nodes."""
    size = min(num_gpus, gpus_per_node)
    if size < 1 or num_gpus % size:
        raise ConfigError(f"{num_gpus} GPUs do not fill nodes of {gpus_per_node}; give a multiple")
    return ClusterShape(num_gpus // size, size)
