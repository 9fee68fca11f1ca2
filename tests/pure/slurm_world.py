"""A cluster that is not there, and a master that has nothing in mind but how many workers it wants.

``World`` plays the rim of the SLURM backend: it does what ``SlurmSizing`` decides, with the delays and the
lost answers of a real cluster, and checks what must hold at any moment.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from functools import partial

import msgspec

from elasticflow.cluster.contract import Ended
from elasticflow.cluster.news import taken
from elasticflow.cluster.sizing import End, Poll
from elasticflow.master.members import number_of
from elasticflow_slurm.client import LimitReached, SlurmBusy, SlurmError, SlurmJob, SlurmRefused
from elasticflow_slurm.comments import Comment
from elasticflow_slurm.config import PlaceConfig, SlurmConfig
from elasticflow_slurm.sizing import WAYS, Action, Estimate, SlurmSizing, Submit
from tests.pretend.turned import TurnedWorld

RUN = "0123456789ab"
EPOCH = 1_800_000_000.0
"""Wall time when the monotonic clock is 0."""
GPUS_A_NODE = 2
KILL_S = 3.0
"""A job that runs takes so long to end when it is cancelled."""
LATE_S = 12.0
"""So long after its answer was lost a late submission is taken."""
DOUBLE_POLLS = 3
"""So many polls may show two living jobs of one name: the first, and any that begin before the cancel."""


class Cluster:
    """One job takes one GPU. Pending jobs start in order, wherever there is room."""

    def __init__(self, partitions: dict[str, list[str]]) -> None:
        self.partitions = partitions
        self.jobs: dict[int, SlurmJob] = {}
        self.excluded: dict[int, tuple[str, ...]] = {}
        self.others: Counter[str] = Counter()
        """GPUs that somebody else's jobs have, by partition."""
        self.limit: int | None = None
        """Of jobs that are not over."""
        self.refusing: set[str] = set()
        self.down: set[str] = set()
        self.away = False
        self.loses_answers = self.is_late = False
        self.taken_late: set[int] = set()
        """Jobs that were taken long after the answer was lost; only these may be one too many."""
        self._late: list[tuple[float, Submit]] = []
        self._dying: dict[int, float] = {}
        self._next_id = 100

    # --- what the client may ask ------------------------------------------------------------------

    def submit(self, request: Submit, now_s: float) -> int:
        self._answer_or_not()
        if request.place.partition in self.refusing:
            raise SlurmRefused(f"Invalid partition: {request.place.partition}")
        if set(self.partitions[request.place.partition]) <= set(request.exclude):
            raise SlurmRefused("Requested node configuration is not available")
        if self.limit is not None and len(self.living()) >= self.limit:
            raise LimitReached("QOSMaxSubmitJobPerUserLimit")
        if self.loses_answers and self.is_late:
            self._late.append((now_s + LATE_S, request))
            raise SlurmBusy("Socket timed out on send/recv operation")
        id = self._accept(request, now_s)
        if self.loses_answers:
            raise SlurmBusy("Socket timed out on send/recv operation")
        return id

    def cancel(self, ids: Iterable[int], now_s: float) -> None:
        self._answer_or_not()
        for id in ids:
            job = self.jobs.get(id)
            if job is None or job.over or id in self._dying:
                continue
            if job.state == "PENDING":
                self.change(id, state="CANCELLED", reason="")
            else:
                self._dying[id] = now_s + KILL_S
                self.change(id, state="COMPLETING")

    def all_jobs(self) -> list[SlurmJob]:
        self._answer_or_not()
        return list(self.jobs.values())

    def would_start_at(self, request: Estimate, at: float) -> float:
        self._answer_or_not()
        return at if self._room(request.place.partition, request.exclude) else at + 3600.0

    # --- what happens by itself -------------------------------------------------------------------

    def pass_time(self, now_s: float) -> None:
        for due_s, request in [each for each in self._late if each[0] <= now_s]:
            self._late.remove((due_s, request))
            self.taken_late.add(self._accept(request, now_s))
        for id in [id for id, end_s in self._dying.items() if end_s <= now_s]:
            del self._dying[id]
            if id in self.jobs:
                self.change(id, state="CANCELLED")
        for job in [job for job in self.jobs.values() if job.state == "PENDING" and not job.held]:
            if node := self._room(job.partition, self.excluded[job.id]):
                self.change(job.id, state="RUNNING", reason="", node=node, start_at=EPOCH + now_s)
            elif job.reason != "Resources":
                self.change(job.id, reason="Resources")

    # --- what tests do to it ----------------------------------------------------------------------

    def living(self, *states: str) -> list[SlurmJob]:
        """Jobs that are not over; with ``states``: those in one of them."""
        return [job for job in self.jobs.values() if not job.over and (not states or job.state in states)]

    def change(self, id: int, **changes: object) -> None:
        self.jobs[id] = msgspec.structs.replace(self.jobs[id], **changes)

    def lose(self, id: int) -> None:
        """slurmctld forgets the job, and gives its id to another."""
        del self.jobs[id]
        self._next_id = min(self._next_id, id)

    def _accept(self, request: Submit, now_s: float) -> int:
        while self._next_id in self.jobs:
            self._next_id += 1
        id = self._next_id
        self.jobs[id] = SlurmJob(
            id=id,
            name=request.name,
            comment=str(Comment(RUN, request.name)),
            state="PENDING",
            partition=request.place.partition,
            submit_at=EPOCH + now_s,
        )
        self.excluded[id] = request.exclude
        return id

    def _room(self, partition: str, exclude: tuple[str, ...]) -> str:
        """A node with an idle GPU; "" if there is none."""
        mine = Counter(job.node for job in self.living() if job.node)
        up = [node for node in self.partitions[partition] if node not in self.down]
        idle = sum(GPUS_A_NODE - mine[node] for node in up) - self.others[partition]
        free = [node for node in up if mine[node] < GPUS_A_NODE and node not in exclude]
        return free[0] if free and idle > 0 else ""

    def _answer_or_not(self) -> None:
        if self.away:
            raise SlurmBusy("Unable to contact slurm controller (connect failure)")


