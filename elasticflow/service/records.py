"""All that a service's state knows, written down: with it a journal begins in the middle."""

from __future__ import annotations

from collections import deque
from math import inf

import msgspec

from elasticflow.scheduler.policies.base import Policy
from elasticflow.scheduler.records import PolicyRecord, recall, record_of
from elasticflow.service import happenings as hp
from elasticflow.service.beginnings import LAST
from elasticflow.service.ledger import Account
from elasticflow.service.state import ENDS, ServiceState, Ticket

ENDED = 200
"""So many tasks that are over are remembered, the last ones."""


class StateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """See ServiceState. wake_s: None: never. tickets: in the order in which they were handed in."""

    now_s: float
    wake_s: float | None
    numbered: int
    tickets: list[Ticket]
    accounts: dict[str, Account]
    nodes: list[hp.NodeSeen]
    foreseen: list[tuple[float, int]]
    shared: int | None
    beginnings: list[float]
    policy: PolicyRecord


def record_all(state: ServiceState) -> StateRecord:
    """Between two turns."""
    ended = [ticket for ticket in state.tickets.values() if ticket.standing in ENDS]
    ended.sort(key=lambda ticket: ticket.ended_s or 0.0)
    forgotten = {ticket.task.name for ticket in ended[: max(0, len(ended) - ENDED)]}
    return StateRecord(
        now_s=state.now_s,
        wake_s=None if state.wake_s == inf else state.wake_s,
        numbered=state.numbered,
        tickets=[ticket for name, ticket in state.tickets.items() if name not in forgotten],
        accounts=state.ledger.accounts,
        nodes=list(state.nodes.values()),
        foreseen=state.foreseen,
        shared=state.shared,
        beginnings=list(state.beginnings),
        policy=record_of(state.policy),
    )


def recall_all(state: ServiceState, policy: Policy, record: StateRecord) -> None:
    """Has a state know that, and nothing else. policy: a new one, of the same rules."""
    recall(policy, record.policy)
    state.policy = policy
    state.now_s, state.numbered, state.shared = record.now_s, record.numbered, record.shared
    state.wake_s = inf if record.wake_s is None else record.wake_s
    state.tickets = {ticket.task.name: ticket for ticket in record.tickets}
    state.ledger.accounts = dict(record.accounts)
    state.nodes = {seen.node: seen for seen in record.nodes}
    state.foreseen = list(record.foreseen)
    state.beginnings = deque(record.beginnings, LAST)
