"""Devices with a memory of their own: what they compute is what the processor does, whenever they do it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch_models as models  # noqa: E402
from replicas import bits, columns, computed, digest, opened, program  # noqa: E402

from elasticflow.errors import ProgramError  # noqa: E402
from elasticflow.frameworks import torch_sums  # noqa: E402
from elasticflow.frameworks.devices import Delayed, open_device  # noqa: E402
from elasticflow.step.layout import Rule, paged_vector  # noqa: E402
from elasticflow.step.schedule import Kind  # noqa: E402
from elasticflow.worker.sums import add  # noqa: E402

GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not GPU, reason="there is no GPU")
APART = ["delayed", pytest.param("cuda", marks=needs_gpu)]
EIGHTH = 0.125


def summed(replica, ready=None):
    """The sum of eight slices, as a worker makes it; the gradients of the last are told of."""
    vectors = []
    batches = [replica.prepare(columns(12, seed=number)) for number in range(8)]

    def compute(number, out, **how):
        replica.compute(batches[number], 100 + number, EIGHTH, out, **how)

    def join(left, right):
        replica.add(left, right) if replica.apart else add(left, right, Kind.TRAIN)

    for number in range(7):
        if number % 2:
            compute(number, vectors[-1], onto=True, deliver=False)
            if number == 3:
                join(*vectors)
                vectors.pop()
        else:
            vectors.append(paged_vector(replica.layout))
            compute(number, vectors[-1], deliver=False)
    if replica.apart:
        compute(7, vectors[-1], onto=True, ready=ready or (lambda number: None), lefts=vectors[:-1])
        return vectors[0]
    compute(7, vectors[-1], onto=True)
    for left, right in ((vectors[1], vectors[2]), (vectors[0], vectors[1])):
        join(left, right)
    return vectors[0]


@pytest.fixture
def small_buckets(monkeypatch):
    """Few parameters in each, so that a small model has several."""
    monkeypatch.setattr(torch_sums, "BUCKET_BYTES", 256)


@pytest.mark.parametrize("name", models.PROGRAMS)
def test_what_is_done_late_has_the_same_bits(name):
    assert bits(models.PROGRAMS[name], noise=True, device="delayed") == bits(models.PROGRAMS[name])


@pytest.mark.parametrize("name", models.PROGRAMS)
@pytest.mark.usefixtures("small_buckets")
def test_sums_that_stay_apart_are_those_of_the_host(name):
    host, late = opened(models.PROGRAMS[name]), opened(models.PROGRAMS[name], device="delayed")
    for _ in range(2):  # from the second time on gradients are told of
        assert digest(summed(late)) == digest(summed(host))


@needs_gpu
@pytest.mark.parametrize("name", models.PROGRAMS)
def test_a_gpu_computes_the_same_bits_again(name):
    assert bits(models.PROGRAMS[name], noise=True, device="cuda") == bits(
        models.PROGRAMS[name], device="cuda"
    )


@needs_gpu
@pytest.mark.parametrize("name", models.PROGRAMS)
@pytest.mark.usefixtures("small_buckets")
def test_a_gpu_computes_what_the_host_does_but_for_rounding(name):
    if name == "noisy" or name in ("norm", "towers"):
        pytest.skip("it draws random numbers, and a GPU draws others")
    host, there = opened(models.PROGRAMS[name]), opened(models.PROGRAMS[name], device="cuda")
    for _ in range(2):
        for mine, other in zip(summed(there).groups, summed(host).groups, strict=True):
            assert mine == pytest.approx(other, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("device", APART)
@pytest.mark.parametrize("name", ["mlp", "norm", "bare", "attention", "noisy"])
@pytest.mark.usefixtures("small_buckets")
def test_gradients_are_ready_once_they_have_come(name, device):
    """They are in the vector that is sent, summed with those to the left, at the moment when that is said."""
    replica = opened(models.PROGRAMS[name], device=device)
    plain = digest(summed(replica))
    trained, told = replica.layout.of_rule(Rule.UPDATE), {}
    first = []

    def ready(number):
        assert number not in told
        told[number] = first[0].tensors(trained)[number].tobytes()

    first = [paged_vector(replica.layout)]
    out = first[0]
    for number, to in enumerate((out, paged_vector(replica.layout))):
        replica.compute(replica.prepare(columns(12, seed=number)), 1, EIGHTH, to, deliver=False)
    replica.compute(replica.prepare(columns(12, seed=5)), 1, EIGHTH, to, onto=True, ready=ready, lefts=[out])
    assert sorted(told) == list(range(len(trained)))
    assert all(out.tensors(trained)[number].tobytes() == value for number, value in told.items())
    assert digest(summed(replica)) == plain


class _Fails(torch.autograd.Function):
    """Its backward pass raises if it is told to."""

    now = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if _Fails.now:
            raise ValueError("not today")
        return gradient


def _two_layers():
    return {"first": torch.nn.Linear(8, 64), "second": torch.nn.Linear(64, 4)}


def _fails_between(x, y, params):
    hidden = _Fails.apply(params["first"](x).relu())
    return torch.nn.functional.cross_entropy(params["second"](hidden), y)


@pytest.mark.parametrize("device", APART)
@pytest.mark.usefixtures("small_buckets")
def test_an_error_after_some_gradients_were_ready_leaves_the_sums_as_they_were(device):
    replica = opened(program(_two_layers, _fails_between), device=device)
    plain = digest(summed(replica))
    left, right = (computed(replica, columns(12, seed=number)) for number in (1, 2))
    before, told, batch = digest(left, right), [], replica.prepare(columns(12, seed=3))
    _Fails.now = True
    try:
        with pytest.raises(ValueError, match="not today"):
            replica.compute(batch, 1, EIGHTH, right, onto=True, ready=told.append, lefts=[left])
    finally:
        _Fails.now = False
    assert sorted(told) == [2, 3], "the second layer's, before the error"
    for vector in (left, right):
        replica.deliver(vector)
    assert digest(left, right) == before
    assert digest(summed(replica)) == plain


@pytest.mark.parametrize("device", APART)
@pytest.mark.usefixtures("small_buckets")
def test_nothing_leaves_any_more_once_an_error_is_out(device):
    """Whatever was raised while gradients were on their way: nobody is told of one after that."""
    replica = opened(models.PROGRAMS["mlp"], device=device)
    plain = digest(summed(replica))
    out, told = paged_vector(replica.layout), []

    def meanwhile():
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        replica.compute(replica.prepare(columns()), 1, 1.0, out, ready=told.append, meanwhile=meanwhile)
    assert len(told) == len(replica.layout.of_rule(Rule.UPDATE))
    assert digest(summed(replica)) == plain


def test_downloads_hold_nothing_until_they_are_done():
    device, target, source = Delayed(), torch.zeros(4).numpy(), torch.ones(4)
    done = []
    device.launch(lambda: source.mul_(2))
    device.download([(target, source)], lambda: done.append(target.copy()))
    assert not done and (target != target).all()
    device.wait()
    assert (done[0] == 2).all()


def test_what_goes_wrong_once_a_download_is_done_is_raised_by_who_waits():
    device = Delayed()

    def fails():
        raise OSError("the socket is gone")

    device.download([], fails)
    with pytest.raises(OSError, match="the socket is gone"):
        device.wait()
    device.wait()


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_without_a_gpu_there_is_a_sentence():
    with pytest.raises(ProgramError, match="device: cuda: PyTorch finds no GPU here"):
        open_device("cuda", 0)
    assert open_device("auto", 0).kind == "cpu"


@needs_gpu
def test_a_slice_waits_for_nothing_but_its_gradients():
    """No copy or kernel is waited for between the launch of a slice and its delivery."""
    replica = opened(models.PROGRAMS["norm"], device="cuda")
    batches = [replica.prepare(columns(12, seed=number)) for number in range(3)]
    out = paged_vector(replica.layout)
    replica.compute(batches[0], 1, EIGHTH, out)
    with pytest.warns(UserWarning, match="prototype"):
        torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[1:]:
            replica.compute(batch, 1, EIGHTH, out, onto=True, deliver=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    replica.deliver(out)


@pytest.mark.parametrize("device", APART)
@pytest.mark.parametrize("name", ["mlp", "norm"])
def test_a_version_that_comes_bit_by_bit_is_there_before_it_is_computed_with(name, device):
    """Also where parts of the next one, and then this one's again, have come in between."""
    at_once, bit_by_bit = (opened(models.PROGRAMS[name], device=device) for _ in range(2))
    batch = columns(12)
    computed(at_once, batch), computed(bit_by_bit, batch)
    values = [group * 2 for group in at_once.state.groups]
    for mine, new in zip(at_once.state.groups, values, strict=True):
        mine[...] = new
    at_once.refresh()
    for factor in (2, 3, 1):
        for number, (mine, new) in enumerate(zip(bit_by_bit.state.groups, values, strict=True)):
            for start in range(0, len(mine), 16):
                mine[start : start + 16] = new[start : start + 16] * factor
                bit_by_bit.put(number, start, start + 16)
        if factor == 2:
            bit_by_bit.refresh(was_put=True)
    bit_by_bit.refresh(was_put=True)
    assert digest(computed(bit_by_bit, batch)) == digest(computed(at_once, batch))


