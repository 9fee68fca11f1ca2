"""Whatever happens to the files of the newest checkpoint: it is told, and the one before is used."""

import os
import random
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saving_tables import Servers, Table, make_spec

from elasticflow import checkpoint
from elasticflow.step.layout import Entry, Rule
from elasticflow.storage import DirectoryStorage

SMALL = (Entry("w", (40, 5), "float32", Rule.UPDATE), Entry("seen", (), "int64", Rule.FIRST))
FOLDER, ROWS = "checkpoints/step-0000000200", "rows/step-0000000200"
MANIFEST = f"{FOLDER}/manifest.json"
NAMES = (
    f"{FOLDER}/generation-1-server-0.h5",
    f"{FOLDER}/generation-1-server-1.h5",
    f"{ROWS}/generation-1-server-0.h5",
    f"{ROWS}/generation-1-server-1.h5",
    MANIFEST,
)
MOST_KILOBYTES = 64 << 10
"""That the process may grow by, whatever length a damaged file claims to have."""


def flip(path, chance):
    """One bit, or some."""
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path, chance):
    os.truncate(path, chance.randrange(path.stat().st_size))


def extend(path, chance):
    """Also by far more than there is room for, which takes up no room."""
    os.truncate(path, path.stat().st_size + chance.choice((1, 100, 1 << 20, 1 << 40)))


def overwrite(path, chance):
    """A range of bytes, as of another file or a lost block."""
    size = path.stat().st_size
    start = chance.randrange(size)
    length = min(chance.choice((1, 8, 64, 512)), size - start)
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(chance.choice((bytes, chance.randbytes))(length))


def garbage(path, chance):
    path.write_bytes(chance.randbytes(chance.choice((0, 1, 100, path.stat().st_size))))


def shift(path, chance):
    """A piece is lost, what follows moves up, and the length stays the same."""
    data = path.read_bytes()
    start = chance.randrange(len(data))
    length = chance.randrange(1, 64)
    path.write_bytes((data[:start] + data[start + length :]).ljust(len(data), b"\0"))


def lose(path, chance):
    path.unlink()


def exchange(path, chance):
    """Another file of the checkpoint in its place."""
    root = path.parents[2]
    others = [root / name for name in NAMES if root / name != path and (root / name).is_file()]
    if others:
        with open(chance.choice(others), "rb") as file:
            path.write_bytes(file.read(1 << 20))  # it may have been extended


def folder(path, chance):
    path.unlink()
    path.mkdir()


DAMAGES = (flip, flip, flip, truncate, extend, overwrite, garbage, shift, lose, exchange, folder)


class Run:
    """Two checkpoints; the newer one, with a delta of a table, is put right again after each damage."""

    def __init__(self, root: Path) -> None:
        self.storage, self.root = DirectoryStorage(root), root
        table, chance = Table(make_spec(2)), np.random.default_rng(0)
        servers = Servers(self.storage, {"t": table}, dense=SMALL)
        table.update(range(100), 100, chance)
        servers.save(100)
        table.update(range(20), 200, chance)
        servers.save(200, whole=False)
        self.folder = root / FOLDER
        self.whole = {name: (root / name).read_bytes() for name in NAMES}
        verified = checkpoint.newest_intact(self.storage)[0]
        self.kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert verified.step == 200

    def mend(self) -> None:
        for name, data in self.whole.items():
            path = self.root / name
            if path.is_dir():
                path.rmdir()
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)

    def check(self) -> None:
        """That what is found is whole, and what is damaged is told."""
        changed = {name for name in NAMES if not self._is_whole(name)}
        manifest, damages = checkpoint.newest_intact(self.storage)
        assert manifest.step == (100 if changed else 200)
        told = {re.split("[: ]", damage)[0] for damage in damages}
        if MANIFEST in changed:
            assert told == ({MANIFEST} if (self.root / MANIFEST).exists() else set()) and len(damages) < 2
        else:
            assert told == changed
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.kilobytes
        assert grown < MOST_KILOBYTES, f"{grown} KB more"

    def _is_whole(self, name: str) -> bool:
        path = self.root / name
        size = len(self.whole[name])
        return path.is_file() and path.stat().st_size == size and path.read_bytes() == self.whole[name]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("run"))


several = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(DAMAGES)),
    min_size=1,
    max_size=3,
    unique_by=lambda pair: pair[0],
)


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(several, st.integers(0, 1 << 64))
def test_any_damage_is_told_and_the_one_before_is_used(run, damages, seed):
    chance = random.Random(seed)
    try:
        for name, damage in damages:
            if (run.root / name).is_file():
                damage(run.root / name, chance)
        run.check()
    finally:
        run.mend()


def test_a_whole_checkpoint_that_is_gone_or_was_never_finished(run):
    try:
        for name in NAMES:
            (run.root / name).unlink()
        assert checkpoint.newest_intact(run.storage)[0].step == 100
        run.folder.rmdir()
        assert checkpoint.newest_intact(run.storage)[0].step == 100
        run.folder.write_bytes(b"a file where a folder belongs")
        assert checkpoint.newest_intact(run.storage)[0].step == 100
        assert checkpoint.discard_unfinished(run.storage) == [200]
        assert not run.folder.exists() and not (run.root / ROWS).exists()
        assert checkpoint.newest_intact(run.storage)[0].step == 100
    finally:
        run.mend()


def test_all_are_damaged(run):
    older = run.storage.root / checkpoint.folder_of(100) / "manifest.json"
    whole = older.read_bytes()
    try:
        older.write_bytes(b"{}")
        (run.root / NAMES[0]).unlink()
        manifest, damages = checkpoint.newest_intact(run.storage)
        assert manifest is None
        assert [damage[:27] for damage in damages] == [
            "checkpoints/step-0000000200",
            "checkpoints/step-0000000100",
        ]
    finally:
        older.write_bytes(whole)
        run.mend()
