"""HDFS over its HTTP interface, WebHDFS: what a run needs of it, retried where that is safe, then told.

The NameNode answers for names and says which DataNode has, or takes, the bytes; those go over a
connection of their own straight from and into the caller's memory. Who asks, and how that is proven, is
the ``hdfs`` package's part. Every failure is an OSError whose text names the machine that was asked.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import secrets
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from elasticflow.errors import ConfigError
from elasticflow.process.retry import Backoff
from elasticflow.storage.datanode import DataNode, Reading, Writing, certificates
from elasticflow.storage.hadoop import HadoopConf
from elasticflow.storage.names import TEMPORARY
from elasticflow.storage.range_file import RangeFile
from elasticflow.storage.refusals import Passing, reason, refusal
from elasticflow.storage.remote import FileStatus, Statuses
from elasticflow.storage.tokens import delegation_token
from elasticflow.storage.urls import PATIENCE_S, split

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

CONNECT_S = 5.0
ANSWER_S = 20.0
"""The longest silence of a NameNode."""
DATA_S = 90.0
"""The longest silence of a DataNode: longer than one waits for another that is dead (60 s)."""
BUFFER_BYTES = 1 << 16
"""Of a file that is open; what is read at once and longer passes by it."""
_FIRST_DELAY_S, _MOST_DELAY_S = 0.1, 3.0


@dataclass(frozen=True)
class _HdfsPlace:
    """A cluster, as one user sees it."""

    namenodes: tuple[str, ...]
    user: str
    token: str = field(repr=False)
    is_secure: bool


class _Connections:
    """One process's connections to the NameNodes of a place."""

    def __init__(self, place: _HdfsPlace, connect_s: float, answer_s: float) -> None:
        try:
            import requests
            from hdfs.client import InsecureClient, TokenClient
            from requests.adapters import HTTPAdapter
        except ImportError as error:
            raise ConfigError(
                f"HDFS is reached by the package 'hdfs': {error}. Run: pip install hdfs"
            ) from error

        session = requests.Session()
        session.trust_env = False  # no proxy stands between a cluster's machines
        session.verify = certificates() or True
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=64))
        url = ";".join(place.namenodes)
        options = {"timeout": (connect_s, answer_s), "session": session}
        self.client: Any
        if place.token:
            self.client = TokenClient(url, place.token, **options)
        elif place.is_secure:
            try:
                from hdfs.ext.kerberos import KerberosClient
            except ImportError as error:
                raise ConfigError(
                    f"{url} asks for Kerberos, and {error.name} is not installed. Install "
                    "'requests-kerberos', or have HADOOP_TOKEN_FILE_LOCATION name a file with a token."
                ) from error
            self.client = KerberosClient(url, **options)
        else:
            self.client = InsecureClient(url, place.user, **options)
        self.current = 0
        """Number of the NameNode that is asked: the one that answered last."""


_connections: dict[tuple[_HdfsPlace, float, float], _Connections] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a process that was forked: what is open is the parent's, and the lock may be held by nobody."""
    global _lock
    _connections.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


