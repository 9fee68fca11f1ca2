import base64
import io
import sys

import pytest

from elasticflow.errors import ConfigError
from elasticflow.storage import tokens
from elasticflow.storage.tokens import Token, delegation_token, read_tokens
from elasticflow.storage.webhdfs import WebHdfs

# Written by Hadoop 3.4.2 (Credentials.writeTokenStorageToStream): three tokens and a secret.
WRITABLE = (
    "SERUUwADDGhhLWhkZnM6cHJvZARwcm9kFP/+/fz7+vn49/b19PPy8fDv7u3sFUhERlNfREVMRUdBVElPTl9UT0tFTgxoYS1oZGZz"
    "OnByb2QCYW0CYW0U//79/Pv6+fj39vX08/Lx8O/u7ewQWUFSTl9BTV9STV9UT0tFTgdybTo4MDMwDjEyNy4wLjAuMTo4MDIwj8gA"
    "Bw4VHCMqMTg/Rk1UW2JpcHd+hYyTmqGor7a9xMvS2eDn7vX8AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4/wYN"
    "FBsiKTA3PkVMU1phaG92fYSLkpmgp661vMPK0djf5u30+wIJEBceJSwzOkFIT1ZdZGtyeYCHjpWco6qxuL/GzdTb4unw9/4FDBMa"
    "ISgvNj1ES1JZYGdudXyDipGYn6attLvCydDX3uXs8/oBCA8WHSQrMjlAR05VXGNqcRT//v38+/r5+Pf29fTz8vHw7+7t7BVIREZT"
    "X0RFTEVHQVRJT05fVE9LRU4OMTI3LjAuMC4xOjgwMjABBnNlY3JldARodXNo"
)
PROTOBUF = (
    "SERUUwG+AwpRCgxoYS1oZGZzOnByb2QSQQoEcHJvZBIU//79/Pv6+fj39vX08/Lx8O/u7ewaFUhERlNfREVMRUdBVElPTl9UT0tF"
    "TiIMaGEtaGRmczpwcm9kCjsKAmFtEjUKAmFtEhT//v38+/r5+Pf29fTz8vHw7+7t7BoQWUFSTl9BTV9STV9UT0tFTiIHcm06ODAz"
    "MAqbAgoOMTI3LjAuMC4xOjgwMjASiAIKyAEABw4VHCMqMTg/Rk1UW2JpcHd+hYyTmqGor7a9xMvS2eDn7vX8AwoRGB8mLTQ7QklQ"
    "V15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4/wYNFBsiKTA3PkVMU1phaG92fYSLkpmgp661vMPK0djf5u30+wIJEBceJSwzOkFIT1Zd"
    "ZGtyeYCHjpWco6qxuL/GzdTb4unw9/4FDBMaISgvNj1ES1JZYGdudXyDipGYn6attLvCydDX3uXs8/oBCA8WHSQrMjlAR05VXGNq"
    "cRIU//79/Pv6+fj39vX08/Lx8O/u7ewaFUhERlNfREVMRUdBVElPTl9UT0tFTiIOMTI3LjAuMC4xOjgwMjASDgoGc2VjcmV0GgRo"
    "dXNo"
)
URL = (
    "j8gABw4VHCMqMTg_Rk1UW2JpcHd-hYyTmqGor7a9xMvS2eDn7vX8AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dzj6vH4"
    "_wYNFBsiKTA3PkVMU1phaG92fYSLkpmgp661vMPK0djf5u30-"
    "wIJEBceJSwzOkFIT1ZdZGtyeYCHjpWco6qxuL_GzdTb4unw9_4FDBMaISgvNj1ES1JZYGdudXyDipGYn6attLvCydDX3uXs8_oBC"
    "A8WHSQrMjlAR05VXGNqcRT__v38-_r5-Pf29fTz8vHw7-7t7BVIREZTX0RFTEVHQVRJT05fVE9LRU4OMTI3LjAuMC4xOjgwMjA"
)
"""What Token.encodeToUrlString makes of the one for 127.0.0.1:8020."""

