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


def end(folder: Path) -> datetime:
    return credentials._ends(*((folder / name).read_bytes() for name in ("skein.crt", "skein.pem")))


def text(folder: Path) -> bytes:
    return (folder / "skein.crt").read_bytes() + (folder / "skein.pem").read_bytes()


def test_it_is_valid_also_where_a_clock_is_behind_and_is_made_once(tmp_path: Path) -> None:
    assert ensure(tmp_path, NOW) == ""
    made = text(tmp_path)
    found = x509.load_pem_x509_certificate((tmp_path / "skein.crt").read_bytes())
    assert found.not_valid_before_utc == NOW - BEFORE
    assert end(tmp_path) == NOW + VALID
    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.glob("skein.*m"))] == [0o600]
    assert ensure(tmp_path, NOW + VALID - LEFT) == "" and text(tmp_path) == made


def test_one_that_ends_soon_is_replaced(tmp_path: Path) -> None:
    skein.Security.new_credentials().to_directory(str(tmp_path))
    ends, made = end(tmp_path), text(tmp_path)
    assert ensure(tmp_path, ends - LEFT) == "" and text(tmp_path) == made
    told = ensure(tmp_path, ends - LEFT + timedelta(seconds=1))
    assert f"certificate ends on {ends:%Y-%m-%d}, and is replaced" in told and text(tmp_path) != made
    assert ensure(tmp_path, ends) == ""


def test_what_is_no_certificate_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "skein.crt").write_text("")
    (tmp_path / "skein.pem").write_text("")
    ensure(tmp_path, NOW)
    assert end(tmp_path) == NOW + VALID


@pytest.mark.parametrize("left", ["no key", "half a key", "no certificate", "another's key"])
def test_what_one_that_was_killed_has_left_is_replaced(tmp_path: Path, left: str) -> None:
    """Or one that found the disk full. Skein would take it, and no submission come through any more."""
    ensure(tmp_path, NOW)
    key = tmp_path / "skein.pem"
    if left == "no key":
        key.unlink()
    elif left == "half a key":
        key.write_bytes(key.read_bytes()[:500])
    elif left == "no certificate":
        (tmp_path / "skein.crt").unlink()
    else:
        ensure(tmp_path / "other", NOW)
        key.write_bytes((tmp_path / "other" / "skein.pem").read_bytes())
    assert ensure(tmp_path, NOW) == "" and end(tmp_path) == NOW + VALID
    made = text(tmp_path)
    assert ensure(tmp_path, NOW) == "" and text(tmp_path) == made
