"""What a server is expected to need at most is what it takes at most."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from server_job import LAYOUT, PARCEL_BYTES, WAIT_S, FakeWorker, Job, Process

from elasticflow.api import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer
from elasticflow.embedding import TableSpec, Uniform
from elasticflow.process.available import HOST
from elasticflow.step.layout import Entry, Layout, Rule, spread
from elasticflow.step.rows import Rows, keys_of
from elasticflow.storage import DirectoryStorage
from elasticflow.wire.messages import Cut, Join
from elasticflow_ps.compression import Bfloat16
from elasticflow_ps.memory import MemoryNeed, needs
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.parcels import parcels_of
from elasticflow_ps.store import Store, Sum
from elasticflow_ps.tables import tables_of

OPTIMIZERS = [SGD(), SGD(momentum=0.9), Adagrad(), AdamW(), Adam(amsgrad=True), Ftrl()]
WHOLE = [chunk.number for chunk in LAYOUT.chunks]


def need(
    optimizer: Optimizer, row: list[list[int]], layout: Layout = LAYOUT, **more: object
) -> list[MemoryNeed]:
    settings = {"snapshots": True, "num_workers": 1, "num_slices": 8, **more}
    return needs(layout, optimizer, row, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: kernel_for(optimizer).rule)
def test_a_store_takes_what_is_expected(optimizer: Optimizer) -> None:
    """With both snapshots of its own, and a third version that is being written to a checkpoint."""
    expected = need(optimizer, [WHOLE, []])[0]
    store = Store(parcels_of(LAYOUT, WHOLE), kernel_for(optimizer))
    for parcel in store.parcels:
        store.initialise(0, parcel, [np.ones(len(span), span.dtype) for span in parcel.state])
    held = []
    for version in range(30):
        for parcel in store.parcels:
            gradient = Sum([np.ones(len(s), s.dtype) for s in parcel.spans], parcel.spans)
            store.apply(version, parcel, gradient, lr=0.1, update=version + 1, scale=1.0)
        store.retire(version)
        if version == 3:
            assert store.num_bytes == expected.parameters + expected.slots
        if version % 5 == 4:
            held.append(store.snapshot(version + 1))
        if len(held) > 3:
            held.pop(0).release()
    assert store.num_bytes == expected.total - expected.gradients


@pytest.mark.parametrize("num_rows", [20_000, 33_000])
def test_tables_take_what_is_expected(num_rows: int) -> None:
    """Once all rows are trained, and copied for a checkpoint. Room for more rows is not touched."""
    layout = Layout(
        [
            Entry("t", (num_rows, 8), "float32", Rule.ROWS),
            Entry("report", (1,), "float64", Rule.REPORT),
        ]
    )
    spec = TableSpec(
        rows=num_rows, dim=8, initializer=Uniform(), optimizer=None, min_count=1, evict_after_steps=0
    )
    chunks = spread(layout, 1)
    expected = need(Adam(), chunks, layout, tables=[spec], snapshots=False)[0]
    parcels = parcels_of(layout, chunks[0])
    (table,) = tables_of(layout, [spec], Adam(), parcels, seed=0).values()
    for step, some in enumerate(np.array_split(np.arange(num_rows), 20), 1):
        keys = np.sort(keys_of(some))
        gradient = Rows(keys, np.ones((len(keys), 8), np.float32))
        table.apply(gradient, lr=0.1, update=step, scale=1.0)
    copies = sum(array.nbytes for arrays in table.changed(0, 20) for array in arrays.values())
    rows = num_rows * 8 * 4 * 3
    assert 0.8 * expected.rows < rows + table._index.num_bytes <= expected.rows
    assert copies <= expected.checkpoint and expected.checkpoint - expected.rows < 100
    assert not expected.certain.rows


def test_versions_of_half_the_size_are_expected() -> None:
    expected = need(SGD(), [WHOLE, []], packs_versions=True)[0].parameters
    parameters = [group for group in LAYOUT.groups if group.rule is Rule.UPDATE]
    not_halved = sum(group.num_bytes for group in parameters if group.dtype != "float32")
    store = Store(parcels_of(LAYOUT, WHOLE), kernel_for(SGD()))
    for parcel in store.parcels:
        store.initialise(0, parcel, [np.ones(len(span), span.dtype) for span in parcel.state])
    for version in range(10):
        for parcel in store.parcels:
            store.packed(version, parcel, Bfloat16().packed)
            gradient = Sum([np.ones(len(s), s.dtype) for s in parcel.spans], parcel.spans)
            store.apply(version, parcel, gradient, lr=0.1, update=version + 1, scale=1.0)
            store.packed(version + 1, parcel, Bfloat16().packed)
        assert version < 2 or store.num_bytes == expected - 3 * not_halved // 2
        store.retire(version)


def wait_until_sent(process: Process) -> None:
    """Until arrays can be used again: pyzmq's thread tells, to which so many others leave little time."""
    deadline = time.monotonic() + WAIT_S
    while store := process.server._chunks.store:
        if all(slab.sent for slabs in list(store._loose.values()) for slab in list(slabs)):
            return
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize(("servers", "standby"), [(2, True), (3, False)])
def test_servers_never_take_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int, standby: bool
) -> None:
    """With a snapshot always under way, checkpoints, and a server that is lost."""
    monkeypatch.setattr("elasticflow_ps.parcels.CHUNK_BYTES", PARCEL_BYTES)
    monkeypatch.setattr("elasticflow_ps.snapshots.REST", 0.0)
    job, worker = Job(DirectoryStorage(tmp_path), servers, standby=standby), FakeWorker()
    expected = need(job.spec.optimizer, job.chunks)
    most = [0] * servers

    def train(until: int) -> None:
        while worker.version < until:
            if worker.version % 10 == 3:
                job.row[0].link.tell(Cut())
            worker.step()
            for place, process in enumerate(job.row):
                wait_until_sent(process)
                most[place] = max(most[place], process.server.heartbeat().memory_bytes)

    try:
        worker.connect(job.assign())
        train(40)
        job.replace(0)
        worker.connect(job.regroup(0))
        train(70)
    finally:
        worker.close()
        job.close()
    for place, (taken, at_most) in enumerate(zip(most, expected, strict=True)):
        own = at_most.parameters + at_most.slots
        assert own <= taken <= at_most.total - at_most.gradients, place
        assert taken >= own + at_most.snapshots // 4, "it holds copies"


