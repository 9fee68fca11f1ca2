"""Workers that bring nothing are given back, and tried again much later: see ``master.gain``."""

from __future__ import annotations

from elasticflow.master.actions import Action, ResizedAction
from elasticflow.master.deciding import planning, staffing
from elasticflow.master.deciding.facts import Facts
from elasticflow.master.gain import Finding
from elasticflow.master.members import RunState


def check(run: Facts, now_s: float) -> list[Action]:
    """Sees who is there, and whether it is time to try more."""
    gain, usual = run.staff.gain, run.steps and run.state is RunState.RUNNING
    rested = gain.settle(run.num_ready, now_s) if usual else gain.give_up(now_s)
    actions = planning.replan(run) if rested else []
    if now_s >= gain.grow_s:
        gain.grow()
        most = min(2 * run.staff.target, run.config.worker_range[1])
        actions += resize(run, most, "whether more workers help by now is tried again", now_s)
    return actions


def made(run: Facts, before: int, now_s: float) -> list[Action]:
    """A newer version than ``before`` is there."""
    if run.schedule is None or run.state is not RunState.RUNNING:
        return []
    usual = not any(map(run.schedule.evaluates, range(before, run.version)))
    if usual and not run.schedule.is_between_steps(run.version):
        return []  # a pace is that of whole steps: their ticks take different times
    done = run.schedule.steps_before(run.version)
    found = run.staff.gain.made(done, run.schedule.total_steps - done, usual, now_s)
    if isinstance(found, Finding):
        return [*planning.replan(run), *resize(run, found.fewer, found.text, now_s)]
    return planning.replan(run) if found else []


def resize(run: Facts, target: int, reason: str, now_s: float) -> list[Action]:
    old, run.staff.target, run.staff.reason = run.staff.target, target, reason
    if target == old:
        return []
    return [ResizedAction(old, target, reason), *staffing.size(run, now_s), *staffing.relieve(run, now_s)]
