"""Sources that read block by block: the cache, the locality of a shuffled pass, and forks."""

import os

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.data import CSV, HDF5, Parquet
from elasticflow.data.blocks import BlockCache, BlockSource
from elasticflow.data.source import Column, Source
from elasticflow.errors import DataError


class Counting(BlockSource):
    """Rows whose value is their number, and their number as text."""

    def __init__(self, block_rows, cache_bytes=1 << 20):
        super().__init__("Counting", block_rows, cache_bytes)

    def read_block(self, number):
        values = np.arange(self.block_starts[number], self.block_starts[number + 1])
        return {"x": values, "text": values.astype("U")}

    def block_name(self, number):
        return f"block {number}"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any), st.data())
def test_rows_are_the_rows_asked_for(block_rows, data):
    source = Counting(block_rows, data.draw(st.sampled_from([1, 200, 1 << 20])))
    numbers = data.draw(st.lists(st.integers(0, source.num_rows - 1), max_size=30))
    rows = source.rows(np.array(numbers, np.int64))
    assert rows["x"].tolist() == numbers
    assert rows["text"].tolist() == [str(number) for number in numbers]
    assert rows["x"].flags.c_contiguous


def test_the_cache_keeps_to_its_bound_and_drops_the_oldest():
    cache = BlockCache(max_bytes=24)
    read = []

    def get(number):
        return cache.get(number, lambda n: read.append(n) or {"x": np.full(1, n)})["x"][0]

    assert [get(number) for number in (0, 1, 2, 0, 3, 0, 1)] == [0, 1, 2, 0, 3, 0, 1]
    assert read == [0, 1, 2, 3, 1]
    assert cache.num_bytes == 24


def test_the_cache_holds_one_block_however_large():
    cache = BlockCache(max_bytes=1)
    blocks = [cache.get(7, lambda n: {"x": np.zeros(1000)}) for _ in range(2)]
    assert blocks[0] is blocks[1]


def test_a_window_is_no_larger_than_half_the_cache():
    row_bytes = 8 + 4 * 21  # an int64, and the 21 characters that NumPy makes of one
    assert Counting([100] * 9, cache_bytes=800 * row_bytes * 2).window_blocks == 4
    assert Counting([100] * 9, cache_bytes=500 * row_bytes).window_blocks == 2
    assert Counting([100] * 9, cache_bytes=1).window_blocks == 1


def read_an_epoch(source, batch=16):
    """Reads all rows in shuffled order, and checks that each comes once."""
    shuffle = source.shuffle(seed=5)
    seen = []
    for start in range(0, len(source), batch):
        numbers = shuffle.rows(1, start, min(start + batch, len(source)))
        assert np.array_equal(source.rows(numbers)["x"], numbers)
        seen.extend(numbers)
    assert sorted(seen) == list(range(len(source)))


def write_hdf5(folder, num_rows):
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(num_rows), chunks=(100,))
    return HDF5(folder / "x.h5", block_bytes=800, cache_bytes=8 * 800)


def write_parquet(folder, num_rows):
    table = pa.table({"x": np.arange(num_rows)})
    pq.write_table(table.slice(0, 730), folder / "a.parquet", row_group_size=100)
    pq.write_table(table.slice(730), folder / "b.parquet", row_group_size=130)
    return Parquet(folder / "*.parquet", cache_bytes=8 * 8 * 130)


def write_csv(folder, num_rows):
    for name, start, stop in (("a", 0, 730), ("b", 730, num_rows)):
        lines = ["x", *map(str, range(start, stop))]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return CSV(folder / "*.csv", block_bytes=400, cache_bytes=8 * 8 * 140)


WRITERS = [write_hdf5, write_parquet, write_csv]


@pytest.mark.parametrize("write", WRITERS)
def test_a_shuffled_pass_reads_each_block_once(tmp_path, write):
    source = write(tmp_path, 2000)
    num_blocks = len(source.block_starts) - 1
    assert num_blocks > 13
    assert source._cache.max_bytes < 2000 * 8 * 0.6
    before = source.blocks_read
    read_an_epoch(source)
    assert num_blocks - 1 <= source.blocks_read - before <= num_blocks + 2


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests may have left threads
@pytest.mark.parametrize("write", WRITERS)
def test_a_source_made_before_a_fork_is_read_after_it(tmp_path, write):
    source = write(tmp_path, 1000)
    numbers = np.arange(0, 1000, 7)
    source.rows(numbers)
    child = os.fork()
    if child == 0:
        right = False
        try:
            right = np.array_equal(source.rows(numbers[::-1])["x"], numbers[::-1])
        finally:
            os._exit(0 if right else 1)
    assert np.array_equal(source.rows(numbers)["x"], numbers)
    assert os.waitpid(child, 0)[1] == 0


def test_a_block_of_another_type_is_refused():
    class Changing(Counting):
        def read_block(self, number):
            block = super().read_block(number)
            return {"x": block["x"] / 2 if number else block["x"]}

    with pytest.raises(DataError, match="block 1: column 'x' holds float64, but int64 in the first rows"):
        Changing([3, 3]).rows(np.array([4]))


def test_a_block_of_another_length_is_refused():
    class Shrinking(Counting):
        def read_block(self, number):
            return {"x": np.arange(3)}

    with pytest.raises(DataError, match="block 1: 4 rows expected"):
        Shrinking([3, 4]).rows(np.array([4]))


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_columns_of_odd_sizes_are_arrays_that_pytorch_takes(num_rows):
    class Odd(BlockSource):
        def read_block(self, number):
            y = np.arange(5, dtype=np.int8)
            return {"y": y, "x": y * 0.5, "z": np.stack([y, y, y], axis=1)}

        def block_name(self, number):
            return f"block {number}"

    source, numbers = Odd("Odd", [5], 1 << 20), np.arange(num_rows)
    for name, array in source.finish(source.rows(numbers), 0).items():
        assert torch.equal(
            torch.from_numpy(array), torch.from_numpy(source.rows(np.arange(5))[name][:num_rows])
        )


def test_fields_of_a_structure_are_arrays_that_pytorch_takes():
    class Structured(Source):
        columns = (Column("x", (), "float64"), Column("y", (), "int8"))
        num_rows = 4
        all = np.array([(i / 4, i) for i in range(4)], [("x", np.float64), ("y", np.int8)])

        def rows(self, numbers):
            found = self.all[numbers][::-1]
            return {name: found[name] for name in ("x", "y")}

    source = Structured()
    arrays = source.finish(source.rows(np.arange(3)), 0)
    assert torch.from_numpy(arrays["x"]).tolist() == [0.5, 0.25, 0.0]
    assert torch.from_numpy(arrays["y"]).tolist() == [2, 1, 0]


def test_no_rows_at_all():
    with pytest.raises(DataError, match="Counting is empty"):
        Counting([0, 0])
