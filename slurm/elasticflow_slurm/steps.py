"""Parameter servers as steps of the leader's own job: each is a task behind an ``srun`` on this node.

The step ends when its srun does, and srun ends when the step does; so what is watched, adopted and ended are
processes of this machine, which outlive the master that started them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from elasticflow import launch
from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.errors import RunError
from elasticflow.local.process import Process, end, has_ended, recorded_in
from elasticflow.process.fingerprint import environment
from elasticflow.run.folder import last_line
from elasticflow.run.settings import MemberSettings
from elasticflow_slurm.scripts import ALIKE

SHORT_S, WAIT_S = 5.0, 3.0
"""A step that SLURM ended within the first is not tried again before the second has passed."""
END = (signal.SIGTERM, signal.SIGCONT)
"""On SIGTERM srun has its step killed; one that was stopped hears it when it goes on."""
_OUT_OF_MEMORY = re.compile(r"out[ -]of[ -]memory|oom[-_]kill", re.IGNORECASE)
SRUN = "srun: "
"""How srun's own words in a log begin."""
_TASKS_OWN = re.compile(r"srun: error: \S+: tasks? [-\d,]+: ")
"""How srun tells that a task has ended by itself. All else that it says last is that SLURM ended the step."""


class Allocation:
    """The nodes on which servers run: of the job's second component, or of a job that has only one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.is_het = int(environ.get("SLURM_HET_SIZE", "1")) > 1
        suffix = "_HET_GROUP_1" if self.is_het else ""
        self.num_nodes = int(environ.get(f"SLURM_JOB_NUM_NODES{suffix}", "1"))
        self.num_cpus = _least(environ.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", "1"))

    def options(self, number: int) -> list[str]:
        """srun's, for the server of this number.

        It may use all CPUs of its node: of steps that overlap, and ask for fewer, SLURM binds each to the
        same ones, the first.
        """
        group = ["--het-group=1"] if self.is_het else []
        relative = [f"--relative={number % self.num_nodes}"] if self.num_nodes > 1 else []
        return [*group, *relative, f"--cpus-per-task={self.num_cpus}"]


def _least(told: str) -> int:
    """Of "4(x2),2", the CPUs of two nodes and of one."""
    return min(int(part.partition("(")[0]) for part in told.split(","))


class Steps:
    """Starts, watches and ends servers; those of a master before this one too."""

    def __init__(self, run_dir: str, threads: int, interpreter: list[str]) -> None:
        self._logs, self._folder = Path(run_dir, "logs"), Path(run_dir, "keys", "steps")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._threads, self._interpreter = threads, interpreter
        self._allocation = Allocation(os.environ)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._sruns: dict[str, tuple[Process, int]] = {}
        """By server: its srun, and a descriptor that is readable once that has ended."""
        self._asked: dict[str, MemberSettings] = {}
        self._begun_s: dict[str, float] = {}
        self._not_before_s = 0.0
        self._ended: list[Ended] = []
        self._placed: list[str] = []
        self._adopt()

    @property
    def names(self) -> list[str]:
        """Servers that live, or will be started."""
        return [*self._sruns, *self._asked]

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, (process, _) in self._sruns.items()}

    def fds(self) -> list[int]:
        return [watched for _, watched in self._sruns.values()]

    def next_time_s(self) -> float | None:
        if self._ended:
            return time.monotonic()
        return self._not_before_s if self._asked else None

    def start(self, settings: MemberSettings) -> None:
        self._asked[settings.name] = settings
        self.turn()

    def turn(self) -> None:
        """Starts what may be started now."""
        for name in list(self._asked):
            if time.monotonic() < self._not_before_s:
                return
            settings = self._asked.pop(name)
            try:
                self._srun(settings)
            except OSError as error:
                self._fail(name, error)

    def kill(self, name: str) -> None:
        """srun has its step killed at once when it gets SIGTERM, also one that is frozen."""
        self._asked.pop(name, None)
        if name in self._sruns:
            self._sruns[name][0].kill(*END)

    def ended(self) -> list[Ended]:
        for name, (_, watched) in list(self._sruns.items()):
            if has_ended(watched):
                self._bury(name)
        ended, self._ended = self._ended, []
        return ended

    def placed(self) -> list[str]:
        """Those whose sruns were started, or found, since the last call."""
        placed, self._placed = self._placed, []
        return placed

    def end_all(self) -> None:
        """Ends all steps, and waits for it."""
        self._asked.clear()
        sruns = [process for process, _ in self._sruns.values()]
        end(sruns, *END)
        end(sruns)  # one may wait for a SLURM that does not answer
        for name in list(self._sruns):
            self._bury(name)

    def _adopt(self) -> None:
        for name, process in recorded_in(self._folder).items():
            watched = process.watch() if process else None
            if process and watched is not None:
                self._sruns[name] = process, watched
                self._placed.append(name)
            else:
                (self._folder / name).unlink(missing_ok=True)

    def _srun(self, settings: MemberSettings) -> None:
        name = settings.name
        log = self._logs / f"{name}.log"
        command = [
            "srun",
            *self._allocation.options(int(name.rpartition("-")[2])),
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--job-name={name}",
            *ALIKE,
            "--kill-on-bad-exit=0",
            *(*self._interpreter, "-m", launch.__name__, msgspec.json.encode(settings).decode()),
        ]
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(self._threads),
            )
        process = Process.of(child.pid)
        process.record(self._folder / name)
        self._children[name] = child
        self._sruns[name] = process, os.pidfd_open(child.pid)
        self._begun_s[name] = time.monotonic()
        self._placed.append(name)

    def _fail(self, name: str, error: OSError) -> None:
        """srun could not be started. Raises RunError if it never will be."""
        if shutil.which("srun") is None:
            raise RunError(
                "srun is not found: servers are steps of this job, and need it in PATH."
            ) from error
        text = f"could not be started: {error.strerror}"
        self._ended.append(Ended(name, How.TAKEN, text))
        self._not_before_s = time.monotonic() + WAIT_S

    def _bury(self, name: str) -> None:
        _, watched = self._sruns.pop(name)
        os.close(watched)
        (self._folder / name).unlink(missing_ok=True)
        child = self._children.pop(name, None)
        ended = self._ending(name, child.wait() if child else None)
        lived_s = time.monotonic() - self._begun_s.pop(name, 0.0)
        if ended.how is How.TAKEN and lived_s < SHORT_S:
            self._not_before_s = time.monotonic() + WAIT_S
        self._ended.append(ended)

    def _ending(self, name: str, code: int | None) -> Ended:
        """code: as srun's, which is the task's, or 128 + the signal that ended it; None: nobody knows."""
        if code is None:
            return Ended(name, How.KILLED, "ended")
        if code == 0:
            return Ended(name, How.DONE, "ended")
        log = self._logs / f"{name}.log"
        said, words = last_line(log), last_line(log, but_for=SRUN)
        if _OUT_OF_MEMORY.search(said):
            return Ended(name, How.FAILED, "ran out of memory; slurm.server_mem gives it more")
        if said.startswith(SRUN) and not _TASKS_OWN.match(said):
            return Ended(name, How.TAKEN, f"was ended by SLURM: {said.removeprefix(SRUN)}")
        if code < 0 or code > 128 or code == EXIT_ABANDONED:
            return Ended(name, How.KILLED, f"was killed (its srun ended with {code})")
        return Ended(
            name, How.FAILED, f"ended with exit code {code}; its last words, in logs/{name}.log: {words}"
        )


def clear(run_dir: str) -> None:
    """Ends what sruns of this run are left on this node."""
    folder = Path(run_dir, "keys", "steps")
    end(filter(None, recorded_in(folder).values()), *END)
    for path in folder.glob("*"):
        path.unlink(missing_ok=True)
