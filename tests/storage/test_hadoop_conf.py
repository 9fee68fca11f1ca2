import getpass
import os
import stat

import pytest

from elasticflow.errors import ConfigError
from elasticflow.storage.hadoop import HadoopConf


def named(properties):
    return HadoopConf(properties)


def write(folder, name="core-site.xml", **properties):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(
        f"<property><name>{key.replace('_', '.')}</name><value>{value}</value></property>"
        for key, value in properties.items()
    )
    (folder / name).write_text(f"<?xml version='1.0'?><configuration>{text}</configuration>")
    return folder


HA = {
    "fs.defaultFS": "hdfs://prod",
    "dfs.nameservices": "prod, other",
    "dfs.ha.namenodes.prod": "nn1,nn2",
    "dfs.namenode.rpc-address.prod.nn1": "a:8020",
    "dfs.namenode.rpc-address.prod.nn2": "b:8020",
    "dfs.namenode.http-address.prod.nn1": "a:50070",
    "dfs.namenode.http-address.prod.nn2": "0.0.0.0:50070",
    "dfs.namenode.https-address.prod.nn1": "a:50470",
    "dfs.namenode.rpc-address.other": "c:8020",
}


@pytest.mark.parametrize(
    ("properties", "authority", "expected"),
    [
        ({}, "nn:8020", ["http://nn:9870"]),
        ({}, "nn", ["http://nn:9870"]),
        ({}, "[::1]:8020", ["http://[::1]:9870"]),
        ({"dfs.http.policy": "HTTPS_ONLY"}, "nn", ["https://nn:9871"]),
        ({"dfs.http.policy": "HTTP_AND_HTTPS"}, "nn", ["http://nn:9870"]),
        ({"fs.defaultFS": "hdfs://nn:9000"}, "", ["http://nn:9870"]),
        ({"fs.defaultFS": "hdfs://nn:9000/"}, "nn:9000", ["http://nn:9870"]),
        (
            {"fs.defaultFS": "hdfs://nn:9000", "dfs.namenode.http-address": "0.0.0.0:1234"},
            "",
            ["http://nn:1234"],
        ),
        (
            {"fs.defaultFS": "hdfs://nn", "dfs.namenode.http-address": "web:1234"},
            "nn:8020",
            ["http://web:1234"],
        ),
        (
            {"fs.defaultFS": "hdfs://nn:9000", "dfs.namenode.http-address": "web:1234"},
            "far:9000",
            ["http://far:9870"],
        ),
        (HA, "", ["http://a:50070", "http://b:50070"]),
        (HA, "prod", ["http://a:50070", "http://b:50070"]),
        (HA | {"dfs.http.policy": "HTTPS_ONLY"}, "prod", ["https://a:50470", "https://b:9871"]),
        (HA, "other", ["http://c:9870"]),
        (HA, "elsewhere:8020", ["http://elsewhere:9870"]),
    ],
)
def test_where_the_namenodes_are(properties, authority, expected):
    assert named(properties).namenodes(authority) == expected


@pytest.mark.parametrize("default", ["", "file:///", "s3a://bucket"])
def test_without_a_default_file_system_the_url_must_name_one(default):
    with pytest.raises(ConfigError, match="hdfs://host:8020/path.*HADOOP_CONF_DIR"):
        named({"fs.defaultFS": default}).namenodes("")


