"""A program file of functions that were defined in a session."""

import linecache
import sys
import types

import numpy as np
import pytest

from elasticflow.errors import ProgramError
from elasticflow.program.notebook import source_of

SESSION = """
import math
import numpy as np
import collections.abc
from os import path as where
from math import sqrt as root

LR = 0.5
NAMES = {"a": [1, 2]}
ARRAY = np.arange(3)


class Base:
    pass


class Net(Base):
    size = LR

    def call(self, x):
        return helper(x) + math.pi


def helper(x):
    return root(x) + len(NAMES["a"])


def model():
    net = Net()
    return {"net": net, "folder": where.sep, "value": net.call(4)}


def forward(x, params):
    return ARRAY


def around():
    inside = 3

    def model():
        return inside

    return model


def make_base():
    return Base()


short = lambda: 3
"""


@pytest.fixture
def session(monkeypatch):
    """Its names, as if it had been typed in."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    linecache.cache["<session>"] = (len(SESSION), None, SESSION.splitlines(True), "<session>")
    exec(compile(SESSION, "<session>", "exec"), main.__dict__)
    yield main  # which has no file, as in a notebook
    del linecache.cache["<session>"]


def test_what_functions_name_is_written_with_them(session):
    text = source_of({"model": session.model, "metrics": session.helper})
    found = {}
    exec(compile(text, "<written>", "exec"), found)
    assert found["model"]()["value"] == 2 + 2 + np.pi and found["metrics"] is found["helper"]
    assert "ARRAY" not in found and text.count("class Net") == 1
    assert text == source_of({"model": session.model, "metrics": session.helper})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("forward", r"forward\(\) uses 'ARRAY', a ndarray of this session"),
        ("short", "lambda"),
        ("NAMES", "forward: is a dict; give a function"),
    ],
)
def test_what_cannot_be_written_is_named(session, name, words):
    with pytest.raises(ProgramError, match=words):
        source_of({"forward": getattr(session, name)})


def test_variables_of_a_function_around_it(session):
    with pytest.raises(ProgramError, match="uses variables of the function around it"):
        source_of({"model": session.around()})


def test_of_a_class_that_was_defined_anew_the_last_one_counts(session, monkeypatch):
    cell = SESSION.replace("size = LR", "size = 7")
    monkeypatch.setitem(linecache.cache, "<again>", (len(cell), None, cell.splitlines(True), "<again>"))
    exec(compile(cell, "<again>", "exec"), session.__dict__)
    assert "size = 7" in source_of({"model": session.model})
    other = ["class Base:\n", "    other = 1\n"]
    monkeypatch.setitem(linecache.cache, "<third>", (len(other), None, other, "<third>"))
    with pytest.raises(ProgramError, match="the source of 'Base' is not to be had"):
        source_of({"model": session.make_base})
