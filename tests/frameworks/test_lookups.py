"""What a call of a table means, whatever the framework: ids, bags, and which rows are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from elasticflow import Embedding, hash_ids
from elasticflow.api import SGD
from elasticflow.errors import ProgramError
from elasticflow.frameworks import ahead
from elasticflow.frameworks.base import framework_of, take_optimizer
from elasticflow.frameworks.lookups import Lookup, Lookups, ReadRows, put
from elasticflow.step.layout import Entry, Layout, Rule, Vector
from elasticflow.step.rows import Rows, first_values, ids_of, keys_of, table_seed


class PlainLookups(Lookups):
    """A call of a table returns what a framework needs to answer it."""

    def answer(self, number: int, ids: Any, **named: Any) -> Lookup:
        offsets = named.pop("offsets")
        starts = None if offsets is None else np.asarray(offsets)
        return self.look_up(number, np.asarray(ids), named["combine"], starts, named["padding"])


def called(table: Embedding, *arguments: Any, **named: Any) -> Lookup:
    with PlainLookups({"users": table}, seed=1).allowed():
        found: Lookup = table(*arguments, **named)
        return found


def vectors(found: Lookup) -> list[list[int]]:
    """The ids that each vector of the answer is made of."""
    ids = ids_of(found.ids.keys)[found.ids.places]
    if found.bags is None:
        return ids[:, None].tolist()
    numbers, sizes = found.bags
    assert np.all(numbers[1:] >= numbers[:-1])
    np.testing.assert_array_equal(sizes, np.bincount(numbers, minlength=len(sizes)))
    return [ids[numbers == bag].tolist() for bag in range(len(sizes))]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_each_id_is_looked_up(dtype: type) -> None:
    found = called(Embedding(None, 4), np.array([[5, 3], [5, 0]], dtype))
    assert (vectors(found), found.shape) == ([[5], [3], [5], [0]], (2, 2, 4))
    assert len(found.ids.keys) == 3 and np.all(found.ids.keys[1:] > found.ids.keys[:-1])


def test_an_id_by_itself() -> None:
    found = called(Embedding(None, 4), 2**62)
    assert (vectors(found), found.shape) == ([[2**62]], (4,))


def test_bags_are_of_the_last_axis() -> None:
    found = called(Embedding(None, 4), [[[1, 2, 1]], [[3, 4, 5]]], combine="sum")
    assert (vectors(found), found.shape) == ([[1, 2, 1], [3, 4, 5]], (2, 1, 4))
    found = called(Embedding(None, 4), [1, 2], combine="mean")
    assert (vectors(found), found.shape) == ([[1, 2]], (4,))
    assert vectors(called(Embedding(None, 4), np.empty((2, 0), int), combine="sum")) == [[], []]


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_offsets_begin_bags(dtype: type) -> None:
    offsets: np.ndarray = np.array([0, 2, 2, 4], dtype)
    found = called(Embedding(None, 4), [5, 6, 7, 8], combine="sum", offsets=offsets)
    assert (vectors(found), found.shape) == ([[5, 6], [], [7, 8], []], (4, 4))


def test_nothing_to_look_up() -> None:
    asked: list[int] = []
    calls: list[tuple[list[int], dict[str, Any]]] = [
        ([], {}),
        ([9, 9], {"padding": 9}),
        ([], {"combine": "sum", "offsets": [0, 0]}),
    ]
    table = Embedding(5, 4)
    lookups = PlainLookups({"users": table}, seed=1)
    lookups.read_rows = lambda number, keys: asked.append(number)  # type: ignore[assignment, return-value]
    with lookups.allowed():
        for ids, named in calls:
            found = table(np.array(ids, np.int64), **named)
            assert found.values.shape == (0, 4)
    assert not asked


def test_padding_stands_for_nothing() -> None:
    """Nor need it be an id that there is."""
    table = Embedding(5, 4)
    found = called(table, [[1, -1], [-1, -1]], padding=-1)
    assert (vectors(found), found.shape) == ([[1], [], [], []], (2, 2, 4))
    found = called(table, [[1, -1], [-1, -1], [2, 3]], combine="mean", padding=-1)
    assert vectors(found) == [[1], [], [2, 3]]
    found = called(table, [9, 1, 9, 9, 2], combine="sum", offsets=[0, 2, 4], padding=9)
    assert vectors(found) == [[1], [], [2]]


BAD_CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    r"table 'users': there is no id 5; it has rows=5, so its ids are 0\.\.4": ([1, 5], {}),
    "there is no id -1": ([[1, -1]], {"combine": "sum"}),
    "there is no id 18446744073709551615": (np.array([2**64 - 1], np.uint64), {}),
    "there is no id 7": ([7, 8], {"padding": 8}),
    "table 'users': ids are float64; they must be whole numbers": ([1.0], {}),
    "ids are bool": ([True], {}),
    "ids are <U1": (["a"], {}),
    "offsets are float64": ([1, 2], {"combine": "sum", "offsets": [0.0]}),
    "over the last axis; the ids have none": (1, {"combine": "sum"}),
    r"offsets of shape \(1,\) do not fit ids of shape \(2,\)": ([1, 2], {"combine": "sum", "offsets": [1]}),
    r"offsets of shape \(3,\)": ([1, 2], {"combine": "sum", "offsets": [0, 2, 1]}),
    r"offsets of shape \(2,\)": ([1, 2], {"combine": "sum", "offsets": [0, 3]}),
    r"offsets of shape \(0,\)": ([1, 2], {"combine": "sum", "offsets": np.empty(0, int)}),
    r"ids of shape \(1, 1\)": ([[1]], {"combine": "sum", "offsets": [0]}),
    r"offsets of shape \(1, 1\)": ([1], {"combine": "sum", "offsets": [[0]]}),
}


@pytest.mark.parametrize("message", BAD_CALLS)
def test_bad_calls(message: str) -> None:
    ids, named = BAD_CALLS[message]
    with pytest.raises(ProgramError, match=message):
        called(Embedding(5, 4), ids, **named)


def test_rows_are_the_first_values_unless_others_are_to_be_had() -> None:
    one, two = Embedding(None, 4), Embedding(9, 2)
    lookups = PlainLookups({"one": one, "two": two}, seed=3)
    assert lookups.specs == (one.spec, two.spec)
    assert lookups.entries == (
        Entry("one", (0, 4), "float32", Rule.ROWS),
        Entry("two", (9, 2), "float32", Rule.ROWS),
    )
    with lookups.allowed():
        found = two([4, 1, 4])
        np.testing.assert_array_equal(
            found.values, first_values(two.spec.initializer, table_seed(3, "two"), found.ids.keys, 2)
        )
        frozen = np.ones((2, 2), np.float32)
        frozen.flags.writeable = False
        lookups.read_rows = lambda number, keys: lambda: frozen[:, ::-1] * number
        np.testing.assert_array_equal(two([4, 1, 4]).values, frozen)
    with pytest.raises(ProgramError, match="alone"):
        two([4])


def test_gradients_are_put_in_the_order_of_the_calls() -> None:
    layout = Layout([Entry("one", (0, 1), "float32", Rule.ROWS), Entry("two", (0, 1), "float32", Rule.ROWS)])

    def rows(*numbers: float) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(len(numbers), dtype=np.uint64), np.array(numbers, np.float32)[:, None]

    out = Vector(layout)
    out.rows = [Rows(*rows(7.0)), Rows(*rows(7.0))]
    put(out, [(1, *rows(1e8, 1)), (1, *rows(1)), (1, *rows(-1e8, 0, 5))], onto=False)
    assert [table.values.ravel().tolist() for table in out.rows] == [[], [0, 1, 5]]
    put(out, [(0, *rows(2)), (1, *rows(1))], onto=True)
    assert [table.values.ravel().tolist() for table in out.rows] == [[2], [1, 1, 5]]


class Framework(ModuleType):
    """All that it has are classes of which nothing is an instance."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (), {}) if name[0].isupper() else self


