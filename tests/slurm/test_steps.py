"""Servers behind ``srun``, here a script of that name: starts, ends, adoption, back-off."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.member import EXIT_ABANDONED
from elasticflow.errors import RunError
from elasticflow.local import process
from elasticflow.local.process import recorded
from elasticflow.run.settings import MemberSettings
from elasticflow_slurm import steps
from elasticflow_slurm.steps import Allocation, Steps

PATIENCE_S = 20.0
WAIT_S = 0.3
SRUN = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE/asked"
for word; do case "$word" in --job-name=*) name=${word#*=};; esac; done
echo $$ >> "$FAKE/$name.pids"
[ -e "$FAKE/$name" ] && . "$FAKE/$name"
exec sleep 600
"""
TASK = "srun: error: a1: task 0: "


class Srun:
    """What the next srun of a server does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, name: str, script: str) -> None:
        (self.folder / name).write_text(script)

    def says(self, name: str, words: str, code: int) -> None:
        self.does(name, f"echo '{words}' >&2\nexit {code}\n")

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def pids(self, name: str) -> list[int]:
        """Of all sruns of a server, one after the other."""
        path = self.folder / f"{name}.pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Srun:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "srun"
    program.write_text(SRUN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.setattr(steps, "WAIT_S", WAIT_S)
    return Srun(folder)


Make = Callable[[], Steps]


@pytest.fixture
def make(srun: Srun, tmp_path: Path) -> Iterator[Make]:
    """One Steps after the other, each in place of the one before."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    made: list[Steps] = []

    def make_one() -> Steps:
        made.append(Steps(str(tmp_path / "run"), threads=1, interpreter=["python3.x"]))
        return made[-1]

    yield make_one
    for each in made:
        each.end_all()


def settings(name: str) -> MemberSettings:
    return MemberSettings(
        name=name,
        role="server",
        host="",
        master="tcp://h:1",
        run_dir="r",
        program="p.py",
        seed=1,
        threads=1,
        batch_size=8,
        num_slices=8,
        heartbeat_s=1.0,
        lost_s=10.0,
        encrypt_data=False,
        timeline=False,
    )


def started(srun: Srun, name: str, times: int = 1) -> int:
    """The number of the process of a server's srun, once it is there."""
    wait_until(lambda: len(srun.pids(name)) >= times)
    return srun.pids(name)[-1]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


def next_end(these: Steps) -> Ended:
    """The next end, of which a descriptor or the clock tells."""
    deadline = time.monotonic() + PATIENCE_S
    while not (ended := these.ended()):
        left_s = deadline - time.monotonic()
        assert left_s > 0, "nothing ends"
        at_s = these.next_time_s()
        wait_s = left_s if at_s is None else max(0.0, min(left_s, at_s - time.monotonic()))
        select.select(these.fds(), [], [], wait_s)
        these.turn()
    (one,) = ended
    return one


# --- a start -------------------------------------------------------------------------------------


def test_a_server_is_a_step_on_this_node(make: Make, srun: Srun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "3")
    these = make()
    these.start(settings("server-3"))
    pid = started(srun, "server-3")
    assert these.names == ["server-3"] and these.pids() == {"server-3": pid}
    asked = srun.asked()
    assert asked[:8] == [
        "--cpus-per-task=3",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--job-name=server-3",
        "--input=none",
        "--export=ALL",
        "--mpi=none",
    ]
    assert asked[-4:-1] == ["python3.x", "-m", "elasticflow.launch"]
    assert msgspec.json.decode(asked[-1], type=MemberSettings) == settings("server-3")
    assert these.ended() == [] and these.next_time_s() is None


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, [[], []]),
        ({"SLURM_JOB_NUM_NODES": "1"}, [[], []]),
        ({"SLURM_JOB_NUM_NODES": "2"}, [["--relative=0"], ["--relative=1"], ["--relative=0"]]),
        ({"SLURM_HET_SIZE": "1", "SLURM_JOB_NUM_NODES": "2"}, [["--relative=0"], ["--relative=1"]]),
        (
            {"SLURM_HET_SIZE": "2", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "1", "SLURM_JOB_NUM_NODES": "9"},
            [["--het-group=1"], ["--het-group=1"]],
        ),
        (
            {"SLURM_HET_SIZE": "2", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2"},
            [["--het-group=1", "--relative=0"], ["--het-group=1", "--relative=1"]],
        ),
    ],
)
def test_servers_are_spread_over_the_nodes_there_are(
    environ: dict[str, str], options: list[list[str]]
) -> None:
    allocation = Allocation(environ)
    asked = [allocation.options(number) for number in range(len(options))]
    assert asked == [[*words, "--cpus-per-task=1"] for words in options]


