"""What the commands of all versions print, and what is read from it."""

from __future__ import annotations

import pytest

from elasticflow_slurm.client import Partition, SlurmBusy, SlurmJob, SlurmNode, time_s
from elasticflow_slurm.printed import (
    FIELD,
    JOB_FIELDS,
    PARTITION_FIELDS,
    RECORD,
    exit_code,
    first_node,
    num_gpus,
    parse_jobs,
    parse_nodes,
    parse_partitions,
    parse_past,
    parse_reservations,
    start_told,
)
from tests.slurm.client.fake_slurm import VERSIONS, golden

TOLD = {
    "JobId": "7",
    "State": "RUNNING",
    "Reason": "None",
    "HetJobId": "N/A",
    "HetJobOffset": "N/A",
    "JobArrayId": "7",
    "Partition": "gpu",
    "NodeList": "g1",
    "SubmitTime": "1700000000",
    "StartTime": "1700000001",
    "EndTime": "NONE",
    "exit_code": "0",
    "PriorityLong": "4294901757",
    "RestartCnt": "0",
    "Name": "name",
    "Comment": "comment",
}


def record(**fields: str) -> str:
    told = {**TOLD, **fields}
    return FIELD.join(told[name] for name in JOB_FIELDS) + RECORD + "\n"


def one(**fields: str) -> SlurmJob:
    [job] = parse_jobs(record(**fields))
    return job


@pytest.mark.parametrize("version", VERSIONS)
class TestGoldenFiles:
    def test_jobs(self, version):
        jobs = {job.id: job for job in parse_jobs(golden(version, "squeue"))}
        assert sorted(jobs) == list(range(1, 11))
        assert (jobs[1].name, jobs[1].comment) == ("odd, name|x", "a|b 'c' \"d\" é %k\nsecond line")
        assert (jobs[1].state, jobs[1].end_at, jobs[1].exit_code) == ("RUNNING", None, None)
        assert (jobs[2].partition, jobs[2].comment) == ("gpu", "elasticflow 0123456789ab w1")
        assert jobs[2].node.startswith("g") and jobs[2].start_at is not None
        assert jobs[2].end_at == jobs[2].start_at + 600
        assert (jobs[3].state, jobs[3].exit_code, jobs[3].reason) == ("FAILED", 3, "NonZeroExitCode")
        assert (jobs[4].state, jobs[4].exit_code) == ("FAILED", 137)
        assert [(jobs[id].het, jobs[id].leader_id, jobs[id].comment) for id in (5, 6)] == [
            (0, 5, "leader"),
            (1, 5, "servers"),
        ]
        assert (
            jobs[7].held and jobs[7].comment == "x" * 600 and jobs[7].start_at is None and jobs[7].node == ""
        )
        assert (jobs[8].state, jobs[8].reason, jobs[8].held) == ("PENDING", "BeginTime", False)
        assert jobs[8].start_at is not None and jobs[8].submit_at is not None
        assert jobs[8].start_at == pytest.approx(jobs[8].submit_at + 3600, abs=2)
        assert (jobs[9].state, jobs[9].over) == ("CANCELLED", True)
        assert (jobs[10].state, jobs[10].exit_code, jobs[10].comment) == ("COMPLETED", 0, "")

    def test_partitions(self, version):
        found = {partition.name: partition for partition in parse_partitions(golden(version, "sinfo"))}
        assert found["cpu"] == Partition(name="cpu", is_default=True, nodes=3)
        assert found["gpu"] == Partition(name="gpu", nodes=4, gpus_total=8, gpus_idle=6)
        assert found["spare"] == Partition(name="spare", nodes=2, gpus_total=4, gpus_idle=4)

    def test_partitions_with_drained_nodes(self, version):
        found = {
            partition.name: partition for partition in parse_partitions(golden(version, "sinfo-drained"))
        }
        assert found["gpu"] == Partition(name="gpu", nodes=4, gpus_total=8, gpus_idle=4)
        assert not found["spare"].is_up
        assert found["spare"].time_limit_s == ((24 + 2) * 60 + 4) * 60

    @pytest.mark.parametrize("name", ["test-only", "test-only-het"])
    def test_estimates(self, version, name):
        assert start_told(golden(version, name)) > 1_700_000_000


@pytest.mark.parametrize(
    ("told", "address"),
    [("7_1", "7_1"), ("6_0", "6_0"), ("7", 7), ("6+1", 7), ("7_[2-9%2]", 7), ("7_[3]", 7)],
)
def test_what_names_a_job_alone(told, address):
    """The last task of an array has the array's id."""
    assert one(JobId="7", JobArrayId=told).address == address


def test_no_jobs():
    assert parse_jobs("") == []


