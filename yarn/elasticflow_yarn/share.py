"""A share of a YARN cluster: a queue, and the nodes on which its containers may come up."""

from __future__ import annotations

from typing import Any

from elasticflow.cluster.asks import WORKER
from elasticflow.cluster.folder import FolderBefore
from elasticflow.cluster.share import ClusterShare, ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob
from elasticflow_yarn.cluster import ResourceManager, YarnNode
from elasticflow_yarn.config import YarnConfig, read
from elasticflow_yarn.errors import YarnBusy, YarnRefused
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.spec import resources
from elasticflow_yarn.submit import prepare


class YarnShare(ClusterShare):
    """See ClusterShare."""

    passing = (YarnBusy,)
    of_service = ("queue", "node_label", "user", "memory", "vcores", "gpus", "gpu_devices")

    def __init__(self, section: dict[str, Any], cluster: ResourceManager | None = None) -> None:
        super().__init__(section)
        self._yarn = read(section)
        self._worker = resources(Config(threads=max(1, self._yarn.vcores)), self._yarn)[WORKER]
        self._cluster = cluster

    def nodes(self) -> list[ShareNode]:
        manager = self._manager()
        try:
            queue = manager.queue(self._yarn.queue)
        except YarnRefused as error:
            raise ConfigError(f"yarn.queue: {error}") from error
        closed = f"queue {queue.path} is {queue.state}" if queue and queue.state != "RUNNING" else ""
        return [_node(node, self._yarn, self._worker, closed) for node in manager.nodes()]

    def num_places(self, job: HostJob) -> int:
        """Containers of any kind: YARN does not tell them apart."""
        manager = self._manager()
        app = manager.application(job.id)
        return 0 if app is None or app.over else len(manager.containers(app.id, manager.attempt(app.id)))

    def make_folder(self, chosen: Config) -> FolderBefore | None:
        return prepare(chosen)

    def _manager(self) -> ResourceManager:
        self._cluster = self._cluster or ResourceManager.of()
        return self._cluster


def _node(node: YarnNode, yarn: YarnConfig, worker: Resources, closed: str) -> ShareNode:
    label = "" if node.takes(yarn.node_label) else f"has no label {yarn.node_label}"
    away = closed or (label if node.live else node.state.lower())
    return ShareNode(node.id, slots_of(node.total, worker), away)


def slots_of(room: Resources, worker: Resources) -> int:
    """Workers that fit on a node: by its memory, its cores and its GPUs."""
    pairs = (
        (room.memory_mb, worker.memory_mb),
        (room.vcores, worker.vcores),
        (room.gpus, worker.gpus),
    )
    return min(have // wanted for have, wanted in pairs if wanted)


share = YarnShare
"""See ``load_share``."""
