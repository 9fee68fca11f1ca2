"""Whom a run's folder is trusted of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticflow.errors import RunError
from elasticflow.run.trust import Person, check_trust, objection

ADA = Person(uid=1000, private_gid=1000)
FOLDER = 0o040000


@pytest.mark.parametrize(
    ("uid", "gid", "mode", "said"),
    [
        (1000, 1000, 0o755, ""),
        (0, 0, 0o755, ""),
        (1000, 1000, 0o775, ""),  # a group of hers alone, as umask 002 is meant
        (1000, 50, 0o750, ""),
        (1000, 50, 0o775, "its group (mode 0775"),
        (0, 1000, 0o777, "everybody (mode 0777"),
        (1001, 1000, 0o700, "belongs to user 1001"),
    ],
)
def test_who_has_a_hand_in_it(
    uid: int, gid: int, mode: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["nobody is known"])
    found = objection(ADA, uid, gid, FOLDER | mode)
    assert said in found and bool(said) == bool(found)
    assert bool(objection(ADA, uid, gid, FOLDER | mode, enclosed=True)) == (uid == 1001)


def test_where_nobody_else_may_enter_modes_do_not_matter(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "program").mkdir(parents=True)
    (run / "program" / "it.zip").touch()
    (run / "program" / "it.zip").chmod(0o666)
    run.chmod(0o755)
    with pytest.raises(RunError, match=r"it\.zip: may be written by everybody \(mode 0666.*add --trust"):
        check_trust(run)
    run.chmod(0o700)
    check_trust(run)


def test_links_are_followed_and_end(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (run, elsewhere):
        folder.mkdir(mode=0o700)
    (run / "checkpoints").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(run)
    (run / "gone").symlink_to(tmp_path / "nothing")
    check_trust(run)
    elsewhere.chmod(0o777)
    with pytest.raises(RunError, match="checkpoints: may be written by everybody"):
        check_trust(run)


def test_logs_are_not_looked_through(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-1.log").touch()
    os.chmod(tmp_path / "logs" / "worker-1.log", 0o666)
    tmp_path.chmod(0o755)
    check_trust(tmp_path)
    check_trust(tmp_path / "not there")
