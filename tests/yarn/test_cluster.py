"""The ResourceManager's answers, as recorded from Hadoop 3.4.2, and what is made of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from elasticflow.cluster.clock import WallClock
from elasticflow.cluster.news import SizingNews
from elasticflow_yarn.cluster import (
    ResourceManager,
    YarnNode,
    YarnQueue,
    application_of,
    attempt_id,
    attempt_of,
    read_app,
    read_attempt,
    read_containers,
    read_makes_queues,
    read_nodes,
    read_queues,
    text_of_unknown,
)
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.errors import SkeinNotInstalled, YarnBusy, YarnRefused
from elasticflow_yarn.resources import Measure, Resources
from elasticflow_yarn.surroundings import Surroundings, View

ANSWERS = Path(__file__).parent / "answers"
APP = "application_1795300049947_0001"


def answer(name: str) -> dict[str, Any]:
    return dict(json.loads((ANSWERS / f"{name}.json").read_text()))


# --- what is read -----------------------------------------------------------------------------------


def test_nodes_have_what_they_have_in_all_and_what_is_free() -> None:
    nodes = read_nodes(answer("nodes"))
    assert len(nodes) == 3 and all(node.live for node in nodes)
    assert {node.total for node in nodes} == {Resources(8192, 16, 2)}
    assert nodes[0].address.startswith("localhost:") and nodes[0].address != nodes[0].id


def test_a_cluster_without_nodes_has_none() -> None:
    assert read_nodes({"nodes": None}) == [] and read_nodes({"nodes": ""}) == []


def test_queues_have_a_share_and_a_maximum_and_what_waits() -> None:
    train, prod = sorted(read_queues(answer("scheduler")), key=lambda queue: queue.name, reverse=True)
    assert (train.name, train.path, train.share.gpus, train.most.gpus) == ("train", "root.train", 1, 6)
    assert (prod.name, prod.path, prod.share.gpus, prod.most.gpus) == ("prod", "root.prod", 4, 6)
    assert train.used.gpus == 6 and train.is_called("train") and train.is_called("root.train")
    assert not train.is_called("rain")
    assert train.pending is not None and prod.pending is not None and prod.pending.gpus == 2


def test_queues_of_the_fair_scheduler() -> None:
    amount = {"memory": 1024, "vCores": 1}
    leaf = {
        "queueName": "root.users.anna",
        "usedResources": {"memory": 2048, "vCores": 2},
        "demandResources": {"memory": 8192, "vCores": 4},
        "steadyFairResources": {"memory": 4096, "vCores": 4},
        "maxResources": {"memory": 16384, "vCores": 16},
    }
    users = {"queueName": "root.users", "childQueues": {"queue": [leaf]}, "usedResources": amount}
    root = {"queueName": "root", "childQueues": {"queue": users}, "usedResources": amount}
    (queue,) = read_queues({"scheduler": {"schedulerInfo": {"type": "fairScheduler", "rootQueue": root}}})
    assert (queue.name, queue.path, queue.pending) == ("anna", "root.users.anna", Resources(6144, 2))
    assert queue.share == Resources(4096, 4)


def test_an_application_that_runs_and_one_that_is_over() -> None:
    app = read_app(answer("application"))
    assert (app.id, app.state, app.final, app.queue) == (APP, "RUNNING", "UNDEFINED", "root.train")
    assert app.started_at == 1795300139.164 and app.finished_at is None and not app.over and not app.begins
    over = read_app(answer("finished"))
    assert over.over and over.final == "SUCCEEDED" and over.diagnostics == "Shutdown requested by user."


def test_attempts_and_containers() -> None:
    assert read_attempt(answer("attempts")) == 1
    first, *_ = found = read_containers(answer("containers"))
    assert first == "container_1795300049947_0001_01_000001" and len(found) == 3
    assert read_attempt({}) == 0 and read_containers({}) == []


def test_ids() -> None:
    assert attempt_id(APP, 2) == "appattempt_1795300049947_0001_000002"
    assert attempt_of("container_1795300049947_0001_02_000003") == 2
    assert attempt_of("container_e17_1795300049947_0001_12_000003") == 12
    assert application_of("container_e17_1795300049947_0001_12_000003") == APP
    with pytest.raises(ValueError, match="no id of a container"):
        attempt_of("worker_3")


@pytest.mark.parametrize("broken", [{}, {"nodes": {"node": [{"id": "a"}]}}, {"nodes": {"node": [3]}}])
def test_an_answer_that_cannot_be_read_is_none(broken: dict[str, Any]) -> None:
    with pytest.raises(YarnBusy, match="cannot be read"):
        read_nodes(broken)


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        (Resources(2048, 1, 2), "2 GPUs, 2 GiB and 1 vcore"),
        (Resources(512, 4, 0), "512 MiB and 4 vcores"),
        (Resources(1536), "1.5 GiB"),
    ],
)
def test_resources_in_words(resources: Resources, text: str) -> None:
    assert str(resources) == text


# --- who has how much -----------------------------------------------------------------------------------


GPUS = Measure(True)


def view() -> View:
    return View(tuple(read_nodes(answer("nodes"))), tuple(read_queues(answer("scheduler"))))


def test_others_that_wait_for_what_is_theirs_press() -> None:
    own = view().queue("train")
    assert own is not None and view().free(GPUS) == 0
    found = view().pressure(own, GPUS, 1)
    assert found is not None and (found.lacking, found.excess) == (2, 5)
    assert found.text == "queue train uses 6 GPUs, its share is 1 GPU, queue prod waits for 2 GPUs"


def test_we_press_others_and_not_ourselves() -> None:
    own = view().queue("prod")
    assert own is not None and view().pressure(own, GPUS, 1) is None


def test_memory_counts_where_there_are_no_gpus() -> None:
    own = view().queue("train")
    assert own is not None and view().pressure(own, Measure(False), 128) is None
    assert Measure(False).text(1536) == "1.5 GiB" and Measure(False).of_text(512, 2048) == "0.5 of 2 GiB"


def seen(queue: dict[str, Any], user: str, in_queue: str, label: str = "") -> Surroundings:
    """What a run that asked for queue train finds, whose application is a user's, and in a queue."""
    found = read_queues({"scheduler": {"schedulerInfo": {"queueName": "root", "queues": {"queue": [queue]}}}})
    application = structs.replace(read_app(answer("application")), user=user, queue=in_queue)
    services = {"worker": Resources(1024, 1, 1), "server": Resources(512, 1)}
    config = YarnConfig(queue="train", node_label=label)
    around = Surroundings(config, services, SizingNews(), WallClock())
    first, *others = read_nodes(answer("nodes"))
    nodes = (structs.replace(first, labels=(label,)) if label else first, *others)
    around.viewed(View(nodes, tuple(found), app=application), 0.0)
    return around


