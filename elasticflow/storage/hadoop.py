"""What Hadoop's own configuration files tell: where its NameNodes and ResourceManagers are, and for whom."""

from __future__ import annotations

import functools
import getpass
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticflow.errors import ConfigError
from elasticflow.storage.urls import SCHEMES

FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
DEFAULTS = {"dfs.http.policy": "HTTP_ONLY", "yarn.http.policy": "HTTP_ONLY"}
ASKING_S = 60.0
"""The longest that ``yarn classpath`` may take."""
_REFERENCE = re.compile(r"\$\{([^}$\s]+)\}")
_MOST_REPLACEMENTS = 20


@dataclass(frozen=True)
class HadoopConf:
    """The properties of a cluster; none where Hadoop is not configured. folder: where they were read."""

    properties: Mapping[str, str]
    folder: Path | None = None

    @classmethod
    def load(cls, environ: Mapping[str, str] = os.environ) -> HadoopConf:
        """Reads HADOOP_CONF_DIR, or where else the files are.

        That is YARN_CONF_DIR, ``$HADOOP_HOME/etc/hadoop``, the class path of a ``yarn`` or ``hadoop`` on
        PATH, ``/etc/hadoop/conf``. A folder that is named and holds no core-site.xml, or a file that is no
        XML, raises ConfigError.
        """
        folder = _find(environ)
        if folder is None:
            return cls({})
        raw: dict[str, str] = {}
        finals: set[str] = set()
        for name in FILES:
            for key, value, is_final in _read(folder / name):
                if key not in finals:
                    raw[key] = value
                    finals |= {key} if is_final else set()
        return cls({key: _replaced(value, raw, environ) for key, value in raw.items()}, folder)

    def get(self, name: str, default: str = "") -> str:
        """A property; Hadoop's own default only where this module needs it."""
        return self.properties.get(name, DEFAULTS.get(name, default))

    @property
    def default_fs(self) -> str:
        """The URL of the default file system, such as ``hdfs://nn:8020``; "" if there is none."""
        return self.get("fs.defaultFS") or self.get("fs.default.name")

    @property
    def authority(self) -> str:
        """Of the default file system: ``host:port`` or a name service; "" if it is not HDFS."""
        scheme, _, rest = self.default_fs.partition("://")
        return rest.split("/")[0] if scheme in SCHEMES else ""

    @property
    def name_services(self) -> list[str]:
        """Names that stand for several NameNodes, or for those of several file systems."""
        return _words(self.get("dfs.nameservices"))

    @property
    def is_secure(self) -> bool:
        """Whether Kerberos is asked for."""
        return self.get("hadoop.security.authentication", "simple").strip().lower() == "kerberos"

    def namenodes(self, authority: str) -> list[str]:
        """URLs of the NameNodes' HTTP servers behind the authority of an ``hdfs://`` URL; several for HA.

        authority: ``host:port`` (port of the RPC server), ``host``, or a name service; "": the default
        file system's. Raises ConfigError if that is none.
        """
        authority = authority or self.authority
        if not authority:
            raise ConfigError(
                f"{self._place}: the default file system is {self.default_fs or 'not set'!r}. Name the "
                "NameNode in the URL, as in hdfs://host:8020/path, or set HADOOP_CONF_DIR to the folder "
                "whose core-site.xml has fs.defaultFS."
            )
        scheme, key, port = ("http", "dfs.namenode.http-address", 9870)
        if self.get("dfs.http.policy").upper() == "HTTPS_ONLY":
            scheme, key, port = ("https", "dfs.namenode.https-address", 9871)
        if authority in self.name_services:
            ids = _words(self.get(f"dfs.ha.namenodes.{authority}"))
            keys = [f"{key}.{authority}.{one}" for one in ids] or [f"{key}.{authority}"]
            rpc = "dfs.namenode.rpc-address"
            pairs = [(self.get(name), self.get(name.replace(key, rpc, 1))) for name in keys]
            found = [_address(http, _split(rpc)[0], port) for http, rpc in pairs if http or rpc]
            if not found:
                raise ConfigError(
                    f"{self._place}: name service {authority!r} has no address; expected {keys[0]}."
                )
            return [f"{scheme}://{one}" for one in found]
        host, rpc_port = _split(authority)
        known_host, known_port = _split(self.authority)
        # The address that is configured is the default file system's; another's has the default port.
        is_known = host == known_host and rpc_port in ("", known_port or "8020")
        configured = self.get(key) if is_known else ""
        return [f"{scheme}://{_address(configured, host, port)}"]

    def resource_managers(self) -> list[str]:
        """URLs of the ResourceManagers' HTTP servers; several for HA."""
        scheme, key, port = ("http", "yarn.resourcemanager.webapp.address", 8088)
        if self.get("yarn.http.policy").upper() == "HTTPS_ONLY":
            scheme, key, port = ("https", "yarn.resourcemanager.webapp.https.address", 8090)
        ids = _words(self.get("yarn.resourcemanager.ha.rm-ids"))
        if self.get("yarn.resourcemanager.ha.enabled").lower() != "true":
            ids = []
        found = []
        for suffix in [f".{one}" for one in ids] or [""]:
            host = self.get(f"yarn.resourcemanager.hostname{suffix}")
            host = host or _split(self.get(f"yarn.resourcemanager.address{suffix}"))[0] or "localhost"
            found.append(f"{scheme}://{_address(self.get(key + suffix), host, port)}")
        return found

    def user(self, environ: Mapping[str, str] = os.environ) -> str:
        """For whom Hadoop is asked: HADOOP_USER_NAME where security is off, else who is logged in."""
        return (not self.is_secure and environ.get("HADOOP_USER_NAME")) or getpass.getuser()

    @property
    def _place(self) -> str:
        return str(self.folder or "Hadoop's configuration (not found)")


