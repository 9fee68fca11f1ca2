"""Which of the policy's nodes stand for which of the cluster's, and what has come and gone. Pure.

The policy's nodes are alike and have numbers. A node of the cluster with room for twice as many workers is
two of them. A number goes to another node only when the one that had it is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from elasticflow.cluster.share import ShareNode, units
from elasticflow.service.happenings import NodeSeen


def changes(
    names: Mapping[int, str], down: Collection[int], num_nodes: int, slots: int, seen: Sequence[ShareNode]
) -> list[NodeSeen]:
    """What the policy does not know yet.

    names: of the cluster's nodes, by the policy's numbers, also of those that are gone. down: numbers that
    are not to be used. slots: of each number. seen: all nodes that there are.
    """
    there = {unit: node for node in seen for unit in units(node, slots)}
    may = {unit for unit, node in there.items() if not node.away}
    happened, kept = [], set()
    for number in range(num_nodes):
        name = names.get(number, "")
        if number in down:
            continue
        if name in may:
            kept.add(name)
        else:
            happened.append(NodeSeen(node=number, up=False, name=name, why=_why(name, there, seen)))
    new = [unit for unit in sorted(may - kept) if not there[unit].doubtful]
    free = [number for number in range(num_nodes) if number in down or names.get(number, "") not in kept]
    for number in sorted(free, key=lambda number: (names.get(number, "") not in new, number)):
        if not new:
            break
        known = names.get(number, "")
        name = known if known in new else new[0]
        new.remove(name)
        happened.append(NodeSeen(node=number, up=True, name=name))
    return happened


def _why(name: str, there: Mapping[str, ShareNode], seen: Sequence[ShareNode]) -> str:
    """Why a node may not be used any more, for people."""
    if name in there:
        return there[name].away
    if any(name in (node.name, *units(node, 1)) for node in seen):
        return "has less room than it had"
    return "is not there any more"
