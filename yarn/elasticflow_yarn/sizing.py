"""All decisions about containers: what happened and the time in, actions and reasons out. Pure.

The master decides which members there are to be, and names each once. Here it is decided when a member
becomes a request for a container, which of them give their places back, what became of a member whose
container is over, and, in one sentence, why fewer workers run than are wanted.

A request that waits costs YARN nothing, and while a queue has less than its share it is what makes YARN
take containers from others: those are made at once. Beyond its share, once a request has waited for
``patience_s``, a single one stays: it is the bell that rings when a GPU becomes idle. Then there are two,
four and so on, as long as they start.

A request for more than any registered node has would end the ApplicationMaster: none is made without a
look at the nodes. Skein and the ResourceManager each count requests, and on a busy cluster their counts may
come apart: one that YARN does not know of, or does not grant though there is room, is made again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import Enum

import msgspec

from elasticflow.cluster.contract import Ended, How
from elasticflow.cluster.nodes import Nodes
from elasticflow.cluster.pause import NEVER_S, Pause
from elasticflow.master.members import number_of
from elasticflow_yarn import shares
from elasticflow_yarn.application import Container
from elasticflow_yarn.causes import LAUNCH_S, Cause, CauseVerdict, first_cause, judge, lasted_s
from elasticflow_yarn.cluster import YarnNode, YarnQueue
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.errors import ApplicationGone, SkeinNotInstalled, YarnError, YarnRefused
from elasticflow_yarn.resources import Resources
from elasticflow_yarn.shares import Measure, Pressure

WORKER, SERVER, PULSE = "worker", "server", "pulse"
"""Services."""
AHEAD_MOST = 64
"""How many requests may ever wait, beyond the least number of workers and beyond the queue's share."""
BUSY_FIRST_S, BUSY_MOST_S = 1.0, 30.0
"""Pauses while the ApplicationMaster refuses requests, or does not answer."""
RELAUNCH_FIRST_S, RELAUNCH_MOST_S = 5.0, 300.0
"""Pauses after a container that could not be started, or came up on a node that is left out."""
SHUNS = 4
"""After so many in a row there is room on nodes that are left out alone: they are used again."""
PULSE_S = 30.0
"""After so long without a request the pulse ends: others might be made to give for it what it never takes."""
LOOK_S = 0.2
"""Polls are no closer together than this."""
GONE_S, GONE_POLL_S = 3.0, 0.5
"""An ApplicationMaster at which nobody listens for so long is gone; how often it is tried until then."""
KILL_AGAIN_S = 10.0
"""A container that still lives so long after it was killed is killed again."""
WORDS_S = 10.0
"""For so long a member's last words are waited for."""
GIVE_WAY_S = 5.0
"""After a worker was told to leave, no more are asked for beyond the least number for so long."""
DEAF_S, DEAF_MOST_S = 60.0, 30.0
"""A ResourceManager that is silent for longer than this holds nothing up any more; pauses until then."""
FRESH_VIEWS = 2.5
"""The last look at the cluster is good for so many times the time between two."""
STRANGE_S, STRANGE_VIEWS = 15.0, 3
"""So long, and in so many looks, YARN and Skein must differ about a container."""
OVERDUE_FIRST_S, OVERDUE_MOST_S = 30.0, 900.0
"""A request has waited in vain for so long before it is made again; pauses before the next is."""
REGISTER_S = 120.0
"""For so long a node may be missing after a restart of the ResourceManager, and with it its containers."""
RETURN_S = 15.0
"""Workers that were told to give their places back count as on their way for so long."""
REST_S = 30.0
"""So long after others have waited for what is theirs, nothing is asked for beyond the queue's share."""


class Add(msgspec.Struct, frozen=True):
    """Answered by ``added`` or ``not_added``."""

    name: str
    service: str


class Kill(msgspec.Struct, frozen=True):
    """Needs no answer: polls show what came of it."""

    id: str


class Signal(msgspec.Struct, frozen=True):
    """Ends a container, by YARN's id, that Skein has forgotten. Needs no answer."""

    yarn_id: str


class ReadWords(msgspec.Struct, frozen=True):
    """A member's last words. Answered by ``heard``."""

    name: str


class YarnPoll(msgspec.Struct, frozen=True):
    """Skein's containers. Answered by ``observed`` or ``unobserved``. There is no other before that."""


class LookAround(msgspec.Struct, frozen=True):
    """Nodes and queues. Answered by ``viewed`` or ``not_viewed``. There is no other before that."""


