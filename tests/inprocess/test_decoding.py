"""Threads that are all the first to decode a type: msgspec alone has the process die of it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import threading
from typing import Optional

import msgspec

from elasticflow.process.decoding import converted, from_json, from_msgpack

THREADS = 6
sys.setswitchinterval(1e-6)
for number in range(150):
    inner = msgspec.defstruct("Inner", [(f"n{i}", Optional[int], None) for i in range(9)])
    outer = msgspec.defstruct("Outer", [("inner", inner), *((f"o{i}", dict[str, inner]) for i in range(9))])
    whole = msgspec.defstruct("Whole", [("outer", outer), ("inners", tuple[inner, ...])])
    value = {"outer": {"inner": {"n1": 1}, **{f"o{i}": {} for i in range(9)}}, "inners": [{"n2": 2}]}
    calls = [
        lambda: from_json(msgspec.json.encode(value), whole),
        lambda: from_msgpack(msgspec.msgpack.encode(value), whole),
        lambda: converted(value, whole),
        lambda: from_json(msgspec.json.encode(value["outer"]), outer),
        lambda: converted(value["inners"], list[inner]),
        lambda: from_json(msgspec.json.encode(value["inners"]), list[inner]),
    ]
    start, right = threading.Barrier(THREADS), []

    def look(call):
        start.wait()
        right.append(msgspec.to_builtins(call()) is not None)

    threads = [threading.Thread(target=look, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * THREADS, right
"""


def test_threads_that_are_all_the_first_to_decode_a_type() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
