"""Parcels of versions go to workers: as they are or packed, in frames, or lent where they lie."""

from __future__ import annotations

from elasticflow.step.layout import Array
from elasticflow.wire.messages import Version
from elasticflow_ps.compression import Compression
from elasticflow_ps.neighbours import FRAME, Neighbours
from elasticflow_ps.ordering import Orders
from elasticflow_ps.parcels import Parcel
from elasticflow_ps.state import ServeAction
from elasticflow_ps.store import Store
from elasticflow_ps.ways import Ways


class Versions:
    """Those of ``store``, which is told who still sends or reads what."""

    def __init__(self, store: Store, ways: Ways, neighbours: Neighbours, compression: Compression) -> None:
        self._store, self._ways = store, ways
        self._neighbours, self._compression = neighbours, compression

    def serve(self, action: ServeAction) -> None:
        """Sends a parcel of a version to a worker."""
        worker, version = action.worker, action.version
        parcel, orders = self._store.parcels[action.parcel], action.orders or Orders()
        made = version + (action.updates > 0)  # what is made of it, whole or not
        arrays = [] if action.same else self._arrays(made, parcel)
        checks = self._store.checks(made, parcel, arrays, version) if arrays else ()
        lent = self._neighbours.lend(worker, self._store.places(made, parcel)) if arrays else ()
        lent_bytes = 0
        if lent:
            lent_bytes = sum(array.nbytes for array in arrays)
            arrays = [array for array, place in zip(arrays, lent, strict=True) if place == FRAME]
            self._store.track(made, parcel, self._neighbours.reading(worker, version))
        message = Version(
            version=version,
            parcel=action.parcel,
            same=action.same,
            shares=orders.shares,
            cut=orders.cut,
            snapshot=orders.snapshot,
            finish=orders.finish,
            tuning=orders.tuning,
            ends=orders.ends,
            lent=lent,
            updates=action.updates,
            given=action.given,
            checks=checks,
            heard=self._ways.heard(worker),
            pause=orders.pause,
        )
        self._store.track(made, parcel, self._ways.answer(worker, message, arrays, lent_bytes))

    def _arrays(self, version: int, parcel: Parcel) -> list[Array]:
        if self._compression.packs_versions:
            return self._store.packed(version, parcel, self._compression.packed)
        return self._store.arrays(version, parcel)
