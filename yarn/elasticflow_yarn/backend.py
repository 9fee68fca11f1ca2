"""YARN: the master is in the ApplicationMaster of a Skein application, members are containers of it.

What is decided about containers is decided in ``sizing``; here are the threads and clocks around it. There
are three: one speaks with the ApplicationMaster, which answers in milliseconds, one with the
ResourceManager, which may be away for a minute, and one reads and writes in the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from elasticflow.cluster.asks import SERVER, WORKER
from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.contract import Ended
from elasticflow.cluster.logbook import LogBook
from elasticflow.cluster.presence import Presence
from elasticflow.cluster.sized import SizedBackend
from elasticflow.errors import RunError
from elasticflow.master.fence import Superseded
from elasticflow.process.network import own_address
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow_yarn import ending, first
from elasticflow_yarn.application import Application, Container
from elasticflow_yarn.cluster import ResourceManager, attempt_of
from elasticflow_yarn.config import read
from elasticflow_yarn.container import environment
from elasticflow_yarn.containers import PlacedContainer, PlacesFile
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.errors import ApplicationGone, YarnBusy, YarnError, YarnRefused
from elasticflow_yarn.finder import YarnFinder, YarnPresence
from elasticflow_yarn.logs import YarnLogs
from elasticflow_yarn.sizing import GONE_S, Action, Add, LookAround, ReadWords, Signal, YarnSizing
from elasticflow_yarn.surroundings import View

MEMBER_KEY = "member/"
"""Before a container's id, in the application's key-value store: its member's name is kept there."""
CONTAINER_ENV = "CONTAINER_ID"
"""In a container's environment: YARN's id of it."""
AGAIN_S, BUSY_S = 0.25, 60.0
"""Between two tries of a new master to look around; for so long it tries while nobody answers."""
DRAINED = "DECOMMISSIONING"
"""YARN's word for the state of a node that is being emptied."""
ROUTE = "elasticflow"
"""Of the run's page in Skein's web UI."""
GONE = "its ApplicationMaster is gone"


