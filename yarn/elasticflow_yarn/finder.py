"""How members and clients tell whether a master lives, or will come back: they ask the ResourceManager."""

from __future__ import annotations

import contextlib
import random
import time

import msgspec

from elasticflow.cluster.finder import Finder, Orphaned
from elasticflow.cluster.presence import Presence
from elasticflow.errors import ElasticFlowError
from elasticflow.run.folder import UNKNOWN, Address, HostJob, RunPath
from elasticflow.storage.hdfs import HdfsPath
from elasticflow_yarn.cluster import App, ResourceManager, application_of, attempt_of
from elasticflow_yarn.ending import WORDS
from elasticflow_yarn.errors import YarnBusy, YarnError

ASK_S, ASK_AGAIN_S, ASK_LAST_S = 2.0, 5.0, 60.0
"""When a member that hears nothing first asks the ResourceManager, and how often then, at first and at last;
each is a little different."""
READ_S = 2.0
"""For so long a member tries to read where its master is; while it does, it hears nothing."""
SUBMIT_S = 180.0
"""YARN takes an application, or refuses it, within this."""
KEEP_S = 2.0
"""For so long a client takes the ResourceManager's last answer for true."""


class YarnFinder(Finder):
    """Waits for a master that its ApplicationMaster's supervisor, or YARN, starts again.

    A member is of one attempt of the application: the next one ends it, or cannot, since its node is lost to
    YARN; its place is given to others in any case. own: YARN's id of its container; "": not known.
    """

    def __init__(
        self,
        run_dir: str,
        patience_s: float,
        own: str = "",
        heartbeat_s: float = 1.0,
        cluster: ResourceManager | None = None,
    ) -> None:
        super().__init__(run_dir, patience_s)
        self._own, self._cluster = own, cluster
        self._address: RunPath = self._run.address
        if isinstance(self._address, HdfsPath):
            self._address = HdfsPath(str(self._address), READ_S)
        self._silence_s = ASK_AGAIN_S + 2 * heartbeat_s + READ_S
        """Looks that are further apart than this are of two silences."""
        self._looked_s, self._ask_s, self._again_s = float("-inf"), 0.0, ASK_AGAIN_S

    def find(self) -> str | None:
        now_s = time.monotonic()
        if now_s - self._looked_s > self._silence_s:  # this silence has just begun
            self._ask_s = now_s + ASK_S * random.uniform(0.5, 1)
            self._again_s = ASK_AGAIN_S
        if now_s >= self._ask_s and self._own:
            self._ask_s = now_s + self._again_s * random.uniform(1, 1.5)
            self._again_s = min(2 * self._again_s, ASK_LAST_S)
            with contextlib.suppress(ElasticFlowError, ValueError):  # unknown; patience ends in any case
                self.ask()
        found = self._read()
        self._looked_s = time.monotonic()
        return found

    def ask(self) -> None:
        """Raises Orphaned if YARN says that no master will come for this container; YarnError, ValueError."""
        self._cluster = self._cluster or ResourceManager.of()
        id = application_of(self._own)
        app = self._cluster.application(id)
        if app is None:
            raise Orphaned(f"YARN does not know {id} any more")
        if app.over:
            raise Orphaned(f"{id} is {app.state}")
        attempt, newest = attempt_of(self._own), self._cluster.attempt(id)
        if newest > attempt:
            raise Orphaned(f"{id} is in attempt {newest}, and this is a container of attempt {attempt}")

    def _read(self) -> str | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._address.read_bytes(), type=Address).endpoint
        return None


class YarnPresence(Presence):
    """Of a run whose master is in an application, which may wait for long."""

    master_s = float("inf")

    def __init__(self, run_dir: str, cluster: ResourceManager | None = None) -> None:
        super().__init__(run_dir)
        self._cluster = cluster
        self._asked_s, self._alive = float("-inf"), True
        self._host: HostJob | None = None
        self._app: App | None = None

    def is_alive(self) -> bool:
        if time.monotonic() - self._asked_s >= KEEP_S:
            self._alive = self._look()
            self._asked_s = time.monotonic()
        return self._alive

    def has_master(self) -> bool:
        begins = self._app is not None and self._app.begins
        return not begins and super().has_master()  # what a master of before left is no master

    def waits_for(self) -> str:
        if self._app is None or not self._app.begins:
            return super().waits_for()
        reasons = [self._app.diagnostics.partition("\n")[0], self._queue()]
        return f"{self._app.id} is {self._app.state}: " + "; ".join(filter(None, reasons))

    def last_words(self) -> str:
        return " ".join(self._app.diagnostics.split())[:WORDS] if self._app else ""

    def cancel(self) -> str:
        if not self._waits():
            return ""
        import skein

        with skein.Client() as client:  # takes seconds
            self._asked_s = float("-inf")
            if not self._waits():
                return ""
            assert self._app is not None
            client.kill_application(self._app.id)
        self._asked_s = float("-inf")
        return f"{self._app.id} is killed; it had not begun"

    def wait_until_over(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(KEEP_S / 4)  # YARN tells nobody of an application's end

    def _look(self) -> bool:
        if self._run.report.exists():
            return False  # it is written last of all
        if self._host is None or self._host.id == UNKNOWN:
            self._host = self._run.host()
        if self._host is None or self._host.id == UNKNOWN:  # being submitted, or who did that was killed
            return self._run.job.exists() and time.time() - self._run.job.stat().st_mtime < SUBMIT_S
        try:
            self._app = self._manager().application(self._host.id)
        except YarnBusy:  # then the master itself may still answer
            return self._alive
        return self._app is not None and not self._app.over

    def _manager(self) -> ResourceManager:
        self._cluster = self._cluster or ResourceManager.of()
        return self._cluster

    def _waits(self) -> bool:
        """Whether it has not begun, and may."""
        return self.is_alive() and self._app is not None and self._app.begins and not self._has_begun()

    def _has_begun(self) -> bool:
        """Whether there was an attempt whose work must not be thrown away."""
        assert self._app is not None
        return self._manager().attempt(self._app.id) > 1 or super().has_master()

    def _queue(self) -> str:
        """What else it may wait for; "" if that is not known."""
        assert self._app is not None
        with contextlib.suppress(YarnError):
            queue = self._manager().queue(self._app.queue)
            return f"queue {queue.name} uses {queue.used} of at most {queue.most}"
        return ""
