"""What a run tells of itself has a schema that is published, and nobody changes it unawares."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elasticflow.master.actions import EndAction
from elasticflow.master.members import RunState
from elasticflow.run.telling import FORMAT, Report, Status
from elasticflow.service.talk import ServiceAnswer
from tests.telling import Told

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"


@pytest.mark.parametrize("kind", [Status, Report, ServiceAnswer])
def test_the_schema_is_the_published_one(kind: type[Any]) -> None:
    """ELASTICFLOW_WRITE_GOLDEN=1 writes it; a change that is no addition wants another FORMAT."""
    path = SCHEMAS / f"{kind.__name__.lower()}.json"
    schema = msgspec.json.schema(kind)
    for each in schema["$defs"].values():  # before 0.23 msgspec leaves docstrings indented
        if "description" in each:
            each["description"] = inspect.cleandoc(each["description"])
    now = msgspec.json.format(msgspec.json.encode(schema)) + b"\n"
    if os.environ.get("ELASTICFLOW_WRITE_GOLDEN"):
        path.write_bytes(now)
    assert path.read_bytes() == now


def test_what_is_told_can_be_read_by_its_types() -> None:
    told = Told()
    told.state.has("worker-1")
    told.fault("worker-2")
    told.progress(33)
    end = EndAction(RunState.FAILED, "no more", "a trace")
    status, report = told.story.status(told.state), told.story.report(told.state, end)
    for each in (status, report):
        assert msgspec.json.decode(msgspec.json.encode(each), type=type(each)) == each
        assert each.format == FORMAT
    assert status.state == "running" and report.state == "failed"
