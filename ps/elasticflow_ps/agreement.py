"""What servers tell each other of a step before any of them applies it: norms, and whether all is finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from elasticflow import api
from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Layout, Rule
from elasticflow.step.rows import Rows
from elasticflow.wire.messages import Assignment, Clip, Norms
from elasticflow_ps.kernel import PerTensorKernel
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import Parcel, Piece, pieces_of
from elasticflow_ps.reports import Reports
from elasticflow_ps.snapshots import ServerRow
from elasticflow_ps.state import NormsAction
from elasticflow_ps.store import Store, Sum, TensorNorm
from elasticflow_ps.updating import Updating
from elasticflow_ps.ways import Ways


class Agreement(NamedTuple):
    """Of all servers. norm: of all gradients, NaN or infinite if they are not finite. servers: who told.

    tensors: by number, the norms of their values, and of their updates.
    """

    norm: float
    servers: tuple[str, ...]
    tensors: dict[int, tuple[float, float]]

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm)


class NormSum:
    """Gathers norms on the leading server.

    chunks: by server with chunks, those of which it tells norms. pieces: likewise, (tensor, chunk).
    """

    def __init__(
        self,
        chunks: Mapping[str, frozenset[int]],
        pieces: Mapping[str, frozenset[tuple[int, int]]] | None = None,
    ) -> None:
        self._chunks, self._pieces = chunks, pieces or {}
        self._told: dict[tuple[int, int], dict[str, Norms]] = {}
        """By tick and round."""

    def check(self, server: str, message: Norms) -> None:
        """Raises ProtocolError if another server's message makes no sense."""
        if server not in self._chunks:
            raise ProtocolError(f"norms of tick {message.tick} from {server}")
        chunks = [chunk for chunk, _ in message.norms]
        if chunks and sorted(chunks) != sorted(self._chunks[server]):
            raise ProtocolError(f"norms of chunks {chunks} from {server}")
        pieces = [(tensor, chunk) for tensor, chunk, _, _ in message.tensors]
        if pieces and sorted(pieces) != sorted(self._pieces.get(server, ())):
            raise ProtocolError(f"norms of (tensor, chunk) {pieces} from {server}")
        if any(norm < 0 for norms in (*message.norms, *message.tensors) for norm in norms[-2:]):
            raise ProtocolError(f"a norm below 0 from {server}")

    def add(self, server: str, message: Norms) -> Agreement | None:
        """Once every server's are there, their sum, in the order of the chunks; None until then."""
        now = message.tick, message.round
        known = self._told.setdefault(now, {})
        known.setdefault(server, message)
        if len(known) < len(self._chunks):
            return None
        self._told = {key: told for key, told in self._told.items() if key > now}
        total = 0.0
        # Sums of floats depend on their order: that of the chunks is the same for any number of servers.
        for _, squared in sorted(pair for each in known.values() for pair in each.norms):
            total += squared
        finite = all(each.finite for each in known.values())
        sums: dict[int, tuple[float, float]] = {}
        for tensor, _, *squares in sorted(piece for each in known.values() for piece in each.tensors):
            weights, change = sums.get(tensor, (0.0, 0.0))
            sums[tensor] = weights + squares[0], change + squares[1]
        tensors = {tensor: (weights**0.5, change**0.5) for tensor, (weights, change) in sums.items()}
        return Agreement(total**0.5 if finite else math.nan, tuple(known), tensors)


