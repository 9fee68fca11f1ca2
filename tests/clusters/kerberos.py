"""A real KDC (MIT's), and an HDFS that asks for Kerberos, all in one folder.

What clients get is good for ``LIFE_S`` only; the daemons have tickets for a day.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.clusters.hadoop import HadoopCluster
from tests.clusters.processes import ClusterError, free_ports, wait

REALM = "TEST.ELASTICFLOW"
SERVICE, WEB = "hdfs/localhost", "HTTP/localhost"
LIFE_S = 30
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "curl")


def skip_reason() -> str:
    """Why no KDC can be started here; "": one can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=_path())]
    return f"there is no {', '.join(missing)} here: .ci/kerberos installs them" if missing else ""


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class SecureHdfs(HadoopCluster):
    """HDFS alone: a NameNode and two DataNodes. ``user`` is who works on it, with a keytab of its own."""

    def __init__(self) -> None:
        super().__init__(yarn=False)
        self._home = self.folder.with_name(f"{self.folder.name}-kdc")
        self._port = free_ports(1)[0]
        keytab = str(self._home / "services.keytab")
        spnego = f"{WEB}@{REALM}"
        self._settings = {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.authorization": "false",
            **{
                f"dfs.{daemon}.kerberos.principal": f"{SERVICE}@{REALM}"
                for daemon in ("namenode", "datanode")
            },
            **{f"dfs.{daemon}.keytab.file": keytab for daemon in ("namenode", "datanode")},
            "dfs.namenode.kerberos.internal.spnego.principal": spnego,
            "dfs.web.authentication.kerberos.principal": spnego,
            "dfs.web.authentication.kerberos.keytab": keytab,
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": spnego,
            "hadoop.http.authentication.kerberos.keytab": keytab,
            "dfs.block.access.token.enable": "true",
            "ignore.secure.ports.for.testing": "true",
        }

    @property
    def keytab(self) -> Path:
        """Of whoever works on it."""
        return self._home / "user.keytab"

    @property
    def principal(self) -> str:
        return f"{self.user}@{REALM}"

    @property
    def environment(self) -> dict[str, str]:
        """Of clients; without a ticket."""
        others = {name: value for name, value in super().environment.items() if name != "HADOOP_USER_NAME"}
        cache = f"FILE:{self._home}/user.ccache"
        return {**others, "KRB5_CONFIG": str(self._home / "client.conf"), "KRB5CCNAME": cache}

    def kinit(self) -> None:
        """A ticket for ``LIFE_S``, as somebody at a terminal gets it."""
        self._kerberos("kinit", "-k", "-t", str(self.keytab), self.principal, **self.environment)

    def start(self) -> None:
        self._start_kdc()
        try:
            super().start()
        except BaseException:
            self._stop_kdc()
            raise

    def stop(self) -> None:
        super().stop()
        self._stop_kdc()

    # --- the KDC ---------------------------------------------------------------------------------

    def _start_kdc(self) -> None:
        self._home.mkdir(mode=0o700)
        for name, life in (("client.conf", f"{LIFE_S}s"), ("krb5.conf", "1d")):
            (self._home / name).write_text(self._krb5_conf(life))
        (self._home / "kdc.conf").write_text(self._kdc_conf())
        self._kerberos("kdb5_util", "create", "-s", "-P", "of the tests", "-r", REALM)
        for names, keytab in (((SERVICE, WEB), self._home / "services.keytab"), ((self.user,), self.keytab)):
            for name in names:
                self._kerberos("kadmin.local", "-q", f"addprinc -randkey {name}")
            self._kerberos("kadmin.local", "-q", f"ktadd -norandkey -k {keytab} {' '.join(names)}")
        self._log_of_kdc = (self._home / "kdc.log").open("ab")
        self._kdc = subprocess.Popen(
            ["krb5kdc", "-n"], env=self._kdc_environment, stdout=self._log_of_kdc, stderr=self._log_of_kdc
        )
        services = str(self._home / "services.keytab")

        def answers() -> bool:
            if self._kdc.poll() is not None:
                raise ClusterError(f"krb5kdc ended: {(self._home / 'kdc.log').read_text()}")
            try:
                self._kerberos("kinit", "-k", "-t", services, SERVICE, KRB5CCNAME=self._superuser)
            except ClusterError:
                return False
            return True

        wait(answers, "the KDC answers", 30.0, lambda: (self._home / "kdc.log").read_text())

    def _stop_kdc(self) -> None:
        if kdc := getattr(self, "_kdc", None):
            kdc.kill()
            kdc.wait()
            self._log_of_kdc.close()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def _superuser(self) -> str:
        return f"FILE:{self._home}/superuser.ccache"

    @property
    def _kdc_environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": _path(),
            "KRB5_CONFIG": str(self._home / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self._home / "kdc.conf"),
        }

    def _kerberos(self, *command: str, **more: str) -> str:
        done = subprocess.run(
            command, env={**self._kdc_environment, **more}, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def _krb5_conf(self, life: str) -> str:
        return f"""\
[libdefaults]
    default_realm = {REALM}
    ticket_lifetime = {life}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = 127.0.0.1:{self._port}
    }}
[domain_realm]
    localhost = {REALM}
"""

    def _kdc_conf(self) -> str:
        return f"""\
[realms]
    {REALM} = {{
        database_name = {self._home}/principal
        key_stash_file = {self._home}/stash
        acl_file = {self._home}/acl
        kdc_listen = ""
        kdc_tcp_listen = 127.0.0.1:{self._port}
        supported_enctypes = aes256-cts:normal
    }}
[logging]
    kdc = FILE:{self._home}/kdc.log
"""

    # --- HDFS ------------------------------------------------------------------------------------

    def _environment_of(self, daemon: str) -> dict[str, str]:
        ours = {
            name: each for name, each in super()._environment_of(daemon).items() if name != "HADOOP_USER_NAME"
        }
        return {**ours, "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self._home}/krb5.conf"}

    def _ask(self, method: str, url: str, body: bytes | Mapping[str, str] | None = None) -> dict[str, Any]:
        """The NameNode as the superuser; to a DataNode its URL has brought a token along."""
        if not url.startswith(self.namenode_url):
            return super()._ask(method, url, body)
        command = ("curl", "--silent", "--fail-with-body", "--negotiate", "--user", ":", "--request", method)
        try:
            said = self._kerberos(*command, url, KRB5CCNAME=self._superuser)
        except ClusterError as error:
            raise OSError(str(error)) from error
        told: dict[str, Any] = json.loads(said or "{}")
        return told

    def _webhdfs(self, method: str, path: str, **parameters: str) -> dict[str, Any]:
        return self._ask(method, f"{self.namenode_url}/webhdfs/v1{quote(path)}?{urlencode(parameters)}")
