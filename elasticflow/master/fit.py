"""Whether servers can hold a model: what they need at most, beside what they may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.filesize import decimal

from elasticflow.master.members import Member
from elasticflow_ps.memory import MemoryNeed


class Misfit(NamedTuple):
    """What does not fit, and what helps. certain: it cannot; else it may not."""

    text: str
    certain: bool


def misfit(servers: Mapping[str, MemoryNeed], members: Mapping[str, Member]) -> Misfit | None:
    """What of these servers' memory the model needs more than there is; None if it fits, or nobody knows."""
    sharing: dict[tuple[str, str], list[str]] = {}
    for name in servers:
        for whose in members[name].available_bytes:
            sharing.setdefault((members[name].host, whose), []).append(name)
    found: list[Misfit] = []
    for (host, whose), names in sharing.items():
        most = MemoryNeed(*map(sum, zip(*(servers[name] for name in names), strict=True)))
        available = min(members[name].available_bytes[whose] for name in names)
        certain = most.certain.total > available
        if most.total > available:
            who = f"{' and '.join(names)} on {host}"
            text = _explained(who, most, certain, f"{whose} has {decimal(available)}")
            found.append(Misfit(text, certain))
    return max(found, key=lambda each: each.certain, default=None)


def _explained(who: str, most: MemoryNeed, certain: bool, found: str) -> str:
    may, needs = ("does", "needs") if certain else ("may", "may need")
    needed = most.certain if certain else most
    parts = ", ".join(f"{name} {decimal(size)}" for name, size in needed._asdict().items() if size)
    *others, last = _remedies(needed)
    return (
        f"the model {may} not fit into the memory of its servers: {who} {needs} {decimal(needed.total)} "
        f"({parts}), and {found} left. What helps: {', '.join(others)}, or {last}."
    )


def _remedies(needed: MemoryNeed) -> Sequence[str]:
    yes_if = {
        "more servers on more hosts": True,
        "snapshot_s: 0": needed.snapshots,
        "an optimizer with fewer slots": needed.slots,
        "more memory for the servers": True,
    }
    return [remedy for remedy, applies in yes_if.items() if applies]
