"""HDFS: whether it is reached, may be written, and renames. And tickets of Kerberos."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.errors import ConfigError
from elasticflow.run.config import Config
from elasticflow.storage.hadoop import HadoopConf
from elasticflow.storage.urls import is_hdfs

if TYPE_CHECKING:
    from elasticflow.storage.webhdfs import WebHdfs

PATIENCE_S = 5.0
SHORT_S = 12 * 3600.0
"""A ticket that ends before is short for a night."""
KLIST_S = 5.0


def uses_hdfs(config: Config) -> bool:
    """Whether these settings have to do with HDFS."""
    return config.backend == "yarn" or any(map(is_hdfs, (config.run_dir, config.data, config.checkpoint_dir)))


def hdfs(config: Config) -> Iterator[Diagnosis]:
    """Of the run's folder's file system, and of the data's."""
    if not uses_hdfs(config):
        return
    url = config.run_dir if is_hdfs(config.run_dir) else "hdfs:///"
    try:
        yield from _written(url, is_hdfs(config.run_dir))
    except ConfigError as error:
        yield broken(
            "hdfs",
            f"{url}: {error}",
            "Set HADOOP_CONF_DIR to the folder with core-site.xml and hdfs-site.xml.",
        )
    except OSError as error:
        cure = (
            "Is a NameNode up, out of safe mode, and does a firewall let this machine reach it and the "
            "DataNodes?"
        )
        yield broken("hdfs", f"{url}: {error}", cure)
    if is_hdfs(config.data) and not any(sign in config.data for sign in "*?["):
        yield _readable(config.data)


def _written(url: str, named: bool) -> Iterator[Diagnosis]:
    from elasticflow.storage.webhdfs import WebHdfs

    since_s = time.monotonic()
    client, path = WebHdfs.of(url, patience_s=PATIENCE_S)
    user = client.whoami()
    yield ok("hdfs", f"{url}: answers {user} after {(time.monotonic() - since_s) * 1000:.0f} ms")
    folder = path.rstrip("/") if named else f"/user/{user}"
    try:
        while folder and client.find(folder) is None:
            folder = folder.rpartition("/")[0]
        yield _acts(client, folder)
    except PermissionError as error:
        cure = f"Name a folder that {user} may write: --run-dir hdfs:///user/{user}/runs."
        yield broken("hdfs writes", f"{folder or '/'}: {error}", cure)


def _acts(client: WebHdfs, folder: str) -> Diagnosis:
    """Makes a folder of its own there, and removes it. Raises OSError."""
    own = f"{folder}/.elasticflow-doctor-{secrets.token_hex(8)}"
    try:
        client.mkdir(own, 0o700)
        client.write(f"{own}/one", b"doctor")
        client.rename(f"{own}/one", f"{own}/two")
        if client.read(f"{own}/two") != b"doctor":
            cure = "See to its DataNodes: hdfs fsck, dfsadmin."
            return broken("hdfs writes", f"{folder}: gave back other bytes", cure)
    finally:
        with suppress(OSError):  # nothing was made there, or it is away, which is told
            client.remove(own)
    return ok("hdfs writes", f"{folder or '/'}: a file was written, renamed, read and removed")


def _readable(url: str) -> Diagnosis:
    from elasticflow.storage.webhdfs import WebHdfs

    try:
        client, path = WebHdfs.of(url, patience_s=PATIENCE_S)
        client.status(path)
    except (OSError, ConfigError) as error:
        return broken("data", f"{url}: {error}", "Name files that are there, and that you may read.")
    return ok("data", f"{url}: is there")


def kerberos(config: Config) -> Iterator[Diagnosis]:
    """Of the ticket that is here, if the cluster, or the machine, has to do with Kerberos."""
    try:
        secure = uses_hdfs(config) and HadoopConf.load().is_secure
    except ConfigError:
        secure = False
    if keytab := os.environ.get("KRB5_CLIENT_KTNAME"):
        yield keytab_finding(Path(keytab.removeprefix("FILE:")))
        return
    if not (secure or os.environ.get("KRB5CCNAME")):
        return
    if shutil.which("klist") is None:
        yield hurts(
            "kerberos", "there is no klist", "Install krb5-user (Debian) or krb5-workstation (Red Hat)."
        )
        return
    done = subprocess.run(
        ["klist"], capture_output=True, text=True, timeout=KLIST_S, env={**os.environ, "LC_ALL": "C"}
    )
    longest = config.max_time_s or config.time_limit_s
    yield ticket_finding(done.stdout, datetime.now(), longest, secure=secure)


def keytab_finding(path: Path) -> Diagnosis:
    """Of the keytab by which the Kerberos libraries fetch tickets themselves."""
    try:
        with path.open("rb"):
            mode = path.stat().st_mode
    except OSError as error:
        cure = "Have KRB5_CLIENT_KTNAME name a keytab that is there, and yours."
        return broken("kerberos", f"{path}: {error.strerror}", cure)
    if mode & 0o077:
        cure = f"Whoever reads it is you: chmod 600 {path}."
        return hurts("kerberos", f"{path}: others may read or write it (mode {mode & 0o777:04o})", cure)
    return ok("kerberos", f"tickets are fetched by {path} whenever one is needed")


def ticket_finding(text: str, now: datetime, job_s: float | None, *, secure: bool) -> Diagnosis:
    """text: what klist prints with LC_ALL=C. job_s: how long a run may take; None: nobody knows."""
    verdict = broken if secure else hurts
    found = re.search(r"^(\S+ \S+) {2}(\S+ \S+) {2}krbtgt/\S+(?:\n\s*renew until (\S+ \S+))?", text, re.M)
    if found is None:
        return verdict("kerberos", "there is no ticket", "kinit, or kinit -kt FILE.keytab PRINCIPAL.")
    ends, renewed = _moment(found[2]), _moment(found[3]) if found[3] else None
    if ends is None:
        return hurts(
            "kerberos", f"klist says {found[2]!r}, which is no date as expected", "See klist yourself."
        )
    left = ends - now
    if left <= timedelta(0):
        return verdict(
            "kerberos", f"the ticket ended {ends:%Y-%m-%d %H:%M}", "kinit again, and keep it renewed."
        )
    until = f", can be renewed until {renewed:%Y-%m-%d %H:%M}" if renewed else ", cannot be renewed"
    said = f"the ticket ends {ends:%Y-%m-%d %H:%M}, in {left.total_seconds() / 3600:.1f} h{until}"
    wanted_s = SHORT_S if job_s is None else job_s
    if left.total_seconds() < wanted_s:
        of = "a run may take" if job_s is not None else "a night has"
        return hurts(
            "kerberos",
            f"{said}; {of} {wanted_s / 3600:.1f} h",
            "Have KRB5_CLIENT_KTNAME name a keytab, by which tickets are fetched while runs go on; or renew "
            "this one (k5start, or kinit -R by cron).",
        )
    return ok("kerberos", said)


def _moment(text: str) -> datetime | None:
    for form in ("%m/%d/%y %H:%M:%S", "%m/%d/%Y %H:%M:%S"):
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    return None
