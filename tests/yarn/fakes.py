"""An application and a ResourceManager that are not there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import count

import msgspec

from elasticflow_yarn.application import Application, Container
from elasticflow_yarn.cluster import App, ResourceManager, YarnNode, YarnQueue, text_of_unknown
from elasticflow_yarn.errors import YarnError
from elasticflow_yarn.resources import Resources

APP = "application_1700000000000_0001"
ROOM = Resources(65536, 16, 8)


def yarn_id(number: int, attempt: int = 1) -> str:
    return f"container_1700000000000_0001_{attempt:02}_{number:06}"


def node(address: str = "node1:8042", total: Resources = ROOM) -> YarnNode:
    return YarnNode(id=address, address=address, state="RUNNING", total=total, available=total)


def app(state: str, *, diagnostics: str = "", final: str = "UNDEFINED") -> App:
    return App(
        id=APP,
        user="anna",
        name="digits",
        queue="root.train",
        state=state,
        final=final,
        diagnostics=diagnostics,
    )


class FakeApplication(Application):
    """Requests are fulfilled at once, unless ``full``. error: every call raises it."""

    id = APP
    first: dict[str, int] = {}
    """What the specification asks for, see ``begin_with``."""

    def __init__(self) -> None:
        self.known: dict[str, Container] = {}
        self.env: dict[str, dict[str, str]] = {}
        self.kept: dict[str, str] = {}
        self.pages: list[str] = []
        self.progress = 0.0
        self.full = False
        self.error: YarnError | None = None
        self.add_error: YarnError | None = None
        self.put_error: YarnError | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self._numbers = count(2)

    def containers(self) -> list[Container]:
        self._answer()
        return list(self.known.values())

    def add(self, service: str, env: Mapping[str, str]) -> Container:
        self._answer()
        if self.add_error:
            raise self.add_error
        number = next(self._numbers)
        made = Container(id=f"{service}_{number}", service=service, state="REQUESTED")
        self.env[made.id] = dict(env)
        if not self.full:
            made = msgspec.structs.replace(made, state="RUNNING", yarn_id=yarn_id(number), node="node1:8042")
        self.known[made.id] = made
        return msgspec.structs.replace(made, state="REQUESTED", yarn_id="", node="")

    def begin_with(self, **first: int) -> None:
        """How many containers of each service there are from the start."""
        self.first = first
        for service, number in [(each, number) for each in first for number in range(first[each])]:
            made = Container(id=f"{service}_{number}", service=service, state="RUNNING", node="node1:8042")
            made = msgspec.structs.replace(made, yarn_id=yarn_id(next(self._numbers)))
            self.known[made.id] = made

    def kill(self, id: str) -> None:
        self._answer()
        if id in self.known and not self.known[id].over:
            self.end(id, "KILLED", "Killed by user request.")

    def end(self, id: str, state: str, words: str) -> None:
        self.known[id] = msgspec.structs.replace(self.known[id], state=state, words=words)

    def services(self) -> dict[str, Resources]:
        self._answer()
        return {"worker": Resources(2048, 2, 2), "server": Resources(1024, 1, 0)}

    def instances(self) -> dict[str, int]:
        self._answer()
        return self.first

    def put(self, key: str, value: str) -> None:
        self._answer()
        if self.put_error:
            raise self.put_error
        self.kept[key] = value

    def get_prefix(self, prefix: str) -> dict[str, str]:
        self._answer()
        return {key: value for key, value in self.kept.items() if key.startswith(prefix)}

    def add_page(self, route: str, target: str, title: str) -> None:
        self._answer()
        self.pages.append(route)

    def set_progress(self, fraction: float) -> None:
        self._answer()
        self.progress = fraction

    def _answer(self) -> None:
        assert self.hangs.wait(30.0)
        if self.error:
            raise self.error


class FakeManager(ResourceManager):
    """error: every call raises it."""

    def __init__(self, found: App | None = None, newest: int = 1) -> None:
        self.found, self.newest = found, newest
        self.all_nodes = [node()]
        self.all_queues = [
            YarnQueue(
                name="train",
                path="root.train",
                share=Resources(65536, 16, 4),
                most=ROOM,
                used=Resources(),
                pending=Resources(),
            )
        ]
        self.error: Exception | None = None
        self.makes = False
        self.calls = 0

    def nodes(self) -> list[YarnNode]:
        self._answer()
        return self.all_nodes

    def queues(self) -> list[YarnQueue]:
        self._answer()
        return self.all_queues

    def makes_queues(self) -> bool:
        self._answer()
        return self.makes

    def application(self, id: str) -> App | None:
        self._answer()
        return self.found

    def why_unknown(self, id: str) -> str:
        self._answer()
        return text_of_unknown(id, {})

    def attempt(self, id: str) -> int:
        self._answer()
        return self.newest

    def containers(self, id: str, attempt: int) -> list[str]:
        self._answer()
        return []

    def signal(self, container: str, signal: str = "GRACEFUL_SHUTDOWN") -> None:
        self._answer()

    def _answer(self) -> None:
        self.calls += 1
        if self.error:
            raise self.error
