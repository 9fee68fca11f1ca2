"""All decisions about snapshots: messages and the time in, actions out. Knows nothing of arrays.

A snapshot is one place's chunks, values and slots, at one version, in two memories: of the server at
that place, and of its *keeper*, another one in the row, if possible one that does not live and die with it.
The leading server orders one, and every server that has chunks takes it at the same version (TakeAction)
and sends it to its keeper (KeepAction), which says when it has it all (KeptAction). The leading server is
told (SafeAction), and once it has heard of all places it tells all (AllSafeAction): from then on older ones
are of no use. So, from the first one of a generation on, there is a version that two servers have of every
place; each holds two versions at most. A generation that begins from a newer version than the last that was
safe keeps that until its own is.

A copy is known by (place, version) and nothing else: the same bits, whenever and by whom it was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from elasticflow.wire.messages import AllSafe, Keep, Kept, Safe

REST, SELDOM = 4.0, 20.0
"""Between two orders at least so many times as long as the first took: most time is to be free of it. And so
many times as long as it was on its way is enough, whenever the next would be due: that is cheap."""

Copy: TypeAlias = tuple[int, int]
"""(place, version)."""


class ServerRow(msgspec.Struct, frozen=True):
    """The servers of one generation, by place.

    parcels: how many each of them holds; of one that stands by, 0. place: of this server.
    last_version: the one the run ends with. snapshots: whether any are made. carriers: by place, with whom
    its server lives and dies, "" with nobody; servers beyond these leave, and keep nothing.
    """

    names: tuple[str, ...]
    parcels: tuple[int, ...]
    place: int
    last_version: int
    snapshots: bool = True
    carriers: tuple[str, ...] = ()

    @property
    def leads(self) -> bool:
        return self.place == 0

    @property
    def holding(self) -> frozenset[int]:
        """Places with chunks."""
        return frozenset(place for place, count in enumerate(self.parcels) if count)

    def keeper(self, place: int) -> str:
        """The server that keeps the snapshots of a place; "" if there is none."""
        carriers = self.carriers or ("",) * len(self.names)
        if not self.snapshots or len(carriers) < 2 or place not in self.holding:
            return ""
        others = [(place + step) % len(carriers) for step in range(1, len(carriers))]
        mine = carriers[place]
        apart = [other for other in others if not mine or carriers[other] != mine] or others
        rank = carriers[:place].count(mine) if mine else 0  # places of one carrier go to several others
        return self.names[apart[rank % len(apart)]]


# --- actions -------------------------------------------------------------------------------------


class TakeAction(msgspec.Struct, frozen=True):
    """Hold a copy of this place's chunks at this version, the newest."""

    version: int


class KeepAction(msgspec.Struct, frozen=True):
    """Send the copy of this place's chunks at this version to the keeper, parcel by parcel."""

    version: int


class StoreAction(msgspec.Struct, frozen=True):
    """Hold the arrays of a parcel that came just now."""

    place: int
    version: int
    parcel: int


class KeptAction(msgspec.Struct, frozen=True):
    """Tell the server at that place that all of its copy is here."""

    place: int
    version: int


class SafeAction(msgspec.Struct, frozen=True):
    """Tell the leading server that the keeper has all of this place's copy."""

    version: int


class AllSafeAction(msgspec.Struct, frozen=True):
    """Tell all servers with chunks that all places' copies are kept."""

    version: int


class ForgetAction(msgspec.Struct, frozen=True):
    """Let go of a copy, whole or not."""

    place: int
    version: int


class RefuseAction(msgspec.Struct, frozen=True):
    """A message made no sense, and was dropped."""

    sender: str
    reason: str


Action: TypeAlias = (
    TakeAction | KeepAction | StoreAction | KeptAction | SafeAction | AllSafeAction | ForgetAction
    | RefuseAction
)  # fmt: skip


