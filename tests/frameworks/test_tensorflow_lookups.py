"""Tables in TensorFlow programs, in graphs and eagerly."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import tensorflow_models as models  # noqa: E402
from replicas import columns, computed, digest, late, opened, program  # noqa: E402

from elasticflow import Embedding, Normal  # noqa: E402
from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.frameworks import CostError, Interrupted, tensorflow  # noqa: E402
from elasticflow.step.layout import Rule  # noqa: E402
from elasticflow.step.rows import Rows, keys_of  # noqa: E402

NUM_IDS, DIM = 6, 4
KEYS = keys_of(np.arange(NUM_IDS))
TABLE = np.random.default_rng(0).normal(size=(NUM_IDS, DIM)).astype(np.float32)
"""The rows of ids 0, 1, ..."""
IDS = np.array([[5, 0, 5, 2], [3, 3, 0, 5], [0, 0, 0, 1]])
RAGGED = [[5, 0, 5], [], [3, 3, 0, 5, 1], [2]]
WEIGHTS = np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 4, 4)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    tensorflow.set_up(seed=0, threads=1)


def from_table(number, keys):
    return TABLE[[KEYS.tolist().index(key) for key in keys]]


def by_id(rows: Rows) -> dict[int, list[float]]:
    ids = [KEYS.tolist().index(key) for key in rows.keys.tolist()]
    return dict(sorted(zip(ids, rows.values.tolist(), strict=True)))


def table_of(forward, eager, rows=NUM_IDS):
    """A replica whose cost is ``forward(table)``."""

    def cost(x, y, params):
        if eager:
            x.numpy()
        return forward(params["table"])

    replica = opened(program(lambda: {"table": Embedding(rows, DIM)}, cost))
    replica.lookups.read_rows = late(from_table)
    return replica


def gradients(forward, eager, weight=0.5):
    replica = table_of(forward, eager)
    found = by_id(computed(replica, columns(), weight=weight).rows[0])
    assert replica.unused == ()
    return found


def expected(forward, weight=0.5):
    """The same of a variable that is the whole table."""
    table = tf.Variable(TABLE)
    with tf.GradientTape() as tape:
        cost = forward(table) * weight
    slices = tape.gradient(cost, table)
    dense = tf.convert_to_tensor(slices).numpy()
    return {number: dense[number].tolist() for number in set(slices.indices.numpy().tolist())}


def ragged():
    return tf.ragged.constant(RAGGED, dtype=tf.int64)


def bags_of(weight, reduce):
    return reduce(tf.nn.embedding_lookup(weight, ragged()), axis=1)


def mean_of_some(rows, axis):
    """That of nothing is 0."""
    return tf.math.divide_no_nan(
        tf.reduce_sum(rows, axis=axis), tf.constant([[len(bag)] for bag in RAGGED], tf.float32)
    )


LOOKUPS = {
    "plain": (lambda t: t(IDS) * WEIGHTS, lambda w: tf.nn.embedding_lookup(w, IDS) * WEIGHTS),
    "sum": (
        lambda t: t(IDS, combine="sum") * WEIGHTS[0, :3],
        lambda w: tf.reduce_sum(tf.nn.embedding_lookup(w, IDS), 1) * WEIGHTS[0, :3],
    ),
    "mean": (
        lambda t: t(IDS, combine="mean") * WEIGHTS[0, :3],
        lambda w: tf.reduce_mean(tf.nn.embedding_lookup(w, IDS), 1) * WEIGHTS[0, :3],
    ),
    "ragged sum": (
        lambda t: t(ragged(), combine="sum") * WEIGHTS[1],
        lambda w: bags_of(w, tf.reduce_sum) * WEIGHTS[1],
    ),
    "ragged mean": (
        lambda t: t(ragged(), combine="mean") * WEIGHTS[1],
        lambda w: bags_of(w, mean_of_some) * WEIGHTS[1],
    ),
    "ragged": (
        lambda t: t(ragged()).flat_values * WEIGHTS[0, 0],
        lambda w: tf.nn.embedding_lookup(w, ragged()).flat_values * WEIGHTS[0, 0],
    ),
    "offsets": (
        lambda t: t(ragged().values, combine="sum", offsets=[0, 3, 3, 8]) * WEIGHTS[1],
        lambda w: bags_of(w, tf.reduce_sum) * WEIGHTS[1],
    ),
    "bags of bags": (
        lambda t: t(tf.RaggedTensor.from_row_lengths(ragged(), [1, 3]), combine="sum").values * WEIGHTS[1],
        lambda w: bags_of(w, tf.reduce_sum) * WEIGHTS[1],
    ),
    "bags of one length": (
        lambda t: t(tf.RaggedTensor.from_row_lengths(IDS, [1, 2]), combine="sum").values * WEIGHTS[0, :3],
        lambda w: tf.reduce_sum(tf.nn.embedding_lookup(w, IDS), 1) * WEIGHTS[0, :3],
    ),
    "padding": (
        lambda t: t(np.where(IDS == 2, -1, IDS), combine="mean", padding=-1) * WEIGHTS[0, :3],
        lambda w: (
            tf.reduce_sum(tf.nn.embedding_lookup(w, IDS) * (IDS != 2).astype(np.float32)[:, :, None], 1)
            * WEIGHTS[0, :3]
            / np.array([[3.0], [4.0], [4.0]], np.float32)
        ),
    ),
}


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", LOOKUPS)
def test_gradients_are_those_of_tensorflow(name, eager):
    mine, tensorflows = (lambda t, f=f: tf.reduce_sum(f(t)) for f in LOOKUPS[name])
    replica = table_of(mine, eager)
    cost, *_ = replica.evaluate(replica.prepare(columns()), seed=1)
    assert cost == pytest.approx(float(tensorflows(tf.constant(TABLE))), rel=1e-5, abs=1e-6)
    found, wanted = gradients(mine, eager), expected(tensorflows)
    if name == "padding":
        assert wanted.pop(2) == [0.0] * DIM
    assert found.keys() == wanted.keys()
    for number, gradient in found.items():
        np.testing.assert_allclose(gradient, wanted[number], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("eager", [False, True])
def test_shapes_are_known_before_rows_are(eager):
    shapes = []

    def forward(table):
        first = table(IDS)
        shapes[:] = [first.shape, table(IDS, combine="mean").shape, table(2).shape]
        shapes.append(table([1, 2], combine="sum", offsets=[0]).shape[1:])
        return tf.reduce_sum(first)

    gradients(forward, eager)
    assert [tuple(shape) for shape in shapes] == [(3, 4, DIM), (3, DIM), (DIM,), (DIM,)]


@pytest.mark.parametrize("eager", [False, True])
def test_a_gradient_is_summed_in_the_order_of_occurrence(eager):
    many = np.random.default_rng(1).integers(0, NUM_IDS, 1000)
    weights = np.exp(np.random.default_rng(2).normal(scale=9, size=(1000, DIM))).astype(np.float32)
    found = gradients(lambda table: tf.reduce_sum(table(many) * weights), eager, weight=1.0)
    summed = np.zeros((NUM_IDS, DIM), np.float32)
    np.add.at(summed, many, weights)
    assert found == dict(enumerate(summed.tolist()))


@pytest.mark.parametrize("eager", [False, True])
def test_lookups_of_one_table_are_summed_in_the_order_of_the_calls(eager):
    def forward(table):
        return sum(tf.reduce_sum(table([2]) * scale) for scale in (1e8, 1.0, -1e8))

    assert gradients(forward, eager, weight=1.0) == {2: [0.0] * DIM}


@pytest.mark.parametrize("eager", [False, True])
def test_what_is_wrong_with_ids_comes_out_as_it_is(eager):
    def forward(x, y, params):
        if eager:
            x.numpy()
        return tf.reduce_sum(params["table"](y))

    replica = opened(program(lambda: {"table": Embedding(4, DIM)}, forward))
    expected = digest(computed(replica, columns()))
    with pytest.raises(ProgramError, match=r"^table 'table': there is no id 7; it has rows=4"):
        computed(replica, {**columns(), "y": np.full(12, 7)})
    assert digest(computed(replica, columns())) == expected


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("ids are float32", lambda t: t(tf.ones(3))),
        ("ids are object", lambda t: t(tf.constant(["a"]))),
        ("ragged ids have offsets of their own", lambda t: t(ragged(), combine="sum", offsets=[0])),
    ],
)
def test_bad_calls(message, call):
    with pytest.raises(ProgramError, match=message):
        gradients(lambda t: tf.reduce_sum(call(t)), False)


@pytest.mark.parametrize("eager", [False, True])
def test_who_reads_may_interrupt(eager):
    def forward(x, y, params):
        params["calls"].assign_add(1.0)
        if eager:
            x.numpy()
        return models.net_forward(x, y, params)

    replica = opened(
        program(lambda: {"calls": tf.Variable(0.0, trainable=False), **models.towers()}, forward)
    )
    replica.evaluate(batch := replica.prepare(columns()), seed=1)
    good, out = replica.lookups.read_rows, computed(replica, columns())

    def everything():
        variables = [variable.numpy().tobytes() for _, variable in replica._variables.pairs]
        return digest(out), digest(replica.state), variables

    before = everything()

    def gone(number, keys):
        raise Interrupted("the version is gone")

    replica.lookups.read_rows = late(lambda n, keys: gone(n, keys) if n else good(n, keys)())
    with pytest.raises(Interrupted, match="^the version is gone$"):
        replica.compute(batch, 5, 0.25, out, onto=True)
    assert everything() == before
    with pytest.raises(Interrupted, match="^the version is gone$"):
        replica.evaluate(batch, 5)
    assert everything() == before
    replica.lookups.read_rows = good
    assert digest(computed(replica, columns())) == before[0]


def test_who_catches_everything_cannot_go_on_without_rows():
    def forward(x, y, params):
        x.numpy()  # so it runs eagerly, where the program can catch what is raised
        try:
            rows = params["table"](y)
        except BaseException:  # noqa: B036, BLE001  (a bare except, as programs have them)
            rows = tf.zeros((len(y), 4))
        return tf.reduce_sum(rows) + tf.reduce_sum(params["w"])

    replica = opened(program(lambda: {"table": Embedding(6, 4), "w": tf.Variable([1.0, 2.0])}, forward))
    good, out = replica.lookups.read_rows, computed(replica, columns())
    before = digest(out)

    def gone(number, keys):
        raise Interrupted("the version is gone")

    replica.lookups.read_rows = late(gone)
    with pytest.raises(Interrupted, match="^the version is gone$"):
        replica.compute(replica.prepare(columns()), 5, 0.25, out)
    with pytest.raises(Interrupted, match="^the version is gone$"):
        replica.evaluate(replica.prepare(columns()), 5)
    assert digest(out) == before
    replica.lookups.read_rows = good
    assert digest(computed(replica, columns())) == before


def test_tables_without_lookup_or_gradient_get_none():
    def forward(x, y, params):
        return models.net_forward(x + tf.reduce_mean(tf.stop_gradient(params["still"](y))), y, params)

    replica = opened(
        program(lambda: {**models.mlp(), "still": Embedding(None, 2), "idle": Embedding(None, 3)}, forward)
    )
    out = computed(replica, columns())
    assert [(len(rows.keys), rows.values.shape) for rows in out.rows] == [(0, (0, 2)), (0, (0, 3))]
    assert replica.unused == ("still", "idle")


def test_tables_come_after_tensors_and_before_the_report():
    replica = opened(models.PROGRAMS["towers"])
    assert [(e.name, e.rule) for e in replica.layout.entries[-3:]] == [
        ("net.users", Rule.ROWS),
        ("net.others.0", Rule.ROWS),
        ("report", Rule.REPORT),
    ]
    assert [(spec.rows, spec.dim) for spec in replica.tables] == [(None, 6), (8, 4)]
    assert replica.tables[0].initializer == Normal(std=0.5)


def test_tables_cannot_be_called_afterwards():
    replica = opened(models.PROGRAMS["tables alone"])
    computed(replica, columns())
    with pytest.raises(ProgramError, match=r"within forward\(\) and metrics\(\) alone"):
        replica.params["table"](tf.constant([1]))


def test_a_program_that_uses_no_table_and_no_parameter():
    replica = opened(program(models.tables_alone, lambda x, y, params: tf.reduce_mean(x)))
    with pytest.raises(CostError, match="depends on no parameter"):
        computed(replica, columns())


@pytest.mark.parametrize("eager", [False, True])
def test_metrics_may_look_up(eager):
    def metrics(x, params):
        if eager:
            x.numpy()
        return {"mean": tf.reduce_mean(params["table"](IDS))}

    replica = opened(program(models.tables_alone, models.tables_alone_forward, metrics))
    replica.lookups.read_rows = late(lambda number, keys: np.full((len(keys), DIM), 0.5, np.float32))
    _, mean = replica.evaluate(replica.prepare(columns()), seed=0)
    assert mean == 0.5
