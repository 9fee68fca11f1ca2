"""Each cluster's sizing, with its world, as the contract's tests know it: what may happen, and what is so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from elasticflow.cluster.contract import Ended
from elasticflow.cluster.sizing import End, Poll, Sizing
from elasticflow_kubernetes.sizing import Create
from elasticflow_slurm.sizing import Submit
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.sizing import Add
from tests.pretend.cluster import PretendCluster
from tests.pretend.sizing import Request
from tests.pretend.world import World
from tests.pure import kubernetes_world, slurm_world, yarn_world

PLACES = 6
"""On nodes of two; of a run's workers never more are wanted."""


class Played(ABC):
    """A world that goes on. ``num_min``: workers that are asked for in any case."""

    happens: Mapping[str, Callable[[Any, int], None]]
    """What may happen to a world, by name; with a number, which means what it likes."""
    recovers_s = 300.0
    """After so long without troubles all is well again."""
    withdraws = False
    """Whether what waits in vain is taken back, but for the bell; else it stays in the queue."""
    asks: type
    """The action that asks for a place."""
    world: Any

    @property
    def sizing(self) -> Sizing[Any, Any]:
        sizing: Sizing[Any, Any] = self.world.sizing
        return sizing

    @property
    def num_late(self) -> int:
        """So many may have been asked for twice: an ask was heard long after its answer was lost."""
        return 0

    def most_waiting(self, num_min: int) -> int:
        """How many may wait for as long as a cluster is full."""
        return max(num_min, 2 if self.withdraws else self.sizing._ways.ahead[0])

    @abstractmethod
    def be_silent(self) -> None:
        """From now on nobody answers polls."""

    @abstractmethod
    def calm(self) -> None:
        """From now on there is room, and nothing goes wrong any more."""

    @abstractmethod
    def fill(self, idle: int) -> None:
        """Others take all places but so many; those that we have stay ours."""

    @abstractmethod
    def fail_on(self, node: str) -> None:
        """One that runs there fails by an error of its own."""

    @abstractmethod
    def living(self) -> list[str]:
        """Names of all that there is, in truth."""

    @abstractmethod
    def running(self) -> dict[str, str]:
        """Nodes, by the names of those that run, in truth."""

    @property
    @abstractmethod
    def told(self) -> list[Ended]:
        """All ends that were told."""

    def orders(self) -> int:
        """How many times something was asked for, or ended."""
        actions = [each[-1] if isinstance(each, tuple) else each for each in self.world.actions]
        return sum(isinstance(action, (self.asks, End)) for action in actions)

    def polls(self) -> int:
        actions = [each[-1] if isinstance(each, tuple) else each for each in self.world.actions]
        return sum(isinstance(action, Poll) for action in actions)


# --- pretend --------------------------------------------------------------------------------------


def _strike(world: World, which: int, state: str) -> None:
    if pods := world.cluster.living("Running"):
        world.cluster.change(pods[which % len(pods)].id, state)


def _forget(world: World, which: int) -> None:
    if pods := world.cluster.living():
        del world.cluster.pods[pods[which % len(pods)].id]


def _hide(world: World, which: int) -> None:
    """Not one whose answer was lost: that polls show it is what ``names_asks`` says of a cluster."""
    asks = {ask.name: ask.id for ask in world.sizing._asks}
    pods = [pod for pod in world.cluster.living() if asks.get(pod.name) == pod.id]
    world.cluster.hide({pods[which % len(pods)].name} if pods else set())


