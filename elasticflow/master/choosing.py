"""Which strategy a run with ``strategy: auto`` goes by, and why: decided when the program is known. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rich.filesize import decimal

from elasticflow.run.config import ALL_REDUCE, PARAMETER_SERVER, Config
from elasticflow.step.layout import Layout, Rule, spread
from elasticflow.wire.messages import Spec
from elasticflow_ps.memory import needs

SMALL_BYTES = 4 << 20
"""So much is one chunk, mostly, which cannot be shared: one server exchanges it in a few milliseconds."""
ANY_TIME = "local"
"""The backend that has a place for a server at any time. On a cluster it has to be asked for before anybody
knows the program."""


class Choice(NamedTuple):
    """why: a sentence's part, for people."""

    strategy: str
    why: str


def choose(config: Config, spec: Spec, available_bytes: Mapping[str, int]) -> Choice:
    """available_bytes: of memory, by what grants them, that the first worker may still take."""
    if config.asynchronous:
        return Choice(PARAMETER_SERVER, "in mode: async batches are applied one by one, by servers")
    if config.backend != ANY_TIME:
        return Choice(ALL_REDUCE, f"{config.backend} was asked for no places for servers")
    if spec.tables:
        text = (
            f"rows of tables ({len(spec.tables)}) are not copied: with a worker that carries some, all steps"
        )
        return Choice(PARAMETER_SERVER, f"{text} since the last checkpoint would be lost")
    _, most = config.worker_range
    layout = Layout(spec.entries)
    size = sum(
        layout.chunk_bytes(chunk) for chunk in layout.chunks if layout.groups[chunk.group].rule is Rule.UPDATE
    )
    if most == 1:
        return Choice(PARAMETER_SERVER, f"one worker has nobody to share its {decimal(size)} with")
    if size <= SMALL_BYTES:
        text = f"{decimal(size)} are little to exchange, and with a server a worker that dies costs no step"
        return Choice(PARAMETER_SERVER, text)
    need = _need(config, spec, layout)
    short = min(available_bytes, key=lambda whose: available_bytes[whose], default="")
    if short and need > available_bytes[short]:
        text = f"the first worker would hold up to {decimal(need)} for all, and {short} has"
        return Choice(PARAMETER_SERVER, f"{text} {decimal(available_bytes[short])}")
    served, carried = most * size // config.servers, (most - 1) * size // most
    who = "the server" if config.servers == 1 else f"each of {config.servers} servers"
    text = f"of {decimal(size)}, {who} would receive {decimal(served)} a step from {most} workers"
    return Choice(ALL_REDUCE, f"{text}; among themselves each receives {decimal(carried)}")


def _need(config: Config, spec: Spec, layout: Layout) -> int:
    """Bytes of all places."""
    _, most = config.worker_range
    row = [share for share in spread(layout, most) if share]
    each = needs(
        layout,
        spec.optimizer,
        row,
        others=spec.others,
        snapshots=config.snapshot_s > 0,
        num_workers=most,
        num_slices=config.num_slices,
    )
    return sum(need.total for need in each)
