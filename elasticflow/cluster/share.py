"""The share of a cluster that a service divides among runs: what there is of it, and what a run has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from elasticflow.cluster.contract import load_cluster
from elasticflow.cluster.folder import FolderBefore
from elasticflow.errors import ElasticFlowError
from elasticflow.run.config import Config
from elasticflow.run.folder import HostJob

AHEAD_DAYS = 14
"""So far is planned what comes again and again."""


class ShareNode(NamedTuple):
    """A node as the cluster tells of it. slots: workers for which it has room when nobody else is there.

    away: why none may begin there, in the cluster's word; "": they may. doubtful: the cluster does not hear
    of it just now, and has not given it up. taken: from when until when it is, or will be, somebody else's,
    in seconds since 1970.
    """

    name: str
    slots: int
    away: str = ""
    doubtful: bool = False
    taken: tuple[tuple[float, float], ...] = ()


class ClusterShare(ABC):
    """All methods may raise ElasticFlowError; what is of a kind in ``passing`` may be otherwise when it is
    asked again. They wait for the cluster."""

    passing: tuple[type[ElasticFlowError], ...]
    of_service: tuple[str, ...]
    """Settings that say where processes are, and what a worker has: not a run's own."""

    def __init__(self, section: dict[str, Any]) -> None:
        """section: the cluster's, of the service's settings. Raises ConfigError."""
        self._section = section

    def section_of(self, own: dict[str, Any]) -> dict[str, Any]:
        """A run's section: its own, but for what is of the service."""
        kept = {name: value for name, value in own.items() if name not in self.of_service}
        return {**self._section, **kept}

    @abstractmethod
    def nodes(self) -> list[ShareNode]:
        """All that belong to the share. Raises ConfigError if there is no such share."""

    @abstractmethod
    def num_places(self, job: HostJob) -> int:
        """Workers' places of a run that are not known to be free; also those that it only waits for."""

    def leader_of(self, job: HostJob) -> str:
        """The id of a run's leader that is not over, by what the cluster alone knows; "": it tells of none.

        For one of which nobody knows whether it was submitted: another may be on its way yet.
        """
        return ""

    def make_folder(self, chosen: Config) -> FolderBefore | None:
        """Of a run that is submitted later by ``submit(..., resume=True)``, with all that it needs.

        None: it is one of this machine's, made as any run's. Raises ElasticFlowError.
        """
        return None


def load_share(cluster: str, section: dict[str, Any]) -> ClusterShare:
    """Raises ConfigError."""
    share: ClusterShare = load_cluster(cluster, "share").share(section)
    return share


def units(node: ShareNode, slots: int) -> list[str]:
    """Names of the parts of a node that have so many slots each; what is left of it is not used."""
    names = [f"{node.name}+{number}" for number in range(node.slots // slots)]
    return [node.name, *names[1:]][: len(names)]
