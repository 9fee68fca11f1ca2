"""How members and clients tell whether a master lives, or will come back: they ask the ResourceManager."""

from __future__ import annotations

import contextlib
import os

from elasticflow.cluster.finder import AskingFinder, Orphaned
from elasticflow.cluster.presence import JobPresence, RunEnd
from elasticflow.errors import ElasticFlowError
from elasticflow.run.folder import UNKNOWN, HostJob
from elasticflow.storage.hdfs import HdfsPath
from elasticflow_yarn.cluster import App, ResourceManager, application_of, attempt_of
from elasticflow_yarn.ending import WORDS
from elasticflow_yarn.errors import YarnBusy, YarnError
from elasticflow_yarn.java import skein_driver

ASK_S, ASK_AGAIN_S = 2.0, 5.0
"""A member that hears nothing asks the ResourceManager within the first, and then after the second."""
READ_S = 2.0
"""For so long a member tries to read where its master is; while it does, it hears nothing."""
SUBMIT_S = 180.0
"""YARN takes an application, or refuses it, within this."""


class YarnFinder(AskingFinder):
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
        super().__init__(run_dir, patience_s, 2 * heartbeat_s + READ_S, (ASK_S / 2, ASK_S), ASK_AGAIN_S)
        self._own, self._cluster = own, cluster
        if isinstance(self._address, HdfsPath):
            self._address = HdfsPath(str(self._address), READ_S)

    def ask(self) -> None:
        if not self._own:
            return
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


class YarnPresence(JobPresence):
    """Of a run whose master is in an application, which may wait for long."""

    busy = YarnBusy

    def __init__(self, run_dir: str, cluster: ResourceManager | None = None) -> None:
        super().__init__(run_dir, SUBMIT_S)
        self._cluster = cluster
        self._app: App | None = None

    def waits_for(self) -> str:
        if self._app is None or not self._begins():
            return super().waits_for()
        reasons = [self._app.diagnostics.partition("\n")[0], self._queue()]
        return f"{self._app.id} is {self._app.state}: " + "; ".join(filter(None, reasons))

    def last_words(self) -> str:
        if self._app is None or not self._app.over:
            return ""
        from elasticflow_yarn.logs import last_words_of_master  # brings much along

        words = last_words_of_master(str(self._run.path))
        return f"the last line in its master's log: {words}" if words else ""

    def end(self) -> RunEnd | None:
        host = self._run.host()
        if host is None or host.id == UNKNOWN or self.is_alive():
            return None
        if self._app is None:
            return RunEnd(host.id, "", self._manager().why_unknown(host.id))
        words = " ".join(self._app.diagnostics.split())[:WORDS]
        state = self._app.final if self._app.state == "FINISHED" else self._app.state
        return RunEnd(self._app.id, state, f"ended as {state}" + (f": {words.rstrip('.')}" if words else ""))

    def cancel(self) -> str:
        if not self._waits():
            return ""
        from elasticflow_yarn.preflight import check_tools  # brings much along

        check_tools(os.environ)
        try:
            with skein_driver() as client:  # takes seconds
                self._asked_s = float("-inf")
                if not self._waits():
                    return ""
                assert self._app is not None
                client.kill_application(self._app.id)
        except (ElasticFlowError, OSError):
            raise
        except Exception as error:  # Skein lets through whatever its parts raise
            text = f"is not ended: {error}; try again, or end it by 'yarn application -kill'."
            raise YarnError(f"{self._app.id if self._app else 'it'}: {text}") from error
        self._asked_s = float("-inf")
        return f"{self._app.id} is killed; it had not begun"

    def _ask(self, host: HostJob) -> bool:
        self._app = self._manager().application(host.id)
        return self._app is not None and not self._app.over

    def _begins(self) -> bool:
        return self._app is not None and self._app.begins

    def _manager(self) -> ResourceManager:
        self._cluster = self._cluster or ResourceManager.of()
        return self._cluster

    def _waits(self) -> bool:
        """Whether it has not begun, and may."""
        return self.is_alive() and self._begins() and not self._has_begun()

    def _has_begun(self) -> bool:
        """Whether there was an attempt whose work must not be thrown away."""
        assert self._app is not None
        return self._manager().attempt(self._app.id) > 1 or super().has_master()

    def _queue(self) -> str:
        """What else it may wait for; "" if that is not known."""
        assert self._app is not None
        with contextlib.suppress(YarnError):
            if queue := self._manager().queue(self._app.queue):
                return f"queue {queue.name} uses {queue.used} of at most {queue.most}"
        return ""
