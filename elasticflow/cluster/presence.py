"""Whether a run has a master, for clients: where it runs decides how one can tell."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from elasticflow.errors import ElasticFlowError, RunError, UnknownError
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, Address, HostJob, RunDir

AGAIN_S, MASTER_S = 0.02, 0.1
END_S = 60.0
"""So long beyond the patience of its storage a run may take to end."""

KEEP_S = 2.0
"""For so long a client takes a cluster's last answer for true."""


class NoMaster(UnknownError):
    """A run goes on, as far as is known, but nobody listens just now."""


class Replaced(RunError):
    """A run was followed whose folder is another's by now, or with which somebody else went on."""


class RunEnd(NamedTuple):
    """How a cluster says that the job of a run's master ended. text: to follow its name, in its own words."""

    job: str
    state: str
    text: str


class Presence:
    """Of a run whose processes are on this machine: its master holds a lock.

    master_s: how long there may be no master, as one is just starting.
    """

    master_s = 120.0

    def __init__(self, run_dir: str) -> None:
        self._run = RunDir(run_dir)

    def is_alive(self) -> bool:
        """Whether the run has a master, or will have one again without anybody's doing."""
        return self._run.is_locked()

    def wait_until_over(self, timeout_s: float) -> None:
        """Waits until that is not so any more, but for so long at most."""
        self._run.wait_until_free(timeout_s)

    def has_master(self) -> bool:
        """Whether one listens, as far as is known; to be asked after ``is_alive``."""
        return self._run.address.exists()

    def waits_for(self) -> str:
        """What a run that is alive, and has no master, waits for."""
        return "its master starts or ends just now"

    def silence(self) -> str:
        """Who could not be asked, and why: what is told of this run may be untrue then; "": all answered."""
        return ""

    def paused(self) -> str:
        """Of a run that is alive: that its job is held up, and what lets it go on; "": it is not."""
        return ""

    def is_anothers(self) -> bool:
        """Whether another run has its folder by now, or somebody else went on with it."""
        return False

    def end(self) -> RunEnd | None:
        """Of a run that is over, how its cluster says that it ended; None: it does not, or not any more."""
        return None

    def last_words(self) -> str:
        """Of a run that is over, and left no report; "": none are known."""
        return ""

    def begun_by(self) -> str:
        """Which settings decide how a master is begun, for people; "": none do."""
        return ""

    def cancel(self) -> str:
        """Ends a run that has not begun, and says so; "": it has begun, and can be stopped in order."""
        return ""