def test_tables_alone_are_of_the_framework_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"table": Embedding(None, 4)}
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ProgramError, match="which tell no framework"):
        framework_of(values, print)
    monkeypatch.setitem(sys.modules, "torch", Framework("torch"))
    assert framework_of(values, print) == "torch"
    monkeypatch.setitem(sys.modules, "tensorflow", Framework("tensorflow"))
    with pytest.raises(ProgramError, match="which tell no framework"):
        framework_of(values, print)
    functional = ModuleType("torch.nn.functional")
    assert framework_of(values, _forward(functional=functional, ef=sys.modules["elasticflow"])) == "torch"
    assert framework_of(values, _forward(tf=sys.modules["tensorflow"], hash_ids=hash_ids)) == "tensorflow"


def _forward(**uses: object) -> Any:
    """A function of a module in which there is this."""
    exec("def forward(): pass", uses)
    return uses["forward"]


def test_the_optimizer_of_a_table_is_not_that_of_the_model() -> None:
    with pytest.raises(ProgramError, match="names no optimizer"):
        take_optimizer({"table": Embedding(None, 4, optimizer=SGD(lr=0.1))})


def test_keys_are_asked_for_once() -> None:
    asked: list[np.ndarray] = []
    table = Embedding(None, 2)
    lookups = PlainLookups({"users": table}, seed=1)

    def read(number: int, keys: np.ndarray) -> Callable[[], np.ndarray]:
        asked.append(keys)
        return lambda: np.zeros((len(keys), 2), np.float32)

    lookups.read_rows = read
    with lookups.allowed():
        table([[3, 3], [1, 3]])
    (keys,) = asked
    assert keys.tolist() == sorted(keys_of(np.array([1, 3])).tolist())