class WebHdfs:
    """A cluster's files, for one user. Threads may share it, and it may be used after a fork.

    patience_s: how long what may pass is tried again: a NameNode that restarts, stands by or is in safe mode,
    a dead DataNode, an answer that ends early. connect_s, answer_s, data_s: the longest wait for a
    connection, for a NameNode's answer, for a DataNode's next bytes.
    """

    def __init__(
        self,
        namenodes: list[str],
        user: str,
        *,
        token: str = "",
        is_secure: bool = False,
        patience_s: float = PATIENCE_S,
        connect_s: float = CONNECT_S,
        answer_s: float = ANSWER_S,
        data_s: float = DATA_S,
    ) -> None:
        self._place = _HdfsPlace(tuple(namenodes), user, token, is_secure)
        self._connect_s, self._answer_s, self._data_s = connect_s, answer_s, data_s
        self._backoff = Backoff(first_s=_FIRST_DELAY_S, most_s=_MOST_DELAY_S, patience_s=patience_s)
        self._leftovers: set[str] = set()
        """Temporary files that could not be removed when writing them failed."""

    def __repr__(self) -> str:
        return f"WebHdfs({', '.join(self._place.namenodes)} as {self._place.user})"

    @classmethod
    def of(
        cls, url: str, patience_s: float = PATIENCE_S, environ: Mapping[str, str] = os.environ
    ) -> tuple[WebHdfs, str]:
        """The cluster that a URL names, as Hadoop's configuration tells, and the absolute path on it.

        One client serves all who ask for the same. Raises ConfigError.
        """
        scheme, authority, path = split(url)
        settings = tuple((name, environ[name]) for name in _VARIABLES if name in environ)
        key = (scheme, authority, patience_s, settings)
        if key not in _clients:
            _clients[key] = _client(scheme, authority, patience_s, dict(settings))
        return _clients[key], path

    # --- names -----------------------------------------------------------------------------------

    def status(self, path: str) -> FileStatus:
        """Raises FileNotFoundError, and NotADirectoryError if what would be its folder is a file."""
        answer = self._json("GET", "GETFILESTATUS", path)
        return _status(path, posixpath.basename(path), answer["FileStatus"])

    def list(self, path: str) -> Statuses:
        """What a folder holds, sorted by name. Raises NotADirectoryError for a file."""
        found = self._json("GET", "LISTSTATUS", path)["FileStatuses"]["FileStatus"]
        if len(found) == 1 and not found[0]["pathSuffix"]:
            raise self._error(errno.ENOTDIR, "is a file, not a folder", path)
        children = [_status(posixpath.join(path, one["pathSuffix"]), one["pathSuffix"], one) for one in found]
        return sorted(children)

    def whoami(self) -> str:
        """Whom the NameNode takes this process for: whose home it names."""
        return posixpath.basename(str(self._json("GET", "GETHOMEDIRECTORY", "/")["Path"]))

    def mkdirs(self, path: str, permission: int | None = None) -> None:
        """Creates a folder and those above it; one that is there stays as it is. Raises FileExistsError."""
        self._json("PUT", "MKDIRS", path, **_mode(permission))

    def mkdir(self, path: str, permission: int | None = None) -> None:
        """Creates a folder that nobody else has created. Raises FileExistsError."""
        temporary = _temporary(path)
        self.mkdirs(temporary, permission)
        try:
            self.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                self.remove(temporary)
            raise

    def set_permission(self, path: str, permission: int) -> None:
        """Such as 0o700."""
        self.retried(lambda: self._ask("PUT", "SETPERMISSION", path, **_mode(permission)))

    def remove(self, path: str, recursive: bool = True) -> None:
        """Removes a file or folder; what is not there is no error."""
        self._json("DELETE", "DELETE", path, recursive=str(recursive).lower())

    def sweep(self, path: str) -> None:
        """Nothing: what was begun has a hidden name."""

    def rename(self, source: str, target: str, overwrite: bool = False) -> None:
        """Gives a file another name, atomically; never moves into a folder, nor over one.

        Raises FileExistsError if the name is taken and not to be overwritten.
        """
        self._rename(self.status(source), target, overwrite)

    def _rename(self, source: FileStatus, target: str, overwrite: bool) -> None:
        option, tries = "OVERWRITE" if overwrite else "NONE", 0

        def act() -> None:
            nonlocal tries
            tries += 1
            try:
                self._ask("PUT", "RENAME", source.path, destination=target, renameoptions=option)
            except (FileNotFoundError, FileExistsError) as error:
                # An earlier try may have done it, and its answer was lost: the file has kept its id.
                there = self._find(target)
                is_done = there is not None and there.id == source.id
                if overwrite and tries > 1 and isinstance(error, FileNotFoundError):
                    is_done = there is not None  # and somebody overwrote it since
                if not is_done and overwrite and isinstance(error, FileExistsError):
                    raise self._error(errno.EISDIR, "is a folder, not a file", target) from None
                if not is_done:
                    raise

        self.retried(act)

    def find(self, path: str) -> FileStatus | None:
        """Its status; None if there is no such file or folder."""
        return self.retried(lambda: self._find(path))

    def _find(self, path: str) -> FileStatus | None:
        try:
            answer = self._ask("GET", "GETFILESTATUS", path).json()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _status(path, posixpath.basename(path), answer["FileStatus"])

    # --- reading ---------------------------------------------------------------------------------

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """A file's bytes from ``offset`` on, all of one version; fewer than ``length`` where it ends."""
        excluded = set[str]()

        def act() -> bytes:  # all over again: while it failed, the file may have been replaced
            try:
                stream = self.stream(path, offset, length, excluded)
            except OSError as error:
                if error.errno == errno.ESPIPE:  # the file ends before
                    return b""
                raise
            buffer = bytearray(stream.left)
            with _excluding(stream.node, excluded), stream:
                while stream.left:
                    stream.readinto(memoryview(buffer)[len(buffer) - stream.left :])
            return bytes(buffer)

        return self.retried(act) if length != 0 else b""

    def open(self, path: str) -> BinaryIO:
        """A file, to read and seek in. Raises FileNotFoundError, IsADirectoryError."""
        status = self.status(path)
        if status.is_dir:
            raise self._error(errno.EISDIR, "is a folder, not a file", path)
        return io.BufferedReader(RangeFile(self, path, status.length), BUFFER_BYTES)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> int:
        """Fills a buffer with a file's bytes from ``offset`` on; returns how many there were."""
        view, done, excluded = buffer.cast("B"), 0, set[str]()

        def act() -> int:
            nonlocal done
            while done < len(view):
                try:
                    stream = self.stream(path, offset + done, len(view) - done, excluded)
                except OSError as error:
                    if error.errno == errno.ESPIPE:  # the file ends here
                        break
                    raise
                with _excluding(stream.node, excluded), stream:
                    before = done
                    while stream.left:
                        done += stream.readinto(view[done:])
                if done == before:
                    break
            return done

        return self.retried(act)

    def stream(self, path: str, offset: int, length: int | None, excluded: set[str]) -> Reading:
        """Opens a range of a file, in one try. Raises Passing, OSError.

        length: None: up to its end. excluded: addresses of DataNodes that are not to be asked; one that
        fails is added.
        """
        limit = {} if length is None else {"length": length}
        node = self._datanode("GET", "OPEN", path, excluded, offset=offset, **limit)
        with _excluding(node, excluded):
            return node.read()

    # --- writing ---------------------------------------------------------------------------------

    @contextmanager
    def create(
        self,
        path: str,
        *,
        overwrite: bool = False,
        permission: int | None = None,
        replication: int | None = None,
    ) -> Iterator[Writing]:
        """A new file, to write from front to back; at the end of the ``with`` it is there, whole, for good.

        What is written goes straight to a DataNode. Until the end nobody sees it under its name; if the
        body raises, nobody ever does. Its folder must be there. Raises FileExistsError if the name is
        taken. What fails on the way is told at once: the whole has to be written again.
        """
        self._clear_leftovers()
        folder, temporary = posixpath.dirname(path), _temporary(path)
        options = _mode(permission) | ({"replication": replication} if replication else {})
        writing = self._open_writing(temporary, options)
        is_done = False
        try:
            with closing(writing):
                yield writing
                writing.finish()
            there = self.status(temporary)
            if there.length != writing.num_bytes:
                words = f"{there.length} of {writing.num_bytes} bytes have arrived"
                raise self._error(errno.EIO, words, path)
            self._rename(there, path, overwrite)
            is_done = True
        except OSError as error:
            if error is writing.failure and error.errno != errno.EAGAIN:
                with suppress(Passing):  # the DataNode may have had no time to say that this is why
                    self._ask("GET", "CHECKACCESS", folder, fsaction="-wx")
            raise
        finally:
            if not is_done:
                self._leftovers.add(temporary)
                self._clear_leftovers()

    def write(self, path: str, data: bytes, overwrite: bool = False, permission: int | None = None) -> None:
        """Writes a whole file, atomically; tries again what may pass. Raises FileExistsError."""

        def act() -> None:
            file: Writing | None = None
            try:
                with self.create(path, overwrite=overwrite, permission=permission) as file:
                    file.write(data)
            except OSError as error:
                if file is not None and file.failure is error:
                    raise Passing(error) from error
                raise

        self.retried(act)

    def _open_writing(self, path: str, options: dict[str, Any]) -> Writing:
        excluded = set[str]()

        def act() -> Writing:
            # createparent: otherwise HDFS would make the folder anew of a storage that is gone.
            node = self._datanode(
                "PUT", "CREATE", path, excluded, overwrite="false", createparent="false", **options
            )
            with _excluding(node, excluded):
                return node.write()

        return self.retried(act)

    def _clear_leftovers(self) -> None:
        """Removes what can be removed, in one try each."""
        for temporary in tuple(self._leftovers):
            with suppress(OSError, Passing):
                self._ask("DELETE", "DELETE", temporary, recursive="false")
                self._leftovers.discard(temporary)

    # --- asking ----------------------------------------------------------------------------------

    def retried(self, act: Callable[[], T]) -> T:
        """Does what may raise Passing, with each NameNode in turn, until the patience ends."""
        failures, first_s = 0, 0.0
        while True:
            try:
                return act()
            except Passing as passing:
                failures, first_s = failures + 1, first_s or time.monotonic()
                rounds, within = divmod(failures, len(self._place.namenodes))
                if within:
                    continue  # another NameNode first
                delay_s = self._backoff.delay_s(time.monotonic() - first_s, rounds)
                if delay_s is None:
                    raise passing.error from passing.__cause__
                time.sleep(delay_s)

    def _json(self, method: str, op: str, path: str, **params: Any) -> Any:
        return self.retried(lambda: self._ask(method, op, path, **params).json())

    def _ask(self, method: str, op: str, path: str, **params: Any) -> requests.Response:
        """One request to one NameNode. Raises OSError, or Passing; then another NameNode is the next."""
        import requests

        connections = self._connections()
        number = connections.current
        namenode = self._place.namenodes[number % len(self._place.namenodes)]
        url = f"{namenode}/webhdfs/v1{urllib.parse.quote(path)}"
        try:
            response: requests.Response = connections.client._request(
                method, url, params={"op": op, **params}, allow_redirects=False
            )
            if response.status_code < 400:
                return response
            who = f"NameNode {namenode}"
            error = refusal(response.status_code, response.content, path, who, self._place.user)
        except requests.exceptions.RequestException as problem:
            error = Passing(self._error(*reason(problem), path, f"NameNode {namenode}"))
            error.__cause__ = problem
        if isinstance(error, Passing) and connections.current == number:
            connections.current = number + 1
        raise error

    def _connections(self) -> _Connections:
        key = (self._place, self._connect_s, self._answer_s)
        if (found := _connections.get(key)) is None:
            with _lock:
                if (found := _connections.get(key)) is None:
                    found = _connections[key] = _Connections(*key)
        return found

    def _datanode(self, method: str, op: str, path: str, excluded: set[str], **params: Any) -> DataNode:
        """The DataNode that the NameNode chooses for a transfer."""
        if excluded:
            params["excludedatanodes"] = ",".join(sorted(excluded))
        try:
            response = self._ask(method, op, path, noredirect="true", **params)
        except Passing:
            excluded.clear()  # there may be no other left
            raise
        location = response.headers.get("Location") or response.json()["Location"]
        return DataNode(location, path, self._place.user, self._connect_s, self._data_s)

    def _error(self, code: int, words: str, path: str, who: str = "") -> OSError:
        who = who or f"NameNode {', '.join(self._place.namenodes)}"
        return OSError(code, f"{words} ({who})", path)


