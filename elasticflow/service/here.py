"""A run of this machine's, followed by the service: begun as its own user's process, and gone on with."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys

from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.local.forkserver import VARIABLE, ForkServers
from elasticflow.process.retry import is_away
from elasticflow.run.folder import last_line, log_to_add_to
from elasticflow.run.telling import Report
from elasticflow.service import happenings as hp
from elasticflow.service.follower import REPLACED, Follower
from elasticflow.service.marks import mark_of
from elasticflow.service.state import Granted
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.wire.sockets import Context

AGAIN_S = 5.0
"""What failed for want of something is tried again after so long."""
SHORT = frozenset({errno.EAGAIN, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
"""Of what there may be enough again."""
LASTING = frozenset({errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ENOTDIR})
"""Something else is in the place of its folder, or of a file there: no outage, which would pass."""


class FollowerHere(Follower):
    """See Follower. Its master is a process in a session of its own, which outlives the service."""

    def __init__(
        self,
        context: Context,
        name: str,
        run_dir: str,
        measure_s: float,
        fork_servers: ForkServers,
        *,
        mark: str = "",
    ) -> None:
        super().__init__(context, name, run_dir, measure_s, mark=mark)
        self._fork_servers = fork_servers
        self._child: subprocess.Popen[bytes] | None = None
        self._again_s = 0.0

    def turn(self, granted: Granted, held: int, now_s: float) -> list[hp.Happening]:
        if now_s >= self._again_s:
            self.waits = ""
        try:
            return self._turn(granted, held, now_s)
        except OSError as error:  # its folder's, of which nothing is known then; others must not feel it
            self.waits = f"cannot be looked at: {error}"
            return [hp.Over(name=self.name, state="failed", text=self.waits)] if self._is_lost(error) else []

    def _is_lost(self, error: OSError) -> bool:
        """Whether that stays so, and nobody is there any more: it would have its workers for good."""
        with contextlib.suppress(OSError):
            if self._child is not None or self.run.is_locked():
                return False
        return error.errno in LASTING

    def _turn(self, granted: Granted, held: int, now_s: float) -> list[hp.Happening]:
        """Raises OSError."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        if self._is_anothers(mark_of(self.run)):
            self._let_go()  # what is left of its own ends by itself
            return [] if self._child else [hp.Over(name=self.name, state="failed", text=REPLACED)]
        if self._child is not None or self.run.is_locked():
            with contextlib.suppress(ElasticFlowError, OSError):  # it begins just now, or ends
                self._find()
                self._tell(granted)
            return self.listen(now_s)
        self._let_go()
        report: Report | None = None
        with contextlib.suppress(RunError):
            report = self.run.read_report()
        ending = self._ending(report, last_line(self.run.master_log))
        if ending is not None:
            return [ending]
        if granted.workers:
            return self._begin(now_s) if now_s >= self._again_s else []
        return [hp.Held(name=self.name, workers=0, number=granted.number)] if held else []

    def _find(self) -> None:
        """Raises RunError, OSError."""
        address = self.run.read_address()
        if address != self._address:
            self._connect(address, read_keys(self.run.client_keys, MemberKeys))

    def _begin(self, now_s: float) -> list[hp.Happening]:
        self._try()
        command = [sys.executable, "-m", "elasticflow.master", str(self.run.path), "--resume", "--lock-fd"]
        try:
            self.run.config()  # raises: whoever takes the lock makes the folder of one that was removed anew
            lock = self.run.hold()  # until the master has it: nobody is told meanwhile that the run is over
            with os.fdopen(lock, "wb"):
                self._make_ready()
                with log_to_add_to(self.run.master_log) as log:
                    self._child = subprocess.Popen(
                        [*command, str(lock)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, VARIABLE: str(self._fork_servers.folder)},
                        pass_fds=[lock],
                        start_new_session=True,
                    )
        except (ElasticFlowError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if is_away(cause) or isinstance(cause, OSError) and cause.errno in SHORT:
                self._tries -= 1
                self._again_s, self.waits = now_s + AGAIN_S, str(error)
                return []
            return self._cannot_begin(error)
        self._fork_servers.ensure_for(self.run)  # for those after it
        return []

    def _make_ready(self) -> None:
        """For another attempt, or the first: with new keys. Raises RunError, OSError."""
        self.run.end_attempt()
        self.run.address.unlink(missing_ok=True)
        if self.run.report.exists():  # it was paused in order
            self.run.report.unlink()
            self._tries = 1
        self.run.create(self.run.config())
