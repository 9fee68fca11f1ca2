"""Kubernetes: every worker, and every parameter server, is a Pod of its own, made and removed by the master.

What is decided about Pods is decided in ``sizing``; here are the processes and clocks around it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.contract import Ended
from elasticflow.cluster.finder import Finder
from elasticflow.cluster.presence import Presence
from elasticflow.cluster.sized import SizedBackend
from elasticflow.process.fd_event import FdEvent
from elasticflow.process.network import own_address
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow_kubernetes.client import KubernetesClient
from elasticflow_kubernetes.config import image_of, read
from elasticflow_kubernetes.errors import KubernetesError
from elasticflow_kubernetes.finder import BY_HAND, KubernetesPresence
from elasticflow_kubernetes.jobs import Owner
from elasticflow_kubernetes.manifests import member_pod
from elasticflow_kubernetes.mirror import WatchedPods
from elasticflow_kubernetes.objects import name_of
from elasticflow_kubernetes.pods import LOST, Pod, by_member
from elasticflow_kubernetes.queues import Queues
from elasticflow_kubernetes.sizing import Create, KubernetesSizing

TRIES, ASK_S = 3, 1.0
"""Whether a leader comes again is asked so often, so far apart."""


class KubernetesBackend(SizedBackend):
    """See Backend. To be used where Pods reach this host: in a Pod, or on a node."""

    def __init__(
        self,
        config: Config,
        run_dir: str,
        client: KubernetesClient | None = None,
        watched: WatchedPods | None = None,
    ) -> None:
        self._config, self._kubernetes = config, read(config.kubernetes)
        image_of(self._kubernetes)
        self.host, self.member_host = own_address(self._kubernetes.host), self._kubernetes.host
        host = RunDir(run_dir).host()
        assert host is not None
        self._run_id = host.run
        self._client = client or KubernetesClient(self._kubernetes)
        sizing = KubernetesSizing(self._kubernetes, config.worker_range[0], self._run_id)
        super().__init__(sizing, Clerk(KubernetesError))
        self._owner = Owner.of(os.environ)
        self._has_changed, self._change = False, FdEvent()
        self._watched = watched or WatchedPods(self._client, self._changed)
        self._queues = Queues(self._client)
        self._pods: dict[str, Pod] = {}
        """By their members."""
        self._lost: set[str] = set()
        """Pods whose nodes will never confirm that they have ended."""

    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        try:
            pods = self._watched.now()
        except KubernetesError as error:  # polls will tell; until then all are taken to live
            for name in known:
                self._sizing.adopt(name, time.monotonic())
            self._sizing.news.note("warning", f"it is not known yet which members live: {error}")
            return dict.fromkeys(known, 0)
        ours = by_member(self._run_id, pods)
        living = {name: 0 for name, all_ in ours.items() if any(not pod.over for pod in all_)}
        for name in {*living, *(name for name in known if name in ours)}:
            self._sizing.adopt(name, time.monotonic())
        self._observed(pods)
        return living

    def where(self, name: str) -> str:
        pod = self._pods.get(name)
        if pod is None:
            return ""
        place = f" on {pod.node}" if pod.node else ""
        return f"Pod {pod.id}, {pod.state.lower()}{place}"

    def wait_fds(self) -> list[int]:
        return [*super().wait_fds(), self._change.fd]

    def ended(self) -> list[Ended]:
        self._change.clear()
        if self._has_changed:
            self._has_changed = False
            self._sizing.look()
        return super().ended()

    def close(self) -> None:
        self._watched.close()
        self._clerk.close()
        with contextlib.suppress(KubernetesError):  # they end by themselves when there is no master any more
            self._client.delete_run(self._run_id)

    def abandon(self) -> None:
        """Pods outlive this master."""
        self._watched.close()
        self._clerk.close(0.0)

    def comes_again(self) -> bool:
        return self._owner is not None and comes_again(self._client, self._owner)

    @staticmethod
    def finder(settings: MemberSettings) -> Finder:
        """Pods have no account to ask with: they wait as long as another leader may take to come."""
        run = RunDir(settings.run_dir)
        host = run.host()
        is_by_hand = host is None or host.id.startswith(BY_HAND)
        lease_s = 0.0 if is_by_hand else read(run.config().kubernetes).lease_s
        return Finder(settings.run_dir, max(settings.lost_s, lease_s))

    @staticmethod
    def presence(run_dir: str) -> Presence:
        host = RunDir(run_dir).host()
        is_by_hand = host is not None and host.id.startswith(BY_HAND)
        return Presence(run_dir) if is_by_hand else KubernetesPresence(run_dir)

    @staticmethod
    def clear(run_dir: str) -> None:
        run = RunDir(run_dir)
        host = run.host()
        if host is not None:
            KubernetesClient(read(run.config().kubernetes)).delete_run(host.run)

    # --- Pods -------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """In the mirror's thread."""
        self._has_changed = True
        self._change.set()

    def _poll(self) -> list[Pod]:
        pods = self._watched.now()
        ours = self._queues.told([pod for pod in pods if pod.run == self._run_id])
        return [*ours, *(pod for pod in pods if pod.run != self._run_id)]

    def _drained(self) -> Collection[str]:
        return self._client.drained()

    def _end(self, id: str) -> None:
        self._client.delete(id, is_lost=id in self._lost)

    def _observed(self, sights: Sequence[Pod]) -> None:
        self._lost = {pod.id for pod in sights if pod.state == LOST}
        super()._observed(sights)
        ours = by_member(self._run_id, sights)
        self._pods = {name: min(pods, key=lambda pod: pod.over) for name, pods in ours.items()}

    def _do(self, action: Create) -> None:
        settings = self._settings.get(action.name)
        if settings is None:  # it is not wanted any more
            return
        pod = member_pod(self._config, self._kubernetes, self._run_id, settings, action.exclude, self._owner)
        self._clerk.order(partial(self._create, pod), partial(self._asked, action.name))

    def _create(self, pod: dict[str, Any]) -> str:
        """In the clerk's thread."""
        answer = self._client.create(pod)
        name = name_of(answer)
        self._watched.add(answer)
        return name


def comes_again(client: KubernetesClient, owner: Owner) -> bool:
    """Whether the leader's Job, whose Pod was just told to end, will be given another.

    Where nobody answers it does: a Job that is being deleted ends all Pods of its run in any case.
    """
    for _ in range(TRIES):
        with contextlib.suppress(KubernetesError):
            job = client.job(owner.name)
            return bool(job and job.uid == owner.uid and not job.over and not job.is_leaving)
        time.sleep(ASK_S)  # whoever brings an API server back tells nobody
    return True
