"""How workers add up gradients and get parameters: behind one small interface, chosen by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from elasticflow.process.named import load_named
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Vector
from elasticflow.step.rows import Keys, Values
from elasticflow.step.slices import Node
from elasticflow.training.advice import Advice, Question, Tuning
from elasticflow.wire.messages import Assignment, Share

STRATEGIES = {
    "parameter_server": "elasticflow_ps.client:ParameterServers",
    "all_reduce": "elasticflow_ps.client:ParameterServers",
    "auto": "elasticflow_ps.client:ParameterServers",
}
"""They differ in who runs the servers: see ``elasticflow.worker.carrying``."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """The version a worker has, and what governs the tick that starts from it.

    tuning: of the learning rate. ends: there is no such tick, the run ends with this version.
    """

    version: int
    shares: tuple[Share, ...]
    cut: bool = False
    snapshot: bool = False
    finish: bool = False
    tuning: Tuning = Tuning()
    ends: bool = False
    pause: bool = False

    def slices_of(self, worker: str) -> range:
        """Those that a worker is to compute; none if it is not in the plan."""
        mine = (range(share.first, share.stop) for share in self.shares if share.worker == worker)
        return next(mine, range(0))


class Overdue(msgspec.Struct, frozen=True):
    """Slices of the present tick that this worker is asked to compute as well.

    careful: those of them that workers may have died of: they are tried in another process first.
    """

    tick: int
    slices: tuple[int, ...]
    careful: tuple[int, ...] = ()


class Severed(msgspec.Struct, frozen=True):
    """The way to ``member`` is lost: until ``connect`` nothing comes, and pushes go nowhere."""

    member: str


Event: TypeAlias = Position | Overdue | Question | Severed | None


class Outgoing(ABC):
    """A push of a sum the last slice of which is still being computed.

    begun: whether anything was ``ready``. It may have been sent, and the sums on its left are used up.
    """

    begun: bool

    @abstractmethod
    def ready(self, number: int) -> None:
        """The gradient of parameter ``number`` is final: sends all of which nothing is missing any more."""

    @abstractmethod
    def finish(self, slice_s: float) -> None:
        """All the slice's values are final: sends the rest. slice_s: seconds that the slice took.

        Raises what went wrong in ``ready``.
        """


def unheeded(group: int, start: int, stop: int) -> None:
    """Of who need not know what is written to a state."""


class Strategy(ABC):
    """A worker's way to the others. It is told whom to connect to, and says when the way is lost."""

    @abstractmethod
    def __init__(
        self,
        settings: MemberSettings,
        state: Vector,
        wake_fd: int,
        put: Callable[[int, int, int], None] = unheeded,
    ) -> None:
        """state: where versions are put. wake_fd: a descriptor that ends a wait early.

        put: told of all that is written to ``state``, see ``Replica.put``.
        """

    @property
    @abstractmethod
    def dropped(self) -> int:
        """Messages that were malformed, so far."""

    @property
    def rounding(self) -> Callable[[Vector], None] | None:
        """Rounds a slice's gradient, or the sum of two siblings', in place. None: nothing is rounded."""
        return None

    @property
    @abstractmethod
    def streams(self) -> bool:
        """Whether to ``begin`` pushes before all is computed: there is something to be gained by it."""

    @abstractmethod
    def connect(self, assignment: Assignment) -> None:
        """Lets go of all connections, and begins those of an assignment. Does not wait.

        The next Position that ``wait`` returns is a version of that generation. Where there is none yet,
        what ``state`` holds now is made the first.
        """

    @abstractmethod
    def wait(self) -> Event:
        """Waits for a version, or for more to do. None: something else (``wake_fd``) is there.

        A version is put into ``state``. It may be much later than the last one, for a worker that was late.
        Until it is whole ``state`` may be a mixture, but not when there is more to do.
        """

    @abstractmethod
    def read(
        self, table: int, keys: Keys, urgent: Callable[[], bool], *, early: bool = False
    ) -> Callable[[], Values]:
        """Asks for rows of a table, (k, dim), at the version that ``state`` holds. keys: (k,).

        early: at the next version instead. The question may leave no sooner than it is waited for, or with
        ``hurry``, so that many leave together.
        What is returned waits for them. It need not be called, and must be only while that is the version.
        urgent: asked, before it waits and whenever ``wake_fd`` ends the wait, whether to give up; it makes
        ``wake_fd`` unreadable. It raises Interrupted then, and if the rows cannot be had any more: the
        version is past, or the way to a server is lost.
        """

    def hurry(self) -> None:  # noqa: B027  (most have nothing to hurry)
        """All that was asked for with ``read`` leaves now."""

    @abstractmethod
    def recall(self, position: Position, slices: Sequence[int], *, rest: bool = False) -> bool:
        """Whether ``state`` still is the version of ``position``, so that slices can be computed from it.

        If parts of the next one are there, the version is got again, and an Overdue for the slices follows;
        unless there is no more need of them. Where slices are applied one by one it is always got again, with
        all that was applied to it since. rest: those that were given to others by then are left to them.
        """

    @abstractmethod
    def push(
        self,
        position: Position,
        node: Node,
        total: Vector | None,
        *,
        lr: float | None,
        slice_s: float,
        last: bool,
    ) -> None:
        """Hands over the sum of a node's slices; None if they hold no records.

        ``total`` is the strategy's from now on. slice_s: seconds that a slice took. last: this worker
        has no more to push in this tick, and waits for the next version.
        """

    @abstractmethod
    def begin(
        self,
        position: Position,
        node: Node,
        parts: Sequence[Vector],
        *,
        lr: float | None,
        slice_s: float,
        last: bool,
    ) -> Outgoing:
        """As ``push``, of a node's sum while the last of its slices is computed into ``parts[-1]``.

        parts: the sums over the slices, from left to right, that make up the node's along the tree; the last
        is not rounded yet. They are the strategy's from the moment on when it has ``begun`` to send.
        slice_s: seconds that a slice took of late.
        """

    @abstractmethod
    def ask(self, position: Position) -> None:
        """This worker has nothing (more) to compute in this tick, and waits for the next version."""

    @abstractmethod
    def advise(self, question: Question, advice: Advice) -> None:
        """What the program says to what it was asked. Only before it is waited again."""

    @abstractmethod
    def spare(self) -> Vector:
        """A vector to compute into; its contents are arbitrary."""

    @abstractmethod
    def give_back(self, vector: Vector) -> None:
        """Returns a spare vector that has not been pushed."""

    @abstractmethod
    def close(self) -> None:
        """Says no more. What was pushed is still sent."""


def load_strategy(name: str) -> type[Strategy]:
    """Raises ConfigError if there is no strategy of that name."""
    found: type[Strategy] = load_named("strategy", name, STRATEGIES)
    return found