class World(TurnedWorld):
    """A run on a cluster: keeps ``target`` workers wanted, each end replaced under a new name."""

    def __init__(self, cluster: Cluster, *, delay_s: float = 0.1, num_min: int = 1, **config: object) -> None:
        super().__init__(1000.0)
        places = tuple(PlaceConfig(partition=name) for name in cluster.partitions)
        self.config = SlurmConfig(**{"workers": places, **config})  # type: ignore[arg-type]
        self.cluster, self.delay_s, self.num_min = cluster, delay_s, num_min
        self.sizing = SlurmSizing(self.config, num_min, RUN)
        self.wanted: set[str] = set()
        self.target = 0
        self.told: list[Ended] = []
        self.notes: list[str] = []
        self.actions: list[tuple[float, Action]] = []
        self._free_s = 0.0
        self._next_worker = 1
        self._doubles: Counter[str] = Counter()
        """By name: polls in a row, with slurmctld there, that found two living jobs."""
        self._cancel_lost_s = 0.0

    # --- the master -------------------------------------------------------------------------------

    def scale(self, target: int) -> None:
        self.target = target
        for name in sorted(self.wanted, key=number_of)[target:]:
            self.wanted.discard(name)
            self.sizing.unwant(name, self.now_s)
        while len(self.wanted) < target:
            name = f"worker-{self._next_worker}"
            self._next_worker += 1
            self.wanted.add(name)
            self.sizing.want(name, self.now_s)
        self._act()

    def replace_master(self) -> None:
        """The master dies with what it had ordered half done; the next one adopts what lives."""
        self._cancel_lost_s = self.now_s
        self._events = [event for event in self._events if event[1] % 2]
        heapq.heapify(self._events)
        self.sizing = SlurmSizing(self.config, self.num_min, RUN)
        jobs = list(self.cluster.jobs.values())
        self.sizing.observed(jobs, self.now_s, EPOCH + self.now_s)
        living = {job.name for job in jobs if not job.over}
        for name in living:
            self.sizing.adopt(name, self.now_s)
        for name in living - self.wanted:
            self.sizing.unwant(name, self.now_s)
        self.wanted &= living
        self.scale(self.target)

    # --- the rim ----------------------------------------------------------------------------------

    def _turn(self, now_s: float) -> None:
        super()._turn(now_s)
        self.cluster.pass_time(now_s)

    def _act(self) -> None:
        for action in self.sizing.decide(self.now_s):
            self.actions.append((self.now_s, action))
            self._free_s = max(self.now_s, self._free_s) + self.delay_s
            self._at(self._free_s, partial(self._do, action, self.sizing))
        for ended in taken(self.sizing.news.ended):
            assert ended.name in self.wanted, f"{ended} was told of one that is not wanted, or twice"
            self.told.append(ended)
            self.wanted.discard(ended.name)
        self.notes += [text for _, text in taken(self.sizing.news.notes)]
        if len(self.wanted) < self.target:
            self.scale(self.target)

    def _do(self, action: Action, sizing: SlurmSizing) -> None:
        """In the clerk's thread: asks SLURM. The answer is heard a moment later."""
        try:
            answer = self._ask(action)
        except SlurmError as error:
            answer = error
            self._cancel_lost_s = self.now_s if isinstance(action, End) else self._cancel_lost_s
        self._at(self.now_s + self.delay_s / 2, partial(self._answered, action, answer, sizing))

    def _ask(self, action: Action) -> object:
        match action:
            case Submit():
                self._check_single(action.name)
                return self.cluster.submit(action, self.now_s)
            case End():
                self.cluster.cancel(action.ids, self.now_s)
                return None
            case Estimate():
                return self.cluster.would_start_at(action, EPOCH + self.now_s)
            case Poll():
                jobs = self.cluster.all_jobs()
                self._check_doubles(jobs)
                return jobs

    def _answered(self, action: Action, answer: object, sizing: SlurmSizing) -> None:
        if sizing is not self.sizing:
            return
        lost, at = isinstance(answer, SlurmError), EPOCH + self.now_s
        match action:
            case Submit():
                tell = sizing.refused if lost else sizing.accepted
                tell(action.name, answer, self.now_s)  # type: ignore[arg-type]
            case Estimate():
                sizing.estimated(action.place, answer, self.now_s, at)  # type: ignore[arg-type]
            case Poll() if lost:
                sizing.unobserved(answer, self.now_s)  # type: ignore[arg-type]
            case Poll():
                sizing.observed(answer, self.now_s, at)  # type: ignore[arg-type]

    # --- what must hold ---------------------------------------------------------------------------

    def running(self) -> set[str]:
        return {job.name for job in self.cluster.living("RUNNING")}

    def count(self, kind: type, since_s: float = 0.0) -> int:
        """How many actions of a kind were told."""
        return sum(isinstance(action, kind) for at_s, action in self.actions if at_s >= since_s)

    def _check_single(self, name: str) -> None:
        late = self.cluster.taken_late
        lives = [job.id for job in self.cluster.living() if job.name == name and job.id not in late]
        assert not lives, f"{name} is submitted though job {lives} lives"

    def _check_doubles(self, jobs: list[SlurmJob]) -> None:
        living = Counter(job.name for job in jobs if not job.over and job.state != "COMPLETING")
        self._doubles = Counter({name: self._doubles[name] + 1 for name, many in living.items() if many > 1})
        for name, polls in self._doubles.items():
            excused = self.now_s <= self._cancel_lost_s + WAYS.end_again_s + DOUBLE_POLLS * self.config.poll_s
            assert excused or polls <= DOUBLE_POLLS, f"{polls} polls show {living[name]} jobs of {name}"


