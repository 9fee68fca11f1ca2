"""One run, followed by the service: told its grants, and listened to. Where its processes are others know.

Nothing is remembered that matters: what the run is doing is seen each time, and what it is to do is said
again and again. So a service that dies at any point is followed by one that sees the same.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod

import zmq

from elasticflow.errors import UnknownError
from elasticflow.run.folder import Address, RunDir
from elasticflow.run.telling import Report
from elasticflow.service import happenings as hp
from elasticflow.service.beginnings import Beginning
from elasticflow.service.paces import Paces
from elasticflow.service.state import Granted
from elasticflow.wire.control import control_link, signed_frame
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import Grant, Situation, StopRequest, ToMaster, decode_from_master
from elasticflow.wire.sockets import Context, Socket

PAUSED = "held at zero by the service"
"""Why a run was stopped that goes on as soon as it is granted workers again."""
REPLACED = "its folder was removed, and another run has begun there"
TRIES = 3
"""A run that ends so often in a row without a word, and without a step, is given up."""


class Follower(ABC):
    """See the module's docstring. situation: what the run has said last. counted: its steps were told."""

    def __init__(
        self, context: Context, name: str, run_dir: str, measure_s: float, *, mark: str = ""
    ) -> None:
        self.name, self.run, self._mark = name, RunDir(run_dir), mark
        self.step = 0
        self.situation: Situation | None = None
        self.waits = ""
        """For what its master waits, if it has to; for people."""
        self._context = context
        self._link: Socket | None = None
        self._address: Address | None = None
        self._keys: MemberKeys | None = None
        self._tries, self._tried_at = 0, -1
        self._counted = False
        self._paces = Paces(measure_s)
        self._beginning = Beginning()

    @property
    def socket(self) -> Socket | None:
        """Readable when the run says something."""
        return self._link

    @property
    def has_answer(self) -> bool:
        """Whether something has come up on which it acts in its next turn: that should be soon."""
        return False

    @abstractmethod
    def turn(self, granted: Granted, held: int, now_s: float) -> list[hp.Happening]:
        """Has the run do what it is granted, as far as that goes just now; what has happened to it.

        held: workers that it may have, as far as the service knows.
        """

    def note(self, granted: Granted, now_s: float) -> None:
        """What it is granted from now on: of one that had nothing it is seen how long it takes to begin."""
        has = self.situation.workers if self.situation else None
        self._beginning.note(granted.workers, has, granted.number == 1 and not self.step, now_s)

    def lacks(self, granted: int) -> str:
        """Of what it is granted, how much it has as yet, for people; "": all, or it has not said."""
        ready = self.situation.ready if self.situation else granted
        return f"{ready} of {granted} have begun, and its status tells why" if ready < granted else ""

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
        """What it may have; to be told when there is a line."""
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

    def _connect(self, address: Address, keys: MemberKeys) -> None:
        """To the master that there is, with the keys of this attempt. Raises UnknownError: not just now."""
        self._let_go()
        try:
            self._link = control_link(self._context, keys, address.endpoint)
        except zmq.ZMQError as error:
            raise UnknownError(
                f"its master cannot be spoken to: {error}. A service needs two open files for each run "
                "that is under way: allow it more ('ulimit -n', or LimitNOFILE= in its unit)."
            ) from error
        self._address, self._keys, self._link.linger = address, keys, 0

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
        if situation.ready and (seconds := self._beginning.ready(now_s)) is not None:
            happened.append(hp.Began(name=self.name, seconds=seconds))
        settled = situation.workers == situation.ready
        if rate := self._paces.see(situation.ready, settled, situation.step, now_s):
            happened.append(hp.Paced(name=self.name, workers=situation.ready, rate=rate))
        return happened

    def _let_go(self) -> None:
        if self._link is not None:
            self._link.close(linger=0)
        self._link = self._address = self.situation = None

    # --- one that does not -----------------------------------------------------------------------

    def _ending(self, report: Report | None, words: str) -> hp.Over | None:
        """How it has ended for good; None: it has not, or only been paused. words: its last ones."""
        if report is not None:
            self.step = report.step  # it may have said nothing since one before
        if report is not None and was_paused(report):
            self._tries = 0  # it did as it was told
            return None
        if report is not None:
            return hp.Over(name=self.name, state=report.state, text=report.text)
        if self._tries < TRIES or self.step != self._tried_at:
            return None
        return hp.Over(
            name=self.name,
            state="failed",
            text=f"ended {TRIES} times in a row without a step; last words: {words}",
        )

    def _is_anothers(self, mark: str | None) -> bool:
        """Whether another run has begun at its place, by the mark that is there."""
        return bool(self._mark) and mark is not None and mark != self._mark

    def _try(self) -> None:
        """It is begun, or goes on."""
        self._tries = self._tries + 1 if self.step == self._tried_at else 1
        self._tried_at = self.step

    def _cannot_begin(self, error: Exception) -> list[hp.Happening]:
        if self._tries < TRIES:
            return []
        return [hp.Over(name=self.name, state="failed", text=f"cannot be begun: {error}")]


def was_paused(report: Report) -> bool:
    """Whether that is no end: it goes on as soon as it may."""
    return report.state == "stopped" and PAUSED in report.text