def _find(environ: Mapping[str, str]) -> Path | None:
    """The folder with the configuration files."""
    for variable in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        if named := environ.get(variable):
            if not (Path(named) / FILES[0]).is_file():
                raise ConfigError(f"{variable}={named}: there is no {FILES[0]}. Correct the variable.")
            return Path(named)
    home = environ.get("HADOOP_HOME")
    if home and (Path(home, "etc", "hadoop") / FILES[0]).is_file():
        return Path(home, "etc", "hadoop")
    found = _on_class_path(environ.get("PATH", ""), environ.get("JAVA_HOME", ""))
    standard = Path("/etc/hadoop/conf")
    return found or (standard if (standard / FILES[0]).is_file() else None)


@functools.lru_cache
def _on_class_path(path: str, java_home: str) -> Path | None:
    """The first folder with a core-site.xml on the class path of an installed Hadoop."""
    for command in ("yarn", "hadoop"):
        if executable := shutil.which(command, path=path):
            try:
                answer = subprocess.run(
                    [executable, "classpath", "--glob"],
                    env={**os.environ, "PATH": path} | ({"JAVA_HOME": java_home} if java_home else {}),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=ASKING_S,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            for entry in answer.stdout.strip().split(os.pathsep):
                if entry and (Path(entry) / FILES[0]).is_file():
                    return Path(entry)
    return None


def _read(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Name and value of each property, and whether it is final; nothing if there is no such file."""
    try:
        root = ElementTree.parse(path).getroot()
    except FileNotFoundError:
        return
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}.") from error
    for one in root.iter("property"):
        name, value, final = ((one.findtext(tag) or "").strip() for tag in ("name", "value", "final"))
        if name:
            yield name, value, final == "true"


def _replaced(value: str, raw: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """A value with its ``${name}`` and ``${env.NAME}`` filled in, as far as they are known."""

    def known(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("env."):
            variable, _, default = re.sub(":?-", "\0", name[4:], count=1).partition("\0")
            return environ.get(variable, default)
        if name == "user.name":
            return getpass.getuser()
        return raw.get(name, match[0])

    for _ in range(_MOST_REPLACEMENTS):
        value, before = _REFERENCE.sub(known, value), value
        if value == before:
            break
    return value


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _split(authority: str) -> tuple[str, str]:
    """Host and port ("": none); brackets of an IPv6 address stay."""
    if authority.endswith("]") or ":" not in authority:
        return authority, ""
    host, _, port = authority.rpartition(":")
    return host, port


def _address(configured: str, host: str, port: int) -> str:
    """``host:port`` of an HTTP server. host, port: where nothing, or all addresses, are configured."""
    found, found_port = _split(configured)
    if found in ("", "0.0.0.0", "[::]"):
        found = host
    return f"{found}:{found_port or port}"
