"""The threads and clocks around a Sizing: it decides, they ask the cluster, and tell it the answers."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from elasticflow.cluster.clerk import Clerk
from elasticflow.cluster.contract import Backend, Ended
from elasticflow.cluster.news import taken
from elasticflow.cluster.sizing import End, Poll, Sizing
from elasticflow.errors import RunError
from elasticflow.run.settings import MemberSettings

DRAINED_POLLS = 10
"""With every so many polls, nodes are looked at that are being drained."""


class SizedBackend(Backend):
    """A backend says how its cluster is asked: ``_poll``, ``_end``, and ``_do`` for actions of its own."""

    tells_killed = False

    def __init__(self, sizing: Sizing[Any, Any], clerk: Clerk[Any], *others: Clerk[Any]) -> None:
        """clerk: asks the cluster about members' places. others: ask other things."""
        self._sizing, self._clerk, self._clerks = sizing, clerk, (clerk, *others)
        self._settings: dict[str, MemberSettings] = {}
        """Of members that are wanted."""
        self._polls_left = 0
        """Until nodes are looked at that are being drained."""

    def start(self, settings: MemberSettings) -> None:
        self._want(settings)

    def _want(self, settings: MemberSettings, id: Any = None) -> None:
        """id: of what has been asked for already."""
        self._settings[settings.name] = msgspec.structs.replace(settings, started_s=0.0)
        self._sizing.want(settings.name, time.monotonic(), id)
        self._act()

    def kill(self, name: str) -> None:
        self._settings.pop(name, None)
        self._sizing.unwant(name, time.monotonic())
        self._act()

    def give_up(self, name: str) -> None:
        self._sizing.blame(name, time.monotonic())
        self.kill(name)

    def wait_fds(self) -> list[int]:
        return [clerk.fd for clerk in self._clerks]

    def next_time_s(self) -> float | None:
        return self._sizing.next_time_s()

    def ended(self) -> list[Ended]:
        for clerk in self._clerks:
            clerk.turn()
        self._act()
        if self._sizing.fatal:
            raise RunError(self._sizing.fatal)
        ended = taken(self._sizing.news.ended)
        for each in ended:
            self._settings.pop(each.name, None)
        return ended

    @property
    def num_running(self) -> int:
        return self._sizing.num_places

    @property
    def num_worker_places(self) -> int:
        return self._sizing.num_worker_places

    def limit_workers(self, most: int) -> None:
        self._sizing.limit_workers(most)

    def look(self) -> None:
        self._sizing.look()
        self._act()

    def give_way(self) -> None:
        self._sizing.give_way(time.monotonic())

    def notes(self) -> list[tuple[str, str]]:
        return taken(self._sizing.news.notes)

    def shortage(self) -> str:
        return self._sizing.reason

    def placed(self) -> list[str]:
        return taken(self._sizing.news.placed)

    def returns(self) -> dict[str, str]:
        return dict(taken(self._sizing.news.returns))

    # --- in the clerk's thread -------------------------------------------------------------------

    @abstractmethod
    def _poll(self) -> Sequence[Any]:
        """All that there is."""

    @abstractmethod
    def _end(self, id: Any) -> None:
        """Ends what has this id, or its ask; if it is over, or was never there, does nothing."""

    def _end_all(self, ids: Iterable[Any]) -> None:
        for id in ids:
            self._end(id)

    def _drained(self) -> Collection[str]:
        """Nodes that their operators are emptying."""
        return ()

    # --- what was decided ------------------------------------------------------------------------

    def _act(self) -> None:
        for action in self._sizing.decide(time.monotonic()):
            match action:
                case Poll():
                    self._clerk.order(self._poll, self._polled)
                    self._polls_left = (self._polls_left - 1) % DRAINED_POLLS
                    if self._sizing.leaves_drained and not self._polls_left:
                        self._order_drained()
                case End():
                    self._clerk.order(partial(self._end_all, action.ids), lambda _: None)
                case _:
                    self._do(action)

    @abstractmethod
    def _do(self, action: Any) -> None:
        """Does what else was decided."""

    def _order_drained(self) -> None:
        self._clerk.order(self._drained, self._drained_told)

    def _drained_told(self, answer: Collection[str] | Exception) -> None:
        if not isinstance(answer, Exception):  # else the next look may tell
            self._sizing.drained(answer)

    def _polled(self, answer: Sequence[Any] | Exception) -> None:
        if isinstance(answer, Exception):
            self._sizing.unobserved(answer, time.monotonic())
        else:
            self._observed(answer)

    def _observed(self, sights: Sequence[Any]) -> None:
        self._sizing.observed(sights, time.monotonic(), time.time())

    def _asked(self, name: str, answer: Any) -> None:
        """An ask was answered: by an id, or an error."""
        if isinstance(answer, Exception):
            self._sizing.refused(name, answer, time.monotonic())
        else:
            self._sizing.accepted(name, answer, time.monotonic())
