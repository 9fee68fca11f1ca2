"""SLURM's own commands: what they take and print is text, in which all versions from 22.05 to 26.05 agree."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from elasticflow_slurm.client import (
    JobAddress,
    JobRequest,
    LimitReached,
    Partition,
    PlaceClosed,
    PlaceRefused,
    Reservation,
    SlurmBusy,
    SlurmError,
    SlurmJob,
    SlurmNode,
    SlurmNotInstalled,
    SlurmRefused,
)
from elasticflow_slurm.printed import (
    FIELD,
    JOB_FIELDS,
    NODE_FIELDS,
    PARTITION_FIELDS,
    PAST_FIELDS,
    RECORD,
    parse_jobs,
    parse_nodes,
    parse_partitions,
    parse_past,
    parse_reservations,
    start_told,
)

TIMEOUT_S = 30.0
"""For one command. That there is no controller is told after 9 or 18 s, with SLURM's own settings."""

OURS = re.compile("(SLURMD?|SBATCH|SRUN|SQUEUE|SCANCEL|SINFO|SALLOC|SCONTROL|SACCT)_")
"""Beginnings of variables that change what SLURM's commands do, or that name the job in which this runs."""
LATER_S = 2
"""A job that starts in the very second of its requeue gets credentials that were just revoked, and fails."""
ADDRESSES = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SBATCH_ACCOUNT"})
"""Variables that say where the cluster is, with what token, and at whose expense; no job's traces."""

NO_SUCH_JOB = "Invalid job id specified"
NOT_PENDING = ("Job is no longer pending execution", "Job has already started", "Job has already finished")
"""What scontrol says of a job that does not wait any more, and so needs no other start: no failure."""
ENDED = ("Job/step already completing or completed", "Job is not pending nor running", NO_SUCH_JOB)

KINDS: dict[type[SlurmError], tuple[str, ...]] = {
    SlurmNotInstalled: (
        "Could not establish a configuration source",
        "Unable to process configuration file",
        "cannot stat file",
        "Failed to connect to authentication agent",
        "Munge encode failed",
        "Protocol authentication error",
        "Authentication credential invalid",
        "Invalid authentication credential",
        "Authentication failure",
        "cannot find auth plugin",
        "cannot create auth context",
        "failed to initialize auth plugin",
        "Incompatible versions of client and server code",
        "Incompatible plugin version",
    ),
    LimitReached: (
        "Job violates accounting/QOS policy",
        "SubmitJobLimit",
        "SubmitJobsLimit",
        "MaxSubmitJobPer",
        "QOSMax",
        "QOSGrp",
        "AssocMax",
        "AssocGrp",
        "MaxJobCount limit reached",
        "Slurm job queue full",
        "Unable to create job record, try again",
        "has breached requested QOS usage threshold",
    ),
    PlaceClosed: (
        "Required partition not available (inactive or drain)",
        "Requested partition configuration not available now",
        "Requested reservation not usable now",
        "Requested nodes are busy",
    ),
    SlurmBusy: (
        "Unable to contact slurm controller",
        "Socket timed out on send/recv operation",
        "Unexpected message received",
        "Communication connection failure",
        "Communication shutdown failure",
        "Message send failure",
        "Message receive failure",
        "Zero Bytes were transmitted or received",
        "Received zero length message",
        "Failed to send entire message",
        "Header lengths are longer than data received",
        "Insane message length",
        "Unexpected missing socket error",
        "Connection timed out",
        "Connection refused",
        "Connection reset by peer",
        "Connection rejected by handler",
        "Connection forced closed",
        "No route to host",
        "Network is unreachable",
        "Transport endpoint is not connected",
        "Temporary failure in name resolution",
        "temporarily unable to accept job",
        "Job creation temporarily disabled",
        "Resource temporarily unavailable",
        "Cannot allocate memory",
        "in standby mode",
        "try again later",
        "try again in a bit",
        "System submissions disabled",
        "Required ports are in use",
        "I/O error writing script/environment to file",
        "Unable to connect to database",
        "Rate limit exceeded",
    ),
    PlaceRefused: (
        "Invalid partition name specified",
        "No partition specified or system default partition",
        "User's group not permitted to use this partition",
        "Invalid account or account/partition combination specified",
        "Invalid qos specification",
        "Requested reservation is invalid",
        "Access denied to requested reservation",
    ),
    SlurmRefused: (
        "Access/permission denied",
        "Requested node configuration is not available",
        "Invalid generic resource (gres) specification",
        "Requested time limit is invalid",
        "Invalid feature specification",
        NO_SUCH_JOB,
    ),
}
"""SLURM's words, the most telling kind first: sbatch prints the limit before it says that it retries."""