def test_separators_in_a_comment_are_a_part_of_it():
    assert one(Comment=f"a{FIELD}b").comment == f"a{FIELD}b"
    assert one(Comment="a\nb\n").comment == "a\nb\n"
    assert one(Comment=f"a{RECORD}b").comment == f"a{RECORD}b"


def test_a_name_with_separators_harms_no_other_job():
    printed = record(JobId="1") + record(JobId="2", Name=f"x{RECORD}\ny") + record(JobId="3")
    assert [job.id for job in parse_jobs(printed)] == [1, 3]


def test_bytes_that_are_no_text_are_kept():
    assert one(Comment="\udcff").comment == "\udcff"


def test_what_is_no_list_of_jobs_is_an_error():
    with pytest.raises(SlurmBusy, match="that is no list of jobs"):
        parse_jobs("JOBID PARTITION\n")


def node(state: str, gres: str = "gpu:a100:3(S:0-1),gpu:1,shard:8") -> SlurmNode:
    (found,) = parse_nodes(FIELD.join(("g1", "gpu", state, "16", gres, "\n")))
    return found


def test_a_nodes_gpus_by_their_type():
    assert (node("idle").num_gpus(), node("idle").num_gpus("a100"), node("idle").num_gpus("h100")) == (
        4,
        3,
        0,
    )
    assert (node("idle", "(null)").num_gpus(), node("idle", "gpu:v100").num_gpus("v100")) == (0, 1)
    assert (node("idle").name, node("idle").partition, node("idle").cpus) == ("g1", "gpu", 16)


@pytest.mark.parametrize(
    ("state", "may", "doubtful"),
    [
        *((state, True, False) for state in ("idle", "mixed", "allocated", "mixed-", "idle~", "completing")),
        *((state, True, True) for state in ("idle*", "allocated*", "unknown*")),
        *((state, False, False) for state in ("down", "down*", "drained", "draining", "drained*", "maint")),
        *((state, False, False) for state in ("idle$", "reserved", "unknown", "fail", "idle%")),
    ],
)
def test_whether_a_node_may_be_used(state, may, doubtful):
    assert (node(state).away(reserved=False) == "") is may and node(state).doubtful is doubtful
    assert may or node(state).away(reserved=False) == state


def test_a_reserved_node_is_for_those_of_its_reservation():
    assert (node("reserved").away(reserved=True), node("reserved").away(reserved=False)) == ("", "reserved")


def test_what_is_no_list_of_nodes_is_an_error():
    with pytest.raises(SlurmBusy, match="that is no node"):
        parse_nodes("NODELIST\n")


def test_what_is_no_list_of_partitions_is_an_error():
    with pytest.raises(SlurmBusy, match="that is no partition"):
        parse_partitions("PARTITION AVAIL\n")


@pytest.mark.parametrize("word", ["N/A", "Unknown", "None", "NONE", ""])
def test_times_that_are_not_known(word):
    job = one(SubmitTime=word, StartTime=word, EndTime=word)
    assert (job.submit_at, job.start_at, job.end_at) == (None, None, None)


@pytest.mark.parametrize(
    ("state", "reason", "priority", "held"),
    [
        ("PENDING", "JobHeldUser", "0", True),
        ("PENDING", "JobHeldAdmin", "1", True),
        ("PENDING", "launch failed requeued held", "0", True),
        ("PENDING", "launch failure limit exceeded requeued held", "5", True),
        ("PENDING", "job requeued in held state", "5", True),
        ("REQUEUE_HOLD", "None", "5", True),
        ("SPECIAL_EXIT", "None", "5", True),
        ("PENDING", "Resources", "5", False),
        ("RUNNING", "None", "0", False),
        ("CANCELLED", "JobHeldUser", "0", False),
    ],
)
def test_held(state, reason, priority, held):
    assert one(State=state, Reason=reason, PriorityLong=priority).held is held


@pytest.mark.parametrize(
    ("state", "over"),
    [("COMPLETED", True), ("NODE_FAIL", True), ("PREEMPTED", True), ("DEADLINE", True), ("REVOKED", True)]
    + [
        ("COMPLETING", False),
        ("REQUEUED", False),
        ("SUSPENDED", False),
        ("CONFIGURING", False),
        ("STOPPED", False),
    ]
    + [("EXPEDITING", False), ("STAGE_OUT", False)],
)
def test_over(state, over):
    assert one(State=state, exit_code="0:0").over is over


