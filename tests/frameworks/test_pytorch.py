from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_models as models  # noqa: E402
from replicas import (  # noqa: E402
    FreshProcess,
    added_in_place,
    bits,
    check_by_epoch,
    columns,
    computed,
    digest,
    opened,
    program,
    set_state,
    started_anew,
    told_early,
    values,
)
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.frameworks import CostError  # noqa: E402
from elasticflow.step.layout import Rule, Vector  # noqa: E402


@pytest.fixture(scope="module")
def fresh() -> Iterator[FreshProcess]:
    process = FreshProcess("torch_models")
    yield process
    process.close()


@pytest.mark.parametrize("name", models.PROGRAMS)
def test_bits_depend_on_state_batch_and_seed_alone(name, fresh):
    assert bits(models.PROGRAMS[name], noise=True) == fresh.bits[name]


@pytest.mark.parametrize("name", models.PROGRAMS)
def test_a_slice_added_onto_its_sibling_is_the_sum_of_both(name):
    onto, afterwards = added_in_place(models.PROGRAMS[name])
    assert onto == afterwards


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("name", models.PROGRAMS)
def test_gradients_are_told_of_when_they_are_final(name, onto):
    numbers = told_early(models.PROGRAMS[name], onto)
    assert numbers or name == "tables alone", "at least one of them"
    if name == "mlp":
        assert numbers == sorted(numbers, reverse=True), "last layers first"


class Inner(torch.autograd.Function):
    """Its backward pass has one of its own, as that of an ODE's adjoint has."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        with torch.enable_grad():
            return gradient * w, torch.autograd.grad((x.detach() * w * gradient).sum(), w)[0]


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x + w.sum() * 0

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


HOOKED = set()


def hooked(x, y, params):
    """Registers a hook on a parameter, once: behind those that were there before."""
    if params["w"] not in HOOKED:
        HOOKED.add(params["w"])
        params["w"].register_hook(lambda gradient: gradient * 2)
    return (x * params["w"] * params["v"]).mean()


def doubled(gradient):
    gradient.mul_(2)


def hooked_in_place(x, y, params):
    """The same, with a hook that writes to what it is given."""
    if params["w"] not in HOOKED:
        HOOKED.add(params["w"])
        params["w"].register_hook(doubled)
    return (x * params["w"] * params["v"]).mean()


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (lambda x, y, params: Inner.apply(x, params["w"]).mean(), []),
        (hooked, []),
        (hooked_in_place, []),
        (lambda x, y, params: NoGradient.apply(x * params["v"], params["w"]).mean(), [1]),
    ],
    ids=["a backward pass inside", "a hook of its own", "a hook that writes", "no gradient"],
)
def test_only_final_gradients_are_told_of(forward, told):
    def model():
        return {"w": torch.full((8,), 2.0), "v": torch.full((8,), 3.0)}

    assert told_early(program(model, forward), False) == told


@pytest.mark.parametrize("name", models.PROGRAMS)
def test_first_values_can_be_made_again(name):
    first, again = started_anew(models.PROGRAMS[name])
    assert first == again


class Rebinding(nn.Module):
    """Puts another tensor in its buffer's place at each call, in either mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        logits = self.linear(x)
        self.average = 0.9 * self.average + 0.1 * logits.mean(0).detach()
        return logits - self.average


def test_a_buffer_that_is_replaced_stays_under_control():
    replica = opened(program(lambda: {"net": Rebinding()}, models.net_forward))
    first = digest(computed(replica, columns()))
    replica.evaluate(replica.prepare(columns(seed=3)), seed=1)
    out = computed(replica, columns())
    assert digest(out) == first
    assert values(replica, out, Rule.MEAN)["net.average"].any(), "its change is sent"


def test_a_layer_that_the_model_froze_stays_in_inference_mode():
    def model():
        net = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
        net[0].eval()
        return {"net": net}

    replica = opened(program(model, models.net_forward))
    replica.evaluate(replica.prepare(columns()), seed=1)
    out = computed(replica, columns())
    assert not values(replica, out, Rule.MEAN)["net.0.running_mean"].any(), "BatchNorm's statistics rest"
    assert digest(computed(replica, columns(), seed=6)) != digest(out), "dropout does not"


