"""Which run an application is, or was, the leader of, by ``elasticflow.cluster.index`` in the user's folder
on HDFS, so that it is found from every gateway."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

from elasticflow.cluster.index import IndexEntry, JobIndex
from elasticflow.errors import ElasticFlowError, UnknownError
from elasticflow.run.folder import RunPath
from elasticflow.storage.hadoop import HadoopConf
from elasticflow.storage.hdfs import HdfsPath
from elasticflow.storage.urls import PATIENCE_S

FIND_S = 2.0
"""People who look for a run wait no longer than this for an HDFS that is away."""
_ID = re.compile(r"application_(\d+)_(\d+)")


def home(environ: Mapping[str, str] = os.environ, patience_s: float = PATIENCE_S) -> HdfsPath:
    """Where a user's runs, and this index, lie. Raises ConfigError where HDFS is not configured."""
    conf = HadoopConf.load(environ)
    return HdfsPath(f"hdfs:///user/{conf.user(environ)}/elasticflow", patience_s)


def add(application: str, name: str, run_dir: str, environ: Mapping[str, str] = os.environ) -> None:
    """Remembers an application; an index that cannot be written is no reason not to run it."""
    with contextlib.suppress(OSError, ElasticFlowError):
        _index(home(environ)).add(IndexEntry(application, name, run_dir))


def entries(text: str, environ: Mapping[str, str] = os.environ) -> Iterator[IndexEntry]:
    """See ``elasticflow.cluster.index``. The name of a run's folder does as well.

    Quick and quiet where there is no Hadoop.
    """
    if unasked(environ):
        return
    try:
        index = _index(home(environ, FIND_S))
        if is_id(text):
            yield from filter(None, [index.get(text)])
        else:
            yield from index.meant(text, lambda entry: text in _names(entry))
    except FileNotFoundError:
        return  # nothing was submitted yet
    except (OSError, ElasticFlowError) as error:
        raise UnknownError(f"the list of runs on HDFS cannot be read: {error}") from error


def is_id(text: str) -> bool:
    """Whether it has the form of an application's id."""
    return bool(_ID.fullmatch(text))


def unasked(environ: Mapping[str, str] = os.environ) -> str:
    """Why runs on YARN cannot be known here; "": they can."""
    with contextlib.suppress(ElasticFlowError):
        if HadoopConf.load(environ).default_fs:
            return ""
    return "YARN was not asked: HADOOP_CONF_DIR names no configuration"


def _index(home: HdfsPath) -> JobIndex:
    return JobIndex(home / "jobs", _age)


def _names(entry: IndexEntry) -> tuple[str, str]:
    """The application's, and that of the run's folder."""
    return entry.name, entry.run_dir.rstrip("/").rpartition("/")[2]


def _age(path: RunPath) -> tuple[int, int] | None:
    """By the applications' ids, which grow."""
    match = _ID.match(path.name)
    return (int(match[1]), int(match[2])) if match else None