SLEEPS = re.compile(r"(?:sleeping and|temporarily disabled,) retrying|cannot stat file .* retrying")
"""Words of a command that has been told no, and sleeps before it tries again, for 120 s in all.

Where sbatch sleeps no request is under way: it can be killed, and there is no job of it.
"""


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the traces of a SLURM job, in which sbatch does what it does at a login node."""
    return {name: value for name, value in environ.items() if name in ADDRESSES or not OURS.match(name)}


class SlurmClient:
    """Asks one cluster for one user, by sbatch, squeue, scancel, scontrol and sinfo, found on PATH.

    A call blocks until SLURM answers; a command that hangs is killed, and SlurmBusy raised. All methods may
    raise the errors of ``client``, sorted by ``KINDS``. An error of unknown words is SlurmRefused where
    something was to be done, and SlurmBusy where something was asked, or a job cancelled: a query has no
    reason to be refused.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        """environ: that of this process; commands and slurm.conf are found by it."""
        self._environ = scrubbed(os.environ if environ is None else environ)
        self._timeout_s = timeout_s

    # --- the interface ---------------------------------------------------------------------------

    def version(self) -> tuple[int, int]:
        """Of the SLURM that is installed here: (25, 11)."""
        said = self._run("sinfo", "--version", unknown=SlurmNotInstalled)
        found = re.search(r"(\d+)\.(\d+)", said)
        if found is None:
            raise SlurmNotInstalled(f"`sinfo --version` said {said.strip()!r}: that is no version of SLURM.")
        return int(found[1]), int(found[2])

    def submit(self, request: JobRequest) -> int:
        """The job's id; of a heterogeneous job: that of component 0.

        After a SlurmBusy the job may be there all the same: look for its comment. A job that SLURM
        refused for what it asks may be listed for a while, as FAILED for BadConstraints.
        """
        said = self._run(
            "sbatch", "--parsable", *arguments(request), script=request.script, unknown=SlurmRefused
        )
        for line in said.splitlines():
            number = line.partition(";")[0]  # behind it: the cluster, where there are several
            if number.isdecimal():
                return int(number)
        raise SlurmBusy(f"sbatch said {said.strip()!r}, and no job id; the job may be there all the same.")

    def would_start_at(self, request: JobRequest) -> float:
        """When the job would start if it was submitted now, by SLURM's estimate. Submits nothing.

        For heterogeneous jobs SLURM's estimates are poor: years, even on an idle cluster.
        """
        command = ("sbatch", "--test-only", *arguments(request))
        return start_told(self._run(*command, script=request.script, unknown=SlurmRefused, errors_too=True))

    def jobs(self) -> list[SlurmJob]:
        """All jobs of this user that SLURM remembers, ended ones too, in one call.

        SLURM forgets a job MinJobAge after its end, 300 s by default.
        """
        return parse_jobs(self._squeue("--me"))

    def job(self, id: int) -> SlurmJob | None:
        """None: SLURM does not know it, or does not any more."""
        try:
            said = self._squeue(f"--jobs={id}")
        except SlurmRefused as error:
            if NO_SUCH_JOB in str(error):
                return None
            raise
        return next((job for job in parse_jobs(said) if job.id == id), None)

    def past_job(self, id: int) -> SlurmJob | None:
        """One that SLURM has forgotten, as its accounting has kept it; None: it has not, or there is none."""
        wanted = [f"--jobs={id}", f"--format={','.join(PAST_FIELDS)}"]
        said = self._run("sacct", "--noheader", "--parsable2", "--allocations", *wanted, unknown=SlurmRefused)
        return next((job for line in said.splitlines() if (job := parse_past(line)) and job.id == id), None)

    def cancel(self, ids: Iterable[JobAddress]) -> None:
        """Cancels them in one call. One that has ended, or is unknown, is no error."""
        if names := list(map(str, ids)):
            self._run("scancel", *names, unknown=SlurmBusy, harmless=ENDED)

    def requeue(self, id: JobAddress) -> None:
        """Ends the job, which then waits to run again under its id; of a heterogeneous job: all of it."""
        self._run("scontrol", "requeue", str(id), unknown=SlurmRefused)

    def start_now(self, ids: Iterable[JobAddress]) -> None:
        """Lets pending jobs start as soon as there is room: ends a wait for their begin time.

        Of a heterogeneous job, give every component. Those that are not pending are no error.
        """
        if names := ",".join(map(str, ids)):
            soon = f"StartTime=now+{LATER_S}"
            harmless = (*NOT_PENDING, *ENDED)
            self._run("scontrol", "update", f"JobId={names}", soon, unknown=SlurmRefused, harmless=harmless)

    def set_comment(self, id: JobAddress, text: str) -> None:
        """Replaces the comment of a job that has not ended."""
        self._run("scontrol", "update", f"JobId={id}", f"Comment={text}", unknown=SlurmRefused)

    def drained(self) -> set[str]:
        """Names of nodes that an operator has drained, whether jobs still run there or not."""
        wanted = ("--noheader", "--all", "--Node", "--states=drain", "--format=%N")
        return set(self._run("sinfo", *wanted, unknown=SlurmBusy).split())

    def partitions(self) -> list[Partition]:
        """The partitions that this user may see."""
        wanted = ",".join(f"{name}:0{FIELD}" for name in PARTITION_FIELDS)
        said = self._run("sinfo", "--noheader", "--all", f"--Format={wanted}", unknown=SlurmBusy)
        return parse_partitions(said)

    def nodes(self) -> list[SlurmNode]:
        """All nodes, once for each partition that they are in."""
        wanted = ",".join(f"{name}:0{FIELD}" for name in NODE_FIELDS)
        said = self._run("sinfo", "--noheader", "--all", "--Node", f"--Format={wanted}", unknown=SlurmBusy)
        return parse_nodes(said)

    def reservations(self) -> list[Reservation]:
        """Of nodes, those included that are to come. SLURM may hide some from this user (PrivateData)."""
        return parse_reservations(
            self._run("scontrol", "--oneliner", "show", "reservation", unknown=SlurmBusy)
        )

    # --- commands --------------------------------------------------------------------------------

    def _squeue(self, which: str) -> str:
        # A width of 0 means: as long as it is; what follows the width is printed behind the field.
        wanted = ",".join(f"{name}:0{RECORD if name == JOB_FIELDS[-1] else FIELD}" for name in JOB_FIELDS)
        return self._run(
            "squeue", "--noheader", "--all", "--states=all", which, f"--Format={wanted}", unknown=SlurmBusy
        )

    def _run(
        self,
        *command: str,
        unknown: type[SlurmError],
        script: str = "",
        harmless: Sequence[str] = (),
        errors_too: bool = False,
    ) -> str:
        """What the command printed. unknown: the error of words that ``KINDS`` does not have.

        harmless: lines of its errors that hold one of these are none.
        """
        code, said, errors = self._talk(command, script)
        left = [line for line in _lines(errors) if not any(text in line for text in harmless)]
        if harmless:  # Then the exit code tells nothing: it differs between versions.
            failed = any(_kind(line, None) is not None for line in left) or (code != 0 and bool(left))
        else:
            failed = code != 0
        if failed:
            raise sorted_error(command[0], "; ".join(left) or f"it ended with exit code {code}", unknown)
        return said + errors if errors_too else said

    def _talk(self, command: Sequence[str], script: str) -> tuple[int, str, str]:
        # Only where no job is made: sbatch gives its environment to the job.
        is_submission = command[0] == "sbatch" and "--test-only" not in command
        environ = (
            self._environ if is_submission else {**self._environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        )
        try:
            process = subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.PIPE if script else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C at the terminal is not for it
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            path = self._environ.get("PATH", "")
            raise SlurmNotInstalled(
                f"there is no {command[0]} here (PATH={path}): run this where SLURM's commands are."
            ) from error
        except OSError as error:
            raise SlurmBusy(f"{command[0]} could not be started: {error.strerror or error}.") from error
        with process:
            try:
                said, errors = self._await(process, command[0], script)
            finally:
                process.kill()
        return process.returncode, _text(said), _text(errors)

    def _await(self, process: subprocess.Popen[bytes], name: str, script: str) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + self._timeout_s
        given: bytes | None = os.fsencode(script) if script else None
        while True:
            left_s = deadline - time.monotonic()
            try:
                return process.communicate(given, timeout=max(0.0, min(left_s, 0.25)))
            except subprocess.TimeoutExpired as waiting:
                given = None
                errors = _text(waiting.stderr or b"")
            if SLEEPS.search(errors):
                raise sorted_error(name, "; ".join(_lines(errors)), SlurmBusy)
            if left_s <= 0:
                words = "; ".join(_lines(errors))
                more = f" It had said: {words}" if words else " Ask again later."
                raise SlurmBusy(f"{name} did not answer within {self._timeout_s:g} s.{more}")


def arguments(request: JobRequest) -> list[str]:
    """A request's options as sbatch takes them; a colon stands between the components."""
    words = _options(request.options)
    for component in request.components:
        words += [":", *_options(component)]
    return words


def _options(options: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


# Errors


def sorted_error(command: str, words: str, unknown: type[SlurmError]) -> SlurmError:
    """The error of these words, which its text holds."""
    kind = _kind(words, unknown) or unknown
    hint = " Run this where SLURM's commands work." if kind is SlurmNotInstalled else ""
    return kind(f"{command} failed: {words.rstrip('.')}.{hint}")


def _kind(words: str, unknown: type[SlurmError] | None) -> type[SlurmError] | None:
    lowered = words.lower()
    for kind, texts in KINDS.items():
        if any(text.lower() in lowered for text in texts):
            return kind
    return unknown


def _lines(errors: str) -> list[str]:
    """What a command said, without its name before each line."""
    said = (line.strip() for line in errors.splitlines())
    stripped = (
        re.sub(r"^(?:sbatch|squeue|scancel|scontrol|sinfo|sacct): (?:\w+: )?", "", line) for line in said
    )
    return [line for line in stripped if line]


def _text(printed: bytes) -> str:
    return printed.decode("utf-8", "surrogateescape")
