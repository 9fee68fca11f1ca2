"""Which part of SLURM a service shares, and what of a run's own settings it leaves to the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elasticflow.cluster.share import ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.folder import HostJob
from elasticflow.service.settings import read_service_config
from elasticflow_slurm.client import SlurmJob, SlurmNode
from elasticflow_slurm.comments import Comment
from elasticflow_slurm.share import SlurmShare

from .fakes import FakeClient


def node(name: str, partition: str, state: str = "idle", gpus: int = 2) -> SlurmNode:
    return SlurmNode(name=name, partition=partition, state=state, cpus=8, gpus=(("a100", gpus),))


def share(client: FakeClient | None = None, **section: Any) -> SlurmShare:
    section.setdefault("workers", [{"partition": "gpu"}])
    return SlurmShare(section, client or FakeClient())


@pytest.fixture
def client() -> FakeClient:
    client = FakeClient()
    client.nodes_known = [
        node("c1", "cpu", gpus=0),
        node("g1", "gpu"),
        node("g2", "gpu", "drained"),
        node("g3", "gpu", "idle*"),
        node("g4", "gpu", "reserved"),
        node("g4", "other"),
    ]
    return client


def test_its_nodes_are_those_of_its_partitions(client: FakeClient) -> None:
    assert share(client, cpus=2).nodes() == [
        ShareNode("g1", 2),
        ShareNode("g2", 2, "drained"),
        ShareNode("g3", 2, "", True),
        ShareNode("g4", 2, "reserved"),
    ]
    both = share(client, workers=[{"partition": "gpu"}, {"partition": "other"}]).nodes()
    assert both[-1] == ShareNode("g4", 2), "there it may be had"
    ours = share(client, workers=[{"partition": "gpu", "reservation": "ef"}]).nodes()
    assert ours[-1] == ShareNode("g4", 2)
    default = share(client, workers=[{}], gpus=0, cpus=3).nodes()
    assert default == [ShareNode("c1", 2)], "by its CPUs alone"


@pytest.mark.parametrize(
    ("section", "slots"),
    [({}, 2), ({"gpus": 2}, 1), ({"cpus": 8}, 1), ({"gpus": 0}, 8), ({"gpu_type": "h100"}, 0)],
)
def test_a_node_has_room_for_as_many_workers_as_its_gpus_and_cpus(
    client: FakeClient, section: dict[str, Any], slots: int
) -> None:
    assert share(client, **section).nodes()[0].slots == slots


def test_a_share_that_is_not_there_is_told_in_a_sentence(client: FakeClient) -> None:
    with pytest.raises(ConfigError, match="SLURM has no partition nope; there are cpu, gpu, other"):
        share(client, workers=[{"partition": "nope"}]).nodes()
    with pytest.raises(ConfigError, match="cannot count the nodes of a constraint"):
        share(client, workers=[{"partition": "gpu", "constraint": "a100&ib"}])
    with pytest.raises(ConfigError, match=r"slurm.*unknown field"):
        share(client, wokers=1)


def test_where_a_run_is_and_what_a_worker_has_is_the_services_to_say() -> None:
    of_service = share(gpus=1, leader={"partition": "cpu"}, poll_s=0.5, time="1:00:00")
    own = {"workers": [{"partition": "urgent"}], "gpus": 4, "mem": "64G", "time": "2:00:00", "setup": "x"}
    assert of_service.section_of(own) == {
        "workers": [{"partition": "gpu"}],
        "leader": {"partition": "cpu"},
        "gpus": 1,
        "poll_s": 0.5,
        "time": "2:00:00",
        "setup": "x",
    }


def test_what_workers_still_have_is_told_by_their_jobs() -> None:
    def job(id: int, run: str, member: str, state: str) -> SlurmJob:
        return SlurmJob(id=id, state=state, comment=str(Comment(run, member)))

    client = FakeClient(
        job(1, "ours", "leader", "RUNNING"),
        job(2, "ours", "worker-1", "COMPLETING"),
        job(3, "ours", "worker-2", "PENDING"),
        job(4, "ours", "worker-3", "CANCELLED"),
        job(5, "others", "worker-1", "RUNNING"),
    )
    assert share(client).num_places(HostJob("slurm", "1", "ours")) == 2


def test_the_file_that_people_begin_with() -> None:
    config = read_service_config(str(Path(__file__).parents[2] / "conf" / "service-slurm.yaml"))
    assert config.cluster == "slurm" and config.rules.cluster == "slurm"
    SlurmShare(config.section, FakeClient())