class JobPresence(Presence):
    """Of a run whose master is in a job of a cluster, which may wait for long. submit_s: a cluster takes a
    job, or refuses it, within this."""

    master_s = float("inf")
    busy: type[Exception]
    """What it raises that does not answer now, and may later."""

    def __init__(self, run_dir: str, submit_s: float) -> None:
        super().__init__(run_dir)
        self._submit_s = submit_s
        self._asked_s, self._alive, self._silence = float("-inf"), True, ""
        self._submitting = False
        self._whose = ""
        """``HostJob.run``, as it was when it was looked at first."""

    def is_alive(self) -> bool:
        if time.monotonic() - self._asked_s >= KEEP_S:
            self._alive = self._look()
            self._asked_s = time.monotonic()
        return self._alive

    def silence(self) -> str:
        return self._silence

    def is_anothers(self) -> bool:
        host = self._run.host() if self._whose else None
        return host is not None and host.run != self._whose

    def waits_for(self) -> str:
        return self._silence or (self._handing_in() if self._submitting else super().waits_for())

    def has_master(self) -> bool:
        return not self._begins() and super().has_master()  # what a master of before left is no master

    def wait_until_over(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(KEEP_S / 4)  # a cluster tells nobody of a job's end

    def _handing_in(self) -> str:
        """Of one of which its cluster has told no job yet."""
        known = f"that is known within {self._submit_s:g} s, and --resume begins it then"
        return f"it is being submitted; if who does that was killed, {known}"

    def _look(self) -> bool:
        self._silence, self._submitting = "", False
        if self._run.report.exists():
            return False  # it is written last of all
        host = self._run.host()
        if host is not None:
            self._whose = self._whose or host.run
            if host.run != self._whose:
                return False
        if host is None or host.id == UNKNOWN:  # it is just being submitted, or who did that was killed
            age_s = time.time() - self._run.job.stat().st_mtime if self._run.job.exists() else float("inf")
            self._submitting = age_s < self._submit_s
            return self._submitting
        try:
            return self._ask(host)
        except self.busy as error:  # then the master itself may still answer
            self._silence = str(error)
            return self._alive
        except ElasticFlowError as error:
            raise UnknownError(f"{self._run.path}: its cluster cannot be asked: {error}") from error

    @abstractmethod
    def _ask(self, host: HostJob) -> bool:
        """Whether the cluster says that the run goes on. Raises ``busy`` if it is silent, or RunError."""

    @abstractmethod
    def _begins(self) -> bool:
        """Whether the job waits for its place, as far as was told."""


def presence_of(run: RunDir) -> Presence:
    """How to tell of this run. Raises RunError if that cannot be told here."""
    from elasticflow.cluster.contract import load_backend

    if not run.path.is_dir():
        run.config()  # raises, and says that this is no run
    job = run.host()
    return load_backend(job.backend).presence(str(run.path)) if job else Presence(str(run.path))


def is_alive(run: RunDir) -> bool:
    """See Presence. Raises NoMaster if that cannot be told now."""
    presence = presence_of(run)
    alive = presence.is_alive()
    if presence.silence():
        raise unknown(run, presence)
    return alive


def unknown(run: RunDir, presence: Presence) -> NoMaster:
    """Of a run of which its cluster tells nothing."""
    return NoMaster(f"{run.path}: whether it goes on is not known just now: {presence.silence()}")


def wait_until_over(run: RunDir, presence: Presence | None = None) -> None:
    """Waits for the end of a run that has said that it ends: it only writes its report, and lets go.

    Raises RunError if it does not end for longer than its storage may take: then its master hangs.
    """
    presence = presence or presence_of(run)
    patience_s = END_S + (run.config() if run.settings.exists() else Config()).storage_patience_s
    presence.wait_until_over(patience_s)
    if presence.is_alive():
        late = f"should have ended, and has not within {patience_s:g} s"
        raise RunError(f"{run.path}: {late}; {how_to_kill(run, presence)}")


def how_to_kill(run: RunDir, presence: Presence) -> str:
    """What to do about a master that hangs, or whose job is held up."""
    if paused := presence.paused():
        return paused
    if not run.address.exists():
        return "its master cannot be found."
    address = run.read_address()
    return (
        f"its master may hang: it is process {address.pid} on {address.host}. 'kill -9 {address.pid}' there "
        "ends it, and another takes its place."
    )


def find_address(run: RunDir, presence: Presence, timeout_s: float) -> Address:
    """Where the master listens; waits for a while if it has not said so yet.

    Raises RunError if the run is over, or there is no word in time.
    """
    deadline = time.monotonic() + timeout_s
    while presence.is_alive() and not presence.has_master() and time.monotonic() < deadline:
        time.sleep(AGAIN_S)  # whoever starts or ends it holds the lock; there is no event to wait for
    return _address(run, presence)


def read_address(run: RunDir) -> Address:
    """Where the master listens. Raises RunError if no master runs."""
    return _address(run, presence_of(run))


def _address(run: RunDir, presence: Presence) -> Address:
    if not presence.is_alive():
        raise RunError(f"{run.path}: this run is over{how_it_ended(run, presence)}.")
    if presence.silence() and not presence.has_master():
        raise unknown(run, presence)
    if not presence.has_master():
        raise NoMaster(f"{run.path}: {presence.waits_for()}; try again.")
    return run.read_address()


def how_it_ended(run: RunDir, presence: Presence) -> str:
    """To follow "this run is over"."""
    if presence.is_anothers():
        return ", and its folder is another run's by now, or somebody has resumed it"
    if report := run.read_report():
        return f": {report.state}, {report.text}"
    end, words = presence.end(), presence.last_words()
    how = f": {end.job} {end.text}" if end else "" if words else ": its processes were killed"
    left = f"; {words}" if words else ""
    then = f"go on with --resume: {run.resume_command}"
    if end and end.state == "FAILED" and not run.journal.exists() and (by := presence.begun_by()):
        then = (
            f"it has done nothing yet. Mend what that tells of, which may be {by}; then go on with the "
            f"file of settings that says so: elasticflow submit FILE --resume --run-dir {run.path}"
        )
    return f", and left no report{how}{left}; {then}"


def wait_for_master(run: RunDir, tell: Callable[[str], None], presence: Presence | None = None) -> None:
    """Waits until there is a master, or the run is over. tell: is told for what, when that changes.

    Raises RunError if there should be one, and is none.
    """
    presence, told = presence or presence_of(run), ""
    deadline = time.monotonic() + presence.master_s
    while presence.is_alive() and not presence.has_master():
        if time.monotonic() >= deadline:
            raise RunError(
                f"{run.path}: has had no master for {presence.master_s:g} s, though a process holds its lock "
                f"({run.path / 'lock'}): it may hang. End it, then go on: {run.resume_command}"
            )
        if (text := presence.waits_for()) != told:
            tell(text)
            told = text
        time.sleep(MASTER_S)  # whoever gives it a place tells nobody
