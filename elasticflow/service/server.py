"""The service's process: people, runs, the clock and the journal around ``ServiceState``.

It may be killed at any moment: runs keep to what they were granted, and the next service goes on from the
journal. What was promised or granted is on the disk before anybody hears of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

import zmq

from elasticflow.cluster.share import ClusterShare, ShareNode, load_share
from elasticflow.errors import ConfigError, ElasticFlowError, RunError, UnknownError
from elasticflow.master.log import say
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.trust import check_trust, name_of
from elasticflow.service import happenings as hp
from elasticflow.service import roster, talk
from elasticflow.service.follower import Follower
from elasticflow.service.hands import Hands
from elasticflow.service.here import FollowerHere
from elasticflow.service.journal import ServiceJournal
from elasticflow.service.memory import Known, kind_of
from elasticflow.service.settings import ServiceConfig, folder_of
from elasticflow.service.state import TaskStanding, Ticket
from elasticflow.service.submitted import SubmittedFollower
from elasticflow.wire.sockets import Context, poll_ms

LOCAL = "local"
LONGEST_S = 2 * 366 * 86400.0
"""Nobody plans for longer."""


class Service:
    """One service, in its folder. Raises RunError if there is another one, ConfigError, OSError."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        share = load_share(config.cluster, config.section) if config.cluster != LOCAL else None
        self.folder = folder_of(config.folder)
        self._lock = _hold(self.folder)
        self._known = Known(self.folder / "known.json")
        self._journal = ServiceJournal(self.folder, config.rules)
        self._state = self._journal.state
        self._began_s, self._woke_s = time.time(), time.monotonic()
        self._context: Context = zmq.Context()
        self._desk = talk.Desk(self.folder)
        self._followers: dict[str, Follower] = {}
        self._told: dict[str, tuple[str, str]] = {}
        self._look_s = 0.0
        self._news: list[hp.Happening] = []
        """That came up while something else was decided."""
        self._hands = Hands(config.cluster, share) if share else None
        """None: the runs are this machine's."""
        self._nodes_s, self._nodes_told = 0.0, ""
        if share:
            self._begin_share(share)

    def run(self) -> None:
        """Until this process is ended. Raises Superseded, OSError: then it must end."""
        say(f"{self.folder}: service of term {self._journal.term}, {self._state.capacity} workers")
        while True:
            self._wait()
            if self._hands:
                self._hands.turn()
            for person, question in self._desk.receive():
                self._desk.answer(person, self._answered(question))
            happened = self._followed()
            if self._now_s() >= self._state.wake_s:
                happened.append(hp.Woken())
            if happened:
                self._handle(happened)

    def close(self) -> None:
        """Lets go of everything; the runs go on."""
        self._desk.close()
        for follower in self._followers.values():
            follower.close()
        if self._hands:
            self._hands.close()
        self._context.term()
        self._journal.close()
        os.close(self._lock)

    def _now_s(self) -> float:
        """Since 1970, by a clock that nobody sets."""
        return self._began_s + time.monotonic() - self._woke_s

    def _wait(self) -> None:
        poller = zmq.Poller()
        for descriptor, sends in self._desk.waiting:
            poller.register(descriptor, zmq.POLLOUT if sends else zmq.POLLIN)
        for follower in self._followers.values():
            if follower.socket is not None:
                poller.register(follower.socket, zmq.POLLIN)
        for fd in self._hands.fds if self._hands else ():
            poller.register(fd, zmq.POLLIN)
        due_s = 0.0 if self._news else min(self._look_s, self._state.wake_s)
        poller.poll(poll_ms(max(0.0, due_s - self._now_s())))

    # --- runs ------------------------------------------------------------------------------------

    def _followed(self) -> list[hp.Happening]:
        """What runs have said; at times all are looked at, and told again what they are granted."""
        now_s = self._now_s()
        looks = now_s >= self._look_s
        self._look_s = now_s + self._config.poll_s if looks else self._look_s
        self._look_at_nodes()
        happened, self._news = self._news, []
        for ticket in self._state.under_way():
            follower = self._follower(ticket)
            if looks:
                happened += self._turned(follower)
            else:
                happened += follower.listen(now_s)
        return happened

    def _turned(self, follower: Follower) -> list[hp.Happening]:
        held = self._state.ledger.accounts[follower.name].held
        return follower.turn(self._state.granted(follower.name), held, self._now_s())

    def _follower(self, ticket: Ticket) -> Follower:
        name = ticket.task.name
        if name not in self._followers:
            follower = self._new_follower(name, ticket.task.run_dir)
            follower.step = ticket.done
            self._followers[name] = follower
        return self._followers[name]

    def _new_follower(self, name: str, run_dir: str) -> Follower:
        what = self._context, name, run_dir, self._config.measure_s
        return SubmittedFollower(*what, self._hands) if self._hands else FollowerHere(*what)

    # --- the share of a cluster ------------------------------------------------------------------

    def _begin_share(self, share: ClusterShare) -> None:
        """Counts on no node that nobody has seen. Raises ConfigError if there is no such share."""
        if not self._state.nodes:
            nodes = range(self._config.nodes)
            self._handle([hp.NodeSeen(node=node, up=False, why="was never seen") for node in nodes])
        try:
            self._nodes_seen(share.nodes())
        except ConfigError:
            raise
        except ElasticFlowError as error:  # runs go on, and are followed; it is asked again
            self._nodes_seen(error)
        news, self._news = self._news, []
        if news:
            self._handle(news)

    def _look_at_nodes(self) -> None:
        """Unless that was done a short while ago, or is being done."""
        if self._hands and self._now_s() >= self._nodes_s:
            self._nodes_s = inf
            self._hands.look_at_nodes(self._nodes_seen)

    def _nodes_seen(self, answer: list[ShareNode] | ElasticFlowError) -> None:
        """A cluster that does not answer has the nodes that it had."""
        self._nodes_s = self._now_s() + self._config.look_s
        words = f"warning: its nodes are not known just now: {answer}"
        if isinstance(answer, ElasticFlowError):
            if words != self._nodes_told:
                say(words)
            self._nodes_told = words
            return
        self._nodes_told = ""
        names = {number: seen.name for number, seen in self._state.nodes.items()}
        down = self._state.policy.placement.down
        shape = self._state.policy.shape
        seen = roster.changes(names, down, shape.num_nodes, shape.gpus_per_node, answer)
        for each in seen:
            say(f"node {each.name}: {'is there' if each.up else f'is gone: {each.why}'}")
        self._news += seen

    # --- decisions -------------------------------------------------------------------------------

    def _handle(self, happened: Sequence[hp.Happening]) -> None:
        """Decides, and tells at once those for whom something is new."""
        done = {
            name: follower.step
            for name, follower in self._followers.items()
            if follower.step != self._state.tickets[name].done
        }
        progress: list[hp.Happening] = [hp.Advanced(done=done)] if done else []
        before = {name: account.number for name, account in self._state.ledger.accounts.items()}
        self._journal.handle([*progress, *happened], self._now_s())
        self._learn(happened)
        living = {ticket.task.name: ticket for ticket in self._state.under_way()}
        for name in [name for name in self._followers if name not in living]:
            self._followers.pop(name).close()
        for name, ticket in living.items():
            if self._state.ledger.accounts[name].number != before.get(name, 0):
                follower = self._follower(ticket)
                self._news += self._turned(follower)
        self._report()

    def _learn(self, happened: Sequence[hp.Happening]) -> None:
        """For later runs of the same programs."""
        for happening in happened:
            if isinstance(happening, hp.Paced):
                kind = self._state.tickets[happening.name].task.kind
                self._known.paced(kind, happening.workers, happening.rate)
            elif isinstance(happening, hp.Counted):
                task = self._state.tickets[happening.name].task
                with contextlib.suppress(ElasticFlowError):  # its folder is gone
                    self._known.counted(task.kind, RunDir(task.run_dir).config(), happening.steps)

    def _report(self) -> None:
        """Into the log: what is news of each task."""
        for name, ticket in self._state.tickets.items():
            account = self._state.ledger.accounts.get(name)
            words = (
                f"{ticket.standing.value}{f' ({ticket.state})' if ticket.state else ''}: {ticket.said}",
                f"{account.granted} workers: {ticket.why}" if account else "",
            )
            if self._told.get(name) != words:
                self._told[name] = words
                say(f"{name}: {'; '.join(word for word in words if word)}")

    # --- people ----------------------------------------------------------------------------------

    def _answered(self, question: talk.Question) -> talk.ServiceAnswer:
        try:
            if isinstance(question, talk.HandIn):
                return self._answer_to(self._hand_in(question))
            if isinstance(question, talk.Cancel):
                return self._answer(self._cancel(question.name))
            if isinstance(question, talk.MarkNode):
                return self._mark(question)
            return self._answer(*self._state.tickets.values())
        except ElasticFlowError as error:
            return talk.ServiceAnswer(error=str(error))

    def _answer(self, *tickets: Ticket) -> talk.ServiceAnswer:
        nodes = sorted(self._state.nodes.values(), key=lambda seen: seen.node)
        return talk.ServiceAnswer(
            term=self._journal.term,
            capacity=self._state.capacity,
            cluster=self._config.cluster,
            section=self._config.section,
            away={seen.name or str(seen.node): seen.why for seen in nodes if not seen.up},
            tasks=[self._told_of(ticket) for ticket in tickets],
        )

    def _answer_to(self, ticket: Ticket) -> talk.ServiceAnswer:
        """Who hands a task in for which there is no room hears what could be promised instead."""
        answer = self._answer(ticket)
        if instead := self._state.instead(ticket.task.name):
            answer.tasks[0].said = instead.text(lambda at_s: f"{at_s:.0f} s")
        return answer

    def _hand_in(self, asked: talk.HandIn) -> Ticket:
        for ticket in self._state.under_way():
            if ticket.task.run_dir == asked.run_dir:
                return ticket
        run = RunDir(asked.run_dir)
        try:
            check_trust(run.path)
            config, owner = run.config(), _owner(run)
        except OSError as error:
            raise UnknownError(f"{run.path}: cannot be read: {error}") from error
        self._check(asked, config)
        kind = kind_of(config)
        most = min(
            config.num_slices, self._state.policy.shape.num_gpus, asked.most_workers or config.num_slices
        )
        task = hp.Task(
            name=f"{self._state.numbered + 1}-{Path(config.program).stem}",
            run_dir=asked.run_dir,
            user=owner,
            kind=kind,
            most_workers=most,
            deadline_s=asked.deadline_s,
            priority=asked.priority,
            steps=self._known.steps(kind, config),
            rates=self._known.rates(kind),
        )
        self._handle([hp.HandedIn(task=task)])
        return self._state.tickets[task.name]

    def _check(self, asked: talk.HandIn, config: Config) -> None:
        """Raises RunError."""
        if asked.deadline_s is not None and asked.deadline_s <= self._now_s():
            raise RunError(f"{asked.run_dir}: its deadline is over already.")
        if asked.deadline_s is not None and asked.deadline_s > self._now_s() + LONGEST_S:
            raise RunError(f"{asked.run_dir}: its deadline is years away; hand it in with --best-effort.")
        if config.backend != self._config.cluster:
            raise RunError(
                f"{asked.run_dir}: is for {config.backend}; this service begins runs on "
                f"{'its machine' if self._config.cluster == LOCAL else self._config.cluster}."
            )

    def _cancel(self, name: str) -> Ticket:
        ticket = self._state.tickets.get(name)
        if ticket is None:
            known = ", ".join(one.task.name for one in self._state.under_way()) or "none"
            raise RunError(f"{name}: is no task of this service; under way: {known}.")
        if ticket.standing not in (TaskStanding.OVER, TaskStanding.REFUSED, TaskStanding.LEAVING):
            self._handle([hp.Cancelled(name=name, by=ticket.task.user)])
        return ticket

    def _mark(self, asked: talk.MarkNode) -> talk.ServiceAnswer:
        nodes = self._config.nodes
        if self._hands:
            raise RunError(
                f"node {asked.node}: the nodes are {self._config.cluster}'s; drain it there, and the service "
                "sees that."
            )
        if not 0 <= asked.node < nodes:
            raise RunError(f"node {asked.node}: this service has {nodes} nodes, 0 to {nodes - 1}.")
        self._handle([hp.NodeSeen(node=asked.node, up=asked.up)])
        return self._answer(*self._state.tickets.values())

    def _told_of(self, ticket: Ticket) -> talk.ToldTask:
        name = ticket.task.name
        account = self._state.ledger.accounts.get(name)
        follower = self._followers.get(name)
        return talk.ToldTask(
            name=name,
            run=ticket.task.run_dir,
            user=ticket.task.user,
            standing=ticket.standing.value,
            state=ticket.state,
            said=ticket.said,
            why="; ".join(filter(None, (ticket.why, follower.waits if follower else ""))),
            workers=account.granted if account else 0,
            held=account.held if account else 0,
            step=follower.step if follower else ticket.done,
            steps=ticket.steps,
            rates=ticket.rates,
            handed_at=ticket.handed_s,
            deadline_at=ticket.task.deadline_s,
            promised_at=ticket.promised_s,
            ended_at=ticket.ended_s,
            eta_at=self._state.eta_s(name),
            earliest_at=ticket.earliest_s,
        )


def serve(config: ServiceConfig) -> None:
    """A service's whole life. Raises RunError, ConfigError, OSError."""
    service = Service(config)
    try:
        service.run()
    finally:
        service.close()


def _owner(run: RunDir) -> str:
    """Raises OSError."""
    return name_of(run.path.stat().st_uid) if isinstance(run.path, Path) else run.path.whoami()


def _hold(folder: Path) -> int:
    """The folder for this process alone. Raises RunError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_trust(folder)
    folder.chmod(0o700)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise RunError(
            f"{folder}: another service uses this folder; end it first, or choose another."
        ) from None
    return lock