def test_a_server_tells_what_it_may_have(tmp_path: Path) -> None:
    job = Job(DirectoryStorage(tmp_path), 1)
    try:
        assert job.row[0].link.hear(Join).available_bytes[HOST] > 0
        assert job.row[0].server.heartbeat().memory_bytes == 0
    finally:
        job.close()


def test_the_sum_follows_the_table() -> None:
    """Of ps/README.md: P of parameters and buffers, S of slots."""
    row = [*spread(LAYOUT, 2), []]
    (first, second, standby) = need(Adam(), row)
    bytes_of = [
        {rule: sum(_chunk_bytes(n) for n in chunks if _rule(n) is rule) for rule in Rule} for chunks in row
    ]
    p = [sum(sizes.values()) - sizes[Rule.REPORT] for sizes in bytes_of]
    s = [2 * sizes[Rule.UPDATE] for sizes in bytes_of]
    assert sum(p) == LAYOUT.num_bytes - bytes_of[0][Rule.REPORT] and bytes_of[0][Rule.REPORT]
    assert (first.parameters, first.slots, first.checkpoint) == (3 * p[0], s[0], p[0] + s[0])
    assert first.snapshots == 2 * (p[0] + s[0]), "nothing of the standby is to be kept"
    assert second.snapshots == 2 * (p[0] + s[0]) + 2 * (p[1] + s[1])
    assert standby == (0, 0, 0, 2 * (p[1] + s[1]), 0, 0)
    assert [each.snapshots for each in need(Adam(), row, snapshots=False)] == [0, 0, 0]
    assert need(Adam(), [WHOLE])[0].snapshots == 0, "nobody keeps any"


@pytest.mark.parametrize(("workers", "slices", "waiting"), [(1, 8, 1), (3, 8, 3), (8, 8, 4), (1, 1, 1)])
def test_gradients_wait_for_their_siblings(workers: int, slices: int, waiting: int) -> None:
    found = need(SGD(), [WHOLE], num_workers=workers, num_slices=slices)[0]
    assert found.gradients == waiting * LAYOUT.num_bytes


def _chunk_bytes(number: int) -> int:
    return LAYOUT.chunk_bytes(LAYOUT.chunks[number])


def _rule(number: int) -> Rule:
    return LAYOUT.groups[LAYOUT.chunks[number].group].rule
