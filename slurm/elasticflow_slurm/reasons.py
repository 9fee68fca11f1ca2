"""SLURM's words for why a job waits, or has ended, in words for people."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from elasticflow.cluster.clock import clock
from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.process.ending import signal_name
from elasticflow_slurm.client import SlurmJob

_TAKEN = {
    "PREEMPTED": "was preempted{on}",
    "NODE_FAIL": "lost its node{node}",
    "BOOT_FAIL": "lost its node{node}, which did not boot",
    "TIMEOUT": "reached its time limit{on}",
    "DEADLINE": "reached its deadline{on}",
    "CANCELLED": "was cancelled{on}",
    "REVOKED": "was revoked{on}",
}
"""Ends by no fault of the worker's."""
_WAITS = {
    "": "job {id} waits, SLURM does not say for what",
    "Resources": "{where} has no idle {what}",
    "Priority": "other jobs come first in {where}",
    "JobHeldUser": "job {id} is held; scontrol release {id} lets it start",
    "JobHeldAdmin": "job {id} is held by an administrator",
    "BeginTime": "job {id} waits for its begin time",
    "PartitionDown": "{where} is down",
    "PartitionInactive": "{where} is inactive",
    "PartitionTimeLimit": "job {id} asks for more time than {where} allows",
    "ReqNodeNotAvail": "nodes of {where} are down, drained or reserved",
}
"""By SLURM's reason up to the first comma."""
EXIT_NO_FOLDER = 79
"""Exit code of a worker's job on a node that does not see the run's folder, or cannot write there."""
EXIT_NOT_BEGUN = 78
"""Exit code of a worker's job that ended before its Python could begin the worker."""
_RELEASE = "'scontrol release {id}' lets it go on; or cancel it."
_OTHER = "Cancel it, and submit it with another slurm.leader."
RESERVED = "RESV_DEL_HOLD"
"""State of a job whose reservation is over; one that is released goes on, and its workers may not."""
_LESS = "Cancel it, and submit it with less for the leader or its servers, or with another slurm.leader."
_NEVER = {
    "PartitionTimeLimit": "Cancel it, and submit it with a shorter slurm.leader_time.",
    "PartitionNodeLimit": "Cancel it, and submit it with fewer slurm.server_nodes.",
    "BadConstraints": _OTHER,
    "AccountNotAllowed": _OTHER,
    "InvalidAccount": _OTHER,
    "InvalidQOS": _OTHER,
    "QOSNotAllowed": _OTHER,
    "ReservationDeleted": _OTHER,
    "DependencyNeverSatisfied": "Cancel it: what it was to wait for has failed.",
    "launch failed requeued held": (
        "Its node may not see the run's folder, not know this user, or be full; once that is mended, "
        + _RELEASE
    ),
}
"""Reasons that nothing but somebody's doing ends, and what to do about a leader."""
_NODES_AWAY = "Nodes required for job are DOWN"
"""How SLURM's longest reason begins."""
_FOR_NODES = ("Resources", "Priority", "ReqNodeNotAvail")
"""Reasons that are said of the nodes that a job may have."""
_LIMITS = ("QOS", "Assoc", "Max")
"""How reasons begin that are limits."""
_OF_ONE_JOB = re.compile("(QOS|Assoc)(Max.*Per(Job|Node)|Min)")
"""How reasons begin that are limits of each job by itself: it asks for too much, whoever else leaves."""
UNTOLD_S = 300 * 86400.0
"""SLURM reckons that a job without a time limit takes a year: the start of who waits for it is not known."""
FOR_A_PLACE = ("", "Resources", "Priority")
"""Reasons of a job that waits for others to leave."""


# --- ends -----------------------------------------------------------------------------------------


def ending(name: str, job: SlurmJob) -> Ended:
    """What became of a worker whose job is over; the text is to follow its name."""
    if job.state == "COMPLETED":
        return Ended(name, How.DONE, f"ended (job {job.id}{_on(job)})")
    if job.state in _TAKEN:
        node = f" {job.node}" if job.node else ""
        text = _TAKEN[job.state].format(on=_on(job), node=node)
        return Ended(name, How.TAKEN, f"{text} (job {job.id})")
    if job.state == "FAILED" and (cause := _killed(job)):
        return Ended(name, How.KILLED, f"{cause}{_on(job)} (job {job.id})")
    if why := launch_failure(job):
        return Ended(name, How.TAKEN, f"could not be started (job {job.id}): {why}")
    advice = "; slurm.mem gives it more memory" if job.state == "OUT_OF_MEMORY" else ""
    return Ended(name, How.FAILED, f"failed ({_words(job)}){advice}")


def requeued(name: str, job: SlurmJob) -> Ended:
    """Of a worker whose job waits again, though it ran."""
    return Ended(name, How.TAKEN, f"was requeued (job {job.id}); its job is cancelled")


def given_up(name: str, job: SlurmJob, why: str) -> Ended:
    """Of a worker whose job is cancelled before it has started."""
    return Ended(name, How.TAKEN, f"was given up (job {job.id}): {why}")


def forgotten(name: str, id: int | None) -> Ended:
    """Of a worker whose job is in no poll any more."""
    job = f"job {id} any more" if id is not None else "a job of it"
    return Ended(name, How.TAKEN, f"is lost: slurmctld does not know {job}")


def blames_node(job: SlurmJob) -> bool:
    """Whether a job that is over, or held, speaks against its node.

    One that lost its node does not: SLURM itself gives out none that is down, and knows when it is up again.
    """
    by_others = _killed(job) and _signal(job) in (0, signal.SIGTERM, signal.SIGKILL)
    return job.held or job.state == "BOOT_FAIL" or (job.state == "FAILED" and not by_others)


