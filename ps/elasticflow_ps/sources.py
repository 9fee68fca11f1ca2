"""Where a server gets chunks from that it has not got itself: another server's memory, or the storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticflow.checkpoint import Reader, chain_of, load_manifest
from elasticflow.errors import CheckpointError, ProtocolError
from elasticflow.storage import Storage
from elasticflow.storage.background import Background
from elasticflow.wire.messages import Fetch, Gone, State
from elasticflow_ps.keeping import Shape
from elasticflow_ps.store import Store, parse
from elasticflow_ps.watch import Watched
from elasticflow_ps.ways import ServerLink


class Fetching:
    """Asks the server at the other end of ``link`` for a place's chunks, and fills a new store with them."""

    def __init__(
        self, link: ServerLink, place: int, version: int, store: Store, shapes: Sequence[Shape]
    ) -> None:
        self.holder, self.store, self.version = link.name, store, version
        self._place, self._shapes = place, shapes
        self._missing = set(range(len(shapes)))
        link.send(Fetch(place=place, version=version))

    @property
    def complete(self) -> bool:
        return not self._missing

    def receive(self, message: State | Gone, frames: Sequence[memoryview]) -> None:
        """Raises ProtocolError for what is not, or no longer, wanted; CheckpointError if there is nothing."""
        if isinstance(message, Gone):
            raise CheckpointError(f"{self.holder} has not got version {self.version} of place {self._place}")
        wanted = (message.place, message.version) == (self._place, self.version)
        if not wanted or message.parcel not in self._missing:
            raise ProtocolError(f"{self.holder} sends {message}")
        shape = self._shapes[message.parcel]
        version = message.version
        watched = Watched(message.checks, version, lambda: f"version {version} of {self.holder}")
        watched.compare(frames, shape, "the server that takes its place")
        arrays = parse(shape, frames).arrays
        self.store.fill(self.version, self.store.parcels[message.parcel], arrays)
        self._missing.remove(message.parcel)


class Loading:
    """Reads chunks of a commit in the background, again and again while the storage fails.

    done: told the filled store, or None and the error's text. trouble: told what goes wrong meanwhile.
    """

    def __init__(
        self,
        storage: Storage,
        patience_s: float,
        step: int,
        version: int,
        new_store: Callable[[], Store],
        done: Callable[[Store | None, str], None],
        trouble: Callable[[str], None],
    ) -> None:
        def job() -> Store:
            store = new_store()
            manifest = load_manifest(storage, step)
            with Reader(storage, manifest) as reader:
                store.restore(version, reader.read_chunk, reader.read_rows)
            buckets = [chunk.number for place in store.tables for chunk in store.parcels[place].chunks]
            store.chain = chain_of(manifest, buckets)
            return store

        self._background = Background(patience_s)
        self._background.submit(job, done, trouble)

    @property
    def fd(self) -> int:
        """Readable when ``turn`` has something to do."""
        return self._background.fd

    def turn(self) -> None:
        """Calls ``done`` or ``trouble``, if that is due."""
        self._background.turn()

    def close(self) -> None:
        """Waits for nothing; nothing is told any more."""
        self._background.close()
