"""A backend whose cluster is in memory: what docs/backends.md says, in its shortest form."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial

from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.config import ClusterConfig
from elasticflow.cluster.sized import SizedBackend
from elasticflow.run.config import Config
from tests.pretend.cluster import Pod, PretendCluster, PretendError
from tests.pretend.sizing import PretendSizing, Request

CLUSTERS: dict[str, PretendCluster] = {}
"""By the folders of their runs."""


class PretendBackend(SizedBackend):
    """See SizedBackend. Its processes are pods in a dictionary, and none of them does anything."""

    host = member_host = "127.0.0.1"

    def __init__(self, config: Config, run_dir: str) -> None:
        pace = ClusterConfig(poll_s=0.02)
        super().__init__(PretendSizing(pace, config.worker_range[0]), Clerk(PretendError))
        self._run_dir, self._cluster = run_dir, CLUSTERS[run_dir]

    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        pods = self._cluster.shown()
        names = {pod.name for pod in pods if not pod.over or pod.name in known}
        for name in names:
            self._sizing.adopt(name, time.monotonic())
        self._observed(pods)
        return {pod.name: 0 for pod in pods if not pod.over}

    def close(self) -> None:
        self._clerk.close()
        self.clear(self._run_dir)

    def abandon(self) -> None:
        self._clerk.close(0.0)

    @staticmethod
    def clear(run_dir: str) -> None:
        for pod in CLUSTERS[run_dir].living():
            CLUSTERS[run_dir].end(pod.id)

    def _poll(self) -> list[Pod]:
        return self._cluster.shown()

    def _drained(self) -> set[str]:
        return self._cluster.drained

    def _end(self, id: str) -> None:
        self._cluster.end(id)

    def _do(self, action: Request) -> None:
        ask = partial(self._cluster.ask, action.name, action.exclude)
        self._clerk.order(ask, partial(self._asked, action.name))
