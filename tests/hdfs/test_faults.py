"""What breaks for real: a NameNode, DataNodes, the network to them, the rights of a user."""

import errno
import threading
import time

import numpy as np
import pytest

from elasticflow.errors import ConfigError
from elasticflow.process.retry import is_curable
from elasticflow.storage import RemoteStorage
from elasticflow.storage.hadoop import HadoopConf
from elasticflow.storage.hdfs import HdfsPath
from elasticflow.storage.webhdfs import WebHdfs

pytestmark = [pytest.mark.hdfs, pytest.mark.timeout(300)]
DATA = np.random.default_rng(0).integers(0, 256, 24 << 20, np.uint8).tobytes()


def client_of(cluster, **options):
    return WebHdfs(HadoopConf.load(cluster.environment).namenodes(""), cluster.user, **options)


def path_of(url):
    return "/" + url.split("/", 3)[3]


def write_all(storage, name, data, during=lambda: None):
    """As a checkpoint is written; ``during`` happens in the middle."""
    with storage.create(name) as file:
        half = len(data) // 2
        for start in range(0, half, 1 << 20):
            file.write(memoryview(data)[start : min(half, start + (1 << 20))])
        during()
        for start in range(half, len(data), 1 << 20):
            file.write(memoryview(data)[start : start + (1 << 20)])


def write_until_it_is_there(storage, name, data, during):
    """As background.py does. Returns the errors."""
    errors = []
    while True:
        try:
            write_all(storage, name, data, during if not errors else lambda: None)
        except OSError as error:
            assert is_curable(error), error
            errors.append(error)
            time.sleep(0.5)
        else:
            return errors


def test_a_namenode_that_is_restarted_is_waited_for(broken, url):
    path = HdfsPath(url, patience_s=90) / "a"
    path.replace_bytes(b"before")
    broken.restart("namenode")
    assert path.read_bytes() == b"before"  # refused, then starting, then in safe mode
    path.replace_bytes(b"after")
    assert path.read_bytes() == b"after"
    assert [one.name for one in path.parent.iterdir()] == ["a"]


def test_a_namenode_that_is_restarted_in_the_middle_of_a_write(broken, url, raw):
    storage = RemoteStorage(url, patience_s=60)
    write_until_it_is_there(storage, "f/a", DATA, lambda: broken.restart("namenode"))
    with storage.open("f/a") as file:
        assert file.read() == DATA
    broken.wait_until_ready()
    storage.sweep("f")
    assert raw(storage, "f") == ["a"]


def test_a_namenode_that_is_restarted_in_the_middle_of_a_read(broken, url):
    storage = RemoteStorage(url, patience_s=60)
    write_all(storage, "a", DATA)
    with storage.open("a") as file:
        first = file.read(1 << 20)
        broken.restart("namenode")
        assert first + file.read() == DATA
        file.seek(5)
        assert file.read(100) == DATA[5:105]


def test_safe_mode_is_told_once_the_patience_ends(broken, url):
    path = HdfsPath(url, patience_s=0.5) / "a"
    path.replace_bytes(b"before")
    broken.run("hdfs", "dfsadmin", "-safemode", "enter", user="hdfs")
    try:
        with pytest.raises(OSError, match="safe mode") as caught:
            path.replace_bytes(b"after")
        assert is_curable(caught.value)
        assert path.read_bytes() == b"before"
        waiting = threading.Thread(target=HdfsPath(str(path), patience_s=60).replace_bytes, args=(b"after",))
        waiting.start()
    finally:
        broken.run("hdfs", "dfsadmin", "-safemode", "leave", user="hdfs")
    waiting.join()
    assert path.read_bytes() == b"after"


@pytest.mark.parametrize("daemon", ["datanode-0", "datanode-1"])
def test_a_datanode_that_is_killed_in_the_middle_of_a_write(broken, url, raw, daemon):
    storage = RemoteStorage(url, patience_s=60)
    write_until_it_is_there(storage, "a", DATA, lambda: broken.kill(daemon))
    with storage.open("a") as file:
        assert file.read() == DATA
    assert raw(storage, "") == ["a"]


@pytest.mark.parametrize("daemon", ["datanode-0", "datanode-1"])
def test_a_datanode_that_is_killed_in_the_middle_of_a_read(broken, url, daemon):
    storage = RemoteStorage(url, patience_s=60)
    write_all(storage, "a", DATA)
    with storage.open("a") as file:
        first = file.read(3)
        broken.kill(daemon)
        assert first + file.read() == DATA
    client, path = WebHdfs.of(url, 60)
    assert client.read(f"{path}/a", 7, 1 << 20) == DATA[7 : 7 + (1 << 20)]