class Agreeing:
    """One server's part in it, which is to gather what all tell if it leads.

    decided: told what holds for a step, once this server knows.
    """

    def __init__(
        self,
        assignment: Assignment,
        layout: Layout,
        row: ServerRow,
        updating: Updating,
        store: Store,
        ways: Ways,
        reports: Reports,
        decided: Callable[[Clip], None],
    ) -> None:
        self._row, self._store, self._ways, self._reports = row, store, ways, reports
        self._updating, self._decided = updating, decided
        self._clips, self._skips = assignment.spec.optimizer.clip_norm is not None, skips(assignment)
        self._rounds = rounds(assignment)
        self._kernels = per_tensor_kernels(assignment, layout)
        self._norms = NormSum(_norm_chunks(assignment, layout), _pieces(assignment, layout, self._kernels))

    def tell(self, action: NormsAction) -> tuple[Parcel, Sum | Rows] | None:
        """Tells the leading server of the sums of a tick; or returns one that ends the run."""
        pairs = list(zip(self._store.parcels, action.roots, strict=True))
        first = self._first_odd(action.tick, pairs) if action.round == 0 else None
        if first is not None and not self._skips:
            return first
        norms: tuple[tuple[int, float], ...] = ()
        tensors: tuple[TensorNorm, ...] = ()
        if self._clips and action.round == 0:
            norms = tuple(norm for parcel, root in pairs for norm in self._store.norms(parcel, root))
        if self._kernels and action.round == self._rounds - 1:
            tensors = tuple(
                norm
                for parcel, root in pairs
                for norm in self._updating.tensor_norms(action.tick, parcel, root, action.norm)
            )
        leader = self._row.names[0]
        message = Norms(
            tick=action.tick, norms=norms, finite=first is None, round=action.round, tensors=tensors
        )
        if self._row.leads:
            self._add(leader, message)
        else:
            self._ways.send(leader, message)
        return None

    def _first_odd(
        self, tick: int, pairs: Sequence[tuple[Parcel, Sum | Rows | None]]
    ) -> tuple[Parcel, Sum | Rows] | None:
        """The first sum with numbers that are not finite."""
        there = [(parcel, root) for parcel, root in pairs if root is not None]
        for _, root in there:
            if isinstance(root, Sum) and root.compare:
                root.compare()  # what was written too early is no divergence
        return next((pair for pair in there if not self._store.is_sound(tick, *pair)), None)

    def take(self, server: str, message: Norms, version: int) -> None:
        """From another server to the leading one. Raises ProtocolError if it makes no sense.

        Who is ahead of this server is so by one tick: nobody gets past a step without the others' norms.
        """
        in_time = version <= message.tick <= version + 1 and message.round < self._rounds
        if not self._row.leads or not in_time:
            raise ProtocolError(f"norms of tick {message.tick} from {server}")
        self._norms.check(server, message)
        self._add(server, message)

    def _add(self, server: str, message: Norms) -> None:
        """Tells all servers what holds for the step, once every server's norms are there."""
        tick, agreed = message.tick, self._norms.add(server, message)
        if agreed is None or self._reports.diverged:
            return
        if not agreed.finite and not self._skips:
            return self._reports.diverges(tick, "")
        if not agreed.finite:
            self._reports.skips(tick)
        trust = [(number, self._kernels[number].trust(*norms)) for number, norms in agreed.tensors.items()]
        clip = Clip(
            tick=tick,
            norm=agreed.norm if agreed.finite else 0.0,
            skip=not agreed.finite,
            round=message.round,
            trust=tuple(trust),
        )
        for name in agreed.servers:
            self._ways.answer(name, clip)
        self._decided(clip)


def skips(assignment: Assignment) -> bool:
    """Whether whole steps are left out: asynchronously workers leave out slices of theirs."""
    return assignment.on_nan == "skip" and not assignment.schedule.asynchronous


def rounds(assignment: Assignment) -> int:
    """How often all servers have to know of the whole step before any applies it.

    A second time where norms of updates are those of gradients that are clipped by what is known first.
    """
    optimizers = assignment.spec.optimizers
    clips = optimizers[0].clip_norm is not None
    per_tensor = any(isinstance(optimizer, api.PER_TENSOR) for optimizer in optimizers)
    return (clips or skips(assignment) or per_tensor) + (clips and per_tensor)


def per_tensor_kernels(assignment: Assignment, layout: Layout) -> dict[int, PerTensorKernel[Any]]:
    """Of the parameters whose learning rates follow from norms, by the number of the parameter."""
    kernels = [kernel_for(optimizer) for optimizer in assignment.spec.optimizers]
    made = ((number, kernels[entry.part]) for number, entry in enumerate(layout.of_rule(Rule.UPDATE)))
    return {number: kernel for number, kernel in made if isinstance(kernel, PerTensorKernel)}


def _pieces(
    assignment: Assignment, layout: Layout, kernels: Mapping[int, PerTensorKernel[Any]]
) -> dict[str, frozenset[tuple[int, int]]]:
    """By server with chunks, (tensor, chunk) of those parameters."""

    def of(number: int) -> list[Piece]:
        chunk = layout.chunks[number]
        return pieces_of(layout, chunk) if layout.groups[chunk.group].rule is Rule.UPDATE else []

    return {
        server.name: frozenset(
            (piece.tensor, piece.chunk)
            for number in server.chunks
            for piece in of(number)
            if piece.tensor in kernels
        )
        for server in (assignment.servers if kernels else ())
    }


def _norm_chunks(assignment: Assignment, layout: Layout) -> dict[str, frozenset[int]]:
    """By server with chunks, those that hold parameters."""
    return {
        server.name: frozenset(
            number
            for number in server.chunks
            if layout.groups[layout.chunks[number].group].rule in (Rule.UPDATE, Rule.ROWS)
        )
        for server in assignment.servers
        if server.chunks
    }
