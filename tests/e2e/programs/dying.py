"""small_torch.py in a worker that kills itself, once in the whole run, at a moment named by DIE_AT.

It has one gate more: "catching up", which a newcomer passes once it has joined.
"""

import os
import signal

import small_torch
from elasticflow.wire.data import DataLink
from elasticflow.wire.messages import Push
from elasticflow.worker.worker import Worker
from elasticflow_ps.client import ParameterServers
from gates import pass_gate
from small_torch import data, learning_rate, metrics, model  # noqa: F401

MOMENT, FLAG = os.environ.get("DIE_AT", ""), os.environ.get("DIE_ONCE", "")
AFTER = 41  # odd: of two pushes, one to each server, the first
counts = {"forward": 0, "push": 0}


def die():
    """kill -9, unless another process has done so."""
    try:
        os.close(os.open(FLAG, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def reached(what):
    counts[what] += 1
    return counts[what] == AFTER


def forward(x, y, params):
    cost = small_torch.forward(x, y, params)
    if MOMENT == "in forward" and reached("forward"):
        die()
    return cost


def before(cls, name, moment):
    """Has the process die before a method runs."""
    original = getattr(cls, name)

    def method(self, *args, **kwargs):
        die()
        return original(self, *args, **kwargs)

    if moment == MOMENT:
        setattr(cls, name, method)


put, flush = DataLink.put, DataLink.flush
pushed = set()


def put_a_push(self, message, *more):
    if isinstance(message, Push):
        pushed.add(self)
    return put(self, message, *more)


def flush_and_die(self):
    """Dies after a push to the first of two servers, before that to the second."""
    flush(self)
    if self in pushed:
        pushed.remove(self)
        if reached("push"):
            die()


if MOMENT == "between the servers":
    DataLink.put, DataLink.flush = put_a_push, flush_and_die
ask = ParameterServers.wait


def wait_and_die(self):
    if reached("push"):
        die()
    return ask(self)


if MOMENT == "between push and reply":
    ParameterServers.wait = wait_and_die
run = Worker.run


def pass_and_run(self):
    pass_gate("catching up")
    run(self)


Worker.run = pass_and_run
before(Worker, "run", "while joining")
before(Worker, "_do_tick", "when ready")
