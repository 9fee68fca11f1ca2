"""Which part of a YARN a service shares, and what of a run's own settings it leaves to the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.cluster.share import ShareNode
from elasticflow.errors import ConfigError
from elasticflow.run.folder import HostJob
from elasticflow.service.settings import read_service_config
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.share import YarnShare

from .fakes import APP, FakeManager, app, node


def share(manager: FakeManager | None = None, **section: Any) -> YarnShare:
    return YarnShare({"queue": "train", "memory": "8 GiB", **section}, manager or FakeManager())


@pytest.mark.parametrize(
    ("section", "slots"),
    [({}, 8), ({"gpus": 2}, 4), ({"gpus": 0}, 8), ({"memory": "20 GiB"}, 3), ({"vcores": 8}, 2)],
)
def test_a_node_has_room_for_as_many_workers_as_memory_cores_and_gpus(
    section: dict[str, Any], slots: int
) -> None:
    assert share(**section).nodes() == [ShareNode("node1:8042", slots)]


def test_nodes_that_are_gone_or_not_of_the_label_are_told() -> None:
    manager = FakeManager()
    manager.all_nodes = [
        msgspec.structs.replace(node("a"), labels=("gpu",)),
        node("b"),
        msgspec.structs.replace(node("c"), state="LOST"),
        node("d", Resources(1024, 1, 0)),
    ]
    assert [each.away for each in share(manager, node_label="gpu").nodes()] == [
        "",
        "has no label gpu",
        "lost",
        "has no label gpu",
    ]
    assert [each.away for each in share(manager).nodes()] == ["", "", "lost", ""]
    assert share(manager).nodes()[-1].slots == 0


def test_a_queue_that_is_not_there_or_takes_nothing() -> None:
    with pytest.raises(ConfigError, match="queue 'nope' is unknown; there are train"):
        share(queue="nope").nodes()
    stopped = FakeManager()
    stopped.all_queues = [msgspec.structs.replace(stopped.all_queues[0], state="STOPPED")]
    assert share(stopped).nodes() == [ShareNode("node1:8042", 8, "queue root.train is STOPPED")]


def test_a_queue_that_yarn_makes_with_the_first_run() -> None:
    manager = FakeManager()
    manager.makes = True
    assert share(manager, queue="root.users.anna").nodes() == [ShareNode("node1:8042", 8)]


def test_where_a_run_is_and_what_a_worker_has_is_the_services_to_say() -> None:
    own = {"queue": "mine", "memory": "64 GiB", "gpus": 4, "setup": "x"}
    assert share(gpus=1).section_of(own) == {"queue": "train", "memory": "8 GiB", "gpus": 1, "setup": "x"}


def test_what_is_left_of_a_run_are_the_containers_of_its_application(monkeypatch: pytest.MonkeyPatch) -> None:
    job, manager = HostJob("yarn", APP, "run"), FakeManager(app("RUNNING"))
    monkeypatch.setattr(manager, "containers", lambda id, attempt: ["am", "server", "worker"])
    assert share(manager).num_places(job) == 3
    for manager.found in (app("FINISHED"), None):
        assert share(manager).num_places(job) == 0


def test_the_file_that_people_begin_with() -> None:
    config = read_service_config(str(Path(__file__).parents[2] / "conf" / "service-yarn.yaml"))
    assert config.cluster == "yarn" and config.rules.cluster == "yarn"
    YarnShare(config.section, FakeManager())
