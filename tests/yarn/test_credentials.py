"""Skein's certificate: whom it lasts long enough."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from elasticflow_yarn import credentials
from elasticflow_yarn.credentials import BEFORE, LEFT, VALID, ensure

skein = pytest.importorskip("skein")
x509 = pytest.importorskip("cryptography.x509")
NOW = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)


def text(folder: Path) -> bytes:
    return (folder / "skein.crt").read_bytes() + (folder / "skein.pem").read_bytes()


def test_it_is_valid_also_where_a_clock_is_behind_and_is_made_once(tmp_path: Path) -> None:
    assert ensure(tmp_path, NOW) == ""
    made = text(tmp_path)
    found = x509.load_pem_x509_certificate((tmp_path / "skein.crt").read_bytes())
    assert found.not_valid_before_utc == NOW - BEFORE
    assert credentials._ends((tmp_path / "skein.crt").read_bytes()) == NOW + VALID
    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.glob("skein.*m"))] == [0o600]
    assert ensure(tmp_path, NOW + VALID - LEFT) == "" and text(tmp_path) == made


def test_one_that_ends_soon_is_replaced(tmp_path: Path) -> None:
    skein.Security.new_credentials().to_directory(str(tmp_path))
    ends, made = credentials._ends((tmp_path / "skein.crt").read_bytes()), text(tmp_path)
    assert ensure(tmp_path, ends - LEFT) == "" and text(tmp_path) == made
    told = ensure(tmp_path, ends - LEFT + timedelta(seconds=1))
    assert f"certificate ends on {ends:%Y-%m-%d}, and is replaced" in told and text(tmp_path) != made
    assert ensure(tmp_path, ends) == ""


def test_what_is_no_certificate_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "skein.crt").write_text("")
    (tmp_path / "skein.pem").write_text("")
    ensure(tmp_path, NOW)
    assert credentials._ends((tmp_path / "skein.crt").read_bytes()) == NOW + VALID