def test_a_name_service_without_addresses_is_told():
    with pytest.raises(ConfigError, match="'prod' has no address.*dfs.namenode.http-address.prod.nn1"):
        named({"dfs.nameservices": "prod", "dfs.ha.namenodes.prod": "nn1"}).namenodes("prod")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ["http://localhost:8088"]),
        ({"yarn.resourcemanager.hostname": "rm"}, ["http://rm:8088"]),
        ({"yarn.resourcemanager.address": "rm:8032"}, ["http://rm:8088"]),
        (
            {"yarn.resourcemanager.hostname": "rm", "yarn.resourcemanager.webapp.address": "0.0.0.0:99"},
            ["http://rm:99"],
        ),
        ({"yarn.resourcemanager.hostname": "rm", "yarn.http.policy": "HTTPS_ONLY"}, ["https://rm:8090"]),
        (
            {
                "yarn.resourcemanager.ha.enabled": "true",
                "yarn.resourcemanager.ha.rm-ids": "rm1,rm2",
                "yarn.resourcemanager.hostname.rm1": "a",
                "yarn.resourcemanager.webapp.address.rm2": "b:99",
            },
            ["http://a:8088", "http://b:99"],
        ),
    ],
)
def test_where_the_resource_managers_are(properties, expected):
    assert named(properties).resource_managers() == expected


def test_properties_are_read_and_filled_in(tmp_path):
    folder = write(
        tmp_path / "conf",
        fs_defaultFS="hdfs://${my.host}:${port}",
        my_host="${env.NN_HOST:-nobody}",
        port="9000",
        unknown="${no.such.thing}",
        me="${user.name}",
        circle="${circle}x",
    )
    write(folder, "hdfs-site.xml", port="9001", dfs_replication=" 2 ")
    found = HadoopConf.load({"HADOOP_CONF_DIR": str(folder), "NN_HOST": "nn"})
    assert found.folder == folder
    assert found.default_fs == "hdfs://nn:9001"
    assert found.authority == "nn:9001"
    assert found.get("dfs.replication") == "2"
    assert found.get("unknown") == "${no.such.thing}"
    assert found.get("me") == getpass.getuser()
    assert found.get("nothing", "else") == "else"
    without = HadoopConf.load({"HADOOP_CONF_DIR": str(folder)})
    assert without.default_fs == "hdfs://nobody:9001"


def test_a_final_property_stays(tmp_path):
    folder = write(tmp_path, port="1")
    text = (folder / "core-site.xml").read_text().replace("</value>", "</value><final>true</final>")
    (folder / "core-site.xml").write_text(text)
    write(folder, "hdfs-site.xml", port="2")
    assert HadoopConf.load({"HADOOP_CONF_DIR": str(folder)}).get("port") == "1"


def test_where_the_files_are_looked_for(tmp_path):
    one, two, three, four = (write(tmp_path / name) for name in ("one", "two", "home/etc/hadoop", "path"))
    (tmp_path / "bin").mkdir()
    yarn = tmp_path / "bin" / "yarn"
    yarn.write_text(f"#!/bin/sh\necho /no/such/folder:{four}:/x.jar\n")
    yarn.chmod(yarn.stat().st_mode | stat.S_IXUSR)
    environ = {
        "HADOOP_CONF_DIR": str(one),
        "YARN_CONF_DIR": str(two),
        "HADOOP_HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }
    for expected in (one, two, three, four):
        assert HadoopConf.load(environ).folder == expected
        del environ[next(iter(environ))]


def test_without_hadoop_there_are_no_properties(tmp_path):
    found = HadoopConf.load({"PATH": str(tmp_path)})
    assert found.folder is None or str(found.folder) == "/etc/hadoop/conf"
    if found.folder is None:
        assert not found.properties


def test_a_wrong_folder_and_a_broken_file_are_told(tmp_path):
    with pytest.raises(ConfigError, match=f"HADOOP_CONF_DIR={tmp_path}: there is no core-site.xml"):
        HadoopConf.load({"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match="core-site.xml: cannot be read"):
        HadoopConf.load({"HADOOP_CONF_DIR": str(tmp_path)})


def test_for_whom_hadoop_is_asked():
    assert named({}).user({"HADOOP_USER_NAME": "alice"}) == "alice"
    assert named({}).user({}) == getpass.getuser()
    secure = named({"hadoop.security.authentication": "Kerberos"})
    assert secure.is_secure
    assert secure.user({"HADOOP_USER_NAME": "alice"}) == getpass.getuser()
