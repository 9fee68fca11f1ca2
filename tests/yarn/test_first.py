"""Who is in the containers that the specification asks for."""

from __future__ import annotations

import json

from elasticflow_yarn.first import member, members

CONTAINER = {"SKEIN_CONTAINER_ID": "server_0", "CONTAINER_ID": "container_1700000000000_0001_01_000002"}


def test_servers_count_from_0_and_workers_from_1() -> None:
    found = members({"worker": 2, "server": 1, "pulse": 1})
    assert found == {"server-0": "server_0", "worker-1": "worker_0", "worker-2": "worker_1"}


def test_none_is_asked_for() -> None:
    assert members({"worker": 0, "server": 0}) == {}


def test_a_container_finds_who_is_in_it() -> None:
    told = json.loads(member("hdfs:///r", CONTAINER))
    assert told == {"name": "server-0", "run_dir": "hdfs:///r"}


def test_in_a_later_attempt_nobody_is() -> None:
    later = {**CONTAINER, "CONTAINER_ID": "container_e07_1700000000000_0001_12_000002"}
    assert member("hdfs:///r", later) == ""