Action = Add | Kill | Signal | ReadWords | YarnPoll | LookAround


class View(msgspec.Struct, frozen=True):
    """What the ResourceManager shows. containers: YARN's ids of this attempt's, "" left out."""

    nodes: tuple[YarnNode, ...]
    queues: tuple[YarnQueue, ...]
    containers: frozenset[str] = frozenset()


class ContainerPhase(Enum):
    """Where a member's container is."""

    WANTED = "wanted"
    """There is none yet."""
    ASKED = "asked"
    """Skein has been asked for one, and has not answered."""
    REQUESTED = "requested"
    """It waits for its place."""
    RUNNING = "running"
    """It has its place."""
    WITHDRAWN = "withdrawn"
    """The request was taken back; another will be made."""
    SHUNNED = "shunned"
    """It came up on a node that is left out, and is ended."""
    OVER = "over"
    """It has ended; its last words are being read."""
    LEAVING = "leaving"
    """The member is not wanted any more."""


_LINE = (ContainerPhase.ASKED, ContainerPhase.REQUESTED)
"""Phases that count as waiting in line."""
_ENDING = (ContainerPhase.WITHDRAWN, ContainerPhase.SHUNNED, ContainerPhase.LEAVING)
"""Phases of containers that were killed from here."""


class Tenant(msgspec.Struct):
    """A member and its container, if there is one."""

    name: str
    service: str
    phase: ContainerPhase
    since_s: float
    """When it came into this phase."""
    id: str = ""
    """Skein's, of its container."""
    container: Container | None = None
    """As the last poll showed it."""
    missed_s: float | None = None
    """Since when YARN has not shown its container, though Skein says that it runs; None: it does."""
    missed: int = 0
    """How many looks in a row have not, though they have shown its node."""
    overdue: int = 0
    """In how many looks in a row its request should have been granted."""
    vanished: bool = False
    adopted: bool = False
    """Its container was not asked for here, and there will not be another for this member."""
    returned_s: float = NEVER_S
    """When it was told to give its place back."""


