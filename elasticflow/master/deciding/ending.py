"""How a run comes to its end: with a last checkpoint, where it stands, or at once."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.master.actions import Action, CutAction, EndAction, NoteAction, QuitAction, RememberAction
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.events import StopEvent
from elasticflow.master.members import RunState
from elasticflow.master.row import Start

CLOSE_S = 60.0
"""The last version of a run that ends where it stands may take so long, beyond the storage's patience."""


def close_s(run: Facts) -> float:
    return run.config.storage_patience_s + CLOSE_S


def is_worth_writing(run: Facts, start: Start) -> bool:
    """Whether a run that ends at this point has to commit it: else that is done, or cannot be."""
    assert run.schedule
    new = start.source == "memory" and start.tick > (run.committed_tick or 0)
    return new and run.schedule.may_cut(start.tick)


def fail(run: Facts, text: str, now_s: float, detail: str = "") -> list[Action]:
    """Of a run that cannot go on: what its servers have made since the last checkpoint is kept.

    At once, where nothing is known that is new. Nothing more, if it is about to end already.
    """
    if run.conclusion.closing:
        return []
    if run.version <= (run.committed_tick or 0):
        return end(run, RunState.FAILED, text, detail)
    closes = close(run, RunState.FAILED, text, now_s, detail)
    note = NoteAction("fault", f"{text.rstrip('.')}: a last checkpoint, then the end")
    return closes if run.ended else [*closes, note]


def close(run: Facts, state: RunState, text: str, now_s: float, detail: str = "") -> list[Action]:
    """Ends the run with the version that there is, without the step that is not made.

    Once this event is dealt with its servers are halted, and write it: see ``generations.go_on_closing``.
    """
    run.conclusion.closing, run.conclusion.close_by_s = (state, text), now_s + close_s(run)
    run.conclusion.detail = detail
    if run.state is RunState.STARTING or run.spec is None:
        return end_closed(run)
    run.state, run.conclusion.stop_reason = RunState.FINISHING, run.conclusion.stop_reason or text
    run.conclusion.halts = True
    return [RememberAction()]  # another master could not tell why the servers write their last


def why_lost(run: Facts, start: Start) -> str:
    """Of a run that ends where it stands, why that is not committed; "": it is, or nothing is new."""
    assert run.schedule
    if run.version <= (run.committed_tick or 0):
        return ""
    if start.source == "memory" and not run.schedule.may_cut(start.tick):
        return "it ends in the middle of an evaluation, of which there is no checkpoint"
    return "no server is left that has what is new"


def end_closed(run: Facts, but: str = "") -> list[Action]:
    """but: why what is new could not be kept."""
    assert run.conclusion.closing
    state, text = run.conclusion.closing
    text += f"; {but}" if but else ""
    if run.schedule and state is not RunState.FAILED:  # there the way back is told at length
        total, done = run.schedule.total_steps, run.schedule.steps_before(run.committed_tick or 0)
        text += f": {total - done} of {total} steps are missing, go on with --resume"
    return end(run, state, text, run.conclusion.detail)


def end_short(run: Facts, why: str) -> list[Action]:
    """Before all is done, or committed."""
    state = RunState.DIVERGED if run.divergence.ends_run else RunState.STOPPED
    reason = run.conclusion.stop_reason
    text = f"{reason}, but {why}" if reason and reason != why else why
    if run.schedule:
        total, done = run.schedule.total_steps, run.schedule.steps_before(run.committed_tick or 0)
        text += f": {total - done} of {total} steps are missing, go on with --resume"
    return end(run, state, text)


def stopped_early(run: Facts, version: int) -> str:
    """For people, of a run that ends with this version, since an evaluation has decided so."""
    standing = run.standings.at(version)
    assert run.schedule and standing
    done, total = run.schedule.steps_before(version), run.schedule.total_steps
    return f"stopped early, after {done} of {total} steps: {standing.why_stopped()}"


def failed_to_say(run: Facts, version: int) -> str:
    """Why a run ends with this version, which is committed: its ``on_epoch`` raised. "": it did not."""
    standing = run.standings.at(version)
    if standing is None or not standing.error or not standing.stops(version):
        return ""
    assert run.schedule
    done, total = run.schedule.steps_before(version), run.schedule.total_steps
    return f"{standing.error}; {done} of {total} steps are done and kept, go on with --resume --program FILE"


def end_as_decided(run: Facts, version: int) -> list[Action]:
    """By what the evaluation has decided that made this version."""
    if text := failed_to_say(run, version):
        return end(run, RunState.FAILED, text)
    return end(run, RunState.FINISHED, stopped_early(run, version))


def trained_enough(run: Facts) -> str:
    """Why no more steps are to be made, where that is an end as it was asked for."""
    return f"max_time of {run.config.max_time} is over"


def why_time_is_over(run: Facts) -> str:
    """Of its time limit and ``max_time``, the one that is over first."""
    limit_s, most_s = run.config.time_limit_s, run.config.max_time_s
    if most_s is not None and (limit_s is None or most_s <= limit_s):
        return trained_enough(run)
    return f"its time limit of {run.config.time_limit} is over"


def end_stopped(run: Facts) -> list[Action]:
    """With the last checkpoint, that of the step that was being made when no more were wanted."""
    reason = run.conclusion.stop_reason
    if reason != trained_enough(run) or run.divergence.ends_run:
        return end_short(run, reason)
    assert run.schedule
    total, done = run.schedule.total_steps, run.schedule.steps_before(run.committed_tick or 0)
    return end(run, RunState.FINISHED, f"{reason}: {done} of {total} steps are done")


def on_stop(run: Facts, event: StopEvent, now_s: float) -> list[Action]:
    if run.conclusion.stop_reason:
        return []
    run.conclusion.stop_reason = event.reason
    if run.state is RunState.STARTING:
        return end(run, RunState.STOPPED, f"{event.reason}, before the first step")
    if run.state is RunState.FINISHING:
        return []
    run.state = RunState.FINISHING
    note = NoteAction("info", f"{event.reason}: one last checkpoint")
    return [note, CutAction(run.row.leader, finish=True)] if not run.regrouping else [note]


def end(run: Facts, state: RunState, text: str, detail: str = "") -> list[Action]:
    run.state, run.conclusion.text = state, text
    quits: Sequence[Action] = [
        QuitAction(member.name, text) for role in ("worker", "server") for member in run.of(role)
    ]
    return [*quits, EndAction(state, text, detail)]


HANDLERS: Handlers = {
    StopEvent: on_stop,
}
