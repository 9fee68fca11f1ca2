"""The master and the rim around ``PretendSizing``, in a time that tests turn: nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from elasticflow.cluster.config import ClusterConfig
from elasticflow.cluster.contract import Ended
from elasticflow.cluster.news import taken
from elasticflow.cluster.sizing import End, Poll
from tests.pretend.cluster import PretendCluster, PretendError
from tests.pretend.sizing import Action, PretendSizing
from tests.pretend.turned import TurnedWorld


class World(TurnedWorld):
    """Keeps ``target`` workers wanted, each end replaced under a new name. delay_s: of every answer."""

    def __init__(
        self, cluster: PretendCluster, *, delay_s: float = 0.1, num_min: int = 1, run: str = ""
    ) -> None:
        super().__init__(1000.0)
        self.run_name = run
        self.cluster, self.delay_s, self.num_min = cluster, delay_s, num_min
        self.sizing: Any = self.make_sizing()
        self.target = 0
        self.wanted: list[str] = []
        self.told: list[Ended] = []
        self.actions: list[tuple[float, Action]] = []
        self._numbers = count(1)

    def make_sizing(self) -> Any:
        """Of one master."""
        return PretendSizing(ClusterConfig(), self.num_min, self.run_name)

    def shown(self) -> list[Any]:
        """As that sizing is to see it."""
        return self.cluster.shown()

    def end(self, id: str) -> None:
        self.cluster.end(id)

    def error_of(self, error: PretendError) -> Exception:
        """As that sizing is told of it."""
        return error

    def scale(self, target: int) -> None:
        self.target = target
        while len(self.wanted) > target:
            self.sizing.unwant(self.wanted.pop(), self.now_s)
        while len(self.wanted) < target:
            self.wanted.append(f"worker-{next(self._numbers)}")
            self.sizing.want(self.wanted[-1], self.now_s)
        self._act()

    def replace_master(self) -> None:
        """The master dies with what it had ordered half done; the next one adopts what is shown."""
        self._events.clear()
        self.sizing = self.make_sizing()
        living = {
            pod.name
            for pod in self.cluster.living()
            if pod.name not in self.cluster.hidden and pod.run == self.run_name
        }
        for name in living:
            self.sizing.adopt(name, self.now_s)
        self.sizing.observed(self.shown(), self.now_s, self.now_s)
        for name in living.difference(self.wanted):
            self.sizing.unwant(name, self.now_s)
        self.wanted = [name for name in self.wanted if name in living]
        self.scale(self.target)

    def _act(self) -> None:
        for action in self.sizing.decide(self.now_s):
            self.actions.append((self.now_s, action))
            self._soon(partial(self._do, action, self.sizing))
        for ended in taken(self.sizing.news.ended):
            self.told.append(ended)
            self.wanted.remove(ended.name)
        if len(self.wanted) < self.target:
            self.scale(self.target)

    def _soon(self, act: Callable[[], None]) -> None:
        self._at(self.now_s + self.delay_s / 2, act)

    def _do(self, action: Any, sizing: Any) -> None:
        answer: Any = None
        try:
            match action:
                case End():
                    for id in action.ids:
                        self.end(id)
                case Poll():
                    answer = self.shown()
                case _:
                    answer = self.cluster.ask(action.name, action.exclude, self.run_name)
        except PretendError as error:
            answer = self.error_of(error)
        self._soon(partial(self._answered, action, answer, sizing))

    def _answered(self, action: Any, answer: object, sizing: Any) -> None:
        if sizing is not self.sizing:
            return
        match action, answer:
            case Poll(), Exception():
                sizing.unobserved(answer, self.now_s)
            case Poll(), list():
                sizing.observed(answer, self.now_s, self.now_s)
            case End(), _:
                pass
            case _, Exception():
                sizing.refused(action.name, answer, self.now_s)
            case _:
                sizing.accepted(action.name, answer, self.now_s)
