import pytest

from elasticflow.errors import ConfigError
from elasticflow.scheduler.curves import Curve, curve
from elasticflow.scheduler.ladder import ladder
from elasticflow.scheduler.overheads import Overheads, published
from tests.scheduler.cases import DIMINISHING, FREE, STEEP, UNEVEN


def test_knee_is_where_twice_the_gpus_give_less_than_half_as_much_again():
    assert DIMINISHING.knee == 2
    assert STEEP.knee == 8


def test_a_size_that_is_slower_is_of_no_use():
    assert UNEVEN.useful == (1, 4)
    assert UNEVEN.best_size(3) == 1


def test_ladder_skips_what_is_slower_and_what_is_no_power_of_two():
    rungs = ladder(curve({1: 1.0, 2: 0.5, 3: 9.0, 4: 1.6}), 4, FREE)
    assert rungs.sizes == (0, 1, 1, 4)
    assert rungs.rates == (0.0, 1.0, 1.0, 1.6)


def test_ladder_ends_with_the_cluster():
    assert ladder(STEEP, 4, FREE).sizes == (0, 1, 2, 4)


def test_published_overheads():
    small, large = published(128), published(256)
    assert small.change_s(set(), {0, 1, 2, 3}) == 2 + 2 * (2 + 1)
    assert large.change_s({9}, {0}) == 7 + 2
    assert small.change_s({0, 1, 2, 3}, {0, 1}) == 2
    assert small.resize_s(4, 2) == 2
    assert small.resize_s(2, 4) == 8


@pytest.mark.parametrize("sizes, rates", [((), ()), ((2, 1), (1.0, 2.0)), ((1,), (0.0,)), ((1, 2), (1.0,))])
def test_curves_that_make_no_sense(sizes, rates):
    with pytest.raises(ConfigError):
        Curve(sizes, rates)


def test_bounds_that_leave_no_size():
    with pytest.raises(ConfigError, match="wants 3 to 3 GPUs, its curve knows 1, 2, 4"):
        DIMINISHING.limited(3, 3)
    assert DIMINISHING.limited(2, 4).sizes == (2, 4)


def test_cost_of_no_gpus_is_none():
    assert Overheads().resize_s(4, 0) == 0.0
