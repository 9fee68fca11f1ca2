"""Workers that wait for versions of a server. Pure."""

from __future__ import annotations

import msgspec


class Wait(msgspec.Struct):
    """A worker's: for ``version``, while it has the parameters of ``have``. served: what it was sent. idle:
    it has nothing more to push before."""

    version: int
    have: int
    idle: bool = True
    served: set[int] = msgspec.field(default_factory=set)


class Waiting:
    """By worker, what it waits for; and who of them was asked what the program says to an evaluation."""

    def __init__(self) -> None:
        self.waits: dict[str, Wait] = {}
        self._consulted: set[str] = set()
        """About the evaluation that made the newest version."""

    def begin(self, worker: str, version: int, have: int, *, idle: bool = True) -> Wait:
        """A worker waits for a version from now on."""
        # Who asks for the same version again was sent some of it already, over this very connection.
        wait = self.waits.get(worker)
        if wait is None or wait.version != version:
            wait = self.waits[worker] = Wait(version, have, idle)
        wait.idle |= idle
        return wait

    def all(self) -> list[tuple[str, Wait]]:
        """As it is now: to be gone through while some are served."""
        return list(self.waits.items())

    def of(self, version: int) -> set[str]:
        """Who waits for this one."""
        return {worker for worker, wait in self.waits.items() if wait.version == version}

    def idle(self, version: int) -> set[str]:
        """Who of them has nothing more to push."""
        return {name for name, wait in self.waits.items() if wait.version == version and wait.idle}

    def beyond(self, version: int) -> list[str]:
        """Who waits for a later one."""
        return sorted(worker for worker, wait in self.waits.items() if wait.version > version)

    def to_consult(self, version: int) -> list[str]:
        """Who waits for this one and was not asked yet; from now on they count as asked."""
        fresh = sorted(self.of(version) - self._consulted)
        self._consulted.update(fresh)
        return fresh

    def consulted(self) -> None:
        """The program has said what it has to say."""
        self._consulted.clear()

    def forget(self, worker: str) -> None:
        """Its connection is gone. The question may have gone down with it: who comes again is asked again."""
        self._consulted.discard(worker)
        self.waits.pop(worker, None)
