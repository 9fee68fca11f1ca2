"""What is guarded of what goes to an endpoint."""

from __future__ import annotations

import msgspec
import pytest

from elasticflow.process.network import is_here
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow.wire.seal import Guard
from elasticflow_ps.ways import guard_to

ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737)."""


@pytest.mark.parametrize(
    ("chosen", "within", "between"),
    [
        ({}, Guard.HEADERS, Guard.ARRAYS),
        ({"encrypt_data": True}, Guard.ALL, Guard.ALL),
        ({"authenticate_data": False}, Guard.HEADERS, Guard.HEADERS),
        ({"encrypt_data": True, "authenticate_data": False}, Guard.ALL, Guard.ALL),
    ],
)
def test_between_hosts_arrays_are_authenticated(
    chosen: dict[str, bool], within: Guard, between: Guard
) -> None:
    settings = MemberSettings.of(
        msgspec.structs.replace(Config(program="p.py"), **chosen),
        name="worker-1", role="worker", host="", master="", run_dir="",
    )  # fmt: skip
    assert guard_to("tcp://127.0.0.1:5000", settings) is within
    assert guard_to(f"tcp://{ELSEWHERE}:5000", settings) is between


def test_what_is_here() -> None:
    assert is_here("127.0.0.1") and not is_here(ELSEWHERE)
