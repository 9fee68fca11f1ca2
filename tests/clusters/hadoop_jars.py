"""Java and the jars of Hadoop, or of another pom.xml, which Maven brings once and which then stay in a cache.

Needs nothing but Python's own library, so that it works before the project's environment is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tests.clusters.processes import ClusterError

POM = Path(__file__).with_name("pom.xml")
HIVE_POM = Path(__file__).with_name("hive.pom.xml")
JAVA_VERSIONS = range(11, 23)
"""The flags are of Java 9 and later; Java 23 and later lack what Hadoop's logins are built upon."""

FETCH_S = 900.0


def java_home() -> Path:
    """JAVA_HOME if it holds a java, else that of the `java` on PATH. Raises ClusterError where none fits."""
    given = os.environ.get("JAVA_HOME", "")
    found = shutil.which("java", path=f"{given}/bin") if given else None
    found = found or shutil.which("java")
    if found is None:
        raise ClusterError("no `java` here: `.ci/hadoop` installs one")
    version = _java_version(found)
    if version not in JAVA_VERSIONS:
        raise ClusterError(
            f"{found} is Java {version}, Hadoop needs {JAVA_VERSIONS[0]} to {JAVA_VERSIONS[-1]}: "
            "set JAVA_HOME to another"
        )
    return Path(found).resolve().parent.parent


@lru_cache
def _java_version(java: str) -> int:
    """Of `17.0.15` 17, and of `1.8.0_402` 8."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        raise ClusterError(f"`{java} -version` said {said!r}, which has no version")
    return int(found[1])


def cache(pom: Path = POM) -> Path:
    """The jars' folder: another one for every other pom.xml."""
    text = pom.read_text()
    found = re.search(r"<(\w+)\.version>(.+?)</", text)
    assert found is not None, "it says which version of what it is"
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return root / "elasticflow" / f"{found[1]}-{found[2]}-{digest}"


def fetch(pom: Path = POM) -> Path:
    """The jars' folder, whole; Maven is asked if it is not there. Raises ClusterError if that fails."""
    folder = cache(pom)
    if folder.is_dir():
        return folder
    if shutil.which("mvn") is None:
        raise ClusterError(f"no {folder.name} here, and no `mvn` that could bring it: `.ci/hadoop` does both")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            _fetch_into(folder, pom)
    return folder


def _fetch_into(folder: Path, pom: Path) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        done = subprocess.run(
            [
                *("mvn", "--batch-mode", "--quiet", "--file", str(pom)),
                *("dependency:copy-dependencies", "-DincludeScope=runtime"),
                f"-DoutputDirectory={unfinished}",
            ],
            env={**os.environ, "JAVA_HOME": str(java_home())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_S,
        )
        if done.returncode != 0:
            said = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")] or ["nothing"]
            raise ClusterError(f"Maven could not bring the jars of {folder.name}; it said: {said[0]}")
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except subprocess.TimeoutExpired:
        raise ClusterError(f"Maven did not bring the jars of {folder.name} within {FETCH_S:g} s") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def skip_reason(*poms: Path) -> str:
    """Empty where a cluster can be started here, otherwise why not and what to do. May fetch the jars.

    poms: of what it needs beside Hadoop.
    """
    if not sys.platform.startswith("linux"):
        return "a Hadoop cluster for tests needs Linux"
    try:
        java_home()
        for pom in (POM, *poms):
            fetch(pom)
    except (ClusterError, OSError) as error:
        return str(error)
    return ""
