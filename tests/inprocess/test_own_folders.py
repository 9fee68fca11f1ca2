"""Folders of commands, and what is left by those that were killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from elasticflow.process.own_folders import own_folder


def test_what_killed_ones_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other, elsewhere = tmp_path / "ef-evaluate-x", tmp_path / "ef-model-x", tmp_path / "elsewhere"
    for folder in (left, other, elsewhere):
        (folder / "weights").mkdir(parents=True)
    (tmp_path / "ef-evaluate-link").symlink_to(elsewhere)
    with own_folder("ef-evaluate-") as first:
        assert first.parent == tmp_path
        assert not left.exists()
        with own_folder("ef-evaluate-") as second:
            assert first.is_dir(), "whose process lives"
            assert second != first
        assert not second.exists()
    assert not first.exists()
    assert (other / "weights").is_dir()
    assert (elsewhere / "weights").is_dir()
