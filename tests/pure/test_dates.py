"""Moments, lengths of time and dates in paths, in time zones with and without summer."""

from __future__ import annotations

import time
from datetime import datetime, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as some

from elasticflow.errors import ConfigError
from elasticflow.run.dates import against, clock, day_s, fill, length_s, moment, span, written

BERLIN, UTC = ZoneInfo("Europe/Berlin"), timezone.utc
ZONES = (BERLIN, UTC, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata"), ZoneInfo("America/Santiago"))


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def resolved(text: str, now: str, zone: tzinfo = BERLIN) -> str:
    return written(moment("deadline", text, at(now), zone))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("8h", 28800), ("1h30m", 5400), ("1h 30m", 5400), ("1.5h", 5400),
     ("2d", 172800)],
)  # fmt: skip
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert length_s("time_limit", text) == seconds


@pytest.mark.parametrize("text", ["", "8", "0h", "-8h", "8 hours", "h", "8h30", "1e3s"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ConfigError, match=r"time_limit: .* is no length of time; write 45s"):
        length_s("time_limit", text)


@pytest.mark.parametrize(
    ("text", "now", "due"),
    [
        ("06:00", "2026-11-21T22:00+01:00", "2026-11-22T06:00:00+01:00"),
        ("06:00", "2026-11-22T05:59+01:00", "2026-11-22T06:00:00+01:00"),
        ("6:00:30", "2026-11-22T06:00+01:00", "2026-11-22T06:00:30+01:00"),
        ("06:00", "2026-11-22T06:00+01:00", "2026-11-23T06:00:00+01:00"),
        ("06:00", "2026-12-31T23:00+01:00", "2027-01-01T06:00:00+01:00"),
        ("2026-11-22T06:00", "2026-11-21T22:00+01:00", "2026-11-22T06:00:00+01:00"),
        ("2026-11-22 06:00", "2026-11-21T22:00+01:00", "2026-11-22T06:00:00+01:00"),
        ("2026-07-22T06:00", "2026-03-21T22:00+01:00", "2026-07-22T06:00:00+02:00"),
        ("2026-11-22T06:00Z", "2026-11-21T22:00+01:00", "2026-11-22T06:00:00+00:00"),
        ("2026-11-22T06:00:00-05:00", "2026-11-21T22:00+01:00", "2026-11-22T06:00:00-05:00"),
        # clocks are set from 2:00 to 3:00 on 2026-03-29, and from 3:00 back to 2:00 on 2026-10-25
        ("06:00", "2026-03-28T22:00+01:00", "2026-03-29T06:00:00+02:00"),
        ("+8h", "2026-03-28T22:00+01:00", "2026-03-29T07:00:00+02:00"),
        ("06:00", "2026-10-24T22:00+02:00", "2026-10-25T06:00:00+01:00"),
        ("+8h", "2026-10-24T22:00+02:00", "2026-10-25T05:00:00+01:00"),
        ("02:30", "2026-10-25T02:15+02:00", "2026-10-25T02:30:00+02:00"),
        ("02:30", "2026-10-25T02:45+02:00", "2026-10-25T02:30:00+01:00"),
        ("02:30", "2026-10-25T02:45+01:00", "2026-10-26T02:30:00+01:00"),
    ],
)  # fmt: skip
def test_moments(text: str, now: str, due: str) -> None:
    assert resolved(text, now) == due


def test_a_time_that_is_left_out_in_spring_is_that_long_after_the_last_one_before() -> None:
    assert at(resolved("02:30", "2026-03-29T01:00+01:00")) == at("2026-03-29T03:30+02:00")


@pytest.mark.parametrize("text", ["02:30", "2027-03-28T02:30"])
def test_so_it_is_where_the_zone_is_the_machines(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        assert written(moment("deadline", text, at("2027-03-27T22:00"))) == "2027-03-28T03:30:00+02:00"
        assert written(moment("deadline", "02:30", at("2027-10-30T22:00"))) == "2027-10-31T02:30:00+02:00"
        assert written(moment("deadline", "02:30", at("2027-10-31T02:40"))) == "2027-10-31T02:30:00+01:00"
    time.tzset()


@given(
    some.integers(1_767_000_000, 1_830_000_000),
    some.integers(0, 23), some.integers(0, 59), some.sampled_from(ZONES),
)  # fmt: skip
def test_the_next_time_of_day_is_ahead_by_a_day_at_most(
    now_s: int, hour: int, minute: int, zone: tzinfo
) -> None:
    due = moment("deadline", f"{hour}:{minute:02}", now_s, zone)
    assert 0 < due.timestamp() - now_s <= 25 * 3600
    assert moment("deadline", written(due), 0.0, UTC).timestamp() == due.timestamp(), "it means the same"


@pytest.mark.parametrize(
    "text", ["soon", "25:00", "6", "06:00 tomorrow", "2026-11-22", "2026-13-01T00:00", "+", "+8", "20:60"]
)
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^deadline: '"):
        moment("deadline", text, 0.0, UTC)


# --- dates in paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain/*.csv", "plain/*.csv"),
        ("day={yesterday:%Y-%m-%d}/*.parquet", "day=2026-11-20/*.parquet"),
        ("{today}", "2026-11-21"),
        ("{yesterday}", "2026-11-20"),
        ("{now}", "20261121T003005"),
        ("{today-7d:%Y%m%d}", "20261114"),
        ("{today - 7d:%Y%m%d}", "20261114"),
        ("{today+1w:%d}", "28"),
        ("{yesterday-1d:%m/%d}", "11/19"),
        ("{now-3h:%Y%m%d-%H}", "20261120-21"),
        ("{today-21d:%Y/%m}", "2026/10"),
        ("{{a,b}}/{today:%d}", "{a,b}/21"),
        ("{today:%d%%}", "21%"),
        ("{today:%F}", "2026-11-21"),
    ],
)  # fmt: skip
def test_patterns(text: str, filled: str) -> None:
    assert fill("data", text, at("2026-11-21T00:30:05+01:00"), BERLIN) == filled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x/{yesterdy}", "{yesterdy} is no date"), ("{}", "{} is no date"), ("{0}", "{0} is no date"),
        ("{today-7}", "{today-7} is no date"), ("{today-3h}", "{today-3h} is no date"),
        ("{today.year}", "{today.year} is no date"), ("{today:%Q}", "%Q is no part of a date"),
        ("{today:%}", "% is no part"), ("{today:yyyy}", "'yyyy' has no %"),
        ("{today!r}", "'!r' has no meaning"), ("{today", "expected '}'"), ("a}b", "single '}'"),
        ("{a,b}", "{a,b} is no date"), ("{today-99999999d}", "too far away"),
    ],
)  # fmt: skip
def test_patterns_that_are_wrong_name_the_setting_and_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        fill("data", text, 0.0, UTC)
    assert str(error.value).startswith(f"data: {text!r}: ") and words in str(error.value)
    assert "\n" not in str(error.value)


