"""What a service does on a cluster, in threads of their own: it looks, begins runs, and takes them back.

Looking waits for nobody who begins a run, which takes a cluster longer, or reads a folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.contract import load_cluster
from elasticflow.cluster.presence import presence_of, unknown
from elasticflow.cluster.share import ClusterShare, ShareNode
from elasticflow.errors import ElasticFlowError, RunError, UnknownError
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, Address, HostJob, RunDir, publish
from elasticflow.run.telling import Report
from elasticflow.run.trust import check_trust, name_of
from elasticflow.service.marks import mark_of, marked
from elasticflow.wire.keys import MemberKeys, read_keys

T = TypeVar("T")


class RunSight(NamedTuple):
    """A run as its folder and its cluster show it. master: where one listens, with the keys of this attempt.

    waits: for what a run that is alive has no master, or what holds that up. places: that workers of one
    that is not may still hold. words: the last ones of one that left no report. mark: see ``mark_of``; None:
    nobody has looked.
    """

    alive: bool
    master: tuple[Address, MemberKeys] | None = None
    waits: str = ""
    report: Report | None = None
    places: int = 0
    words: str = ""
    mark: str | None = None


class RunFolder(NamedTuple):
    """Of a run that is handed in. owner: by name. mark: see ``mark_of``."""

    config: Config
    owner: str
    mark: str


class Hands:
    """Of a service of this cluster. ``fds`` are readable when ``turn`` has answers to give."""

    def __init__(self, cluster: str, share: ClusterShare) -> None:
        self.cluster, self.share = cluster, share
        self._looks: Clerk[ElasticFlowError] = Clerk(ElasticFlowError)
        self._acts: Clerk[ElasticFlowError] = Clerk(ElasticFlowError)
        self._reads: Clerk[ElasticFlowError] = Clerk(ElasticFlowError)
        self.fds = (self._looks.fd, self._acts.fd, self._reads.fd)

    def turn(self) -> None:
        """Gives the answers that have come."""
        self._looks.turn()
        self._acts.turn()
        self._reads.turn()

    def close(self) -> None:
        """Waits for what is being done, but not for a cluster that hangs."""
        self._acts.close()
        self._looks.close(0.0)
        self._reads.close(0.0)

    def passes(self, error: ElasticFlowError) -> bool:
        """Whether it may be otherwise when this is tried again."""
        told = (error, error.__cause__)
        return any(isinstance(each, (UnknownError, *self.share.passing)) for each in told)

    def read(self, run: RunDir, answer: Callable[[RunFolder | ElasticFlowError], None]) -> None:
        """What a run's folder says, wherever that is."""
        self._reads.order(partial(_curable, partial(read_folder, run)), answer)

    def look_at_nodes(self, answer: Callable[[list[ShareNode] | ElasticFlowError], None]) -> None:
        """Of the share."""
        self._looks.order(self.share.nodes, answer)

    def look_at(self, run: RunDir, answer: Callable[[RunSight | ElasticFlowError], None]) -> None:
        """How a run is."""
        self._looks.order(partial(_curable, lambda: _marked(sight_of(run, self.share), run)), answer)

    def listen_for(self, run: RunDir, answer: Callable[[RunSight | ElasticFlowError], None]) -> None:
        """Whether a master listens by now, of a run whose leader begins. The cluster is not asked."""
        self._reads.order(partial(_curable, lambda: _marked(listens(run), run)), answer)

    def begin(self, run: RunDir, answer: Callable[[str | ElasticFlowError], None]) -> None:
        """Has a leader started, by the cluster's own submit; the answer is its job's id."""
        self._acts.order(partial(_curable, partial(self._begin, run)), answer)

    def take_back(self, run: RunDir, answer: Callable[[str | ElasticFlowError], None]) -> None:
        """Ends a run whose leader has not begun; the answer is "" if it has."""
        self._acts.order(partial(_curable, lambda: presence_of(run).cancel()), answer)

    def _begin(self, run: RunDir) -> str:
        config = run.config()
        section = self.share.section_of(getattr(config, self.cluster))
        chosen = msgspec.structs.replace(
            config, backend=self.cluster, run_dir=str(run.path), **{self.cluster: section}
        )
        job, _ = load_cluster(self.cluster, "submit").submit(chosen, True)
        return str(job)


def read_folder(run: RunDir) -> RunFolder:
    """Marks it, unless that was done. Raises RunError if nobody may rely on it, OSError."""
    check_trust(run.path)
    path, config = run.path, run.config()
    owner = name_of(path.stat().st_uid) if isinstance(path, Path) else path.whoami()
    return RunFolder(config, owner, marked(run))


def _marked(sight: RunSight, run: RunDir) -> RunSight:
    return sight._replace(mark=mark_of(run))


def listens(run: RunDir) -> RunSight:
    """Of a run that is alive: its master, as its folder tells."""
    with contextlib.suppress(RunError):  # not yet
        return RunSight(True, (run.read_address(), read_keys(run.client_keys, MemberKeys)))
    return RunSight(True, waits="its leader begins")


def sight_of(run: RunDir, share: ClusterShare) -> RunSight:
    """Asks the cluster, if the folder does not tell all. Raises ElasticFlowError, OSError."""
    job = run.host()
    if job is None:
        return RunSight(alive=False)
    if job.id == UNKNOWN and (found := share.leader_of(job)):
        job = HostJob(job.backend, found, job.run)  # a service that was killed did not come to write it down
        publish(run.job, job)
    presence = presence_of(run)
    if presence.is_alive():
        if presence.has_master() and (here := listens(run)).master:
            return here._replace(waits=presence.paused())
        if presence.silence():
            raise unknown(run, presence)
        return RunSight(alive=True, waits=presence.waits_for())
    report = run.read_report()
    places = 0 if job.id == UNKNOWN else share.num_places(job)
    return RunSight(alive=False, report=report, places=places, words="" if report else presence.last_words())


def _curable(act: Callable[[], T]) -> T:
    """A storage that is away may come back."""
    try:
        return act()
    except OSError as error:
        raise UnknownError(str(error)) from error