def amounts(memory_mb: int, gpus: int) -> dict[str, Any]:
    counted = {"resourceInformation": [{"name": "yarn.io/gpu", "value": gpus}]}
    return {"memory": memory_mb, "vCores": 8, "resourceInformations": counted}


LIMITED = {
    "queueName": "shared",
    "minEffectiveCapacity": amounts(8192, 2),
    "maxEffectiveCapacity": {**amounts(24576, 6), "vCores": 64},
    "resourcesUsed": {**amounts(5120, 2), "vCores": 3},
    "users": {
        "user": {
            "username": "ann",
            "resourcesUsed": {**amounts(5120, 2), "vCores": 3},
            "userResourceLimit": amounts(8192, 2),
        }
    },
}


def test_what_a_queue_lets_one_user_have_is_why_a_run_stays_small() -> None:
    """The capacity scheduler's user-limit-factor, which is 1 where nobody sets it: the queue's share."""
    around = seen(LIMITED, "ann", "root.shared")
    has = "user ann has 2 GPUs, 5 GiB and 3 vcores of the 2 GPUs, 8 GiB and 8 vcores"
    assert around.fullness() == f"{has} that queue shared lets one user have, "
    assert not around.has_room("worker")
    elsewhere = seen(LIMITED, "ann", "root.shared", label="gpu").fullness()
    assert elsewhere == "0 of 2 GPUs are free on nodes with the label gpu, ", "the limits are of other nodes"
    used = {"partitionName": "", "used": amounts(4096, 1)}
    labelled = {"partitionName": "gpu", "used": amounts(4096, 1)}
    both = {**LIMITED["users"]["user"], "resources": {"resourceUsagesByPartition": [labelled, used]}}
    (queue,) = read_queues({"scheduler": {"schedulerInfo": {**LIMITED, "users": {"user": [both]}}}})
    assert queue.users[0].used == Resources(4096, 8, 1)
    by_memory = {"memory": 8192, "vCores": 1}  # of the DefaultResourceCalculator: one vcore of any limit
    both = {**LIMITED["users"]["user"], "userResourceLimit": by_memory}
    (queue,) = read_queues({"scheduler": {"schedulerInfo": {**LIMITED, "users": {"user": [both]}}}})
    assert queue.users[0].may_have(Resources(3072, 4)) and not queue.users[0].may_have(Resources(3073, 1))
    assert str(queue.users[0].most) == "8 GiB"
    other = seen(LIMITED, "bob", "shared")
    assert other.fullness().startswith("queue shared uses 2 of 6 GPUs, ")


