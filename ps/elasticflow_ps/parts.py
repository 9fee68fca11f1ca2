"""A server's parts of checkpoints: written in the background, and told to the master until it knows."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from elasticflow.checkpoint import Part, part_name, row_file_name, write_part
from elasticflow.step.layout import Layout
from elasticflow.storage import Storage
from elasticflow.storage.background import Background
from elasticflow.training.standing import WatchStanding
from elasticflow.wire.messages import ToMaster, Troubled, Written
from elasticflow_ps.row_files import Changes
from elasticflow_ps.store import Snapshot

REMEMBERED = 2
"""Parts are under way of two checkpoints at most: one that was ordered, and that of the end."""


class _OvertakenError(Exception):
    """The generation whose checkpoint this would be a part of is over."""


class Parts:
    """send: takes messages to the master. patience_s: how long a write that fails is tried again.

    alone: whether nobody but this run can write there. Else another may have taken the place over, without
    this one's knowledge as yet, and files that are called alike would be in each other's place.
    """

    def __init__(
        self,
        name: str,
        storage: Storage,
        patience_s: float,
        send: Callable[[ToMaster], None],
        *,
        alone: bool = True,
    ) -> None:
        self._name, self._storage, self._send = name, storage, send
        self._writer = name if alone else f"{name}-{secrets.token_hex(4)}"
        self._background = Background(patience_s)
        self._generation = 0
        self._written: list[Written] = []
        self._trouble = ""

    @property
    def fd(self) -> int:
        """Readable when ``turn`` has something to do."""
        return self._background.fd

    def turn(self) -> None:
        """Tells what has been written."""
        self._background.turn()

    def enter(self, generation: int) -> None:
        """Another generation: what is under way of the one before is given up at its next failure."""
        self._generation = generation
        self._written.clear()

    def write(
        self,
        layout: Layout,
        folder: str,
        snapshot: Snapshot,
        rows: Changes | None,
        *,
        last: bool,
        copy_s: float,
        standing: WatchStanding | None = None,
    ) -> None:
        """Writes a snapshot to ``folder``, then releases it. copy_s: seconds that taking it took.

        standing: what evaluations had decided, if that is this server's to tell.

        rows: what is to be written of the tables. The snapshot's store then knows the chain, if it is the
        newest by then.
        """
        generation, took_s, store = self._generation, 0.0, snapshot.store
        if rows:
            store.continued.append(rows.before)

        def job() -> Part:
            nonlocal took_s
            if generation != self._generation:
                raise _OvertakenError(f"generation {generation} is over")
            begun_s = time.monotonic()
            part = write_part(
                self._storage, folder, part_name(generation, self._writer), layout, snapshot.chunks()
            )
            if rows:
                chain = rows.write(self._storage, row_file_name(rows.step, generation, self._writer))
                part = msgspec.structs.replace(part, rows=chain)
            took_s = time.monotonic() - begun_s
            return part

        def done(part: Part | None, error: str) -> None:
            snapshot.release()
            if rows:
                store.continued.pop(0)
            if part and part.rows and not store.continued:
                store.chain = part.rows
            written = Written(
                name=self._name,
                generation=generation,
                tick=snapshot.version,
                last=last,
                part=part,
                error=error,
                copy_s=copy_s,
                write_s=took_s,
                standing=standing,
            )
            if generation == self._generation:
                self._written = [*self._written, written][-REMEMBERED:]
            self._send(written)

        self._background.submit(job, done, self._tell_trouble)

    def _tell_trouble(self, text: str) -> None:
        self._trouble = text
        self._send(Troubled(name=self._name, text=text))

    def settled(self, tick: int) -> None:
        """The master knows of the parts of this version, and of older ones."""
        self._written = [written for written in self._written if written.tick > tick]

    def repeat(self) -> None:
        """Tells a new master what the one before may not have heard of."""
        if self._trouble:
            self._tell_trouble(self._trouble)
        for written in self._written:
            self._send(written)

    def close(self) -> None:
        """Waits for nothing."""
        self._background.close()
