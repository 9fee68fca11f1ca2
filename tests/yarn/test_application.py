"""What Skein answers, and its errors, as ours."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import skein
from skein.exceptions import ApplicationError
from skein.exceptions import ConnectionError as NoConnection
from skein.exceptions import TimeoutError as TimedOut

from elasticflow_yarn.application import CALL_S, Application, Container
from elasticflow_yarn.errors import ApplicationGone, SkeinNotInstalled, YarnBusy, YarnError, YarnRefused
from elasticflow_yarn.resources import Resources

AT = datetime(2026, 11, 21, 22, 0, tzinfo=timezone.utc)


class Stub:
    """What Skein's client calls. seen: the time-outs."""

    def __init__(self) -> None:
        self.seen: list[float | None] = []

    def getContainers(self, request: Any, timeout: float | None = None) -> str:
        self.seen.append(timeout)
        return "answered"


class Client:
    """Skein's, as far as it is used. error: raised by every call."""

    id = "application_1795300049947_0001"

    def __init__(self, error: Exception | None = None) -> None:
        self._stub: Any = Stub()
        self.error = error
        self.kv: dict[str, bytes] = {}
        self.asked: list[Any] = []
        self.progress = -1.0

    def get_containers(self, services: Any = None, states: Any = None) -> list[Any]:
        self._answer("states", sorted(states))
        return [found("RUNNING"), found("REQUESTED", number=1)]

    def add_container(self, service: str, env: Any = None) -> Any:
        self._answer(service, env)
        return found("REQUESTED", number=2)

    def kill_container(self, id: str) -> None:
        self._answer("kill", id)

    def set_progress(self, fraction: float) -> None:
        self.progress = fraction

    def get_specification(self) -> Any:
        self._answer("specification", None)
        return skein.ApplicationSpec.from_dict(
            {
                "services": {
                    "worker": {
                        "instances": 3,
                        "resources": {"memory": "2 GiB", "vcores": 4, "gpus": 1},
                        "script": "true",
                    }
                },
                "master": {"script": "true"},
            }
        )

    def _answer(self, what: str, how: Any) -> None:
        self.asked.append((what, how))
        if self.error:
            raise self.error


def found(state: str, number: int = 0) -> Any:
    running = state == "RUNNING"
    return skein.model.Container(
        service_name="worker",
        instance=number,
        state=state,
        yarn_container_id="container_1_0001_01_000002" if running else "",
        yarn_node_http_address="node1:8042" if running else "",
        start_time=AT if running else None,
        finish_time=None,
        exit_message="",
    )


def test_containers_are_told_as_they_are_with_those_that_are_over() -> None:
    client = Client()
    running, requested = Application(client).containers()
    assert running == Container(
        id="worker_0",
        service="worker",
        state="RUNNING",
        yarn_id="container_1_0001_01_000002",
        node="node1:8042",
        started_at=AT.timestamp(),
    )
    assert (requested.id, requested.state, requested.over) == ("worker_1", "REQUESTED", False)
    assert client.asked == [("states", ["FAILED", "KILLED", "REQUESTED", "RUNNING", "SUCCEEDED", "WAITING"])]


def test_a_container_is_added_with_its_environment() -> None:
    client = Client()
    assert Application(client).add("worker", {"A": "b"}).id == "worker_2"
    assert client.asked == [("worker", {"A": "b"})]


def test_what_services_ask_for_is_as_the_specification_says() -> None:
    assert Application(Client()).services() == {"worker": Resources(2048, 4, 1)}


def test_how_many_containers_the_specification_asks_for() -> None:
    assert Application(Client()).instances() == {"worker": 3}


def test_progress_stays_within_what_skein_takes() -> None:
    client = Client()
    Application(client).set_progress(1.5)
    assert client.progress == 1.0


def test_every_call_has_a_time_out() -> None:
    client = Client()
    stub = client._stub
    Application(client)
    assert client._stub.getContainers(object()) == "answered"
    assert client._stub.getContainers(object(), timeout=None) == "answered"
    assert client._stub.getContainers(object(), timeout=3.0) == "answered"
    assert stub.seen == [CALL_S, CALL_S, 3.0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoConnection("Unable to connect to application"), ApplicationGone),
        (TimedOut("Unable to connect to application"), YarnBusy),
        (ApplicationError("java.lang.NullPointerException"), YarnError),
        (ValueError("Unknown service 'worker'"), YarnRefused),
    ],
)
def test_skeins_errors_are_ours(error: Exception, kind: type[YarnError]) -> None:
    with pytest.raises(YarnError) as raised:
        Application(Client(error)).add("worker", {})
    assert type(raised.value) is kind and raised.value.__cause__ is error


def test_an_error_without_words_says_where_to_look() -> None:
    with pytest.raises(YarnError, match=r"Skein: its ApplicationMaster failed .* application\.master\.log"):
        Application(Client(ApplicationError(""))).add("worker", {})


@pytest.mark.parametrize("error", [KeyError("worker_7"), ValueError("not running")])
def test_to_kill_what_is_not_there_does_nothing(error: Exception) -> None:
    client = Client(error)
    Application(client).kill("worker_7")
    assert client.asked == [("kill", "worker_7")]


def test_outside_of_a_container_there_is_no_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skein.core, "properties", SimpleNamespace(application_id=None))
    with pytest.raises(SkeinNotInstalled, match="no container of a Skein application"):
        Application.from_current()