def test_a_run_is_in_the_queue_into_which_somebody_has_moved_it() -> None:
    """``yarn application -movetoqueue``, or a rule of the site's by which queues are chosen."""
    own = seen(LIMITED, "ann", "root.shared").own
    assert own is not None and own.path == "root.shared"
    assert seen({**LIMITED, "queueName": "train"}, "ann", "root.shared").own is None


def queue(used: int, most: int, pending: int | None) -> YarnQueue:
    """In GiB."""
    known = None if pending is None else Resources(pending * 1024)
    amounts = (Resources(each * 1024) for each in (0, most, used))
    share, limit, taken = amounts
    return YarnQueue(name="q", path="root.q", share=share, most=limit, used=taken, pending=known)


@pytest.mark.parametrize(
    ("used", "pending", "forgotten"),
    [(0, 5, False), (0, 6, False), (0, 4, True), (0, 0, True), (0, None, False), (6, 0, False), (5, 0, True)],
)
def test_requests_that_a_queue_does_not_tell_of_are_forgotten_if_it_has_room(
    used: int, pending: int | None, forgotten: bool
) -> None:
    """The fair scheduler tells no more than what there is still room for."""
    asked = [Resources(2048), Resources(3072)]
    assert queue(used, 10, pending).forgets(asked) is forgotten


def test_there_is_room_where_a_node_and_the_queue_have_it() -> None:
    def node(state: str = "RUNNING", labels: tuple[str, ...] = (), free_mb: int = 1024) -> YarnNode:
        total, free = Resources(4096, 4), Resources(free_mb, 4)
        return YarnNode(id="n", address="n:1", state=state, total=total, available=free, labels=labels)

    asked, roomy = Resources(1024, 1), queue(5, 10, 0)
    roomy = structs.replace(roomy, most=Resources(10240, 8))
    assert View((node(),), ()).has_room(asked, roomy, "") and View((node(labels=("x",)),), ()).has_room(
        asked, roomy, "x"
    )
    for unfit in (node("LOST"), node(labels=("x",)), node(free_mb=1023)):
        assert not View((unfit,), ()).has_room(asked, roomy, "")
    assert not View((node(),), ()).has_room(asked, roomy, "x")
    assert not View((node(),), ()).has_room(asked, structs.replace(roomy, used=Resources(9217)), "")


# --- who is asked ---------------------------------------------------------------------------------------


