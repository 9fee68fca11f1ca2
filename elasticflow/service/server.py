"""The service's process: people, runs, the clock and the journal around ``ServiceState``.

It may be killed at any moment: runs keep to what they were granted, and the next service goes on from the
journal. What was promised or granted is on the disk before anybody hears of it.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import zmq

from elasticflow.cluster.clock import clock
from elasticflow.cluster.share import ClusterShare, load_share
from elasticflow.errors import ConfigError, ElasticFlowError, RunError, UnknownError
from elasticflow.local.forkserver import ForkServers
from elasticflow.master.fence import Superseded
from elasticflow.master.log import say
from elasticflow.process.clocks import SteadyClock
from elasticflow.process.locked_files import has_left, hold
from elasticflow.process.texts import clock_time
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
from elasticflow.run.trust import check_trust
from elasticflow.scheduler.values import checked
from elasticflow.service import happenings as hp
from elasticflow.service import talk
from elasticflow.service.follower import REPLACED, Follower
from elasticflow.service.hands import Hands, RunFolder, read_folder
from elasticflow.service.here import FollowerHere
from elasticflow.service.journal import ServiceJournal, UndecidedError
from elasticflow.service.marks import LOCK, claim
from elasticflow.service.memory import Known, kind_of
from elasticflow.service.settings import ServiceConfig, folder_of
from elasticflow.service.share_watch import ShareWatch
from elasticflow.service.state import ServiceState, TaskStanding, Ticket
from elasticflow.service.submitted import SubmittedFollower
from elasticflow.service.task_log import TaskLog
from elasticflow.wire.sockets import Context, poll_ms

LOCAL = "local"
MOST_RUNS = 65_000
"""Connections to masters; ZeroMQ allows 1,023 unless it is told."""
ANSWER_S = 0.5
"""So long is looked for what could be promised to who hands a run in: it hears it within a second."""
LONGEST_S = 2 * 366 * 86400.0
"""Nobody plans for longer."""
AHEAD_S = 60.0
"""A service that has come so much further than the clock says so."""


def over_already(deadline_s: float, now_s: float, clock_s: float) -> str:
    """What is wrong with a deadline; "": nothing, it is still to come.

    now_s: to which the service has come. clock_s: by this machine's clock, which may have been set back.
    """
    if deadline_s > now_s:
        return ""
    if deadline_s <= clock_s:
        return "its deadline is over already."
    return (
        f"its deadline, {clock_time(deadline_s)}, is still to come, but this machine's clock was ahead, and "
        f"was set back: the service has come to {clock_time(now_s)}, and promises nothing before that. Hand "
        "it in with a later --deadline, or with --best-effort."
    )


class Service:
    """One service, in its folder. Raises RunError if there is another one, ConfigError, OSError."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config
        share = load_share(config.cluster, config.section) if config.cluster != LOCAL else None
        self.folder = folder_of(config.folder)
        self._lock = _hold(self.folder)
        self._known = Known(self.folder / "known.json")
        self._journal = ServiceJournal(self.folder, config.rules)
        for ticket in self._state.under_way():
            self._claim(ticket.task)
        self._clock = SteadyClock()
        self._context: Context = zmq.Context()
        self._context.max_sockets = MOST_RUNS
        self._desk = talk.Desk(self.folder)
        self._followers: dict[str, Follower] = {}
        self._log = TaskLog(self._state)
        self._look_s = 0.0
        self._news: list[hp.Happening] = []
        """That came up while something else was decided."""
        self._hands = Hands(config.cluster, share) if share else None
        """None: the runs are this machine's."""
        self._fork_servers = ForkServers(self.folder / "forkservers")
        self._watch = ShareWatch(config, self._state, self._clock, self._hands)
        if share:
            self._begin_share(share)

    def run(self) -> None:
        """Until this process is ended. Raises Superseded, OSError: then it must end."""
        say(f"{self.folder}: service of term {self._journal.term}, {self._state.capacity} workers")
        if self._state.now_s > time.time() + AHEAD_S:
            until = clock_time(self._state.now_s)
            say(f"warning: the clock was ahead, and was set back: nothing is promised before {until}")
        while True:
            ready = self._wait()
            if self._hands:
                self._hands.turn()
            for person, question in self._desk.receive():
                if self._hands and isinstance(question, talk.HandIn):
                    run = RunDir(question.run_dir)  # its folder may be far away: nobody else waits for that
                    self._hands.read(run, partial(self._folder_read, person, question))
                else:
                    self._desk.answer(person, self._answered(question))
            happened = [*self._watch.foreseen(), *self._followed(ready)]
            if self._now_s() >= self._state.due_s:
                happened.append(hp.Woken())
            if happened:
                self._handle(happened)

    @property
    def _state(self) -> ServiceState:
        return self._journal.state

    def close(self) -> None:
        """Lets go of everything; the runs go on."""
        self._desk.close()
        for follower in self._followers.values():
            follower.close()
        if self._hands:
            self._hands.close()
        self._fork_servers.close()
        self._context.term()
        self._journal.close()
        os.close(self._lock)

    def _now_s(self) -> float:
        return self._clock.now_s()

    def _wait(self) -> set[object]:
        """Until there is something to do. Which sockets, or descriptors, are readable."""
        poller = zmq.Poller()
        for descriptor, sends in self._desk.waiting:
            poller.register(descriptor, zmq.POLLOUT if sends else zmq.POLLIN)
        for follower in self._followers.values():
            if follower.socket is not None:
                poller.register(follower.socket, zmq.POLLIN)
        for fd in self._hands.fds if self._hands else ():
            poller.register(fd, zmq.POLLIN)
        due_s = 0.0 if self._news else min(self._look_s, self._state.due_s)
        return {each for each, _ in poller.poll(poll_ms(max(0.0, due_s - self._now_s())))}

    # --- runs ------------------------------------------------------------------------------------

    def _followed(self, ready: Collection[object]) -> list[hp.Happening]:
        """What runs have said; at times all are looked at, and told again what they are granted.

        ready: what is readable.
        """
        now_s = self._now_s()
        if looks := now_s >= self._look_s:
            self._check_place()
        self._look_s = now_s + self._config.poll_s if looks else self._look_s
        self._watch.look()
        happened, self._news = [*self._news, *self._watch.take()], []
        for ticket in self._state.under_way():
            follower = self._follower(ticket)
            if looks or follower.has_answer:
                happened += self._turned(follower)
            elif follower.socket in ready:
                happened += follower.listen(now_s)
        return happened

    def _turned(self, follower: Follower) -> list[hp.Happening]:
        held = self._state.ledger.accounts[follower.name].held
        granted, now_s = self._state.granted(follower.name), self._now_s()
        follower.note(granted, now_s)
        return follower.turn(granted, held, now_s)

    def _follower(self, ticket: Ticket) -> Follower:
        name = ticket.task.name
        if name not in self._followers:
            follower = self._new_follower(ticket.task)
            follower.step = ticket.done
            self._followers[name] = follower
        return self._followers[name]

    def _new_follower(self, task: hp.Task) -> Follower:
        what = self._context, task.name, task.run_dir, self._config.measure_s
        if self._hands:
            return SubmittedFollower(*what, self._hands, mark=task.mark)
        return FollowerHere(*what, self._fork_servers, mark=task.mark)

    def _claim(self, task: hp.Task) -> None:
        """Of runs on this machine. Raises RunError where another service has one."""
        if task.mark and self._config.cluster == LOCAL:
            with contextlib.suppress(OSError):  # its folder is away: that is seen to later
                claim(RunDir(task.run_dir), self.folder)

    # --- the share of a cluster ------------------------------------------------------------------

    def _begin_share(self, share: ClusterShare) -> None:
        """Counts on no node that nobody has seen. Raises ConfigError where there is neither such a share
        nor a run under way."""
        if not self._state.nodes:
            nodes = range(self._config.nodes)
            self._handle([hp.NodeSeen(node=node, up=False, why="was never seen") for node in nodes])
        try:
            self._watch.seen(share.nodes())
        except ElasticFlowError as error:  # runs go on, and are followed; it is asked again
            if isinstance(error, ConfigError) and not self._state.under_way():
                raise
            self._watch.seen(error)
        news, self._news = [*self._news, *self._watch.take()], []
        if news:
            self._handle(news)

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
        try:
            self._journal.handle([*progress, *happened], self._now_s())
        except UndecidedError as error:  # for whoever is to mend it
            say("".join(traceback.format_exception(error.__cause__)).rstrip())
            raise
        self._check_place()  # before anybody hears of it
        self._learn(happened)
        living = {ticket.task.name: ticket for ticket in self._state.under_way()}
        for name in [name for name in self._followers if name not in living]:
            self._followers.pop(name).close()
        for name, ticket in living.items():
            if self._state.ledger.accounts[name].number != before.get(name, 0):
                follower = self._follower(ticket)
                self._news += self._turned(follower)
        self._log.say_news(happened)

    def _learn(self, happened: Sequence[hp.Happening]) -> None:
        """For later runs of the same programs."""
        for happening in happened:
            if isinstance(happening, hp.Paced):
                kind = self._state.tickets[happening.name].task.kind
                self._known.paced(kind, happening.workers, happening.rate)
            elif isinstance(happening, hp.Counted):
                task = self._state.tickets[happening.name].task
                counted = partial(self._counted, task.kind, happening.steps)
                if self._hands:
                    self._hands.read(RunDir(task.run_dir), counted)
                else:
                    with contextlib.suppress(ElasticFlowError, OSError):  # its folder is gone
                        counted(read_folder(RunDir(task.run_dir)))

    def _counted(self, kind: str, steps: int, folder: RunFolder | ElasticFlowError) -> None:
        if not isinstance(folder, ElasticFlowError):
            self._known.counted(kind, folder.config, steps)

    def _check_place(self) -> None:
        """What is written where nobody finds it is lost, and another service there may grant these workers.

        Raises Superseded.
        """
        if has_left(self.folder / LOCK, self._lock):
            raise Superseded(
                f"{self.folder}: was removed, moved or replaced while this service used it: nothing can be "
                "promised there any more. Its runs go on as they were granted."
            )

    # --- people ----------------------------------------------------------------------------------

    def _answered(self, question: talk.Question) -> talk.ServiceAnswer:
        try:
            if isinstance(question, talk.HandIn):
                return self._handed_in(question, self._read(question))
            if isinstance(question, talk.Cancel):
                return self._answer(self._cancel(question.name))
            if isinstance(question, talk.MarkNode):
                return self._mark(question)
            if isinstance(question, talk.SetShare):
                self._handle([hp.Shared(workers=question.workers)])
                return self._answer(*self._state.under_way())
            under_way = self._state.under_way() if question.under_way else []
            return self._answer(*under_way, *self._over(question.over))
        except Superseded:  # who asked asks the next one
            raise
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
            now_at=self._now_s(),
        )

    def _answer_to(self, ticket: Ticket) -> talk.ServiceAnswer:
        """Who hands a task in for which there is no room hears soon what could be promised instead."""
        answer, by_s = self._answer(ticket), time.monotonic() + ANSWER_S
        if instead := self._state.instead(ticket.task.name, lambda: time.monotonic() > by_s):
            answer.tasks[0].said = instead.text(lambda at_s: f"{at_s:.0f} s")
        return answer

    def _read(self, asked: talk.HandIn) -> RunFolder:
        try:
            return read_folder(RunDir(asked.run_dir))
        except OSError as error:
            raise UnknownError(f"{asked.run_dir}: cannot be read: {error}") from error

    def _folder_read(
        self, person: talk.Asker, asked: talk.HandIn, folder: RunFolder | ElasticFlowError
    ) -> None:
        try:
            if isinstance(folder, ElasticFlowError):
                raise folder
            answer = self._handed_in(asked, folder)
        except Superseded:
            raise
        except ElasticFlowError as error:
            answer = talk.ServiceAnswer(error=str(error))
        self._desk.answer(person, answer)

    def _handed_in(self, asked: talk.HandIn, folder: RunFolder) -> talk.ServiceAnswer:
        return self._answer_to(self._hand_in(asked, *folder))

    def _hand_in(self, asked: talk.HandIn, config: Config, owner: str, mark: str) -> Ticket:
        here = [ticket for ticket in self._state.under_way() if ticket.task.run_dir == asked.run_dir]
        for ticket in here:
            if ticket.task.mark in ("", mark):
                return ticket
        self._check(asked, config)
        if here:
            self._handle([hp.Over(name=each.task.name, state="failed", text=REPLACED) for each in here])
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
            soft=list(checked(asked.soft)),
            mark=mark,
        )
        self._claim(task)
        self._handle([hp.HandedIn(task=task)])
        return self._state.tickets[task.name]

    def _check(self, asked: talk.HandIn, config: Config) -> None:
        """Raises RunError."""
        if asked.deadline_s is not None:
            now_s = max(self._now_s(), self._state.now_s)
            if wrong := over_already(asked.deadline_s, now_s, time.time()):
                raise RunError(f"{asked.run_dir}: {wrong}")
            if asked.deadline_s > self._now_s() + LONGEST_S:
                raise RunError(f"{asked.run_dir}: its deadline is years away; hand it in with --best-effort.")
        elif asked.soft:
            raise RunError(f"{asked.run_dir}: --soft says what a deadline is worth, and it has none.")
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
        return self._answer(*self._state.under_way())

    def _over(self, most: int) -> list[Ticket]:
        """The last that came to their ends."""
        ended = [ticket for ticket in self._state.tickets.values() if ticket.ended_s is not None]
        return sorted(ended, key=lambda ticket: ticket.ended_s or 0.0)[len(ended) - min(most, len(ended)) :]

    def _told_of(self, ticket: Ticket) -> talk.ToldTask:
        name = ticket.task.name
        account = self._state.ledger.accounts.get(name)
        follower = self._followers.get(name)
        shares, is_plan = self._state.planned(name)
        why = [ticket.why, follower.waits or follower.lacks(account.granted) if follower and account else ""]
        if in_vain := self._state.in_vain(name):
            more, until_s = in_vain
            again = clock(until_s, self._now_s())
            why.append(f"{more} were no faster when that was measured, and are tried again at {again}")
        return talk.ToldTask(
            name=name,
            run=ticket.task.run_dir,
            user=ticket.task.user,
            standing=ticket.standing.value,
            state=ticket.state,
            said=ticket.said,
            why="; ".join(filter(None, why)),
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
            plan=[talk.ToldShare(until_at=one.until_s, workers=one.num_gpus) for one in shares],
            planned=is_plan,
            by_at=ticket.by_s,
        )


def serve(config: ServiceConfig) -> None:
    """A service's whole life. Raises RunError, ConfigError, OSError."""
    service = Service(config)
    try:
        service.run()
    finally:
        service.close()


def _hold(folder: Path) -> int:
    """The folder for this process alone. Raises RunError, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_trust(folder)
    folder.chmod(0o700)
    try:
        return hold(folder / LOCK)
    except BlockingIOError:
        raise RunError(
            f"{folder}: another service uses this folder; end it first, or choose another."
        ) from None
