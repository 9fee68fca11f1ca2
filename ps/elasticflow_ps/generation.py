"""What a generation of servers is for one of them."""

from __future__ import annotations

from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Layout
from elasticflow.wire.messages import Assignment
from elasticflow_ps.agreement import rounds
from elasticflow_ps.compression import compression_of
from elasticflow_ps.kernel import AnyKernel
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.snapshots import ServerRow
from elasticflow_ps.store import Store
from elasticflow_ps.tables import tables_of


class Generation:
    """What follows from an Assignment for one of the servers in it."""

    def __init__(self, assignment: Assignment, settings: MemberSettings) -> None:
        self.assignment, self.compression = assignment, compression_of(settings)
        self._lends = settings.shared_memory and self.compression.lends
        infos, spec = assignment.servers, assignment.spec
        self.place = [info.name for info in infos].index(settings.name)
        self.info = infos[self.place]
        self.relays = {relay.group: relay.name for relay in assignment.relays if relay.place == self.place}
        """By group, who stands for this server to its workers."""
        self.layout = Layout(spec.entries)
        self.kernels: list[AnyKernel] = [kernel_for(optimizer) for optimizer in spec.optimizers]
        slots = [kernel.slots for kernel in self.kernels]
        self.parcels = [parcels_of(self.layout, info.chunks) if info.chunks else [] for info in infos]
        self.shapes = [[parcel.copied(*slots) for parcel in parcels] for parcels in self.parcels]
        self.copy_bytes = [sum(span.num_bytes for shape in each for span in shape) for each in self.shapes]
        """Of a copy of all of a place's chunks."""
        self.start = assignment.start_tick if assignment.in_memory else None
        """The version to go on from in memory."""
        self.row = ServerRow(
            names=tuple(info.name for info in infos),
            parcels=tuple(len(parcels) for parcels in self.parcels),
            place=self.place,
            last_version=assignment.schedule.total_ticks,
            snapshots=assignment.snapshot_s > 0,
            carriers=tuple(info.carrier for info in infos if not info.leaves),
        )
        keeper, asks = self.row.keeper(self.place), rounds(assignment) > 0
        leader = infos[0].name if self.info.chunks and self.place > 0 and (keeper or asks) else ""
        self.linked = [info for info in infos if info.name in (keeper, leader)]
        """The servers that this one connects to."""

    def new_store(self) -> Store:
        """With slots as they are before the first update, and without values."""
        parcels, assignment = self.parcels[self.place], self.assignment
        spec = assignment.spec
        tables = tables_of(self.layout, spec.tables, spec.optimizer, parcels, assignment.seed)
        return Store(parcels, *self.kernels, lends=self._lends, tables=tables)
