"""How members come to be: keys first, then a process, or a worker to live with; and how they are ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from elasticflow.cluster.contract import Backend
from elasticflow.master import actions as ac
from elasticflow.master.connections import Connections
from elasticflow.master.keyring import Keyring
from elasticflow.master.members import Member, RunState
from elasticflow.master.state import MasterState
from elasticflow.run.folder import RunDir
from elasticflow.run.settings import MemberSettings
from elasticflow.wire.messages import Carry


class Starting:
    """is_wanted: asked of a member once its keys are there. failed: told of one, and why it has none."""

    def __init__(
        self,
        run: RunDir,
        state: MasterState,
        backend: Backend,
        connections: Connections,
        keyring: Keyring,
        *,
        is_wanted: Callable[[str], bool],
        failed: Callable[[str, str], None],
    ) -> None:
        self._run, self._state = run, state
        self._backend, self._connections, self._keyring = backend, connections, keyring
        self._is_wanted, self._failed = is_wanted, failed
        self._carried: dict[str, str] = {}
        """By server that its worker is told to carry: that worker."""

    def is_carried(self, member: Member) -> bool:
        """Whether it lives with a worker, or waits for one: it is no affair of the backend's."""
        return member.role == "server" and self._state.config.all_reduce

    def is_homeless(self, member: Member) -> bool:
        """It waits for a worker to carry it. If it lives, a master before had not written down whose."""
        return self.is_carried(member) and not member.carrier

    def places(self) -> dict[str, str]:
        """By member, where it is, or what it waits for."""
        members = self._state.members.values()
        places = {each.name: f"carried by {each.carrier}" for each in members if each.carrier}
        return places | {name: where for name in self._state.members if (where := self._backend.where(name))}

    def start(self, action: ac.StartAction, *, waits: bool = False) -> None:
        waits = waits or self._state.state is RunState.STARTING
        if action.carrier:
            done = partial(self._carry, action.name, action.carrier)
            return self._keyring.give(action.name, done, waits=waits)
        settings = MemberSettings.of(
            self._state.config,
            name=action.name,
            role=action.role,
            host=self._backend.member_host,
            master=self._connections.endpoint,
            run_dir=str(self._run.path),
            started_s=time.time(),
        )
        self._keyring.give(action.name, lambda error: self._launch(settings, error), waits=waits)

    def _launch(self, settings: MemberSettings, error: str) -> None:
        if self._has_keys(settings.name, error):
            self._backend.start(settings)

    def _carry(self, name: str, carrier: str, error: str) -> None:
        if self._has_keys(name, error):
            self._carried[name] = carrier
            self.tell_carrier(carrier)

    def _has_keys(self, name: str, error: str) -> bool:
        """A member's keys are there, or cannot be; meanwhile it may not be wanted any more."""
        wanted = self._is_wanted(name)
        if wanted and error:
            self._failed(name, f"could not be given its keys: {error}")
        return wanted and not error

    def tell_carrier(self, worker: str) -> None:
        """Which servers it carries."""
        servers = tuple(name for name, carrier in self._carried.items() if carrier == worker)
        self._connections.tell(worker, Carry(servers=servers))

    def kill(self, action: ac.KillAction) -> None:
        if carrier := self._carried.pop(action.name, ""):
            return self.tell_carrier(carrier)
        end = self._backend.give_up if action.never_came else self._backend.kill
        end(action.name)

    def assign(self, action: ac.AssignAction) -> None:
        self._connections.tell(action.name, self._keyring.told(action.name, action.assignment))