@pytest.mark.parametrize(
    ("told", "code"),
    [("0", 0), ("768", 3), ("9", 137), ("137", 137), ("35072", 137), ("-2", None), ("", None)]
    + [("0:0", 0), ("3:0", 3), ("0:9", 137), ("137:0", 137)],
)
def test_exit_codes(told, code):
    assert exit_code(told) == code


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("", ""),
        ("g1", "g1"),
        ("g[1-4]", "g1"),
        ("g[01,03-04],h2", "g01"),
        ("a1,b2", "a1"),
        ("r[1-2]n[3-4]", "r1n3"),
    ],
)
def test_first_node(nodes, first):
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("", 0),
        ("gpu:2", 2),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:3(S:0,1),gpu:1(IDX:0),shard:8", 4),
        ("gpu", 1),
    ]
    + [("gpu:a100:2(IDX:0-1),tmpdisk:100", 2), ("mps:100", 0)],
)
def test_gpus(gres, count):
    assert num_gpus(gres) == count


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("infinite", None), ("n/a", None), ("30:00", 1800.0), ("1:30:00", 5400.0), ("2-00:00:00", 172800.0)],
)
def test_durations(told, seconds):
    assert time_s(told) == seconds


@pytest.mark.parametrize(
    ("state", "idle"),
    [
        ("idle", 1),
        ("idle~", 1),
        ("mixed", 1),
        ("mixed-", 1),
        ("planned", 1),
        ("allocated", 1),
        ("completing", 1),
    ]
    + [("idle*", 0), ("maint", 0), ("drained", 0), ("draining", 0), ("down", 0), ("down*", 0), ("unknown", 0)]
    + [("reserved", 0), ("idle$", 0), ("idle%", 0), ("inval", 0), ("rebooting", 0)],
)
def test_nodes_on_which_nothing_starts_have_no_idle_gpus(state, idle):
    told = dict.fromkeys(PARTITION_FIELDS, "1") | {
        "Gres": "gpu:2",
        "GresUsed": "gpu:1(IDX:1)",
        "StateLong": state,
    }
    [partition] = parse_partitions("".join(told[name] + FIELD for name in PARTITION_FIELDS) + "\n")
    assert (partition.gpus_total, partition.gpus_idle) == (2, idle)


def test_a_partition_without_nodes():
    told = dict(
        zip(PARTITION_FIELDS, ("p", "p", "up", "infinite", "0", "n/a", "(null)", "(null)"), strict=True)
    )
    found = parse_partitions("".join(told[name] + FIELD for name in PARTITION_FIELDS) + "\n")
    assert found == [Partition(name="p")]


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (
            "12|CANCELLED by 1000|0:15|g01|None",
            SlurmJob(id=12, state="CANCELLED", node="g01", exit_code=143),
        ),
        (
            "12|TIMEOUT|0:0|g[01-02]|TimeLimit",
            SlurmJob(id=12, state="TIMEOUT", node="g01", exit_code=0, reason="TimeLimit"),
        ),
        ("12|FAILED|3:0|None assigned|None", SlurmJob(id=12, state="FAILED", exit_code=3)),
        ("12.batch|FAILED|3:0|g01|", None),
        ("", None),
    ],
)
def test_a_job_of_the_past(line: str, job: SlurmJob | None) -> None:
    assert parse_past(line) == job


RESERVED = """\
ReservationName=ef StartTime=1764000000 EndTime=1795536000 Duration=365-00:00:00 Nodes=g[1-2] \
NodeCnt=2 CoreCnt=16 Features=(null) PartitionName=gpu Flags=SPEC_NODES,ALL_NODES TRES=cpu=16 \
Users=(null) Groups=(null) Accounts=ml Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a \
MaxStartDelay=(null) Comment=Nodes=none at all
ReservationName=root_3 StartTime=1764100000 EndTime=1764103600 Duration=01:00:00 \
Nodes=rack[01-02]n[7,09-10],h1 NodeCnt=7 CoreCnt=56 Features=(null) PartitionName=(null) \
Flags=MAINT,IGNORE_JOBS,DAILY,SPEC_NODES TRES=cpu=56 Users=root Groups=(null) Accounts=(null) \
Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a
ReservationName=tokens StartTime=1764100000 EndTime=1764103600 Duration=01:00:00 Nodes=(null) \
NodeCnt=0 CoreCnt=0 Features=(null) PartitionName=(null) Flags=ANY_NODES TRES=(null) Users=root \
Licenses=matlab:3 State=INACTIVE
"""


def test_reservations_with_their_nodes_and_what_is_no_nodes_is_left_out():
    ours, upkeep = parse_reservations(RESERVED)
    assert (ours.name, ours.nodes, ours.cpus) == ("ef", ("g1", "g2"), 16)
    assert (ours.start_at, ours.end_at) == (1764000000, 1795536000)
    names = [f"rack{rack}n{n}" for rack in ("01", "02") for n in ("7", "09", "10")]
    assert upkeep.nodes == (*names, "h1") and {"MAINT", "DAILY"} <= upkeep.flags
    assert parse_reservations("No reservations in the system\n") == []


def test_what_is_no_reservation_is_an_error():
    with pytest.raises(SlurmBusy, match="that is no reservation"):
        parse_reservations("ReservationName=x StartTime=soon Nodes=g1")
