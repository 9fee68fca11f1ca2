"""What ``submit`` and ``lead`` do alike on all clusters: making a run's folder ready, and its masters."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from elasticflow.checkpoint import commits, load_manifest
from elasticflow.cluster.folder import FolderBefore, advice
from elasticflow.cluster.presence import is_alive
from elasticflow.errors import ElasticFlowError, RunError
from elasticflow.master.fence import Superseded, claim, newest
from elasticflow.master.journal import read_journal
from elasticflow.master.log import say
from elasticflow.master.supervisor import CRASHED, SUPERSEDED, Supervisor
from elasticflow.master.tracking import await_tracking
from elasticflow.process.fingerprint import one_thread
from elasticflow.process.locked_files import hold
from elasticflow.process.parent import die_with_parent
from elasticflow.process.retry import Backoff, is_curable
from elasticflow.process.stamps import stamp_output
from elasticflow.program.copy import keep, take
from elasticflow.run.config import Config
from elasticflow.run.folder import EXIT_CODES, UNKNOWN, HostJob, RunDir, publish
from elasticflow.run.work import check_same_work
from elasticflow.wire.keys import MasterKeys, read_keys

T = TypeVar("T")
STORAGE_S = 15.0
"""After so long a master that could not read the run's folder is followed by another."""


class FolderTaken(RunError):
    """There is something in a folder in which a run was to begin."""


def begin(run: RunDir, chosen: Config, job: str, program: str = "", id: str = "") -> None:
    """Makes a run's folder ready for a new leader; what is left of one before is forgotten.

    job: id of the cluster's job, or what stands for it until the cluster has told it.
    program: where the program is, if the run's members have it elsewhere; a copy is taken.
    id: the run's, see ``HostJob``, where the job itself is to tell it from others; "": one is made.
    """
    try:
        chosen, copy = take(msgspec.structs.replace(chosen, run_dir=str(run.path)), program)
        run.end_attempt()
        for path in (run.journal, run.report, run.address):
            path.unlink(missing_ok=True)
        if copy:
            keep(run, copy)
        told = HostJob(chosen.backend, job, id or secrets.token_hex(6))
        if run.settings.exists():
            run.create(chosen)
            publish(run.job, told)
        else:  # whoever comes after a leader that was lost here is to know whose the folder is
            run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            publish(run.job, told)
            run.create(chosen)
    except OSError as error:
        text = error.strerror or error
        raise RunError(f"{run.path}: cannot be written: {text}; {advice(error)}.") from error


@contextlib.contextmanager
def submission(chosen: Config, resume: bool, withdraw: Callable[[str], None]) -> Iterator[RunDir]:
    """The folder of a run that is being submitted, in which it is to begin; if that fails, as it was before.

    withdraw: ends all that a cluster may have taken of a run, which it names by its id; also of the run of
    before, once this one is taken. Raises RunError, CheckpointError; FolderTaken if others begin a run there.
    """
    run = RunDir(os.path.abspath(RunDir(chosen.run_dir).folder))
    with _claimed(run) if resume else contextlib.nullcontext(), _submission(run, chosen, resume, withdraw):
        yield run


@contextlib.contextmanager
def _claimed(run: RunDir) -> Iterator[None]:
    """Of several who go on with a run at the same time one does. Raises RunError."""
    with contextlib.ExitStack() as claim:
        with contextlib.suppress(OSError):  # there is no such folder, or none to write in: that is said later
            try:
                claim.callback(os.close, hold(run.submitting))
            except BlockingIOError as error:
                raise RunError(f"{run.folder}: somebody else goes on with this run just now.") from error
        yield


@contextlib.contextmanager
def _submission(run: RunDir, chosen: Config, resume: bool, withdraw: Callable[[str], None]) -> Iterator[None]:
    """See ``submission``."""
    folder = FolderBefore(run)  # first: who makes it after this look is not overlooked
    check_folder(run, chosen, resume)
    try:
        folder.make()
    except FileExistsError as error:
        text = f"{run.folder}: somebody else begins a run there just now; choose another --run-dir."
        raise FolderTaken(text) from error
    except OSError as error:
        text = f"{run.folder}: cannot be made: {error.strerror}; choose another --run-dir."
        raise RunError(text) from error
    before = run.host()
    try:
        yield
    except BaseException:
        known = run.host()
        if known and (before is None or known.run != before.run):
            withdraw(known.run)
        folder.put_back()
        raise
    if before:
        withdraw(before.run)


def in_new_folder(submit: Callable[[Config], T], chosen: Config, name: Callable[[], str]) -> T:
    """Submits a run, into the folder that was named, or else the first new one that nobody else takes at the
    same time.

    name: of the next new one.
    """
    while True:
        placed = msgspec.structs.replace(chosen, run_dir=chosen.run_dir or name())
        try:
            return submit(placed)
        except FolderTaken:
            if chosen.run_dir or name() == placed.run_dir:
                raise


def check_begun(run: RunDir) -> None:
    """The folder of a run that was begun is never made anew while its storage is away. Raises RunError."""
    run.config()
    if run.host() is None:
        raise RunError(f"{run.path}: {run.job.name} is gone; is the storage what it was?")


def check_folder(run: RunDir, chosen: Config, resume: bool) -> None:
    """Raises RunError or CheckpointError if a run cannot begin there, or with ``resume`` go on."""
    try:
        if resume:
            check_resume(run, chosen)
        elif run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            raise FolderTaken(f"{run.path}: is not empty{_what_holds(run)} choose another --run-dir.")
    except OSError as error:
        text = error.strerror or error
        raise RunError(f"{run.path}: cannot be used: {text}; choose another --run-dir.") from error


