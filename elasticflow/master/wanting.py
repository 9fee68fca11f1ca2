"""How many workers people, or a service, want a run to have."""

from __future__ import annotations

from elasticflow.cluster.contract import Backend
from elasticflow.master.events import ScaleEvent
from elasticflow.master.state import MasterState
from elasticflow.wire.messages import Grant, Situation


def refusal(state: MasterState, workers: int) -> str:
    """Why people cannot have so many; "": they can."""
    most = state.config.num_slices
    if state.staff.grant:
        return f"a service grants this run its workers, now {state.target}: {state.reason}."
    if not 1 <= workers <= most:
        return f"workers must be from 1 to {most}, the number of slices of a batch, not {workers}."
    return ""


def news_of(state: MasterState, grant: Grant) -> ScaleEvent | None:
    """A service's grant is told again and again; None: it is the one that is known."""
    if grant.number == state.staff.grant:
        return None
    workers = max(1, min(grant.workers, state.config.num_slices))
    return ScaleEvent(workers, f"granted: {grant.why}", grant.number)


def situation(state: MasterState, backend: Backend) -> Situation:
    """What a service is told of the run."""
    schedule = state.schedule
    return Situation(
        number=state.staff.grant,
        workers=max(len(state.of("worker")), backend.num_worker_places),
        ready=state.num_ready,
        step=schedule.steps_before(state.version) if schedule else 0,
        steps=schedule.total_steps if schedule else 0,
    )