@pytest.mark.parametrize(("told", "num"), [("4", 4), ("2(x2)", 2), ("16(x3),4,8(x2)", 4)])
def test_a_server_may_use_all_cpus_of_its_node(told: str, num: int) -> None:
    """Steps that overlap and ask for fewer would all be bound to the first."""
    environ = {"SLURM_HET_SIZE": "2", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": told}
    assert Allocation(environ).options(0) == ["--het-group=1", f"--cpus-per-task={num}"]


def test_what_it_says_is_in_its_log(make: Make, srun: Srun, tmp_path: Path) -> None:
    """After what one of before has said."""
    log = tmp_path / "run" / "logs" / "server-0.log"
    these = make()
    log.write_text("of before\n")
    srun.does("server-0", "echo out\necho err >&2\nexit 0\n")
    these.start(settings("server-0"))
    next_end(these)
    assert log.read_text() == "of before\nout\nerr\n"


# --- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "how", "text"),
    [
        ("bye", 0, How.DONE, "ended"),
        ("srun: Job step aborted", 0, How.DONE, "ended"),
        (f"ValueError: no\n{TASK}Exited with exit code 1", 1, How.FAILED, "exit code 1; its last words, in "),
        ("ValueError: no", 1, How.FAILED, "ValueError: no"),
        (f"no master\n{TASK}Exited with exit code 75", EXIT_ABANDONED, How.KILLED, "ended with 75"),
        (f"{TASK}Killed", 137, How.KILLED, "ended with 137"),
        (f"{TASK}Segmentation fault (core dumped)", 139, How.KILLED, "ended with 139"),
        (f"{TASK}Terminated", 143, How.KILLED, "ended with 143"),
        ("srun: error: Unable to create step for job 7: Job/step already completing", 1, How.TAKEN, "Unable"),
        (
            "srun: error: Unable to confirm allocation for job 7: Invalid job id",
            1,
            How.TAKEN,
            "Invalid job id",
        ),
        ("srun: error: Timed out waiting for job step to complete", 1, How.TAKEN, "Timed out"),
        ("srun: error: Node failure on a1", 1, How.TAKEN, "Node failure on a1"),
        ("srun: Force Terminated StepId=7.0", 137, How.TAKEN, "Force Terminated"),
    ],
)
def test_how_it_ended(make: Make, srun: Srun, words: str, code: int, how: How, text: str) -> None:
    these = make()
    srun.says("server-0", words, code)
    these.start(settings("server-0"))
    ended = next_end(these)
    assert (ended.name, ended.how) == ("server-0", how) and text in ended.text
    assert these.names == [] and these.fds() == [] and not ended.text.endswith("\n")


def test_words_of_one_before_it_are_not_its_own(make: Make, srun: Srun) -> None:
    """As long as it says anything at all."""
    these = make()
    srun.says("server-0", "srun: error: Node failure on a1", 1)
    these.start(settings("server-0"))
    assert next_end(these).how is How.TAKEN
    srun.says("server-0", "MemoryError", 1)
    these.start(settings("server-0"))
    ended = next_end(these)
    assert ended.how is How.FAILED and "MemoryError" in ended.text


def test_srun_itself_is_killed(make: Make, srun: Srun) -> None:
    these = make()
    these.start(settings("server-0"))
    os.kill(started(srun, "server-0"), signal.SIGKILL)
    assert next_end(these) == Ended("server-0", How.KILLED, "was killed (its srun ended with -9)")


def test_each_end_is_told_once(make: Make, srun: Srun) -> None:
    these = make()
    for number in range(5):
        srun.says(f"server-{number}", "bye", number)
        these.start(settings(f"server-{number}"))
    told: list[str] = []
    while len(told) < 5:
        select.select(these.fds(), [], [], PATIENCE_S)
        told += [ended.name for ended in these.ended()]
    assert sorted(told) == [f"server-{number}" for number in range(5)] and these.ended() == []


# --- being ended ---------------------------------------------------------------------------------


def test_a_server_is_killed(make: Make, srun: Srun) -> None:
    these = make()
    for name in ("server-0", "server-1"):
        these.start(settings(name))
        started(srun, name)
    these.kill("server-0")
    assert next_end(these).name == "server-0" and these.names == ["server-1"]
    these.kill("server-0")
    these.kill("server-9")
    assert these.ended() == []


def test_one_that_was_stopped_is_killed(make: Make, srun: Srun) -> None:
    these = make()
    these.start(settings("server-0"))
    os.kill(started(srun, "server-0"), signal.SIGSTOP)
    these.kill("server-0")
    assert next_end(these).how is How.KILLED


def test_all_are_ended(make: Make, srun: Srun, tmp_path: Path) -> None:
    these = make()
    for number in range(3):
        these.start(settings(f"server-{number}"))
    pids = [started(srun, f"server-{number}") for number in range(3)]
    these.end_all()
    assert these.names == [] and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert list((tmp_path / "run" / "keys" / "steps").iterdir()) == []


