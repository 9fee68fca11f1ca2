"""Processes that make records ahead of time: the same ones, and nobody waits for what becomes of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from elasticflow.data import Sources
from elasticflow.errors import BrokenError, UnreadableError
from elasticflow.hashing import mix
from elasticflow.run.settings import MemberSettings
from elasticflow.worker.loaded import files_of, load_sources, records_of
from elasticflow.worker.readers import MOST_DEATHS, Readers, ReadTask, SliceAhead

PROGRAM = """
import os, random, signal
import numpy as np
import elasticflow as ef

HOW = os.environ.get("HOW", "")
ELSEWHERE = os.environ["HOME_PID"] != str(os.getpid())

def make(record):
    number = int(record["n"])
    if number == 13 and HOW == "raises":
        raise ValueError("unlucky")
    if number == 13 and HOW == "dies" and ELSEWHERE:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 13 and HOW == "hangs" and ELSEWHERE:
        signal.pause()
    drawn = random.random() if HOW != "forgets" or not ELSEWHERE else 0.5
    return {
        "x": np.full((2, 3), number + drawn, np.float32),
        "words": np.arange(number % 4),
        "day": np.datetime64(number, "D"),
        "text": f"{number}",
        "none": np.empty(0, np.float32),
    }

def data():
    if HOW == "file":
        return ef.data.Transform(ef.data.CSV(os.environ["FILE"]), make, pad={"words": 0})
    n = np.load(os.environ["FILE"]) if HOW == "loaded" else np.arange(40)
    return ef.data.Transform({"n": n}, make, pad={"words": 0})

def model():
    return {}

def forward(params):
    return 0
"""


def settings_of(path: Path, **more: object) -> MemberSettings:
    values = {
        "name": "worker-1", "role": "worker", "host": "", "master": "", "run_dir": "", "program": str(path),
        "seed": 3, "threads": 1, "batch_size": 8, "num_slices": 2, "heartbeat_s": 0.5, "lost_s": 60.0,
        "encrypt_data": False, "timeline": False, "read_processes": 2, **more,
    }  # fmt: skip
    return MemberSettings(**values)  # type: ignore[arg-type]


class Reader:
    """A worker's part."""

    def __init__(self, path: Path, **more: object) -> None:
        settings = settings_of(path, **more)
        _, sources = load_sources(settings)
        self.train = Sources(sources.train, None).train
        self.readers = Readers(ReadTask(settings, files_of(sources), records_of(sources)), self.make)

    def make(self, rows: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        return self.train.finish(self.train.drawn(rows, seed), mix(seed, int(rows[0])))

    def order(self, first: int, tick: int = 0) -> SliceAhead:
        wanted = SliceAhead(tick, first)
        self.readers.order(wanted, np.arange(first, first + 4), 7)
        return wanted

    def come(self, wanted: SliceAhead) -> None:
        """Until a process, and not this one, has made it."""
        while not self.readers.is_made(wanted):
            self.readers._wait()
            self.readers._hear()

    def check(self, found: dict[str, np.ndarray] | None, first: int) -> None:
        expected = self.make(np.arange(first, first + 4), 7)
        assert found is not None and found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype and found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture
def open_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reader]]:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("HOME_PID", str(os.getpid()))
    opened: list[Reader] = []

    def open_(how: str = "", **more: object) -> Reader:
        monkeypatch.setenv("HOW", how)
        opened.append(Reader(tmp_path / "program.py", **more))
        return opened[-1]

    yield open_
    for each in opened:
        each.readers.close()


def test_they_make_the_same_records_in_whatever_order_they_are_wanted(open_reader) -> None:
    reader = open_reader()
    wanted = [reader.order(first) for first in range(0, 40, 4)]
    for each in reversed(wanted):
        reader.come(each)
        reader.check(reader.readers.take(each), each.slice)
    assert reader.readers.take(wanted[0]) is None and reader.readers.has_room()


def test_who_has_to_wait_makes_what_nobody_has_begun_with(open_reader) -> None:
    """It does not wait until they have loaded the program."""
    reader = open_reader()
    first, second = reader.order(0), reader.order(4)
    found = reader.readers.take(second)
    assert found is None or reader.check(found, 4) is None
    reader.come(first)
    reader.check(reader.readers.take(first), 0)


def test_what_is_not_wanted_any_more_is_forgotten(open_reader) -> None:
    reader = open_reader(read_processes=1)
    old, new = reader.order(0), reader.order(4, tick=5)
    reader.readers.forget(5)
    assert reader.readers.take(old) is None
    reader.come(new)
    reader.check(reader.readers.take(new), 4)


def test_one_that_finds_another_file_than_the_worker_is_told_of_and_makes_nothing(
    open_reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the slice that is compared is the same: the next one might not be."""
    file = tmp_path / "n.csv"
    monkeypatch.setenv("FILE", str(file))
    file.write_text("n\n" + "".join(f"{number}\n" for number in range(40)))
    reader = open_reader("file", read_processes=1)
    (process,) = reader.readers._processes
    file.write_text(file.read_text().replace("39", "38"))
    process._popen.kill()  # whether or not it has opened it before, the next one has not
    with pytest.raises(UnreadableError, match=f"{file} has changed: it has as many bytes as before"):
        reader.come(reader.order(0))


def test_one_that_has_other_records_in_memory_than_the_worker_is_told_of(
    open_reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FILE", str(tmp_path / "n.npy"))
    np.save(tmp_path / "n.npy", np.arange(40))
    reader = open_reader("loaded", read_processes=1)
    (process,) = reader.readers._processes
    np.save(tmp_path / "n.npy", np.minimum(np.arange(40), 38))
    process._popen.kill()
    with pytest.raises(UnreadableError, match="has other records in memory than the worker"):
        reader.come(reader.order(0))


def test_where_the_program_raises_the_worker_finds_out(open_reader) -> None:
    reader = open_reader("raises")
    fine, bad = reader.order(0), reader.order(12)
    assert reader.readers.take(bad) is None
    with pytest.raises(ValueError, match="unlucky"):
        reader.make(np.arange(12, 16), 7)
    reader.check(reader.readers.take(fine), 0)


@pytest.mark.parametrize(
    ("how", "words"), [("dies", "was killed by SIGSEGV"), ("hangs", "has not come back for 0.5 s")]
)
def test_who_dies_or_hangs_is_told_of_and_not_waited_for(open_reader, capfd, how: str, words: str) -> None:
    reader = open_reader(how, lost_s=0.5, read_processes=1)
    reader.come(reader.order(0))
    reader.order(12)
    while reader.readers._deaths == 0:
        reader.readers._wait()
        reader.readers._hear()
    assert reader.readers.take(SliceAhead(0, 12)) is None
    assert f"a process that reads ahead {words}" in capfd.readouterr().out
    later = reader.order(20, tick=1)
    reader.come(later)
    reader.check(reader.readers.take(later), 20)


def test_after_many_deaths_the_worker_is_on_its_own(open_reader) -> None:
    reader = open_reader(read_processes=1)
    for _ in range(MOST_DEATHS + 1):
        (process,) = reader.readers._processes
        os.kill(process._popen.pid, signal.SIGKILL)
        process._popen.wait()
        reader.readers._hear()
    assert not reader.readers.active
    assert reader.readers.take(reader.order(0)) is None


def test_other_records_elsewhere_break_the_promise(open_reader) -> None:
    reader = open_reader("forgets", read_processes=1)
    wanted = reader.order(0)
    with pytest.raises(BrokenError, match="column 'x' of the records 0, 1, 2, ... is another one"):
        reader.come(wanted)
