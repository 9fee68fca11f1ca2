"""Which GPUs a job has: disjoint, and on no more nodes than it must.

Part of a node: an aligned block of a power of two (buddies). More than a node: whole nodes, any of them.
So whatever fits by number fits in place, if smaller jobs may be moved; each move is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from elasticflow.scheduler.cluster import ClusterShape
from elasticflow.scheduler.nodes import bits, block_of, largest_block

Gpus = tuple[int, ...]
MoveCost = Callable[[str], float]
"""What it costs to move a job; infinite if it must not be moved."""


@dataclass
class Placement:
    """Who has which GPUs. Changed by ``arrange`` and ``put`` alone, and by nodes that come and go."""

    shape: ClusterShape
    held: dict[str, Gpus] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._width = self.shape.gpus_per_node
        self._full = bits(0, self._width)
        self._free = [self._full] * self.shape.num_nodes
        self._nodes_by_free: dict[int, set[int]] = {self._full: set(range(self.shape.num_nodes))}
        self._on_node: list[set[str]] = [set() for _ in range(self.shape.num_nodes)]

    @property
    def num_up(self) -> int:
        """GPUs of the nodes that are up."""
        return (self.shape.num_nodes - len(self.down)) * self._width

    def lose(self, node: int) -> list[str]:
        """The node is down; the jobs on it lose all their GPUs, and are returned."""
        hit = sorted(self._on_node[node])
        for job_id in hit:
            self.release(job_id)
        if node not in self.down:
            self.down.add(node)
            self._nodes_by_free[self._full].discard(node)
        return hit

    def back(self, node: int) -> None:
        """The node is up again, and empty."""
        if node in self.down:
            self.down.discard(node)
            self._nodes_by_free[self._full].add(node)

    def release(self, job_id: str) -> None:
        """The job has no GPUs any more."""
        for node, block in self._by_node(self.held.pop(job_id, ())).items():
            self._set_free(node, self._free[node] | block)
            self._on_node[node].discard(job_id)

    def arrange(self, sizes: Mapping[str, int], move_cost: MoveCost) -> dict[str, Gpus]:
        """Gives each job its number of GPUs; returns what is new, with those moved to make room.

        Who keeps its size stays where it is, if it can; who gets fewer keeps part of its own.
        """
        before = dict(self.held)
        for job_id in [one for one in self.held if not sizes.get(one)]:
            self.release(job_id)
        waiting = []
        for job_id, size in sizes.items():
            has = len(self.held.get(job_id, ()))
            if size < has:
                self._shrink(job_id, size)
            elif size > has:
                waiting.append((-size, job_id))
        self._grow(sorted(waiting), move_cost)
        return {job_id: gpus for job_id, gpus in self.held.items() if before.get(job_id) != gpus}

    def put(self, held: Mapping[str, Gpus]) -> None:
        """Gives jobs these very GPUs, which nobody has."""
        for job_id, gpus in held.items():
            self._take(job_id, gpus)

    def copy(self) -> Placement:
        """One on which something can be tried out."""
        other = Placement(self.shape, dict(self.held), set(self.down))
        other._free = list(self._free)
        other._nodes_by_free = {free: set(nodes) for free, nodes in self._nodes_by_free.items()}
        other._on_node = [set(jobs) for jobs in self._on_node]
        return other

    def check_invariants(self) -> None:
        """Disjoint, on nodes that are up, and on no more of them than they must be."""
        taken: set[int] = set()
        for job_id, gpus in self.held.items():
            assert taken.isdisjoint(gpus), job_id
            taken |= set(gpus)
            nodes = {gpu // self._width for gpu in gpus}
            assert len(nodes) == max(1, len(gpus) // self._width), (job_id, gpus)
            assert nodes.isdisjoint(self.down), job_id
        assert sum(free.bit_count() for free in self._free) == self.shape.num_gpus - len(taken)

    def _grow(self, waiting: list[tuple[int, str]], move_cost: MoveCost) -> None:
        """Places the largest first; whom it evicts is smaller, and is placed after it."""
        queue = list(waiting)
        for _, job_id in queue:
            self.release(job_id)
        while queue:
            size, job_id = queue.pop(0)
            for evicted in self._place(job_id, -size, move_cost):
                queue.append((-len(self.held[evicted]), evicted))
                self.release(evicted)
            if job_id not in self.held:
                self._place(job_id, -size, move_cost)
            queue.sort()

    def _place(self, job_id: str, size: int, move_cost: MoveCost) -> list[str]:
        """Takes the best free place; or, where there is none, returns who must leave to make one."""
        gpus = self._whole_nodes(size) if size >= self._width else self._part(size)
        if gpus:
            self._take(job_id, gpus)
            return []
        return self._victims(size, move_cost)

    def _whole_nodes(self, size: int) -> Gpus:
        nodes = self._nodes_by_free.get(self._full, set())
        count = size // self._width
        if len(nodes) < count:
            return ()
        chosen = sorted(nodes)[:count]
        return tuple(node * self._width + gpu for node in chosen for gpu in range(self._width))

    def _part(self, size: int) -> Gpus:
        """A block of the node whose largest hole is the smallest that will do."""
        fitting = [
            (largest_block(free, self._width), free.bit_count(), free)
            for free, nodes in self._nodes_by_free.items()
            if nodes and block_of(free, size, self._width) is not None
        ]
        if not fitting:
            return ()
        free = min(fitting)[2]
        node, at = min(self._nodes_by_free[free]), block_of(free, size, self._width)
        assert at is not None
        return tuple(range(node * self._width + at, node * self._width + at + size))

    def _victims(self, size: int, move_cost: MoveCost) -> list[str]:
        """The cheapest smaller jobs whose leaving makes room."""
        if size >= self._width:
            return self._node_victims(size // self._width, move_cost)
        best = self._cheapest(self._partly_free(), size, move_cost)
        best = best or self._cheapest(range(self.shape.num_nodes), size, move_cost)
        assert best is not None, f"no room for {size} GPUs"
        return best[1]

    def _partly_free(self) -> list[int]:
        """Nodes on which some GPUs are free: there the fewest must be moved."""
        parts = (nodes for free, nodes in self._nodes_by_free.items() if 0 < free < self._full)
        return sorted(node for nodes in parts for node in nodes)

    def _cheapest(
        self, nodes: Iterable[int], size: int, move_cost: MoveCost
    ) -> tuple[float, list[str]] | None:
        """The block that it costs least to make free, and whom it is taken from; None if there is none."""
        best: tuple[float, list[str]] | None = None
        for node in nodes:
            if node in self.down:
                continue
            for at in range(0, self._width, size):
                there = self._jobs_in(node, bits(at, size))
                if all(len(self.held[one]) < size for one in there):
                    cost = sum(move_cost(one) for one in there)
                    if best is None or cost < best[0]:
                        best = cost, there
        return best

    def _node_victims(self, count: int, move_cost: MoveCost) -> list[str]:
        costs = []
        for node in range(self.shape.num_nodes):
            there = self._on_node[node]
            if node not in self.down and all(len(self.held[one]) < self._width for one in there):
                costs.append((sum(move_cost(one) for one in sorted(there)), node))
        assert len(costs) >= count, f"no room for {count} nodes"
        return [one for _, node in sorted(costs)[:count] for one in sorted(self._on_node[node])]

    def _jobs_in(self, node: int, block: int) -> list[str]:
        return [one for one in sorted(self._on_node[node]) if self._by_node(self.held[one])[node] & block]

    def _shrink(self, job_id: str, size: int) -> None:
        """Keeps ``size`` of its GPUs: those on nodes that it shares, else the first."""
        gpus = self.held[job_id]
        self.release(job_id)
        self._take(job_id, gpus[:size])

    def _take(self, job_id: str, gpus: Gpus) -> None:
        self.held[job_id] = gpus
        for node, block in self._by_node(gpus).items():
            assert self._free[node] & block == block, (job_id, gpus)
            self._set_free(node, self._free[node] & ~block)
            self._on_node[node].add(job_id)

    def _set_free(self, node: int, free: int) -> None:
        if node not in self.down:
            self._nodes_by_free[self._free[node]].discard(node)
            self._nodes_by_free.setdefault(free, set()).add(node)
        self._free[node] = free

    def _by_node(self, gpus: Gpus) -> dict[int, int]:
        blocks: dict[int, int] = {}
        for gpu in gpus:
            node, bit = divmod(gpu, self._width)
            blocks[node] = blocks.get(node, 0) | 1 << bit
        return blocks
