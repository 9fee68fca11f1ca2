"""What a service's log says of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

from elasticflow.master.log import say
from elasticflow.process.texts import with_clock_times
from elasticflow.service import happenings as hp
from elasticflow.service.state import ServiceState


class TaskLog:
    """Each thing once: it remembers what was said last."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._told: dict[str, tuple[str, str]] = {}

    def say_news(self, happened: Sequence[hp.Happening]) -> None:
        """What is news of each task that is under way, was so the last time, or was just handed in."""
        accounts = self._state.ledger.accounts
        new = [each.task.name for each in happened if isinstance(each, hp.HandedIn)]
        for name in dict.fromkeys([*self._told, *accounts, *new]):
            ticket, account = self._state.tickets[name], accounts.get(name)
            state = f" ({ticket.state})" if ticket.state else ""
            said = f": {ticket.said}" if ticket.said else ""
            words = (
                f"{ticket.standing.value}{state}{said}",
                f"{account.granted} workers: {ticket.why}" if account else "",
            )
            if self._told.get(name) != words:
                self._told[name] = words
                say(with_clock_times(f"{name}: {'; '.join(word for word in words if word)}"))
            if account is None:
                del self._told[name]
