"""What was looked at, how it is, and what to do about it."""

from __future__ import annotations

from enum import Enum

import msgspec


class Health(str, Enum):
    """How it is."""

    OK = "ok"
    HURTS = "will hurt"
    """Runs go on, but are slower, or lose something that they need not."""
    BROKEN = "broken"
    """Runs do not begin, or do not end well."""


class Diagnosis(msgspec.Struct, frozen=True):
    """subject: such as ``python``. found: in words, or a setting as it is. cure: "" where it is well."""

    subject: str
    health: Health
    found: str
    cure: str = ""


def ok(subject: str, found: str) -> Diagnosis:
    """It is as it must be."""
    return Diagnosis(subject, Health.OK, found)


def hurts(subject: str, found: str, cure: str) -> Diagnosis:
    """It can be borne."""
    return Diagnosis(subject, Health.HURTS, found, cure)


def broken(subject: str, found: str, cure: str) -> Diagnosis:
    """It cannot."""
    return Diagnosis(subject, Health.BROKEN, found, cure)
