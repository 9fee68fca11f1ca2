"""The jobs that are submitted, as text: pure, so that a dry run shows exactly what would be."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from elasticflow import launch
from elasticflow.cluster.scripts import lead_again, script_of
from elasticflow.errors import ConfigError
from elasticflow.process.fingerprint import library_settings
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow_slurm.client import JobRequest
from elasticflow_slurm.comments import LEADER, Comment
from elasticflow_slurm.config import PlaceConfig, SlurmConfig
from elasticflow_slurm.reasons import EXIT_NO_FOLDER, EXIT_NOT_BEGUN

IMPORT = "import elasticflow"

ALIKE = ("--input=none", "--export=ALL", "--mpi=none")
"""Of each srun, whatever a site's defaults: a job that was submitted with --export=NONE hands that down."""
PROBE = """\
# A node on which the run's folder is not, or that cannot write there, says so by this code.
{{ : >> {log}; }} 2> /dev/null || exit {code}
exec >> {log} 2>&1
# What ends before the worker begins, such as a module that is not there, says so by this one.
trap '[ $? = 0 ] || exit {not_begun}' EXIT"""
STARTS = """\
# A node on which the worker's Python, or its container, cannot be started is told from a worker that fails.
{check} > /dev/null || exit"""
UNPACK = """\
# The environment is unpacked once on each node, below a folder that only its owner can look into.
unpack() {{
    archive={archive}
    place=${{TMPDIR:-/tmp}}/elasticflow-$UID-{name}
    mkdir -p -m 700 "$place" 2> /dev/null
    [ -O "$place" ] && [ ! -L "$place" ] || {otherwise}
    mkdir -p "$place/env" || exit 1
    (
        flock 9
        [ -e "$place/whole" ] || tar --no-same-owner -C "$place/env" -xf "$archive" && touch "$place/whole"
    ) 9> "$place/lock" || exit 1
}}
unpack
export PATH="$place/env/bin:$PATH" VIRTUAL_ENV="$place/env\""""
ELSEWHERE = 'place=$(mktemp -d "${TMPDIR:-/tmp}/elasticflow-XXXXXXXXXX") || exit 1'
"""For a worker, where somebody else has taken the name."""
REFUSE = '{ echo "$place is not yours: have it removed, or set TMPDIR in slurm.setup" >&2; exit 1; }'
"""For the leader, whose servers on other nodes have to find the same."""
SPARED = """\
# Warnings that are sent to the script, as sbatch's --signal=B:USR1@60 has it, end nothing.
trap : HUP USR1 USR2"""
UNPACK_ON_SERVERS = """\
export -f unpack
srun --het-group=1 --nodes={nodes} --ntasks={nodes} --overlap {alike} bash -c unpack || exit 1"""


def job_name(config: Config, slurm: SlurmConfig) -> str:
    """The leader's; of a worker, the first part."""
    return slurm.job_name or Path(config.program).stem


def python_of(slurm: SlurmConfig) -> str:
    """The Python of the jobs. That of an archive is known on the node alone."""
    return "python" if slurm.environment else slurm.python or sys.executable


def interpreter_of(slurm: SlurmConfig) -> list[str]:
    """What executes a member: the jobs' Python, or that of the container, in it."""
    return [*shlex.split(slurm.container), slurm.container_python] if slurm.container else [python_of(slurm)]


def worker_request(
    config: Config,
    slurm: SlurmConfig,
    run: str,
    settings: MemberSettings,
    place: PlaceConfig,
    exclude: Sequence[str],
) -> JobRequest:
    """A worker's job: one node, one task, not requeued, since a new job starts sooner."""
    cpus = max(config.threads, slurm.cpus)
    gpu = f"gpu:{slurm.gpu_type}:{slurm.gpus}" if slurm.gpu_type else f"gpu:{slurm.gpus}"
    options = {
        "job-name": f"{job_name(config, slurm)}-{settings.name}",
        "comment": str(Comment(run, settings.name)),
        **place.options,
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(cpus),
        **({"gres": gpu} if slurm.gpus else {}),
        **_set({"mem": slurm.mem, "time": slurm.time, "time-min": slurm.time_min}),
        **({"exclude": ",".join(exclude)} if exclude else {}),
        "no-requeue": "",
        "open-mode": "append",
        "output": "/dev/null",  # else SLURM could not launch it where the run's folder is not seen
        **slurm.sbatch,
    }
    member = [*interpreter_of(slurm), "-m", launch.__name__, msgspec.json.encode(settings).decode()]
    # In a step, since SLURM gives notice of a preemption to steps alone.
    step = ["srun", "--nodes=1", "--ntasks=1", f"--cpus-per-task={cpus}", *ALIKE, *member]
    log = shlex.quote(str(Path(settings.run_dir, "logs", f"{settings.name}.log")))
    first = PROBE.format(log=log, code=EXIT_NO_FOLDER, not_begun=EXIT_NOT_BEGUN)
    # In its container the Python is not tried: to start one may take long.
    check = ["type", shlex.split(slurm.container)[0]] if slurm.container else [python_of(slurm), "-c", IMPORT]
    command = f"{STARTS.format(check=shlex.join(check))}\nexec {shlex.join(step)}"
    # By exec: with proctrack/linuxproc a shell that is killed may leave its child running after the job.
    script = _script(slurm, _exports(config.threads), command, first=first)
    return JobRequest(script=script, options=options)


