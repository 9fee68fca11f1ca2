"""Who has how much of the cluster, and who waits for what is theirs. Pure.

YARN takes containers from queues that use more than their share as soon as one that has less waits. Of
what a queue may have, GPUs count where workers have any, and memory where they have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

from elasticflow.cluster.giving import Pressure
from elasticflow_yarn.cluster import YarnNode, YarnQueue
from elasticflow_yarn.resources import Resources


class Measure(NamedTuple):
    """By what is counted."""

    gpus: bool

    def of(self, resources: Resources) -> int:
        return resources.gpus if self.gpus else resources.memory_mb

    def text(self, amount: int) -> str:
        """``1 GPU``, ``2 GiB``."""
        if self.gpus:
            return f"{amount} GPU" if amount == 1 else f"{amount} GPUs"
        return f"{amount / 1024:.4g} GiB"

    def of_text(self, amount: int, most: int) -> str:
        """``1 of 6 GPUs``"""
        if self.gpus:
            return f"{amount} of {self.text(most)}"
        return f"{amount / 1024:.4g} of {self.text(most)}"


def find(queues: Iterable[YarnQueue], name: str) -> YarnQueue | None:
    return next((queue for queue in queues if queue.is_called(name)), None)


def free(nodes: Iterable[YarnNode], measure: Measure) -> int:
    """What nobody uses."""
    return sum(measure.of(node.available) for node in nodes if node.live)


def forgets(asked: Iterable[Resources], own: YarnQueue) -> bool:
    """Whether a queue that has room for all that was asked for tells that less is pending.

    Of one that has not, the fair scheduler tells no more than what it may still have.
    """
    owed = reduce(Resources.plus, asked, Resources())
    is_told = own.pending is not None and own.pending.memory_mb < owed.memory_mb
    return is_told and owed.plus(own.used).fits(own.most)


def has_room(asked: Resources, own: YarnQueue, nodes: Iterable[YarnNode], label: str) -> bool:
    """Whether a node and the queue have that much left.

    label: "" for nodes without any; labelled ones are for those that ask for them.
    """
    if not asked.plus(own.used).fits(own.most):
        return False
    usable = (node for node in nodes if node.live and (label in node.labels if label else not node.labels))
    return any(asked.fits(node.available) for node in usable)


def pressure(
    queues: Sequence[YarnQueue], own: YarnQueue, nodes: Sequence[YarnNode], measure: Measure, each: int
) -> Pressure | None:
    """None: nobody waits for what we have, or might get. each: the amount that one worker has.

    What others wait for beyond their own share YARN does not take from us, and what is free they will get.
    """
    waits = {q.name: _lacks(q, measure) for q in queues if q.path != own.path and _lacks(q, measure)}
    lacking = sum(waits.values()) - free(nodes, measure)
    used, share = measure.of(own.used), measure.of(own.share)
    if lacking <= 0 or used + each <= share:
        return None
    for_whom = ", ".join(f"queue {name} waits for {measure.text(amount)}" for name, amount in waits.items())
    text = f"queue {own.name} uses {measure.text(used)}, its share is {measure.text(share)}, {for_whom}"
    return Pressure(-(-lacking // each), max(0, used - share) // each, text)


def _lacks(queue: YarnQueue, measure: Measure) -> int:
    """What a queue waits for, and is to have."""
    pending = queue.pending or Resources()
    return min(measure.of(pending), max(0, measure.of(queue.share) - measure.of(queue.used)))
