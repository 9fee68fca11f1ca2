"""First values follow from the seed, wherever the program imports its framework."""

from __future__ import annotations

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elasticflow.frameworks import base
from elasticflow.program.loading import Program


def test_a_framework_that_model_imports_is_set_up_before_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    name, state = "a_framework", random.Random()
    monkeypatch.setattr(base, "FRAMEWORKS", {name: "A framework"})
    adapter = SimpleNamespace(set_up=lambda seed, threads: state.seed(seed))
    monkeypatch.setattr(base, "_adapter", lambda framework: adapter)

    def model() -> dict[str, Any]:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        return {"drawn": state.random()}

    program = Program("program.py", model, lambda params: None, None, None, None)
    assert base._first_values(program, 3, 1) == {"drawn": random.Random(3).random()}
    assert base._first_values(program, 3, 1) == {"drawn": random.Random(3).random()}
