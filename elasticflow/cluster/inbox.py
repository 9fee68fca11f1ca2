"""What has come for a member from its master, between the thread that hears it and the one that reads it."""

from __future__ import annotations

from collections import deque

from elasticflow.process.fd_event import FdEvent
from elasticflow.wire.messages import FromMaster


class Inbox:
    """One thread puts, another takes: in the order in which things came."""

    def __init__(self) -> None:
        self._messages: deque[FromMaster] = deque()
        self._news = FdEvent()

    @property
    def fd(self) -> int:
        """Becomes readable whenever there may be something that was not taken."""
        return self._news.fd

    def put(self, message: FromMaster) -> None:
        self._messages.append(message)
        self._news.set()

    def take(self) -> list[FromMaster]:
        """All that is there."""
        # Before it looks: what comes meanwhile sets it again.
        self._news.clear()
        taken: list[FromMaster] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken

    def take_first(self, kinds: tuple[type, ...]) -> FromMaster | None:
        """The first of these kinds; None: there is none yet. Others stay."""
        self._news.clear()
        for place in range(len(self._messages)):
            if isinstance(message := self._messages[place], kinds):
                del self._messages[place]
                if self._messages:
                    self._news.set()
                return message
        return None
