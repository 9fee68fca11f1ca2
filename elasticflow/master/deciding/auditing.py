"""Slices that are computed twice (``audit: N``): if the results differ, nothing of the run can be trusted."""

from __future__ import annotations

from elasticflow.master.actions import Action
from elasticflow.master.deciding import ending
from elasticflow.master.deciding.facts import Facts, Handlers
from elasticflow.master.members import RunState
from elasticflow.wire.messages import Audited


def on_audited(run: Facts, event: Audited, now_s: float) -> list[Action]:
    found = run.agreed.audits.hear(event)
    if found is None or run.ended:
        return []
    step = run.schedule.at(found.tick).step if run.schedule else 0
    hosts = {member.name: member.host for member in run.members.values()}
    who = [f"{name} on {hosts[name]}" if hosts.get(name) else name for name in (found.first, found.second)]
    by = f"{who[0]}, twice" if found.first == found.second else " and ".join(who)
    text = (
        f"audit: slice {found.slice} of step {step} was computed by {by}, and gave other gradients. Either "
        "memory or arithmetic fails there, or forward() follows from more than records, params and its seed "
        f"(the time, the process, files). {run.agreed.audits.equal} slices before were computed twice and "
        "were the same. Do not trust this run's checkpoints of later steps than the last of those."
    )
    return ending.end(run, RunState.BROKEN, text)


HANDLERS: Handlers = {
    Audited: on_audited,
}
