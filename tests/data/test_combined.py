"""Sources made of others, and records that Python makes: which come when, and what they are."""

import random

import numpy as np
import pytest

from elasticflow.data import (
    Arrays,
    Collate,
    Concat,
    Indexed,
    Mix,
    Pad,
    Ragged,
    Repeat,
    Take,
    Transform,
    Weighted,
    open_source,
)
from elasticflow.errors import DataError

from .test_block_sources import Counting

TEN, TWENTY = Arrays(x=np.arange(10)), Arrays(x=np.arange(100, 120))


def epoch(source, number=0, seed=3, step=7):
    """The record numbers of an epoch, asked for in pieces."""
    order, length = source.shuffle(seed), source.epoch_records
    parts = [order.rows(number, start, min(start + step, length)) for start in range(0, length, step)]
    rows = np.concatenate(parts)
    assert np.array_equal(rows, order.rows(number, 0, length))
    return rows


def values(source, rows):
    return source.rows(rows)["x"].tolist()


def test_take_has_the_first_records():
    source = Take(TEN, 4)
    assert sorted(epoch(source)) == [0, 1, 2, 3] and len(Take(TEN, 99)) == 10
    with pytest.raises(IndexError):
        source.rows(np.array([4]))
    blocks = Take(Counting([5, 5, 5]), 7)
    assert blocks.block_starts.tolist() == [0, 5, 7] and sorted(epoch(blocks)) == list(range(7))


def test_repeat_is_several_passes_each_in_its_order():
    rows = epoch(Repeat(TEN, 3)).reshape(3, 10)
    assert all(sorted(each) == list(range(10)) for each in rows)
    assert not np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], epoch(Repeat(TEN, 3), 1)[:10])


@pytest.mark.parametrize("second", [TWENTY, Counting([8, 8, 4])])
def test_concat_visits_all_once(second):
    source = Concat(Take(Counting([3, 9]), 11) if second is not TWENTY else TEN, second)
    rows = epoch(source, 2)
    assert sorted(rows) == list(range(len(source)))
    first = len(source) - 20
    expected = [n if n < first else n - first + (100 if second is TWENTY else 0) for n in rows]
    assert values(source, rows) == expected


def test_mix_has_its_shares_in_each_thousand():
    source = Mix((TEN, 0.25), (TWENTY, 3 / 4), records=2500)
    rows = epoch(source, step=999)
    assert len(rows) == 2500 == source.epoch_records
    for start in (0, 1000):
        assert np.count_nonzero(rows[start : start + 1000] < 10) == 250
    counts = np.bincount(rows[:1000])
    assert set(counts[:10]) == {25} and counts[10:].min() >= 37
    assert not np.array_equal(rows[:1000], epoch(source, 1)[:1000])
    assert np.array_equal(rows, epoch(source))


def test_mix_goes_on_where_the_epoch_before_ended():
    big = Arrays(x=np.arange(3000))
    source = Mix((big, 1.0), records=1000)
    seen = np.concatenate([epoch(source, number) for number in range(3)])
    assert sorted(seen) == list(range(3000))


def test_weighted_draws_by_chance():
    source = Weighted(Arrays(x=np.arange(4000)), np.repeat([0, 1, 3, 0], 1000))
    counts = np.bincount(epoch(source, step=501) // 1000, minlength=4)
    assert counts[0] == counts[3] == 0 and 2800 < counts[2] < 3200
    assert not np.array_equal(epoch(source), epoch(source, 1))
    assert not np.array_equal(epoch(source), epoch(source, seed=4))


class Letters:
    """A map-style dataset: words of different lengths, and noise."""

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return {"word": np.arange(number), "noise": random.random() + np.random.rand(), "y": number % 2}


def test_a_dataset_gives_the_same_records_whoever_reads_them():
    source = Indexed(Letters(), pad={"word": Pad()})
    rows = np.array([4, 1, 5])
    together, alone = source.drawn(rows, 7), [source.drawn(np.array([n]), 7) for n in rows]
    assert together["noise"].tolist() == [each["noise"][0] for each in alone]
    assert together["noise"].tolist() != source.drawn(rows, 8)["noise"].tolist()
    assert together["noise"].dtype == np.float32 or together["noise"].dtype == np.float64
    assert isinstance(together["word"], Ragged) and together["word"].lengths.tolist() == [4, 1, 5]
    assert together["y"].tolist() == [0, 1, 1]


def test_what_has_a_length_and_records_may_be_returned_by_data():
    class Pairs:
        def __len__(self):
            return 3

        def __getitem__(self, number):
            return np.full(2, number), number

    source = open_source({"train": Pairs()}).train
    assert source.positional and source.rows(np.array([2, 0]))["0"].tolist() == [[2, 2], [0, 0]]


def test_torch_datasets():
    torch = pytest.importorskip("torch")
    whole = torch.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3))
    part = torch.utils.data.Subset(whole, [2, 1])
    assert open_source(whole).train.rows(np.array([1]))["0"].tolist() == [[2, 3]]
    assert open_source(part).train.rows(np.array([0]))["1"].tolist() == [2]
    with pytest.raises(DataError, match="one after the other: return its dataset"):
        open_source(torch.utils.data.DataLoader(whole))


