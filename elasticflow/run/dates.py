"""Moments, lengths of time and dates in paths, as people write them in settings.

A moment without an offset is local time: of ``zone``, by default that of this machine. Numbers that end in
``_s``, and ``at_s``, are seconds since 1970. All raise ConfigError, which names the setting.
"""

from __future__ import annotations

import re
import string
from datetime import date, datetime, time, timedelta, tzinfo

from elasticflow.errors import ConfigError

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FORMATS = {"today": "%Y-%m-%d", "yesterday": "%Y-%m-%d", "now": "%Y%m%dT%H%M%S"}
"""Fields of a pattern, and how each is written where it has no format of its own."""
_DIRECTIVES = set("aAbBdFGHIjmMpSuUVwWyY%")
"""Of strftime: those that mean the same on every system, and that a path can hold."""


def length_s(name: str, text: str) -> float:
    """Seconds of a length of time, such as 45s, 90m, 8h, 1h30m or 2d."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhd])\s*", text)
    total_s = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    if not re.fullmatch(r"\s*(\d+(\.\d+)?\s*[smhd]\s*)+", text) or not total_s:
        raise ConfigError(f"{name}: {text!r} is no length of time; write 45s, 90m, 8h or 1h30m.")
    return total_s


# --- moments ------------------------------------------------------------------------------------------


def moment(name: str, text: str, at_s: float, zone: tzinfo | None = None) -> datetime:
    """The moment that is meant at ``at_s``: the next 06:00, 2026-11-22T06:00, or +8h from then."""
    words = text.strip()
    try:
        if words.startswith("+"):
            return _aware(_wall(at_s + length_s(name, words[1:]), zone), zone)
        if clock := re.fullmatch(r"(\d\d?):(\d\d)(?::(\d\d))?", words):
            hour, minute, second = (int(number or 0) for number in clock.groups())
            return _next(time(hour, minute, second), at_s, zone)
        if not re.fullmatch(r"\d{4}-\d\d-\d\d[T ]\d\d:.*", words):
            raise ValueError
        return _aware(datetime.fromisoformat(re.sub("Z$", "+00:00", words)), zone)
    except ConfigError:
        raise
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{name}: {text!r} is no moment; write 06:00 (the next one), 2026-11-22T06:00, the same with an "
            "offset such as +01:00, or +8h (from now on)."
        ) from None


def _next(clock: time, at_s: float, zone: tzinfo | None) -> datetime:
    """Where clocks are set back, a time comes twice on that day."""
    today = _wall(at_s, zone).date()
    moments = [
        _aware(datetime.combine(today + timedelta(days), clock).replace(fold=fold), zone)
        for days in (0, 1)
        for fold in (0, 1)
    ]
    return next(each for each in moments if each.timestamp() > at_s)


def _wall(at_s: float, zone: tzinfo | None) -> datetime:
    """What clocks show."""
    return datetime.fromtimestamp(at_s, zone).replace(tzinfo=None)


def _aware(wall: datetime, zone: tzinfo | None) -> datetime:
    if wall.tzinfo is not None:
        return wall
    if zone is not None:
        return wall.replace(tzinfo=zone)
    # By way of timestamp(): astimezone() takes a time that is left out in spring for one of an hour before.
    return datetime.fromtimestamp(wall.timestamp()).astimezone()


def written(moment: datetime) -> str:
    """With its offset, so that it means the same everywhere."""
    return moment.isoformat(timespec="seconds")


# --- dates in paths -----------------------------------------------------------------------------------


def day_s(text: str, at_s: float, zone: tzinfo | None = None) -> float:
    """The moment of a setting ``date``: the beginning of a day, a moment of one, or, if empty, ``at_s``."""
    if not text.strip():
        return at_s
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip()):
            day = datetime.combine(date.fromisoformat(text.strip()), time())
            return _aware(day, zone).timestamp()
        return moment("date", text, at_s, zone).timestamp()
    except (ValueError, ConfigError):
        raise ConfigError(f"date: {text!r} is no date; write 2026-11-20 or 2026-11-20T03:00.") from None


def has_fields(text: str) -> bool:
    """Whether there is a brace in it that ``fill`` does something about."""
    return "{" in text or "}" in text


def fill(name: str, text: str, at_s: float, zone: tzinfo | None = None) -> str:
    """A path with dates in braces, as at ``at_s``: {yesterday}, {today-7d:%Y%m%d}, {now-3h:%H}.

    ``{{`` and ``}}`` are the braces themselves.
    """
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise _bad(name, text, f"{str(error)[0].lower()}{str(error)[1:]}") from None
    filled = []
    for literal, field, form, conversion in parts:
        filled.append(literal)
        if field is not None:
            if conversion:
                raise _bad(name, text, f"'!{conversion}' has no meaning")
            filled.append(_field(name, text, field, form or "", _wall(at_s, zone), at_s, zone))
    return "".join(filled)


def _field(
    name: str, text: str, field: str, form: str, wall: datetime, at_s: float, zone: tzinfo | None
) -> str:
    found = re.fullmatch(r"(today|yesterday|now)(?:([+-]\d+)([hdw]))?", field.replace(" ", ""))
    if not found or (found[3] == "h" and found[1] != "now"):
        raise _bad(name, text, f"{{{field}}} is no date")
    number = int(found[2] or 0)
    if found[1] != "now":
        wall = datetime.combine(wall.date() - timedelta(found[1] == "yesterday"), time())
    try:
        if found[3] == "h":
            wall = _wall(at_s + number * UNITS_S["h"], zone)
        else:
            wall += timedelta(number * (7 if found[3] == "w" else 1))
    except (ValueError, OverflowError, OSError):
        raise _bad(name, text, f"{{{field}}} is too far away") from None
    return wall.strftime(_checked(name, text, form) or FORMATS[found[1]])


def _checked(name: str, text: str, form: str) -> str:
    used = re.findall("%(.?)", form)
    if wrong := [f"%{letter}" for letter in used if letter not in _DIRECTIVES or not letter]:
        allowed = " ".join(f"%{letter}" for letter in sorted(_DIRECTIVES))
        raise _bad(name, text, f"{wrong[0]} is no part of a date; allowed are {allowed}")
    if form and not used:
        raise _bad(name, text, f"the format {form!r} has no %")
    return form


def _bad(name: str, text: str, what: str) -> ConfigError:
    return ConfigError(
        f"{name}: {text!r}: {what}; write {{today}}, {{yesterday}} or {{now}}, with an offset "
        "({today-7d}, {now-3h}) and a format ({yesterday:%Y/%m/%d}) if need be, and {{ or }} for a brace."
    )


# --- for people ---------------------------------------------------------------------------------------


def clock(at_s: float, now_s: float, zone: tzinfo | None = None) -> str:
    """Such as 05:12; with its day where that is more than 24 hours away."""
    near = abs(at_s - now_s) < UNITS_S["d"]
    return datetime.fromtimestamp(at_s, zone).strftime("%H:%M" if near else "%Y-%m-%d %H:%M")


def span(seconds: float) -> str:
    """Such as 40 s, 48 min, 2 h 05 min or 3 d 4 h."""
    seconds = abs(seconds)
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    days, hours_left = divmod(hours, 24)
    return f"{days} d {hours_left} h" if days else f"{hours} h {minutes:02} min"


def zone_of(moment: str) -> tzinfo | None:
    """That of a moment that was ``written``."""
    return datetime.fromisoformat(moment).tzinfo


def against(deadline: str, at_s: float, now_s: float) -> str:
    """A moment, such as an ETA, against a deadline: both as the clock where that was set shows them."""
    due_s, zone = datetime.fromisoformat(deadline).timestamp(), zone_of(deadline)
    shown = clock(at_s, now_s, zone)
    if at_s <= due_s:
        return f"{shown}, {span(due_s - at_s)} before the deadline {clock(due_s, now_s, zone)}"
    return f"{shown}, {span(at_s - due_s)} after the deadline {clock(due_s, now_s, zone)}"
