from elasticflow.scheduler.curves import curve
from elasticflow.scheduler.ladder import ladder
from elasticflow.scheduler.overheads import Overheads
from elasticflow.scheduler.spare import Candidate, distribute
from tests.scheduler.cases import DIMINISHING, FREE, STEEP


def candidate(name, of=DIMINISHING, rung=1, has=1, overheads=FREE, **more):
    settings = {"value": 1.0, "remaining": 1000.0, "slack_s": 1e9, "keep_s": 600.0, "highest": 3}
    return Candidate(name, ladder(of, 8, overheads), rung, has, **{**settings, **more})


def test_the_next_gpu_goes_where_it_brings_most():
    given = distribute([candidate("flat"), candidate("steep", STEEP, highest=4)], 3)
    assert given == {"steep": 3}


def test_returns_diminish_so_both_get_some():
    assert distribute([candidate("a"), candidate("b")], 2) == {"a": 2, "b": 2}


def test_who_would_rather_have_more_than_there_is_gets_what_there_is():
    """Measured, two may be more than twice as fast as one: a share of two is best, and one is left."""
    superlinear = curve({1: 2.5, 2: 5.6})
    assert distribute([candidate("a", superlinear, rung=0, has=2, highest=2)], 1) == {"a": 1}
    jobs = [candidate("a", superlinear, rung=0, has=0, highest=2), candidate("b", rung=0, has=0)]
    assert distribute(jobs, 3) == {"a": 2, "b": 1}


def test_saving_a_dear_plan_is_worth_more():
    assert distribute([candidate("cheap"), candidate("dear", value=2.0)], 1) == {"dear": 2}


def test_no_change_for_less_than_it_costs():
    costly = Overheads(base_s=300.0, step_s=0.0)
    assert distribute([candidate("a", overheads=costly)], 1) == {}
    assert distribute([candidate("a", overheads=costly, has=2)], 1) == {"a": 2}
    assert distribute([candidate("a", overheads=costly, keep_s=2000.0, remaining=1e6)], 1) == {"a": 2}


def test_no_change_that_the_deadline_does_not_allow():
    assert distribute([candidate("a", overheads=Overheads(), slack_s=5.0)], 1) == {}


def test_no_higher_than_the_cost_cap_allows():
    assert distribute([candidate("a", highest=1)], 3) == {}


def test_weights_share_what_is_left_over():
    jobs = [candidate(f"a{n}", STEEP, highest=1, rung=0, has=0, user="ada", value=9.0) for n in range(6)]
    jobs += [candidate(f"b{n}", STEEP, highest=1, rung=0, has=0, user="bob") for n in range(6)]
    given = distribute(jobs, 6, {"ada": 1.0, "bob": 2.0})
    assert sum(name.startswith("b") for name in given) == 4