PASSWORD = bytes(255 - i for i in range(20))
LONG = Token(bytes(i * 7 % 256 for i in range(200)), PASSWORD, "HDFS_DELEGATION_TOKEN", "127.0.0.1:8020")
NAMED = Token(b"prod", PASSWORD, "HDFS_DELEGATION_TOKEN", "ha-hdfs:prod")
OTHER = Token(b"am", PASSWORD, "YARN_AM_RM_TOKEN", "rm:8030")


@pytest.mark.parametrize("text", [WRITABLE, PROTOBUF], ids=["writable", "protobuf"])
def test_hadoops_own_files_are_read(text):
    assert sorted(read_tokens(base64.b64decode(text))) == sorted([LONG, NAMED, OTHER])


def test_a_token_is_encoded_as_hadoop_does():
    assert LONG.encoded() == URL


@pytest.mark.parametrize("text", [WRITABLE, PROTOBUF], ids=["writable", "protobuf"])
@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("127.0.0.1:8020", LONG.encoded()),
        ("localhost:8020", LONG.encoded()),
        ("prod", NAMED.encoded()),
        ("unheard.of.invalid:8020", ""),
        ("", ""),
    ],
)
def test_each_cluster_has_its_token(tmp_path, text, authority, expected):
    file = tmp_path / "container_tokens"
    file.write_bytes(base64.b64decode(text))
    assert delegation_token(str(file), authority) == expected


def test_the_only_token_serves_whatever_its_service_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "read_tokens", lambda data: [OTHER, NAMED])
    (tmp_path / "file").write_bytes(b"")
    assert delegation_token(str(tmp_path / "file"), "nn:8020") == NAMED.encoded()


@pytest.mark.parametrize(
    ("security", "expected"),
    [("kerberos", {"delegation": URL}), ("simple", {"user.name": "alice"}), ("", {"delegation": URL})],
)
def test_a_token_is_shown_where_security_is_on_or_may_be(tmp_path, security, expected):
    (tmp_path / "tokens").write_bytes(base64.b64decode(WRITABLE))
    environ = {
        "HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens"),
        "HADOOP_USER_NAME": "alice",
        "PATH": "",
    }
    if security:
        properties = (
            f"<property><name>hadoop.security.authentication</name><value>{security}</value></property>"
        )
        (tmp_path / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
        environ["HADOOP_CONF_DIR"] = str(tmp_path)
    client, path = WebHdfs.of("hdfs://127.0.0.1:8020/a", environ=environ)
    assert path == "/a"
    assert client._connections().client._session.params == expected
    assert WebHdfs.of("hdfs://127.0.0.1:8020/b", environ=environ)[0] is client
    assert URL not in repr(client) + repr(client._place)


def test_hdfs_without_its_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "hdfs.client", None)
    with pytest.raises(ConfigError, match="pip install hdfs"):
        WebHdfs(["http://nn:9870"], "alice").status("/a")


def test_kerberos_without_its_package_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "requests_kerberos", None)
    client = WebHdfs(["http://nn:9870"], "alice", is_secure=True)
    with pytest.raises(ConfigError, match="requests_kerberos is not installed.*HADOOP_TOKEN_FILE_LOCATION"):
        client.status("/a")


def test_without_a_file_there_is_no_token():
    assert delegation_token("", "nn:8020") == ""


@pytest.mark.parametrize("text", [WRITABLE, PROTOBUF], ids=["writable", "protobuf"])
def test_a_damaged_file_is_told(tmp_path, text):
    data = base64.b64decode(text)
    file = tmp_path / "container_tokens"
    for damaged in (b"", b"HDTS", b"XXTS" + data[4:], data[:4] + b"\7" + data[5:], data[: len(data) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=f"HADOOP_TOKEN_FILE_LOCATION={file}: cannot be read"):
            delegation_token(str(file), "nn:8020")
    with pytest.raises(ConfigError, match="cannot be read"):
        delegation_token(str(tmp_path / "none"), "nn:8020")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31 - 1])
def test_lengths_are_read_as_they_are_written(number):
    assert tokens._read_vint(io.BytesIO(tokens._vint(number))) == number
