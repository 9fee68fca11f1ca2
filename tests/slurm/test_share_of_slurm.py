"""Which part of SLURM a service shares, and what of a run's own settings it leaves to the run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cluster.share import ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.folder import UNKNOWN, HostJob
from elasticflow.service.hands import Hands
from elasticflow.service.settings import read_service_config
from elasticflow_slurm.client import Reservation, SlurmJob, SlurmNode, SlurmRefused
from elasticflow_slurm.command_line import sorted_error
from elasticflow_slurm.comments import LEADER, Comment
from elasticflow_slurm.share import SlurmShare, beside, taken_of

from .fakes import FakeClient

OURS = {"partition": "gpu", "reservation": "ef"}


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
    client.reserved = [reserved("g4", "g9", name="ef", start=0.0, end=inf)]
    assert share(client, workers=[OURS]).nodes() == [ShareNode("g4", 2, taken=((-inf, 0.0),))]
    both = share(client, workers=[OURS, {"partition": "other"}]).nodes()
    assert both == [ShareNode("g4", 2)], "also without the reservation"
    client.reserved = [reserved("g4", name="ef", start=0.0, end=inf, flags=frozenset({"FLEX"}))]
    assert [each.name for each in share(client, workers=[OURS]).nodes()] == ["g1", "g2", "g3", "g4"]
    client.reserved = [reserved("g1", name="ef"), reserved("g3", name="ef2")]
    several = [{"partition": "gpu", "reservation": "ef,ef2"}]
    assert all(each.taken == () for each in share(client, workers=several).nodes()), "when is SLURM's to say"
    assert [each.name for each in share(client, workers=several).nodes()] == ["g1", "g3"], "no others"
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
    with pytest.raises(ConfigError, match="SLURM has no reservation ef; there is none"):
        share(client, workers=[OURS]).nodes()
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


def test_a_leader_of_which_nobody_wrote_down_the_id_is_found_by_its_comment(client: FakeClient) -> None:
    """Not one that is over, nor another run's; of components the first counts."""
    run = HostJob("slurm", UNKNOWN, "0123456789ab")
    leader, other = str(Comment(run.run, LEADER, "/runs/1")), str(Comment("fedcba987654", LEADER, "/runs/2"))
    client.known = [
        SlurmJob(id=7, comment=leader, state="CANCELLED", het=0, leader_id=7),
        SlurmJob(id=8, comment=other, state="PENDING"),
        SlurmJob(id=9, comment=str(Comment(run.run, "worker-1")), state="RUNNING"),
    ]
    assert share(client).leader_of(run) == ""
    for id in (10, 11):
        client.known.append(SlurmJob(id=id, comment=leader, state="PENDING", het=id - 10, leader_id=10))
    assert share(client).leader_of(run) == "10"


def test_no_run_is_to_blame_for_a_place_that_the_service_may_not_have(client: FakeClient) -> None:
    """Such as while its account is not there: it waits. A time limit may be a run's own, and is refused."""
    hands = Hands("slurm", share(client))
    for text, passes in (("Invalid qos specification", True), ("Requested time limit is invalid", False)):
        told = ConfigError(f"slurm.leader: {text}")
        told.__cause__ = sorted_error("sbatch", text, SlurmRefused)
        assert hands.passes(told) is passes
    hands.close()


def reserved(*nodes: str, start: float = 1e9, end: float = 1e9 + 3600, **more: Any) -> Reservation:
    return Reservation(name=more.pop("name", "upkeep"), start_at=start, end_at=end, nodes=nodes, **more)


def test_a_node_is_taken_while_it_is_in_a_reservation_that_is_not_the_shares(client: FakeClient) -> None:
    ef = reserved("g1", "g4", name="ef", start=0.0, end=2e9)
    client.reserved = [reserved("g1", "elsewhere"), ef]
    told = {each.name: each.taken for each in share(client, time="30").nodes()}
    assert told["g1"] == ((-1800.0, 2e9), (1e9 - 1800, 1e9 + 3600)) and told["g3"] == ()
    own = share(client, workers=[OURS], time="30", time_min="10").nodes()
    told = {each.name: each.taken for each in own}
    outside = ((-inf, 0.0), (2e9, inf))
    assert told["g1"] == ((1e9 - 600, 1e9 + 3600), *outside), "no more than ten minutes may be given"
    assert told["g4"] == outside


def test_without_a_limit_of_time_nothing_begins_any_more_where_a_reservation_is_to_come(
    client: FakeClient,
) -> None:
    client.reserved = [reserved("g1")]
    assert share(client).nodes()[0].taken == ((-inf, 1e9 + 3600),)


def test_the_shares_own_reservation_keeps_its_nodes_while_it_lasts() -> None:
    """Also where it comes again: nothing begins there in between."""
    daily = reserved("g1", start=1e9, end=1e9 + 3600, name="ef", flags=frozenset({"DAILY"}))
    away = beside(daily, 1e9)
    assert away[0] == (-inf, 1e9) and away[1][0] == 1e9 + 3600 and away[-1][1] == inf
    assert len(away) == 15 and all(start < end for start, end in away)
    flexible = msgspec.structs.replace(daily, flags=frozenset({"FLEX"}))
    assert beside(flexible, 1e9) == []


@pytest.mark.parametrize("turned", [1, -1])
def test_a_node_of_two_places_is_taken_while_neither_may_have_it(client: FakeClient, turned: int) -> None:
    """As one of a reservation by day and of another by night, whichever is named, or told of, first."""
    client.reserved = [
        reserved("g1", name="day", start=10.0, end=20.0),
        reserved("g1", name="night", start=20.0, end=30.0),
    ]
    places = [{"partition": "gpu", "reservation": name} for name in ("day", "night")]
    assert share(client, workers=places[::turned]).nodes() == [
        ShareNode("g1", 2, taken=((-inf, 10.0), (30.0, inf)))
    ]
    client.reserved, client.nodes_known = (
        client.reserved[:1],
        [node("g1", "gpu"), node("g1", "other")][::turned],
    )
    assert share(client, workers=[places[0], {"partition": "other"}]).nodes() == [ShareNode("g1", 2)]


def test_one_of_some_of_the_cpus_is_not_counted() -> None:
    nodes = [node("g1", "gpu"), node("g2", "gpu")]
    assert taken_of([reserved("g1", cpus=2)], set(), nodes, 0.0) == {}
    assert set(taken_of([reserved("g1", "g2", cpus=16)], set(), nodes, 0.0)) == {"g1", "g2"}


@pytest.mark.parametrize(
    ("flag", "days"),
    [
        ("DAILY", range(14)),
        ("WEEKLY", (0, 7)),
        ("WEEKDAY", (0, 1, 2, 3, 4, 7, 8, 9, 10, 11)),
        ("MAINT", (0,)),
    ],
)
def test_one_that_comes_again_is_planned_for_two_weeks(flag: str, days: Sequence[int]) -> None:
    """By local time, from a Monday."""
    monday = datetime(2026, 11, 23, 6)
    one = reserved("g1", start=monday.timestamp(), end=monday.timestamp() + 7200, flags=frozenset({flag}))
    taken = taken_of([one], set(), [node("g1", "gpu")], monday.timestamp() - 1)["g1"]
    assert [each[0] for each in taken] == [(monday + timedelta(days=day)).timestamp() for day in days]
    assert all(end - start == 7200 for start, end in taken)
