"""What ``on_epoch`` has said is part of what evaluations have decided, and is carried on from anywhere."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elasticflow as ef
from elasticflow.errors import ProgramError
from elasticflow.master.standings import Standings
from elasticflow.step.schedule import Schedule
from elasticflow.training.advice import MOST_CHARS, Advice, Tuning
from elasticflow.training.standing import Plateau, WatchRules, WatchStanding

RULES = WatchRules(consults="one")
ADVICE = st.one_of(
    st.just(Advice()),
    st.builds(ef.stop, st.sampled_from(["enough", "why not"])),
    st.builds(lambda lr: ef.go_on(lr=lr), st.floats(0, 1)),
    st.builds(lambda scale: ef.go_on(lr_scale=scale), st.floats(0, 1e30)),
    st.builds(lambda n: ef.go_on(memory={"n": n}), st.integers(-9, 9)),
    st.just(Advice(error="it raised")),
)
SCHEDULE = Schedule(num_records=40, num_test=4, batch_size=4, num_slices=4, epochs=3)
"""Ten steps an epoch, eleven ticks."""


def told(standing: WatchStanding, tick: int, value: float, advice: Advice) -> WatchStanding:
    return standing.after(tick, tick, {"cost": value}).given(advice)


@given(st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True), ADVICE)), st.integers(0, 30))
def test_it_goes_on_from_anywhere(said: list[tuple[float, Advice]], number: int) -> None:
    """As a manifest, a journal and a message have it: with the same bits, whatever was measured."""
    standings = [WatchStanding(rules=RULES)]
    for tick, (value, advice) in enumerate(said):
        standings.append(told(standings[-1], tick, value, advice))
    middle = standings[min(number, len(said))]
    for data in (msgspec.json.encode(middle), msgspec.msgpack.encode(middle)):
        decode = msgspec.json.decode if data[:1] == b"{" else msgspec.msgpack.decode
        again = decode(data, type=WatchStanding)
        for tick, (value, advice) in enumerate(said[number:], number):
            again = told(again, tick, value, advice)
        assert again == standings[-1]


def test_what_is_said_of_the_learning_rate() -> None:
    standing, tunings = WatchStanding(rules=RULES), []
    for advice in (
        ef.go_on(lr_scale=0.5),
        Advice(),
        ef.go_on(lr_scale=0.5),
        ef.go_on(lr=3),
        ef.go_on(lr_scale=2),
    ):
        standing = told(standing, standing.tick + 1, 1.0, advice)
        tunings.append(standing.tuning)
    assert tunings == [Tuning(1, 0.5), Tuning(1, 0.5), Tuning(1, 0.25), Tuning(1, 1, 3.0), Tuning(1, 2, 3.0)]
    for _ in range(20):
        standing = told(standing, standing.tick + 1, 1.0, ef.go_on(lr_scale=1e30))
    assert math.isfinite(standing.factor), "a manifest has no word for what is infinite"


def test_it_is_asked_once_of_each_evaluation_and_remembers() -> None:
    standing = WatchStanding(rules=RULES).after(10, 10, {"cost": 1.5, "auc": math.nan})
    assert standing.asks and not standing.stops(11)
    question = standing.question
    assert (question.tick, question.memory) == (10, "")
    assert json.loads(question.values)["cost"] == 1.5 and math.isnan(json.loads(question.values)["auc"])
    standing = standing.given(ef.go_on(memory={"best": 0.1}))
    assert not standing.asks and json.loads(standing.memory) == {"best": 0.1}
    standing = told(standing, 21, 1.0, Advice())
    assert json.loads(standing.memory) == {"best": 0.1}, "as it was"


def test_who_stops_says_why() -> None:
    standing = told(WatchStanding(rules=RULES), 10, 1.0, ef.stop("good\nenough"))
    assert standing.stops(11) and not standing.stops(12)
    assert standing.why_stopped() == "on_epoch(): good enough"


def test_together_with_other_rules() -> None:
    watch = ef.early_stopping("cost", 1, "min")
    plateau = Plateau(metric="cost", mode="min", patience=1, factor=0.5, least=0.0)
    rules = WatchRules(stopping=watch, plateau=plateau, consults="one")
    standing = told(WatchStanding(rules=rules), 10, 1.0, ef.go_on(lr_scale=0.1))
    standing = told(standing, 21, 2.0, ef.stop("enough"))
    assert standing.tuning == Tuning(0.5, 0.1)
    assert standing.stops(22) and "has gained nothing" in standing.why_stopped()


def test_a_resumed_run() -> None:
    """The same program ends where it has ended; another is asked once more, as one that has raised is."""
    other = WatchRules(consults="two")
    ended = told(WatchStanding(rules=RULES), 10, 1.0, ef.stop("enough"))
    assert ended.by(RULES) == ended
    again = ended.by(other)
    assert again.asks and not again.stops(11) and again.values == ended.values
    raised = told(WatchStanding(rules=RULES), 10, 1.0, Advice(error="it raised"))
    assert raised.stops(11)
    for rules in (RULES, other):
        assert raised.by(rules).asks and not raised.by(rules).stops(11)
    slow = told(WatchStanding(rules=RULES), 10, 1.0, ef.go_on(lr_scale=0.5))
    assert not slow.by(other).asks and slow.by(other).factor == 0.5
    assert slow.by(WatchRules()).tuning == Tuning(), "without on_epoch all is as the program has it"


def test_what_the_master_has_to_know() -> None:
    raised = told(WatchStanding(rules=RULES), 10, 1.0, Advice(error="it raised"))
    standings = Standings([raised])
    standings.go_by(RULES, SCHEDULE)
    standings.begin(11)
    assert standings.know(11) and not standings.stop(11)
    pending = standings.at(11)
    assert pending and pending.asks
    standings.learn(pending.given(ef.stop("enough")))
    assert standings.stop(11)


@pytest.mark.parametrize("lr", [math.nan, math.inf, -1.0])
def test_what_nobody_makes_is_refused(lr: float) -> None:
    for fields in ({"lr": lr}, {"lr_scale": lr}):
        with pytest.raises(msgspec.ValidationError, match="learning rates"):
            msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Advice)
    with pytest.raises(ValueError, match="more is said"):
        Advice(stop="x" * (MOST_CHARS + 1))


def test_without_evaluations_it_is_refused() -> None:
    assert 'data() returns no "test" source' in RULES.problem((), tests=False)
    assert not RULES.problem((), tests=True) and RULES.cuts and RULES.any


@pytest.mark.parametrize("why", ["", "  ", None, 3])
def test_a_reason_is_given(why: object) -> None:
    with pytest.raises(ProgramError, match="why must be a text"):
        ef.stop(why)  # type: ignore[arg-type]
