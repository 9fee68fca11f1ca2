"""Sources that a program wrote itself, and what they return that cannot be."""

import random
import sys

import numpy as np
import pytest
import torch

from elasticflow.data import Column, Concat, Ragged, Source, open_source
from elasticflow.errors import DataError

X = np.arange(20, dtype=np.float32).reshape(10, 2)


class OfOnesOwn(Source):
    def __init__(self, returned=lambda numbers: {"x": X[numbers]}, num_rows=10, columns=None):
        self.columns = (Column("x", (2,), "float32"),) if columns is None else columns
        self.num_rows, self.returned = num_rows, returned

    def rows(self, numbers):
        return self.returned(numbers)


class ThatSaysNothing(Source):
    def rows(self, numbers):
        return {"x": X[numbers]}


@pytest.mark.parametrize(
    "source, words",
    [
        (
            OfOnesOwn(lambda n: {"x": X[n][1:]}),
            "returned 1 records of column 'x', and was asked for 2, from 0",
        ),
        (OfOnesOwn(lambda n: {"x": X[:9]}), "returned 9 records of column 'x', and was asked for 2"),
        (OfOnesOwn(lambda n: None), r"rows\(\) returned nothing. It must return a dict of arrays"),
        (OfOnesOwn(lambda n: (X[n],)), "returned a tuple. It must return a dict"),
        (OfOnesOwn(lambda n: {"y": X[n]}), "the columns 'y', and its 'columns' name 'x' as well"),
        (OfOnesOwn(lambda n: {"x": X[n].astype(float)}), r"float64 of shape \(2,\) .* call float32 of shape"),
        (OfOnesOwn(lambda n: {"x": X[n][:, :1]}), r"shape \(1,\) for column 'x' \(record 0 and others\)"),
        (OfOnesOwn(lambda n: {"x": Ragged.of(X[n])}), r"shape \(-1,\) for column 'x'"),
        (
            OfOnesOwn(lambda n: {"x": np.ma.masked_less(X[n], 1)}),
            r"train'\], OfOnesOwn: column 'x' .*values masked",
        ),
        (
            OfOnesOwn(lambda n: {"x": X[np.sort(n)]}),
            r"other records for the numbers \[1, 0\] than for \[0, 1\]",
        ),
        (
            OfOnesOwn(lambda n: {"x": X[n] + np.float32(random.random() > 2)}),
            "uses random numbers.*ef.data.Transform",
        ),
        (OfOnesOwn(lambda n: {"x": X[n] + np.float32(np.random.rand() > 2)}), "uses random numbers"),
        (OfOnesOwn(lambda n: {"x": X[n] + np.float32(torch.rand(()) > 2)}), "uses random numbers"),
        (OfOnesOwn(num_rows=0), "its 'num_rows' is 0. It must be the number of records"),
        (OfOnesOwn(num_rows="10"), "its 'num_rows' is '10'"),
        (OfOnesOwn(columns=["x"]), r"its 'columns' are \['x'\]. They must be a tuple of ef.data.Column"),
        (OfOnesOwn(columns=(Column("x", (2,), torch.float32),)), "and dtype torch.float32. They must be"),
        (
            OfOnesOwn(columns=(Column("x", (None,), "f4"),)),
            r"column 'x' is of shape \(None,\) and dtype 'f4'",
        ),
        (ThatSaysNothing(), "ThatSaysNothing: its 'columns' are None"),
    ],
)
def test_what_is_no_source(source, words):
    with pytest.raises(DataError, match=rf"data\(\)\['train'\], \w+: .*{words}|{words}"):
        open_source({"train": source})


@pytest.mark.parametrize(
    "shape, dtype, values",
    [
        ((2,), np.float32, X),
        ([2], X.dtype, X),
        (np.int64(2), "f4", X),
        ((2,), "float32", torch.from_numpy(X)),
        ((), str, np.array([f"{10**n}" for n in range(10)])),
        ((), "U3", np.array(list("abcdefghij"))),
        ((), "bytes", np.array([b"a" * n for n in range(10)])),
    ],
)
def test_whatever_stands_for_shape_and_dtype(shape, dtype, values):
    found = open_source(
        OfOnesOwn(lambda n: {"x": values[n.copy()]}, columns=[Column("x", shape, dtype)])
    ).train
    usual = open_source({"x": values}).train
    assert (found.columns, found.signature) == (usual.columns, usual.signature)
    assert found.rows(np.array([3, 1]))["x"].tolist() == usual.rows(np.array([3, 1]))["x"].tolist()


def test_who_loads_pytorch_first_has_drawn_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    source = OfOnesOwn(lambda n: {"x": [sys.modules.__setitem__("torch", torch), X[n]][1]})
    assert open_source(source).train.num_rows == 10


def test_another_generator_of_numpys():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        assert open_source(OfOnesOwn()).train.num_rows == 10
        with pytest.raises(DataError, match="uses random numbers"):
            open_source(OfOnesOwn(lambda n: {"x": X[n] + np.float32(np.random.rand() > 2)}))
    finally:
        np.random.set_bit_generator(before)


def test_records_that_come_short_later():
    """Which are read together depends on who computes what: too few of them would train others."""
    made = OfOnesOwn(lambda numbers: {"x": X[numbers[numbers != 7]]})
    train = open_source({"train": made}).train
    assert train.rows(np.array([6, 8]))["x"].tolist() == X[[6, 8]].tolist()
    for read in (train.rows, lambda numbers: train.drawn(numbers, 3), Concat(made, made).rows):
        with pytest.raises(DataError, match="returned 1 records of column 'x', and was asked for 2, from 6"):
            read(np.array([6, 7]))


def test_it_may_write_to_the_numbers():
    def shifted(numbers):
        numbers += 1
        return {"x": X[numbers - 1]}

    numbers = np.array([3, 4])
    assert open_source(OfOnesOwn(shifted)).train.rows(numbers)["x"].tolist() == X[[3, 4]].tolist()
    assert numbers.tolist() == [3, 4]


def test_memory_that_it_uses_again():
    """What is read for the next slices lies elsewhere."""
    memory = np.empty((10, 2), np.float32)

    def filled(numbers):
        memory[: len(numbers)] = X[numbers]
        return {"x": memory[: len(numbers)]}

    train = open_source(OfOnesOwn(filled)).train
    first = train.rows(np.array([1]))["x"]
    train.rows(np.array([2]))
    assert first.tolist() == X[[1]].tolist()


def test_what_it_says_of_itself_stays():
    made = OfOnesOwn()
    made.block_starts, made.window_blocks = np.array([0, 5, 10]), 1
    train = open_source(made).train
    assert (train.columns, train.num_rows, train.signature) == (made.columns, 10, made.signature)
    ours, own = train.shuffle(3), made.shuffle(3)
    assert ours.rows(1, 0, 10).tolist() == own.rows(1, 0, 10).tolist()


def test_random_numbers_that_follow_from_the_seed():
    class Drawn(OfOnesOwn):
        def drawn(self, numbers, seed):
            drawn = [np.random.default_rng((seed, number)).random(2, np.float32) for number in numbers]
            np.random.seed(seed)
            return {"x": X[numbers] + np.stack(drawn)}

    train = open_source(Drawn()).train
    assert train.drawn(np.array([3]), 5)["x"].tolist() == train.drawn(np.array([2, 3]), 5)["x"][1:].tolist()


def test_other_byte_orders_are_taken():
    found = open_source(OfOnesOwn(lambda n: {"x": X[n].astype(">f4")})).train.rows(np.array([3]))["x"]
    assert found.dtype.isnative and found.tolist() == X[[3]].tolist()