class YarnSizing:
    """See the module's docstring.

    Call ``decide`` after each event, and at ``next_time_s``. Of the times, ``now_s`` is on the monotonic
    clock, ``at`` in seconds since 1970. The answers to Add, Kill and YarnPoll come in the order of these.

    services: what a container of each asks for. own: YARN's id of the ApplicationMaster's container.
    first: Skein's ids of those that the specification has asked for; who is no member ends unmentioned.
    """

    def __init__(
        self,
        config: YarnConfig,
        num_min: int,
        services: Mapping[str, Resources],
        own: str = "",
        first: Collection[str] = (),
    ) -> None:
        self.fatal = ""
        """Why no member can ever start, in Skein's words."""
        self.gone = False
        """Whether the ApplicationMaster is no more."""
        self._config, self._num_min, self._services, self._own = config, num_min, services, own
        self._first = frozenset(first)
        self._measure = Measure(bool(services[WORKER].gpus))
        self._each = max(1, self._measure.of(services[WORKER]))
        """What one worker takes of its queue's share."""
        self._members: dict[str, Tenant] = {}
        self._nodes = Nodes(config.exclude_after)
        self._ahead = AHEAD_MOST
        self._busy = Pause(BUSY_FIRST_S, BUSY_MOST_S)
        self._relaunch = Pause(RELAUNCH_FIRST_S, RELAUNCH_MOST_S)
        self._again = Pause(OVERDUE_FIRST_S, OVERDUE_MOST_S)
        self._failed_s = NEVER_S
        """When that was last made longer: whoever came up since then, and lasts, ends it."""
        self._way_until_s = NEVER_S
        # Skein's containers
        self._silence = Pause(GONE_POLL_S, GONE_POLL_S)
        self._gone_since_s: float | None = None
        self._polling, self._looking = False, False
        self._has_polled = False
        """Since the last look at the cluster that came of something."""
        self._pulse_until_s = float("inf")
        self._polled_s = self._poll_due_s = NEVER_S
        self._living: frozenset[str] = frozenset()
        """YARN's ids of all that run, as Skein says."""
        # the cluster
        self._view: View | None = None
        self._view_s = NEVER_S
        self._viewing = False
        self._view_began_s = self._view_due_s = NEVER_S
        self._deaf = Pause(config.rm_poll_s, max(DEAF_MOST_S, config.rm_poll_s))
        self._deaf_since_s = NEVER_S
        self._blind = ""
        """Why the ResourceManager will never tell."""
        self._strange: dict[str, tuple[float, int]] = {}
        """Containers that Skein does not know: since when, and in how many looks."""
        self._pressure: Pressure | None = None
        self._pressed_s = NEVER_S
        # for others
        self._at: float | None = None
        self._at_now_s = 0.0
        self._decided_s = NEVER_S
        self._kills: list[str] = []
        self._killed_s: dict[str, float] = {}
        self._signals: list[str] = []
        self._words: list[str] = []
        self._ended: list[Ended] = []
        self._placed: list[str] = []
        self._returns: dict[str, str] = {}
        self._notes: list[tuple[str, str]] = []

    # --- what the master wants -------------------------------------------------------------------

    def want(self, name: str, service: str, now_s: float, id: str = "") -> None:
        """There is to be a member of this name, which was never used before.

        id: Skein's, of its container, if the specification has asked for that.
        """
        if id:
            self._members[name] = Tenant(name, service, ContainerPhase.REQUESTED, now_s, id, adopted=True)
        else:
            self._members[name] = Tenant(name, service, ContainerPhase.WANTED, now_s)

    def unwant(self, name: str, now_s: float) -> None:
        """Ends a member, or never starts it. Nobody is told of its end."""
        member = self._members.get(name)
        if member is None:
            return
        if member.phase in (ContainerPhase.WANTED, ContainerPhase.OVER):
            del self._members[name]
            return
        self._end_container(member, ContainerPhase.LEAVING, now_s)

    def blame(self, name: str, now_s: float) -> None:
        """Its process never came, for which its node may be to blame."""
        member = self._members.get(name)
        if member is not None and member.container is not None:
            self._blame(member.container.node, now_s)

    def adopt(self, name: str, container: Container, now_s: float) -> None:
        """A master before this one has started this member; the next poll tells more of its container."""
        self._members[name] = Tenant(
            name, container.service, ContainerPhase.REQUESTED, now_s, container.id, adopted=True
        )

    def look(self, now_s: float) -> None:
        """Something has happened to a member: to poll soon may tell what."""
        self._looking = True

    def give_way(self, now_s: float) -> None:
        """The cluster takes a member's place for somebody else."""
        self._way_until_s = now_s + GIVE_WAY_S

    # --- what Skein answered ---------------------------------------------------------------------

    def added(self, name: str, container: Container, now_s: float) -> None:
        self._busy.clear()
        member = self._members.get(name)
        if member is None:
            return
        member.id, member.container = container.id, container
        if member.phase is ContainerPhase.ASKED:
            self._enter(member, ContainerPhase.REQUESTED, now_s)
        else:
            self._kill(member.id, now_s)

    def not_added(self, name: str, error: YarnError, now_s: float) -> None:
        member = self._members.get(name)
        self._busy.fail(str(error), now_s)
        self._looking = True
        if isinstance(error, YarnRefused):
            self.fatal = str(error)
        if member is None:
            return
        if member.phase is ContainerPhase.LEAVING:
            del self._members[name]
        elif isinstance(error, (YarnRefused, ApplicationGone)):
            self._enter(member, ContainerPhase.WANTED, now_s)
        else:  # there may be such a container, and two must not have one name
            self._ended.append(Ended(name, How.TAKEN, f"was not started: {error}"))
            del self._members[name]

    def unobserved(self, error: YarnError, now_s: float) -> None:
        """The poll failed."""
        self._polling = False
        self._silence.fail(str(error), now_s)
        self._poll_due_s = now_s + GONE_POLL_S
        if not isinstance(error, ApplicationGone):
            self._gone_since_s = None
            if self._silence.failures == 2:
                self._note("warning", str(error))
            return
        self._gone_since_s = now_s if self._gone_since_s is None else self._gone_since_s
        self.gone = now_s - self._gone_since_s >= GONE_S

    def observed(self, containers: Sequence[Container], now_s: float, at: float) -> None:
        """A poll: all containers of this attempt."""
        self._polling, self._has_polled, self._poll_due_s = False, True, now_s + self._config.poll_s
        self._at, self._at_now_s = at, now_s
        self._silence.clear()
        self._gone_since_s = None
        found = {container.id: container for container in containers}
        self._living = frozenset(each.yarn_id for each in containers if not each.over)
        waited = [member for member in self._line(WORKER) if member.phase is ContainerPhase.REQUESTED]
        for member in list(self._members.values()):
            if member.id:
                self._match(member, found.pop(member.id, None), now_s)
        self._pulse_until_s = min(self._pulse_until_s, now_s + PULSE_S)
        has_asked = any(member.id and not member.adopted for member in self._members.values())
        has_to_ask = not has_asked and any(m.phase is ContainerPhase.WANTED for m in self._members.values())
        is_pulse_over = not has_to_ask or now_s >= self._pulse_until_s
        for container in found.values():
            if container.service == PULSE:  # it is there until something else is asked for
                if is_pulse_over and not container.over:
                    self._kill(container.id, now_s)
            elif not container.over and self._kill(container.id, now_s) and container.id not in self._first:
                self._note("info", f"container {container.id} is ended: it is no member's")
        running = self._of(WORKER, ContainerPhase.RUNNING)
        if any(member.phase is ContainerPhase.RUNNING for member in waited):
            self._again.clear()
            if not self._line(WORKER):
                self._ahead = min(2 * self._ahead, AHEAD_MOST)
        if any(self._failed_s < member.since_s <= now_s - LAUNCH_S for member in running):
            self._relaunch.clear()
        self._killed_s = {id: at_s for id, at_s in self._killed_s.items() if now_s - at_s < KILL_AGAIN_S}

    def heard(self, name: str, left: Ending | None, now_s: float) -> None:
        """A member's last words; None: there are none, or they cannot be read."""
        member = self._members.get(name)
        if member is not None and member.phase is ContainerPhase.OVER:
            assert member.container is not None
            verdict = judge(name, member.container, left, vanished=member.vanished)
            self._end(member, verdict, now_s)

    # --- what the ResourceManager answered -------------------------------------------------------

    def viewed(self, view: View, now_s: float) -> None:
        """A look at nodes, queues and containers."""
        self._viewing, self._view_due_s = False, now_s + self._config.rm_poll_s
        if self._deaf.failures > 1 and not self._blind:
            self._note("info", f"the ResourceManager answers again, after {now_s - self._deaf_since_s:.0f} s")
        self._deaf.clear()
        self._blind, self._view, self._view_s = "", view, now_s
        self._compare(view, now_s)
        self._weigh(view, now_s)
        self._ask_again(view, now_s)
        live = {node.address for node in view.nodes if node.live}
        excluded = set(self._nodes.excluded(now_s))
        if excluded and live <= excluded:
            self._pardon("there is no other")

    def not_viewed(self, error: YarnError, now_s: float) -> None:
        self._viewing = False
        if not self._deaf.failures:
            self._deaf_since_s = now_s
        self._deaf.fail(str(error), now_s)
        self._view_due_s = self._deaf.until_s
        if isinstance(error, (YarnRefused, SkeinNotInstalled)) and self._view is None:
            if not self._blind:
                why = "so what was checked at submission must do"
                self._note("warning", f"nodes and queues cannot be looked at, {why}: {error}")
            self._blind = str(error)
        elif self._deaf.failures == 2:
            self._note("warning", str(error))

    # --- decisions -------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Action]:
        """What to do, in this order. Each is told once."""
        self._decided_s = now_s
        for member in [each for each in self._members.values() if each.phase is ContainerPhase.OVER]:
            if now_s >= member.since_s + WORDS_S:
                self.heard(member.name, None, now_s)
        self._withdraw(now_s)
        actions: list[Action] = self._adds(now_s)
        actions += [Kill(id) for id in self._kills]
        actions += [Signal(yarn_id) for yarn_id in self._signals]
        actions += [ReadWords(name) for name in self._words]
        self._kills, self._signals, self._words = [], [], []
        if (due_s := self._next_poll_s()) is not None and now_s >= due_s:
            self._polling, self._looking, self._polled_s = True, False, now_s
            actions.append(YarnPoll())
        if (due_s := self._next_view_s()) is not None and now_s >= due_s:
            self._viewing, self._view_began_s = True, now_s
            actions.append(LookAround())
        return actions

    def next_time_s(self) -> float | None:
        """When to decide again at the latest; None: after the next event."""
        times_s = [self._next_poll_s(), self._next_view_s()]
        untils_s: list[float] = []
        if any(member.phase is ContainerPhase.WANTED for member in self._members.values()):
            rests_s = (self._way_until_s, self._pressed_s + REST_S, self._deaf_since_s + DEAF_S)
            untils_s += [self._busy.until_s, self._relaunch.until_s, *rests_s]
        untils_s += [
            each.since_s + WORDS_S for each in self._members.values() if each.phase is ContainerPhase.OVER
        ]
        times_s += [until_s for until_s in untils_s if until_s > self._decided_s]
        return min((at_s for at_s in times_s if at_s is not None), default=None)

    def ended(self) -> list[Ended]:
        """Members that were wanted and whose containers are over, since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def placed(self) -> list[str]:
        """Members whose containers run, that did not at the last call."""
        placed, self._placed = self._placed, []
        return placed

    def returns(self) -> dict[str, str]:
        """Workers that are to leave and be replaced later, since the last call, and why."""
        returns, self._returns = self._returns, {}
        return returns

    def notes(self) -> list[tuple[str, str]]:
        """What people should read, since the last call: kind (``info``, ``warning``) and text."""
        notes, self._notes = self._notes, []
        return notes

    @property
    def num_containers(self) -> int:
        """Containers that are not over, and requests, as far as is known."""
        return sum(
            each.phase not in (ContainerPhase.WANTED, ContainerPhase.OVER) for each in self._members.values()
        )

    def places(self) -> dict[str, tuple[str, str]]:
        """Members that run: YARN's id of their container, and the address of its node."""
        running = [member for member in self._members.values() if member.phase is ContainerPhase.RUNNING]
        return {
            each.name: (each.container.yarn_id, each.container.node) for each in running if each.container
        }

    def where(self, name: str, now_s: float) -> str:
        """Where a member is, or what it waits for."""
        member = self._members.get(name)
        if member is None:
            return ""
        if member.phase is ContainerPhase.REQUESTED:
            return f"requested, waits for {now_s - member.since_s:.0f} s"
        container = member.container
        return f"{container.yarn_id} on node {container.node}" if container and container.node else ""

    # --- polls -----------------------------------------------------------------------------------

    def _next_poll_s(self) -> float | None:
        if self._polling or not self._members:
            return None
        if self._looking and not self._silence.failures:
            return min(self._poll_due_s, self._polled_s + LOOK_S)
        return self._poll_due_s

    def _next_view_s(self) -> float | None:
        """The first look is taken before there are members: they need not wait for it then."""
        return None if self._viewing or self._view and not self._members else self._view_due_s

    def _match(self, member: Tenant, container: Container | None, now_s: float) -> None:
        """Learns what a poll shows of a member's container."""
        if member.phase is ContainerPhase.OVER:
            return
        if container is None:
            self._ended += [] if member.phase is ContainerPhase.LEAVING else [_forgotten(member)]
            del self._members[member.name]
            return
        member.container = container
        self._nodes.saw(container.node)
        if container.over:
            self._finish(member, container, now_s)
        elif member.phase in _ENDING:
            self._kill(container.id, now_s)
        elif container.state == "RUNNING" and member.phase is ContainerPhase.REQUESTED:
            self._see_running(member, container, now_s)

    def _see_running(self, member: Tenant, container: Container, now_s: float) -> None:
        excluded = self._nodes.excluded(now_s)
        if container.node not in excluded:
            self._enter(member, ContainerPhase.RUNNING, now_s)
            return
        self._launch_later(f"came up on {container.node}, which is left out", now_s)
        if self._relaunch.failures > SHUNS:
            self._pardon("no other has room")
            self._enter(member, ContainerPhase.RUNNING, now_s)
        else:
            self._end_container(member, ContainerPhase.SHUNNED, now_s)

    def _finish(self, member: Tenant, container: Container, now_s: float) -> None:
        """A member's container is over."""
        if member.phase is ContainerPhase.LEAVING:
            del self._members[member.name]
        elif member.phase is ContainerPhase.WITHDRAWN and not container.yarn_id and not member.adopted:
            member.id, member.container = "", None
            self._enter(member, ContainerPhase.WANTED, now_s)
        elif member.phase in _ENDING:
            self._ended.append(_ended_here(member, container))
            del self._members[member.name]
        elif first_cause(container) is Cause.SILENT:
            self._ask_words(member, now_s)
        else:
            self._end(member, judge(member.name, container), now_s)

    def _ask_words(self, member: Tenant, now_s: float) -> None:
        self._enter(member, ContainerPhase.OVER, now_s)
        self._words.append(member.name)

    def _end(self, member: Tenant, verdict: CauseVerdict, now_s: float) -> None:
        """A member that was wanted is gone."""
        container = member.container
        assert container is not None
        if verdict.blames_node:
            self._blame(container.node, now_s)
        if verdict.cause is Cause.PREEMPTED:
            self._ahead = 1
        elif verdict.ended.how is How.TAKEN and lasted_s(container) < LAUNCH_S:
            self._launch_later(verdict.ended.text, now_s)  # else the same might happen again and again
        self._ended.append(verdict.ended)
        del self._members[member.name]

    def _blame(self, node: str, now_s: float) -> None:
        if self._nodes.failed(node, now_s):
            many = f"{self._config.exclude_after} failures within an hour"
            self._note("warning", f"node {node} is left out for an hour: {many}")

    def _launch_later(self, text: str, now_s: float) -> None:
        self._relaunch.fail(text, now_s)
        self._failed_s = now_s

    # --- requests --------------------------------------------------------------------------------

    def _of(self, service: str, *phases: ContainerPhase) -> list[Tenant]:
        """Members of a service, the lowest number first."""
        chosen = [m for m in self._members.values() if m.service == service and m.phase in phases]
        return sorted(chosen, key=lambda member: number_of(member.name))

    def _line(self, service: str) -> list[Tenant]:
        return self._of(service, *_LINE)

    def _limit(self, now_s: float) -> int:
        """How many requests for workers may wait."""
        num_here = len(self._of(WORKER, ContainerPhase.RUNNING))
        least = max(0, self._num_min - num_here)
        if self._is_pressed(now_s):
            return least
        own = self._own_queue()
        claim = (self._measure.of(own.share) - self._measure.of(own.used)) // self._each if own else 0
        return max(least, self._ahead, claim)

    def _withdraw(self, now_s: float) -> None:
        """Takes requests back that wait in vain."""
        waiting = self._of(WORKER, ContainerPhase.REQUESTED)
        if any(now_s - member.since_s >= self._config.patience_s for member in waiting):
            self._ahead = 1
        surplus = len(self._line(WORKER)) - self._limit(now_s)
        for member in reversed(waiting[-surplus:] if surplus > 0 else []):
            self._end_container(member, ContainerPhase.WITHDRAWN, now_s)

    def _adds(self, now_s: float) -> list[Action]:
        until_s = max(self._busy.until_s, self._relaunch.until_s)
        if self.fatal or self._silence.failures or now_s < until_s:
            return []
        actions: list[Action] = []
        for service in (SERVER, WORKER):
            wanted = self._of(service, ContainerPhase.WANTED)
            room = len(wanted) if service == SERVER else self._room(now_s)
            if not wanted or self._why_not(service, now_s):
                continue
            for member in wanted[:room]:
                if self._busy.failures and (actions or self._of(service, ContainerPhase.ASKED)):
                    break  # after a failure, one is enough to try
                self._enter(member, ContainerPhase.ASKED, now_s)
                actions.append(Add(member.name, service))
        return actions

    def _room(self, now_s: float) -> int:
        """How many workers may be asked for now."""
        line, here = len(self._line(WORKER)), len(self._of(WORKER, ContainerPhase.RUNNING))
        least = self._num_min - here - line
        if now_s < self._way_until_s:
            return max(0, least)
        return max(0, least, self._limit(now_s) - line)

    def _why_not(self, service: str, now_s: float) -> str:
        """Why nothing may be asked for of this service; "": it may.

        Where the ResourceManager does not tell, what was checked at submission, or seen last, must do.
        """
        if self._blind:
            return ""
        fresh = now_s - self._view_s <= FRESH_VIEWS * self._config.rm_poll_s
        if not fresh and not self._deaf.failures:
            return "the nodes are looked at"
        if not fresh and now_s - self._deaf_since_s < DEAF_S:
            return f"the ResourceManager does not answer since {self._clock(self._deaf_since_s)}"
        return self._too_large(service) if self._view else ""

    def _too_large(self, service: str) -> str:
        """Why no node can have such a container; "": one can."""
        assert self._view is not None
        asked, label = self._services[service], self._config.node_label
        live = [node for node in self._view.nodes if node.live and (not label or label in node.labels)]
        if any(asked.fits(node.total) for node in live):
            return ""
        kind = f" with the label {label}" if label else ""
        if not live:
            return f"there is no live node{kind}"
        largest = max((node.total for node in live), key=lambda total: (total.gpus, total.memory_mb))
        return f"no live node{kind} has {asked}; the largest has {largest}"

    def _end_container(self, member: Tenant, phase: ContainerPhase, now_s: float) -> None:
        if member.id:
            self._kill(member.id, now_s)
        self._enter(member, phase, now_s)

    def _enter(self, member: Tenant, phase: ContainerPhase, now_s: float) -> None:
        if phase is ContainerPhase.RUNNING:
            self._placed.append(member.name)
        member.phase, member.since_s, member.overdue = phase, now_s, 0

    def _kill(self, id: str, now_s: float) -> bool:
        """Returns whether it was not killed before, or long ago."""
        if now_s - self._killed_s.get(id, NEVER_S) < KILL_AGAIN_S:
            return False
        self._killed_s[id] = now_s
        self._kills.append(id)
        return True

    # --- the cluster -----------------------------------------------------------------------------

    def _compare(self, view: View, now_s: float) -> None:
        """Where Skein and YARN differ: Skein drops news of ends, and YARN orders to end, now and then.

        A ResourceManager that was restarted learns of a node's containers from the node, which may take half
        a minute: until the node is there, that they are missing means little.
        """
        containers, live = view.containers, {node.address for node in view.nodes if node.live}
        if not containers or self._silence.failures:
            return  # that of the ApplicationMaster is missing, so they are not known; or Skein says nothing
        for member in [each for each in self._members.values() if each.phase is ContainerPhase.RUNNING]:
            assert member.container is not None
            if member.container.yarn_id in containers or self._view_began_s <= member.since_s:
                member.missed, member.missed_s = 0, None
                continue
            member.missed_s = now_s if member.missed_s is None else member.missed_s
            member.missed = member.missed + 1 if member.container.node in live else 0
            missed_s = now_s - member.missed_s
            if (member.missed >= STRANGE_VIEWS and missed_s >= STRANGE_S) or missed_s >= REGISTER_S:
                member.vanished = True
                self._kill(member.id, now_s)
                self._ask_words(member, now_s)
        strange = set(containers) - self._living - {self._own} if self._at is not None else set()
        before, self._strange = self._strange, {}
        for yarn_id in sorted(strange):
            since_s, views = before.get(yarn_id, (now_s, 0))
            self._strange[yarn_id] = since_s, views + 1
            if now_s - since_s >= STRANGE_S and views + 1 >= STRANGE_VIEWS:
                self._note("info", f"{yarn_id} is ended: YARN runs it, and Skein has forgotten it")
                self._signals.append(yarn_id)
                del self._strange[yarn_id]

    def _ask_again(self, view: View, now_s: float) -> None:
        """Takes requests back, to be made anew, that should have been granted long ago.

        Skein may know by now that they were: a look counts only if it has been asked since the one before.
        """
        own, label = self._own_queue(), self._config.node_label
        if own is None or not self._has_polled:
            return
        self._has_polled = False
        waiting = [member for member in self._members.values() if member.phase is ContainerPhase.REQUESTED]
        old = [each for each in waiting if self._view_began_s - each.since_s >= STRANGE_S]
        is_unknown = shares.forgets([self._services[member.service] for member in old], own)
        for member in old:
            has_room = shares.has_room(self._services[member.service], own, view.nodes, label)
            member.overdue = member.overdue + 1 if is_unknown or has_room else 0
        due = [each for each in old if each.overdue >= STRANGE_VIEWS]
        due = [each for each in due if now_s - each.since_s >= OVERDUE_FIRST_S]
        if due and now_s >= self._again.until_s:
            self._again.fail("", now_s)
            why = "YARN does not know of it" if is_unknown else "YARN has room, and does not grant it"
            self._note("warning", f"asked for again, since {why}: {', '.join(each.id for each in due)}")
            for member in due:
                self._end_container(member, ContainerPhase.WITHDRAWN, now_s)

    def _own_queue(self) -> YarnQueue | None:
        return shares.find(self._view.queues, self._config.queue) if self._view else None

    def _is_pressed(self, now_s: float) -> bool:
        return self._pressure is not None and now_s < self._pressed_s + REST_S

    def _weigh(self, view: View, now_s: float) -> None:
        """Has workers give their places back before YARN takes them."""
        own = self._own_queue()
        if own is None or not self._config.give_back:
            return
        found = shares.pressure(view.queues, own, view.nodes, self._measure, self._each)
        if found is None:
            return
        self._pressure, self._pressed_s = found, now_s
        running = self._of(WORKER, ContainerPhase.RUNNING)
        staying = [member for member in running if now_s - member.returned_s >= RETURN_S]
        under_way = len(running) - len(staying) + len(self._of(WORKER, ContainerPhase.LEAVING))
        due = min(-(-found.lacking // self._each), found.excess // self._each) - under_way
        for member in reversed(staying[self._num_min :][-due:] if due > 0 else []):
            member.returned_s = now_s
            self._returns[member.name] = f"gives its place back: {found.text}"

    def _pardon(self, why: str) -> None:
        """Uses nodes again that are left out."""
        self._nodes.pardon()
        self._relaunch.clear()
        self._note("warning", f"nodes that were left out are used again: {why}")

    # --- reasons ---------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why fewer workers, or servers, run than are wanted; "" when as many do."""
        for service in (WORKER, SERVER):
            wanted = [
                m
                for m in self._members.values()
                if m.service == service and m.phase is not ContainerPhase.LEAVING
            ]
            running = [member for member in wanted if member.phase is ContainerPhase.RUNNING]
            if len(running) < len(wanted):
                what = " servers" if service == SERVER else ""
                return f"{len(running)} of {len(wanted)}{what}: {self._why(service)}"
        return ""

    def _why(self, service: str) -> str:
        """The first that holds of what may be in the way."""
        missing = self._of(service, ContainerPhase.WANTED, ContainerPhase.WITHDRAWN)
        if self.fatal:
            return f"refused: {self.fatal}"
        if self._silence.failures > 1:
            return self._silence.text
        if self._deaf.failures > 1 and not self._blind:
            return f"the ResourceManager does not answer since {self._clock(self._deaf_since_s)}"
        if missing and (trouble := self._trouble(service)):
            return trouble
        if missing and service == WORKER and self._is_pressed(self._decided_s):
            assert self._pressure is not None
            return f"makes way: {self._pressure.text}"
        waiting = self._of(service, ContainerPhase.REQUESTED)
        if waiting and (since_s := min(m.since_s for m in waiting)) <= self._decided_s - self._config.poll_s:
            return f"{self._fullness()}{_many(len(waiting))} since {self._clock(since_s)}"
        if missing and self._decided_s < self._way_until_s:
            return "makes way for somebody whom YARN prefers"
        starting = len(self._of(service, *_LINE))
        return (
            f"{starting} container{'s' * (starting != 1)} requested" if starting else "places are looked for"
        )

    def _trouble(self, service: str) -> str:
        """Why no more are asked for; "" if nothing is wrong."""
        if self._busy.failures:
            return f"requests fail: {self._busy.text}"
        if self._decided_s < self._relaunch.until_s:
            return f"the last one {self._relaunch.text}"
        return self._why_not(service, self._decided_s)

    def _fullness(self) -> str:
        """What the queue has, as far as is known."""
        own = self._own_queue()
        if own is None or self._view is None:
            return ""
        used, most = self._measure.of(own.used), self._measure.of(own.most)
        if used + self._each > most:
            return f"queue {own.name} is at its maximum of {self._measure.text(most)}, "
        free = shares.free(self._view.nodes, self._measure)
        total = sum(self._measure.of(node.total) for node in self._view.nodes if node.live)
        uses = f"queue {own.name} uses {self._measure.of_text(used, most)}"
        return f"{uses}, {self._measure.of_text(free, total)} are free, "

    def _clock(self, time_s: float) -> str:
        if self._at is None:
            return "its start"
        return datetime.fromtimestamp(self._at + time_s - self._at_now_s).strftime("%H:%M")

    def _note(self, kind: str, text: str) -> None:
        self._notes.append((kind, text))


def _forgotten(member: Tenant) -> Ended:
    return Ended(member.name, How.TAKEN, f"is lost: Skein does not know its container {member.id} any more")


def _ended_here(member: Tenant, container: Container) -> Ended:
    if not container.yarn_id:
        return Ended(
            member.name, How.TAKEN, f"had no place yet, and its request was taken back ({container.id})"
        )
    why = "which is left out" if member.phase is ContainerPhase.SHUNNED else "when its request was taken back"
    return Ended(member.name, How.TAKEN, f"came up on {container.node}, {why} ({container.yarn_id})")


def _many(number: int) -> str:
    return "1 container waits" if number == 1 else f"{number} containers wait"