class Slices:
    """A program that looks up in a slice what it is given, and what has been asked for and read by now."""

    def __init__(self) -> None:
        self.one, self.two = Embedding(None, 2), Embedding(10, 2)
        self.lookups = PlainLookups({"one": self.one, "two": self.two}, seed=1)
        self.said: list[str] = []
        self.guesses = self.lookups.ahead._training.guesses
        self.lookups.read_rows = self._reads("", self.lookups.read_rows)
        self.lookups.read_next = self._reads("next ", self.lookups.read_next)

    def _reads(self, which: str, first: ReadRows) -> ReadRows:
        def read(number: int, keys: np.ndarray) -> Callable[[], np.ndarray]:
            self.said.append(f"ask {which}{number}")
            rows = first(number, keys)

            def wait() -> np.ndarray:
                self.said.append(f"read {which}{number}")
                return rows()

            return wait

        return read

    def slice(
        self, columns: dict[str, np.ndarray], forward: Callable[[], object], *, training: bool = True
    ) -> list[str]:
        """What is asked for and read in it."""
        self.said.clear()
        with self.lookups.allowed(columns, training=training):
            forward()
        return list(self.said)


def test_columns_that_are_looked_up_are_asked_for_ahead() -> None:
    """All at once, before the first is needed; and the rows are those that would have been read."""
    slices, random = Slices(), np.random.default_rng(0)
    found: list[Lookup] = []

    def forward() -> None:
        found[:] = [slices.one(batch["a"]), slices.two(batch["b"], combine="sum", padding=0)]

    for number in range(5):
        batch = {"a": random.integers(0, 9, 6), "b": random.integers(0, 9, (4, 3)), "y": np.ones(6)}
        said = slices.slice(batch, forward)
        in_turn = ["ask 0", "read 0", "ask 1", "read 1"]
        assert said == (["ask 0", "ask 1", "read 0", "read 1"] if number else in_turn)
        again = [
            called(Embedding(None, 2), batch["a"]),
            called(Embedding(10, 2), batch["b"], combine="sum", padding=0),
        ]
        assert [vectors(each) for each in found] == [vectors(each) for each in again]


