"""What really happened to a service, from its journal, and the same as jobs and a world for the simulator.

Pure but for reading the files: it claims no term, so a service that is running is not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticflow.errors import RunError
from elasticflow.scheduler.capacity import Capacity
from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.jobs import Job
from elasticflow.scheduler.schedule import Outage
from elasticflow.service import happenings as hp
from elasticflow.service.journal import FILES, JournalFiles, ServiceRules, Turn, chapter_id, told_again
from elasticflow.service.learned import believed, sizes
from elasticflow.service.state import ServiceState, TaskStanding, Ticket


@dataclass(frozen=True)
class ServiceHistory:
    """state: as it was in the end. began_s: when the first thing happened, last_s: when the last one did.

    outages: of the policy's nodes, from ``began_s`` on; capacities: what was known of the share, likewise.
    """

    rules: ServiceRules
    state: ServiceState
    began_s: float
    last_s: float
    outages: tuple[Outage, ...]
    capacities: tuple[tuple[float, Capacity], ...]

    @property
    def shape(self) -> ClusterShape:
        """Of what was shared."""
        return self.state.policy.shape


@dataclass(frozen=True)
class DeadlineTally:
    """What became of deadlines: of how many, promised, met, promised and not met."""

    deadlines: int
    promised: int
    met: int
    late: int


def read_history(path: Path) -> ServiceHistory:
    """Of a service's folder, of a journal's, or of one file of it. Raises RunError, OSError."""
    if path.is_file():
        files, newest = JournalFiles(path.parent), chapter_id(path)
        if newest is None:
            raise RunError(
                f"{path}: is no journal; give a service's folder, its {FILES}/, or a TERM.jsonl there."
            )
    else:
        files = JournalFiles(path / FILES if (path / FILES).is_dir() else path)
        newest = files.newest()
    if newest is None:
        raise RunError(f"{path}: holds no journal of a service; 'elasticflow serve' writes one.")
    chapters = files.chapters(newest, all_kept=True)
    rules = chapters[0].opening.rules
    state = chapters[0].opening.begun(None)
    turns = [turn for chapter in chapters for turn in chapter.turns]
    times_s = [turn.now_s for turn in turns] + [ticket.handed_s for ticket in state.tickets.values()]
    if not times_s:
        raise RunError(f"{files.path(newest)}: nothing has happened yet.")
    began_s, last_s = min(times_s), max(times_s)
    down = [node for node, seen in state.nodes.items() if not seen.up]
    capacities = [(0.0, _from(state.share, began_s))] if state.foreseen or state.shared is not None else []
    tickets: dict[str, Ticket] = {}
    for chapter in chapters:
        tickets |= state.tickets
        state = chapter.opening.begun(state)
        for turn in chapter.turns:
            try:
                state.handle(turn.happened, turn.now_s)
            except Exception:
                if turn is not turns[-1]:
                    raise
                state = told_again([*chapters[:-1], chapter.but_last])  # it has never happened
                break
            if any(isinstance(one, (hp.Foreseen, hp.Shared)) for one in turn.happened):
                capacities.append((turn.now_s - began_s, _from(state.share, began_s)))
    state.tickets = tickets | state.tickets
    outages = _outages(turns, began_s, last_s, down)
    return ServiceHistory(rules, state, began_s, last_s, outages, tuple(capacities))


def _from(share: Capacity, began_s: float) -> Capacity:
    """With its times counted from there."""
    return Capacity(tuple(at_s - began_s for at_s in share.starts_s), share.num_gpus)


def jobs_of(history: ServiceHistory) -> tuple[list[Job], list[str]]:
    """All runs as jobs, from ``began_s`` on, with the speeds that were measured in the end; and the names of
    those of which too little is known. One that was cancelled, or failed, is what was done of it, and has no
    deadline: nobody knows what would have become of it."""
    jobs, unknown = [], []
    for name, ticket in history.state.tickets.items():
        job = _job(ticket, history.began_s)
        if job is None:
            unknown.append(name)
        else:
            jobs.append(job)
    return jobs, unknown


def happened(history: ServiceHistory) -> DeadlineTally:
    """To those whose end is known, and that came to it."""
    counted = [one for one in history.state.tickets.values() if _had_its_chance(one)]
    promised = [one for one in counted if one.promised_s is not None]
    met = [one for one in promised if _was_in_time(one)]
    return DeadlineTally(len(counted), len(promised), len(met), len(promised) - len(met))


def _had_its_chance(ticket: Ticket) -> bool:
    """It had a deadline, and nobody but time and the others has kept it from that."""
    if ticket.task.deadline_s is None:
        return False
    return ticket.standing is TaskStanding.REFUSED or ticket.state == "finished"


def _was_in_time(ticket: Ticket) -> bool:
    deadline_s, ended_s = ticket.by_s or ticket.task.deadline_s, ticket.ended_s
    return deadline_s is not None and ended_s is not None and ended_s <= deadline_s


def _job(ticket: Ticket, began_s: float) -> Job | None:
    task = ticket.task
    if not any(size in ticket.rates for size in sizes(task.most_workers)):
        return None
    whole = _had_its_chance(ticket) or ticket.state == "finished"
    steps = ticket.steps if whole else ticket.done
    if not steps:
        return None
    due_s = task.deadline_s if _had_its_chance(ticket) else None
    return Job(
        task.name,
        believed(ticket.rates, task.most_workers),
        float(steps),
        ticket.handed_s - began_s,
        None if due_s is None else due_s - began_s,
        requested_gpus=task.most_workers,
        model=task.kind,
        user=task.user,
        priority=task.priority,
        soft=() if due_s is None else tuple(task.soft),
    )


def _outages(turns: Sequence[Turn], began_s: float, last_s: float, down: Iterable[int]) -> tuple[Outage, ...]:
    """Nodes that were not there, by the policy's numbers. down: those that were not at the beginning."""
    since_s = dict.fromkeys(down, began_s)
    found = []
    for turn in turns:
        for one in turn.happened:
            if not isinstance(one, hp.NodeSeen):
                continue
            if not one.up:
                since_s.setdefault(one.node, turn.now_s)
            elif one.node in since_s:
                found.append(Outage(one.node, since_s.pop(one.node) - began_s, turn.now_s - began_s))
    found += [Outage(node, from_s - began_s, last_s - began_s) for node, from_s in since_s.items()]
    return tuple(
        sorted((one for one in found if one.end_s > one.start_s), key=lambda one: (one.start_s, one.node))
    )
