"""Learning rates by step and epoch: those of torch.optim.lr_scheduler."""

from __future__ import annotations

import warnings

import pytest

import elasticflow as ef
from elasticflow.errors import ProgramError
from elasticflow.training.lr import wants_length


def of_torch(name: str, steps: int, lr: float, **arguments: float) -> list[float]:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **arguments)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return rates


def test_cosine() -> None:
    rate = ef.lr.cosine(0.1, steps=50, least=0.01)
    found = [rate(step, 0) for step in range(51)]
    assert found == pytest.approx(of_torch("CosineAnnealingLR", 51, 0.1, T_max=50, eta_min=0.01))
    assert found[0] == 0.1 and rate(51, 3) == rate(10**9, 3) == 0.01


@pytest.mark.parametrize("by", ["epoch", "step"])
def test_step(by: str) -> None:
    rate = ef.lr.step(0.1, 10, 0.5, by=by)
    found = [rate(n, 7) if by == "step" else rate(123, n) for n in range(35)]
    assert found == pytest.approx(of_torch("StepLR", 35, 0.1, step_size=10, gamma=0.5))


@pytest.mark.parametrize("steps", [10, 97])
def test_one_cycle(steps: int) -> None:
    rate = ef.lr.one_cycle(0.1, steps)
    found = [rate(step, 0) for step in range(steps)]
    assert found == pytest.approx(of_torch("OneCycleLR", steps, 0.1, max_lr=0.1, total_steps=steps))
    assert rate(steps + 5, 0) == found[-1]


def test_warmup_is_even_and_goes_over_into_what_follows() -> None:
    rate = ef.lr.warmup(4, ef.lr.cosine(0.1, steps=10))
    assert [rate(step, 0) for step in range(5)] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert rate(4 + 7, 1) == ef.lr.cosine(0.1, steps=10)(7, 1)
    assert ef.lr.warmup(4, 0.1)(1000, 9) == 0.1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ef.lr.cosine(0.1, steps=0), "lr.cosine.steps=0.: steps must be a whole number > 0"),
        (lambda: ef.lr.cosine(-1, steps=3), "lr must be a number >= 0"),
        (lambda: ef.Adam(lr=ef.lr.cosine(1e-3)), "the program's: learning_rate = ef.lr.cosine"),  # type: ignore[arg-type]
        (lambda: ef.lr.step(0.1, 3, by="batch"), "'epoch' or 'step'"),
        (lambda: ef.lr.warmup(3, None), "a number >= 0, or a function"),
        (lambda: ef.lr.one_cycle(0.1, 10, rising=2), "in \\[0, 1\\]"),
    ],
)
def test_what_cannot_be_is_refused(make, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        make()


def test_the_whole_run() -> None:
    """Without a number of their own they go by the run's, which is their third argument."""
    for helper in (ef.lr.cosine, ef.lr.one_cycle):
        assert wants_length(helper(0.1)) and not wants_length(helper(0.1, 50))
        assert [helper(0.1)(step, 0, 50) for step in range(60)] == [
            helper(0.1, 50)(step, 0) for step in range(60)
        ]


def test_a_warm_up_is_part_of_the_run() -> None:
    whole, given = ef.lr.warmup(4, ef.lr.cosine(0.1)), ef.lr.warmup(4, ef.lr.cosine(0.1, 46))
    assert wants_length(whole) and not wants_length(given)
    assert [whole(step, 0, 50) for step in range(60)] == [given(step, 0) for step in range(60)]
    assert whole(49, 0, 50) < 1e-3 and whole(50, 0, 50) == 0
    assert whole(3, 0, 2) > 0, "a run that ends in the warm-up"


def test_on_plateau_is_told_of_what_it_goes_by() -> None:
    whole = ef.lr.on_plateau(ef.lr.cosine(0.1), "cost", patience=1, mode="min")
    assert wants_length(whole) and whole(25, 0, 50) == pytest.approx(0.05)
    assert not wants_length(ef.lr.on_plateau(0.1, "cost", patience=1, mode="min"))


def test_who_wants_to_know_the_length() -> None:
    assert wants_length(lambda step, epoch, steps: 0.1)
    assert not wants_length(lambda step, epoch: 0.1)
    assert not wants_length(lambda step, epoch, steps=1000: 0.1), "it has its own"
    assert not wants_length(lambda *arguments: 0.1)
