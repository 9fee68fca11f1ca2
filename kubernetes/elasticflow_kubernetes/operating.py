"""What a controller does about an ElasticFlowJob: how it and its leader's Job are in, actions out. Pure."""

from __future__ import annotations

import msgspec

from elasticflow_kubernetes.jobs import COMPLETE, LeaderJob
from elasticflow_kubernetes.training import FAILED, FINALIZER, FINISHED, WAITING, TrainingJob


class Hold(msgspec.Struct, frozen=True):
    """It is not to vanish before its run has ended."""


class Release(msgspec.Struct, frozen=True):
    """It may vanish, and with it all that was its own."""


class Lead(msgspec.Struct, frozen=True):
    """A leader is to be made."""


class EndLeader(msgspec.Struct, frozen=True):
    """Its leader, which has not begun, is to be deleted."""


class Tell(msgspec.Struct, frozen=True):
    """Its status is to say so."""

    state: str
    message: str


Action = Hold | Release | Lead | EndLeader | Tell


def decide(training: TrainingJob, leader: LeaderJob | None) -> Action | None:
    """The next thing to do; None: nothing, until something changes. A leader that has begun does all else: it
    tells how the run is, and stops it where the object is being deleted."""
    is_kept = FINALIZER in training.metadata.finalizers
    own = leader if leader and training.metadata.uid in leader.owners else None
    if training.is_leaving:
        if own is None or own.over:
            return Release() if is_kept else None
        return None if own.is_up or training.has_begun or own.is_leaving else EndLeader()
    if training.over:
        return Release() if is_kept and (own is None or own.over) else None
    if not is_kept:
        return Hold()
    if leader is None:
        return Lead()
    if own is None:  # such as of one of that name that was deleted just now
        text = f"a Job called {leader.name} that is not its own has to go first"
        return None if training.status.get("message") == text else Tell(WAITING, text)
    if own.over:
        return Tell(FINISHED if own.state == COMPLETE else FAILED, own.text)
    return None if training.has_begun or training.state == WAITING else Tell(WAITING, "")
