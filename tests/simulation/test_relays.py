"""What befalls relays, at the moments at which it matters, which random histories hardly ever meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticflow.master.members import RunState
from elasticflow.master.row import Phase
from elasticflow.training.standing import WatchRules
from elasticflow_ps import state as st

from .test_scenarios import shape
from .threads import Process
from .world import Fault, World

RELAYED = {"carried": True, "workers": 4, "peers": 2, "servers": 2, "checkpoint_every": "60s"}


def relays_of(world: World) -> dict[tuple[int, int], Process]:
    """By group and place, those in force."""
    row = world.state.row if world.state else None
    if row is None or row.phase is not Phase.SERVING:
        return {}
    return {row.relays[name]: world.cluster.members[name] for name in row.relaying}


def when_relayed(world: World, after_s: float, do: Callable[[], None]) -> None:
    """So long after relays are in force for the first time."""
    step, begun = world._step, []

    def watched() -> None:
        step()
        if not begun and len(relays_of(world)) == 4 and not world.end:
            begun.append(1)
            world.hub.later(after_s, do)

    world._step = watched  # type: ignore[method-assign]


def play(world: World) -> Any:
    try:
        return world.run()
    finally:
        print(*list(world.hub.story)[-60:], sep="\n")


@pytest.mark.parametrize("seed", range(3))
def test_servers_begin_anew_while_the_program_is_asked(seed: int) -> None:
    """No server is lost, only connections; but relays of the new generation have no version: they ask nobody,
    and the leading server gives no version before somebody has answered."""
    rules = WatchRules(consults="its hash")
    how = {**RELAYED, "rules": rules, "evaluate_every": 16, "epochs": 12, "keep": 9, "snapshot_s": 0.0}
    world = World(shape(**how, delay_s=0.02), [], seed)
    acts, done = world.laws.acts, []

    def watch(serving: Any, action: Any) -> None:
        acts(serving, action)
        if isinstance(action, st.ConsultAction) and not done and len(relays_of(world)) == 4:
            done.append(1)
            names = [process.name for process in world.living("server")]
            world.strike(Fault(0, "cut server", names.index(serving.name)))

    world.laws.acts = watch  # type: ignore[method-assign]
    end = play(world)
    assert done and end and end.state is RunState.FINISHED
    assert not [line for line in world.hub.story if "all connect anew" in line]


@pytest.mark.parametrize("seed", range(12))
def test_a_relay_that_dies_costs_no_worker(seed: int) -> None:
    """Its group lets go of all relays; the one that stands for the leading server says that they are lost."""
    world = World(shape(**RELAYED, epochs=12, num_test=0, slice_s=0.05, suspect_s=1.0), [], seed)
    struck: list[str] = []

    def strike() -> None:
        relay = relays_of(world).get((0, 1))
        if relay:
            struck.append(relay.name)
            world.laws.spares_workers = False
            world.calm_s = world.hub.now_s
            relay.kill()

    when_relayed(world, 0.3 + 0.01 * seed, strike)
    end = play(world)
    assert end and end.state is RunState.FINISHED and struck
    workers = sorted(name for name in world.cluster.members if "worker" in name)
    assert workers == ["worker-1", "worker-2", "worker-3", "worker-4"], workers


@pytest.mark.parametrize("seed", range(4))
def test_a_group_goes_on_whose_relay_has_fallen_behind(seed: int) -> None:
    """It stood still for a while, and the others have gone on without the group. It gives the version that it
    has to a worker that asks for the latest, which knows already that this is past, and waits for ever."""
    how = {**RELAYED, "epochs": 40, "num_test": 0, "slice_s": 0.001, "delay_s": 0.02, "suspect_s": 2.0}
    world = World(shape(**how, heartbeat_s=0.5, lost_s=10.0), [], seed)
    struck: list[str] = []

    def strike() -> None:
        relay = relays_of(world).get((0, 1))
        if relay:
            struck.append(relay.name)
            world.calm_s = world.hub.now_s + 1.5
            relay.frozen_s = world.hub.now_s + 1.5

    when_relayed(world, 0.3 + 0.01 * seed, strike)
    end = play(world)
    assert end and end.state is RunState.FINISHED and struck


@pytest.mark.parametrize("seed", range(2))
def test_a_relay_that_hangs_is_replaced_and_not_its_group(seed: int) -> None:
    """Its heart beats, and the others go on: who is stray are the workers that wait for it."""
    how = {**RELAYED, "epochs": 60, "num_test": 0, "slice_s": 0.05, "suspect_s": 1.0, "stall_s": 4.0}
    world = World(shape(**how, heartbeat_s=0.5, lost_s=10.0), [], seed)
    world.laws._keep_up = lambda state: None  # type: ignore[method-assign,assignment]
    struck: list[str] = []

    def strike() -> None:
        relay = relays_of(world).get((0, 1))
        if relay:
            struck.append(relay.name)
            world.num_hung += 2
            relay.hung_s = float("inf")

    when_relayed(world, 0.3 + 0.01 * seed, strike)
    end = play(world)
    assert end and end.state is RunState.FINISHED and struck
    workers = sorted(name for name in world.cluster.members if "worker" in name)
    assert workers == ["worker-1", "worker-2", "worker-3", "worker-4"], workers
