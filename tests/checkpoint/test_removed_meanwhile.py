"""A run that goes on removes old checkpoints while others read them."""

import pytest
from saving import save

from elasticflow import checkpoint
from elasticflow.checkpoint import weights
from elasticflow.errors import CheckpointError


def newest(storage):
    return checkpoint.load_manifest(storage, checkpoint.commits(storage)[-1])


def test_the_next_one_is_taken(storage, model):
    save(storage, model, step=10)
    chosen = []

    def act(manifest):
        chosen.append(manifest.step)
        if manifest.step == 10:
            save(storage, model, step=20)
            checkpoint.prune(storage, keep=1)
        return checkpoint.digest(storage, manifest)

    found = checkpoint.of_one(storage, lambda: newest(storage), act)
    assert chosen == [10, 20] and found == checkpoint.digest(storage, newest(storage))


def test_a_run_that_begins_with_the_weights_of_one_that_goes_on(storage, model, monkeypatch):
    save(storage, model, step=10)
    tensors, begun = weights.tensors, []

    def late(storage, manifest, slots):
        begun.append(manifest.step)
        if manifest.step == 10:
            save(storage, model, step=20)
            checkpoint.prune(storage, keep=1)
        return tensors(storage, manifest, slots)

    monkeypatch.setattr(weights, "tensors", late)
    found = weights.read_weights(str(storage.root), slots=False)
    assert begun == [10, 20]
    assert (found.arrays["net.0.weight"] == model.tensor("net.0.weight")).all()


def test_what_is_damaged_is_chosen_once(storage, model):
    manifest = save(storage, model, step=10)
    (storage.root / manifest.folder / "generation-1-server-0.h5").unlink()
    chosen = []
    with pytest.raises(CheckpointError, match="FileNotFoundError"):
        checkpoint.of_one(
            storage,
            lambda: chosen.append(10) or manifest,
            lambda manifest: checkpoint.digest(storage, manifest),
        )
    assert chosen == [10]


def test_the_newest_that_is_intact_is_looked_for_again(storage, model, monkeypatch):
    save(storage, model, step=10)
    open_, removed = storage.open, []

    def late(path):
        if path.endswith(".h5") and not removed:
            removed.append(path)
            save(storage, model, step=20)
            checkpoint.prune(storage, keep=1)
        return open_(path)

    monkeypatch.setattr(storage, "open", late)
    found, damages = checkpoint.newest_intact(storage)
    assert found is not None and found.step == 20 and damages == []
    assert removed


def test_a_best_one_is_not_there_before_any_is(storage):
    with pytest.raises(CheckpointError, match="no committed checkpoint yet"):
        checkpoint.load_best(storage)
