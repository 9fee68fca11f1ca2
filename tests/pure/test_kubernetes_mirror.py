"""What is kept of an API server's objects is what there is, whatever happens to the stream of changes."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from elasticflow_kubernetes.client import ObjectKind
from elasticflow_kubernetes.errors import ApiBusy, ApiRefused, Stale
from elasticflow_kubernetes.mirror import Mirror

TIMEOUT_S = 10.0


def named(name: str, uid: str = "", version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid or f"uid of {name}", "resourceVersion": str(version)}}


def raw(thing: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(thing))


class Api:
    """Answers as the test has put down; a list and a stream of changes each take what comes next."""

    def __init__(self) -> None:
        self.lists: queue.Queue[list[dict[str, Any]] | Exception] = queue.Queue()
        self.events: queue.Queue[tuple[str, dict[str, Any]] | Exception | None] = queue.Queue()
        self.asked: queue.Queue[str] = queue.Queue()
        """Versions from which on changes were asked for; "": a list."""

    def listed(self, kind: ObjectKind) -> tuple[list[msgspec.Raw], str]:
        self.asked.put("")
        answer = self.lists.get()
        if isinstance(answer, Exception):
            raise answer
        return [raw(each) for each in answer], "100"

    def changes(self, kind: ObjectKind, version: str) -> Iterator[tuple[str, msgspec.Raw]]:
        self.asked.put(version)
        while (event := self.events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event[0], raw(event[1])


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def changes() -> queue.Queue[None]:
    return queue.Queue()


@pytest.fixture
def mirror(api: Api, changes: queue.Queue[None]) -> Iterator[Mirror[bytes]]:
    api.lists.put([named("a"), named("b")])
    client: Any = api
    made = Mirror(client, ObjectKind.PODS, bytes, lambda: changes.put(None))
    changes.get(timeout=TIMEOUT_S)
    yield made
    made.close()
    api.events.put(("BOOKMARK", named("")))


def names(mirror: Mirror[bytes]) -> list[str]:
    return sorted(mirror.items(TIMEOUT_S))


def test_changes_come_one_by_one(mirror: Mirror[bytes], api: Api, changes: queue.Queue[None]) -> None:
    assert names(mirror) == ["a", "b"]
    for change, thing, then in (
        ("ADDED", named("c"), ["a", "b", "c"]),
        ("MODIFIED", named("a", version=7), ["a", "b", "c"]),
        ("DELETED", named("b"), ["a", "c"]),
    ):
        api.events.put((change, thing))
        changes.get(timeout=TIMEOUT_S)
        assert names(mirror) == then
    assert b'"7"' in mirror.items(TIMEOUT_S)["a"]


def test_a_stream_that_ends_goes_on_where_it_was(
    mirror: Mirror[bytes], api: Api, changes: queue.Queue[None]
) -> None:
    api.events.put(("BOOKMARK", named("", version=107)))
    api.events.put(None)
    api.events.put(("ADDED", named("c")))
    changes.get(timeout=TIMEOUT_S)
    assert names(mirror) == ["a", "b", "c"]
    assert [api.asked.get(timeout=TIMEOUT_S) for _ in range(3)] == ["", "100", "107"]


@pytest.mark.parametrize("error", [Stale("too old"), ApiBusy("away")])
def test_what_was_missed_is_listed_anew(
    mirror: Mirror[bytes], api: Api, changes: queue.Queue[None], error: Exception
) -> None:
    api.lists.put([named("b"), named("d")])
    api.events.put(error)
    if isinstance(error, ApiBusy):
        changes.get(timeout=TIMEOUT_S)  # that nobody answers is news, too
    changes.get(timeout=TIMEOUT_S)
    assert names(mirror) == ["b", "d"]


def test_as_long_as_nobody_answers_nothing_is_known(
    mirror: Mirror[bytes], api: Api, changes: queue.Queue[None]
) -> None:
    api.events.put(ApiRefused("not you"))
    changes.get(timeout=TIMEOUT_S)
    with pytest.raises(ApiRefused, match="not you"):
        mirror.items(TIMEOUT_S)


def test_what_was_just_made_is_there_at_once_and_once_gone_stays_so(
    mirror: Mirror[bytes], api: Api, changes: queue.Queue[None]
) -> None:
    mirror.add(bytes(raw(named("c"))))
    assert names(mirror) == ["a", "b", "c"]
    api.events.put(("DELETED", named("c")))
    changes.get(timeout=TIMEOUT_S)
    mirror.add(bytes(raw(named("c"))))  # its answer came late
    assert names(mirror) == ["a", "b"]
    mirror.add(bytes(raw(named("c", uid="another"))))
    assert names(mirror) == ["a", "b", "c"]


def test_a_list_that_was_asked_for_before_may_lack_it(
    mirror: Mirror[bytes], api: Api, changes: queue.Queue[None]
) -> None:
    api.events.put(Stale("too old"))
    assert [api.asked.get(timeout=TIMEOUT_S) for _ in range(3)] == ["", "100", ""]
    mirror.add(bytes(raw(named("c"))))
    api.lists.put([named("a")])
    changes.get(timeout=TIMEOUT_S)
    assert names(mirror) == ["a", "c"]


def test_one_that_cannot_be_read_is_left_out(api: Api) -> None:
    api.lists.put([named("a"), named("b")])

    def read(answer: bytes) -> str:
        if b'"a"' in answer:
            raise msgspec.DecodeError("it is of another version")
        return "well"

    client: Any = api
    mirror = Mirror(client, ObjectKind.PODS, read)
    assert mirror.items(TIMEOUT_S) == {"b": "well"}
    mirror.close()
    api.events.put(None)
