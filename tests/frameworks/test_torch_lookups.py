"""Tables in PyTorch programs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_models as models  # noqa: E402
from replicas import columns, computed, digest, late, opened, program, values  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from elasticflow import Embedding, Normal  # noqa: E402
from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.frameworks import CostError, Interrupted  # noqa: E402
from elasticflow.step.layout import Rule, Vector  # noqa: E402
from elasticflow.step.rows import Rows, keys_of  # noqa: E402
from elasticflow.step.schedule import Kind  # noqa: E402
from elasticflow.step.slices import Node  # noqa: E402
from elasticflow.worker.faults import blame  # noqa: E402
from elasticflow.worker.sums import Sums, add  # noqa: E402

NUM_IDS, DIM = 6, 4
KEYS = keys_of(np.arange(NUM_IDS))
TABLE = np.random.default_rng(0).normal(size=(NUM_IDS, DIM)).astype(np.float32)
"""The rows of ids 0, 1, ..."""
IDS = torch.tensor([[5, 0, 5, 2], [3, 3, 0, 5], [0, 0, 0, 1]])
WEIGHTS = torch.linspace(-1, 1, 48).reshape(3, 4, 4)


def from_table(number, keys):
    rows = np.argsort(KEYS)[np.searchsorted(KEYS[np.argsort(KEYS)], keys)]
    return TABLE[rows]


def by_id(rows: Rows) -> dict[int, list[float]]:
    ids = [KEYS.tolist().index(key) for key in rows.keys.tolist()]
    return dict(sorted(zip(ids, rows.values.tolist(), strict=True)))


def gradients(forward, weight=0.5):
    """What the table gets from a program whose cost is ``forward(table)``."""

    def cost(x, y, params):
        return forward(params["table"])

    replica = opened(program(lambda: {"table": Embedding(NUM_IDS, DIM)}, cost))
    replica.lookups.read_rows = late(from_table)
    out = computed(replica, columns(), weight=weight)
    assert replica.unused == ()
    return by_id(out.rows[0])


def expected(forward, weight=0.5):
    """The same of a parameter that is the whole table."""
    table = torch.from_numpy(TABLE.copy()).requires_grad_()
    (forward(table) * weight).backward()
    used = table.grad.to_dense().numpy() if table.grad.is_sparse else table.grad.numpy()
    return {number: used[number].tolist() for number in range(NUM_IDS) if number in IDS}


LOOKUPS = {
    "plain": (
        lambda t: (t(IDS) * WEIGHTS).sum(),
        lambda w: (nn.functional.embedding(IDS, w) * WEIGHTS).sum(),
    ),
    "sum": (
        lambda t: (t(IDS, combine="sum") * WEIGHTS[0, :3]).sum(),
        lambda w: (nn.functional.embedding_bag(IDS, w, mode="sum") * WEIGHTS[0, :3]).sum(),
    ),
    "mean": (
        lambda t: (t(IDS, combine="mean") * WEIGHTS[0, :3]).sum(),
        lambda w: (nn.functional.embedding_bag(IDS, w, mode="mean") * WEIGHTS[0, :3]).sum(),
    ),
    "offsets": (
        lambda t: (t(IDS.flatten(), combine="mean", offsets=torch.tensor([0, 1, 8, 8])) * WEIGHTS[1]).sum(),
        lambda w: (
            nn.functional.embedding_bag(IDS.flatten(), w, torch.tensor([0, 1, 8, 8]), mode="mean")
            * WEIGHTS[1]
        ).sum(),
    ),
    "sparse": (
        lambda t: (t(IDS) * WEIGHTS).sum(),
        lambda w: (nn.functional.embedding(IDS, w, sparse=True) * WEIGHTS).sum(),
    ),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_gradients_are_those_of_torch(name):
    mine, torchs = LOOKUPS[name]
    table = Embedding(NUM_IDS, DIM)
    replica = opened(program(lambda: {"table": table}, lambda x, y, params: params["table"](IDS).sum()))
    replica.lookups.read_rows = late(from_table)
    with replica.lookups.allowed():
        assert mine(table).item() == pytest.approx(torchs(torch.from_numpy(TABLE)).item(), rel=1e-6)
    found, wanted = gradients(mine), expected(torchs)
    assert found.keys() == wanted.keys()
    for number, gradient in found.items():
        np.testing.assert_allclose(gradient, wanted[number], rtol=1e-6, atol=1e-7)


def test_padding_is_that_of_torch():
    def mine(table):
        return (table(IDS, combine="mean", padding=5) * WEIGHTS[0, :3]).sum() + table(IDS, padding=5).sum()

    def torchs(weight):
        zeroed = weight * torch.tensor([1, 1, 1, 1, 1, 0])[:, None]
        bags = nn.functional.embedding_bag(IDS, weight, mode="mean", padding_idx=5)
        return (bags * WEIGHTS[0, :3]).sum() + nn.functional.embedding(IDS, zeroed).sum()

    found, wanted = gradients(mine), expected(torchs)
    assert found.keys() == wanted.keys() - {5}
    for number, gradient in found.items():
        np.testing.assert_allclose(gradient, wanted[number], rtol=1e-6)


def test_a_gradient_is_summed_in_the_order_of_occurrence():
    many = torch.from_numpy(np.random.default_rng(1).integers(0, NUM_IDS, 1000))
    weights = np.exp(np.random.default_rng(2).normal(scale=9, size=(1000, DIM))).astype(np.float32)
    found = gradients(lambda table: (table(many) * torch.from_numpy(weights)).sum(), weight=1.0)
    summed = np.zeros((NUM_IDS, DIM), np.float32)
    np.add.at(summed, many.numpy(), weights)
    assert found == dict(enumerate(summed.tolist()))


def test_lookups_of_one_table_are_summed_in_the_order_of_the_calls():
    def cost(scales):
        return lambda table: sum((table(IDS[0, :3]) * scale).sum() for scale in scales)

    for scales in permutations((1e8, 1.0, -1e8)):
        (one, two, three) = np.float32(scales)
        first = dict.fromkeys((0, 5), [one + two + three] * DIM)
        first[5] = [(one + one) + (two + two) + (three + three)] * DIM
        assert gradients(cost(scales), weight=1.0) == first


def test_a_row_that_was_looked_up_gets_a_gradient():
    assert gradients(lambda t: (t(torch.tensor([1, 2])) * torch.tensor([[1.0], [0.0]])).sum()) == {
        1: [0.5] * DIM,
        2: [0.0] * DIM,
    }


def test_tables_without_lookup_or_gradient_get_none():
    def forward(x, y, params):
        with torch.no_grad():
            params["still"](y)
        return models.net_forward(x, y, params)

    model = program(
        lambda: {**models.mlp(), "still": Embedding(None, 2), "idle": Embedding(None, 3)}, forward
    )
    replica = opened(model)
    out = computed(replica, columns())
    assert [(len(rows.keys), rows.values.shape) for rows in out.rows] == [(0, (0, 2)), (0, (0, 3))]
    assert replica.unused == ("still", "idle")


def test_tables_come_after_tensors_and_before_the_report():
    replica = opened(models.PROGRAMS["towers"])
    assert [(e.name, e.rule) for e in replica.layout.entries[-4:]] == [
        ("net.norm.num_batches_tracked", Rule.FIRST),
        ("net.users", Rule.ROWS),
        ("net.others.0", Rule.ROWS),
        ("report", Rule.REPORT),
    ]
    assert [(spec.rows, spec.dim) for spec in replica.tables] == [(None, 6), (8, 4)]
    assert replica.tables[0].initializer == Normal(std=0.5)


def test_a_table_in_two_places_is_one():
    def model():
        net = models.Towers()
        return {"table": net.users, "net": net, "again": net.users}

    assert [entry.name for entry in opened(program(model, models.net_forward)).layout.tables] == [
        "table",
        "net.others.0",
    ]


def test_two_tables_of_one_name_are_refused():
    def model():
        net = nn.Linear(3, 2)
        net.words = Embedding(6, 4)
        return {"net.words": Embedding(6, 4), "net": net}

    with pytest.raises(ProgramError, match="two embedding tables that are named 'net.words'"):
        opened(program(model, models.net_forward))


@pytest.mark.parametrize(
    "partition", [[(3, 0)], [(2, 0), (2, 1)], [(1, n) for n in range(4)], [(0, n) for n in range(8)]]
)
@pytest.mark.parametrize("name", ["towers", "tables alone"])
def test_sums_do_not_depend_on_who_adds_what(name, partition):
    replica = opened(models.PROGRAMS[name])

    def sum_of(node: Node) -> Vector:
        sums = Sums(node, Kind.TRAIN, lambda vector: None)
        for number in range(node.first, node.stop):
            onto = sums.onto(number)
            out = onto or Vector(replica.layout)
            batch = replica.prepare(columns(5 + number, seed=number))
            replica.compute(batch, number, 0.125, out, onto=onto is not None)
            sums.take(number, out)
        ((_, total),) = sums.totals
        assert total is not None
        return total

    vectors = [sum_of(Node(*place)) for place in partition]
    while len(vectors) > 1:
        for left, right in zip(vectors[::2], vectors[1::2], strict=True):
            add(left, right, Kind.TRAIN)
        vectors = vectors[::2]
    assert digest(vectors[0]) == WHOLE.setdefault(name, digest(vectors[0]))


WHOLE: dict[str, str] = {}


def test_what_is_evaluated_leaves_rows_alone():
    left, right = (Vector(opened(models.PROGRAMS["towers"]).layout) for _ in range(2))
    right.rows = [Rows(KEYS[:1], np.ones((1, 6), np.float32))] * 2
    add(left, right, Kind.EVALUATE)
    assert [len(rows.keys) for rows in left.rows] == [0, 0]


def test_who_reads_may_interrupt():
    replica = opened(models.PROGRAMS["towers"])
    replica.evaluate(batch := replica.prepare(columns()), seed=1)
    good, out = replica.lookups.read_rows, computed(replica, columns())
    before = digest(out), digest(replica.state)
    reads: Iterator[int] = iter(range(100))

    def read(number, keys):
        if next(reads) % 2:
            raise Interrupted("the version is gone")
        return good(number, keys)()

    replica.lookups.read_rows = late(read)
    for _ in range(2):
        with pytest.raises(Interrupted, match="the version is gone"):
            replica.compute(batch, 5, 0.25, out, onto=True)
        with pytest.raises(Interrupted):
            replica.evaluate(batch, 5)
        assert (digest(out), digest(replica.state)) == before
    replica.lookups.read_rows = good
    assert digest(computed(replica, columns())) == before[0]


@pytest.mark.parametrize("answer", [None, 0, "other"])
def test_who_catches_everything_cannot_go_on_without_rows(answer):
    """Neither a cost without the rows, nor an error of the program's own, comes of it."""

    def forward(x, y, params):
        try:
            rows = params["table"](y)
        except BaseException:  # noqa: B036, BLE001  (a bare except, as programs have them)
            if answer == "other":
                raise ValueError("something went wrong") from None
            if answer is None:
                return None
            rows = torch.zeros(len(y), DIM)
        return (rows.sum() + params["w"]).sum()

    def model():
        return {"table": Embedding(NUM_IDS, DIM), "w": torch.ones(3)}

    replica = opened(program(model, forward))
    good, out = replica.lookups.read_rows, computed(replica, columns())
    before = digest(out)
    told = []

    def gone(number, keys):
        raise Interrupted("the version is gone")

    replica.lookups.read_rows = late(gone)
    with pytest.raises(Interrupted, match="the version is gone"):
        replica.compute(replica.prepare(columns()), 5, 0.25, out, ready=told.append)
    with pytest.raises(Interrupted):
        replica.evaluate(replica.prepare(columns()), 5)
    assert digest(out) == before and not told
    replica.lookups.read_rows = good
    assert digest(computed(replica, columns())) == before