def launch_failure(job: SlurmJob) -> str:
    """Why nothing could be started where the job, that is over, or held, had its place; "": something was."""
    if job.state == "FAILED" and job.exit_code == EXIT_NO_FOLDER:
        node = f"node {job.node}" if job.node else "its node"
        return f"{node} cannot write into the run's folder; choose a --run-dir that all nodes see"
    if job.state == "FAILED" and job.exit_code == EXIT_NOT_BEGUN:
        likely = "slurm.setup, slurm.environment, slurm.container or slurm.python fails there; its log tells"
        return f"job {job.id}{_on(job)} ended before the worker began: {likely}"
    if job.held or (job.state == "FAILED" and job.reason == "JobLaunchFailure" and not _killed(job)):
        likely = "that node may not know this user, or be full; its slurmd's log tells"
        return f"SLURM could not launch job {job.id}{_on(job)} ({job.reason}): {likely}"
    return ""


def _killed(job: SlurmJob) -> str:
    """By what a worker died that made no error of its own; "" if it did, as far as its exit code tells."""
    if job.exit_code == EXIT_ABANDONED:
        return f"ended with exit code {EXIT_ABANDONED}"
    name = signal_name(_signal(job))
    return f"was killed by {name}" if name else ""


def _signal(job: SlurmJob) -> int:
    """0: none."""
    return max(0, (job.exit_code or 0) - 128)


def _on(job: SlurmJob) -> str:
    return f" on {job.node}" if job.node else ""


def _words(job: SlurmJob) -> str:
    """``job 12 on g3: FAILED, NonZeroExitCode, exit code 1``."""
    code = "" if job.exit_code is None else f"exit code {job.exit_code}"
    return f"job {job.id}{_on(job)}: " + ", ".join(filter(None, (job.state, job.reason, code)))


def ended(job: SlurmJob) -> str:
    """How a leader's job ended, in SLURM's own words, to follow its name."""
    name = signal_name(_signal(job))
    signalled = f"by {name}" if name else ""
    code = "" if job.exit_code is None else f"exit code {job.exit_code}"
    reason = "" if job.reason == job.state else job.reason
    words = ", ".join(filter(None, (reason, signalled, code)))
    return f"ended as {job.state}{_on(job)}" + (f" ({words})" if words else "")


# --- waits ----------------------------------------------------------------------------------------


def waiting(
    job: SlurmJob, *, gpus: int, start_at: float | None, at: float, without: Sequence[str] = ()
) -> str:
    """Why a pending job waits. gpus: that it asks for. start_at: when one of ours is expected to start.

    without: nodes that it leaves out, idle or not.
    """
    reason = "ReqNodeNotAvail" if job.reason.startswith(_NODES_AWAY) else job.reason.partition(",")[0]
    if _OF_ONE_JOB.match(reason):
        return f"job {job.address} asks for what a limit of SLURM's gives to no job ({reason})"
    if reason.startswith(_LIMITS) and reason not in _NEVER:
        return f"{reason} (SLURM's limit)"
    template = _WAITS.get(reason, f"job {{id}} waits: {job.reason}")
    where = f"partition {job.partition}" if job.partition else "SLURM's default partition"
    text = template.format(id=job.address, where=where, what="GPU" if gpus else "CPUs")
    if without and reason in _FOR_NODES:
        text += (
            f" ({', '.join(without)} {'is' if len(without) == 1 else 'are'} left out after failures there)"
        )
    if reason in ("Resources", "Priority") and start_at is not None and at < start_at < at + UNTOLD_S:
        return f"{text}, next expected {clock(start_at, at)}"
    return text


def advice(job: SlurmJob) -> str:
    """What to do for a worker's job that asks for more time than it is ever given, to follow why it waits."""
    if "Wall" not in job.reason or not _OF_ONE_JOB.match(job.reason):
        return ""
    return "; it will not start: stop the run, and resume it with a shorter slurm.time"


def leader_waiting(job: SlurmJob, at: float) -> str:
    """Why a leader's job waits, and what to do where it will not start by itself."""
    if not job.reason:
        return "SLURM has not looked at it yet"
    text = waiting(job, gpus=0, start_at=job.start_at, at=at)
    word = job.reason.partition(",")[0]
    if _OF_ONE_JOB.match(word):
        text += f", and will not start by itself. {_NEVER['PartitionTimeLimit'] if 'Wall' in word else _LESS}"
    elif word in _NEVER or job.held:
        says = "it" if job.reason in text else f"SLURM says {job.reason}, and it"
        advice = _OTHER if job.state == RESERVED else _NEVER.get(word, _RELEASE)
        text += f": {says} will not start by itself. {advice}"
    elif word not in _WAITS and word not in text:
        text += f" (SLURM: {job.reason})"
    return text.replace("{id}", str(job.address))


def of_components(first: SlurmJob, jobs: Sequence[SlurmJob]) -> str:
    """Why a heterogeneous job waits: SLURM tells of each component by itself, of most only that it waits."""
    others = [job.reason for job in jobs if job.leader_id == first.id and not job.over]
    return next((reason for reason in (first.reason, *others) if reason not in FOR_A_PLACE), first.reason)


def jobs(number: int, verb: str) -> str:
    """``1 job starts``, ``3 jobs start``."""
    return f"1 job {verb}s" if number == 1 else f"{number} jobs {verb}"