def test_yesterday_is_the_day_before_also_when_clocks_are_set() -> None:
    for night in ("2026-03-30T00:10+02:00", "2026-10-26T00:10+01:00"):
        day = int(night[8:10])
        assert fill("data", "{yesterday:%d}", at(night), BERLIN) == f"{day - 1}"
    assert fill("data", "{now-3h:%H}", at("2026-03-29T04:00+02:00"), BERLIN) == "00"


def test_a_date_stands_for_all_of_its_day() -> None:
    assert day_s("", 5.0, BERLIN) == 5.0
    assert day_s("2026-11-20", 0.0, BERLIN) == at("2026-11-20T00:00+01:00")
    assert day_s("2026-11-20T03:00", 0.0, BERLIN) == at("2026-11-20T03:00+01:00")
    for wrong in ("yesterday", "2026-02-30", "20.11.2026", "06"):
        with pytest.raises(ConfigError, match=f"date: '{wrong}' is no date"):
            day_s(wrong, 0.0, BERLIN)


@given(some.dates(datetime(2020, 1, 1).date(), datetime(2030, 1, 1).date()), some.sampled_from(ZONES))
def test_every_day_of_every_zone_is_itself(day: object, zone: tzinfo) -> None:
    assert fill("data", "{today}", day_s(str(day), 0.0, zone), zone) == str(day)


# --- for people ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (48 * 60, "48 min"), (-125 * 60, "2 h 05 min"),
     (100 * 3600, "4 d 4 h")],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_clocks_and_what_they_mean_for_a_deadline() -> None:
    now, due = at("2026-11-21T22:00+01:00"), "2026-11-22T06:00:00+01:00"
    assert against(due, at("2026-11-22T05:12+01:00"), now) == "05:12, 48 min before the deadline 06:00"
    assert against(due, at("2026-11-22T06:40+01:00"), now) == "06:40, 40 min after the deadline 06:00"
    assert clock(at("2026-11-24T05:00+00:00"), now, UTC) == "2026-11-24 05:00"