def makes(x, y, params):
    """Of its own, and only from some records, what has to lie where the rest does."""
    if x[0, 0] > 0:
        steps = torch.arange(8.0)
        if steps.device.type != x.device.type or (x.device.type == "cpu" and not _within_mode()):
            raise RuntimeError("Expected all tensors to be on the same device")  # as adding them does
        x = x + steps + torch.rand(())
    return models.net_forward(x, y, params)


def _within_mode():
    return torch._C._len_torch_function_stack() > 0


@pytest.mark.parametrize("device", APART)
@pytest.mark.parametrize("first", ["makes", "makes nothing"])
def test_what_a_program_makes_of_its_own_is_made_there(device, first):
    """Whether the first slice does that or not, which decides whether it is cared for from the beginning."""
    batches = {text: columns(12, seed=3) for text in ("makes", "makes nothing")}
    batches["makes"]["x"][0, 0], batches["makes nothing"]["x"][0, 0] = 1, -1
    alike, other = (opened(program(models.mlp, makes), device=device) for _ in range(2))
    computed(alike, batches["makes nothing"], seed=1)
    alike.rehearsed()
    right = {text: digest(computed(alike, batch, seed=1)) for text, batch in batches.items()}
    computed(other, batches[first], seed=1)
    other.rehearsed()
    assert other._called.making._needed == (first == "makes")
    for text in (*batches, *batches):
        assert digest(computed(other, batches[text], seed=1)) == right[text]


