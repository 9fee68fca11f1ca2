"""How the commands are called, and how their errors are sorted; the commands are fakes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from elasticflow_slurm.client import (
    JobRequest,
    LimitReached,
    PlaceClosed,
    PlaceRefused,
    SlurmBusy,
    SlurmError,
    SlurmNotInstalled,
    SlurmRefused,
)
from elasticflow_slurm.command_line import KINDS, SlurmClient, scrubbed, sorted_error
from elasticflow_slurm.printed import FIELD, RECORD
from tests.slurm.client.fake_slurm import VERSIONS, FakeSlurm, golden

POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
REQUEST = JobRequest(script="#!/bin/sh\ntrue\n", options={"job-name": "a b", "no-requeue": ""})


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    return SlurmClient(slurm.environ, timeout_s=10)


@pytest.mark.parametrize(
    ("said", "version"),
    [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 25.11.7\n", (25, 11)), ("slurm 26.05.0-0rc1\n", (26, 5))],
)
def test_version(slurm, client, said, version):
    slurm.answer("sinfo", said)
    assert client.version() == version
    assert slurm.asked("sinfo") == ["--version"]


def test_version_of_another_sinfo(slurm, client):
    slurm.answer("sinfo", "GNU texinfo\n")
    with pytest.raises(SlurmNotInstalled, match="no version of SLURM"):
        client.version()


def test_submit(slurm, client):
    slurm.answer("sbatch", "12\n")
    assert client.submit(REQUEST) == 12
    assert slurm.asked("sbatch") == ["--parsable", "--job-name=a b", "--no-requeue"]
    assert slurm.stdin_of("sbatch") == REQUEST.script


def test_submit_of_a_heterogeneous_job(slurm, client):
    slurm.answer("sbatch", "12;cluster\n", errors="sbatch: warning: something\n")
    request = JobRequest(script="#!/bin/sh\n", options={"a": "1"}, components=({"b": ""}, {}))
    assert client.submit(request) == 12
    assert slurm.asked("sbatch") == ["--parsable", "--a=1", ":", "--b", ":"]


def test_an_answer_without_an_id(slurm, client):
    slurm.answer("sbatch", "Submitted\n")
    with pytest.raises(SlurmBusy, match="may be there all the same"):
        client.submit(REQUEST)


def test_an_estimate(slurm, client):
    slurm.answer("sbatch", errors=golden("22.05", "test-only"))
    assert client.would_start_at(REQUEST) > 1_700_000_000
    assert slurm.asked("sbatch")[0] == "--test-only"
    assert slurm.environ_of("sbatch")["SLURM_TIME_FORMAT"] == "%s"


def test_an_estimate_without_a_time(slurm, client):
    slurm.answer("sbatch", errors="sbatch: Job 5 to start at Unknown using 1 processors\n")
    with pytest.raises(SlurmBusy, match="no time"):
        client.would_start_at(REQUEST)


def test_jobs_are_one_call(slurm, client):
    slurm.answer("squeue", golden("22.05", "squeue"))
    assert len(client.jobs()) == 10
    asked = slurm.asked("squeue")
    assert asked[:4] == ["--noheader", "--all", "--states=all", "--me"]
    assert asked[4].startswith(f"--Format=JobId:0{FIELD},State:0{FIELD},")
    assert asked[4].endswith(f"Name:0{FIELD},Comment:0{RECORD}")


def test_a_job_is_found_by_its_own_id(slurm, client):
    slurm.answer("squeue", golden("22.05", "squeue"))
    found = client.job(6)
    assert found is not None and found.comment == "servers"
    assert slurm.asked("squeue")[3] == "--jobs=6"
    assert client.job(99) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_job_is_none(slurm, client, version):
    slurm.answer("squeue", errors=golden(version, "error-squeue"), code=1)
    assert client.job(999) is None


def test_cancel_is_one_call(slurm, client):
    slurm.answer("scancel")
    client.cancel([3, 4])
    assert slurm.asked("scancel") == ["3", "4"]


def test_nothing_to_cancel_is_no_call(client):
    client.cancel([])
    client.start_now([])


@pytest.mark.parametrize(
    "errors",
    [
        "",
        "scancel: error: Kill job error on job id 99: Invalid job id specified\n",
        "scancel: error: Kill job error on job id 9: Job/step already completing or completed\n" * 2,
    ],
)
@pytest.mark.parametrize("code", [0, 1])
def test_cancel_of_what_is_over_is_no_error(slurm, client, errors, code):
    slurm.answer("scancel", errors=errors, code=code)
    client.cancel([99])


def test_a_cancel_that_fails_for_some(slurm, client):
    lines = ["job id 9: Invalid job id specified\n", "job id 8: Access/permission denied\n"]
    slurm.answer("scancel", errors="".join(f"scancel: error: Kill job error on {line}" for line in lines))
    with pytest.raises(SlurmRefused, match="Access/permission denied"):
        client.cancel([8, 9])


def test_requeue(slurm, client):
    slurm.answer("scontrol")
    client.requeue(5)
    assert slurm.asked("scontrol") == ["requeue", "5"]


def test_a_task_of_an_array(slurm, client):
    for command in ("scancel", "scontrol"):
        slurm.answer(command)
    client.cancel(["8_1", 9])
    assert slurm.asked("scancel") == ["8_1", "9"]
    client.set_comment("8_1", "c")
    assert slurm.asked("scontrol") == ["update", "JobId=8_1", "Comment=c"]


@pytest.mark.parametrize("version", VERSIONS)
def test_start_now(slurm, client, version):
    slurm.answer("scontrol", errors=golden(version, "error-start-now"), code=1)
    client.start_now([2, 999])
    assert slurm.asked("scontrol") == ["update", "JobId=2,999", "StartTime=now+2"]


def test_set_comment(slurm, client):
    slurm.answer("scontrol")
    client.set_comment(5, "a = 'b'\nc")
    assert slurm.asked("scontrol") == ["update", "JobId=5", "Comment=a = 'b'\nc"]


def test_partitions(slurm, client):
    slurm.answer("sinfo", golden("22.05", "sinfo"))
    assert [partition.name for partition in client.partitions()] == ["cpu", "gpu", "spare", "urgent"]


# Environments


def test_a_scrubbed_environment_has_no_traces_of_a_job():
    environ = {"PATH": "p", "SLURM_CONF": "c", "SLURM_JWT": "t", "MYSLURM_X": "x"}
    traces = {
        "SLURM_JOB_ID": "1",
        "SBATCH_PARTITION": "p",
        "SRUN_CPUS": "1",
        "SQUEUE_FORMAT": "f",
        "SCANCEL_X": "1",
    }
    assert scrubbed({**environ, **traces, "SLURM_TIME_FORMAT": "relative", "SINFO_FORMAT": "%n"}) == environ


def test_what_a_job_inherits_is_not_changed(slurm, tmp_path):
    slurm.answer("sbatch", "1\n")
    SlurmClient({**slurm.environ, "LC_ALL": "de_DE.UTF-8", "SLURM_HET_SIZE": "2"}).submit(REQUEST)
    told = slurm.environ_of("sbatch")
    assert told["LC_ALL"] == "de_DE.UTF-8"
    assert not [name for name in told if name.startswith("SLURM_")]


def test_what_is_read_is_not_translated(slurm, client):
    slurm.answer("squeue")
    assert client.jobs() == []
    told = slurm.environ_of("squeue")
    assert (told["LC_ALL"], told["SLURM_TIME_FORMAT"]) == ("C", "%s")


# Errors


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "command", "kind"),
    [
        ("error-partition", "sbatch", SlurmRefused),
        ("error-gpus", "sbatch", SlurmRefused),
        ("error-option", "sbatch", SlurmRefused),
        ("error-time", "sbatch", SlurmRefused),
        ("error-constraint", "sbatch", SlurmRefused),
        ("error-script", "sbatch", SlurmRefused),
        ("error-test-only", "sbatch", SlurmRefused),
        ("error-requeue", "scontrol", SlurmRefused),
        ("error-drained-partition", "sbatch", SlurmBusy),
        ("error-no-controller-sbatch", "sbatch", SlurmBusy),
        ("error-no-controller", "squeue", SlurmBusy),
        ("error-no-controller-scancel", "scancel", SlurmBusy),
        ("error-no-controller-scontrol", "scontrol", SlurmBusy),
        ("error-max-jobs", "sbatch", (SlurmBusy, LimitReached)),
        ("error-no-conf", "squeue", SlurmNotInstalled),
        ("error-no-munge", "squeue", SlurmNotInstalled),
    ],
)
def test_errors_are_sorted_by_their_words(slurm, client, version, name, command, kind):
    slurm.answer(command, errors=golden(version, name), code=1)
    with pytest.raises(kind) as raised:
        ask(client, command)
    last = re.sub(r"^\w+: (error|fatal): ", "", golden(version, name).splitlines()[-1])
    assert last.strip().rstrip(".") in str(raised.value)


def ask(client: SlurmClient, command: str) -> None:
    {
        "sbatch": lambda: client.submit(REQUEST),
        "squeue": client.jobs,
        "scancel": lambda: client.cancel([1]),
        "scontrol": lambda: client.requeue(1),
        "sinfo": client.partitions,
    }[command]()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        # src/slurmctld/acct_policy.c and src/common/slurm_errno.c
        (f"AssocMaxSubmitJobLimit; Batch job submission failed: {POLICY}", LimitReached),
        ("QOSMaxSubmitJobPerUserLimit", LimitReached),
        (f"Batch job submission failed: {POLICY}", LimitReached),
        ("Batch job submission failed: MaxJobCount limit reached", LimitReached),
        ("Slurm job queue full, sleeping and retrying", LimitReached),
        ("Unable to create job record, try again", LimitReached),
        ("Batch job submission failed: Socket timed out on send/recv operation", SlurmBusy),
        ("Unable to contact slurm controller (connect failure)", SlurmBusy),
        ("Slurm temporarily unable to accept job, sleeping and retrying", SlurmBusy),
        ("Slurm backup controller in standby mode", SlurmBusy),
        ("Batch job submission failed: Unexpected message received", SlurmBusy),
        ("Batch job submission failed: Zero Bytes were transmitted or received", SlurmBusy),
        ("Job can not be altered now, try again later", SlurmBusy),
        ("allocation failure: Required partition not available (inactive or drain)", PlaceClosed),
        ("Invalid account or account/partition combination specified", PlaceRefused),
        ("Access/permission denied", SlurmRefused),
        ("User's group not permitted to use this partition", PlaceRefused),
        ("Munge encode failed: Failed to access \"/run/munge/munge.socket.2\"", SlurmNotInstalled),
        ("cannot stat file /etc/slurm.conf: No such file or directory, retrying in 1sec", SlurmNotInstalled),
    ],
)  # fmt: skip
def test_words_of_errors(words, kind):
    for unknown in (SlurmRefused, SlurmBusy):
        error = sorted_error("sbatch", words, unknown)
        assert type(error) is kind
        assert words.rstrip(".") in str(error)


def test_unknown_words_are_a_refusal_of_what_was_to_be_done_and_no_answer_to_a_question(slurm, client):
    for command, kind in (
        ("sbatch", SlurmRefused),
        ("scontrol", SlurmRefused),
        ("squeue", SlurmBusy),
        ("scancel", SlurmBusy),
    ):
        slurm.answer(command, errors=f"{command}: error: The moon is full\n", code=1)
        with pytest.raises(kind, match="The moon is full"):
            ask(client, command)


def test_an_error_without_words(slurm, client):
    slurm.answer("squeue", code=3)
    with pytest.raises(SlurmBusy, match="exit code 3"):
        client.jobs()


def test_every_text_has_one_kind():
    texts = [text for found in KINDS.values() for text in found]
    assert len(texts) == len(set(texts))
    for kind, found in KINDS.items():
        for text in found:
            assert type(sorted_error("x", text, SlurmError)) is kind


def test_no_commands(tmp_path):
    with pytest.raises(SlurmNotInstalled, match="there is no squeue here"):
        SlurmClient({"PATH": str(tmp_path)}).jobs()


def test_a_command_that_hangs_is_killed(slurm):
    slurm.answer("squeue", errors="slurm: waiting\n", then_sleep_s=30)
    started = time.monotonic()
    with pytest.raises(SlurmBusy, match="did not answer within 0.3 s. It had said: slurm: waiting"):
        SlurmClient(slurm.environ, timeout_s=0.3).jobs()
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Slurm temporarily unable to accept job, sleeping and retrying", SlurmBusy),
        ("Slurm job queue full, sleeping and retrying", LimitReached),
        ("Job creation temporarily disabled, retrying", SlurmBusy),
        (
            "s_p_parse_file: cannot stat file /x: No such file or directory, retrying in 1sec up to 60sec",
            SlurmNotInstalled,
        ),
    ],
)
def test_an_sbatch_that_sleeps_and_retries_is_not_waited_for(slurm, client, words, kind):
    slurm.answer("sbatch", errors=f"sbatch: error: {words}\n", then_sleep_s=30)
    started = time.monotonic()
    with pytest.raises(kind, match=words.split(",")[0]):
        client.submit(REQUEST)
    assert time.monotonic() - started < 5
