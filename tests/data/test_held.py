"""What is known of records in memory: a hash that each of them changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

import elasticflow as ef
from elasticflow.data import held
from elasticflow.data.held import held_hash
from elasticflow.data.opening import open_source

X = np.arange(600, dtype=np.float32).reshape(100, 6)
Y = np.arange(100) % 3


def hashed(spec: Any) -> str:
    train, test, _ = open_source(spec)
    return held_hash([train] if test is None else [train, test])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes are many pieces."""
    monkeypatch.setattr(held, "PIECE_BYTES", 64)


def test_any_record_changes_it(small: None) -> None:
    right = hashed({"x": X, "y": Y})
    assert right and right == hashed({"x": X.copy(), "y": Y.copy()})
    for row in range(100):
        other = Y.copy()
        other[row] += 1
        assert hashed({"x": X, "y": other}) != right


@pytest.mark.parametrize(
    "other",
    [
        {"x": X, "z": Y},
        {"x": X.astype(np.float64), "y": Y},
        {"x": X.reshape(100, 3, 2), "y": Y},
        {"x": X[::-1], "y": Y},
        {"train": {"x": X, "y": Y}, "test": {"x": X[:3], "y": Y[:3]}},
        ef.data.Weighted({"x": X, "y": Y}, np.ones(100)),
    ],
)
def test_what_else_changes_it(other: Any) -> None:
    assert hashed(other) != hashed({"x": X, "y": Y})


def test_how_they_lie_does_not(small: None) -> None:
    wide = np.zeros((100, 9), np.float32)
    wide[:, 2:8] = X
    assert hashed({"x": wide[:, 2:8]}) == hashed({"x": X}) == hashed({"x": np.asfortranarray(X)})


def test_weights_that_change() -> None:
    weights = np.ones(100)
    right = hashed(ef.data.Weighted({"x": X}, weights))
    weights[77] = 2
    assert hashed(ef.data.Weighted({"x": X}, weights)) != right


def test_texts_and_records_of_several_lengths_that_change() -> None:
    texts = ["one", "two", "three"]
    right = hashed({"text": np.array(texts), "tags": ef.data.Ragged.of([[1, 2], [3], [4, 5, 6]])})
    others = {"text": np.array(texts), "tags": ef.data.Ragged.of([[1], [2, 3], [4, 5, 6]])}
    assert hashed(others) != right
    others = {"text": np.array(["one", "too", "three"]), "tags": ef.data.Ragged.of([[1, 2], [3], [4, 5, 6]])}
    assert hashed(others) != right


@pytest.mark.parametrize(
    "around",
    [
        lambda source: ef.data.Take(source, 50),
        lambda source: ef.data.Repeat(source, 2),
        lambda source: ef.data.Concat(source, {"x": X}),
        lambda source: ef.data.Mix((source, 0.5), ({"x": X}, 0.5)),
        lambda source: ef.data.Transform(source, lambda record: {"x": record["x"] + 1}),
    ],
)
def test_of_sources_made_of_others(around: Any) -> None:
    other = X.copy()
    other[3, 3] = 0
    assert hashed(around({"x": X})) != hashed(around({"x": other})) != ""


def test_files_are_known_otherwise(tmp_path: Path) -> None:
    np.savez(tmp_path / "records.npz", x=X)
    assert hashed(ef.data.NPZ(tmp_path / "records.npz")) == ""


def test_columns_without_values() -> None:
    assert hashed({"x": X, "none": np.zeros((100, 0))}) != hashed({"x": X})


def test_of_what_is_mapped_a_part_is_read(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From all over it, the end included."""
    monkeypatch.setattr(held, "MOST_MAPPED_BYTES", 256)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole, part = hashed({"x": X}), hashed({"x": mapped})
    assert whole != part == hashed({"x": mapped[:]})
    other = X.copy()
    other[-1, -1] = 0
    np.save(tmp_path / "x.npy", other)
    assert hashed({"x": np.load(tmp_path / "x.npy", mmap_mode="r")}) != part


def of(y: list[int]) -> TensorDataset:
    return TensorDataset(torch.tensor(X), torch.tensor(y))


@pytest.mark.parametrize(
    "around",
    [
        lambda each: each,
        lambda each: Subset(each, [3, 5]),
        lambda each: ConcatDataset([each]),
        lambda each: StackDataset(*each.tensors),
        lambda each: StackDataset(x=each.tensors[0], y=each.tensors[1]),
    ],
)
def test_of_what_torchs_datasets_keep_each_record_counts(around: Any) -> None:
    y = list(range(100))
    right = hashed(around(of(y)))
    assert right and right == hashed(around(of(y)))
    y[57] = 0
    assert hashed(around(of(y))) != right


def test_which_records_a_part_has_counts() -> None:
    dataset = of([0] * 100)
    assert hashed(Subset(dataset, [3, 5])) != hashed(Subset(dataset, [3, 6]))


class Whatever:
    """A dataset that keeps a cache, which is not filled yet, and is asked for no record but the first two."""

    def __init__(self) -> None:
        self.cache, self.inner = np.empty((9, 1000)), self

    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> Any:
        assert number < 2
        return {"x": np.float32(number**2)}


def test_what_other_datasets_keep_nobody_knows() -> None:
    assert hashed(Whatever()) == "" and hashed(ConcatDataset([Whatever()])) == ""
    assert hashed(Subset(Whatever(), [0, 1])) != ""
