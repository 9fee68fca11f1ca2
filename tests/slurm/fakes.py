"""A SLURM that is a list of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from elasticflow_slurm.client import (
    JobAddress,
    JobRequest,
    Partition,
    Reservation,
    SlurmError,
    SlurmJob,
    SlurmNode,
)
from elasticflow_slurm.command_line import SlurmClient


class FakeClient(SlurmClient):
    """known: what it tells of jobs; past: what its accounting does. error: what it raises instead. asked: how
    often, by method; calls: those that change something, in their order. refusals: what such calls raise, by
    method."""

    def __init__(self, *known: SlurmJob) -> None:
        self.known = list(known)
        self.past: list[SlurmJob] = []
        self.nodes_known: list[SlurmNode] = []
        self.reserved: list[Reservation] = []
        self.error: SlurmError | None = None
        self.refusals: dict[str, SlurmError] = {}
        self.asked: Counter[str] = Counter()
        self.calls: list[tuple[object, ...]] = []

    def _ask(self, method: str) -> None:
        self.asked[method] += 1
        if self.error:
            raise self.error

    def _act(self, method: str, *arguments: object) -> None:
        self.calls.append((method, *arguments))
        self._ask(method)
        if method in self.refusals:
            raise self.refusals[method]

    def version(self) -> tuple[int, int]:
        return 22, 5

    def submit(self, request: JobRequest) -> int:
        self._act("submit", request)
        return len(self.calls)

    def would_start_at(self, request: JobRequest) -> float:
        self._ask("would_start_at")
        return 0.0

    def jobs(self) -> list[SlurmJob]:
        self._ask("jobs")
        return list(self.known)

    def job(self, id: int) -> SlurmJob | None:
        self._ask("job")
        return next((job for job in self.known if job.id == id), None)

    def past_job(self, id: int) -> SlurmJob | None:
        self._ask("past_job")
        return next((job for job in self.past if job.id == id), None)

    def cancel(self, ids: Iterable[JobAddress]) -> None:
        self._act("cancel", list(ids))

    def requeue(self, id: JobAddress) -> None:
        self._act("requeue", id)

    def start_now(self, ids: Iterable[JobAddress]) -> None:
        self._act("start_now", list(ids))

    def set_comment(self, id: JobAddress, text: str) -> None:
        self._act("set_comment", id, text)

    def drained(self) -> set[str]:
        self._ask("drained")
        return set()

    def partitions(self) -> list[Partition]:
        names = sorted({node.partition for node in self.nodes_known})
        return [Partition(name=name, is_default=name == "cpu") for name in names]

    def nodes(self) -> list[SlurmNode]:
        self._ask("nodes")
        return list(self.nodes_known)

    def reservations(self) -> list[Reservation]:
        self._ask("reservations")
        return list(self.reserved)