class Snapshots:
    """What a process has of all snapshots, through all generations that it lives in; see above."""

    def __init__(self) -> None:
        self._row = ServerRow((), (), -1, 0)
        self._snapshot_s, self._every = 0.0, 0
        self._whole: set[Copy] = set()
        self._coming: dict[Copy, set[int]] = {}
        """By copy that is on its way here: its parcels that have come. One a place at most."""
        self._kept: dict[int, str] = {}
        """By version of this place: the keeper that has said it has it."""
        self._ordered: int | None = None
        """The version that is not known to be safe everywhere yet."""
        self._ordered_s: float | None = None
        self._last = 0
        """The version that was ordered last."""
        self._made_s: float | None = None
        """When it was whole here, and on its way to its keeper."""
        self._took_s = self._sent_s = 0.0
        """Of the last order: how long that took, and how much of it since it was whole."""
        self._safe: set[int] = set()

    @property
    def held(self) -> tuple[Copy, ...]:
        """The copies that are whole: of this place, and of others."""
        return tuple(sorted(self._whole))

    # --- generations -----------------------------------------------------------------------------

    def enter(
        self, row: ServerRow, start: int | None, snapshot_s: float, now_s: float, every: int = 0
    ) -> list[Action]:
        """Another generation begins, from the copies of version ``start``; None: from none.

        All others are forgotten, but the newest before that of each place, and those that are not whole. The
        leading server counts ``start`` as ordered: with ``made`` each server sees to it that its copy is with
        its keeper, who may be another than before.
        snapshot_s: seconds between two orders, unless there are ``every`` versions between them, or the first
        was so quick that there may be another. every: with it, what one takes counts from where it was whole.
        """
        at_home = row.place == self._row.place
        self._kept = {v: keeper for v, keeper in self._kept.items() if at_home and v == start}
        self._row, self._snapshot_s, self._every = row, snapshot_s, every
        self._safe = set()
        self._ordered, self._ordered_s, self._made_s = None, None, None
        self._took_s = self._sent_s = 0.0
        if start is not None and row.keeper(0):
            self._ordered, self._ordered_s, self._last = start, now_s, start
        before = dict(copy for copy in self.held if start is not None and copy[1] < start)
        stays = {*before.items(), *((place, start) for place, _ in self._whole)}
        return self._forget([*self._coming, *self._whole.difference(stays)])

    def hold(self, copy: Copy) -> None:
        """There is a copy of a place that another server is to have."""
        self._whole.add(copy)

    def fetched(self, version: int, holder: str) -> None:
        """This place's chunks have come from ``holder``, which goes on holding them."""
        self._kept[version] = holder

    # --- the order -------------------------------------------------------------------------------

    def order(self, version: int, now_s: float) -> bool:
        """Whether the leading server wants a snapshot of a version that is still to be made.

        To be asked once for each version. True is the order.
        """
        if not (self._row.leads and self._row.keeper(0)) or self._ordered is not None:
            return False
        often = self._every > 0 and version >= self._last + self._every
        usual_s = min(self._snapshot_s, SELDOM * self._sent_s) if self._sent_s else self._snapshot_s
        rest_s = max(0.0 if often else usual_s, REST * self._took_s)
        if self._ordered_s is not None and now_s < self._ordered_s + rest_s:
            return False
        self._ordered, self._ordered_s, self._made_s, self._safe = version, now_s, None, set()
        self._last = version
        return True

    def made(self, version: int, now_s: float) -> list[Action]:
        """A version of which a snapshot was ordered is whole here; or a generation begins from it.

        That it was ordered shows that the one before is safe everywhere: only that one stays.
        """
        place, keeper = self._row.place, self._row.keeper(self._row.place)
        if version == self._ordered:
            self._made_s = now_s
        mine = sorted(known for at, known in self._whole if at == place)
        if not keeper or (mine and version < mine[-1]):
            return []
        actions: list[Action] = []
        if version not in mine:
            actions += self._forget((place, old) for old in mine[:-1])
            actions.append(TakeAction(version))
            self._whole.add((place, version))
        if self._kept.get(version) == keeper:
            return actions + self._tell_safe(version, now_s)
        return [*actions, KeepAction(version)]

    # --- messages --------------------------------------------------------------------------------

    def receive(self, sender: str, message: Keep | Kept | Safe | AllSafe, now_s: float) -> list[Action]:
        """A message of another server."""
        if isinstance(message, Keep):
            reason = self._why_not_keep(sender, message)
            actions = [] if reason else self._keep(message)
        elif isinstance(message, Kept):
            known = message.place == self._row.place and (message.place, message.version) in self._whole
            reason = "" if known and sender == self._row.keeper(message.place) else "not of a copy from here"
            actions = [] if reason else self._on_kept(sender, message.version, now_s)
        elif isinstance(message, Safe):
            right = (
                self._row.leads and message.place in self._row.holding and message.version == self._ordered
            )
            reason = "" if right and sender == self._row.names[message.place] else "not what was ordered"
            actions = [] if reason else self._on_safe(message.place, now_s)
        else:
            mine = (self._row.place, message.version)
            leads = self._row.names[:1] == (sender,) and not self._row.leads
            reason = (
                "" if leads and mine in self._whole else "not from the leading server, or of nothing here"
            )
            actions = [] if reason else self._forget_older(message.version)
        return [RefuseAction(sender, f"{message}: {reason}")] if reason else actions

    def _why_not_keep(self, sender: str, keep: Keep) -> str:
        row, copy = self._row, (keep.place, keep.version)
        if not 0 <= keep.place < len(row.names) or row.keeper(keep.place) != row.names[row.place]:
            return "that place is not kept here"
        if sender != row.names[keep.place]:
            return "of another server's place"
        if not 0 <= keep.parcel < row.parcels[keep.place] or not 0 <= keep.version <= row.last_version:
            return "there is no such thing"
        newer = [known for at, known in (*self._whole, *self._coming) if at == keep.place]
        if keep.version < max(newer, default=0):
            return "there is a newer one"
        return "a second time" if keep.parcel in self._coming.get(copy, ()) else ""

    def _keep(self, keep: Keep) -> list[Action]:
        copy, count = (keep.place, keep.version), self._row.parcels[keep.place]
        if copy in self._whole:  # its owner does not know that
            return [KeptAction(*copy)] if keep.parcel == count - 1 else []
        actions: list[Action] = []
        if copy not in self._coming:
            whole = sorted(known for known in self._whole if known[0] == keep.place)
            actions += self._forget([*whole[:-1], *(old for old in self._coming if old[0] == keep.place)])
            self._coming[copy] = set()
        self._coming[copy].add(keep.parcel)
        actions.append(StoreAction(*copy, keep.parcel))
        if len(self._coming[copy]) == count:
            del self._coming[copy]
            self._whole.add(copy)
            actions.append(KeptAction(*copy))
            if self._row.holding == {keep.place}:  # so this is all there is to be safe
                actions += self._forget_older(keep.version)
        return actions

    def _on_kept(self, keeper: str, version: int, now_s: float) -> list[Action]:
        self._kept[version] = keeper
        return self._tell_safe(version, now_s)

    def _tell_safe(self, version: int, now_s: float) -> list[Action]:
        if not self._row.leads:
            return [SafeAction(version)]
        return self._on_safe(self._row.place, now_s) if version == self._ordered else []

    def _on_safe(self, place: int, now_s: float) -> list[Action]:
        self._safe.add(place)
        version = self._ordered
        if self._safe < self._row.holding or version is None or self._ordered_s is None:
            return []
        made_s = self._ordered_s if self._made_s is None else self._made_s
        self._took_s = now_s - (made_s if self._every else self._ordered_s)
        self._sent_s, self._ordered = now_s - made_s, None
        return [AllSafeAction(version), *self._forget_older(version)]

    # --- letting go ------------------------------------------------------------------------------

    def _forget_older(self, version: int) -> list[Action]:
        """Forgets what is older than a version that is safe, of places that are kept elsewhere now, too."""
        return self._forget(copy for copy in self._whole if copy[1] < version)

    def _forget(self, copies: Iterable[Copy]) -> list[Action]:
        gone = sorted(set(copies))
        for copy in gone:
            self._whole.discard(copy)
            self._coming.pop(copy, None)
            if copy[0] == self._row.place:
                self._kept.pop(copy[1], None)
        return [ForgetAction(*copy) for copy in gone]