def test_gradients_are_those_of_autograd():
    replica = opened(models.PROGRAMS["norm"])
    batch = columns()
    found = computed(replica, batch, seed=3, weight=0.25)

    torch.manual_seed(3)
    net = models.norm()["net"]
    parameters, state = dict(net.named_parameters()), replica.state
    with torch.no_grad():
        for name, value in values(replica, state, Rule.UPDATE).items():
            parameters[name.removeprefix("net.")].copy_(torch.from_numpy(value))
    torch.manual_seed(3)
    cost = cross_entropy(net(torch.from_numpy(batch["x"])), torch.from_numpy(batch["y"]))
    cost.backward()
    for name, gradient in values(replica, found, Rule.UPDATE).items():
        np.testing.assert_array_equal(gradient, parameters[name.removeprefix("net.")].grad.numpy() / 4)
    assert values(replica, found, Rule.REPORT)["report"].tolist() == [cost.item() / 4, 0]
    for name, change in values(replica, found, Rule.MEAN).items():
        after = net.get_buffer(name.removeprefix("net.")).numpy()
        before = values(replica, state, Rule.MEAN)[name]
        np.testing.assert_array_equal(change, (after - before) / 4)
    assert values(replica, found, Rule.FIRST) == {"net.2.num_batches_tracked": 1}


def test_the_seed_decides_what_dropout_drops():
    replica = opened(models.PROGRAMS["norm"])
    one, other, again = (computed(replica, columns(), seed).groups[0] for seed in (1, 2, 1))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(one, again)


@pytest.mark.parametrize("name", models.PROGRAMS)
def test_computing_leaves_the_state_alone(name):
    replica = opened(models.PROGRAMS[name])
    before = [group.tobytes() for group in replica.state.groups]
    computed(replica, columns())
    replica.evaluate(replica.prepare(columns()), seed=0)
    assert [group.tobytes() for group in replica.state.groups] == before


def test_a_slice_that_raises_leaves_the_state_alone():
    def forward(x, y, params):
        cost = models.net_forward(x, y, params)
        if len(x) == 3:
            raise ValueError("three")
        return cost

    replica = opened(program(models.norm, forward))
    expected = computed(replica, columns()).groups
    before = [group.tobytes() for group in replica.state.groups]
    with pytest.raises(ValueError, match="three"):
        computed(replica, columns(3))
    assert [group.tobytes() for group in replica.state.groups] == before
    for found, group in zip(computed(replica, columns()).groups, expected, strict=True):
        np.testing.assert_array_equal(found, group)


