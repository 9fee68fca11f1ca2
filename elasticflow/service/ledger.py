"""Who is granted how many workers: never more than there are, whatever a run still holds counted as taken.

A run that is to have fewer is told so at once; the others get what it had once it has given it back. So what
is granted and what is held never exceed the cluster together, however late anybody hears of anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Account:
    """Of one run. wanted: by the policy. granted: by the grant ``number``. held: it may have so many."""

    wanted: int = 0
    granted: int = 0
    held: int = 0
    number: int = 0


class Ledger:
    """Accounts by name."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}

    def settle(self, capacity: int, by_urgency: Iterable[str]) -> list[str]:
        """Grants what is wanted as far as it is free, the most urgent first. Whose grants are others now."""
        changed = []
        for name, account in self.accounts.items():
            if account.wanted < account.granted:
                account.granted, account.number = account.wanted, account.number + 1
                changed.append(name)
        free = max(0, capacity - sum(account.held for account in self.accounts.values()))
        for name in by_urgency:
            account = self.accounts[name]
            most = min(account.wanted, account.held + free)
            if most > account.granted:
                account.granted, account.number = most, account.number + 1
                free -= max(0, most - account.held)
                account.held = max(account.held, most)
                changed.append(name)
        return changed

    def confirm(self, name: str, workers: int, number: int) -> None:
        """It has no more than so many, and knows of that grant. An older grant says nothing of now."""
        account = self.accounts[name]
        if number == account.number:
            account.held = min(account.held, max(workers, account.granted))

    def close(self, name: str) -> None:
        """It is over, and holds nothing any more."""
        del self.accounts[name]
