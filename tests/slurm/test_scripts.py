"""The jobs that are submitted, to the letter; and that SLURM and bash read them as they are meant.

The files in ``golden`` are written anew with ELASTICFLOW_WRITE_GOLDEN=1; read what has changed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow_slurm.client import JobRequest
from elasticflow_slurm.config import read
from elasticflow_slurm.reasons import EXIT_NO_FOLDER, EXIT_NOT_BEGUN
from elasticflow_slurm.scripts import directives, leader_script, worker_request
from elasticflow_slurm.submit import dry_run
from tests.clusters.slurm import SlurmCluster

GOLDEN = Path(__file__).parent / "golden"
RUN = "0123456789ab"
ODD = '/runs/it\'s "50%" of $HOME\\now'


class Case(NamedTuple):
    section: dict[str, Any] = {}
    run_dir: str = "/runs/digits-1"
    resume: bool = False
    servers: int = 1
    strategy: str = "parameter_server"
    exclude: tuple[str, ...] = ()


CASES = {
    "default": Case(),
    "places": Case(
        {
            "job_name": "my job",
            "leader": {"partition": "cpu", "qos": "long", "account": "lab"},
            "leader_time": "2-00",
            "server_nodes": 2,
            "server_cpus": 4,
            "server_mem": "16G",
            "workers": [
                {"partition": "gpu", "qos": "high", "account": "lab", "constraint": "a100&ib"},
                {"partition": "spare", "reservation": "course"},
            ],
            "cpus": 8,
            "mem": "32G",
            "time": "4:00:00",
            "time_min": "30",
            "sbatch": {"nice": "100", "exclusive": ""},
        },
        servers=3,
        exclude=("g1", "g7"),
    ),
    "gpu_type": Case({"gpus": 2, "gpu_type": "a100"}),
    "no_gpu": Case({"gpus": 0}),
    "environment": Case({"environment": "my env.tar.gz"}),
    "setup": Case({"setup": "module load cuda\nexport NCCL_DEBUG='WARN'\n", "python": "/opt/python"}),
    "odd_run_dir": Case(run_dir=ODD),
    "resume": Case(resume=True),
    "all_reduce": Case(strategy="all_reduce"),
}


class Texts(NamedTuple):
    leader: str
    worker: JobRequest
    dry_run: str


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an archive; the Python is always at the same place."""
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.chdir(tmp_path)
    archive = tmp_path / "my env.tar.gz"
    archive.write_bytes(b"x" * 16)
    os.utime(archive, (16, 16))
    return tmp_path


def made(case: Case) -> Texts:
    config = Config(
        program="/programs/digits.py",
        run_dir=case.run_dir,
        backend="slurm",
        servers=case.servers,
        strategy=case.strategy,
        slurm=case.section,
    )
    section = read(case.section)
    settings = MemberSettings.of(
        config,
        name="worker-3",
        role="worker",
        host="",
        master="tcp://10.0.0.1:5000",
        run_dir=case.run_dir,
    )
    leader = leader_script(config, section, RUN, case.run_dir, case.resume)
    worker = worker_request(config, section, RUN, settings, section.workers[0], case.exclude)
    return Texts(leader, worker, dry_run(config, case.resume))


def as_file(request: JobRequest) -> str:
    """A request as a batch script that says the same."""
    shebang, _, rest = request.script.partition("\n")
    return "\n".join([shebang, *directives(request.options), rest])


@pytest.mark.parametrize("name", CASES)
def test_jobs_are_as_in_the_golden_files(name: str, place: Path) -> None:
    leader, worker, dry = made(CASES[name])
    for kind, text in {"leader": leader, "worker": as_file(worker), "dry_run": dry}.items():
        path = GOLDEN / f"{name}.{kind}.sbatch"
        text = text.replace(str(place), "/here")
        if os.environ.get("ELASTICFLOW_WRITE_GOLDEN") == "1":
            path.write_text(text)
        assert text == path.read_text(), path.name


