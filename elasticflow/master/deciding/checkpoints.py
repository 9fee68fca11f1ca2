"""Progress, and checkpoints: parts that are written, what is committed, and moves that wait for one."""

from __future__ import annotations

from collections.abc import Iterable

from elasticflow.master.actions import (
    Action,
    CommitAction,
    HandOverAction,
    NoteAction,
    PruneAction,
    SettledAction,
)
from elasticflow.master.deciding import diverging, ending, gaining, generations, moving
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.events import CommittedEvent, LimitEvent
from elasticflow.master.members import RunState
from elasticflow.master.row import Phase
from elasticflow.run.telling import TAKEN_OVER
from elasticflow.training.standing import WatchStanding, evaluations
from elasticflow.wire.messages import Progress, Troubled, Written


def on_progress(run: Facts, event: Progress, now_s: float) -> list[Action]:
    if not run.accepts(event):
        return []
    before = run.version
    if event.version > before:
        run.version = event.version
        run.failures.make_step(event.version)
    run.stall.made(run.version, now_s)
    run.quarantine.forget(run.version)
    notes = [*diverging.note_cost(run, event), *standings(run, event.standings)]
    if event.version == run.committed_tick and run.standings.stop(event.version):
        # It has been asked once more what it thinks of an evaluation that is committed.
        return [*notes, *ending.end_as_decided(run, event.version)]
    if event.last and was_asked_at_start(run, event.version):
        return [*notes, *generations.halt_all(run, now_s)]
    if event.last:
        run.state, run.conclusion.last_made = RunState.FINISHING, True
    return [*notes, *gaining.made(run, before, now_s)] if run.version > before else notes


def was_asked_at_start(run: Facts, version: int) -> bool:
    """Whether servers began from this version, and ``on_epoch`` was still to be asked about it.

    Then not all of them have known in time that what they hold is the last one, and to be written.
    """
    assignment = run.agreed.assignment
    if assignment is None or assignment.standing is None or run.row.phase is not Phase.SERVING:
        return False
    return assignment.start_tick == version and assignment.standing.asks


def standings(run: Facts, told: Iterable[WatchStanding]) -> list[Action]:
    """What evaluations have decided; of what changes, a note."""
    assert run.schedule
    notes: list[Action] = []
    for standing in told:
        before = run.standings.at(standing.tick)
        if not run.standings.learn(standing) or before is None:
            continue
        begins = f"from step {run.schedule.steps_before(standing.tick)} on the learning rate is"
        plateau = standing.rules.plateau
        if plateau and standing.scale != before.scale:
            text = f"{plateau.metric} has gained nothing in {evaluations(plateau.patience)}"
            notes.append(NoteAction("info", f"{text}: {begins} times {standing.scale:g}"))
        if standing.lr is not None and (standing.lr, standing.factor) != (before.lr, before.factor):
            notes.append(NoteAction("info", f"on_epoch(): {begins} {standing.lr * standing.factor:g}"))
        elif standing.factor != before.factor:
            notes.append(NoteAction("info", f"on_epoch(): {begins} times {standing.factor:g}"))
    return notes


def on_written(run: Facts, event: Written, now_s: float) -> list[Action]:
    if not run.accepts(event):
        return []
    if run.commits.is_committed(event.tick):  # by servers of before, or that it is was not heard
        if event.last and (newest := run.commits.committed_tick) is not None:
            run.commits.end_with(newest)
            return committed(run, newest)
        return [SettledAction((event.name,), event.tick)]
    if event.error or event.part is None:
        return cut_failed(
            run, event.tick, event.last, f"{event.name} could not write its part: {event.error}"
        )
    notes = standings(run, [event.standing] if event.standing else [])
    parts = run.commits.written(event, run.row.holders)
    return [*notes, CommitAction(event.tick, parts)] if parts else notes


