"""Which of the policy's nodes stand for which of the cluster's."""

from __future__ import annotations

import random

import pytest

from elasticflow.cluster.share import ShareNode
from elasticflow.errors import ConfigError, ElasticFlowError, UnknownError
from elasticflow.process.clocks import SteadyClock
from elasticflow.service.happenings import NodeSeen
from elasticflow.service.roster import changes
from elasticflow.service.settings import ServiceConfig
from elasticflow.service.share_watch import ShareWatch

TWO = (ShareNode("g1", 2), ShareNode("g2", 2))


class Known:
    """What a service knows after each look. num_nodes: of the policy, with ``slots`` each."""

    def __init__(self, num_nodes: int, slots: int = 2) -> None:
        self.num_nodes, self.slots = num_nodes, slots
        self.names: dict[int, str] = {}
        self.down = set(range(num_nodes))

    def look(self, *seen: ShareNode) -> list[NodeSeen]:
        happened = changes(self.names, self.down, self.num_nodes, self.slots, seen)
        for each in happened:
            self.names[each.node] = each.name
            (self.down.discard if each.up else self.down.add)(each.node)
        return happened

    @property
    def up(self) -> dict[str, int]:
        return {self.names[number]: number for number in range(self.num_nodes) if number not in self.down}


def test_nodes_are_counted_once_they_are_seen_and_told_once() -> None:
    known = Known(4)
    assert known.up == {}
    assert {each.name for each in known.look(*TWO)} == {"g1", "g2"}
    assert known.up == {"g1": 0, "g2": 1} and known.look(*TWO) == []


def test_one_that_is_drained_goes_at_once_and_comes_back_under_its_number() -> None:
    known = Known(2)
    known.look(*TWO)
    assert known.look(TWO[0]._replace(away="drained"), TWO[1]) == [
        NodeSeen(node=0, up=False, name="g1", why="drained")
    ]
    assert known.up == {"g2": 1}
    known.look(*TWO)
    assert known.up == {"g1": 0, "g2": 1}


def test_another_takes_the_number_of_one_that_is_gone() -> None:
    known = Known(2)
    known.look(*TWO)
    gone, new = known.look(TWO[1], ShareNode("g3", 2))
    assert (gone.name, gone.up, gone.why) == ("g1", False, "is not there any more")
    assert (new.node, new.name, new.up) == (0, "g3", True)
    assert known.look(*TWO, ShareNode("g3", 2)) == [], "no more than the share has"


def test_a_large_node_is_several_and_what_is_left_of_one_is_none() -> None:
    known = Known(4)
    known.look(ShareNode("big", 5), ShareNode("small", 1))
    assert set(known.up) == {"big", "big+1"}
    (less,) = known.look(ShareNode("big", 3), ShareNode("small", 1))
    assert (less.name, less.up, less.why) == ("big+1", False, "has less room than it had")


def test_one_that_does_not_answer_stays_as_it_was() -> None:
    known, silent = Known(2), [node._replace(doubtful=True) for node in TWO]
    known.look(TWO[0])
    assert known.look(*silent) == [] and set(known.up) == {"g1"}
    known.look(*TWO)
    assert known.look(*silent) == [] and set(known.up) == {"g1", "g2"}


def test_whatever_is_seen_each_number_has_one_node_that_is_there() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        known = Known(chance.randint(1, 5), chance.choice((1, 2, 4)))
        for _ in range(20):
            seen = [
                ShareNode(f"n{number}", chance.randint(0, 9), chance.choice(("", "", "down")))
                for number in range(6)
                if chance.random() < 0.8
            ]
            known.look(*seen)
            room = {node.name: node.slots for node in seen if not node.away}
            assert len(known.up) == known.num_nodes - len(known.down), "no node stands for two numbers"
            for name, slots in room.items():
                parts = [unit for unit in known.up if unit.partition("+")[0] == name]
                assert len(parts) * known.slots <= slots
            assert {unit.partition("+")[0] for unit in known.up} <= set(room)
            most = sum(slots // known.slots for slots in room.values())
            assert len(known.up) == min(known.num_nodes, most)


def test_where_a_share_is_no_more_its_nodes_are_gone_and_who_is_silent_keeps_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = ServiceConfig(nodes=2, workers_per_node=2)
    state = config.rules.new_state()
    state.handle([NodeSeen(node=node, up=False) for node in range(2)], 1.7e9)
    watch = ShareWatch(config, state, SteadyClock(), None)

    def see(answer: list[ShareNode] | ElasticFlowError) -> int:
        watch.seen(answer)
        state.handle(watch.take(), 1.7e9)
        return state.capacity

    assert see(list(TWO)) == 4
    assert see(UnknownError("SLURM is away")) == 4
    assert [see(ConfigError("there is no reservation ef")) for _ in range(2)] == [0, 0]
    assert capsys.readouterr().out.count("warning: it has no nodes: there is no reservation ef") == 1
    assert see(list(TWO)) == 4