def _what_holds(run: RunDir) -> str:
    """Of a folder in which no run can begin, what is in it, and what to do. Raises OSError."""
    is_folder = run.path.is_dir()
    if is_folder and run.settings.exists():
        return "; go on with the run that is in it by --resume, or"
    none = f", and holds no run (there is no {run.settings.name})"
    if is_folder and run.client_keys.parent.exists():  # what is made first
        return f"{none}: somebody begins one there just now, or was killed at that; remove it then, or"
    return f"{none};"


def check_resume(run: RunDir, chosen: Config) -> None:
    """Raises RunError or CheckpointError if this run cannot go on, or not with these settings."""
    if not run.settings.exists():
        return
    if is_alive(run):
        host = run.host()
        where = "here" if host is None else f"in job {host.id}"
        if host and host.id == UNKNOWN:
            where = "or is submitted just now: the cluster has not said yet in which job"
        raise RunError(f"{run.path}: this run is under way, {where}.")
    report = run.read_report()
    before = run.config().max_steps
    further = before and not 0 < chosen.max_steps <= before
    done = report and report.state == "finished" and report.step == report.steps_total
    if report and done and report.epochs >= chosen.epochs and not further:
        raise RunError(f"{run.path}: there is nothing left to do: {report.text}.")
    storage = run.checkpoints()
    if steps := commits(storage):
        check_same_work(load_manifest(storage, steps[-1]), chosen)


def patiently(act: Callable[[], T]) -> T:
    """What it returns, in the end: a storage that is away, or full, may come back.

    Raises RunError if it does not for as long as a run has patience.
    """
    backoff, begun_s, failures = Backoff(patience_s=Config().storage_patience_s), time.monotonic(), 0
    while True:
        try:
            return act()
        except (OSError, RunError) as error:
            failures += 1
            delay_s = backoff.delay_s(time.monotonic() - begun_s, failures) if is_curable(error) else None
            if delay_s is None:
                raise RunError(str(error)) from error
            say(f"warning: tried again in {delay_s:g} s: {error}")
            time.sleep(delay_s)  # whoever brings a storage back tells nobody


def host(
    run: RunDir,
    patience_s: float,
    *,
    resume: bool,
    sign: Callable[[], None],
    clear: Callable[[], None],
    ended: Callable[[int, str], None] = lambda code, text: None,
) -> int:
    """Has a run's masters of a new term until it is over; returns its exit code.

    sign: has the run be found by its job, as soon as the term is claimed. clear: ends what masters of this
    term leave behind. ended: is told the run's exit code, and why. Both are left to those of a newer term, if
    there is one. patience_s: see ``masters``.
    """
    stamp_output(patiently(run.config).log_format, "leader")
    term = patiently(lambda: claim(run.storage()))
    # Only now: whoever was stopped before it claimed may come last.
    again = patiently(lambda: _was_led(run))
    patiently(sign)

    def clear_ours() -> None:
        with contextlib.suppress(OSError, ElasticFlowError):
            if newest(run.storage()) == term:
                clear()

    def end_ours(code: int, text: str) -> None:
        with contextlib.suppress(OSError):
            if newest(run.storage()) > term:
                return
        ended(code, text)

    master = masters(run, term, resume, patience_s, end_ours)
    gc.freeze()
    code = Supervisor(master, clear_ours).run(again)
    await_tracking(run)
    return code


def _was_led(run: RunDir) -> bool:
    """Whether masters before have begun it, or ended it. Raises RunError, OSError if that cannot be seen."""
    if run.report.exists():
        return True
    if not run.journal.exists():
        return False
    try:
        return read_journal(run.journal, read_keys(run.master_keys, MasterKeys)) is not None
    except RunError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return True  # it is damaged, which the master says


def masters(
    run: RunDir,
    term: int,
    resume: bool,
    patience_s: float,
    ended: Callable[[int, str], None],
) -> Callable[[bool], int]:
    """For a supervisor: a run's masters of this term. ended: is told the run's exit code, and why.

    patience_s: for so long masters follow each other that cannot begin since the storage fails.
    """
    with one_thread():
        from elasticflow.master.server import serve
    failing = Failing(patience_s)

    supervisor = os.getpid()

    def master(again: bool) -> int:
        die_with_parent(supervisor)  # the next supervisor's master must be the only one
        try:
            end = serve(str(run.path), resume=resume or again, again=again, ready=failing.end, term=term)
        except Superseded as error:
            say(f"ended: {error}")
            return SUPERSEDED
        except ElasticFlowError as error:
            say(f"Error: {error}")
            if isinstance(error.__cause__, OSError) and failing.may_last(time.monotonic()):
                time.sleep(STORAGE_S)  # the storage may come back
                return CRASHED
            ended(1, str(error))
            return 1
        code = EXIT_CODES[end.state.value]
        ended(code, f"{end.state.value}: {end.text}")
        return code

    return master


class Failing:
    """Since when masters that follow each other have failed to begin; they have memory of it in common."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s = memoryview(mmap.mmap(-1, 8)).cast("d")
        """On the monotonic clock; 0: none has failed since one began."""

    def may_last(self, now_s: float) -> bool:
        """One has failed. Whether another is worth a try."""
        self._since_s[0] = self._since_s[0] or now_s
        return now_s - self._since_s[0] < self._patience_s

    def end(self, _: str = "") -> None:
        """One has begun."""
        self._since_s[0] = 0.0
