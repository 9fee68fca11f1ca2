"""How long a member is waited for that says nothing: pure."""

from __future__ import annotations

from elasticflow.master.members import Member, MemberState
from elasticflow.run.config import Config

DOUBT_S = 0.25
"""A server whose connection closed is given up if it is silent for this long beyond a heartbeat."""


def patience_ends_s(member: Member, config: Config, patience: int) -> float | None:
    """When a member that stays silent is no longer waited for; None if it may take its time.

    patience: how many times as long as ``suspect_s`` a server may be silent, see ``Failures``.
    """
    if member.state is MemberState.STARTING:
        if is_there(member):
            return member.heard_s + config.lost_s
        return None if member.placed_s is None else member.placed_s + config.start_s
    if member.state is MemberState.LOST:
        return member.since_s + config.suspect_s if member.role == "worker" else None
    if member.role == "server":
        silent_s = member.heard_s + silence_s(config, patience)
        doubt_s = patience * (config.heartbeat_s + DOUBT_S)
        return silent_s if member.doubted_s is None else min(silent_s, member.doubted_s + doubt_s)
    ready = member.state is MemberState.READY
    return member.heard_s + (config.suspect_s if ready else config.lost_s)


def silence_s(config: Config, patience: int) -> float:
    """For how long a server may be silent."""
    return max(config.suspect_s, min(config.lost_s, patience * config.suspect_s))


def is_there(member: Member) -> bool:
    """Of one that is starting: whether it has a process, as far as anybody knows."""
    return bool(member.pid) or member.heard_s > member.since_s


def replace_s(member: Member) -> float:
    """When another one is to be asked for in the stead of a worker whose place ends."""
    return float("inf") if member.replace_s is None else member.replace_s


def leave_s(member: Member) -> float:
    """When a worker whose place ends has to leave."""
    return float("inf") if member.leave_s is None else member.leave_s