def test_what_is_looked_up_otherwise_is_asked_for_when_it_is_needed() -> None:
    slices, batch = Slices(), {"a": np.arange(4)}
    for _ in range(5):
        assert slices.slice(batch, lambda: slices.one(batch["a"] + 1)) == ["ask 0", "read 0"]


def test_a_guess_that_proves_wrong_is_not_made_again() -> None:
    slices, batch = Slices(), {"a": np.array([1, 2, 3])}
    slices.slice(batch, lambda: slices.one(batch["a"]))
    assert slices.slice(batch, lambda: slices.one([7])) == ["ask 0", "ask 0", "read 0"]
    for _ in range(4):
        assert slices.slice(batch, lambda: slices.one([7])) == ["ask 0", "read 0"]


def test_a_column_that_is_no_id_is_complained_of_where_it_is_looked_up() -> None:
    slices, batch = Slices(), {"b": np.array([1, 2, 3])}
    slices.slice(batch, lambda: slices.two(batch["b"]))
    batch["b"][1] = 10
    with pytest.raises(ProgramError, match="there is no id 10"):
        slices.slice(batch, lambda: slices.two(batch["b"]))
    assert not slices.said


def test_a_column_that_the_program_changes_is_not_what_was_asked_for() -> None:
    slices = Slices()
    for _ in range(4):
        batch = {"a": np.array([11, 12, 13])}
        found: list[Lookup] = []

        def forward(batch: dict[str, np.ndarray] = batch, found: list[Lookup] = found) -> None:
            batch["a"] -= 10
            found.append(slices.one(batch["a"]))

        slices.slice(batch, forward)
        assert vectors(found[0]) == [[1], [2], [3]]
        assert found[0].ids.keys.tolist() == sorted(keys_of(np.arange(1, 4)).tolist())


def test_what_is_looked_up_in_training_alone_is_asked_for_there_alone() -> None:
    slices, batch = Slices(), {"a": np.array([1, 2])}
    for _ in range(3):
        for _ in range(4):
            assert slices.slice(batch, lambda: None, training=False) == []
        slices.slice(batch, lambda: slices.one(batch["a"]))
    assert slices.slice(batch, lambda: (slices.said.append("forward"), slices.one(batch["a"]))) == [
        "ask 0",
        "forward",
        "read 0",
    ]


def test_of_columns_that_are_alike_the_right_one_is_found() -> None:
    slices = Slices()
    same = np.zeros(3, np.int64)
    slices.slice({"a": same, "b": same}, lambda: slices.one(same))
    for number in range(3):
        batch = {"a": np.arange(3) + number, "b": np.arange(3) + number + 1}
        wrong = ["ask 0"] if number == 0 else []
        assert slices.slice(batch, partial(slices.one, batch["b"])) == [*wrong, "ask 0", "read 0"]


def test_columns_that_are_alike_for_a_while_hide_nothing() -> None:
    slices = Slices()
    for number in range(8):
        batch = {"a": np.zeros(3, np.int64), "b": np.zeros(3, np.int64) + (number if number > 4 else 0)}
        said = slices.slice(batch, partial(slices.one, batch["b"]))
    assert said == ["ask 0", "read 0"] and [guess.column for guess in slices.guesses] == ["b"]


def test_a_column_that_is_of_another_type_at_times() -> None:
    """In the data for evaluation, say; forward() makes whole numbers of it."""
    slices = Slices()
    for column in (np.array([1, 2]), np.array([1.0, 2.0]), np.array([1, 2])):
        whole = column.astype(np.int64)
        slices.slice({"a": column}, partial(slices.one, whole))


