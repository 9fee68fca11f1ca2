"""What members are told of a decision: who, and by which message. All other actions are the process's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elasticflow.master import actions as ac
from elasticflow.wire.messages import (
    Attempt,
    Cut,
    Drain,
    Finish,
    FromMaster,
    Halt,
    Inspect,
    Look,
    Pause,
    Plan,
    Quarantine,
    Quit,
    Settled,
)

ORDERS: dict[type, Callable[[Any], tuple[Sequence[str], FromMaster]]] = {
    ac.HaltAction: lambda it: ([it.name], Halt(generation=it.generation)),
    ac.PlanAction: lambda it: (it.servers, Plan(number=it.number, shares=it.shares)),
    ac.DrainAction: lambda it: ([it.name], Drain()),
    ac.CutAction: lambda it: ([it.name], Finish() if it.finish else Cut()),
    ac.PauseAction: lambda it: ([it.name], Pause()),
    ac.SettledAction: lambda it: (it.names, Settled(tick=it.tick)),
    ac.QuarantineAction: lambda it: (it.names, Quarantine(excluded=it.excluded)),
    ac.AttemptAction: lambda it: (it.names, Attempt(tick=it.tick, slice=it.slice, careful=it.careful)),
    ac.InspectAction: lambda it: ([it.name], Inspect(tick=it.tick, slices=it.slices)),
    ac.LookAction: lambda it: (it.names, Look(number=it.number)),
    ac.QuitAction: lambda it: ([it.name], Quit(reason=it.reason)),
}
"""By kind of action: (names, message)."""