_VARIABLES = (
    "HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME", "PATH", "JAVA_HOME", "HADOOP_USER_NAME",
    "HADOOP_TOKEN_FILE_LOCATION",
)  # fmt: skip
"""Of the environment, what decides where HDFS is and who asks."""
_clients: dict[tuple[str, str, float, tuple[tuple[str, str], ...]], WebHdfs] = {}


def _client(scheme: str, authority: str, patience_s: float, environ: Mapping[str, str]) -> WebHdfs:
    conf = HadoopConf.load(environ)
    if scheme == "hdfs" or authority in conf.name_services:
        namenodes = conf.namenodes(authority)
    else:
        protocol, port = ("http", 9870) if scheme == "webhdfs" else ("https", 9871)
        has_port = ":" in authority.rpartition("]")[2]
        namenodes = [f"{protocol}://{authority}" + ("" if has_port else f":{port}")]
    # Where security is off, a token is not looked at, and whoever shows it is nobody.
    file = environ.get("HADOOP_TOKEN_FILE_LOCATION", "") if conf.is_secure or not conf.properties else ""
    token = delegation_token(file, authority or conf.authority)
    return WebHdfs(
        namenodes, conf.user(environ), token=token, is_secure=conf.is_secure, patience_s=patience_s
    )


@contextmanager
def _excluding(node: DataNode, excluded: set[str]) -> Iterator[None]:
    try:
        yield
    except Passing:
        excluded.add(node.address)
        raise


def _status(path: str, name: str, one: Mapping[str, Any]) -> FileStatus:
    return FileStatus(
        path=path,
        name=name,
        length=one["length"],
        is_dir=one["type"] == "DIRECTORY",
        modified_at=one["modificationTime"] / 1000,
        permission=int(one["permission"], 8),
        owner=one["owner"],
        id=one.get("fileId", 0),
    )


def _temporary(path: str) -> str:
    """A hidden name in the same folder, of one's own."""
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f".{name}.{secrets.token_hex(8)}{TEMPORARY}")


def _mode(permission: int | None) -> dict[str, Any]:
    return {} if permission is None else {"permission": f"{permission:o}"}