def test_a_slice_that_fails_leaves_nothing_to_the_next() -> None:
    slices, batch = Slices(), {"a": np.array([1, 2]), "b": np.array([1, 2])}
    good = slices.lookups.read_rows

    def forward() -> None:
        slices.one(batch["a"])
        slices.two(batch["b"] + 1)

    def broken(number: int, keys: np.ndarray) -> Callable[[], np.ndarray]:
        raise OSError("no way")

    slices.slice(batch, forward)
    for _ in range(2):
        slices.lookups.read_rows = broken
        with pytest.raises(OSError, match="no way"):
            slices.slice(batch, forward)
        slices.lookups.read_rows = good
        slices.slice(batch, forward)
    with pytest.raises(ValueError, match="bad"):
        slices.slice(batch, partial(_raises, ValueError("bad")))
    assert slices.slice(batch, forward) == ["ask 0", "read 0", "ask 1", "read 1"]


def _raises(error: Exception) -> None:
    raise error


def test_the_same_ids_twice_are_read_twice() -> None:
    slices, batch = Slices(), {"a": np.array([1, 2, 3])}
    for expected in (["ask 0", "read 0"] * 2, ["ask 0", "read 0"] * 2):
        assert slices.slice(batch, lambda: (slices.one(batch["a"]), slices.one(batch["a"]))) == expected


class Versions(Slices):
    """One whose first slice, of version 3, has looked up the column ``a`` in table ``one``."""

    def __init__(self) -> None:
        super().__init__()
        self.lookups.ahead.enter(3)
        self.looked_up([9, 9])
        self.said.clear()

    def looked_up(self, ids: list[int]) -> list[str]:
        batch = {"a": np.array(ids)}
        return self.slice(batch, lambda: self.one(batch["a"]))

    def ask_early(self, ids: list[int]) -> None:
        self.lookups.ahead.ask_early({"a": np.array(ids)})


def test_rows_of_the_next_version_are_asked_for_early_and_once() -> None:
    slices = Versions()
    for _ in range(2):
        slices.ask_early([1, 2])
    assert slices.said == ["ask next 0"]
    slices.lookups.ahead.enter(4)
    assert slices.looked_up([1, 2]) == ["read next 0"]
    assert slices.looked_up([1, 2]) == ["ask 0", "read 0"]
    slices.said.clear()
    slices.ask_early([3])
    assert slices.said == ["ask next 0"]


def test_rows_of_the_next_version_are_not_for_this_one() -> None:
    slices = Versions()
    slices.ask_early([1, 2])
    assert slices.looked_up([1, 2]) == ["ask 0", "read 0"]
    slices.lookups.ahead.enter(4)
    assert slices.looked_up([1, 2]) == ["read next 0"]


@pytest.mark.parametrize("versions", [(5,), (-1, 4), (3, -1, 3, 4)])
def test_rows_asked_for_early_are_of_no_other_version_or_servers(versions: tuple[int, ...]) -> None:
    slices = Versions()
    slices.ask_early([1, 2])
    for version in versions:
        slices.lookups.ahead.enter(version)
    assert slices.looked_up([1, 2]) == ["ask 0", "read 0"]


def test_another_slice_than_was_thought_asks_for_itself() -> None:
    slices = Versions()
    slices.ask_early([1, 2])
    slices.lookups.ahead.enter(4)
    assert slices.looked_up([2, 1]) == ["ask 0", "read 0"]
    assert slices.looked_up([1, 2]) == ["read next 0"], "it comes later"


def test_not_more_is_asked_for_early_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "EARLY_MOST", 3)
    tables = {f"t{number}": Embedding(None, 2) for number in range(5)}
    lookups = PlainLookups(tables, seed=1)
    said: list[int] = []
    first = lookups.read_next
    lookups.read_next = lambda number, keys: (said.append(number), first(number, keys))[1]
    batch = {name: np.arange(3) + number for number, name in enumerate(tables)}
    lookups.ahead.enter(0)
    for version in (1, 2):
        with lookups.allowed(batch):
            for name, table in tables.items():
                table(batch[name])
        said.clear()
        lookups.ahead.ask_early(batch)
        assert said == [0, 1, 2]
        lookups.ahead.enter(version)


def test_nothing_is_asked_for_early_where_there_is_no_version() -> None:
    slices = Versions()
    slices.lookups.ahead.enter(-1)
    slices.ask_early([1, 2])
    assert not slices.said
