"""Random states of records: the same as by the frameworks' own functions, for less."""

from __future__ import annotations

import random
import subprocess
import sys
import traceback

import numpy as np
import pytest

from elasticflow.data import seeding
from elasticflow.hashing import mix


def refused(*_):
    raise AssertionError("for each record")


def test_pytorch_draws_what_manual_seed_gives_and_no_stack_is_formatted(monkeypatch):
    torch = pytest.importorskip("torch")
    torch.manual_seed(mix(5, 7))
    expected = torch.rand(4).tolist()
    monkeypatch.setattr(seeding, "_may_use_gpus", lambda: False)
    monkeypatch.setattr(traceback, "format_stack", refused)
    seeding.seed_all(5, 7)
    assert torch.rand(4).tolist() == expected
    found = random.random(), np.random.random()
    seeding.seed_all(5, 8)
    assert torch.rand(4).tolist() != expected
    seeding.seed_all(5, 7)
    assert (random.random(), np.random.random()) == found


@pytest.mark.parametrize(("in_use", "there"), [(True, False), (False, True)])
def test_gpus_are_seeded_too(monkeypatch, in_use, there):
    torch = pytest.importorskip("torch")
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    monkeypatch.setattr(seeding, "_may_use_gpus", lambda: there)
    seeding.seed_all(5, 7)
    assert seeds == [mix(5, 7)]


TENSORFLOW = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
from elasticflow.data import seeding
from elasticflow.hashing import mix

def expected(number, draw):
    tf.random.set_seed(mix(5, number))
    return draw()

def found(number, draw):
    seeding.seed_all(5, number)
    return draw()

def draw():
    return tf.random.uniform([3]).numpy().tolist() + tf.random.normal([1], seed=3).numpy().tolist()

def begin():
    pass

{before}
begin()
wanted = [expected(number, draw) for number in (7, 8, 7)]
assert wanted[0] == wanted[2] != wanted[1]
real, cleared = context.set_global_seed, []
context.set_global_seed = lambda seed: (cleared.append(seed), real(seed))
begin()
assert [found(number, draw) for number in (7, 8, 7)] == wanted
for number in range(100):
    seeding.seed_all(5, number)
    tf.abs(-1.0)
assert len(cleared) == {cleared}, cleared
tf.random.set_seed(9)  # by the program: what waited is over
other = draw()
seeding.seed_all(5, 7)
tf.random.set_seed(9)
assert draw() == other
assert [found(number, draw) for number in (7, 8, 7)] == wanted
"""
TRACED = """
whole = tf.function(lambda: tf.random.uniform([2]))
tf.random.set_seed(1)
whole()
drawn = draw
draw = lambda: drawn() + whole().numpy().tolist()
"""
LATER = """
functions = []
def begin():
    functions[:] = [tf.function(lambda: tf.random.uniform([2]))]
drawn = draw
draw = lambda: drawn() + functions[0]().numpy().tolist()
"""


@pytest.mark.parametrize(
    ("before", "cleared"),
    [("", 3), (TRACED, 103), (LATER, 103)],
    ids=["operations", "a function", "a function traced by a record"],
)
def test_tensorflow_draws_what_set_seed_gives_which_is_done_only_where_it_draws(before, cleared):
    pytest.importorskip("tensorflow")
    code = TENSORFLOW.format(before=before, cleared=cleared)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
