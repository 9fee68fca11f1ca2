"""Settings of a SLURM that will hurt runs, for ``elasticflow doctor``. What is made of them is pure."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow_slurm.config import PlaceConfig, SlurmConfig, read

COMMAND_S = 20.0
"""That there is no controller is told after 9 or 18 s, with SLURM's own settings."""
LEAST_GRACE_S, LEAST_KILL_WAIT_S, LEAST_JOB_AGE_S = 5, 10, 60
FEW_DESCRIPTORS = 4096
NONE = ("(null)", "n/a", "none", "")

Settings = Mapping[str, str]


def concerns(config: Config) -> bool:
    """Whether this machine, or these settings, have to do with SLURM."""
    return config.backend == "slurm" or shutil.which("scontrol") is not None


def check(config: Config) -> Iterator[Diagnosis]:
    """All findings; each command has a time limit. A SLURM that the settings do not name only hurts."""
    verdict = broken if config.backend == "slurm" else hurts
    if shutil.which("scontrol") is None:
        cure = "Submit from a login node, or add SLURM's bin to PATH."
        yield verdict("slurm", "there is no scontrol on PATH", cure)
        return
    try:
        slurm = read(config.slurm)
    except ConfigError as error:
        yield broken("slurm settings", str(error), "Correct the file of settings.")
        slurm = SlurmConfig()
    try:
        settings = parse_config(_said("show", "config"))
        partitions = parse_records(_said("--oneliner", "show", "partition"))
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [""]
        cure = "Is slurmctld up, and munge here? See scontrol ping."
        yield verdict("slurm", f"scontrol does not answer: {lines[-1]}", cure)
        return
    yield from findings(settings, partitions, slurm, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _said(*arguments: str) -> str:
    done = subprocess.run(
        ["scontrol", *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def parse_config(text: str) -> dict[str, str]:
    """Of ``scontrol show config``: settings by name, those of cgroup.conf too."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def parse_records(text: str) -> list[dict[str, str]]:
    """Of ``scontrol --oneliner show``: a record a line."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]


def findings(
    settings: Settings, partitions: Sequence[Settings], slurm: SlurmConfig, descriptors: int
) -> Iterator[Diagnosis]:
    """descriptors: that a process here may have."""
    yield ok("slurm", f"version {settings.get('SLURM_VERSION', 'unknown')}, {len(partitions)} partitions")
    yield from _preemption(settings, partitions, slurm)
    yield _killing(settings)
    yield _requeue(settings)
    yield from _cgroups(settings, slurm)
    yield _limits(settings, descriptors)
    yield _scheduler(settings)
    yield _job_age(settings)
    yield _arrays(settings)
    yield _comments(settings)


def _preemption(
    settings: Settings, partitions: Sequence[Settings], slurm: SlurmConfig
) -> Iterator[Diagnosis]:
    mode = settings.get("PreemptMode", "OFF")
    by_name = {each.get("PartitionName", ""): each for each in partitions}
    default = [name for name, each in by_name.items() if each.get("Default") == "YES"]
    for name in _named(slurm.leader, default):
        found = by_name.get(name)
        if found is None:
            yield _unknown(name, by_name)
        elif _preempts(settings, found):
            yield hurts(
                f"partition {name}",
                f"leaders are preempted there (PreemptMode={_mode(settings, found)})",
                "Name one that is not, under slurm.leader: master and parameter servers run in it.",
            )
    for name in dict.fromkeys(each for place in slurm.workers for each in _named(place, default)):
        found = by_name.get(name)
        if found is None:
            yield _unknown(name, by_name)
        elif not _preempts(settings, found):
            yield ok(f"partition {name}", "workers are not preempted there")
        elif "SUSPEND" in (how := _mode(settings, found)) or "GANG" in how:
            yield hurts(
                f"partition {name}",
                f"who is preempted is stopped and keeps its memory (PreemptMode={how})",
                "PreemptMode=REQUEUE or CANCEL: a stopped worker is missed only after suspect_s, and its "
                "GPU's memory stays taken.",
            )
        elif (grace_s := _number(found.get("GraceTime"))) < LEAST_GRACE_S:
            yield hurts(
                f"partition {name}",
                f"PreemptMode={how}, GraceTime={grace_s}",
                f"GraceTime={LEAST_GRACE_S} or more: a worker that is told to go ends its slices, and the "
                "others need not compute them again.",
            )
        else:
            yield ok(f"partition {name}", f"PreemptMode={how}, GraceTime={grace_s}")
    if not any(place.partition for place in (slurm.leader, *slurm.workers)):
        yield ok("preemption", f"PreemptType={settings.get('PreemptType', 'none')}, PreemptMode={mode}")


def _named(place: PlaceConfig, default: Sequence[str]) -> list[str]:
    return place.partition.split(",") if place.partition else list(default)


def _unknown(name: str, there: Mapping[str, Any]) -> Diagnosis:
    return broken(
        f"partition {name}", "there is none of this name", f"There are {', '.join(there) or 'none'}."
    )


def _mode(settings: Settings, partition: Settings) -> str:
    return partition.get("PreemptMode") or settings.get("PreemptMode", "OFF")


def _preempts(settings: Settings, partition: Settings) -> bool:
    kind = settings.get("PreemptType", "").lower()
    return kind not in NONE and not kind.endswith("none") and _mode(settings, partition) != "OFF"


def _killing(settings: Settings) -> Diagnosis:
    wait_s = _number(settings.get("KillWait"), 30)
    if wait_s < LEAST_KILL_WAIT_S:
        return hurts(
            "KillWait",
            f"{wait_s} s from SIGTERM to SIGKILL at a job's time limit",
            "KillWait=30: a member then ends what it has begun, and a leader hands over.",
        )
    return ok("KillWait", f"{wait_s} s")


def _requeue(settings: Settings) -> Diagnosis:
    if settings.get("JobRequeue", "1") == "0":
        return hurts(
            "JobRequeue",
            "0: a job is not started again when its node fails",
            "JobRequeue=1, or sbatch --requeue: else a run whose leader's node fails ends, and goes on by "
            "--resume.",
        )
    return ok("JobRequeue", settings.get("JobRequeue", "1"))


def _cgroups(settings: Settings, slurm: SlurmConfig) -> Iterator[Diagnosis]:
    tracking = settings.get("ProctrackType", "")
    if "cgroup" not in tracking:
        yield hurts(
            "ProctrackType",
            tracking or "unknown",
            "ProctrackType=proctrack/cgroup: else a process that leaves its group outlives its job, and "
            "holds its GPU.",
        )
    else:
        yield ok("ProctrackType", tracking)
    plugins = settings.get("TaskPlugin", "")
    if "cgroup" not in plugins:
        yield hurts(
            "TaskPlugin",
            plugins or "none",
            "TaskPlugin=task/cgroup,task/affinity: else jobs of one node take each other's cores, memory "
            "and GPUs.",
        )
        return
    yield ok("TaskPlugin", plugins)
    if slurm.gpus and settings.get("ConstrainDevices", "yes").lower() == "no":
        yield hurts(
            "ConstrainDevices",
            "no: a job sees all GPUs of its node",
            "ConstrainDevices=yes in cgroup.conf: else only CUDA_VISIBLE_DEVICES keeps jobs apart.",
        )
    if settings.get("ConstrainRAMSpace", "yes").lower() == "yes":
        yield ok("memory of jobs", "is limited to what they ask for: give slurm.mem room for a worker's data")


def _limits(settings: Settings, descriptors: int) -> Diagnosis:
    passed = settings.get("PropagateResourceLimits", "ALL")
    but = settings.get("PropagateResourceLimitsExcept", "")
    whole = passed.upper() == "ALL" and "NOFILE" not in but and "ALL" not in but
    whole = whole and but.lower() in NONE or "NOFILE" in passed
    if whole and 0 <= descriptors < FEW_DESCRIPTORS:
        return hurts(
            "PropagateResourceLimits",
            f"{passed}: jobs may have {descriptors:,} descriptors, as the shell that submits them",
            "PropagateResourceLimits=NONE, or ulimit -n 65536 before you submit.",
        )
    return ok("PropagateResourceLimits", passed)


def _scheduler(settings: Settings) -> Diagnosis:
    kind = settings.get("SchedulerType", "sched/backfill")
    if "backfill" not in kind:
        return broken(
            "SchedulerType",
            kind,
            "SchedulerType=sched/backfill: a leader with parameter servers is a heterogeneous job, which "
            "only that starts.",
        )
    found = re.search(r"bf_interval=(\d+)", settings.get("SchedulerParameters", ""))
    interval_s = int(found[1]) if found else 30
    if interval_s > 60:
        return hurts(
            "SchedulerType",
            f"{kind}, bf_interval={interval_s}",
            "bf_interval=30: so long each run waits to begin.",
        )
    return ok("SchedulerType", f"{kind}, bf_interval={interval_s}")


def _job_age(settings: Settings) -> Diagnosis:
    age_s = _number(settings.get("MinJobAge"), 300)
    if age_s < LEAST_JOB_AGE_S:
        return hurts(
            "MinJobAge", f"{age_s} s", f"{LEAST_JOB_AGE_S} or more: so long SLURM can say how a job ended."
        )
    return ok("MinJobAge", f"{age_s} s")


def _arrays(settings: Settings) -> Diagnosis:
    return ok(
        "MaxArraySize",
        f"{settings.get('MaxArraySize', 'unknown')}; a task may be a run, and is changed by its own name",
    )


def _comments(settings: Settings) -> Diagnosis:
    flags = settings.get("AccountingStoreFlags", "")
    if "job_comment" in flags:
        return ok("comments of jobs", "are kept by the accounting")
    return ok("comments of jobs", "are forgotten with the job: of runs that are long over, name the folder")


def _number(text: str | None, default: int = 0) -> int:
    """The first in a text such as ``30 sec``."""
    found = re.search(r"\d+", text or "")
    return int(found[0]) if found else default
