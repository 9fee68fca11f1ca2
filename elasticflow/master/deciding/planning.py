"""The plan: which worker computes which slices, by who is ready and how fast each is."""

from __future__ import annotations

from msgspec.structs import replace

from elasticflow.master.actions import Action, PlanAction
from elasticflow.master.deciding.facts import Facts
from elasticflow.master.groups import DIRECT
from elasticflow.master.members import MemberState
from elasticflow.master.plan import Speed, make_plan
from elasticflow.master.row import Phase
from elasticflow.wire.messages import Share


def replan(run: Facts) -> list[Action]:
    """A new plan, if the workers that are ready are not those of the present one."""
    return tell_plan(run, run.balance.fitting(speeds(run)))


def speeds(run: Facts) -> list[Speed]:
    """Of the workers that are ready, without those that rest: see ``Gain``."""
    ready = run.of("worker", MemberState.READY)
    if (working := run.staff.gain.working) is not None:
        stays = {member.name for member in sorted(ready, key=lambda each: each.since_s)[:working]}
        ready = [member for member in ready if member.name in stays]
    # Neighbours in the plan share relays, which then have fewer sums to push on.
    ready.sort(key=lambda member: run.row.groups.get(member.name, DIRECT))
    return [Speed(member.name, member.slice_s) for member in ready]


def anew(run: Facts) -> tuple[Share, ...]:
    """A plan for the workers that are ready, whatever the present one is."""
    return make_plan(speeds(run), run.config.num_slices)


def follow_speeds(run: Facts, now_s: float) -> list[Action]:
    if run.row.phase is not Phase.SERVING or not run.balance.is_to_be_compared(now_s):
        return []
    return tell_plan(run, run.balance.follow(speeds(run), now_s))


def tell_plan(run: Facts, shares: tuple[Share, ...] | None) -> list[Action]:
    """None: the present plan is to stay."""
    if shares is None:
        return []
    run.balance.take(shares)
    if run.row.phase is not Phase.SERVING:
        return []
    run.balance.number += 1
    groups = run.row.groups
    told = tuple(replace(share, group=groups.get(share.worker, DIRECT)) for share in shares)
    return [PlanAction(run.balance.number, told, tuple(run.row.holders))]
