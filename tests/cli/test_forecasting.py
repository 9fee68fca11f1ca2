"""A service's plan as a picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticflow.cli.forecasting import page_of, picture, show_plan
from elasticflow.cli.main import main
from elasticflow.errors import ConfigError
from elasticflow.scheduler.forecast import Forecast, PlannedJob, PlannedShare
from elasticflow.service import talk

NOW_S = 1.7e9


def job(name: str, shares: list[tuple[float, int]], due_s: float | None, *, firm: bool = True) -> PlannedJob:
    planned = tuple(PlannedShare(NOW_S + until_s, size) for until_s, size in shares)
    standing = "promised" if due_s else "best effort"
    return PlannedJob(name, standing, 2, planned, None if due_s is None else NOW_S + due_s, firm)


PLANS = Forecast(
    NOW_S,
    4,
    (
        job("1-<digits>", [(50.0, 2), (60.0, 0), (90.0, 4)], 98.0),
        job("2-late", [(40.0, 1)], 5000.0),
        job("3-patient", [(80.0, 1)], None, firm=False),
        job("4-new", [], None, firm=False),
    ),
)


def test_bars_are_as_long_as_their_shares_and_end_before_their_deadlines() -> None:
    lines = picture(PLANS, 130, lambda at_s: f"{at_s - NOW_S:.0f}s")
    labels, wide = len(lines[0]) - len(lines[0].split("now  ")[1]), 0
    first = lines[1][labels:]
    assert re.fullmatch(r"2-+ +4-+ +\|", first), first
    wide = first.index("|")
    assert abs(first.index("4") - 60 / 98 * wide) <= 1.5 and abs(first.rindex("-") - 90 / 98 * wide) <= 1.5
    assert lines[2].endswith("> 5000s") and "1----" in lines[2]
    assert "1...." in lines[3] and "nobody knows yet" in lines[4]
    assert lines[5].startswith("in plans") and "█" in lines[5]
    assert all(len(line) <= 130 for line in lines[:-1])


def test_a_narrow_terminal_and_no_runs_at_all_are_shown_too() -> None:
    assert picture(PLANS, 5) and picture(Forecast(NOW_S, 4, ()), 80)


def test_a_page_needs_nothing_from_elsewhere_and_shows_names_as_they_are() -> None:
    page = page_of(PLANS)
    assert "1-&lt;digits&gt;: promised" in page and "<digits>" not in page
    assert not re.search(r"https?:|src=|href=|<script|@import|url\(", page)
    assert page.count("<rect") == 4


def test_files_are_by_their_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = talk.ToldTask(
        name="1-digits", run="/r", user="ann", standing="promised", state="", said="", why="", workers=2,
        held=2, step=1, steps=9, rates={}, handed_at=NOW_S, deadline_at=NOW_S + 99, promised_at=NOW_S,
        ended_at=None, eta_at=NOW_S + 60, earliest_at=None, planned=True,
        plan=[talk.ToldShare(until_at=NOW_S + 60, workers=2)],
    )  # fmt: skip
    answer = talk.ServiceAnswer(capacity=4, now_at=NOW_S, tasks=[task])
    show_plan(answer, "")
    assert "2------" in capsys.readouterr().out
    show_plan(answer, str(tmp_path / "plan.html"))
    assert "1-digits" in (tmp_path / "plan.html").read_text()
    with pytest.raises(ConfigError, match="written as .png or .html"):
        show_plan(answer, str(tmp_path / "plan.pdf"))
    with pytest.raises(ConfigError, match="cannot be written"):
        show_plan(answer, str(tmp_path / "nowhere" / "plan.html"))
    pytest.importorskip("matplotlib")
    show_plan(answer, str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("priority", ["1001", "-99999999999999999999"])
def test_a_priority_that_no_service_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], priority: str
) -> None:
    (tmp_path / "p.py").write_text("")
    options = ["--service", str(tmp_path / "svc"), "--best-effort", "--priority", priority]
    assert main(["submit", str(tmp_path / "p.py"), *options]) == 1
    said = f"Error: --priority: is {priority}; it is a whole number from -1000 to 1000.\n"
    assert capsys.readouterr().err == said


def test_only_a_service_has_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--plan"]) == 1
    assert "name it with --service" in capsys.readouterr().err
