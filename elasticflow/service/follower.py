"""One run of this machine's, followed by the service: begun, told its grants, held at zero, gone on with.

Nothing is remembered that matters: what the run is doing is seen from its folder each time, and what it is
to do is said again and again. So a service that dies at any point is followed by one that sees the same.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import zmq

from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.run.folder import Address, RunDir, last_line
from elasticflow.run.telling import Report
from elasticflow.service import happenings as hp
from elasticflow.service.paces import Pace
from elasticflow.service.state import Granted
from elasticflow.wire.control import control_link, signed_frame
from elasticflow.wire.keys import MemberKeys, read_keys
from elasticflow.wire.messages import Grant, Situation, StopRequest, ToMaster, decode_from_master
from elasticflow.wire.sockets import Context, Socket

PAUSED = "held at zero by the service"
"""Why a run was stopped that goes on as soon as it is granted workers again."""
NEWS = 0.1
"""A pace is told that differs by this part from the last with as many workers."""
TRIES = 3
"""A run that ends so often in a row without a word, and without a step, is given up."""


class Follower:
    """See the module's docstring. situation: what the run has said last. counted: its steps were told."""

    def __init__(self, context: Context, name: str, run_dir: str, measure_s: float) -> None:
        self.name, self.run = name, RunDir(run_dir)
        self.step = 0
        self.situation: Situation | None = None
        self._context = context
        self._link: Socket | None = None
        self._address: Address | None = None
        self._keys: MemberKeys | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._tries, self._tried_at = 0, -1
        self._counted = False
        self._pace = Pace(measure_s)
        self._paces: dict[int, float] = {}
        """That were told, by workers."""

    @property
    def socket(self) -> Socket | None:
        """Readable when the run says something."""
        return self._link

    def turn(self, granted: Granted, held: int, now_s: float) -> list[hp.Happening]:
        """Has the run do what it is granted, as far as that goes just now; what has happened to it.

        held: workers that it may have, as far as the service knows.
        """
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        if self._child is not None or self.run.is_locked():
            self._tell(granted)
            return self.listen(now_s)
        self._let_go()
        ending = self._ending()
        if ending is not None:
            return [ending]
        if granted.workers:
            return self._begin()
        return [hp.Held(name=self.name, workers=0, number=granted.number)] if held else []

    def listen(self, now_s: float) -> list[hp.Happening]:
        """What the run says; does not wait."""
        happened: list[hp.Happening] = []
        while self._link is not None:
            try:
                message = decode_from_master(self._link.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            if isinstance(message, Situation):
                happened += self._take(message, now_s)
        return happened

    def close(self) -> None:
        """Follows it no more; the run goes on."""
        self._let_go()

    # --- a run that lives ------------------------------------------------------------------------

    def _tell(self, granted: Granted) -> None:
        with contextlib.suppress(ElasticFlowError, OSError):  # it begins just now, or ends
            self._connect()
            if granted.workers:
                grant = Grant(
                    number=granted.number,
                    workers=granted.workers,
                    why=granted.why,
                    until_s=granted.until_s or 0.0,
                )
                self._send(grant)
            else:
                self._send(StopRequest(reason=PAUSED))

    def _connect(self) -> None:
        """To the master that there is, with the keys of this attempt. Raises RunError, OSError."""
        address = self.run.read_address()
        if address == self._address:
            return
        self._let_go()
        self._keys = read_keys(self.run.client_keys, MemberKeys)
        self._link, self._address = control_link(self._context, self._keys, address.endpoint), address
        self._link.linger = 0

    def _send(self, message: ToMaster) -> None:
        assert self._link is not None and self._keys is not None
        with contextlib.suppress(zmq.Again):  # it does not read; it is told again
            self._link.send(signed_frame(self._keys, message), zmq.NOBLOCK)

    def _take(self, situation: Situation, now_s: float) -> list[hp.Happening]:
        before, self.situation = self.situation, situation
        self.step = situation.step
        happened: list[hp.Happening] = []
        if situation.steps and not self._counted:
            self._counted = True
            happened.append(hp.Counted(name=self.name, steps=situation.steps))
        if before is None or (before.workers, before.number) != (situation.workers, situation.number):
            happened.append(hp.Held(name=self.name, workers=situation.workers, number=situation.number))
        settled = situation.workers == situation.ready
        rate = self._pace.see(situation.ready, settled, situation.step, now_s)
        known = self._paces.get(situation.ready)
        if rate and (known is None or abs(rate / known - 1) > NEWS):
            self._paces[situation.ready] = rate
            happened.append(hp.Paced(name=self.name, workers=situation.ready, rate=rate))
        return happened

    def _let_go(self) -> None:
        if self._link is not None:
            self._link.close(linger=0)
        self._link = self._address = self.situation = None

    # --- one that does not -----------------------------------------------------------------------

    def _ending(self) -> hp.Over | None:
        """How it has ended for good; None: it has not, or only been paused."""
        report: Report | None = None
        with contextlib.suppress(RunError):
            report = self.run.read_report()
        if report is not None and not (report.state == "stopped" and PAUSED in report.text):
            return hp.Over(name=self.name, state=report.state, text=report.text)
        if self._tries < TRIES:
            return None
        words = last_line(self.run.master_log)
        return hp.Over(
            name=self.name,
            state="failed",
            text=f"ended {TRIES} times in a row without a step; last words: {words}",
        )

    def _begin(self) -> list[hp.Happening]:
        """Starts its master, in a session of its own: it outlives the service."""
        self._tries = self._tries + 1 if self.step == self._tried_at else 1
        self._tried_at = self.step
        try:
            self._make_ready()
            command = [sys.executable, "-m", "elasticflow.master", str(self.run.path), "--resume"]
            with self.run.master_log.open("ab") as log:
                self._child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except (ElasticFlowError, OSError) as error:
            if self._tries >= TRIES:
                return [hp.Over(name=self.name, state="failed", text=f"cannot be begun: {error}")]
        return []

    def _make_ready(self) -> None:
        """For another attempt, or the first: with new keys. Raises RunError, OSError."""
        lock = self.run.hold()
        try:
            self.run.end_attempt()
            self.run.address.unlink(missing_ok=True)
            if self.run.report.exists():  # it was paused in order
                self.run.report.unlink()
                self._tries = 1
            self.run.create(self.run.config())
        finally:
            os.close(lock)
