"""A real metastore of Hive for tests, whose database is in its memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.clusters.hadoop_jars import HIVE_POM, fetch, java_home, skip_reason

START_S = 120.0
REQUIRE = "ELASTICFLOW_REQUIRE_CLUSTERS"
FLAGS = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


class HiveMetastore:
    """Runs while it is a context manager."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._at: tuple[str, int] = free.getsockname()
        self.uri = f"thrift://127.0.0.1:{self._at[1]}"

    def __enter__(self) -> HiveMetastore:
        self._folder = tempfile.TemporaryDirectory(prefix="hive-")
        folder = Path(self._folder.name)
        settings = {
            "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
            "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
            "datanucleus.schema.autoCreateAll": "true",
            "metastore.schema.verification": "false",
            "metastore.warehouse.dir": f"file://{folder}/warehouse",
            "metastore.thrift.bind.host": self._at[0],
            "metastore.housekeeping.threads.on": "false",
        }
        lines = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>"
            for name, value in settings.items()
        )
        (folder / "metastore-site.xml").write_text(f"<configuration>{lines}</configuration>")
        paths = ":".join((str(folder), f"{fetch(HIVE_POM)}/*", f"{fetch()}/*"))
        command = [f"{java_home()}/bin/java", *FLAGS, f"-Dderby.stream.error.file={folder}/derby.log"]
        command += ["-cp", paths, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self._at[1])]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        until_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(self._at, timeout=5).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until_s:
                    said = (folder / "log").read_text()[-2000:]
                    self.__exit__()
                    raise RuntimeError(f"no metastore: {said}") from None
                time.sleep(0.1)  # whoever listens tells nobody

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def freeze(self) -> None:
        """It answers nobody."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def require() -> None:
    """Skips the test where there can be none; fails it where clusters are required."""
    if reason := skip_reason(HIVE_POM):
        (pytest.fail if os.environ.get(REQUIRE) else pytest.skip)(reason)
