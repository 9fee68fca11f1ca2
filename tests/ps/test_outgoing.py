"""Each parcel leaves once, with the sum of all parts, as soon as its gradients are final and never before."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from elasticflow.step.layout import Entry, Layout, Rule, Vector, spread
from elasticflow.step.schedule import Kind, Work
from elasticflow.wire.messages import Push
from elasticflow.wire.outbox import Outbox, Parts
from elasticflow_ps.outgoing import Pushing, Routes
from elasticflow_ps.parcels import parcels_of

TEMPLATE = Push(tick=3, parcel=0, level=1, index=0, slice_s=0.5)


def tick_of(kind: Kind) -> Work:
    return Work(3, kind, 0, 4, 0, 8)


UNREADY = -7.0


class Remote:
    """A server that takes down what it is sent."""

    def __init__(self, name: str, layout: Layout, chunks: list[int]) -> None:
        self.name, self.parcels = name, parcels_of(layout, chunks)
        self.mapped: set[int] = set()
        self.bases: dict[int, int] = {}
        self.link: Outbox[Push] = Outbox(self._send)
        self.heard: list[tuple[Push, list[np.ndarray]]] = []

    def _send(self, parts: Parts[Push]) -> None:
        self.heard += [(push, [array.copy() for array in arrays]) for push, arrays in parts]


def layouts() -> some.SearchStrategy[Layout]:
    sizes = some.lists(some.integers(0, 70), min_size=1, max_size=12)
    rules = some.sampled_from([Rule.UPDATE, Rule.UPDATE, Rule.MEAN, Rule.FIRST])
    dtypes = some.sampled_from(["float32", "float64"])

    @some.composite
    def made(draw: Any) -> Layout:
        entries = []
        for number, size in enumerate(draw(sizes)):
            rule = draw(rules)
            dtype = "int64" if rule is Rule.FIRST else draw(dtypes)
            entries.append(Entry(f"e{number}", (size,), dtype, rule))
        return Layout([*entries, Entry("report", (1,), "float64", Rule.REPORT)])

    return made()


@settings(max_examples=300)
@given(
    layouts(), some.integers(1, 4), some.integers(1, 3), some.sampled_from([64, 256, 1024]),
    some.integers(0, 1 << 32), some.sampled_from([Kind.TRAIN, Kind.EVALUATE]),
)  # fmt: skip
def test_whatever_is_ready_when(
    layout: Layout, servers: int, num_parts: int, parcel_bytes: int, seed: int, kind: Kind
) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elasticflow_ps.parcels.CHUNK_BYTES", parcel_bytes)
        rows = [chunks for chunks in spread(layout, servers) if chunks]
        remotes: list[Any] = [Remote(f"server-{n}", layout, chunks) for n, chunks in enumerate(rows)]
    parts = [Vector(layout) for _ in range(num_parts)]
    for part in parts:
        for group in part.groups:
            group[:] = rng.randrange(1, 100)
    firsts = {number for number, group in enumerate(layout.groups) if group.rule is Rule.FIRST}
    expected = [
        parts[0].groups[n].copy() if n in firsts else np.add.reduce([part.groups[n] for part in parts])
        for n in range(len(layout.groups))
    ]
    parameters = layout.of_rule(Rule.UPDATE)
    final = [array.copy() for array in parts[-1].tensors(parameters)]
    for array in parts[-1].tensors(parameters):
        array[...] = UNREADY
    ended = []
    push = Pushing(
        Routes(layout, remotes), tick_of(kind), TEMPLATE, parts, block=-1, asks=True,
        sent=lambda *how: ended.append(how),
    )  # fmt: skip
    told = [n for n in range(len(parameters)) if kind is Kind.TRAIN and rng.random() < 0.8]
    for number in rng.sample(told, len(told)):
        parts[-1].tensors(parameters)[number][...] = final[number]
        push.ready(number)
    assert push.begun is bool(told)
    for array, value in zip(parts[-1].tensors(parameters), final, strict=True):
        array[...] = value
    push.finish(0.25)
    ((trackers, lent),) = ended
    assert all(tracker.done for tracker in trackers) and not lent
    for remote in remotes:
        pushes = [push for push, _ in remote.heard]
        assert sorted(push.parcel for push in pushes) == list(range(len(remote.parcels)))
        assert [push.pull for push in pushes] == [True] + [False] * (len(pushes) - 1)
        assert [push.more for push in pushes] == [True] * (len(pushes) - 1) + [False]
        for sent, arrays in remote.heard:
            spans = remote.parcels[sent.parcel].pushed(kind)
            for span, array in zip(spans, arrays, strict=True):
                assert (array == expected[span.group][span.start : span.stop]).all()


def test_last_layers_leave_first() -> None:
    layout = Layout([Entry(f"w{n}", (1024,), "float32", Rule.UPDATE) for n in range(8)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elasticflow_ps.parcels.CHUNK_BYTES", 8192)
        remote: Any = Remote("server-0", layout, list(range(len(layout.chunks))))
    push = Pushing(
        Routes(layout, [remote]), tick_of(Kind.TRAIN), TEMPLATE, [Vector(layout)], block=-1, asks=False,
        sent=lambda *how: None,
    )  # fmt: skip
    sent = defaultdict(list)
    for number in reversed(range(8)):
        push.ready(number)
        sent[number] = [message.parcel for message, _ in remote.heard]
    assert [sent[number] for number in (7, 6, 5, 4)] == [[], [3], [3], [3, 2]]
    push.finish(0.1)
    assert [message.parcel for message, _ in remote.heard] == [3, 2, 1, 0]
    assert [message.slice_s for message, _ in remote.heard] == [0.5] * 4


def test_what_goes_wrong_on_the_way_is_not_the_programs_error() -> None:
    layout = Layout([Entry("w", (4,), "float32", Rule.UPDATE)])
    remote: Any = Remote("server-0", layout, [0])
    remote.link = Outbox(lambda parts: 1 / 0)
    push = Pushing(
        Routes(layout, [remote]), tick_of(Kind.TRAIN), TEMPLATE, [Vector(layout)], block=-1, asks=False,
        sent=lambda *how: None,
    )  # fmt: skip
    push.ready(0)
    with pytest.raises(ZeroDivisionError):
        push.finish(0.1)
