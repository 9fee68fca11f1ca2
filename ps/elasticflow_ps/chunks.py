"""The chunks that a server is to hold: at hand, in another server's memory, or in the storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticflow.errors import CheckpointError, ProtocolError
from elasticflow.storage import Storage
from elasticflow.wire.messages import Gone, State
from elasticflow_ps.generation import Generation
from elasticflow_ps.keeping import Keeping
from elasticflow_ps.snapshots import Copy
from elasticflow_ps.sources import Fetching, Loading
from elasticflow_ps.store import Snapshot, Store
from elasticflow_ps.ways import Ways


class Chunks:
    """Of one server, through all its generations. ``keeping`` takes snapshots of the store they lie in.

    done: told once those of a generation are there, with the version to go on from; None: a worker has to
    send the first values. trouble: told what the storage says while it is tried again.
    """

    def __init__(
        self,
        storage: Storage,
        patience_s: float,
        ways: Ways,
        keeping: Keeping,
        done: Callable[[Store, int | None], None],
        trouble: Callable[[str], None],
    ) -> None:
        self.live: Copy | None = None
        """What of ``store`` can be gone on from, while this server is halted."""
        self._storage, self._patience_s = storage, patience_s
        self._ways, self._keeping = ways, keeping
        self._done, self._trouble = done, trouble
        self._fetching: Fetching | None = None
        self._loading: Loading | None = None

    @property
    def store(self) -> Store | None:
        """None: there are no chunks, or not yet. For any thread."""
        return self._keeping.store

    @property
    def coming(self) -> bool:
        """Whether they are on their way. For any thread."""
        return self._fetching is not None or self._loading is not None

    # --- from one generation to the next ---------------------------------------------------------

    def stopped(self, newest: Copy, *, sound: bool) -> None:
        """They are served no more. sound: there are numbers alone in all that was made of them."""
        store = self._keeping.store
        self.live = newest if sound and store and store.is_whole(newest[1]) else None

    def stop(self) -> None:
        """Nothing is taken in any more."""
        self._fetching = None
        if self._loading:
            self._loading.close()
            self._loading = None

    def get(self, now: Generation) -> None:
        """Those of a new generation, from nearest by."""
        live, self.live = self.live, None
        if now.start is not None:
            self._go_on(now, now.start, live)
        elif now.assignment.restore_step is not None:
            self._load(now, now.assignment.restore_step)
        else:
            self._have(now.new_store(), None)

    def lend(self, start: int) -> None:
        """Another server is to have them: a copy stays of what is here of the version to go on from."""
        if self.live and self.live[1] == start:
            self._keeping.hold(self.live)

    def let_go(self) -> None:
        """There are none in this generation."""
        self._keeping.store = self.live = None

    def _have(self, store: Store, start: int | None) -> None:
        self._keeping.store = store
        self._done(store, start)

    def _go_on(self, now: Generation, start: int, live: Copy | None) -> None:
        """From a version that is in somebody's memory."""
        store, copy = self._keeping.store, self._keeping.copy_of(now.place, start)
        # From nearest by: the first two copy nothing.
        if store and live == (now.place, start):
            store.stay_at(start)
        elif store and isinstance(copy, Snapshot) and copy.store is store:
            store.go_back_to(copy)
        elif copy:
            store = now.new_store()
            for parcel in store.parcels:
                store.fill(start, parcel, copy.arrays(parcel.number))
        else:
            return self._fetch(now, start)
        self._have(store, start)

    # --- another server's memory -----------------------------------------------------------------

    def _fetch(self, now: Generation, start: int) -> None:
        holders = [info for info in now.assignment.servers if info.name == now.info.holder]
        if not holders or holders == [now.info]:
            raise CheckpointError(f"nobody is named who has version {start} of place {now.place}")
        self._keeping.store = None  # there is no room for two
        self._ways.connect(holders)
        link = self._ways.links[now.info.holder]
        self._fetching = Fetching(link, now.place, start, now.new_store(), now.shapes[now.place])

    def receive(self, name: str, message: State | Gone, frames: Sequence[memoryview]) -> None:
        """From another server. Raises ProtocolError if it was not asked."""
        fetching = self._fetching
        if fetching is None or name != fetching.holder:
            raise ProtocolError(f"{type(message).__name__} is not for this server")
        fetching.receive(message, frames)
        if fetching.complete:
            self._fetching = None
            self._keeping.snapshots.fetched(fetching.version, fetching.holder)
            self._have(fetching.store, fetching.version)

    # --- the storage -----------------------------------------------------------------------------

    def _load(self, now: Generation, step: int) -> None:
        start = now.assignment.start_tick

        def done(store: Store | None, error: str) -> None:
            self.stop()
            if store is None:
                raise CheckpointError(error)
            self._have(store, start)

        self._keeping.store = None  # there is no room for two
        self._loading = Loading(
            self._storage, self._patience_s, step, start, now.new_store, done, self._trouble
        )

    @property
    def fd(self) -> int | None:
        """Readable when ``turn`` has something to do."""
        return self._loading.fd if self._loading else None

    def turn(self) -> None:
        """Takes what has been read."""
        if self._loading:
            self._loading.turn()
