"""A real SLURM cluster on this machine: its own munge, controller and nodes, all in one folder.

`SlurmCluster` is for tests, `python -m tests.clusters.slurm up` for people. Nothing of it is simulated but
the GPUs, which are device files that nobody opens, and the nodes, which are daemons on one machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType

import pytest

from tests.clusters.processes import (
    ClusterError,
    command_line,
    environ,
    free_ports,
    is_alive,
    is_program,
    own_line,
    pids,
    tail,
    wait,
    with_descendants,
)

CPU_NODES = ("c1", "c2", "c3")
GPU_NODES = ("g1", "g2", "g3", "g4")
NODES = CPU_NODES + GPU_NODES
GPUS_PER_NODE = 2

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
ACCOUNTING_PACKAGES = ("slurmdbd", "mariadb-server-core")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "sacctmgr")

NAME = "elasticflow"
SYSTEM_TABLES = Path("/usr/share/mysql/mysql_system_tables.sql")
MARK = "ELASTICFLOW_TEST_CLUSTER"
"""Set in the environment of every daemon, to the cluster's folder; jobs do not inherit it."""

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_S = 30.0
LARGE_MEMORY_MB = 64_000


class SlurmCluster:
    """Seven nodes and a controller. One that `up` started is taken over by giving its folder."""

    def __init__(
        self, folder: Path | str | None = None, *, accounting: bool = False, settings: str = ""
    ) -> None:
        """`settings` are further lines of slurm.conf. Without a folder, one is made and removed again."""
        self._is_temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-") if folder is None else folder).absolute()
        self.accounting = accounting
        self._settings = settings
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """For commands that shall talk to this cluster: this process's, but nothing of another SLURM's."""
        kept = {name: value for name, value in os.environ.items() if not _is_slurm(name)}
        path = kept.get("PATH", "")
        return {
            **kept,
            "PATH": f"{path}:{SEARCH_PATH}" if path else SEARCH_PATH,
            "SLURM_CONF": str(self.conf),
        }

    # Life

    def __enter__(self) -> SlurmCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when every node is idle."""
        if reason := skip_reason(accounting=self.accounting):
            raise ClusterError(reason)
        if self.is_running():
            raise ClusterError(f"a cluster runs in {self.folder} already: stop it first")
        try:
            self._write_files()
            self._start_munged()
            if self.accounting:
                self._start_accounting()
            self.start_controller()
            for node in NODES:
                self._spawn("slurmd", "-D", "-N", node, log=node)
            self._wait_for_nodes()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every process of the cluster and of its jobs; of a folder that was given, the logs stay."""
        self._kill_all()
        self._forget()
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _forget(self) -> None:
        for name in ("state", "run", "munge", "database"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def is_running(self) -> bool:
        return any(is_program(pid, "munged") for pid in self._daemons())

    def reset(self, timeout_s: float = 30.0) -> None:
        """No jobs, nothing left of them, every daemon there, every node idle. Ended jobs are remembered."""
        if not self._find("slurmctld"):
            self.start_controller()
        self.cancel_all()
        self._kill(self._jobs_processes(with_stepd=False))
        for node in NODES:
            self.start_slurmd(node)
        patience = time.monotonic() + 3

        def are_gone() -> bool:
            if not self.jobs():
                return True
            self.cancel_all()
            self._kill(self._jobs_processes(with_stepd=time.monotonic() > patience))
            return False

        wait(are_gone, "no job is left", timeout_s, self._story, every_s=0.1)
        self._kill(self._jobs_processes(with_stepd=True))
        self._wait_for_nodes(timeout_s)

    # Commands

    def run(self, *command: str, check: bool = True, user: str | None = None, timeout_s: float = 30.0) -> str:
        """What the command printed, without the last newline. Its errors are in the ClusterError."""
        done = subprocess.run(
            command,
            env=self.environment,
            user=user,
            group=pwd.getpwnam(user).pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd=self.folder / "shared",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            said = (done.stderr + done.stdout).strip()
            raise ClusterError(f"`{' '.join(command)}` ended with exit code {done.returncode}: {said}")
        return done.stdout.rstrip("\n")

    def sacctmgr(self, *args: str) -> str:
        if not self.accounting:
            raise ClusterError("this cluster has no accounting: make it with accounting=True")
        return self.run("sacctmgr", "--immediate", "--parsable2", "--noheader", *args)

    def jobs(self, *, ended: bool = False) -> dict[str, str]:
        """Every user's jobs by id, "12" or "12+0", with SLURM's words for their states."""
        states = (
            "all" if ended else "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT"
        )
        lines = self.run("squeue", "--all", "--noheader", f"--states={states}", "--format=%i %T").splitlines()
        return dict(_pair(line) for line in lines)

    def nodes(self) -> dict[str, str]:
        """SLURM's words for the nodes' states: "idle", "mixed", "down*" (a * where it does not answer)."""
        lines = self.run("sinfo", "--all", "--Node", "--noheader", "--format=%N %T").splitlines()
        return dict(_pair(line) for line in lines)

    def wait_until_state(self, node: str, state: str, timeout_s: float = 60.0) -> None:
        """Until SLURM has this word for the node."""
        wait(lambda: self.nodes()[node] == state, f"{node} is {state}", timeout_s, self._story, every_s=0.1)

    def cancel_all(self) -> None:
        if ids := {job.split("+")[0].split("_")[0] for job in self.jobs()}:
            self.run("scancel", *sorted(ids), check=False)

    def wait_until_gone(self, ids: Iterable[str], timeout_s: float = 30.0) -> None:
        """Until none of these jobs is pending, running or completing."""
        wait(lambda: not self.jobs().keys() & set(ids), "they are gone", timeout_s, self._story, every_s=0.1)

    def wait_until_idle(self, timeout_s: float = 30.0) -> None:
        """Until no job is pending, running or completing."""
        wait(lambda: not self.jobs(), "no job is left", timeout_s, self._story, every_s=0.1)

    # Faults

    def kill_slurmd(self, node: str) -> None:
        """With SIGKILL; its jobs' processes live on, unseen. SLURM calls the node down 10 to 30 s later."""
        self._kill(self._find("slurmd", node))

    def start_slurmd(self, node: str, lacks: Path | None = None) -> None:
        """Returns at once; the node answers within a second. lacks: a folder that is empty there."""
        if not self._find("slurmd", node):
            daemon = ("slurmd", "-D", "-N", node)
            hide = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(lacks))
            self._spawn(*(hide if lacks else ()), *daemon, log=node)

    def restart_slurmd(self, node: str, lacks: Path | None = None) -> None:
        """See ``start_slurmd``; soon enough that SLURM does not call the node down."""
        self.kill_slurmd(node)
        wait(lambda: not self._find("slurmd", node), f"slurmd of {node} is gone", START_S, self._story)
        self.start_slurmd(node, lacks)
        self._wait_for_nodes()

    def stop_controller(self) -> None:
        """As an administrator does: it saves its state first."""
        self._kill(self._find("slurmctld"), signal.SIGTERM)

    def save(self, job: str, timeout_s: float = 30.0) -> None:
        """Has the controller save what it knows of jobs, which it does some seconds after a change of one."""
        since = time.time()
        self.run("scontrol", "update", f"JobId={job}", "AdminComment=saved")
        state = self.folder / "state" / "job_state"
        wait(lambda: state.stat().st_mtime >= since, "jobs are saved", timeout_s, self._story, every_s=0.1)

    def kill_controller(self) -> None:
        """With SIGKILL: what it had not saved yet is lost."""
        self._kill(self._find("slurmctld"))

    def start_controller(self) -> None:
        """Returns when it answers. After a restart it does not know the nodes' states for some seconds."""
        if self._find("slurmctld"):
            return
        child = self._spawn("slurmctld", "-D", log="slurmctld")
        self._wait_for(
            lambda: "is UP" in self.run("scontrol", "ping", check=False), "slurmctld answers", child
        )

    def set_down(self, node: str, reason: str = "test") -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=down", f"reason={reason}")

    def drain(self, node: str, reason: str = "test") -> None:
        """As an operator does who wants it empty: what runs there goes on, and nothing more comes."""
        self.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def resume(self, node: str) -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=resume")

    # Starting

    def _write_files(self) -> None:
        self._forget()
        for name in ("", "shared", "log", "run", "state", "munge"):
            folder = self.folder / name
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o777 if name == "shared" else 0o755)
        key = self.folder / "munge" / "key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        for gpu in range(GPUS_PER_NODE):
            device = self.folder / f"gpu{gpu}"
            if not device.exists():
                # 195 is NVIDIA's number: files that look like GPUs, with nothing behind them.
                os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, gpu))
        free = free_ports(2 + len(NODES))
        self.conf.write_text(self._slurm_conf(free[0], free[1], free[2:]))
        if self.accounting:
            self._write_slurmdbd_conf(free[1])
        devices = f"{self.folder}/gpu[0-{GPUS_PER_NODE - 1}]"
        (self.folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName=g[1-4] Name=gpu File={devices}\n")
        if _version() >= (23, 2):
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def _slurm_conf(self, port: int, accounting_port: int, node_ports: list[int]) -> str:
        folder = self.folder
        lines = [
            f"ClusterName={NAME}",
            "SlurmctldHost=localhost(127.0.0.1)",
            f"SlurmctldPort={port}",
            "SlurmUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge/socket",
            f"StateSaveLocation={folder}/state",
            f"SlurmctldPidFile={folder}/run/slurmctld.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdSpoolDir={folder}/run/%n",
            f"SlurmdPidFile={folder}/run/%n.pid",
            f"SlurmdLogFile={folder}/log/%n.log",
            "SlurmdParameters=config_overrides",
            "SlurmctldParameters=preempt_send_user_signal",
            "GresTypes=gpu",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none",
            "MpiDefault=none",
            "MailProg=/bin/true",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "DefMemPerCPU=100",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=bf_interval=1,bf_resolution=1,sched_interval=1,sched_min_interval=0,"
            "batch_sched_delay=0,default_queue_depth=1000",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=CANCEL",
            "JobRequeue=1",
            "KillWait=5",
            "OverTimeLimit=0",
            "MinJobAge=300",
            "ReturnToService=1",
            "SlurmctldTimeout=10",
            "SlurmdTimeout=10",
            *self._accounting_lines(accounting_port),
            *self._settings.splitlines(),
        ]
        common = f"NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=8 RealMemory={LARGE_MEMORY_MB}"
        for node, node_port in zip(NODES, node_ports, strict=True):
            gres = f" Gres=gpu:{GPUS_PER_NODE}" if node in GPU_NODES else ""
            lines.append(f"NodeName={node} {common} Port={node_port}{gres}")
        low = "PriorityTier=1 PreemptMode=CANCEL GraceTime=3"
        limits = "MaxTime=UNLIMITED DefaultTime=UNLIMITED State=UP"
        lines += [
            f"PartitionName=cpu Nodes=c[1-3] Default=YES PriorityTier=1 PreemptMode=OFF {limits}",
            f"PartitionName=gpu Nodes=g[1-4] {low} {limits}",
            f"PartitionName=spare Nodes=g[3-4] {low} {limits}",
            f"PartitionName=urgent Nodes=g[1-4] PriorityTier=10 PreemptMode=OFF {limits}",
        ]
        return "\n".join(lines) + "\n"

    def _accounting_lines(self, port: int) -> list[str]:
        if not self.accounting:
            return []
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePass={self.folder}/munge/socket",
            f"AccountingStoragePort={port}",
            "AccountingStorageEnforce=associations,limits,qos",
            "AccountingStorageTRES=gres/gpu",
        ]

    def _write_slurmdbd_conf(self, port: int) -> None:
        folder = self.folder
        path = folder / "slurmdbd.conf"
        path.touch()
        path.chmod(0o600)
        path.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge/socket\n"
            f"DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\n"
            f"LogFile={folder}/log/slurmdbd.log\nPidFile={folder}/run/slurmdbd.pid\n"
            "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n"
        )

    def _start_munged(self) -> None:
        munge = self.folder / "munge"
        child = self._spawn(
            "munged",
            "--foreground",
            "--force",
            f"--socket={munge}/socket",
            f"--key-file={munge}/key",
            f"--pid-file={munge}/pid",
            f"--seed-file={munge}/seed",
            log="munged",
        )
        self._wait_for((munge / "socket").exists, "munged listens", child)

    def _start_accounting(self) -> None:
        options = [
            "--no-defaults",
            "--user=root",
            f"--datadir={self.folder}/database",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=16M",
            "--innodb-flush-log-at-trx-commit=0",
        ]
        self._make_database(options)
        database = self._spawn(
            "mariadbd",
            *options,
            f"--socket={self._database_socket}",
            f"--pid-file={self.folder}/run/mariadbd.pid",
            "--skip-networking",
            "--skip-grant-tables",
            log="mariadbd",
        )
        self._wait_for(self._database_socket.exists, "the database listens", database)
        child = self._spawn("slurmdbd", "-D", log="slurmdbd")
        self._wait_for(lambda: self._answers("sacctmgr", "show", "cluster"), "slurmdbd answers", child)
        self.sacctmgr("add", "cluster", NAME)

    def _make_database(self, options: list[str]) -> None:
        """slurmdbd needs no users in it, but stored procedures: those are kept in the system's tables."""
        (self.folder / "database").mkdir()
        tables = SYSTEM_TABLES.read_text()
        done = subprocess.run(
            ["mariadbd", *options, "--bootstrap"],
            env=self.environment,
            input=f"create database mysql;\nuse mysql;\n{tables}",
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ClusterError(f"mariadbd made no database: {done.stderr.strip()[-1000:]}")

    @property
    def _database_socket(self) -> Path:
        return self.folder / "run" / "mariadbd"

    def _answers(self, *command: str) -> bool:
        try:
            self.run(*command)
        except ClusterError:
            return False
        return True

    def _spawn(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        """A daemon in a session of its own, so that it outlives the terminal that it was started in."""
        with (self.folder / "log" / f"{log}.out").open("ab") as out:
            child = subprocess.Popen(
                command,
                env={
                    **self.environment,
                    MARK: str(self.folder),
                    "MYSQL_UNIX_PORT": str(self._database_socket),  # slurmdbd.conf has no word for it
                },
                cwd=self.folder / "log",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._children.append(child)
        return child

    def _wait_for(self, is_so: Callable[[], bool], what: str, child: subprocess.Popen[bytes]) -> None:
        def is_so_or_dead() -> bool:
            if child.poll() is not None:
                raise ClusterError(f"{child.args!r} ended with {child.returncode}. {self._story()}")
            return is_so()

        wait(is_so_or_dead, what, START_S, self._story)

    def _wait_for_nodes(self, timeout_s: float = START_S) -> None:
        def are_idle() -> bool:
            states = self.nodes()
            for node, state in states.items():
                if state.startswith(("down", "drain")) and not state.endswith("*"):
                    self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            return len(states) == len(NODES) and set(states.values()) == {"idle"}

        wait(are_idle, "all nodes are idle", timeout_s, self._story)

    def _story(self) -> str:
        """What the daemons wrote last, for an error's text."""
        tails = [
            f"{path.name}: {tail(path)}" for path in sorted((self.folder / "log").glob("*")) if tail(path)
        ]
        return "Its daemons said last:\n  " + "\n  ".join(tails)

    # Processes

    def _daemons(self) -> list[int]:
        """Daemons and their children that kept the mark: slurmd's slurmstepd among them."""
        mark = f"{MARK}={self.folder}"
        return [pid for pid in pids() if mark in environ(pid)]

    def _find(self, program: str, node: str | None = None) -> list[int]:
        return [
            pid
            for pid in self._daemons()
            if is_program(pid, program) and (node is None or node in command_line(pid))
        ]

    def _jobs_processes(self, *, with_stepd: bool) -> list[int]:
        """Also those whose slurmstepd is dead, known by their environment."""
        stepds = set(self._find("slurmstepd"))
        conf = f"SLURM_CONF={self.conf}"
        orphans = {pid for pid in pids() if conf in (told := environ(pid)) and any(map(_is_of_a_job, told))}
        found = with_descendants(stepds | orphans) - own_line()
        return sorted(found if with_stepd else found - stepds)

    def _kill(self, given: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
        """Returns when they are gone."""
        ended = list(given)
        for pid in ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

        def are_gone() -> bool:
            self._children = [child for child in self._children if child.poll() is None]
            mine = {child.pid for child in self._children}
            return not any(pid in mine or is_alive(pid) for pid in ended)

        wait(are_gone, f"processes {ended} are gone", START_S, self._story, every_s=0.01)

    def _kill_all(self) -> None:
        # Daemons first, so that nothing new is started; a second round for what was just being started.
        while left := [*self._daemons(), *self._jobs_processes(with_stepd=True)]:
            self._kill(left)


# This machine


def skip_reason(*, accounting: bool = False) -> str:
    """Empty where a cluster can be started here, otherwise why not and what to do."""
    if not sys.platform.startswith("linux"):
        return "a SLURM cluster needs Linux"
    if os.geteuid() != 0:
        return "a SLURM cluster is started as root: it makes device files and runs jobs as other users"
    wanted = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    path = f"{os.environ.get('PATH', '')}:{SEARCH_PATH}"
    if missing := [program for program in wanted if shutil.which(program, path=path) is None]:
        packages = " ".join(PACKAGES + (ACCOUNTING_PACKAGES if accounting else ()))
        return f"no {', '.join(missing)} here: `.ci/slurm` installs the packages {packages}"
    return ""


def require(*, accounting: bool = False) -> None:
    """Skips the test where no cluster can be started; fails it with CI or ELASTICFLOW_REQUIRE_CLUSTERS=1."""
    if reason := skip_reason(accounting=accounting):
        if os.environ.get("CI") or os.environ.get("ELASTICFLOW_REQUIRE_CLUSTERS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)


def _version() -> tuple[int, int]:
    path = f"{os.environ.get('PATH', '')}:{SEARCH_PATH}"
    said = subprocess.run(["slurmctld", "-V"], env={"PATH": path}, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None:
        raise ClusterError(f"`slurmctld -V` said {said!r}, which has no version")
    return int(found[1]), int(found[2])


def _is_slurm(name: str) -> bool:
    return (
        name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SCANCEL_", "SINFO_", "SALLOC_"))
        or name == MARK
    )


def _is_of_a_job(variable: str) -> bool:
    return variable.startswith("SLURM_JOB_ID=")


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value


# The command


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.clusters.slurm", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("what", choices=("up", "down", "status"))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "elasticflow-slurm")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and a database: real limits")
    given = parser.parse_args(arguments)
    cluster = SlurmCluster(given.folder, accounting=given.accounting)
    try:
        return {"up": _up, "down": _down, "status": _status}[given.what](cluster)
    except ClusterError as error:
        print(f"slurm: {error}", file=sys.stderr)
        return 1


def _up(cluster: SlurmCluster) -> int:
    if not cluster.is_running():
        cluster.start()
    print(
        f"A SLURM cluster runs in {cluster.folder}: nodes c1-c3 (partition cpu), "
        f"g1-g4 with {GPUS_PER_NODE} GPUs each (gpu, spare; urgent preempts them).\n\n"
        f"    export SLURM_CONF={cluster.conf}\n"
        "    sinfo; srun --partition=gpu --gpus=1 env | grep CUDA_VISIBLE_DEVICES\n\n"
        f"End it: python -m tests.clusters.slurm down --folder {cluster.folder}"
    )
    return 0


def _down(cluster: SlurmCluster) -> int:
    cluster.stop()
    print(f"No cluster runs in {cluster.folder}.")
    return 0


def _status(cluster: SlurmCluster) -> int:
    if not cluster.is_running():
        print(f"No cluster runs in {cluster.folder}.")
        return 1
    print(f"export SLURM_CONF={cluster.conf}")
    print("nodes: " + ", ".join(f"{name} {state}" for name, state in cluster.nodes().items()))
    print("jobs:  " + (", ".join(f"{job} {state}" for job, state in cluster.jobs().items()) or "none"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
