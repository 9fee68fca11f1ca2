"""What people hear where a machine's clock was ahead, and was set back."""

from __future__ import annotations

from elasticflow.process.texts import clock_time
from elasticflow.service.server import over_already

NOW_S = 1_800_000_000.0


def test_a_deadline_that_is_over_by_the_service_alone_says_why() -> None:
    assert over_already(NOW_S + 1, NOW_S, NOW_S) == ""
    assert over_already(NOW_S, NOW_S, NOW_S) == "its deadline is over already."
    told = over_already(NOW_S + 1200, NOW_S + 3600, NOW_S)
    assert "was set back" in told and "--best-effort" in told
    assert clock_time(NOW_S + 1200) in told and clock_time(NOW_S + 3600) in told
    assert over_already(NOW_S - 1, NOW_S + 3600, NOW_S) == "its deadline is over already."