class Pretended(Played):
    asks = Request
    happens = {
        "scale": lambda world, which: world.scale(which % (PLACES + 1)),
        "replace_master": lambda world, which: None if world.cluster.away else world.replace_master(),
        "look": lambda world, which: world.sizing.look(),
        "give_way": lambda world, which: world.sizing.give_way(world.now_s),
        "evict": lambda world, which: _strike(world, which, "Evicted"),
        "fail": lambda world, which: _strike(world, which, "Failed"),
        "succeed": lambda world, which: _strike(world, which, "Succeeded"),
        "lose": lambda world, which: world.cluster.lose(f"n{which % 3}"),
        "others": lambda world, which: setattr(world.cluster, "others", which),
        "quota": lambda world, which: setattr(world.cluster, "quota", which or None),
        "away": lambda world, which: setattr(world.cluster, "away", which % 2 == 0),
        "lose_answers": lambda world, which: setattr(world.cluster, "loses_answers", which % 2 == 0),
        "forget": _forget,
        "hide": _hide,
    }

    def __init__(self, num_min: int, delay_s: float) -> None:
        cluster = PretendCluster({f"n{number}": 2 for number in range(PLACES // 2)})
        self.world = World(cluster, num_min=num_min, delay_s=delay_s)

    def be_silent(self) -> None:
        self.world.cluster.away = True

    def calm(self) -> None:
        cluster = self.world.cluster
        cluster.nodes = {f"n{number}": 2 for number in range(PLACES // 2)}
        cluster.nodes["spare"] = PLACES  # one node may be left out
        for pod in [] if self.world.target else cluster.living():
            if pod.name in cluster.was_hidden:  # and given up; nobody polls any more: it leaves by itself
                cluster.change(pod.id, "Succeeded")
        cluster.others, cluster.quota = 0, None
        cluster.hide(set())
        cluster.away = cluster.loses_answers = False

    def fill(self, idle: int) -> None:
        free = sum(self.world.cluster.nodes.values()) - len(self.running())
        self.world.cluster.others = max(0, free - idle)

    def fail_on(self, node: str) -> None:
        pod = next(pod for pod in self.world.cluster.living("Running") if pod.node == node)
        self.world.cluster.change(pod.id, "Failed")

    def living(self) -> list[str]:
        return [pod.name for pod in self.world.cluster.living()]

    def running(self) -> dict[str, str]:
        return {pod.name: pod.node for pod in self.world.cluster.living("Running")}

    @property
    def told(self) -> list[Ended]:
        told: list[Ended] = self.world.told
        return told


# --- Kubernetes -----------------------------------------------------------------------------------


class OnKubernetes(Pretended):
    """What its API server shows is so: nothing is hidden."""

    asks = Create
    happens = {name: act for name, act in Pretended.happens.items() if name != "hide"}

    def __init__(self, num_min: int, delay_s: float) -> None:
        cluster = PretendCluster({f"n{number}": 2 for number in range(PLACES // 2)})
        self.world = kubernetes_world.KubernetesWorld(cluster, num_min=num_min, delay_s=delay_s)


# --- SLURM ----------------------------------------------------------------------------------------


class OnSlurm(Played):
    asks = Submit
    happens = {**slurm_world.HAPPENS, "scale": lambda world, which: world.scale(which % (PLACES + 1))}
    recovers_s = 1300.0  # a place that was struck out, and then at its limit, takes jobs again

    def __init__(self, num_min: int, delay_s: float) -> None:
        nodes = [f"n{number}" for number in range(PLACES // 2)]
        cluster = slurm_world.Cluster({"gpu": nodes, "idle": ["spare0", "spare1", "spare2"]})
        self.world = slurm_world.World(cluster, num_min=num_min, delay_s=delay_s, poll_s=10.0)

    @property
    def num_late(self) -> int:
        return len(self.world.cluster.taken_late)

    def be_silent(self) -> None:
        self.world.cluster.away = True

    def calm(self) -> None:
        slurm_world.calm_down(self.world)

    def fill(self, idle: int) -> None:
        for name, nodes in self.world.cluster.partitions.items():
            mine = sum(job.node in nodes for job in self.world.cluster.living())
            free = slurm_world.GPUS_A_NODE * len(nodes) - mine
            self.world.cluster.others[name] = max(0, free - idle)
            idle = max(0, idle - free)

    def fail_on(self, node: str) -> None:
        job = next(job for job in self.world.cluster.living("RUNNING") if job.node == node)
        self.world.cluster.change(job.id, state="FAILED", exit_code=1)

    def living(self) -> list[str]:
        return [job.name for job in self.world.cluster.living()]

    def running(self) -> dict[str, str]:
        return {job.name: job.node for job in self.world.cluster.living("RUNNING")}

    @property
    def told(self) -> list[Ended]:
        told: list[Ended] = self.world.told
        return told


# --- YARN -----------------------------------------------------------------------------------------


class OnYarn(Played):
    asks = Add
    happens = yarn_world.HAPPENS
    withdraws = True
    recovers_s = 600.0

    def __init__(self, num_min: int, delay_s: float) -> None:
        nodes = {f"n{number}": 2 for number in range(PLACES // 2)}
        self.world = yarn_world.World(
            yarn_world.Cluster(nodes, share=2, preempt_s=1e9), num_min=num_min, delay_s=delay_s
        )

    def be_silent(self) -> None:
        self.world.cluster.hangs = True

    def calm(self) -> None:
        cluster = self.world.cluster
        cluster.others = cluster.others_wait = 0
        cluster.away = cluster.hangs = cluster.loses_kills = cluster.loses_ends = False
        cluster.nodes |= {f"n{number}": 2 for number in range(PLACES // 2)}
        cluster.nodes = {"spare": PLACES, **cluster.nodes}  # YARN offers the first that has room

    def fill(self, idle: int) -> None:
        self.world.cluster.others = max(0, self.world.cluster.free + self.world.cluster.others - idle)

    def fail_on(self, node: str) -> None:
        cluster = self.world.cluster
        container = next(each for each in cluster.of("RUNNING") if each.node == node)
        name = self.world.names[container.id]
        self.world.left[name] = Ending(1, "RuntimeError: CUDA error", container.yarn_id, node)
        words = "Container failed during execution, see logs for more information."
        cluster.end(container.yarn_id, self.world.now_s, "FAILED", words)

    def living(self) -> list[str]:
        waiting = [self.world.names[each.id] for each in self.world.cluster.of("REQUESTED")]
        return [*waiting, *self.running()]

    def running(self) -> dict[str, str]:
        """What runs, whether or not Skein knows of it."""
        names = {each.yarn_id: self.world.names[each.id] for each in self.world.cluster.containers.values()}
        return {names[id]: node for id, node in self.world.cluster.running.items()}

    @property
    def told(self) -> list[Ended]:
        told: list[Ended] = self.world.ended
        return told


KINDS: dict[str, type[Played]] = {
    "pretend": Pretended,
    "kubernetes": OnKubernetes,
    "slurm": OnSlurm,
    "yarn": OnYarn,
}
