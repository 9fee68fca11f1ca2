"""Metrics that are a library's objects are computed beside the server, whatever happens to the process."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from elasticflow.errors import ProgramError, RunError
from elasticflow.training.metrics import Sums
from elasticflow.training.objects import (
    ComputeError,
    MetricState,
    ObjectMetric,
    add_states,
    computed,
    size_of_states,
)
from elasticflow_ps import metric_process
from elasticflow_ps.metric_process import MetricProcess

torchmetrics = pytest.importorskip("torchmetrics")
torch = pytest.importorskip("torch")


def metric(**changed: object) -> ObjectMetric:
    from elasticflow.training.objects import states_of, taken

    made = torchmetrics.MeanMetric()
    made.update(torch.tensor([1.0, 2.0, 4.0]))
    found = taken("m", made, [state.numpy() for state in states_of(made)], 3)
    return msgspec.structs.replace(found, **changed)


def sums(of: ObjectMetric) -> Sums:
    found = np.zeros(size_of_states(of, 4))
    for number, values in enumerate(([1.0, 2.0], [6.0])):
        add_states(of, [np.array(sum(values)), np.array(float(len(values)))], 0, 2, number, found)
    return found


@pytest.fixture(scope="module")
def process() -> Iterator[MetricProcess]:
    made = MetricProcess((metric(),))
    yield made
    made.close()


def test_it_computes_what_this_process_would(process: MetricProcess) -> None:
    assert process.value(metric(), sums(metric())) == computed(metric(), sums(metric())) == [3.0]


def test_what_the_library_raises_is_told(process: MetricProcess) -> None:
    other = metric(states=(MetricState("sum_value", "sum", (), "float64"),))
    with pytest.raises(ComputeError, match="Error: "):
        process.value(other, np.zeros(1))
    assert process.value(metric(), sums(metric())) == [3.0], "and it goes on"


def test_one_that_is_killed_is_replaced(process: MetricProcess) -> None:
    assert process.value(metric(), sums(metric())) == [3.0]
    os.kill(process.pid, signal.SIGKILL)
    assert process.value(metric(), sums(metric())) == [3.0]


def test_one_that_always_dies_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_process, "ALONE", {"PYTHONHOME": "/nowhere"})
    process = MetricProcess((metric(),))
    with pytest.raises(RunError, match="torchmetrics ended 2 times"):
        process.value(metric(), sums(metric()))
    process.close()


def test_a_library_that_is_not_installed_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = metric()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProgramError, match="Install torchmetrics wherever servers run"):
        MetricProcess((found,))


def test_a_library_that_cannot_be_imported_is_told() -> None:
    process = MetricProcess((metric(made='["torchmetrics.nothing:Nothing",{},{},{}]'),))
    with pytest.raises(ProgramError, match="cannot be imported"):
        process.value(metric(), sums(metric()))
    process.close()