def test_arrays_that_are_read_only_will_do():
    replica = opened(models.PROGRAMS["towers"])
    expected, good = digest(computed(replica, columns())), replica.lookups.read_rows

    def read(number, keys):
        rows = good(number, keys)()
        return np.frombuffer(rows.tobytes(), np.float32).reshape(rows.shape)

    replica.lookups.read_rows = late(read)
    assert digest(computed(replica, columns())) == expected


def test_tables_cannot_be_called_afterwards():
    replica = opened(models.PROGRAMS["tables alone"])
    computed(replica, columns())
    with pytest.raises(ProgramError, match=r"within forward\(\) and metrics\(\) alone"):
        replica.params["table"](torch.tensor([1]))


def test_who_computes_activations_again_looks_up_again():
    def forward(x, y, params):
        def logits(ids):
            return params["table"](ids, combine="sum").tanh()

        return cross_entropy(checkpoint(logits, (4 * x).long(), use_reentrant=False), y)

    def plain(x, y, params):
        return cross_entropy(params["table"]((4 * x).long(), combine="sum").tanh(), y)

    found = [digest(computed(opened(program(models.tables_alone, f)), columns())) for f in (forward, plain)]
    assert found[0] == found[1]


def penalized(rows):
    """The cost has a part that is made of its own gradient."""
    cost = (rows**3 * WEIGHTS).sum()
    (gradient,) = torch.autograd.grad(cost, rows, create_graph=True)
    return cost + (gradient**2).sum()


