"""All decisions of a worker's end of the data plane: events in, actions out.

Knows nothing of sockets or arrays: what a parcel's message carries is opaque here. One ClientState
belongs to one row of connections, all of the same generation of servers; it ends with the first that
closes, and the next row gets a new one.

It is either *catching up* or *following*. Who catches up asks each server for the latest version it
has, and the servers meet at the oldest of these: those that are ahead still have it, since they keep two
versions, or say that it is gone, and how far they are by now, which tells what is not worth asking
for any more. Who follows has pushed, or asked, and gets the next version parcel by parcel. A version
is adopted once all parcels of all servers are there, and never before.

Who follows puts each parcel into the state as it comes, while others are still on their way. That nobody
needs the version before any more is likely, not certain: if there is something left to be computed from it,
it is asked for again, since all servers still have it.

Asynchronously the version of the present tick is asked for again before each slice but the first: it comes
with what was applied to it since, parcel by parcel. So the state is a mixture mostly; ``bases`` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from elasticflow.step.schedule import Schedule
from elasticflow.training.advice import Question
from elasticflow.wire.messages import Compute, Consult, FromServer, Gone, Share, Uninitialised, Version

LATEST = -1
"""Asks for whatever is the newest version."""

# --- events --------------------------------------------------------------------------------------


class GreetedEvent(NamedTuple):
    """A server has answered the handshake: it may be asked."""

    server: int


class ReceivedEvent(NamedTuple):
    """A server's message. frames: what came with it, None if that is not what the parcel needs."""

    server: int
    message: FromServer
    frames: Any


class LinkClosedEvent(NamedTuple):
    """The connection to a server has closed."""

    server: int


class OrderEvent(NamedTuple):
    """Slices of the present tick are to be computed, by the master's order.

    rest: or, where they are applied one by one, they are what is left of the worker's own.
    """

    tick: int
    slices: tuple[int, ...]
    rest: bool = False


Event: TypeAlias = GreetedEvent | ReceivedEvent | LinkClosedEvent | OrderEvent

# --- actions -------------------------------------------------------------------------------------


class PullAction(NamedTuple):
    """Ask a server for a version."""

    server: int
    version: int
    have: int


class InitialAction(NamedTuple):
    """Send a server the first values of all its parcels."""

    server: int


class PlaceAction(NamedTuple):
    """Put a parcel of the next version into the state, which is a mixture from now on."""

    server: int
    parcel: int
    frames: Any


class AdoptAction(NamedTuple):
    """A version is there: put into the state what has not been yet.

    frames: of each server, by parcel. orders: what the leading server said of the tick from there on.
    """

    version: int
    frames: list[dict[int, Any]]
    orders: Version


class RestoreAction(NamedTuple):
    """The version that is held is there again: put it into the state. frames: of each server, by parcel."""

    frames: list[dict[int, Any]]


class ComputeSlicesAction(NamedTuple):
    """Compute these slices of the present tick as well, with care those of them that may be deadly."""

    tick: int
    slices: tuple[int, ...]
    careful: tuple[int, ...] = ()


class AskProgramAction(NamedTuple):
    """The leading server wants to know what the program's ``on_epoch`` says."""

    question: Question


class SeveredAction(NamedTuple):
    """The way to a server is lost, and with it this row of connections."""

    server: int


class IgnoreAction(NamedTuple):
    """A message made no sense, and was dropped."""

    server: int
    reason: str


Action: TypeAlias = (
    PullAction | InitialAction | PlaceAction | AdoptAction | RestoreAction | ComputeSlicesAction
    | AskProgramAction | SeveredAction | IgnoreAction
)  # fmt: skip

NOTHING: Sequence[Action] = ()
PLACED = ()
"""Stands for the frames of a parcel that is in the state already."""


class _ServerView:
    """One server, as this worker sees it.

    asked: the version it was asked for last, while catching up. version: the one that is being collected.
    """

    __slots__ = ("num_parcels", "greeted", "asked", "version", "frames", "updates", "orders")

    def __init__(self, num_parcels: int) -> None:
        self.num_parcels = num_parcels
        self.greeted = False
        self.asked = LATEST
        self.version = -1
        self.frames: dict[int, Any] = {}
        self.updates: dict[int, int] = {}
        self.orders: Version | None = None

    @property
    def whole(self) -> bool:
        return len(self.frames) == self.num_parcels

    def forget(self) -> None:
        self.version, self.frames, self.updates, self.orders = -1, {}, {}, None


