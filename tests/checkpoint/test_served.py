"""Which checkpoint of a run is served, and when another one is better."""

import asyncio
import shutil
import threading

import pytest

from elasticflow import checkpoint
from elasticflow.checkpoint.names import MANIFEST
from elasticflow.errors import CheckpointError
from elasticflow.run import config
from elasticflow.run.folder import RunDir
from elasticflow.serving import reloading
from elasticflow.serving.reloading import ServedCheckpoint, aside
from tests.checkpoint.saving import make_manifest, make_model, save, write_parts


@pytest.fixture
def run(tmp_path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.create(config.make(None, {}))
    return found


def another(run: RunDir, seed: int, **changes) -> None:
    """Another run in its place, whose last step is the same."""
    shutil.rmtree(run.path)
    run.create(config.make(None, {}))
    model = make_model(seed=seed)
    parts = write_parts(run.checkpoints(), model, 100, 1)
    checkpoint.commit(run.checkpoints(), make_manifest(model, 100, parts, **changes))


def test_a_newer_one_is_news_and_one_that_was_refused_is_not(run):
    save(run.checkpoints(), make_model(), 100)
    choice = ServedCheckpoint(run, None, best=False)
    served = choice.now()
    assert choice.news(served) is None
    save(run.checkpoints(), make_model(), 200)
    newer = choice.news(served)
    assert newer is not None and newer.step == 200
    choice.refuse(newer)
    assert choice.news(served) is None


def test_another_run_in_its_place_with_as_many_steps_is_news(run, tmp_path):
    save(run.checkpoints(), make_model(), 100)
    choice = ServedCheckpoint(run, None, best=False)
    served = choice.now()
    first = choice.unpacked(served, tmp_path)
    another(run, seed=1)
    found = choice.news(served)
    assert found is not None and found.step == 100
    assert choice.unpacked(found, tmp_path).folder != first.folder, "processes still read that one"
    assert choice.news(found) is None


def test_another_run_whose_program_has_other_arguments_is_not_served(run):
    save(run.checkpoints(), make_model(), 100)
    choice = ServedCheckpoint(run, None, best=False)
    served = choice.now()
    another(run, seed=1, work={"args": {"width": 64}})
    with pytest.raises(CheckpointError, match="arguments .*width.*begin serve-model anew"):
        choice.news(served)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checkpoint_is_read_once_and_not_at_every_look(run, monkeypatch, damaged):
    """To know whether it is intact all of it is read; what could not be fetched is news again."""
    save(run.checkpoints(), make_model(), 100)
    if damaged:
        save(run.checkpoints(), make_model(), 200)
        part = next((run.path / checkpoint.folder_of(200)).glob("*.h5"))
        part.write_bytes(part.read_bytes()[:-100])
    looks = []
    monkeypatch.setattr(
        reloading, "newest_intact", lambda storage: looks.append(1) or checkpoint.newest_intact(storage)
    )
    choice = ServedCheckpoint(run, None, best=False)
    served = choice.now()
    assert served.step == 100
    assert [choice.news(served) for _ in range(3)] == [None] * 3 and len(looks) == 1
    save(run.checkpoints(), make_model(), 300)
    assert [choice.news(served).step for _ in range(3)] == [300] * 3 and len(looks) == 2


def test_damage_is_said_once(run, capsys):
    save(run.checkpoints(), make_model(), 100)
    save(run.checkpoints(), make_model(), 200)
    choice = ServedCheckpoint(run, None, best=False)
    (run.path / checkpoint.folder_of(200) / MANIFEST).write_bytes(b"garbage")
    served = choice.now()
    assert served.step == 100
    assert [choice.news(served) for _ in range(3)] == [None] * 3
    assert capsys.readouterr().err.count("step-0000000200") == 1


def test_who_ends_does_not_wait_for_a_storage_that_hangs():
    hangs = threading.Event()

    async def end() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aside(hangs.wait), 0.01)

    asyncio.run(end())  # which waits for the threads of asyncio.to_thread
    hangs.set()


def test_what_is_made_aside_is_told_and_what_is_raised_is_raised(run):
    assert asyncio.run(aside(lambda: 7)) == 7
    with pytest.raises(CheckpointError, match="no committed checkpoint"):
        asyncio.run(aside(ServedCheckpoint(run, None, best=False).now))