def test_all_datanodes_are_gone_and_come_back(broken, url):
    storage = RemoteStorage(url, patience_s=1)
    write_all(storage, "a", DATA[:100])
    for daemon in broken.datanodes:
        broken.kill(daemon)
    with storage.open("a") as file, pytest.raises(OSError, match="DataNode") as caught:
        file.read()
    assert caught.value.errno == errno.ECONNREFUSED  # nothing follows for the file
    with pytest.raises(OSError), storage.create("b") as file:
        file.write(b"x")
    for daemon in broken.datanodes:
        broken.start_daemon(daemon)
    with RemoteStorage(url, patience_s=60).open("a") as file:
        assert file.read() == DATA[:100]


def test_a_namenode_that_is_frozen_is_not_waited_for_for_ever(broken, url):
    client = client_of(broken, patience_s=0, answer_s=0.5)
    broken.freeze("namenode")
    with pytest.raises(TimeoutError, match="gives no answer.*NameNode http://") as caught:
        client.status(path_of(url))
    assert caught.value.errno == errno.ETIMEDOUT
    with pytest.raises(TimeoutError):
        client.write(f"{path_of(url)}/a", b"x")
    broken.thaw("namenode")
    client.write(f"{path_of(url)}/a", b"x")


def test_datanodes_that_are_frozen_are_not_waited_for_for_ever(broken, url):
    client = client_of(broken, patience_s=0, data_s=0.5, connect_s=0.5)
    for daemon in broken.datanodes:
        broken.freeze(daemon)
    with pytest.raises(TimeoutError, match="gives no answer.*DataNode"):
        client.write(f"{path_of(url)}/a", b"x")
    for daemon in broken.datanodes:
        broken.thaw(daemon)
    client_of(broken).write(f"{path_of(url)}/a", b"x")


def test_no_namenode_is_there():
    client = WebHdfs(["http://localhost:9", "http://localhost:10"], "alice", patience_s=0)
    with pytest.raises(ConnectionRefusedError, match="NameNode http://localhost:(9|10)") as caught:
        client.status("/a")
    assert is_curable(caught.value)
    client = WebHdfs(["http://no.such.host.invalid:9870"], "alice", patience_s=0)
    with pytest.raises(OSError, match="no host of that name.*no.such.host.invalid"):
        client.status("/a")


def test_a_namenode_that_is_not_there_is_passed_over(cluster, url):
    (there,) = HadoopConf.load(cluster.environment).namenodes("")
    client = WebHdfs(["http://localhost:9", there], cluster.user, patience_s=0)
    assert client.status(path_of(url)).is_dir
    client.write(f"{path_of(url)}/a", b"x")
    assert client.read(f"{path_of(url)}/a") == b"x"


def test_a_wrong_user_is_told_who_owns_it(cluster, url, monkeypatch):
    mine = HdfsPath(url) / "keys"
    mine.mkdir(mode=0o700)
    (mine / "secret").replace_bytes(b"1", secret=True)
    acts = (
        lambda: (mine / "secret").read_bytes(),
        lambda: (HdfsPath(url) / "a").replace_bytes(b"x"),
        lambda: write_all(RemoteStorage(url), "a", DATA),
        lambda: write_all(RemoteStorage(url), "new/a", DATA),
        lambda: RemoteStorage(url).remove("keys"),
        lambda: (HdfsPath(url) / "more").mkdir(),
    )
    with monkeypatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", "mallory")
        for act in acts:
            with pytest.raises(PermissionError, match=f"user=mallory.*:{cluster.user}:.*as user mallory"):
                act()
    assert [one.name for one in HdfsPath(url).iterdir()] == ["keys"]


def test_a_file_where_a_folder_should_be(cluster, url):
    file = HdfsPath(url) / "file"
    file.replace_bytes(b"x")
    assert not (file / "a").exists()
    for act in ((file / "a").read_bytes, lambda: list(file.iterdir()), (file / "a").mkdir):
        with pytest.raises(NotADirectoryError):
            act()
    with pytest.raises(NotADirectoryError):
        (file / "a").replace_bytes(b"x")
    with pytest.raises(IsADirectoryError):
        HdfsPath(url).read_bytes()
    with pytest.raises(IsADirectoryError):
        HdfsPath(url).replace_bytes(b"x")
    with pytest.raises(OSError, match="is gone") as caught:
        RemoteStorage(str(file)).list()
    assert caught.value.errno == errno.ESTALE


def test_a_storage_that_is_gone_is_not_mistaken_for_an_empty_one(cluster, url, storage):
    write_all(storage, "a", b"x")
    HdfsPath(url).remove_tree()
    for act in (
        lambda: storage.list(),
        lambda: storage.list("f"),
        lambda: storage.exists("a"),
        lambda: storage.size("a"),
        lambda: storage.open("a"),
        lambda: storage.remove("a"),
        lambda: storage.sweep("f"),
        lambda: write_all(storage, "a", b"x"),
        lambda: write_all(storage, "f/a", b"x"),
    ):
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno == errno.ESTALE
    assert not HdfsPath(url).exists()


def test_an_invalid_name_is_told(cluster, url):
    with pytest.raises(OSError, match="Invalid") as caught:
        (HdfsPath(url) / "a:b").replace_bytes(b"x")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(ConfigError, match=r"\.\."):
        HdfsPath(f"{url}/../x")
