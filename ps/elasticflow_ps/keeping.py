"""The snapshots that a server holds, its own and others', and their traffic: around ``Snapshots``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence

from elasticflow.errors import ProtocolError
from elasticflow.step.layout import Array
from elasticflow.wire.messages import AllSafe, Fetch, Gone, Keep, Kept, Safe, State
from elasticflow.wire.sending import Tracker
from elasticflow_ps import snapshots as sn
from elasticflow_ps.decisions import Decisions
from elasticflow_ps.parcels import Span
from elasticflow_ps.store import Snapshot, Store, parse
from elasticflow_ps.watch import Watched, checks_of
from elasticflow_ps.ways import Ways

Shape = tuple[Span, ...]
"""What the arrays of a copy of one parcel are, in order: see ``Parcel.copied``."""


class KeptCopy:
    """A copy of another server's chunks: arrays that lie where they were received."""

    def __init__(self) -> None:
        self.parcels: dict[int, list[Array]] = {}

    def arrays(self, parcel: int) -> list[Array]:
        """What the copy carries of this parcel, see ``Parcel.copied``; not to be written to."""
        return self.parcels[parcel]

    def track(self, parcel: int, tracker: Tracker | None) -> None:
        """Nothing to note: who sends them holds them, and they are never used for anything else."""

    def release(self) -> None:
        """Lets go of the arrays."""
        self.parcels.clear()


class Keeping:
    """``snapshots`` decides, this acts. ``store`` is what snapshots are taken of.

    ``dropped`` counts messages that made no sense. decisions: go with the leading server's copies.
    """

    def __init__(self, ways: Ways, decisions: Decisions) -> None:
        self.snapshots = sn.Snapshots()
        self.store: Store | None = None
        self.dropped = 0
        self._ways, self._decisions = ways, decisions
        self._row = sn.ServerRow((), (), -1, 0)
        self._shapes: Sequence[Sequence[Shape]] = ()
        self._copies: dict[sn.Copy, Snapshot | KeptCopy] = {}
        self._outgoing: deque[tuple[int, int]] = deque()
        """(version, parcel) of this place that are still to be sent to the keeper."""

    def enter(
        self,
        row: sn.ServerRow,
        shapes: Sequence[Sequence[Shape]],
        start: int | None,
        snapshot_s: float,
        every: int = 0,
    ) -> None:
        """Another generation. shapes: of every place, of each of its parcels. Else as ``Snapshots.enter``."""
        self._row, self._shapes = row, shapes
        self._outgoing.clear()
        self._do(self.snapshots.enter(row, start, snapshot_s, time.monotonic(), every))

    def copy_of(self, place: int, version: int) -> Snapshot | KeptCopy | None:
        """A copy that is whole; None if it is not here."""
        return self._copies[place, version] if (place, version) in self.snapshots.held else None

    def made(self, version: int) -> None:
        """A version of ``store`` is whole of which a snapshot was ordered, or with which all begins."""
        self._do(self.snapshots.made(version, time.monotonic()))

    def hold(self, copy: sn.Copy) -> None:
        """``store`` is at the version of this copy, which others will ask for."""
        if copy not in self._copies and self.store:
            self._copies[copy] = self.store.snapshot(copy[1])
            self.snapshots.hold(copy)

    def receive(
        self, sender: str, message: Keep | Kept | Safe | AllSafe | Fetch, frames: Sequence[memoryview] = ()
    ) -> None:
        """A message of another server. Raises ProtocolError if it makes no sense."""
        if isinstance(message, Fetch):
            return self._answer(sender, message)
        arrays = self._parse(sender, message, frames) if isinstance(message, Keep) else []
        self._do(self.snapshots.receive(sender, message, time.monotonic()), arrays)
        if isinstance(message, Keep) and message.standing and sender == self._row.names[0]:
            self._decisions.learn(message.standing)

    def _parse(self, sender: str, message: Keep, frames: Sequence[memoryview]) -> list[Array]:
        shapes = self._shapes[message.place] if 0 <= message.place < len(self._shapes) else ()
        if not 0 <= message.parcel < len(shapes):
            raise ProtocolError(f"place {message.place} has no parcel {message.parcel}")
        version = message.version
        watched = Watched(message.checks, version, lambda: f"the copy of version {version} of {sender}")
        watched.compare(frames, shapes[message.parcel], self._row.names[self._row.place])
        return parse(shapes[message.parcel], frames).arrays

    def _answer(self, sender: str, fetch: Fetch) -> None:
        copy = self.copy_of(fetch.place, fetch.version)
        if copy is None:
            self._ways.answer(sender, Gone(latest=-1))
        if copy is None or sender != self._row.names[fetch.place]:
            raise ProtocolError(f"{sender} cannot have {fetch} from here")
        for parcel in range(self._row.parcels[fetch.place]):
            arrays = copy.arrays(parcel)
            checks = checks_of(arrays, fetch.version)
            state = State(place=fetch.place, version=fetch.version, parcel=parcel, checks=checks)
            copy.track(parcel, self._ways.answer(sender, state, arrays))

    # --- sending own snapshots -------------------------------------------------------------------

    def turn(self) -> None:
        """Sends one parcel of a snapshot, if one is to be sent: between two of them others get their turn."""
        if self.busy:
            version, parcel = self._outgoing.popleft()
            copy = self._copies[self._row.place, version]
            arrays = copy.arrays(parcel)
            checks = checks_of(arrays, version)
            standing = self._decisions.at(version) if self._row.leads else None
            keep = Keep(
                place=self._row.place, version=version, parcel=parcel, checks=checks, standing=standing
            )
            link = self._ways.links[self._row.keeper(self._row.place)]
            copy.track(parcel, link.send_arrays(keep, arrays))

    @property
    def busy(self) -> bool:
        """Whether ``turn`` has something to do now."""
        link = self._ways.links.get(self._row.keeper(self._row.place)) if self._outgoing else None
        return link is not None and link.greeted

    # --- doing what the state says ---------------------------------------------------------------

    def _do(self, actions: Iterable[sn.Action], arrays: list[Array] | None = None) -> None:
        for action in actions:
            self._act(action, arrays or [])

    def _act(self, action: sn.Action, arrays: list[Array]) -> None:
        row, ways = self._row, self._ways
        if isinstance(action, sn.TakeAction):
            assert self.store
            self._copies[row.place, action.version] = self.store.snapshot(action.version)
        elif isinstance(action, sn.KeepAction):
            self._outgoing.extend((action.version, parcel) for parcel in range(row.parcels[row.place]))
        elif isinstance(action, sn.StoreAction):
            copy = self._copies.setdefault((action.place, action.version), KeptCopy())
            assert isinstance(copy, KeptCopy)
            copy.parcels[action.parcel] = arrays
        elif isinstance(action, sn.KeptAction):
            ways.answer(row.names[action.place], Kept(place=action.place, version=action.version))
        elif isinstance(action, sn.SafeAction):
            ways.send(row.names[0], Safe(place=row.place, version=action.version))
        elif isinstance(action, sn.AllSafeAction):
            for place in sorted(row.holding - {row.place}):
                ways.answer(row.names[place], AllSafe(version=action.version))
        elif isinstance(action, sn.ForgetAction):
            self._copies.pop((action.place, action.version)).release()
            if action.place == row.place:
                # What was not sent yet has nothing left to be sent from.
                self._outgoing = deque(each for each in self._outgoing if each[0] != action.version)
        else:
            self.dropped += 1