class _Asked:
    """Slices of the present tick that somebody asked this worker for, beside those of the plan."""

    def __init__(self) -> None:
        self.ordered: set[int] = set()
        """To be computed once ``held`` is in the state again."""
        self.extra: set[int] = set()
        """Those that are not left to others."""
        self.careful: set[int] = set()
        """Of this tick, or the one before: those that a server says are to be computed with care."""

    def take(self, slices: tuple[int, ...], *, rest: bool) -> None:
        """rest: they are the worker's own."""
        self.extra.update(() if rest else slices)

    def left(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """What was ordered, without the worker's own that were ``given`` to others meanwhile."""
        return tuple(sorted(self.ordered - set(given).difference(self.extra)))

    def forget(self) -> None:
        """Another tick begins. What is ordered was forgotten when the version came."""
        self.extra.clear()
        self.careful.clear()


class ClientState:
    """See the module's text.

    num_parcels: of each server, the leading one first; each has one at least. has_first: the worker's
    state holds the first values of all, for servers that have none. held: the version in the state; -1:
    none that came over these connections. fills: how often the state has been filled by answers of all
    servers. bases: of each server, by parcel, the updates of the present tick in the state.
    """

    def __init__(self, num_parcels: Sequence[int], schedule: Schedule, *, has_first: bool) -> None:
        self._servers = [_ServerView(number) for number in num_parcels]
        self._schedule = schedule
        self._has_first = has_first
        self.held = -1
        self.fills = 0
        self.bases: list[dict[int, int]] = [{} for _ in num_parcels]
        self._mixed = False
        """The state is not ``held`` alone: parcels of the version after it, or updates, are in it."""
        self._placed: set[tuple[int, int]] = set()
        """(server, parcel) of those. All others are of ``held``."""
        self._asked = _Asked()
        self._catching_up = True
        self._floor = 0
        """No server has an older version than this any more, or will not when it is asked."""
        self._severed = False

    @property
    def ordered(self) -> bool:
        """Whether there are slices to be computed once ``held`` is there again."""
        return bool(self._asked.ordered)

    def handle(self, event: Event) -> Sequence[Action]:
        """What to do, in this order, now that ``event`` has happened."""
        if self._severed:  # others of the row may have sent what is still to be read
            return NOTHING
        if isinstance(event, ReceivedEvent):
            number, message, frames = event
            reader = _READERS.get(type(message))
            if reader is None:
                return [IgnoreAction(number, f"{type(message).__name__} is not for a worker")]
            return reader(self, number, message, frames)
        if isinstance(event, GreetedEvent):
            self._servers[event.server].greeted = True
            return [self._ask(event.server, LATEST)]
        if isinstance(event, OrderEvent):
            return self._order(event.tick, event.slices, rest=event.rest)
        self._severed = True
        return [SeveredAction(event.server)]

    # --- versions --------------------------------------------------------------------------------

    def _on_version(self, number: int, message: Version, frames: Any) -> Sequence[Action]:
        server, version = self._servers[number], message.version
        parcel, num_parcels = message.parcel, server.num_parcels
        fits = frames is not None and 0 <= parcel < num_parcels and 0 <= version <= self._schedule.total_ticks
        if not fits or (message.same and self.held < 0) or not self._are_shares(message.shares):
            return [IgnoreAction(number, f"version {version}, parcel {parcel}: not what it should be")]
        # Late answers to earlier questions are passed over: there is one to the last question, too.
        if message.same and (number, parcel) in self._placed:
            return NOTHING
        if self._catching_up:
            wanted = version >= self._floor and server.asked in (LATEST, version)
        else:
            wanted = version == self.held + 1
        if not wanted or len(server.frames) == num_parcels:
            return NOTHING
        if version != server.version:
            server.forget()
            server.version = version
        places = not self._catching_up and not message.same
        server.frames[parcel], server.updates[parcel] = PLACED if places else frames, message.updates
        if parcel == 0:
            server.orders = message
        actions: Sequence[Action] = [PlaceAction(number, parcel, frames)] if places else NOTHING
        if places and self._schedule.trains(self.held):  # other ticks change nothing of the model
            self._mixed = True
            self._placed.add((number, parcel))
        if len(server.frames) < num_parcels or not all([each.whole for each in self._servers]):
            return actions
        return self._meet() if self._catching_up else [*actions, *self._adopt()]

    def _are_shares(self, shares: tuple[Share, ...]) -> bool:
        return all([0 <= share.first <= share.stop <= self._schedule.num_slices for share in shares])

    def _meet(self) -> Sequence[Action]:
        """Every server has given a version; those that are ahead are asked for the oldest of these."""
        oldest = min(server.version for server in self._servers)
        ahead = [number for number, server in enumerate(self._servers) if server.version > oldest]
        return [self._ask(number, oldest) for number in ahead] or self._adopt()

    def _ask(self, number: int, version: int) -> PullAction:
        server = self._servers[number]
        server.forget()
        server.asked = version
        # Of a mixture no parcel can be left out as the ``same``: nobody but this worker knows what is in it.
        return PullAction(number, version, -1 if self._mixed else self.held)

    def _adopt(self) -> Sequence[Action]:
        lead = self._servers[0]
        assert lead.orders is not None and len({server.version for server in self._servers}) == 1
        version, orders, frames = lead.version, lead.orders, [server.frames for server in self._servers]
        ordered, again = self.ordered, version == self.held
        slices = self._asked.left(orders.given)
        self.bases = [server.updates for server in self._servers]
        made = [number for updates in self.bases for number in updates.values()]
        self._catching_up, self._mixed, self.held = False, any(made), version
        self._placed = {
            (n, parcel) for n, of in enumerate(self.bases) for parcel, count in of.items() if count
        }
        self.fills += 1
        self._asked.ordered.clear()
        for server in self._servers:
            server.forget()
        # A later version than the one that was asked for again: others have done what was ordered of it.
        if not (ordered and again):
            self._asked.forget()
            return [AdoptAction(version, frames, orders)]
        asks = [PullAction(number, version + 1, version) for number in range(len(self._servers))]
        if not self._schedule.applies_slices(version):
            return [RestoreAction(frames), *asks, self._compute(slices)]
        past = min(made) == self._schedule.num_slices  # to all servers
        needed = bool(slices) and not past
        return [RestoreAction(frames), *([self._compute(slices)] if needed else asks)]

    def _on_gone(self, number: int, message: Gone, frames: Any) -> Sequence[Action]:
        if not 0 <= message.latest <= self._schedule.total_ticks:
            return [IgnoreAction(number, f"there is no version {message.latest}")]
        if self._catching_up and self._servers[number].asked == LATEST:
            return NOTHING  # of an earlier question: the latest version is never gone
        self._asked.ordered.clear()
        # Whoever has a version has had the one before from all others.
        self._catching_up, self._floor = True, max(self._floor, message.latest - 1)
        behind = [
            number
            for number, server in enumerate(self._servers)
            if server.greeted and not (server.whole and server.version >= self._floor)
        ]
        return [self._ask(number, LATEST) for number in behind]

    def _on_uninitialised(self, number: int, message: Uninitialised, frames: Any) -> Sequence[Action]:
        if not (self._has_first and self._catching_up and self.held < 0):
            return [IgnoreAction(number, "asks for first values, which this worker has not got")]
        return [InitialAction(number)]

    def _on_compute(self, number: int, message: Compute, frames: Any) -> Sequence[Action]:
        slices = message.slices
        if (
            not slices
            or list(slices) != sorted({*slices})
            or slices[0] < 0
            or slices[-1] >= self._schedule.num_slices
        ):
            return [IgnoreAction(number, f"there are no slices {slices}")]
        if message.tick == self.held:
            self._asked.careful.update(message.careful)
        return self._order(message.tick, slices)

    def _on_consult(self, number: int, message: Consult, frames: Any) -> Sequence[Action]:
        tick = message.question.tick
        if number or not self._schedule.evaluates(tick):
            return [IgnoreAction(number, f"asks what the program says to tick {tick}")]
        return [AskProgramAction(message.question)]

    def _order(self, tick: int, slices: tuple[int, ...], *, rest: bool = False) -> Sequence[Action]:
        if tick != self.held or (self._catching_up and not self.ordered):
            return NOTHING  # somebody else was quicker
        self._asked.take(slices, rest=rest)
        refreshes = self._schedule.applies_slices(tick)
        if not (self._mixed or refreshes):
            return [self._compute(slices)]
        begun = self.ordered
        self._asked.ordered.update(slices)
        if begun:
            return NOTHING
        self._catching_up = True
        return [self._ask(number, self.held) for number in range(len(self._servers))]

    def _compute(self, slices: tuple[int, ...]) -> ComputeSlicesAction:
        careful = tuple(number for number in slices if number in self._asked.careful)
        return ComputeSlicesAction(self.held, slices, careful)


_READERS: dict[type, Callable[[ClientState, int, Any, Any], Sequence[Action]]] = {
    Version: ClientState._on_version,
    Compute: ClientState._on_compute,
    Consult: ClientState._on_consult,
    Gone: ClientState._on_gone,
    Uninitialised: ClientState._on_uninitialised,
}
