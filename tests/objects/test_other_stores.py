"""The same contract of Google's and Azure's stores, where somebody has installed stand-ins for them.

``go install github.com/fsouza/fake-gcs-server@latest`` and ``npm install -g azurite``; and the packages gcsfs
and adlfs. See tests/clusters/README.md.
"""

import importlib.util
import secrets
import shutil
import socket
import subprocess
import time

import fsspec
import pytest

from elasticflow import checkpoint
from elasticflow.storage import RemoteStorage
from tests.checkpoint.saving import make_model, save
from tests.storage_contract import *  # noqa: F403
from tests.storage_contract import test_a_name_is_no_pattern as _patterns
from tests.storage_contract import test_names_are_what_they_are as _names

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
AZURITES_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Which everybody knows: it is in Azurite's documentation."""
START_S = 60.0
del test_what_a_killed_writer_left_is_unseen_and_swept  # noqa: F821  (its file here has no name, and is gone)


def _google(port, environment):
    environment.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would ask by gRPC
    environment.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    at = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    return [*at, "-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}"]


def _azure(port, environment):
    account = f"AccountName=devstoreaccount1;AccountKey={AZURITES_KEY}"
    where = f"DefaultEndpointsProtocol=http;BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1"
    environment.setenv("AZURE_STORAGE_CONNECTION_STRING", f"{where};{account};")
    return ["--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]


STORES = {"gs": ("gcsfs", "fake-gcs-server", _google), "abfs": ("adlfs", "azurite-blob", _azure)}


@pytest.fixture(scope="module", params=STORES)
def fs(request):
    package, program, options = STORES[request.param]
    found = shutil.which(program)
    if not found or not importlib.util.find_spec(package):
        pytest.skip(f"there is no {program}, or no {package}, here")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = free.getsockname()
    with pytest.MonkeyPatch.context() as environment:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([found, *options(at[1], environment)], stdout=quiet, stderr=quiet)
        try:
            until_s = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(at, timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < until_s
                    time.sleep(0.05)  # whoever listens tells nobody
            made = fsspec.filesystem(request.param)
            made.mkdir("bucket")
            yield made
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def storage(fs, request):
    folder = f"bucket/{secrets.token_hex(4)}"
    fs.pipe_file(f"{folder}/.there.partial", b"there")
    scheme = "gs" if "gs" in fs.protocol else "abfs"
    return RemoteStorage(f"{scheme}://{folder}", patience_s=0.5)


@pytest.fixture
def raw(fs):
    def names(storage, folder):
        where = "/".join(part for part in (storage.url.partition("://")[2], folder) if part)
        fs.invalidate_cache()
        found = [one["name"].rstrip("/") for one in fs.ls(where, detail=True)] if fs.exists(where) else []
        return sorted(name.rpartition("/")[2] for name in found if not name.endswith(".there.partial"))

    return names


@pytest.mark.parametrize("pattern", ["night*", "night[12]"])
def test_a_name_is_no_pattern(storage, pattern):
    _patterns(storage, pattern)


@pytest.mark.parametrize("name", ["a b", "ü", "100%", "a+b&c=d;e", "#LATEST", "what?", "~", "a\\b"])
def test_names_are_what_they_are(storage, name):
    if storage.url.startswith("abfs") and name in ("what?", "a\\b"):
        pytest.skip("adlfs takes them for something else; nothing of ours is called so")
    _names(storage, name)


def test_checkpoints_are_committed_and_pruned(storage):
    for step in (100, 200, 300):
        save(storage, make_model(), step)
    assert checkpoint.prune(storage, keep=2) == [100]
    assert (checkpoint.commits(storage), checkpoint.verify(storage, 300)) == ([200, 300], [])