def test_transform_and_collate():
    words = Arrays(text=np.array(["a b", "c", "d e f"]), y=np.arange(3))
    source = Transform(
        words, lambda r: {"ids": np.frombuffer(r["text"].encode(), np.uint8), "y": r["y"]}, pad={"ids": 0}
    )
    arrays = source.finish(source.rows(np.array([1, 0])), 0)
    assert arrays["ids"].tolist() == [[99, 0, 0], [97, 32, 98]] and arrays["y"].tolist() == [1, 0]
    batch = Collate(source, lambda c: (c["ids"].sum(axis=1), c["y"] + c["ids_lengths"]))
    assert batch.positional and [column.name for column in batch.columns] == ["0", "1"]
    assert batch.finish(batch.rows(np.array([1, 0])), 0)["1"].tolist() == [2, 3]


def test_a_source_by_position_is_transformed_by_position():
    source = Transform((np.arange(4), np.arange(4)), lambda record: (record[0] * 2, record[1]))
    assert source.positional and source.rows(np.array([3]))["0"].tolist() == [6]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Take(TEN, 0), "Take: count is 0"),
        (lambda: Take(Repeat(TEN, 2), 3), "take first"),
        (lambda: Repeat(TEN, True), "Repeat: times is True"),
        (lambda: Concat(), "has no sources"),
        (lambda: Concat(TEN, {"z": [1]}), r"source 1 has the columns z \(int64 \[\]\), the first x"),
        (lambda: Concat(TEN, Weighted(TEN, np.ones(10))), "order of its own"),
        (lambda: Mix(TEN), "takes pairs"),
        (lambda: Mix((TEN, 0.0)), "must be numbers > 0"),
        (lambda: Mix((TEN, 1), (TWENTY, 1e-5)), "less than a thousandth"),
        (lambda: Weighted(TEN, [1, 2]), r"shape \(2,\) for 10 records"),
        (lambda: Weighted(TEN, [1.0] * 9 + [-1]), "record 9 is -1"),
        (lambda: Weighted(TEN, np.zeros(10)), "all of them are 0"),
        (
            lambda: Indexed(Letters()),
            r"column 'word' is of shape \(0,\) in record 0, and of \(1,\) in record 1.*pad=",
        ),
        (lambda: Indexed(Letters(), pad={"word": 0, "w": 0}), "pad names a column 'w'"),
        (lambda: Transform(TEN, lambda record: {"x": [[1], [2, 3]]}), "makes no array"),
        (lambda: Take(Collate(TEN, dict), 3), "must stand outermost"),
        (lambda: Collate(TEN, lambda columns: None), "returned nothing"),
        (lambda: open_source(iter([1])), "one after the other: records must be had by number"),
    ],
)
def test_what_cannot_be_is_named(make, words):
    with pytest.raises(DataError, match=words):
        make()


def test_a_record_of_another_type_is_named():
    source = Transform(TEN, lambda record: {"x": 1 if record["x"] < 5 else 2.5})
    with pytest.raises(DataError, match=r"column 'x' holds float32 of shape \(\) in record 7, but int64"):
        source.rows(np.array([7]))