def test_gradients_of_gradients_are_those_of_torch():
    found = gradients(lambda table: penalized(table(IDS)))
    wanted = expected(lambda weight: penalized(nn.functional.embedding(IDS, weight)))
    for number, gradient in found.items():
        np.testing.assert_allclose(gradient, wanted[number], rtol=1e-5)


def test_a_program_that_uses_no_table_and_no_parameter():
    replica = opened(program(models.tables_alone, lambda x, y, params: x.mean()))
    with pytest.raises(CostError, match="depends on no parameter"):
        computed(replica, columns())


def test_a_record_with_an_id_that_cannot_be_is_to_blame():
    def forward(x, y, params):
        return params["table"](y).sum()

    replica = opened(program(lambda: {"table": Embedding(3, 2)}, forward))
    records = {"x": np.zeros((4, 8), np.float32), "y": np.array([0, 3, 2, 1])}

    def of_rows(kind, rows):
        return replica.prepare({name: column[rows] for name, column in records.items()})

    with pytest.raises(ProgramError, match="there is no id 3") as raised:
        computed(replica, records)
    batches = SimpleNamespace(of_rows=of_rows)
    found = blame(raised.value, "program.py", replica, batches, np.arange(4), Vector(replica.layout))
    assert found.rows == (1,)
    assert "table 'table': there is no id 3" in found.text

    def gone(number, keys):
        raise Interrupted

    replica.lookups.read_rows = late(gone)
    with pytest.raises(Interrupted):
        blame(raised.value, "program.py", replica, batches, np.arange(4), Vector(replica.layout))


