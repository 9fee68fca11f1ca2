"""The file of parameters that are not trained: the same bytes whoever writes it, and damage is seen."""

from __future__ import annotations

import numpy as np
import pytest

from elasticflow.checkpoint.frozen import (
    frozen_of,
    num_bytes_of,
    path_of,
    problems_of,
    read_frozen,
    write_frozen,
)
from elasticflow.errors import CheckpointError
from elasticflow.storage import DirectoryStorage

TENSORS = {
    "net.0.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "empty": np.zeros((0, 2)),
    "größe": np.array(7, np.int64),
    "mask": np.array([True, False]),
}


@pytest.fixture
def storage(tmp_path):
    return DirectoryStorage(tmp_path)


def test_it_is_written_once_and_read_as_it_was(storage, tmp_path):
    frozen = frozen_of(TENSORS)
    write_frozen(storage, TENSORS)
    (path,) = (tmp_path / "frozen").iterdir()
    written = path.stat()
    write_frozen(storage, TENSORS)
    assert path.stat() == written and written.st_size == num_bytes_of(frozen)
    found = dict(read_frozen(storage, frozen))
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        np.testing.assert_array_equal(found[name], tensor)
    assert problems_of(storage, frozen) == []


def test_others_read_it(storage, tmp_path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    write_frozen(storage, TENSORS)
    found = load_file(tmp_path / path_of(frozen_of(TENSORS)))
    assert all(found[name].tobytes() == tensor.tobytes() for name, tensor in TENSORS.items())


def test_every_damaged_byte_is_seen(storage, tmp_path):
    frozen = frozen_of(TENSORS)
    write_frozen(storage, TENSORS)
    path = tmp_path / path_of(frozen)
    right = path.read_bytes()
    for at in range(len(right)):
        path.write_bytes(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :])
        assert problems_of(storage, frozen), f"byte {at}"
    path.write_bytes(right[:-1])
    assert problems_of(storage, frozen)
    path.unlink()
    with pytest.raises(CheckpointError, match="frozen/"):
        list(read_frozen(storage, frozen))
