"""Servers that workers carry, at moments that random histories hardly ever meet."""

from __future__ import annotations

from typing import Any

import pytest

from elasticflow.training.standing import WatchRules
from elasticflow_ps import state as st

from .histories import FOR_GOOD
from .test_scenarios import finish, shape
from .world import Fault, World


@pytest.mark.parametrize("after", range(700, 1600, 225))
def test_copies_do_not_lie_with_who_dies_with_their_server(after: int) -> None:
    """Two of the four servers are lost at a time, and each other's copies would be, too: see ``laws``."""
    how = {"carried": True, "workers": 2, "servers": 4, "checkpoint_every": "60s", "parcel_bytes": 64}
    finish(Fault(after, "kill worker", after), seed=after, delay_s=0.01, epochs=4, **how)


@pytest.mark.parametrize("after", [1, 650])
def test_who_stands_still_before_it_has_joined_is_replaced(after: int) -> None:
    """Of a server that a worker carries no cluster tells whether it has its place."""
    for seed in range(3):
        World(
            shape(carried=True, epochs=6),
            [Fault(after, "freeze newcomer", 0, FOR_GOOD), Fault(700, "kill worker")],
            seed,
        ).run()


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("whom", ["leader", "last"])
@pytest.mark.parametrize("seed", range(4))
def test_servers_begin_with_what_turns_out_to_be_the_last_version(
    seed: int, whom: str, carried: bool
) -> None:
    """Connections are lost as the program is asked, which says that this is the end: all write it."""
    how = {"rules": WatchRules(consults="its hash"), "evaluate_every": 1, "epochs": 3, "keep": 9}
    world = World(shape(**how, carried=carried, delay_s=0.02), [], seed)
    acts, asked = world.laws.acts, set[int]()

    def watch(serving: Any, action: Any) -> None:
        acts(serving, action)
        if isinstance(action, st.ConsultAction) and serving.version not in asked:
            asked.add(serving.version)
            if len(asked) == 3:
                world.strike(Fault(0, f"cut {whom}", seed))

    world.laws.acts = watch  # type: ignore[method-assign]
    end = world.run()
    assert end and "stopped early, after 3 of 12 steps: on_epoch(): call 3" in end.text
    assert len(asked) >= 3