def test_there_is_no_golden_file_too_many() -> None:
    kinds = ("leader", "worker", "dry_run")
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"{name}.{kind}.sbatch" for name in CASES for kind in kinds
    }


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.name)
def test_bash_can_read_them(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dry_run_shows_what_is_submitted(place: Path) -> None:
    """The leader's script, as it is but for the run's id; the worker's as a comment."""
    leader, _, dry = made(CASES["places"])
    assert dry.startswith(leader.replace(RUN, "RUN"))
    rest = dry.removeprefix(leader.replace(RUN, "RUN")).strip().splitlines()
    assert all(line.startswith("#") for line in rest)
    assert "partition gpu, qos high, account lab, constraint a100&ib; then partition spare" in rest[0]


def test_what_sbatch_cannot_be_told() -> None:
    with pytest.raises(ConfigError, match="has a line break, which sbatch's option --comment cannot have"):
        made(Case(run_dir="/runs/a\nb"))
    with pytest.raises(ConfigError, match="slurm.environment: .*/nosuch.tar: cannot be read: No such file"):
        made(Case({"environment": "nosuch.tar"}))


# --- what bash does with them ------------------------------------------------------------------------


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def run(script: str, *before: Path) -> subprocess.CompletedProcess[str]:
    """before: folders that come first on PATH."""
    path = ":".join([*map(str, before), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "TMPDIR": str(Path.cwd())}
    return subprocess.run(["bash"], input=script, capture_output=True, text=True, env=environ, timeout=60)


def logged(section: dict[str, Any], place: Path) -> tuple[str, Path]:
    """A worker's script, and its log."""
    (place / "run" / "logs").mkdir(parents=True)
    case = Case(section, run_dir=str(place / "run"))
    return made(case).worker.script, place / "run" / "logs" / "worker-3.log"


def test_the_leader_is_started_again_when_it_was_killed(place: Path) -> None:
    """By a signal, and only then; with the arguments as they are."""
    python = program(
        place / "bin" / "python",
        'printf "%s\\n" "$@"\nread n < count; echo $((n + 1)) > count; [ $n = 1 ] && exit 3; kill -9 $$',
    )
    (place / "count").write_text("0\n")
    case = Case({"python": str(python), "setup": "echo set up"}, run_dir=ODD, resume=True)
    done = run(made(case).leader)
    assert done.returncode == 3
    once = ["-m", "elasticflow.cli", "lead", "--run-dir", ODD, "--resume"]
    assert done.stdout.splitlines() == ["set up", *once, *once]


def test_a_worker_is_a_step_with_its_settings_and_those_of_the_libraries(place: Path) -> None:
    program(place / "bin" / "srun", 'printf "%s\\n" "$@"; echo $OMP_NUM_THREADS $MKL_CBWR')
    odd = f"{place}{ODD}"
    script = made(Case({"python": "true"}, run_dir=odd)).worker.script
    nowhere = run(script, place / "bin")
    assert (nowhere.returncode, nowhere.stdout, nowhere.stderr) == (EXIT_NO_FOLDER, "", ""), "it is not seen"
    Path(odd, "logs").mkdir(parents=True)
    log = Path(odd, "logs", "worker-3.log")
    log.write_text("of before\n")
    done = run(script, place / "bin")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, *_, settings, libraries = log.read_text().splitlines()
    assert first == "of before" and msgspec.json.decode(settings, type=MemberSettings).run_dir == odd
    assert libraries.split() == [os.environ.get("OMP_NUM_THREADS", "1"), "AUTO,STRICT"]


def test_an_environment_is_unpacked_on_the_servers_nodes_too(place: Path) -> None:
    python = 'echo "$VIRTUAL_ENV" "$@"'
    program(place / "packed" / "bin" / "python", python)
    program(place / "bin" / "srun", 'echo "$@"; while [ "$1" != bash ]; do shift; done; unset place; "$@"')
    with tarfile.open(place / "env.tar", "w") as archive:
        archive.add(place / "packed", ".")
    done = run(made(Case({"environment": "env.tar", "server_nodes": 2}, servers=3)).leader, place / "bin")
    (unpacked,) = place.glob("elasticflow-*")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines() == [
        "--het-group=1 --nodes=2 --ntasks=2 --overlap --input=none --export=ALL --mpi=none bash -c unpack",
        f"{unpacked}/env -m elasticflow.cli lead --run-dir /runs/digits-1",
    ]


def test_an_environment_is_unpacked_once(place: Path) -> None:
    """By those who come at the same time too, and for its owner alone."""
    program(place / "packed" / "bin" / "python", 'echo "$VIRTUAL_ENV"')
    program(place / "bin" / "srun", 'while [ "$1" != python ]; do shift; done; "$@"')
    program(place / "bin" / "tar", 'echo tar >> counted; sleep 0.2; exec /bin/tar "$@"')
    with tarfile.open(place / "env.tar.gz", "w:gz") as archive:
        archive.add(place / "packed", ".")
    script, log = logged({"environment": "env.tar.gz"}, place)
    environ = {**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(place)}
    both = [subprocess.Popen(["bash", "-c", script], env=environ) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    (unpacked,) = set(log.read_text().splitlines())
    assert Path(unpacked).parent.stat().st_mode & 0o777 == 0o700
    assert Path(unpacked).parents[1] == place and (place / "counted").read_text() == "tar\n"


def test_a_name_that_somebody_else_has_taken_is_not_used(place: Path) -> None:
    """The folder in which all unpack may be anybody's."""
    program(place / "packed" / "bin" / "python", 'echo "$VIRTUAL_ENV"')
    program(place / "bin" / "srun", 'while [ "$1" != python ]; do shift; done; "$@"')
    with tarfile.open(place / "env.tar", "w") as archive:
        archive.add(place / "packed", ".")
    section = {"environment": "env.tar"}
    script, log = logged(section, place)
    assert run(script, place / "bin").returncode == 0
    taken = Path(log.read_text().strip()).parent
    shutil.rmtree(taken)
    (place / "theirs").mkdir()
    taken.symlink_to(place / "theirs")
    assert run(script, place / "bin").returncode == 0
    own = Path(log.read_text().splitlines()[-1]).parent
    assert own.parent == place and own != taken and own.stat().st_mode & 0o777 == 0o700
    assert not any((place / "theirs").iterdir())
    refused = run(made(Case(section)).leader, place / "bin")
    assert refused.returncode == 1 and f"{taken} is not yours" in refused.stderr


def test_a_bad_archive_ends_the_job(place: Path) -> None:
    program(place / "bin" / "srun", "echo went on")
    script, log = logged(CASES["environment"].section, place)
    done = run(script, place / "bin")
    assert done.returncode == EXIT_NOT_BEGUN and "went on" not in log.read_text()


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"python": "/nope/python"}, "/nope/python: No such file or directory"),
        ({"python": "python-without"}, "No module named 'elasticflow'"),
        ({"container": "nopetainer exec image"}, "nopetainer: not found"),
        ({"setup": "module load cuda || exit 1"}, "module: command not found"),
    ],
)
def test_what_ends_before_the_worker_begins_says_so(
    place: Path, section: dict[str, object], told: str
) -> None:
    """By an exit code of its own: on one node it is no failure of the worker's."""
    program(place / "bin" / "srun", "echo went on; exit 3")
    program(place / "bin" / "python-without", "echo \"No module named 'elasticflow'\" >&2; exit 1")
    script, log = logged(section, place)
    assert run(script, place / "bin").returncode == EXIT_NOT_BEGUN
    assert told in log.read_text() and "went on" not in log.read_text()