def on_troubled(run: Facts, event: Troubled, now_s: float) -> list[Action]:
    if event.name not in run.members:
        return []
    before = run.commits.troubles.pop(event.name, "")
    if not event.text:
        return [NoteAction("info", f"{event.name} can use the storage again")] if before else []
    run.commits.troubles[event.name] = event.text
    text = f"{event.name} cannot use the storage just now, and tries again: {event.text}"
    return [NoteAction("fault", text)]


def cut_failed(run: Facts, tick: int, last: bool, text: str) -> list[Action]:
    news, last = run.commits.give_up(tick, last)
    if not news:
        return []
    if last and run.conclusion.closing:
        return ending.end_closed(run, f"no checkpoint could be made of it: {text}")
    if last:
        return ending.end_short(run, f"the final checkpoint is missing: {text}")
    return [NoteAction("fault", f"a checkpoint failed: {text}"), *settled(run, tick)]


def settled(run: Facts, tick: int) -> list[Action]:
    return [SettledAction(tuple(run.row.holders), tick)]  # who wrote a part need not tell of it again


def on_committed(run: Facts, event: CommittedEvent, now_s: float) -> list[Action]:
    if event.error.endswith(TAKEN_OVER):  # whether it is the last or not: it is not to be gone on with here
        return ending.end(run, RunState.FAILED, event.error.partition(": ")[2])
    if event.error:
        return cut_failed(run, event.tick, False, event.error)
    if event.standing:  # the servers may have gone back since, and it may not have happened any more
        run.standings.hear(event.standing)
    # Who restores may be reading an older one: then the next commit removes that.
    actions: list[Action] = [] if run.row.phase is Phase.RESTORING else [PruneAction(event.tick)]
    actions += committed(run, event.tick)
    if run.ended:
        return actions
    return [*actions, *moving.settle(run, now_s, committed=True), *diverging.diverge(run, now_s)]


def ends_with(run: Facts, tick: int) -> bool:
    """Whether there is nothing more to be done, once this version is committed."""
    return run.schedule is not None and (tick == run.total_ticks or run.standings.stop(tick))


def committed(run: Facts, tick: int) -> list[Action]:
    last = run.commits.committed(tick)
    run.standings.settle(tick)
    assert run.schedule is not None
    total = run.schedule.total_steps
    if tick == run.total_ticks and run.divergence.ends_run:
        return ending.end(run, RunState.DIVERGED, run.conclusion.stop_reason)
    if ending.failed_to_say(run, tick):
        return ending.end_as_decided(run, tick)
    if tick == run.total_ticks:
        bound = " of max_steps" if total == run.config.max_steps else ""
        return ending.end(run, RunState.FINISHED, f"all {total} steps{bound} are done")
    if run.standings.stop(tick):
        return ending.end_as_decided(run, tick)
    if last and run.conclusion.closing:
        return ending.end_closed(run)
    if last:
        return ending.end_stopped(run)
    actions = settled(run, tick)
    if run.state is RunState.RUNNING and run.cuts.may_hand_over(tick):
        actions += hand_over(run, "all that was done is committed")
    return actions


def on_limit(run: Facts, event: LimitEvent, now_s: float) -> list[Action]:
    if run.cuts.move_by_s is not None:
        return []
    run.cuts.have_to_move(event.leave_s)
    if run.state is RunState.STARTING:
        return hand_over(run, "nothing was done yet")
    if run.state is RunState.RUNNING:
        run.cuts.order_for_move()
    return [NoteAction("info", "the time limit of master and servers is near: a checkpoint, then a move")]


def hand_over(run: Facts, why: str) -> list[Action]:
    run.cuts.hand_over()
    return [NoteAction("info", f"another master takes over; {why}"), HandOverAction()]


HANDLERS: Handlers = {
    Progress: on_progress,
    Written: on_written,
    Troubled: on_troubled,
    CommittedEvent: on_committed,
    LimitEvent: on_limit,
}