def test_other_errors_are_raised_once():
    calls = []

    def forward(x, y, params):
        calls.append(_within_mode())
        if len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return models.net_forward(x, y, params)

    replica = opened(program(models.mlp, forward), device="delayed")
    computed(replica, columns(12))
    replica.rehearsed()
    with pytest.raises(torch.OutOfMemoryError):
        computed(replica, columns(12))
    assert calls == [True, False]


@needs_gpu
@pytest.mark.parametrize("name", ["mlp", "norm", "bare", "attention"])
@pytest.mark.usefixtures("small_buckets")
def test_graphs_have_the_bits_of_the_program(name, capsys):
    plain, graphs = (opened(models.PROGRAMS[name], device="cuda", graphs=each) for each in (False, True))
    for _ in range(3):
        assert digest(summed(graphs)) == digest(summed(plain))
    assert graphs._graphs.replay(graphs.prepare(columns(12)), 1.0) is not None
    assert capsys.readouterr().out == ""


@needs_gpu
def test_a_program_that_draws_other_random_numbers_gets_no_graphs(capsys):
    plain, graphs = (opened(models.PROGRAMS["noisy"], device="cuda", graphs=each) for each in (False, True))
    for _ in range(3):
        assert digest(summed(graphs)) == digest(summed(plain))
    assert "it draws random numbers of Python, NumPy or the processor" in capsys.readouterr().out


@needs_gpu
def test_a_program_that_waits_for_the_gpu_gets_no_graphs(capsys):
    def forward(x, y, params):
        return models.net_forward(x, y, params) * (1 if x.sum().item() > 0 else 2)

    plain, graphs = (
        opened(program(models.mlp, forward), device="cuda", graphs=each) for each in (False, True)
    )
    for _ in range(3):
        assert digest(summed(graphs)) == digest(summed(plain))
    assert "graphs: not for this program" in capsys.readouterr().out
