"""Where tensors lie: every element in one chunk, cut by the model alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.step.layout import ALIGN_BYTES, CHUNK_BYTES, Entry, Layout, Rule, Vector, spread

SHAPES = st.lists(st.integers(0, 40), max_size=3).map(tuple)
DTYPES = st.sampled_from(["float32", "float64", "float16", "int64"])
REPORT = Entry("report", (3,), "float64", Rule.REPORT)


@st.composite
def models(draw: st.DrawFn) -> list[Entry]:
    """Some tensors, and the report at the end, as replicas have it."""
    rules = st.sampled_from([Rule.UPDATE, Rule.MEAN, Rule.FIRST])
    kinds = draw(st.lists(st.tuples(SHAPES, DTYPES, rules), max_size=8))
    return [*(Entry(f"tensor-{n}", *kind) for n, kind in enumerate(kinds)), REPORT]


@given(models())
def test_chunks_partition_groups(entries: list[Entry]) -> None:
    layout = Layout(entries)
    assert [chunk.number for chunk in layout.chunks] == list(range(len(layout.chunks)))
    for number, group in enumerate(layout.groups):
        chunks = [chunk for chunk in layout.chunks if chunk.group == number]
        assert [place for c in chunks for place in range(c.start, c.stop)] == list(range(group.size))
        assert all(0 < layout.chunk_bytes(chunk) <= CHUNK_BYTES for chunk in chunks)


@given(models())
def test_tensors_lie_apart_and_aligned(entries: list[Entry]) -> None:
    vector = Vector(Layout(entries))
    for number, tensor in enumerate(vector.tensors(entries)):
        assert tensor.ctypes.data % ALIGN_BYTES == 0
        tensor.fill(number)
    for number, (entry, tensor) in enumerate(zip(entries, vector.tensors(entries), strict=True)):
        assert tensor.shape == entry.shape and np.all(tensor == number)


@given(models())
def test_chunks_begin_aligned(entries: list[Entry]) -> None:
    layout = Layout(entries)
    for chunk in layout.chunks:
        assert chunk.start * np.dtype(layout.groups[chunk.group].dtype).itemsize % ALIGN_BYTES == 0


def test_a_large_tensor_is_cut() -> None:
    layout = Layout([Entry("table", (3 * CHUNK_BYTES,), "float32", Rule.UPDATE)])
    assert {layout.chunk_bytes(chunk) for chunk in layout.chunks} == {CHUNK_BYTES}
    assert len(layout.chunks) == 12


@given(models(), st.integers(1, 12))
def test_every_chunk_has_one_server(entries: list[Entry], num_servers: int) -> None:
    layout = Layout(entries)
    before = layout.chunks
    shares = spread(layout, num_servers)
    assert len(shares) == num_servers
    assert sorted(number for share in shares for number in share) == list(range(len(before)))
    (report,) = [c.number for c in before if layout.groups[c.group].rule is Rule.REPORT]
    assert report in shares[0]
    assert Layout(entries).chunks == before, "the cut knows nothing of servers"


@given(models(), st.integers(1, 12))
def test_servers_hold_about_the_same(entries: list[Entry], num_servers: int) -> None:
    layout = Layout(entries)
    state = [c for c in layout.chunks if layout.groups[c.group].rule is not Rule.REPORT]
    sizes = {chunk.number: layout.chunk_bytes(chunk) for chunk in state}
    even, largest = sum(sizes.values()) / num_servers, max(sizes.values(), default=0)
    for share in spread(layout, num_servers):
        assert sum(sizes.get(number, 0) for number in share) <= even + largest


@given(models(), models())
def test_equal_signatures_mean_equal_models(one: list[Entry], other: list[Entry]) -> None:
    assert (Layout(one).signature == Layout(other).signature) == (one == other)


def test_names_are_unique() -> None:
    with pytest.raises(ValueError, match="two tensors are named 'report'"):
        Layout([REPORT, REPORT])