def test_a_new_version_is_used_after_refresh():
    replica, other = opened(models.PROGRAMS["norm"], seed=1), opened(models.PROGRAMS["norm"], seed=2)
    assert not np.array_equal(computed(replica, columns()).groups[0], computed(other, columns()).groups[0])
    for mine, theirs in zip(other.state.groups, replica.state.groups, strict=True):
        np.copyto(mine, theirs)
    other.refresh()
    for mine, theirs in zip(
        computed(other, columns()).groups, computed(replica, columns()).groups, strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_each_tensor_has_its_rule():
    entries = opened(models.PROGRAMS["norm"]).layout.entries
    assert {entry.name: entry.rule.value for entry in entries} == {
        "net.1.weight": "update",
        "net.1.bias": "update",
        "net.2.weight": "update",
        "net.2.bias": "update",
        "net.6.weight": "update",
        "net.6.bias": "update",
        "net.2.running_mean": "mean",
        "net.2.running_var": "mean",
        "net.2.num_batches_tracked": "first",
        "report": "report",
    }
    bare = opened(models.PROGRAMS["bare"]).layout.entries
    assert [(e.name, e.rule.value, e.dtype) for e in bare[:3]] == [
        ("weight", "update", "float32"),
        ("bias", "update", "float32"),
        ("columns", "first", "int64"),
    ]


def test_constants_do_not_change():
    replica = opened(models.PROGRAMS["attention"])
    changes = values(replica, computed(replica, columns()), Rule.MEAN)
    assert np.isneginf(values(replica, replica.state, Rule.MEAN)["net.mask"]).any()
    assert not changes["net.mask"].any()
    bare = opened(models.PROGRAMS["bare"])
    found = values(bare, computed(bare, columns()), Rule.FIRST)
    assert found["columns"].tolist() == [7, 2, 1, 0, 3, 4, 5, 6]


def test_frozen_parameters_are_no_part_of_what_travels():
    def model():
        values = models.mlp()
        values["net"][0].requires_grad_(False)
        return values

    replica = opened(program(model, models.net_forward))
    kept = replica.frozen()
    assert list(kept) == ["net.0.weight", "net.0.bias"] and not replica.layout.of_rule(Rule.MEAN)
    assert not any(entry.name in kept for entry in replica.layout.entries)
    found = computed(replica, columns())
    assert all(gradient.any() for gradient in values(replica, found, Rule.UPDATE).values())
    plain = opened(program(models.mlp, models.net_forward))
    trained = values(plain, computed(plain, columns()), Rule.UPDATE)
    assert all(
        trained[name].tobytes() == g.tobytes() for name, g in values(replica, found, Rule.UPDATE).items()
    )


def test_what_is_trained_later_gets_no_gradient_before():
    check_by_epoch(models.mlp, models.net_forward, "net.0.*")


def test_a_frozen_parameter_that_forward_changes_is_named():
    def model():
        values = models.mlp()
        values["net"][0].requires_grad_(False)
        return values

    def forward(x, y, params):
        with torch.no_grad():
            params["net"][0].bias.mul_(0.5)
        return models.net_forward(x, y, params)

    replica = opened(program(model, forward))
    with pytest.raises(ProgramError, match="changed net.0.bias, a parameter that is not trained"):
        computed(replica, columns())


def test_a_parameter_that_forward_changes_in_place_is_named():
    """The next slice on this worker would see it, and one on another would not."""

    def model():
        return {**models.mlp(), "e": nn.Embedding(4, 64, max_norm=1.0)}

    def forward(x, y, params):
        return models.net_forward(x, y, params) + params["e"](torch.arange(4)).mean()

    replica = opened(program(model, forward))
    with pytest.raises(ProgramError, match="forward.. has changed e.weight, a parameter, in place"):
        computed(replica, columns())


def test_tied_parameters_are_one():
    def model():
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        second.weight = first.weight
        scale = torch.ones(8)
        return {"net": nn.Sequential(first, second), "scale": scale, "again": scale}

    def forward(x, y, params):
        return cross_entropy(params["net"](x) * params["scale"] * params["again"], y)

    replica = opened(program(model, forward))
    names = [entry.name for entry in replica.layout.of_rule(Rule.UPDATE)]
    assert names == ["net.0.weight", "net.0.bias", "net.1.bias", "scale"]
    assert replica.also == (("net.1.weight", "net.0.weight"), ("again", "scale"))
    set_state(replica, lambda array: array * 2)
    assert all(
        gradient.any() for gradient in values(replica, computed(replica, columns()), Rule.UPDATE).values()
    )


class OfItsOwn(nn.Linear):
    """It names its parameters itself, as modules could before PyTorch had ``remove_duplicate``."""

    def named_parameters(self, prefix="", recurse=True):
        yield from super().named_parameters(prefix, recurse)


def knowing_its_parent():
    net = nn.Sequential(nn.Linear(8, 4))
    net[0].parent = net
    return net


@pytest.mark.parametrize("net", [lambda: OfItsOwn(8, 4), knowing_its_parent])
def test_modules_of_odd_makes_are_taken(net):
    replica = opened(program(lambda: {"net": net()}, models.net_forward))
    assert len(replica.layout.of_rule(Rule.UPDATE)) == 2 and not replica.also


def transposed():
    first, second = nn.Linear(8, 4), nn.Linear(4, 8)
    second.weight = nn.Parameter(first.weight.t())
    return {"net": nn.Sequential(first, second)}


def of_one_memory():
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight.data = first.weight.data
    return {"first": first, "second": second.requires_grad_(False)}


def held_as_a_buffer():
    net = nn.Linear(8, 4)
    net.register_buffer("last", net.weight.data[3])
    return {"net": net}


@pytest.mark.parametrize("model", [transposed, of_one_memory, held_as_a_buffer])
def test_tensors_that_are_tied_by_their_memory_alone_are_refused(model):
    with pytest.raises(ProgramError, match=r"weight and \S+: are two tensors in the same memory"):
        opened(program(model, models.net_forward))


def test_tensors_of_one_memory_without_a_common_element_are_taken():
    def model():
        whole, table = torch.ones(8, 8), torch.ones(4)
        net = nn.Linear(8, 4)
        net.weight.data = whole[:, :4].t()
        net.register_buffer("table", table)
        net.register_buffer("part", table[:2])  # neither is trained
        return {"net": net, "rest": whole[:, 4:], "none": whole[:0], "empty": whole[:0]}

    opened(program(model, models.net_forward))


def test_a_sparse_gradient_is_taken_as_a_dense_one():
    def model_of(sparse):
        def model():
            torch.manual_seed(1)
            return {"net": nn.EmbeddingBag(50, 4, mode="sum", sparse=sparse)}

        return model

    def forward(x, y, params):
        ids = (10 * x).abs().long().clamp(max=49)
        return cross_entropy(params["net"](ids) + params["net"](ids.flip(0)), y)

    dense, sparse = (
        values(replica, computed(replica, columns()), Rule.UPDATE)
        for replica in (opened(program(model_of(sparse), forward)) for sparse in (False, True))
    )
    np.testing.assert_allclose(sparse["net.weight"], dense["net.weight"], atol=1e-7)
    assert dense["net.weight"].any()


def test_a_reentrant_checkpoint_that_hides_parameters_is_refused():
    def forward(x, y, params):
        return cross_entropy(checkpoint(params["net"], x.requires_grad_(), use_reentrant=True), y)

    replica = opened(program(models.mlp, forward))
    with pytest.raises(CostError, match=r"net.0.weight: gets no gradient.*: say use_reentrant=False"):
        computed(replica, columns())


def test_parameters_without_gradient_are_named():
    def model():
        return {**models.mlp(), "spare": torch.ones(3)}

    replica = opened(program(model, models.net_forward))
    found = values(replica, computed(replica, columns()), Rule.UPDATE)
    assert replica.unused == ("spare",)
    assert not found["spare"].any()


def test_evaluation_is_in_inference_mode():
    replica = opened(models.PROGRAMS["norm"])
    batch = columns()
    assert replica.metrics.names == ("accuracy",)
    cost, accuracy = replica.evaluate(replica.prepare(batch), seed=1)
    assert [cost, accuracy] == replica.evaluate(replica.prepare(batch), seed=2), "no dropout"
    net = models.norm()["net"].eval()
    names = {entry.name: entry for entry in replica.layout.entries}
    with torch.no_grad():
        for name, tensor in net.state_dict(prefix="net.").items():
            tensor.copy_(torch.from_numpy(replica.state.tensors([names[name]])[0]))
        logits = net(torch.from_numpy(batch["x"]))
        y = torch.from_numpy(batch["y"])
        assert cost == cross_entropy(logits, y).item()
        assert accuracy == pytest.approx((logits.argmax(1) == y).float().mean().item())


def test_each_vector_gets_its_own_results():
    replica = opened(models.PROGRAMS["mlp"])
    expected = digest(computed(replica, columns()))
    for _ in range(20):  # a new vector may come to lie where one was that is gone
        assert digest(computed(replica, columns())) == expected


def test_incoming_arrays_may_change_afterwards():
    replica = opened(models.PROGRAMS["mlp"])
    arrays = columns()
    batch = replica.prepare(arrays)
    expected = digest(computed(replica, columns(), seed=5, weight=0.25))
    for array in arrays.values():
        array.fill(0)
    out = Vector(replica.layout)
    replica.compute(batch, 5, 0.25, out)
    assert digest(out) == expected


def half():
    return {"net": nn.Linear(8, 4).half()}


def computed_tensor():
    return {"weight": torch.ones(8, 4, requires_grad=True) * 2}


BAD_MODELS = {
    "returned a list": lambda: [1],
    "nothing that can be trained": lambda: {"rate": 0.1},
    "no parameters to train": lambda: {"columns": torch.arange(3)},
    r"a torch.optim.SGD of none of the parameters .*torch.optim.SGD\(net.parameters\(\)": lambda: {
        "net": nn.Linear(8, 4),
        "optimizer": torch.optim.SGD(nn.Linear(8, 4).parameters(), lr=0.1),
    },
    "is a list; allowed are tensors": lambda: {**models.mlp(), "layers": [nn.Linear(8, 4)]},
    "must be float32 or float64": half,
    "result of a computation": computed_tensor,
    "weight: is torch.complex64; parameters and buffers must be real": lambda: {"weight": torch.ones(3) * 1j},
    "net.weight: has no shape before its layer": lambda: {"net": nn.LazyLinear(4)},
    "weight: is torch.sparse_coo": lambda: {"weight": torch.eye(3).to_sparse()},
    "lies on meta": lambda: {"net": nn.Linear(8, 4, device="meta")},
    "names no optimizer": lambda: {**models.mlp(), "optimizer": None},
    "updates run on the parameter servers": lambda: {
        **models.mlp(),
        "optimizer": "sgd",
    },
    "model\\(\\) raised ZeroDivisionError": lambda: {"weight": torch.ones(3) * (1 / 0)},
}


@pytest.mark.parametrize("message", BAD_MODELS)
def test_bad_models(message):
    with pytest.raises(ProgramError, match=message):
        opened(program(BAD_MODELS[message], models.net_forward))


BAD_COSTS = {
    "returned a float; it must return the cost": lambda x, y, params: 1.0,
    "returned a NoneType": lambda x, y, params: None,
    r"shape \(12, 4\) and torch.float32": lambda x, y, params: params["net"](x),
    r"shape \(\) and torch.int64": lambda x, y, params: params["net"](x).argmax(),
    "depends on no parameter": lambda x, y, params: x.mean(),
}


@pytest.mark.parametrize("message", BAD_COSTS)
def test_bad_costs(message):
    replica = opened(program(models.mlp, BAD_COSTS[message]))
    with pytest.raises(CostError, match=message):
        computed(replica, columns())


def test_a_cost_that_is_not_finite_is_handed_on_with_its_gradients():
    replica = opened(program(models.norm, lambda x, y, params: models.net_forward(x, y, params) / 0))
    before = [group.tobytes() for group in replica.state.groups]
    found = computed(replica, columns())
    assert found.groups[-1][0] == np.inf and not np.isfinite(found.groups[0]).all()
    assert replica.evaluate(replica.prepare(columns()), seed=0)[0] == np.inf
    assert [group.tobytes() for group in replica.state.groups] == before


def test_what_forward_raises_comes_out_as_it_is():
    def forward(x, y, params):
        raise KeyError("nonsense")

    with pytest.raises(KeyError, match="nonsense"):
        computed(opened(program(models.mlp, forward)), columns())


def test_bad_metrics():
    with pytest.raises(ProgramError, match=r"metrics\(\) returned a Tensor"):
        opened(program(models.mlp, models.net_forward, models.net_forward))
    with pytest.raises(ProgramError, match=r"metrics\(\) raised KeyError: 'other'"):
        opened(program(models.mlp, models.net_forward, lambda x, params: {"a": params["other"]}))
    for value, what in {
        "a column of the report is called": {"cost": 1.0},
        r"'a' a torch.float32 Tensor of shape \(2,\); it must be one real number": {"a": torch.ones(2)},
        r"'a' a torch.complex64 Tensor of shape \(\)": {"a": torch.tensor(1j)},
        "'a' a str": {"a": "0.5"},
    }.items():
        with pytest.raises(ProgramError, match=value):
            opened(program(models.mlp, models.net_forward, lambda x, params, what=what: what))
    changing = program(models.mlp, models.net_forward, lambda x, params: {f"of {len(x)}": x.mean()})
    replica = opened(changing)
    with pytest.raises(ProgramError, match=r"\('of 12',\), and before that \('of 2',\)"):
        replica.evaluate(replica.prepare(columns()), seed=0)
