"""How the jobs of a run are told from all others: by their comments.

Ids will not do: a slurmctld that was killed gives one that it has forgotten to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from elasticflow_slurm.client import SlurmJob
from elasticflow_slurm.command_line import SlurmClient

MARK = "elasticflow"
LEADER = "leader"


class Comment(NamedTuple):
    """run: the run's id. member: such as worker-3, or ``LEADER``. run_dir: the leader's alone has it."""

    run: str
    member: str
    run_dir: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (MARK, *self)))


def read(text: str) -> Comment | None:
    """None: it is no comment of ours."""
    mark, _, rest = text.partition(" ")
    run, _, rest = rest.partition(" ")
    member, _, run_dir = rest.partition(" ")
    return Comment(run, member, run_dir) if mark == MARK and run and member else None


def jobs_of(run: str, jobs: Iterable[SlurmJob]) -> list[tuple[str, SlurmJob]]:
    """The jobs of a run, with their members' names; every component of the leader's is one."""
    found = [(comment, job) for job in jobs if (comment := read(job.comment))]
    return [(comment.member, job) for comment, job in found if comment.run == run]


def cancel_jobs(client: SlurmClient, run: str, *, but_for: str = "") -> None:
    """Ends all jobs of a run, but for those of one name. Raises SlurmError."""
    left = [job.address for name, job in jobs_of(run, client.jobs()) if name != but_for and not job.over]
    if left:
        client.cancel(left)