def test_metrics_may_look_up():
    def metrics(x, params):
        return {"mean": params["net"].users(torch.arange(3)).mean()}

    replica = opened(program(models.towers, models.net_forward, metrics))
    replica.lookups.read_rows = late(
        lambda number, keys: np.full((len(keys), (6, 4)[number]), 0.5, np.float32)
    )
    _, mean = replica.evaluate(replica.prepare(columns()), seed=0)
    assert mean == 0.5
    assert values(replica, replica.state, Rule.FIRST)["net.norm.num_batches_tracked"] == 0


def test_a_tensor_is_not_called_what_a_table_exports() -> None:
    def model() -> dict[str, object]:
        return {"words": Embedding(None, 2), "words.ids": torch.zeros(1)}

    with pytest.raises(ProgramError, match=r"'words.ids' is a tensor.*another name"):
        opened(program(model, models.net_forward))


def test_a_column_changed_in_place_is_looked_up_as_it_is_then():
    def forward(x, y, params):
        y %= NUM_IDS
        return params["table"](y).sum()

    replica = opened(program(lambda: {"table": Embedding(NUM_IDS, DIM)}, forward))
    replica.lookups.read_rows = late(from_table)
    for number in range(4):
        batch = {"x": columns(3)["x"], "y": np.array([NUM_IDS + number, 2 * NUM_IDS, 1])}
        assert sorted(by_id(computed(replica, batch).rows[0])) == sorted({number, 0, 1})
