"""Which containers are asked for and given back, and why."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from elasticflow.cluster.contract import How
from elasticflow.cluster.giving import REST_S
from elasticflow.cluster.news import taken
from elasticflow.cluster.sizing import End, Poll
from elasticflow_yarn.application import Container
from elasticflow_yarn.config import YarnConfig
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.errors import SkeinNotInstalled, YarnError, YarnRefused
from elasticflow_yarn.sizing import (
    GONE_S,
    SHUNS,
    WORDS_S,
    Add,
    ReadWords,
    Signal,
    YarnSizing,
)
from tests.pure.yarn_world import EPOCH, SERVICES, Cluster, World

PREEMPTED = "Container preempted by scheduler"
FAILED = "Container failed during execution, see logs for more information."


def world(
    gpus: int = 6,
    share: int = 2,
    *,
    num_min: int = 1,
    delay_s: float = 0.0,
    first: int = 0,
    **settings: object,
) -> World:
    nodes = {f"node{number}:8042": 2 for number in range(gpus // 2)}
    return World(Cluster(nodes, share), num_min=num_min, delay_s=delay_s, first=first, **settings)


def running(world: World) -> list[str]:
    return [world.names[each.id] for each in world.cluster.of("RUNNING")]


# --- growth ---------------------------------------------------------------------------------------


def test_all_that_is_wanted_is_asked_for_at_once() -> None:
    made = world()
    made.scale(6)
    made.run(3.0)
    assert len(running(made)) == 6 and made.sizing.reason == ""


def test_places_are_told_once_those_of_a_master_before_as_well() -> None:
    made = world(gpus=2, delay_s=0.1)
    made.scale(3)
    made.run(3.0)
    assert (
        sorted(taken(made.sizing.news.placed)) == ["worker-1", "worker-2"]
        and taken(made.sizing.news.placed) == []
    )
    second = World(made.cluster)
    for container in made.cluster.of("RUNNING"):
        second.sizing.adopt(made.names[container.id], 0.0, container.id)
    second.sizing.observed(list(made.cluster.containers.values()), 0.0, EPOCH)
    assert sorted(taken(second.sizing.news.placed)) == ["worker-1", "worker-2"]


def test_the_first_are_not_asked_for_again() -> None:
    made = world(num_min=2, first=2, delay_s=0.5)
    made.names[made.cluster.add("pulse").id] = "pulse"
    made.scale(4)
    made.run(3.0)
    assert sorted(running(made)) == ["worker-1", "worker-2", "worker-3", "worker-4"]
    assert [action.name for action in made.actions if isinstance(action, Add)] == ["worker-3", "worker-4"]
    made.run(3.0)
    assert not made.cluster.of("REQUESTED")


def test_the_pulse_goes_on_until_those_beside_the_first_are_asked_for() -> None:
    made = world(first=1)
    made.names[made.cluster.add("pulse").id] = "pulse"
    made.cluster.turn(0.0)
    made.cluster.away = True
    made.scale(2)
    made.run(3.0)
    assert running(made) == ["worker-1"] and len(made.cluster.of("REQUESTED")) == 1
    made.cluster.away = False
    made.run(10.0)
    assert len(running(made)) == 2 and not made.cluster.of("REQUESTED")


def test_one_of_the_first_that_ends_is_followed_by_another_name() -> None:
    made = world(first=1, num_min=1)
    made.scale(1)
    made.run(3.0)
    made.cluster.end(made.cluster.containers["worker_0"].yarn_id, made.now_s, "FAILED", PREEMPTED)
    made.run(3.0)
    assert [ended.name for ended in made.ended] == ["worker-1"] and running(made) == ["worker-2"]


def test_one_of_the_first_that_is_nobodys_ends_unmentioned() -> None:
    made = world(first=2)
    made.scale(1)
    made.run(3.0)
    assert running(made) == ["worker-1"] and made.notes == []


def test_nothing_is_asked_for_before_the_nodes_were_looked_at() -> None:
    made = world(delay_s=1.0)
    made.scale(2)
    made.run(0.5)
    assert made.cluster.containers == {} and made.sizing.reason == "0 of 2: the nodes are looked at"
    made.run(3.0)
    assert len(running(made)) == 2


def test_of_what_waits_in_vain_one_request_stays() -> None:
    made = world()
    made.cluster.others = 5
    made.scale(6)
    made.run(20.0)
    assert len(made.cluster.of("REQUESTED")) == 5
    made.run(20.0)
    assert [made.names[each.id] for each in made.cluster.of("REQUESTED")] == ["worker-2"]
    assert made.ended == []
    made.cluster.others = 0
    made.run(10.0)
    assert sorted(running(made)) == [f"worker-{number}" for number in range(1, 7)]


def test_requests_below_the_share_stay_since_they_make_yarn_take_from_others() -> None:
    made = world(share=4)
    made.cluster.others = 6
    made.scale(6)
    made.run(120.0)
    assert len(made.cluster.of("REQUESTED")) == 4


def test_the_least_number_is_asked_for_in_any_case() -> None:
    made = world(share=0, num_min=3)
    made.cluster.others = 6
    made.scale(6)
    made.run(120.0)
    assert len(made.cluster.of("REQUESTED")) == 3


def test_servers_are_asked_for_first_and_need_no_gpu() -> None:
    made = world(gpus=2)
    made.cluster.others = 2
    made.sizing.want("server-0", 0.0)
    made.scale(1)
    made.run(5.0)
    assert running(made) == ["server-0"]
    assert [action.name for action in made.actions if isinstance(action, Add)] == ["server-0", "worker-1"]


def test_whoever_is_not_wanted_any_more_is_ended_and_nobody_is_told() -> None:
    made = world()
    made.scale(6)
    made.run(3.0)
    made.scale(2)
    made.run(2.0)
    assert len(running(made)) == 2 and made.ended == [] and made.sizing.num_places == 2
    made.scale(0)
    made.run(2.0)
    assert made.sizing.num_places == 0 and made.sizing.next_time_s() is None


# --- what no node can have ------------------------------------------------------------------------


def test_no_request_is_made_that_no_node_can_fulfil() -> None:
    made = world(gpus=2)
    made.cluster.nodes = {"node0:8042": 0}
    made.scale(1)
    made.run(30.0)
    assert made.cluster.containers == {}
    expected = "no live node has 1 GPU, 2 GiB and 1 vcore; the largest has 64 GiB and 16 vcores"
    assert made.sizing.reason == f"0 of 1: {expected}"
    made.cluster.nodes["node1:8042"] = 1
    made.run(10.0)
    assert running(made) == ["worker-1"]


def test_without_any_node_the_reason_says_so() -> None:
    made = world(gpus=0)
    made.scale(1)
    made.run(5.0)
    assert made.sizing.reason == "0 of 1: there is no live node"


def test_nodes_without_the_label_do_not_count() -> None:
    made = world(node_label="big")
    made.scale(1)
    made.run(5.0)
    assert made.sizing.reason == "0 of 1: there is no live node with the label big"


def test_a_silent_resource_manager_holds_requests_up_but_not_for_ever() -> None:
    made = world()
    made.scale(1)
    made.run(3.0)
    made.cluster.away = True
    made.run(20.0)
    made.scale(2)
    made.run(10.0)
    assert len(made.cluster.containers) == 1
    assert "the ResourceManager does not answer since" in made.sizing.reason
    made.run(60.0)
    assert len(made.cluster.containers) == 2
    made.cluster.away = False
    made.run(60.0)
    assert len(running(made)) == 2
    assert [text for text in made.notes if "answers again" in text]


@pytest.mark.parametrize(
    "error", [YarnRefused("403 Forbidden"), SkeinNotInstalled("no ResourceManager is known")]
)
def test_one_that_will_never_tell_holds_nothing_up(error: YarnError) -> None:
    sizing = YarnSizing(YarnConfig(), 1, SERVICES)
    sizing.want("worker-1", 0.0)
    sizing.decide(0.0)
    sizing.not_viewed(error, 0.1)
    assert Add("worker-1", "worker") in sizing.decide(0.2)
    ((kind, text),) = taken(sizing.news.notes)
    assert kind == "warning" and str(error) in text


# --- giving back ----------------------------------------------------------------------------------


def test_places_are_given_back_before_they_are_taken() -> None:
    made = world(share=2)
    made.scale(6)
    made.run(10.0)
    made.cluster.others_wait = 2
    made.run(30.0)
    assert made.cluster.others == 2 and made.cluster.preempted == 0
    assert made.returned == ["worker-6", "worker-5"]
    assert made.sizing.reason == "" or "4 of 6: makes way: queue train uses" in made.sizing.reason
    why = "queue train uses 6 GPUs, its share is 2 GPUs, queue prod waits for 2 GPUs"
    assert f"worker-6 gives its place back: {why}" in made.notes


def test_not_more_than_is_beyond_the_share_and_never_the_least() -> None:
    made = world(share=2, num_min=3)
    made.cluster.preempt_s = 1e9
    made.scale(6)
    made.run(10.0)
    made.cluster.others_wait = 6
    made.run(200.0)
    assert len(running(made)) == 3 and made.cluster.others == 3


def test_what_is_free_is_not_given_back_for() -> None:
    made = world(share=2)
    made.scale(4)
    made.run(10.0)
    made.cluster.others_wait = 2
    made.run(30.0)
    assert made.returned == [] and made.cluster.others == 2


def test_nothing_is_asked_for_until_the_pressure_is_gone_for_a_while() -> None:
    made = world(share=2)
    made.cluster.preempt_s = 1e9
    made.scale(6)
    made.run(10.0)
    made.cluster.others_wait = 2
    made.run(12.0)
    num = len(made.cluster.containers)
    assert len(made.returned) == 2
    made.cluster.others = 0
    made.run(REST_S - 14.0)
    assert len(made.cluster.containers) == num
    made.run(20.0)
    assert len(running(made)) == 6


def test_one_can_have_it_otherwise() -> None:
    made = world(share=2, give_back=False)
    made.scale(6)
    made.run(10.0)
    made.cluster.others_wait = 2
    made.run(60.0)
    assert made.returned == [] and made.cluster.preempted >= 2


# --- ends -----------------------------------------------------------------------------------------


def test_a_worker_that_failed_is_told_with_its_own_last_words() -> None:
    made = world()
    made.scale(1)
    made.run(3.0)
    (container,) = made.cluster.of("RUNNING")
    made.left["worker-1"] = Ending(1, "ValueError: no such column", container.yarn_id, "node0")
    made.cluster.end(container.yarn_id, made.now_s, "FAILED", FAILED)
    made.run(3.0)
    (ended,) = made.ended
    assert ended.how is How.FAILED
    where = "(container_1_0001_01_000002)"
    assert ended.text == f"failed on node0:8042 with exit code 1: ValueError: no such column {where}"
    assert running(made) == ["worker-2"]


def test_words_that_never_come_are_not_waited_for_long() -> None:
    sizing = YarnSizing(YarnConfig(), 1, SERVICES)
    over = Container(id="worker_0", service="worker", state="FAILED", words=FAILED, node="n:1")
    sizing.adopt("worker-1", 0.0, over.id)
    sizing.observed([over], 0.0, EPOCH)
    assert ReadWords("worker-1") in sizing.decide(0.0)
    sizing.decide(WORDS_S - 0.1)
    assert taken(sizing.news.ended) == []
    sizing.decide(WORDS_S)
    (ended,) = taken(sizing.news.ended)
    assert ended.how is How.KILLED and "without a word" in ended.text


def test_a_preempted_worker_is_taken_and_one_request_waits_for_another_place() -> None:
    made = world(share=0, give_back=False)
    made.cluster.preempt_s = 1e9
    made.scale(6)
    made.run(10.0)
    for container in made.cluster.of("RUNNING")[:3]:
        made.cluster.end(container.yarn_id, made.now_s, "FAILED", PREEMPTED)
        made.cluster.others += 1
    made.run(5.0)
    assert {ended.how for ended in made.ended} == {How.TAKEN} and len(made.ended) == 3
    assert len(made.cluster.of("REQUESTED")) == 1


def test_an_end_that_skein_never_hears_of_is_found_out() -> None:
    made = world()
    made.scale(2)
    made.run(10.0)
    made.cluster.loses_ends = True
    made.cluster.end(made.cluster.of("RUNNING")[0].yarn_id, made.now_s, "FAILED", FAILED)
    made.run(40.0)
    (ended,) = made.ended
    assert ended.how is How.TAKEN and "YARN does not know its container any more" in ended.text
    assert len(made.cluster.running) == 2


def test_a_node_that_a_restarted_resource_manager_has_not_heard_of_yet_keeps_its_containers() -> None:
    made = world()
    made.scale(6)
    made.run(10.0)
    made.cluster.unregistered = {"node1:8042", "node2:8042"}
    made.run(35.0)
    made.cluster.unregistered = {"node2:8042"}
    made.run(40.0)
    assert len(running(made)) == 6 and not made.ended
    made.run(60.0)  # it never comes
    assert made.ended and all("YARN does not know its container" in each.text for each in made.ended)


def test_nobody_is_a_stranger_while_skein_is_silent() -> None:
    made = world()
    made.scale(1)
    made.run(10.0)
    made.cluster.hangs = True
    made.cluster.running["container_1_0001_01_000099"] = "node2:8042"  # Skein might know it
    made.run(60.0)
    assert not [action for action in made.actions if isinstance(action, Signal)]
    made.cluster.hangs = False
    made.run(60.0)
    assert [action for action in made.actions if isinstance(action, Signal)]


def test_a_container_that_skein_has_forgotten_is_ended() -> None:
    made = world()
    made.scale(3)
    made.run(10.0)
    made.cluster.loses_kills = True
    made.scale(2)
    made.run(10.0)
    assert len(made.cluster.running) == 3
    made.run(30.0)
    assert len(made.cluster.running) == 2 and len(running(made)) == 2
    assert [action for action in made.actions if isinstance(action, Signal)]


def test_a_container_of_nobody_is_ended() -> None:
    made = world()
    made.scale(1)
    made.run(3.0)
    made.names[made.cluster.add("worker").id] = "nobody"
    made.run(3.0)
    assert running(made) == ["worker-1"]


def test_the_pulse_goes_on_until_something_is_asked_for() -> None:
    made = world()
    pulse = made.cluster.add("pulse")
    made.names[pulse.id] = "pulse"
    made.cluster.away = True
    made.scale(1)
    made.run(3.0)
    assert [each.id for each in made.cluster.of("REQUESTED")] == [pulse.id]
    made.cluster.away = False
    made.run(10.0)
    assert running(made) == ["worker-1"] and not made.cluster.of("REQUESTED")
    assert not [text for text in made.notes if "no member's" in text]


def test_the_pulse_ends_where_nothing_can_be_asked_for() -> None:
    made = world()
    pulse = made.cluster.add("pulse")
    made.names[pulse.id] = "pulse"
    made.cluster.away = True
    made.scale(1)
    made.run(40.0)
    assert not made.cluster.of("REQUESTED")


def test_one_that_came_up_as_its_request_was_withdrawn_is_not_asked_for_under_the_same_name() -> None:
    made = world(share=0, gpus=2, num_min=0)
    made.cluster.others = 2
    kill = made.cluster.kill

    def kill_late(id: str) -> None:
        container = made.cluster.containers[id]
        made.cluster.containers[id] = msgspec.structs.replace(container, yarn_id="container_9", node="n:1")
        kill(id)

    made.cluster.kill = kill_late  # type: ignore[method-assign]
    made.scale(3)
    made.run(33.0)
    assert {ended.name for ended in made.ended} == {"worker-2", "worker-3"}
    assert all(ended.how is How.TAKEN and "taken back" in ended.text for ended in made.ended)


@pytest.mark.parametrize(
    ("how", "why"), [("forgotten", "does not know of it"), ("refused", "has room, and does not grant it")]
)
def test_what_yarn_forgets_or_does_not_grant_though_it_has_room_is_asked_for_again(
    how: str, why: str
) -> None:
    made = world(gpus=4, share=4)
    setattr(made.cluster, how, {"server_0", "worker_1"})
    made.sizing.want("server-0", 0.0)
    made.scale(3)
    made.run(25.0)
    assert sorted(running(made)) == ["worker-2", "worker-3"]
    made.run(40.0)
    assert sorted(running(made)) == ["server-0", "worker-1", "worker-2", "worker-3"] and made.ended == []
    assert [each for each in made.notes if each.startswith(f"asked for again, since YARN {why}: ")]


def test_what_waits_for_a_place_that_there_is_not_is_never_asked_for_again() -> None:
    made = world(share=6)
    made.cluster.others, made.cluster.preempt_s = 6, 1e9
    made.scale(3)
    made.run(1000.0)
    assert len(made.cluster.containers) == 3


def test_what_skein_is_too_silent_to_tell_of_is_not_asked_for_again() -> None:
    """It has been granted."""
    made = world(num_min=3)
    made.sizing.want("server-0", 0.0)
    made.scale(3)
    made.run(0.3)
    assert len(made.cluster.of("REQUESTED")) + len(made.cluster.of("RUNNING")) == 4
    made.cluster.hangs = True
    made.run(200.0)
    made.cluster.hangs = False
    made.run(30.0)
    assert made.ended == [] and len(running(made)) == 4 == len(made.cluster.containers)


def test_what_yarn_will_never_grant_is_asked_for_again_after_longer_and_longer() -> None:
    """It may have reasons of which nobody tells."""
    made = world(share=6)
    made.cluster.refused = {f"worker_{number}" for number in range(1000)}
    made.scale(1)
    made.run(7200.0)
    assert 8 < len(made.cluster.containers) < 16


# --- nodes that fail ------------------------------------------------------------------------------


def fail_once(world: World, node: str) -> None:
    container = next(each for each in world.cluster.of("RUNNING") if each.node == node)
    world.left[world.names[container.id]] = Ending(1, "RuntimeError: CUDA error", container.yarn_id, node)
    world.cluster.end(container.yarn_id, world.now_s, "FAILED", FAILED)
    world.run(5.0)


def test_a_node_on_which_workers_fail_is_left_out() -> None:
    made = world(num_min=0)
    made.scale(5)
    made.run(15.0)
    fail_once(made, "node0:8042")
    fail_once(made, "node0:8042")
    assert any("node0:8042 is left out for an hour: 2 failures within an hour" in text for text in made.notes)
    made.cluster.lose("node2:8042", made.now_s)
    made.run(30.0)
    assert any("came up on node0:8042, which is left out" in ended.text for ended in made.ended)


def test_a_node_whose_places_give_no_process_is_left_out() -> None:
    made = world(gpus=4, num_min=0, exclude_after=2)
    made.scale(4)
    made.run(3.0)
    bad = [made.names[each.id] for each in made.cluster.of("RUNNING") if each.node == "node0:8042"]
    for name in (*bad, "worker-9"):
        made.sizing.blame(name, made.now_s)
        made.run(5.0)
    assert any("node0:8042 is left out for an hour: 2 failures within an hour" in text for text in made.notes)


def test_if_there_is_room_nowhere_else_it_is_used_again() -> None:
    made = world(num_min=0)
    made.scale(4)
    made.run(15.0)
    fail_once(made, "node0:8042")
    fail_once(made, "node0:8042")
    made.scale(6)
    made.run(600.0)
    shunned = [ended for ended in made.ended if "which is left out" in ended.text]
    assert len(running(made)) == 6 and 0 < len(shunned) <= SHUNS + 1
    assert any("are used again: no other has room" in text for text in made.notes)


def test_if_there_is_no_other_node_it_is_used_again() -> None:
    made = world(gpus=2)
    made.scale(1)
    made.run(5.0)
    fail_once(made, "node0:8042")
    fail_once(made, "node0:8042")
    made.run(60.0)
    assert len(running(made)) == 1
    assert any("are used again: there is no other" in text for text in made.notes)


def test_what_cannot_be_started_is_tried_after_longer_and_longer() -> None:
    made = world(exclude_after=100)
    made.scale(1)
    times_s = []
    for _ in range(5):
        while not made.cluster.of("RUNNING"):
            made.run(0.5)
        times_s.append(made.now_s)
        words = "Failed to download resource hdfs://c/environment.tar.gz"
        made.cluster.end(made.cluster.of("RUNNING")[0].yarn_id, made.now_s, "FAILED", words)
        made.run(1.5)
    gaps_s = [after_s - before_s for before_s, after_s in pairwise(times_s)]
    assert gaps_s == sorted(gaps_s) and gaps_s[-1] > 3 * gaps_s[0]
    assert "could not be started" in made.sizing.reason
    assert all(ended.how is How.TAKEN for ended in made.ended)


# --- an ApplicationMaster that is gone, or hangs --------------------------------------------------


def test_an_application_master_at_which_nobody_listens_is_gone_after_a_while() -> None:
    made = world()
    made.scale(2)
    made.run(3.0)
    made.cluster.gone = True
    made.run(GONE_S - 0.5)
    assert not made.sizing.gone
    made.run(2.0)
    assert made.sizing.gone


def test_one_that_answers_in_between_is_not() -> None:
    made = world()
    made.scale(2)
    for _ in range(10):
        made.cluster.gone = not made.cluster.gone
        made.run(GONE_S - 1.0)
    assert not made.sizing.gone


def test_a_request_that_got_no_answer_is_not_repeated_under_its_name() -> None:
    made = world(num_min=0)
    made.run(1.0)
    made.scale(1)
    made.run(0.1)
    made.cluster.hangs = True
    made.run(30.0)
    assert made.sizing.reason.endswith("the ApplicationMaster does not answer within 10 s")
    made.cluster.hangs = False
    made.run(60.0)
    assert len(running(made)) == 1


def test_a_service_that_there_is_not_ends_the_run() -> None:
    sizing = YarnSizing(YarnConfig(), 1, SERVICES)
    sizing.want("worker-1", 0.0)
    sizing.refused("worker-1", YarnRefused("Skein refuses: Unknown service 'worker'"), 0.0)
    assert sizing.fatal == "Skein refuses: Unknown service 'worker'"


# --- another master -------------------------------------------------------------------------------


def test_another_master_goes_on_with_what_lives() -> None:
    made = world()
    made.scale(4)
    made.run(5.0)
    second = World(made.cluster)
    second.names = made.names
    over, *living = made.cluster.of("RUNNING")
    made.cluster.end(over.yarn_id, made.now_s, "FAILED", PREEMPTED)
    nobodys = made.cluster.add("worker")
    second.names[nobodys.id] = "?"
    for container in made.cluster.containers.values():
        if container is not nobodys:
            second.sizing.adopt(made.names[container.id], 0.0, container.id)
    second.sizing.observed(list(made.cluster.containers.values()), 0.0, EPOCH)
    (ended,) = taken(second.sizing.news.ended)
    assert (ended.name, ended.how) == (made.names[over.id], How.TAKEN) and second.sizing.num_places == 3
    assert End((nobodys.id,)) in second.sizing.decide(0.0)
    assert {second.sizing.where(made.names[each.id], 0.0) for each in living} == {
        f"{each.yarn_id} on node {each.node}" for each in living
    }


def test_a_request_of_the_master_before_is_made_anew_under_another_name() -> None:
    made = world(share=1, gpus=2)
    made.cluster.others = 1
    made.scale(4)
    made.run(3.0)
    second = World(made.cluster)
    second.names, second.wanted, second._numbers = made.names, list(made.wanted), made._numbers
    for container in made.cluster.containers.values():
        second.sizing.adopt(made.names[container.id], 0.0, container.id)
    second.scale(4)
    second.run(60.0)
    assert {ended.how for ended in second.ended} == {How.TAKEN}
    assert all("its request was taken back" in ended.text for ended in second.ended)
    assert not {action.name for action in second.actions if isinstance(action, Add)}.intersection(made.wanted)


# --- polls ----------------------------------------------------------------------------------------


def test_polls_come_at_their_pace_and_sooner_when_something_has_happened() -> None:
    made = world(poll_s=10.0)
    made.scale(1)
    made.run(30.0)
    assert 3 <= sum(isinstance(action, Poll) for action in made.actions) <= 4
    made.run(0.5)
    made.actions.clear()
    made.sizing.look()
    made.run(0.5)
    assert any(isinstance(action, Poll) for action in made.actions)


def test_the_reason_tells_what_the_queue_has_and_since_when() -> None:
    made = world(share=1)
    made.cluster.others = 5
    made.scale(3)
    made.run(10.0)
    assert made.sizing.reason.startswith(
        "1 of 3: queue train uses 1 of 6 GPUs, 0 of 6 GPUs are free, 2 containers wait since "
    )
