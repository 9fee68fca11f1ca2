"""Whether servers can hold a model: what they need at most, beside what they may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.filesize import decimal

from elasticflow.master.members import Member
from elasticflow_ps.memory import Need


def misfit(servers: Mapping[str, Need], members: Mapping[str, Member]) -> str:
    """Why these servers cannot hold the model, and what helps; "" if they can, or nobody knows."""
    sharing: dict[tuple[str, str], list[str]] = {}
    for name in servers:
        for whose in members[name].available_bytes:
            sharing.setdefault((members[name].host, whose), []).append(name)
    for (host, whose), names in sharing.items():
        needed = Need(*map(sum, zip(*(servers[name] for name in names), strict=True)))
        available = min(members[name].available_bytes[whose] for name in names)
        if needed.total > available:
            return _explained(f"{' and '.join(names)} on {host}", needed, f"{whose} has {decimal(available)}")
    return ""


def _explained(who: str, needed: Need, found: str) -> str:
    parts = ", ".join(f"{name} {decimal(size)}" for name, size in needed._asdict().items() if size)
    *others, last = _remedies(needed)
    return (
        f"the model does not fit into the memory of its servers: {who} may need {decimal(needed.total)} "
        f"({parts}), and {found} left. What helps: {', '.join(others)}, or {last}."
    )


def _remedies(needed: Need) -> Sequence[str]:
    yes_if = {
        "more servers on more hosts": True,
        "snapshot_s: 0": needed.snapshots,
        "an optimizer with fewer slots": needed.slots,
        "more memory for the servers": True,
    }
    return [remedy for remedy, applies in yes_if.items() if applies]
