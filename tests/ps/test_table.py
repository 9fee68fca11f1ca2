"""A table gives the bits of a dict of rows, in C and without."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticflow import api
from elasticflow.embedding import Constant, Normal, Uniform
from elasticflow.errors import ProtocolError
from elasticflow.step import rows as plain_rows
from elasticflow.step.rows import NUM_BUCKETS, Rows, bounds, keys_of, no_rows
from elasticflow_ps import native, row_index
from elasticflow_ps.growing import Growing
from elasticflow_ps.kernel import Kernel
from elasticflow_ps.native import first_values, gather, merge, scatter
from elasticflow_ps.norms import squared_norm
from elasticflow_ps.optimizers import kernel_for
from elasticflow_ps.row_index import NativeIndex, PlainIndex
from elasticflow_ps.table import Table

WAYS = ["c", "plain"] if native.rows_available else ["plain"]
OPTIMIZERS: list[api.Optimizer] = [
    api.SGD(weight_decay=0.1, maximize=True),
    api.SGD(momentum=0.9, dampening=0.5),
    api.Adam(amsgrad=True),
    api.AdamW(),
    api.Adagrad(initial_accumulator_value=0.1),
]
in_c = pytest.mark.skipif(not native.rows_available, reason="installed without a C compiler")


@contextlib.contextmanager
def taking(way: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if way == "plain":
            patch.setattr(native, "rows_available", False)
        yield


def new_values(keys, dim: int):
    return plain_rows.first_values(Uniform(), 7, keys, dim)


def table(
    optimizer: api.Optimizer | None = None, dim: int = 4, first=0, stop=NUM_BUCKETS, **options
) -> Table:
    kernel = kernel_for(api.SGD() if optimizer is None else optimizer)
    starts = functools.partial(new_values, dim=dim)
    return Table(dim=dim, kernel=kernel, first_values=starts, first=first, stop=stop, **options)


def keys(*ids: int):
    return np.sort(keys_of(np.array(ids, np.int64)))


def gradients(of, dim: int, seed: int = 0) -> Rows:
    return Rows(of, np.random.default_rng(seed).standard_normal((len(of), dim)).astype(np.float32))


def read(subject: Table, of, version: int, step: int):
    out = np.full((len(of), subject._dim), np.nan, np.float32)
    subject.read(of, version, step, out)
    return out


class Model:
    """What a table should do, a row at a time."""

    def __init__(self, kernel: Kernel, dim: int, evict: int, min_count: int) -> None:
        self.kernel, self.dim, self.evict, self.min_count = kernel, dim, evict, min_count
        self.rows: dict[int, dict] = {}
        self.waiting: dict[int, tuple[int, int]] = {}
        self.previous: dict[int, np.ndarray] = {}

    def is_stale(self, seen: int, step: int) -> bool:
        return self.evict > 0 and seen < step - self.evict

    def first(self, key: int):
        return new_values(np.array([key], np.uint64), self.dim)[0]

    def read(self, key: int, step: int):
        row = self.rows.get(key)
        return self.first(key) if row is None or self.is_stale(row["seen"], step) else row["value"]

    def carry(self) -> None:
        self.previous = {key: row["value"] for key, row in self.rows.items()}

    def apply(self, rows: Rows, step: int, **arguments) -> None:
        self.previous = {key: self.read(key, step) for key in self.rows}
        for key, grad in zip(rows.keys.tolist(), rows.values, strict=True):
            row = self.rows.get(key)
            if row is not None and self.is_stale(row["seen"], step):
                row = self.rows.pop(key) and None
            if row is None:
                count, seen = self.waiting.pop(key, (0, step))
                count = 1 if self.is_stale(seen, step) else count + 1
                if count < self.min_count:
                    self.waiting[key] = (count, step)
                    continue
                row = self.rows[key] = {"value": self.first(key)}
                row.update(self.kernel.new_slots(row["value"]))
            slots = {name: row[name].copy() for name in self.kernel.slots}
            out = np.empty_like(row["value"])
            self.kernel.apply(row["value"], grad, slots, out, slots, update=step, **arguments)
            self.rows[key] = {"value": out, "seen": step, **slots}

    def changed(self, bucket: int, since: int, step: int) -> dict[str, bytes]:
        smallest, largest = bounds(bucket, bucket + 1)

        def counts(key: int, seen: int) -> bool:
            return smallest <= key <= largest and seen > since and not self.is_stale(seen, step + 1)

        found = [(key, row) for key, row in sorted(self.rows.items()) if counts(key, row["seen"])]
        arrays = {"keys": np.array([key for key, _ in found], np.uint64)}
        for name in ("value", *self.kernel.slots):
            arrays[name] = np.array([row[name] for _, row in found], np.float32)
        arrays["seen"] = np.array([row["seen"] for _, row in found], np.uint32)
        if self.min_count > 1:
            waiting = [(key, *w) for key, w in sorted(self.waiting.items()) if counts(key, w[1])]
            arrays["candidates"] = np.array([key for key, _, _ in waiting], np.uint64)
            arrays["counts"] = np.array([count for _, count, _ in waiting], np.uint32)
            arrays["candidates_seen"] = np.array([seen for _, _, seen in waiting], np.uint32)
        return {name: array.tobytes() for name, array in arrays.items()}


IDS = 40
SPLITS = [[0, 64], [0, 20, 64], [0, 21, 42, 43, 64]]
"""Of the buckets, among servers."""

acts = st.one_of(
    st.tuples(st.just("apply"), st.sets(st.integers(0, IDS - 1), max_size=IDS), st.integers(1, 4)),
    st.tuples(st.just("carry")),
    st.tuples(st.just("save")),
    st.tuples(st.just("restart"), st.sampled_from(SPLITS)),
)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=150)
@given(
    optimizer=st.sampled_from(OPTIMIZERS),
    dim=st.sampled_from([1, 3, 16]),
    evict=st.sampled_from([0, 1, 3]),
    min_count=st.sampled_from([1, 2, 3]),
    script=st.lists(acts, max_size=12),
)
def test_reads_updates_and_restarts_are_those_of_a_dict(way, optimizer, dim, evict, min_count, script):
    options = {"evict_after_steps": evict, "min_count": min_count}
    kernel = kernel_for(optimizer)
    model, version, step, saved_at = Model(kernel, dim, evict, min_count), 0, 0, 0
    everything = keys(*range(IDS))
    saved: dict[int, list] = {bucket: [] for bucket in range(NUM_BUCKETS)}

    def servers(split: list[int]) -> list[Table]:
        return [
            table(optimizer, dim, first, stop, **options)
            for first, stop in zip(split, split[1:], strict=False)
        ]

    def part(rows: Rows, subject: Table) -> Rows:
        return rows.of(subject._buckets.start, subject._buckets.stop)

    def check(subjects: list[Table], at: int, read_in: int, value) -> None:
        for subject in subjects:
            mine = part(Rows(everything, np.empty((IDS, dim), np.float32)), subject).keys
            expected = np.array([value(key) for key in mine.tolist()], np.float32).reshape(-1, dim)
            assert read(subject, mine, at, read_in).tobytes() == expected.tobytes()

    def save(subjects: list[Table]) -> int:
        for subject in subjects:
            for bucket, arrays in zip(subject._buckets, subject.changed(saved_at, step), strict=True):
                found = {name: array.tobytes() for name, array in arrays.items()}
                assert found == model.changed(bucket, saved_at, step)
                saved[bucket].append(arrays)
        return step

    with taking(way):
        subjects = servers([0, 20, 64])
        for act, *arguments in script:
            if act == "apply":
                ids, ahead = arguments
                step += ahead
                rows = gradients(keys(*ids), dim, step)
                numbers = {"lr": 0.1 + step, "scale": 0.5}
                for subject in subjects:
                    subject.apply(part(rows, subject), update=step, **numbers)
                model.apply(rows, step, lr=numbers["lr"], grad_scale=numbers["scale"])
                version += 1
                # the slices of this step may still read the version before
                check(subjects, version - 1, step, lambda key: model.previous.get(key, model.first(key)))
            elif act == "carry":
                for subject in subjects:
                    subject.carry()
                version += 1
                check(subjects, version - 1, step + 1, functools.partial(model.read, step=step + 1))
            elif act == "save":
                saved_at = save(subjects)
            else:
                saved_at = save(subjects)
                subjects = servers(*arguments)
                for subject in subjects:
                    for bucket in subject._buckets:
                        for arrays in saved[bucket]:
                            subject.restore(bucket, arrays)
                    subject.settle(version)
            check(subjects, version, step + 1, functools.partial(model.read, step=step + 1))


@in_c
@pytest.mark.parametrize("options", [{}, {"evict_after_steps": 5}, {"evict_after_steps": 4, "min_count": 2}])
def test_both_ways_agree_while_a_table_grows_and_shrinks(options):
    rng = np.random.default_rng(3)
    tables = []
    for way in WAYS:
        with taking(way):
            tables.append(table(api.Adagrad(), 5, 8, 24, **options))
    low, high = bounds(8, 24)
    pool = np.unique(rng.integers(low, high, 30_000, np.uint64))
    for step in range(1, 40):
        size = 8_000 if step < 15 else 200
        some = np.sort(rng.choice(pool, size, replace=False))
        rows = gradients(some, 5, step)
        asked = np.sort(rng.choice(pool, 500, replace=False))
        found = []
        for way, subject in zip(WAYS, tables, strict=True):
            with taking(way):
                subject.apply(rows, lr=0.1, update=step, scale=1.0)
                found.append([read(subject, asked, step, step + 1), read(subject, asked, step - 1, step)])
        assert np.array_equal(*found)
    for ours, theirs in zip(*(subject.changed(0, step) for subject in tables), strict=True):
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            assert array.dtype == theirs[name].dtype and np.array_equal(array, theirs[name])
    assert len({subject.num_rows for subject in tables}) == 1


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_that_of_the_rows_seen_lately(way):
    with taking(way):
        subject = table(dim=16, evict_after_steps=10)
        most = 0
        for step in range(1, 200):
            some = keys(*range(step * 1000, step * 1000 + 1000))
            subject.apply(gradients(some, 16), lr=0.1, update=step, scale=1.0)
            assert subject.num_rows <= 22 * 1000
            most = max(most, subject.num_bytes)
        for step in range(200, 240):
            subject.apply(gradients(keys(1, 2), 16), lr=0.1, update=step, scale=1.0)
        assert subject.num_rows == 2 and subject.num_bytes < most / 4


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_that_of_the_rows_that_are_there(way):
    with taking(way):
        subject = table(api.Adam(), dim=16)
        for number in range(100):
            some = keys(*range(number * 1000, number * 1000 + 1000))
            subject.apply(gradients(some, 16), lr=0.1, update=1, scale=1.0)
    rows = 100_000 * 16 * 4 * 3
    assert rows < subject.num_bytes < rows * 1.6 + 100_000 * 300


@pytest.mark.parametrize("way", WAYS)
def test_a_row_may_be_longer_than_a_table_has_memory_at_first(way):
    with taking(way):
        subject, some = table(api.Adam(amsgrad=True), dim=1 << 16, evict_after_steps=2), keys(3, 4)
        subject._index.forget(1, subject._rows)
        for step in range(1, 4):
            subject.apply(gradients(some, 1 << 16, step), lr=0.1, update=step, scale=1.0)
        assert read(subject, some, 3, 4).all() and subject.num_rows == 2


@pytest.mark.parametrize("way", WAYS)
def test_reading_creates_nothing(way):
    with taking(way):
        subject = table()
        some = keys(*range(100))
        assert np.array_equal(read(subject, some, 0, 1), new_values(some, 4))
        assert subject.num_rows == 0 and all(not len(a["keys"]) for a in subject.changed(0, 1))


@pytest.mark.parametrize("way", WAYS)
def test_no_rows_make_a_version_too(way):
    with taking(way):
        subject = table(api.Adam())
        subject.apply(no_rows(4), lr=0.1, update=1, scale=1.0)
        assert subject.version == 1 and subject.squared_norms(no_rows(4)) == [0.0] * NUM_BUCKETS
        assert read(subject, keys(), 0, 1).shape == (0, 4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "bad", [[bounds(4, 8)[1] + 1], [bounds(4, 8)[0] - 1], [1 << 60, 1 << 60], [(1 << 60) + 1, 1 << 60]]
)
def test_keys_that_cannot_be_are_refused(way, bad):
    with taking(way):
        subject = table(first=4, stop=8)
        rows = gradients(np.array(bad, np.uint64), 4)
        for act in (
            lambda: subject.apply(rows, lr=0.1, update=1, scale=1.0),
            lambda: subject.squared_norms(rows),
            lambda: read(subject, rows.keys, 0, 1),
        ):
            with pytest.raises(ProtocolError, match="buckets, 4..7"):
                act()
        assert subject.version == 0 and subject.num_rows == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("seen", "candidates_seen", "counts"),
    [(0, 1, 1), (1 << 31, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, (1 << 32) - 1)],
)
def test_steps_and_counts_of_a_checkpoint_that_cannot_be_are_refused(way, seen, candidates_seen, counts):
    """The index takes a step 0 for no entry, and a count for a place below 0."""
    with taking(way):
        subject = table(first=4, stop=8, min_count=2)
        one = np.array([1 << 60], np.uint64)
        arrays = {"keys": one, "value": new_values(one, subject._dim), "candidates": one + np.uint64(1)}
        arrays |= {name: arrays["value"] for name in subject._kernel.slots}
        numbers = {"seen": seen, "candidates_seen": candidates_seen, "counts": counts}
        arrays |= {name: np.array([number], np.uint32) for name, number in numbers.items()}
        with pytest.raises(ProtocolError, match="not 1 to"):
            subject.restore(4, arrays)


@pytest.mark.parametrize("way", WAYS)
def test_keys_at_the_ends_and_all_in_one_place(way):
    """Mixed keys are spread evenly; nothing but speed hangs on it."""
    ends = [range(5_000), range((1 << 58) - 2_500, (1 << 58) + 2_500), range((1 << 64) - 5_000, 1 << 64)]
    for end in ends:
        with taking(way):
            subject = table(dim=1)
            some = np.array(end, np.uint64)
            for part in (some[::2].copy(), some):
                subject.apply(gradients(part, 1), lr=1.0, update=1, scale=1.0)
            assert subject.num_rows == 5_000
            value = new_values(some, 1)
            value[::2] -= gradients(some[::2], 1).values
            value -= gradients(some, 1).values
            assert read(subject, some, 2, 2).tobytes() == value.tobytes()
            assert sum(len(arrays["keys"]) for arrays in subject.changed(0, 1)) == 5_000


@pytest.mark.parametrize("way", WAYS)
def test_norms_are_those_of_each_bucket(way):
    with taking(way):
        rows = gradients(keys(*range(500)), 3)
        subject = table(dim=3, first=0, stop=64)
        norms = subject.squared_norms(rows)
        for bucket, norm in enumerate(norms):
            assert norm == squared_norm(rows.of(bucket, bucket + 1).values.reshape(-1))
        part = table(dim=3, first=10, stop=20)
        assert part.squared_norms(rows.of(10, 20)) == norms[10:20]


@in_c
def test_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(row_index, "MOST_ROWS", 100)
    subject = table()
    subject.apply(gradients(keys(*range(100)), 4), lr=0.1, update=1, scale=1.0)
    with pytest.raises(OverflowError, match="more servers"):
        subject.apply(gradients(keys(200), 4), lr=0.1, update=2, scale=1.0)


def test_what_changed_is_a_copy():
    subject = table()
    rows = gradients(keys(1, 2, 3), 4)
    subject.apply(rows, lr=0.1, update=1, scale=1.0)
    copies = subject.changed(0, 1)
    before = [{name: array.tobytes() for name, array in arrays.items()} for arrays in copies]
    subject.apply(rows, lr=0.1, update=2, scale=1.0)
    assert before == [{name: array.tobytes() for name, array in arrays.items()} for arrays in copies]


# --- what is done in C ----------------------------------------------------------------------------

key_sets = st.sets(st.integers(0, 30), max_size=20).map(lambda ids: keys(*ids))


def at_odd_address(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 1, np.uint8)
    memory[1:] = array.reshape(-1).view(np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


@given(key_sets, key_sets, st.sampled_from([1, 3, 16, 33]))
def test_merging_is_plus(left_keys, right_keys, dim):
    left, right = gradients(left_keys, dim, 1), gradients(right_keys, dim, 2)
    expected = left.plus(right)
    for found in (merge(left, right), merge(Rows(*map(at_odd_address, left)), right)):
        assert found.keys.tobytes() == expected.keys.tobytes()
        assert found.values.tobytes() == expected.values.tobytes()


@given(
    st.sampled_from([Constant(0.3), Uniform(-0.1, 0.3), Uniform(2, 2), Normal(0.5, 0.01), Normal(std=3e30)])
    | st.builds(Normal, st.floats(-2, 2), st.floats(0, 2)),
    st.integers(0, (1 << 64) - 1),
    st.lists(st.integers(0, (1 << 64) - 1), max_size=20),
    st.sampled_from([1, 5, 16, 70]),
)
def test_first_values_have_the_bits_of_numpy(initializer, seed, some, dim):
    of = np.array(some, np.uint64)
    expected = plain_rows.first_values(initializer, seed, of, dim)
    for found in (
        first_values(initializer, seed, of, dim),
        first_values(initializer, seed, at_odd_address(of), dim),
    ):
        assert found.dtype == np.float32 and found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dim", [1, 5, 16, 100])
def test_rows_are_gathered_and_scattered(way, dim):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((90, 3, dim)).astype(np.float32)
    places = rng.permutation(90)[:60].astype(np.int64)
    places[::7] = -1
    known = places >= 0
    with taking(way):
        parts = [np.zeros((60, dim), np.float32) for _ in range(2)]
        gather(rows, places, parts)
        for number, part in enumerate(parts):
            assert np.array_equal(part[known], rows[places[known], number]) and not part[~known].any()
        expected = rows.copy()
        for number, part in enumerate(parts):
            part += 1
            expected[places[known], number] = part[known]
        scatter(rows, places, parts)
        assert np.array_equal(rows, expected)


@given(st.lists(st.tuples(st.sets(st.integers(0, 200)), st.integers(1, 3), st.integers(0, 2)), max_size=15))
def test_an_index_is_a_dict(script):
    subjects = [PlainIndex(0, 64), NativeIndex(0, 64)] if native.rows_available else [PlainIndex(0, 64)] * 2
    rows = [np.zeros((3000, 1, 1), np.float32) for _ in subjects]
    for step, (ids, min_count, age) in enumerate(script, 1):
        oldest = max(1, step - age)
        of = keys(*ids)
        found = []
        for subject, data in zip(subjects, rows, strict=True):
            places, fresh = subject.admit(of, step, oldest, min_count)
            data[places[fresh], 0, 0] = of[fresh] >> np.uint64(40)
            if age == 2:
                subject.forget(oldest, data)
            places, missing = subject.find(of, oldest)
            assert missing == np.count_nonzero(places < 0)
            assert np.all((data[places, 0, 0] == of >> np.uint64(40)) | (places < 0))
            some, at, seen = subject.listed(oldest)
            found.append((fresh.tolist(), missing, some.tolist(), np.minimum(at, 0).tolist(), seen.tolist()))
        assert found[0] == found[1]
        assert subjects[0].num_rows == subjects[1].num_rows


def test_memory_grows_and_keeps_what_is_in_it():
    memory = Growing(1000)
    memory.array[:1000] = 7
    for size in (5_000, 1 << 20, 3 << 20, 64 << 20, 4 << 20, 2_000):
        memory.resize(size)
        assert len(memory.array) >= size
        assert np.all(memory.array[:1000] == 7) and not memory.array[1000:].any()
    held = memory.array[:10]
    with pytest.raises(BufferError):
        memory.resize(1 << 20)
    assert held[0] == 7 == memory.array[0]
