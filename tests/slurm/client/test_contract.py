"""What every client does on a real cluster. ElasticFlow's SLURM backend relies on all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticflow_slurm.bindings import PyslurmClient
from elasticflow_slurm.client import (
    JobRequest,
    LimitReached,
    SlurmBusy,
    SlurmJob,
    SlurmNotInstalled,
    SlurmRefused,
)
from elasticflow_slurm.command_line import SlurmClient
from tests.clusters.processes import ClusterError
from tests.clusters.slurm import SlurmCluster

pytestmark = pytest.mark.slurm

SLEEP = "#!/bin/sh\nexec sleep 300\n"
ODD = "a|b; 'single' \"double\" %k \\ $(ls) `id` é ✓ #x = a=b, c:d\ttab\nnext line (null)  two  "
UNKNOWN_ID = 4_000_000
OPEN_S = 20.0


@pytest.fixture(scope="module", params=["cli", "pyslurm"])
def client(request: pytest.FixtureRequest, cluster: SlurmCluster) -> Iterator[SlurmClient]:
    cluster.reset()
    if request.param == "cli":
        yield SlurmClient(cluster.environment)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])  # libslurm reads this process's
        try:
            yield PyslurmClient(cluster.environment)
        except SlurmNotInstalled as error:
            pytest.skip(str(error))


@pytest.fixture(autouse=True)
def clean(cluster: SlurmCluster) -> Iterator[None]:
    yield
    cluster.cancel_all()
    cluster.wait_until_idle()


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., JobRequest]:
    def make(script: str = SLEEP, *components: dict[str, str], **options: str) -> JobRequest:
        named = {name.replace("_", "-"): value for name, value in options.items()}
        return JobRequest(
            script=script, options={"output": f"{tmp_path}/%j.out", **named}, components=components
        )

    return make


def until(
    client: SlurmClient, id: int, is_so: Callable[[SlurmJob], bool], within_s: float = OPEN_S
) -> SlurmJob:
    end = time.monotonic() + within_s
    while True:
        job = client.job(id)
        if job is not None and is_so(job):
            return job
        assert time.monotonic() < end, f"after {within_s:g} s: {job}"
        time.sleep(0.1)


def is_running(job: SlurmJob) -> bool:
    return job.state == "RUNNING"


def is_over(job: SlurmJob) -> bool:
    return job.over


def test_version_is_that_of_the_commands(client, cluster):
    major, minor = client.version()
    assert f"{major}.{minor:02}" in cluster.run("sinfo", "--version")


def test_a_job_is_told_with_all_that_was_asked_for(client, request_of):
    before = time.time()
    id = client.submit(
        request_of(partition="gpu", gpus_per_node="2", job_name="odd, name|x", time="10", no_requeue="")
    )
    job = until(client, id, is_running)
    assert (job.id, job.name, job.partition, job.reason) == (id, "odd, name|x", "gpu", "")
    assert job.node in {"g1", "g2", "g3", "g4"}
    assert (job.exit_code, job.het, job.leader_id, job.restarts) == (None, None, None, 0)
    assert not job.over and not job.held
    assert job.submit_at is not None and abs(job.submit_at - before) < 10
    assert job.start_at is not None and job.submit_at <= job.start_at <= time.time() + 1
    assert job.end_at == job.start_at + 600
    assert job in client.jobs()


def test_without_a_time_limit_there_is_no_end(client, request_of):
    job = until(client, client.submit(request_of(job_name="endless")), is_running)
    assert (job.end_at, job.comment) == (None, "")


@pytest.mark.parametrize("comment", [ODD, "x" * 600, "(a)", "\x1f", "elasticflow 0123456789ab w1"])
def test_comments_come_back_as_they_were(client, request_of, comment):
    id = client.submit(request_of(comment=comment, hold=""))
    found = client.job(id)
    assert found is not None and found.comment == comment
    assert [job.comment for job in client.jobs() if job.id == id] == [comment]


@pytest.mark.parametrize("comment", [ODD, "y" * 600])
def test_comments_can_be_replaced(client, request_of, comment):
    id = client.submit(request_of(comment="before", hold=""))
    client.set_comment(id, comment)
    found = client.job(id)
    assert found is not None and found.comment == comment


def test_a_comment_of_an_unknown_job_is_refused(client):
    with pytest.raises(SlurmRefused, match="Invalid job id specified"):
        client.set_comment(UNKNOWN_ID, "x")


def test_a_held_job_waits(client, request_of):
    job = until(client, client.submit(request_of(hold="")), lambda job: job.held)
    assert (job.state, job.reason, job.priority, job.node) == ("PENDING", "JobHeldUser", 0, "")


def test_a_job_without_room_says_why_it_waits(client, request_of):
    ids = [client.submit(request_of(partition="spare", gpus_per_node="2", time="5")) for _ in range(3)]
    job = until(client, ids[-1], lambda job: job.reason in ("Resources", "Priority"))
    assert job.state == "PENDING" and not job.held
    expected = until(client, ids[-1], lambda job: job.start_at is not None)
    assert expected.start_at is not None and expected.start_at > time.time()


@pytest.mark.parametrize(
    ("script", "state", "exit_code"),
    [
        ("exit 0", "COMPLETED", 0),
        ("exit 3", "FAILED", 3),
        ("exit 137", "FAILED", 137),
        ("kill -9 $$", "FAILED", 137),
    ],
)
def test_ends_are_told_with_their_exit_codes(client, request_of, script, state, exit_code):
    id = client.submit(request_of(f"#!/bin/bash\n{script}\n"))
    job = until(client, id, is_over)
    assert (job.state, job.exit_code) == (state, exit_code)
    assert job.end_at is not None and abs(job.end_at - time.time()) < 10
    assert job in client.jobs()


def test_cancelled_jobs_are_over_and_unknown_ones_are_no_error(client, request_of):
    ids = [client.submit(request_of()) for _ in range(2)]
    until(client, ids[0], is_running)
    client.cancel([UNKNOWN_ID, *ids, UNKNOWN_ID + 1])
    assert until(client, ids[0], is_over).state == "CANCELLED"
    assert until(client, ids[1], is_over).state == "CANCELLED"
    client.cancel(ids)
    client.cancel([UNKNOWN_ID])
    client.cancel([])


def test_a_lost_node_fails_its_job(client, cluster, request_of):
    job = until(client, client.submit(request_of(partition="gpu", nodelist="g4", no_requeue="")), is_running)
    cluster.set_down("g4")
    try:
        assert until(client, job.id, is_over).state == "NODE_FAIL"
    finally:
        cluster.resume("g4")


def test_unknown_jobs_are_none(client):
    assert client.job(UNKNOWN_ID) is None
    assert UNKNOWN_ID not in {job.id for job in client.jobs()}


def test_a_requeued_job_waits_and_starts_now(client, request_of):
    id = client.submit(request_of(requeue=""))
    until(client, id, is_running)
    client.requeue(id)
    waiting = until(client, id, lambda job: job.state == "PENDING" and job.reason == "BeginTime")
    assert waiting.restarts == 1 and not waiting.over and not waiting.held
    client.start_now([id])
    assert until(client, id, is_running).restarts == 1


def test_requeue_of_an_unknown_job_is_refused(client):
    with pytest.raises(SlurmRefused, match="Invalid job id specified"):
        client.requeue(UNKNOWN_ID)


def test_a_requeue_that_the_job_forbids_is_refused(client, request_of):
    id = client.submit(request_of(no_requeue=""))
    until(client, id, is_running)
    with pytest.raises(SlurmRefused):
        client.requeue(id)


def test_a_begin_time_is_cut_short(client, request_of):
    id = client.submit(request_of(begin="now+1hour"))
    waiting = until(client, id, lambda job: job.reason == "BeginTime")
    assert waiting.start_at is not None and waiting.start_at > time.time() + 3000
    client.start_now([id])
    until(client, id, is_running)


def test_start_now_of_what_does_not_wait_is_no_error(client, request_of):
    id = client.submit(request_of())
    until(client, id, is_running)
    ended = client.submit(request_of("#!/bin/sh\n"))
    until(client, ended, is_over)
    client.start_now([UNKNOWN_ID, ended, id])
    client.start_now([])


def test_heterogeneous_jobs(client, request_of):
    request = request_of(
        SLEEP, {"comment": "servers", "ntasks": "2"}, comment="leader", ntasks="1", requeue=""
    )
    id = client.submit(request)
    until(client, id, is_running)
    first, second = sorted((job for job in client.jobs() if job.leader_id == id), key=lambda job: job.id)
    assert (first.id, first.het, first.comment) == (id, 0, "leader")
    assert (second.het, second.comment, second.state) == (1, "servers", "RUNNING")
    assert client.job(second.id) == second
    client.requeue(id)
    until(client, second.id, lambda job: job.reason == "BeginTime" and job.restarts == 1)
    client.start_now([first.id, second.id])
    until(client, id, is_running)
    client.cancel([id])
    assert until(client, second.id, is_over).state == "CANCELLED"


def test_an_estimate_submits_nothing(client, cluster, request_of):
    asked_at = time.time()
    start_at = client.would_start_at(request_of(partition="gpu", gpus_per_node="2", time="5"))
    assert asked_at - 2 < start_at < asked_at + 30
    assert cluster.jobs() == {}


def test_an_estimate_waits_for_running_jobs(client, request_of):
    ids = [client.submit(request_of(partition="spare", gpus_per_node="2", time="5")) for _ in range(2)]
    for id in ids:
        until(client, id, is_running)
    assert (
        client.would_start_at(request_of(partition="spare", gpus_per_node="2", time="5")) > time.time() + 200
    )


def test_an_estimate_of_what_cannot_be_is_refused(client, request_of):
    with pytest.raises(SlurmRefused, match="Requested node configuration is not available"):
        client.would_start_at(request_of(partition="gpu", gpus_per_node="3"))


def test_partitions(client, request_of):
    found = {partition.name: partition for partition in client.partitions()}
    assert set(found) == {"cpu", "gpu", "urgent", "spare"}
    assert [name for name, partition in found.items() if partition.is_default] == ["cpu"]
    assert all(partition.is_up and partition.time_limit_s is None for partition in found.values())
    assert [(found[name].nodes, found[name].gpus_total) for name in ("cpu", "gpu", "spare")] == [
        (3, 0),
        (4, 8),
        (2, 4),
    ]
    assert found["gpu"].gpus_idle == 8
    id = client.submit(request_of(partition="gpu", gpus_per_node="1"))
    until(client, id, is_running)
    assert {partition.name: partition.gpus_idle for partition in client.partitions()}["gpu"] == 7


def test_partitions_without_the_nodes_that_are_down(client, cluster):
    cluster.run("scontrol", "update", "nodename=g1", "state=drain", "reason=test")
    cluster.run("scontrol", "update", "partitionname=spare", "state=drain")
    try:
        found = {partition.name: partition for partition in client.partitions()}
        assert (found["gpu"].gpus_total, found["gpu"].gpus_idle) == (8, 6)
        assert (found["gpu"].is_up, found["spare"].is_up) == (True, False)
    finally:
        cluster.run("scontrol", "update", "partitionname=spare", "state=up")
        cluster.resume("g1")


def test_nodes_by_partition_with_what_they_have_and_whether_they_can_be_had(client, cluster):
    found = {(node.name, node.partition): node for node in client.nodes()}
    assert {name for name, partition in found if partition == "gpu"} == {"g1", "g2", "g3", "g4"}
    assert {name for name, partition in found if partition == "spare"} == {"g3", "g4"}
    assert (found["g1", "gpu"].num_gpus(), found["g1", "gpu"].cpus) == (2, 8)
    assert found["c1", "cpu"].num_gpus() == 0 and found["g1", "gpu"].away(reserved=False) == ""
    cluster.drain("g1")
    try:
        found = {(node.name, node.partition): node for node in client.nodes()}
        assert found["g1", "gpu"].away(reserved=False) in ("drained", "drained*")  # if it is slow to answer
    finally:
        cluster.resume("g1")


def test_reservations_that_are_to_come(client, cluster):
    assert client.reservations() == []
    when = ("starttime=now+1hour", "duration=60", "flags=maint")
    cluster.run("scontrol", "create", "reservation=upkeep", "nodes=g[1-2]", "users=root", *when)
    try:
        (found,) = client.reservations()
        assert (found.name, found.nodes, found.cpus) == ("upkeep", ("g1", "g2"), 16)
        assert found.end_at - found.start_at == 3600 and "MAINT" in found.flags
    finally:
        cluster.run("scontrol", "delete", "reservation=upkeep")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "nope"}, "Invalid partition name specified"),
        ({"partition": "gpu", "gpus_per_node": "3"}, "Requested node configuration is not available"),
        ({"partition": "cpu", "gpus_per_node": "1"}, "Requested node configuration is not available"),
        ({"constraint": "nope"}, "Invalid feature specification"),
        ({"nope": "1"}, "unrecognized option '--nope=1'"),
        ({"time": "soon"}, "Invalid --time specification"),
    ],
)
def test_refusals_come_with_the_words_of_slurm(client, request_of, options, words):
    with pytest.raises(SlurmRefused, match=words):
        client.submit(request_of(**options))


def test_what_is_no_script_is_refused(client, request_of):
    with pytest.raises(SlurmRefused, match="This does not look like a batch script"):
        client.submit(request_of("sleep 1\n"))


def test_jobs_that_wait_for_a_partition_to_come_back(client, cluster, request_of):
    cluster.run("scontrol", "update", "partitionname=spare", "state=drain")
    try:
        with pytest.raises(SlurmBusy, match="Required partition not available"):
            client.submit(request_of(partition="spare"))
    finally:
        cluster.run("scontrol", "update", "partitionname=spare", "state=up")


def test_the_environment_of_a_job_has_no_traces_of_another(cluster, request_of, tmp_path):
    environ = {**cluster.environment, "SLURM_HET_SIZE": "2", "SBATCH_PARTITION": "nope", "LC_ALL": "C.UTF-8"}
    client = SlurmClient(environ)
    id = client.submit(request_of("#!/bin/sh\nenv\n", output=f"{tmp_path}/env"))
    until(client, id, is_over)
    told = Path(tmp_path, "env").read_text().splitlines()
    assert "LC_ALL=C.UTF-8" in told
    assert f"SLURM_CONF={cluster.conf}" in told
    assert not [line for line in told if line.startswith(("SLURM_HET_SIZE", "SBATCH_", "SLURM_TIME_FORMAT"))]


def test_the_jobs_of_others_are_not_told(client, cluster, request_of):
    try:
        other = cluster.run(
            "sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true", user="nobody"
        )
    except (ClusterError, KeyError, OSError) as error:
        pytest.skip(f"nobody cannot submit here: {error}")
    assert int(other) not in {job.id for job in client.jobs()}


def test_without_a_controller_slurm_is_busy(client, cluster, request_of):
    id = client.submit(request_of(hold=""))
    cluster.stop_controller()
    try:
        started = time.monotonic()
        for ask in (
            client.jobs,
            client.partitions,
            lambda: client.submit(request_of()),
            lambda: client.cancel([id]),
        ):
            with pytest.raises(SlurmBusy):
                ask()
        assert time.monotonic() - started < 4 * 30
    finally:
        cluster.start_controller()
    until(client, id, lambda job: job.held)


def test_a_limit_of_jobs_is_reached_at_once(cluster, request_of):
    cluster.run("scontrol", "shutdown", "slurmctld")
    client = SlurmClient(cluster.environment)
    text = cluster.conf.read_text()
    try:
        _restart(cluster, text + "MaxJobCount=2\n")
        started = time.monotonic()
        # 22.05 answers EAGAIN, which sbatch reads as: not now.
        with pytest.raises(
            (LimitReached, SlurmBusy), match="job queue full|temporarily unable to accept job"
        ):
            for _ in range(4):
                client.submit(request_of(hold=""))
        assert time.monotonic() - started < 10
    finally:
        cluster.cancel_all()
        cluster.stop_controller()
        _restart(cluster, text)


def _restart(cluster: SlurmCluster, conf: str) -> None:
    cluster.stop_controller()
    cluster.conf.write_text(conf)
    cluster.start_controller()


def test_without_munge_slurm_is_not_installed(cluster, request_of, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text(cluster.conf.read_text().replace("/munge/socket", "/munge/nothing"))
    (tmp_path / "gres.conf").touch()
    client = SlurmClient({**cluster.environment, "SLURM_CONF": str(conf)})
    for ask in (client.jobs, lambda: client.submit(request_of())):
        with pytest.raises(SlurmNotInstalled, match="(?i)munge|auth"):
            ask()


def test_without_slurm_conf_slurm_is_not_installed(cluster, tmp_path):
    environ = {**cluster.environment, "SLURM_CONF": str(tmp_path / "none.conf")}
    started = time.monotonic()
    with pytest.raises(SlurmNotInstalled, match="none.conf"):
        SlurmClient(environ).jobs()
    assert time.monotonic() - started < 10