def polls_a_minute(num_workers: int, minutes: int = 10) -> float:
    """How often SLURM is asked for the state of all jobs while so many workers run."""
    nodes = [f"g{number}" for number in range(-(-num_workers // GPUS_A_NODE))]
    world = World(Cluster({"gpu": nodes}))
    world.scale(num_workers)
    world.run(300.0)
    assert len(world.running()) == num_workers
    before = world.count(Poll)
    world.run(60.0 * minutes)
    return (world.count(Poll) - before) / minutes


# --- what may happen ---------------------------------------------------------------------------------


def _preempt(world: World, which: int) -> None:
    _strike(world, which, "RUNNING", state="PREEMPTED")


def _strike(world: World, which: int, among: str, **changes: object) -> None:
    if jobs := world.cluster.living(among):
        world.cluster.change(jobs[which % len(jobs)].id, **changes)


def _forget(world: World, which: int) -> None:
    if jobs := world.cluster.living("PENDING", "RUNNING"):
        world.cluster.lose(jobs[which % len(jobs)].id)


def _fail_node(world: World, which: int) -> None:
    if jobs := world.cluster.living("RUNNING"):
        node = jobs[which % len(jobs)].node
        world.cluster.down.add(node)
        for job in jobs:
            if job.node == node:
                world.cluster.change(job.id, state="NODE_FAIL")


def _steal(world: World, which: int) -> None:
    names = list(world.cluster.partitions)
    world.cluster.others[names[which % len(names)]] = which


def _refuse(world: World, which: int) -> None:
    names = list(world.cluster.partitions)
    world.cluster.refusing ^= {names[which % len(names)]}


def _limit(world: World, which: int) -> None:
    world.cluster.limit = which if world.cluster.limit is None else None


def _go_away(world: World, which: int) -> None:
    world.cluster.away = not world.cluster.away


def _lose_answers(world: World, which: int) -> None:
    world.cluster.loses_answers, world.cluster.is_late = not world.cluster.loses_answers, which % 2 == 0


HAPPENS = {
    "scale": World.scale,
    "replace_master": lambda world, which: None if world.cluster.away else world.replace_master(),
    "look": lambda world, which: world.sizing.look(),
    "preempt": _preempt,
    "fail": lambda world, which: _strike(world, which, "RUNNING", state="FAILED", exit_code=1),
    "complete": lambda world, which: _strike(world, which, "RUNNING", state="COMPLETED"),
    "scancel": lambda world, which: _strike(world, which, "PENDING", state="CANCELLED"),
    "requeue": lambda world, which: _strike(world, which, "RUNNING", state="PENDING", node="", restarts=1),
    "hold": lambda world, which: _strike(world, which, "PENDING", priority=0, reason="JobHeldAdmin"),
    "launch_fails": lambda world, which: _strike(
        world, which, "PENDING", priority=0, reason="launch failed requeued held"
    ),
    "forget": _forget,
    "fail_node": _fail_node,
    "steal": _steal,
    "refuse": _refuse,
    "limit": _limit,
    "go_away": _go_away,
    "lose_answers": _lose_answers,
}


def calm_down(world: World) -> None:
    """Nothing is wrong with the cluster any more; who holds jobs releases them."""
    cluster = world.cluster
    cluster.others.clear()
    cluster.refusing.clear()
    cluster.down.clear()
    cluster.limit, cluster.away, cluster.loses_answers = None, False, False
    for job in cluster.living("PENDING"):
        if job.reason == "JobHeldAdmin":
            cluster.change(job.id, priority=1, reason="")
    world.run(4 * LATE_S)
    if not world.target:  # nobody polls any more, so nobody sees what is taken now: it leaves by itself
        for job in cluster.living():  # the latter a master had asked for that died
            if job.id in cluster.taken_late or world.sizing._asks.get(job.name) is None:
                cluster.change(job.id, state="COMPLETED")