def leader_components(config: Config, slurm: SlurmConfig, run: str, run_dir: str) -> list[dict[str, str]]:
    """Options of the leader's components: the master's, and that of the parameter servers, if it has any."""
    common = {
        **slurm.leader.options,
        **_set({"time": slurm.leader_time, "mem": slurm.leader_mem}),
        "comment": str(Comment(run, LEADER, run_dir)),
    }
    first = {
        "job-name": job_name(config, slurm),
        **common,
        "nodes": "1",
        "ntasks": "1",
        "requeue": "",
        "open-mode": "append",
        "output": _literal(Path(run_dir, "logs", "leader.log")),
    }
    if not config.num_servers:
        return [first]
    num_servers = config.num_servers + (config.num_servers == 1)  # one stands by, or takes a lost one's place
    nodes = min(slurm.server_nodes, num_servers)
    second = {
        **common,
        **_set({"mem": slurm.server_mem}),
        "nodes": str(nodes),
        "ntasks-per-node": str(-(-num_servers // nodes)),
        "cpus-per-task": str(max(config.server_threads, slurm.server_cpus)),
        "requeue": "",
    }
    return [first, second]


def leader_script(config: Config, slurm: SlurmConfig, run: str, run_dir: str, resume: bool) -> str:
    """The batch script of the leader: master, and in a second component the parameter servers."""
    components = leader_components(config, slurm, run, run_dir)
    again = f"{SPARED}\n{lead_again(python_of(slurm), run_dir, resume)}"
    heads, elsewhere = directives(components[0]), ""
    for second in components[1:]:
        heads += ["#SBATCH hetjob", *directives(second)]
        if slurm.environment:
            elsewhere = UNPACK_ON_SERVERS.format(nodes=second["nodes"], alike=" ".join(ALIKE))
    return _script(slurm, elsewhere, again, heads)


def _script(slurm: SlurmConfig, before: str, command: str, heads: Sequence[str] = (), first: str = "") -> str:
    unpack = _unpack(slurm.environment, ELSEWHERE if first else REFUSE) if slurm.environment else ""
    return script_of("#!/bin/bash", *heads, first, slurm.setup.rstrip(), unpack, before, command)


def _unpack(environment: str, otherwise: str) -> str:
    archive = os.path.abspath(environment)
    try:
        stat = os.stat(archive)
    except OSError as error:
        raise ConfigError(
            f"slurm.environment: {archive}: cannot be read: {error.strerror}; name an archive of a virtual "
            "environment, such as venv-pack or conda-pack makes."
        ) from error
    name = f"{Path(archive).name}-{stat.st_size:x}-{int(stat.st_mtime):x}"
    return UNPACK.format(archive=shlex.quote(archive), name=shlex.quote(name), otherwise=otherwise)


def directives(options: Mapping[str, str]) -> list[str]:
    """Options as lines of a batch script. Raises ConfigError for a value of several lines.

    sbatch reads quotes in them as a shell does, but takes backslashes away also from between quotes.
    """
    for name, value in options.items():
        if "\n" in value or "\r" in value:
            raise ConfigError(f"{value!r}: has a line break, which sbatch's option --{name} cannot have.")
    words = {name: shlex.quote(value.replace("\\", "\\\\")) for name, value in options.items() if value}
    return [f"#SBATCH --{name}" + (f"={words[name]}" if value else "") for name, value in options.items()]


def _exports(threads: int) -> str:
    """What must be set before the libraries are loaded; what the user has set stays."""
    values = library_settings(threads).items()
    return "\n".join(f"export {name}=${{{name}-{shlex.quote(value)}}}" for name, value in values)


def _set(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value}


def _literal(path: Path) -> str:
    """A file's name in which SLURM replaces nothing: where there is a backslash, it leaves % alone."""
    text = str(path)
    return text.replace("\\", "\\\\") if "\\" in text else text.replace("%", "%%")
