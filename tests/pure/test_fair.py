"""When a run asks for no more workers, and gives some back, because another one waits."""

from __future__ import annotations

from elasticflow.cluster.fair import STUCK_PATIENCES, FairShare, OtherRun

PATIENCE_S = 30.0


def seen(*others: OtherRun, at_s: float = 0.0) -> FairShare:
    share = FairShare(PATIENCE_S)
    share.see(others, at_s)
    return share


def test_who_waits_and_has_fewest_comes_first() -> None:
    share = seen(OtherRun("rich", 5, 1), OtherRun("poor", 1, 1), OtherRun("content", 0, 0))
    assert share.may_have(0.0) == 2
    assert seen(OtherRun("content", 0, 0)).may_have(0.0) is None and seen().may_have(0.0) is None


def test_half_of_the_difference_is_given_back_but_no_more_than_is_waited_for_and_the_least_stays() -> None:
    for mine, running, waiting, least, number in (
        (6, 0, 1, 1, 1),
        (6, 0, 8, 1, 3),
        (6, 4, 8, 1, 1),
        (6, 5, 8, 1, 0),
        (6, 0, 8, 5, 1),
        (6, 0, 8, 6, 0),
    ):
        share = seen(OtherRun("a", running, waiting))
        assert share.to_give(mine, least, PATIENCE_S - 1) == 0, "it may be about to start"
        assert share.to_give(mine, least, PATIENCE_S) == number, (mine, running, waiting, least)


def test_nothing_more_is_given_before_that_has_helped() -> None:
    share = seen(OtherRun("a", 0, 4))
    assert share.to_give(8, 1, 30.0) == 4
    share.see([OtherRun("a", 0, 4)], 35.0)
    assert share.to_give(8, 1, 90.0) == 0, "somebody else has got it"
    share.see([OtherRun("a", 2, 2)], 95.0)
    assert share.to_give(8, 1, 100.0) == 0 and share.to_give(8, 1, 125.0) == 2


def test_who_is_not_helped_for_long_holds_up_nobody() -> None:
    share = seen(OtherRun("a", 1, 1))
    share.see([OtherRun("a", 1, 3)], 200.0)
    assert share.may_have(STUCK_PATIENCES * PATIENCE_S - 1) == 2
    assert share.may_have(STUCK_PATIENCES * PATIENCE_S) is None
    share.see([OtherRun("a", 0, 1)], 400.0)
    assert share.may_have(401.0) == 1, "it has lost one: that is news"
    share.see([], 402.0)
    share.see([OtherRun("a", 0, 1)], 403.0)
    assert share.to_give(5, 1, 420.0) == 0 and share.to_give(5, 1, 433.0) == 1