@contextmanager
def serving(
    status: int, body: str, kind: str = "application/json;charset=utf-8"
) -> Iterator[tuple[str, list[str]]]:
    """An address at which everything is answered so, and what was asked there."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


STANDBY = "This is standby RM. The redirect url is: http://rm2:8088/ws/v1/cluster/nodes"


def test_of_several_the_one_that_is_active_answers_and_is_asked_first_from_then_on() -> None:
    text = (ANSWERS / "nodes.json").read_text()
    with serving(200, STANDBY, "text/plain") as (standby, refused), serving(200, text) as (active, asked):
        manager = ResourceManager([standby, active], "anna")
        assert len(manager.nodes()) == len(manager.nodes()) == 3
    assert refused == ["GET /ws/v1/cluster/nodes?user.name=anna"] and len(asked) == 2


def test_nobody_answers() -> None:
    with serving(200, "{}") as (gone, _):
        pass
    with serving(503, "no", "text/html") as (busy, _), pytest.raises(YarnBusy) as raised:
        ResourceManager([gone, busy], "anna").nodes()
    assert "Connection refused" in str(raised.value) and "503" in str(raised.value)


def test_whoever_may_not_ask_is_told() -> None:
    with serving(403, "{}") as (url, _), pytest.raises(YarnRefused, match="403 Forbidden: anna may not ask"):
        ResourceManager([url], "anna").nodes()


def test_what_is_unknown_is_none() -> None:
    with serving(404, (ANSWERS / "unknown.json").read_text()) as (url, _):
        manager = ResourceManager([url], "anna")
        assert manager.application("application_1_0001") is None
        assert manager.attempt("application_1_0001") == 0
        assert manager.containers("application_1_0001", 1) == []


def test_one_that_has_just_been_started_remembers_its_applications_only_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager, states = ResourceManager(["http://rm"], "anna"), ["INITIALIZING", "ACTIVE"]
    known: list[dict[str, Any]] = [{}, {}]

    def get(path: str, missing: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"clusterInfo": {"haState": states.pop(0)}} if path == "/info" else known.pop(0)

    monkeypatch.setattr(manager, "_get", get)
    with pytest.raises(YarnBusy, match="INITIALIZING"):
        manager.application(APP)
    known.append(answer("application"))  # it remembers them between the two questions
    found = manager.application(APP)
    assert found is not None and found.id == APP


def test_of_an_application_that_is_unknown_it_is_told_whether_yarn_began_anew_since() -> None:
    forgets = "is not known to YARN any more, which forgets applications"
    began, id = 1_700_000_000_000, "application_1700000000000_0001"
    assert text_of_unknown(id, {}) == text_of_unknown(id, {"startedOn": began}) == forgets
    assert text_of_unknown(id, {"startedOn": "today"}) == forgets
    anew = text_of_unknown(id, {"startedOn": began + 60_000})
    assert "ResourceManager began anew (2023-11-1" in anew and "yarn.resourcemanager.recovery.enabled" in anew


def test_an_unknown_queue_is_told_with_those_that_there_are() -> None:
    with serving(200, (ANSWERS / "scheduler.json").read_text()) as (url, _):
        with pytest.raises(YarnRefused, match="queue 'gpu' is unknown; there are train, prod"):
            ResourceManager([url], "anna").queue("gpu")


CAPACITY: dict[str, Any] = {"queueName": "root", "queues": {"queue": [{"queueName": "train"}]}}


@pytest.mark.parametrize(
    ("found", "is_made"),
    [
        (CAPACITY, False),
        ({**CAPACITY, "autoCreateChildQueueEnabled": False, "autoCreationEligibility": "off"}, False),
        ({"queueName": "root", "queues": {"queue": {**CAPACITY, "autoCreateChildQueueEnabled": True}}}, True),
        ({**CAPACITY, "autoCreationEligibility": "flexible"}, True),
        ({"type": "fairScheduler", "rootQueue": {"queueName": "root", "childQueues": None}}, True),
    ],
)
def test_a_queue_that_yarn_would_make_is_not_refused(found: dict[str, Any], is_made: bool) -> None:
    """Such as that of each user, which the fair scheduler makes with the first application, and removes."""
    answer = {"scheduler": {"schedulerInfo": found}}
    assert read_makes_queues(answer) is is_made
    with serving(200, json.dumps(answer)) as (url, _):
        manager = ResourceManager([url], "anna")
        if is_made:
            assert manager.queue("root.users.anna") is None
            return
        with pytest.raises(YarnRefused, match="is unknown; there are train"):
            manager.queue("root.users.anna")


def test_a_container_is_signalled() -> None:
    with serving(200, "{}") as (url, asked):
        ResourceManager([url], "anna").signal("container_1_0001_01_000002")
    path = "/ws/v1/cluster/containers/container_1_0001_01_000002/signal/GRACEFUL_SHUTDOWN"
    assert asked == [f"POST {path}?user.name=anna"]


def test_without_an_address_there_is_nobody_to_ask() -> None:
    with pytest.raises(SkeinNotInstalled, match="yarn.resourcemanager.hostname"):
        ResourceManager([], "anna")
