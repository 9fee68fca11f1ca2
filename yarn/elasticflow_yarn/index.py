"""Which run an application is, or was, the leader of: YARN forgets applications, and people name them.

One small file an application, in the user's folder on HDFS, so that it is found from every gateway.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

import msgspec

from elasticflow.errors import ElasticFlowError
from elasticflow.run.folder import publish
from elasticflow.storage.hadoop import HadoopConf
from elasticflow.storage.hdfs import HdfsPath
from elasticflow.storage.webhdfs import PATIENCE_S

KEPT = 1000
FIND_S = 2.0
"""People who look for a run wait no longer than this for an HDFS that is away."""
_ID = re.compile(r"application_(\d+)_(\d+)")


class YarnEntry(msgspec.Struct, frozen=True):
    """An application."""

    id: str
    name: str
    run_dir: str


def home(environ: Mapping[str, str] = os.environ, patience_s: float = PATIENCE_S) -> HdfsPath:
    """Where a user's runs, and this index, lie. Raises ConfigError where HDFS is not configured."""
    conf = HadoopConf.load(environ)
    return HdfsPath(f"hdfs:///user/{conf.user(environ)}/elasticflow", patience_s)


def add(application: str, name: str, run_dir: str, environ: Mapping[str, str] = os.environ) -> None:
    """Remembers an application; an index that cannot be written is no reason not to run it."""
    with contextlib.suppress(OSError, ElasticFlowError):
        jobs = home(environ) / "jobs"
        jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(jobs / f"{application}.json", YarnEntry(application, name, run_dir))
        for path in _newest_first(jobs)[KEPT:]:
            path.unlink(missing_ok=True)


def find(text: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The folder of the newest run that has this name, or whose application has this id or name; None if none
    is known.

    Quick and quiet where there is no Hadoop.
    """
    with contextlib.suppress(OSError, ElasticFlowError):
        if HadoopConf.load(environ).default_fs:
            jobs = home(environ, FIND_S) / "jobs"
            if _ID.fullmatch(text):
                entry = _read(jobs / f"{text}.json")
                return entry.run_dir if entry else None
            known = (_read(path) for path in _newest_first(jobs))
            return next((entry.run_dir for entry in known if entry and text in _names(entry)), None)
    return None


def unasked(environ: Mapping[str, str] = os.environ) -> str:
    """Why runs on YARN cannot be known here; "": they can."""
    with contextlib.suppress(ElasticFlowError):
        if HadoopConf.load(environ).default_fs:
            return ""
    return "YARN was not asked: HADOOP_CONF_DIR names no configuration"


def _names(entry: YarnEntry) -> tuple[str, str]:
    """The application's, and that of the run's folder."""
    return entry.name, entry.run_dir.rstrip("/").rpartition("/")[2]


def _newest_first(jobs: HdfsPath) -> list[HdfsPath]:
    """By the applications' ids, which grow."""
    found = [(_ID.match(path.name), path) for path in jobs.iterdir()]
    numbered = [((int(match[1]), int(match[2])), path) for match, path in found if match]
    return [path for _, path in sorted(numbered, key=lambda pair: pair[0], reverse=True)]


def _read(path: HdfsPath) -> YarnEntry | None:
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=YarnEntry)
    return None