def test_a_worker_that_has_begun_ends_with_its_own_exit_code(place: Path) -> None:
    program(place / "bin" / "srun", "echo went on; exit 3")
    script, log = logged({"python": "true"}, place)
    assert run(script, place / "bin").returncode == 3 and log.read_text() == "went on\n"


# --- what SLURM does with them -----------------------------------------------------------------------


@pytest.mark.slurm
@pytest.mark.parametrize("name", CASES)
def test_sbatch_takes_the_leader(cluster: SlurmCluster, name: str) -> None:
    """And a held job of it says that its components were read as they were meant."""
    path = GOLDEN / f"{name}.leader.sbatch"
    cluster.run("sbatch", "--test-only", str(path))
    job = cluster.run("sbatch", "--parsable", "--hold", str(path))
    told = cluster.run("squeue", "--noheader", f"--jobs={job}", "--Format=Comment:0,HetJobOffset:.4")
    cluster.run("scancel", job)
    comment = f"elasticflow {RUN} leader {CASES[name].run_dir}"
    offsets = ["N/A"] if CASES[name].strategy == "all_reduce" else ["0", "1"]
    assert [line.split() for line in sorted(told.splitlines())] == [
        [*comment.split(), each] for each in offsets
    ]


@pytest.mark.slurm
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"places", "gpu_type"}))
def test_sbatch_takes_the_worker(cluster: SlurmCluster, name: str) -> None:
    """But those for nodes that the cluster does not have."""
    path = GOLDEN / f"{name}.worker.sbatch"
    cluster.run("sbatch", "--test-only", "--partition=gpu", str(path))


@pytest.mark.slurm
def test_logs_come_where_they_belong(cluster: SlurmCluster, place: Path) -> None:
    for run_dir in (place / "50%j it's", place / "back\\slash %j"):
        (run_dir / "logs").mkdir(parents=True)
        case = Case({"gpus": 0, "setup": "echo here; exit", "python": "/bin/true"}, run_dir=str(run_dir))
        leader, worker, _ = made(case)
        for number, text in enumerate((leader, as_file(worker))):
            script = place / f"script{number}"
            script.write_text(text)
            cluster.run("sbatch", "--wait", str(script), timeout_s=60)
        assert {path.name for path in (run_dir / "logs").iterdir()} == {"leader.log", "worker-3.log"}


@pytest.mark.parametrize("name", ["HUP", "USR1", "USR2"])
def test_a_warning_to_the_leaders_script_ends_nothing(place: Path, name: str) -> None:
    """As ``sbatch --signal=B:USR1@60`` sends it: to the script alone, while the master's supervisor runs."""
    gate = place / "gate"
    os.mkfifo(gate)
    program(place / "python", f'echo begun; read word < "{gate}"; echo "$word"; exit 3')
    leader = leader_script(
        Config(program="p.py"), read({"python": str(place / "python")}), RUN, "/run", False
    )
    script = leader.partition("\n#SBATCH hetjob")[2] or leader
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout and leader.stdout.readline() == "begun\n"
        leader.send_signal(getattr(signal, f"SIG{name}"))
        gate.write_text("over\n")
        assert leader.stdout.read() == "over\n" and leader.wait() == 3
