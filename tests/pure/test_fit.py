"""A model that the servers cannot hold is refused before anything is given to anybody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasticflow.api import Adam
from elasticflow.cli.runs import as_text
from elasticflow.embedding import Embedding
from elasticflow.master import actions as ac
from elasticflow.master.members import RunState
from elasticflow.step.layout import Entry, Rule
from elasticflow.step.rows import NUM_BUCKETS
from elasticflow.wire.messages import Heartbeat, Join, Spec

from ..telling import Told
from .test_master_state import SPEC, Run, names

MB = 1_000_000
LARGE = msgspec.structs.replace(
    SPEC, entries=(Entry("w", (2 * MB,), "float64", Rule.UPDATE), *SPEC.entries[1:]), optimizer=Adam()
)
"""16 MB of parameters, 32 MB of slots: one server, with two workers, has 80 MB of versions and slots, 32 MB
of gradients, and 48 MB for a checkpoint; a snapshot is 48 MB."""
HOST = "the host"


def joined(
    *available: dict[str, int], hosts: str = "aaaa", spec: Spec = LARGE, **settings: Any
) -> tuple[Run, list[ac.Action]]:
    """A worker and servers have joined, each with this memory on its host; and what follows."""
    run, actions = Run(**settings), []
    run.join("worker-1", spec=spec)
    for number, (host, memory) in enumerate(zip(hosts, available, strict=False)):
        name = f"server-{number}"
        assert not actions, "nothing is decided before all have joined"
        actions = run.tell(Join(name=name, role="server", host=host, pid=1, available_bytes=memory))
    assert actions and not (names(ac.AssignAction, actions) and run.state.ended)
    return run, actions


def fits(*available: dict[str, int], hosts: str = "aaaa", **settings: Any) -> bool:
    run, actions = joined(*available, hosts=hosts, **settings)
    return bool(names(ac.AssignAction, actions))


def test_what_is_needed_and_what_there_is_are_told() -> None:
    run, actions = joined({HOST: 79 * MB})
    end = run.end(actions)
    assert end.state is RunState.FAILED and end.text == (
        "the model does not fit into the memory of its servers: server-0 on a needs 80.0 MB (parameters "
        "48.0 MB, slots 32.0 MB), and the host has 79.0 MB left. "
        "What helps: more servers on more hosts, an optimizer with fewer slots, or more memory for the "
        "servers."
    )
    assert names(ac.QuitAction, actions) == ["worker-1", "worker-2", "server-0"]


def warnings(actions: list[ac.Action]) -> list[str]:
    return [
        action.text for action in actions if isinstance(action, ac.NoteAction) and "memory" in action.text
    ]


def test_what_may_be_too_little_is_told_and_the_run_goes_on() -> None:
    _, actions = joined({HOST: 161 * MB})
    assert names(ac.AssignAction, actions) and not warnings(actions)
    _, actions = joined({HOST: 159 * MB})
    (text,) = warnings(actions)
    assert names(ac.AssignAction, actions) and "may not fit" in text and "may need 160.0 MB" in text
    assert "gradients 32.0 MB, checkpoint 48.0 MB" in text and "snapshot" not in text


def test_snapshots_count() -> None:
    _, actions = joined({HOST: 340 * MB}, {HOST: 340 * MB}, snapshot_s=1)
    (text,) = warnings(actions)
    assert "server-0 and server-1 on a may need 352.0 MB" in text and "snapshots 192.0 MB" in text
    assert "snapshot_s: 0" in text
    _, actions = joined({HOST: 353 * MB}, {HOST: 353 * MB}, snapshot_s=1)
    assert not warnings(actions)


def test_only_servers_of_one_host_share_its_memory() -> None:
    enough_for_one = {HOST: 60 * MB}
    assert fits(enough_for_one, enough_for_one, hosts="ab", servers=2)
    assert not fits(enough_for_one, enough_for_one, hosts="aa", servers=2)
    assert not fits(enough_for_one, {HOST: 30 * MB}, hosts="ab", servers=2), "each needs 40 MB"


def test_only_servers_in_one_cgroup_share_its_memory() -> None:
    host = {HOST: 1000 * MB}
    assert fits({**host, "cgroup 1": 60 * MB}, {**host, "cgroup 2": 60 * MB}, servers=2)
    run, actions = joined({**host, "cgroup 1": 60 * MB}, {**host, "cgroup 1": 60 * MB}, servers=2)
    assert "and cgroup 1 has 60.0 MB left" in run.end(actions).text


def test_where_nobody_knows_nothing_is_refused() -> None:
    assert fits({})
    assert fits({}, {HOST: 100 * MB}, servers=2)


def test_a_server_that_takes_a_place_later_is_not_judged() -> None:
    """Those that are there hold memory, which it cannot tell from others'."""
    run, _ = joined({HOST: 161 * MB})
    run.exited("server-0")
    join = Join(name="server-1", role="server", host="a", pid=1, available_bytes={HOST: 0})
    assert names(ac.AssignAction, run.tell(join)) == ["server-1"]


def test_the_status_tells_what_is_taken_and_what_is_expected() -> None:
    told, run = Told(), Run()
    told.state = run.state
    assert "at most" not in as_text(told.status()), "nobody knows the program yet"
    run, _ = joined({HOST: 161 * MB})
    run.tell(Heartbeat(name="server-0", tick=0, memory_bytes=1_234_567))
    told.state = run.state
    (server,) = told.status().servers
    assert (server.memory_bytes, server.memory_at_most_bytes) == (1_234_567, 160 * MB + 128)
    assert "pid 1, 1.2 MB of at most 160.0 MB\n" in as_text(told.status())


@pytest.mark.parametrize(("rows", "told"), [(1000, "1.2 MB of at most 160."), (None, "1.2 MB\n")])
def test_of_a_table_of_any_number_of_rows_nobody_tells_what_it_takes_at_most(
    rows: int | None, told: str
) -> None:
    entries = (*LARGE.entries, Entry("t", (NUM_BUCKETS, 4), "float32", Rule.ROWS))
    spec = msgspec.structs.replace(LARGE, entries=entries, tables=(Embedding(rows, 4).spec,))
    run, _ = joined({HOST: 400 * MB}, spec=spec)
    run.tell(Heartbeat(name="server-0", tick=0, memory_bytes=1_234_567))
    story = Told()
    story.state = run.state
    assert (story.status().servers[0].memory_at_most_bytes is None) == (rows is None)
    assert f"pid 1, {told}" in as_text(story.status())