def test_an_srun_that_does_not_end_holds_up_nobody(
    make: Make, srun: Srun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a controller that does not answer, say."""
    monkeypatch.setattr(process, "END_S", 0.2)
    srun.does("server-0", "trap '' TERM\necho there > $FAKE/trapped\nwhile :; do sleep 600; done\n")
    these = make()
    these.start(settings("server-0"))
    wait_until((srun.folder / "trapped").exists)
    begun_s = time.monotonic()
    these.end_all()
    assert time.monotonic() - begun_s < 5.0 and these.names == []


# --- from one master to the next -----------------------------------------------------------------


def test_the_next_master_adopts_those_that_live(make: Make, srun: Srun) -> None:
    old = make()
    for name in ("server-0", "server-1"):
        old.start(settings(name))
    pids = {name: started(srun, name) for name in ("server-0", "server-1")}
    new = make()
    assert new.pids() == pids and len(new.fds()) == 2
    new.kill("server-0")
    assert next_end(new) == Ended("server-0", How.KILLED, "ended") and new.names == ["server-1"]


def test_those_that_have_ended_are_not_adopted(make: Make, srun: Srun, tmp_path: Path) -> None:
    old = make()
    old.start(settings("server-0"))
    os.kill(started(srun, "server-0"), signal.SIGKILL)
    os.waitpid(started(srun, "server-0"), 0)
    new = make()
    assert new.names == [] and not (tmp_path / "run" / "keys" / "steps" / "server-0").exists()


def test_what_a_record_names_by_now_is_another_process(make: Make, srun: Srun, tmp_path: Path) -> None:
    """Of another machine, or with a number that was given again."""
    folder = tmp_path / "run" / "keys" / "steps"
    old = make()
    old.start(settings("server-0"))
    started(srun, "server-0")
    mine = recorded(folder / "server-0")
    assert mine is not None
    msgspec.structs.replace(mine, boot="another").record(folder / "server-1")
    msgspec.structs.replace(mine, started=1).record(folder / "server-2")
    (folder / "server-3").write_text("no JSON")
    new = make()
    assert new.names == ["server-0"] and [path.name for path in folder.iterdir()] == ["server-0"]


def test_the_folder_is_for_the_owner_alone(make: Make, tmp_path: Path) -> None:
    make()
    assert (tmp_path / "run" / "keys" / "steps").stat().st_mode & 0o777 == 0o700


def test_clearing_ends_what_no_master_watches(make: Make, srun: Srun, tmp_path: Path) -> None:
    these = make()
    these.start(settings("server-0"))
    started(srun, "server-0")
    steps.clear(str(tmp_path / "run"))
    assert next_end(these).how is How.KILLED
    steps.clear(str(tmp_path / "run"))
    steps.clear(str(tmp_path / "no such run"))


# --- SLURM refuses -------------------------------------------------------------------------------


def test_after_a_refusal_it_waits_a_moment(make: Make, srun: Srun) -> None:
    these = make()
    srun.says("server-0", "srun: error: Unable to create step for job 7: Requested nodes are busy", 1)
    these.start(settings("server-0"))
    assert next_end(these).how is How.TAKEN
    refused_s = time.monotonic()
    these.start(settings("server-1"))
    assert these.names == ["server-1"] and these.pids() == {} and these.fds() == []
    at_s = these.next_time_s()
    assert at_s is not None and refused_s < at_s <= refused_s + WAIT_S
    these.turn()
    assert these.pids() == {}, "not yet"
    time.sleep(max(0.0, at_s - time.monotonic()))
    these.turn()
    assert started(srun, "server-1") == these.pids()["server-1"] and these.next_time_s() is None


def test_one_that_waits_can_be_given_up(make: Make, srun: Srun) -> None:
    these = make()
    srun.says("server-0", "srun: error: Unable to create step for job 7: Requested nodes are busy", 1)
    these.start(settings("server-0"))
    next_end(these)
    these.start(settings("server-1"))
    these.kill("server-1")
    assert these.names == [] and these.next_time_s() is None
    time.sleep(WAIT_S)
    these.turn()
    assert srun.pids("server-1") == []


@pytest.mark.parametrize("code", [1, 137])
def test_a_failure_of_its_own_is_no_reason_to_wait(make: Make, srun: Srun, code: int) -> None:
    these = make()
    srun.says("server-0", f"{TASK}Exited", code)
    these.start(settings("server-0"))
    next_end(these)
    these.start(settings("server-1"))
    assert "server-1" in these.pids()


def test_one_that_ran_for_long_may_be_replaced_at_once(
    make: Make, srun: Srun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SHORT_S", 0.0)
    these = make()
    srun.says("server-0", "srun: error: Node failure on a1", 1)
    these.start(settings("server-0"))
    next_end(these)
    these.start(settings("server-1"))
    assert "server-1" in these.pids()


def test_there_is_no_srun(make: Make, srun: Srun, monkeypatch: pytest.MonkeyPatch) -> None:
    these = make()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RunError, match="srun is not found"):
        these.start(settings("server-0"))


def test_srun_cannot_be_started_just_now(make: Make, srun: Srun, tmp_path: Path) -> None:
    """That is told as an end, and not tried again at once."""
    these = make()
    (tmp_path / "run" / "logs").rmdir()
    these.start(settings("server-0"))
    ended = next_end(these)
    assert ended.how is How.TAKEN and "could not be started: No such file or directory" in ended.text
    (tmp_path / "run" / "logs").mkdir()
    these.start(settings("server-1"))
    assert these.pids() == {} and these.next_time_s() is not None