class YarnBackend(SizedBackend):
    """See Backend. To be used inside of the ApplicationMaster's container."""

    _sizing: YarnSizing

    def __init__(
        self,
        config: Config,
        run_dir: str,
        application: Application | None = None,
        cluster: Callable[[], ResourceManager] = ResourceManager.of,
    ) -> None:
        """cluster: gives the ResourceManager. Raises Superseded, YarnError."""
        self._run, self._yarn = RunDir(run_dir), read(config.yarn)
        self.host, self.member_host = own_address(self._yarn.host), self._yarn.host
        self._application = application or Application.from_current()
        self._find_cluster = cluster
        self._cluster: ResourceManager | None = None
        own = os.environ.get(CONTAINER_ENV, "")
        self._attempt = attempt_of(own) if own else 0
        self._services = services = _patiently(self._application.services)
        if missing := {WORKER, SERVER}.difference(services):
            raise YarnRefused(
                f"the application's specification has no service {' and no '.join(sorted(missing))}; the "
                f"master needs {WORKER} and {SERVER}, with 'instances: 0' (see yarn/digits.yaml)."
            )
        self._first = first.members(_patiently(self._application.instances))
        sizing = YarnSizing(self._yarn, config.worker_range[0], services, own, self._first.values())
        if self._attempt > 1:
            self._first = {}  # they are nobody's
        self._rm = Clerk(YarnError)
        self._folder: Clerk[OSError] = Clerk(OSError)
        super().__init__(sizing, Clerk(YarnError), self._rm, self._folder)
        page = f"{os.environ.get('NM_HOST', '')}:{os.environ.get('NM_HTTP_PORT', '')}"
        self._places = PlacesFile(self._run, self._folder, PlacedContainer(own, page))
        self._has_page = False
        self._act()

    # --- the interface ---------------------------------------------------------------------------

    def living(self, known: Collection[str] = ()) -> dict[str, int]:
        containers, names = _patiently(self._named)
        now_s = time.monotonic()
        living = {}
        for container in containers:
            name = names.get(container.id, "")
            if name and not container.over:
                living[name] = 0
            if name and (name in known or not container.over):
                self._sizing.adopt(name, now_s, container.id)
        self._observed(containers)
        return living

    def start(self, settings: MemberSettings) -> None:
        self._rm.turn()
        self._want(settings, self._first.get(settings.name))

    def ended(self) -> list[Ended]:
        ended = super().ended()
        if self._sizing.gone:
            raise Superseded(GONE)
        return ended

    def where(self, name: str) -> str:
        return self._sizing.where(name, time.monotonic())

    def tell_progress(self, fraction: float) -> None:
        self._clerk.order(lambda: self._application.set_progress(fraction), lambda _: None)

    def comes_again(self) -> bool:
        """Who is told to end inside of an ApplicationMaster ends with it: whether there is to be another is
        YARN's business, and there is no time to ask."""
        return not self._sizing.fatal

    def began_again(self) -> str:
        before = f"was in attempt {self._attempt - 1} of the application, which is over"
        return before if self._attempt > 1 else ""

    def abandon(self) -> None:
        """Ends nothing: containers end with their ApplicationMaster, or are another master's by now."""
        for clerk in self._clerks:
            clerk.close(0.0)

    def close(self) -> None:
        self._clerk.order(partial(kill_all, self._application), lambda _: None)
        self._clerk.close()
        for clerk in (self._rm, self._folder):
            clerk.close(0.0)  # whatever they wait for, nobody needs it any more

    @staticmethod
    def clear(run_dir: str) -> None:
        """Where there is no ApplicationMaster any more, there are no containers either."""
        with contextlib.suppress(YarnError):
            kill_all(Application.from_current())

    @staticmethod
    def finder(settings: MemberSettings) -> YarnFinder:
        config = RunDir(settings.run_dir).config()
        patience_s = max(settings.lost_s, read(config.yarn).lease_s)
        own = os.environ.get(CONTAINER_ENV, "")
        return YarnFinder(settings.run_dir, patience_s, own, settings.heartbeat_s)

    @staticmethod
    def presence(run_dir: str) -> Presence:
        return YarnPresence(run_dir)

    @staticmethod
    def log_book(run_dir: str) -> LogBook:
        return YarnLogs(run_dir)

    # --- containers ------------------------------------------------------------------------------

    def _do(self, action: Action) -> None:
        match action:
            case Add():
                self._add(action)
            case Signal():
                self._rm.order(lambda: self._manager().signal(action.yarn_id), lambda _: None)
            case ReadWords():
                self._folder.order(
                    lambda: ending.read(self._run, action.name), partial(self._heard, action.name)
                )
            case LookAround():
                self._rm.order(self._view, self._viewed)

    def _add(self, action: Add) -> None:
        settings = msgspec.json.encode(self._settings[action.name])
        env = environment(settings, self._services[action.service].gpus, self._yarn.gpu_devices)
        self._clerk.order(
            partial(self._added, action.name, action.service, env), partial(self._asked, action.name)
        )

    def _added(self, name: str, service: str, env: dict[str, str]) -> str:
        """In the clerk's thread. The name is kept for the next master; a container without one it ends."""
        container = self._application.add(service, env)
        self._application.put(f"{MEMBER_KEY}{container.id}", name)
        return container.id

    def _poll(self) -> list[Container]:
        return self._application.containers()

    def _order_drained(self) -> None:
        self._rm.order(self._drained, self._drained_told)

    def _drained(self) -> set[str]:
        """In the thread of the ResourceManager's clerk."""
        return {node.address for node in self._manager().nodes() if node.state == DRAINED}

    def _end(self, id: str) -> None:
        self._application.kill(id)

    def _polled(self, answer: Sequence[Container] | Exception) -> None:
        super()._polled(answer)
        if not isinstance(answer, Exception):
            self._places.tell(self._sizing.places())
        if not self._has_page:  # now that the first containers are asked for
            self._has_page = True
            self._clerk.order(self._start_page, self._page_started)

    def _named(self) -> tuple[list[Container], dict[str, str]]:
        """All containers, and the names of their members, by Skein's id."""
        containers = self._application.containers()
        found = self._application.get_prefix(MEMBER_KEY)
        names = {id: name for name, id in self._first.items()}
        return containers, names | {key.removeprefix(MEMBER_KEY): name for key, name in found.items()}

    def _heard(self, name: str, answer: Ending | OSError | None) -> None:
        left = None if isinstance(answer, OSError) else answer
        self._sizing.heard(name, left, time.monotonic())

    def _start_page(self) -> str:
        """Returns why there is none; "" if there is."""
        from elasticflow.cli import page

        try:
            page.start_page(
                str(self._run.path), lambda address: self._application.add_page(ROUTE, address, page.TITLE)
            )
        except (OSError, RunError) as error:
            return str(error)
        return ""

    def _page_started(self, answer: str | YarnError) -> None:
        if text := str(answer):
            self._sizing.news.note("warning", f"there is no page in the application's web UI: {text}")

    # --- the cluster -----------------------------------------------------------------------------

    def _manager(self) -> ResourceManager:
        """In the clerk's thread."""
        if self._cluster is None:
            self._cluster = self._find_cluster()
        return self._cluster

    def _view(self) -> View:
        manager = self._manager()
        containers = manager.containers(self._application.id, self._attempt) if self._attempt else []
        nodes, queues = tuple(manager.nodes()), tuple(manager.queues())
        return View(nodes, queues, frozenset(containers), manager.application(self._application.id))

    def _viewed(self, answer: View | YarnError) -> None:
        if isinstance(answer, YarnError):
            self._sizing.not_viewed(answer, time.monotonic())
        else:
            self._sizing.viewed(answer, time.monotonic())


def kill_all(application: Application) -> None:
    """Ends all that an application has, but for its ApplicationMaster. Raises YarnError."""
    for container in application.containers():
        if not container.over:
            application.kill(container.id)


def _patiently(ask: Callable[[], Any]) -> Any:
    """What the ApplicationMaster answers, within a while. Raises Superseded, YarnBusy."""
    begun_s = time.monotonic()
    while True:
        try:
            return ask()
        except ApplicationGone as error:
            if time.monotonic() - begun_s > GONE_S:
                raise Superseded(GONE) from error
        except YarnBusy:
            if time.monotonic() - begun_s > BUSY_S:
                raise
        time.sleep(AGAIN_S)  # it tells nobody when it is back
