"""What becomes of a parcel in a tick: its next version, by learning rate, scale and staleness."""

from __future__ import annotations

from elasticflow.step.rows import Rows
from elasticflow.step.schedule import Kind
from elasticflow.wire.messages import Assignment
from elasticflow_ps.norms import clip_scale
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.state import ApplyAction
from elasticflow_ps.store import Alone, Store, Sum, TensorNorm


class Updating:
    """Of ``store``, in one generation."""

    def __init__(self, assignment: Assignment, store: Store) -> None:
        self._schedule, self._spec, self._store = assignment.schedule, assignment.spec, store
        first, tables = assignment.spec.optimizer, assignment.spec.tables
        self._rates_of_tables = [table.updated_by(first).lr for table in tables]
        self._rule = assignment.staleness_rule

    def apply(self, action: ApplyAction, parcel: Parcel) -> bool:
        """Makes the parcel's next version. Whether it holds numbers alone."""
        root = action.root
        assert root is None or isinstance(root, (Sum, Rows))
        work = self._schedule.at(action.tick)
        if isinstance(root, Sum):
            root.use()
        if root is None or not parcel.is_changed(work):
            self._store.carry(action.tick, parcel)
            return True
        if work.kind in (Kind.ENCODE, Kind.KEEP):
            assert isinstance(root, Sum)
            self._store.gather(action.tick, parcel, root)
            return True
        lr, *others = (slowed(lr, action.late, self._rule) for lr in self._rates_of(parcel, action.lr))
        alone = Alone(work.step, action.before, 1 / self._schedule.used_slices(work.num_records))
        return self._store.apply(
            action.tick,
            parcel,
            root,
            lr=lr,
            others=others,
            update=self._schedule.update(work, action.before, parcel.toggles, parcel.rounds),
            scale=self._scale(action.norm),
            trust=dict(action.trust),
            alone=alone if self._schedule.asynchronous else None,
            step=self._schedule.update(work, 0),
        )

    def tensor_norms(
        self, tick: int, parcel: Parcel, root: Sum | Rows | None, norm: float | None
    ) -> list[TensorNorm]:
        """See ``Store.tensor_norms``. norm: of all gradients, if they are clipped."""
        update = self._schedule.update(self._schedule.at(tick), 0, parcel.toggles, parcel.rounds)
        return self._store.tensor_norms(tick, parcel, root, update=update, scale=self._scale(norm))

    def _scale(self, norm: float | None) -> float:
        """What gradients are multiplied with: 1, or less where their norm is clipped."""
        clip_norm = self._spec.optimizer.clip_norm
        return 1.0 if norm is None or clip_norm is None else clip_scale(norm, clip_norm)

    def _rates_of(self, parcel: Parcel, told: float | None) -> list[float]:
        """Learning rates by the number of the optimizer; of a table, its own. told: the program's."""
        first, *others = self._spec.optimizers
        if parcel.table is not None:
            return [self._rates_of_tables[parcel.table] if told is None else told]
        if told is None:
            return [first.lr, *(other.lr for other in others)]
        return [told, *(told * other.lr / first.lr for other in others)]


def slowed(lr: float, late: int, rule: str) -> float:
    """The learning rate of an update computed before ``late`` others were applied.

    ``inverse``: divided by that number. The more workers there are, the later updates are on average, so this
    is also the rule for their number. Source: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep
    Learning", IJCAI 2016.
    """
    return lr / late if rule == "inverse" and late > 1 else lr
