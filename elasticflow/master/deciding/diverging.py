"""Numbers that are none: the step that ends the run, steps that are left out, costs that are odd."""

from __future__ import annotations

from math import isfinite

from elasticflow.master.actions import Action, InspectAction, NoteAction
from elasticflow.master.deciding import ending
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.divergence import step_of
from elasticflow.master.events import StopEvent
from elasticflow.master.members import MemberState, RunState
from elasticflow.wire.messages import Diverged, Inspected, Progress, Skipped


def on_diverged(run: Facts, event: Diverged, now_s: float) -> list[Action]:
    if event.generation != run.row.generation or event.name not in run.row.holders or not run.schedule:
        return []
    here = {member.name for member in run.of("worker", MemberState.READY)}
    shares = [share for share in run.plan if share.worker in here]
    asked = run.divergence.told(event, shares, now_s)
    asks = [InspectAction(name, event.tick, tuple(slices)) for name, slices in asked.items()]
    return [*asks, *diverge(run, now_s)]


def on_inspected(run: Facts, event: Inspected, now_s: float) -> list[Action]:
    run.divergence.answered(event)
    return diverge(run, now_s)


def diverge(run: Facts, now_s: float) -> list[Action]:
    """Ends the run, once there is no more to be found out."""
    if run.schedule is None or now_s < divergence_ends_s(run):
        return []
    return ending.end(run, RunState.DIVERGED, run.divergence.text(run.schedule, run.committed_tick))


def divergence_ends_s(run: Facts) -> float:
    here = [member.name for member in run.of("worker", MemberState.READY)]
    return run.divergence.ends_s(here, run.commits)


def on_skipped(run: Facts, event: Skipped, now_s: float) -> list[Action]:
    known = event.generation == run.row.generation and event.name in run.members
    if not known or not run.schedule or event.tick >= run.schedule.total_ticks:
        return []
    if not run.divergence.skip(event):
        return []
    what = step_of(run.schedule, event.tick)
    what = f"slice {event.slice} of {what}" if event.slice >= 0 else what
    note = NoteAction("fault", f"{what} is left out: there are NaNs or infinite numbers in its gradient")
    most = run.config.max_skipped_steps
    over = run.conclusion.stop_reason or run.ended or run.state is RunState.STARTING
    if len(run.divergence.skipped) <= most or over:
        return [note]
    # Also of a run that is done by now: who allows so many does not take a model with more for a good one.
    run.divergence.ends_run = True
    many = f"more than {most} steps had to be left out (max_skipped_steps), the last was {what}"
    return [note, *ending.on_stop(run, StopEvent(many), now_s)]


def note_cost(run: Facts, event: Progress) -> list[Action]:
    """A warning, once, of a cost that is none while gradients are finite: steps go on."""
    if run.divergence.odd_cost or event.loss is None or isfinite(event.loss):
        return []
    run.divergence.odd_cost = True
    text = "the cost of a step is not finite; as long as the gradients are, the steps go on"
    return [NoteAction("warning", text)]


HANDLERS: Handlers = {
    Diverged: on_diverged,
    Inspected: on_inspected,
    Skipped: on_skipped,
}
