"""What else looks at an object store: the doctor, and weights that lie there as a file."""

import numpy as np
import pytest

from elasticflow.checkpoint.weights import read_weights
from elasticflow.doctor.finding import Health
from elasticflow.doctor.machine import wanted_packages
from elasticflow.doctor.stores import stores
from elasticflow.errors import CheckpointError
from elasticflow.run.config import Config


def found(**settings):
    return [(each.subject, each.health, each.found) for each in stores(Config(**settings))]


def test_a_store_that_does_what_it_must(fs, url):
    (finding,) = found(checkpoint_dir=f"{url}/models")
    assert finding[:2] == ("checkpoints", Health.OK) and "put, read and listed" in finding[2]
    assert fs.find(url) == [f"{url.removeprefix('s3://')}/.there.partial"], "it left nothing behind"
    fs.pipe_file(f"{url}/x.npz", b"")
    assert found(data=f"{url}/x.npz") == [("data", Health.OK, f"{url}/x.npz: is there")]
    assert found() == found(data="x.npz") == []
    both = found(run_dir=f"{url}/models/night-1", checkpoint_dir=f"{url}/models/")
    assert [each[:2] for each in both] == [("checkpoints", Health.OK)], "one place is tried once"


def test_a_store_that_knows_no_conditional_puts(s3, url):
    s3.fail("overwrite", "PUT", "elasticflow-doctor", times=9)
    first, second = found(checkpoint_dir=url)
    assert first[1] is Health.OK
    assert second[1] is Health.HURTS and "in the place of another" in second[2]


def test_a_store_in_which_nothing_may_be_removed(s3, url):
    for method in ("DELETE", "POST"):
        s3.fail("deny", method, "", times=99)
    first, second = found(checkpoint_dir=url)
    assert first[1] is Health.OK
    assert second[1] is Health.HURTS and "cannot be removed" in second[2]


def test_what_is_wrong_is_told(s3, url, tmp_path):
    for settings, words in (
        ({"checkpoint_dir": "s3://no-such-bucket/x"}, "s3://no-such-bucket/x: was not written"),
        ({"data": f"{url}/none.npz"}, "No such file"),
        ({"checkpoint_dir": "nonsense://x"}, "is a URL that cannot be read"),
        ({"checkpoint_dir": str(tmp_path / "none" / "x")}, "there is no folder above it"),
    ):
        ((_, health, text),) = found(**settings)
        assert health is Health.BROKEN and words in text
    s3.fail("deny", "PUT", "", times=99)
    ((_, health, text),) = found(checkpoint_dir=url)
    assert health is Health.BROKEN and "as the test wants it" in text


def test_packages_that_it_takes():
    assert "s3fs" in wanted_packages(Config(checkpoint_dir="s3://b/models"))
    assert "gcsfs" in wanted_packages(Config(data="gs://b/x.npz"))
    assert "s3fs" not in wanted_packages(Config(data="x.npz"))


def test_weights_in_a_file_there(fs, url, tmp_path):
    arrays = {"net.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
    np.savez(tmp_path / "w.npz", **arrays)
    fs.put_file(str(tmp_path / "w.npz"), f"{url}/w.npz")
    read = read_weights(f"{url}/w.npz", slots=False)
    assert list(read.arrays) == ["net.weight"]
    assert np.array_equal(read.arrays["net.weight"], arrays["net.weight"])
    with pytest.raises(CheckpointError, match=r"none.npz: FileNotFoundError"):
        read_weights(f"{url}/none.npz", slots=False)
