"""A virtual environment as an archive, which works where it is unpacked."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any

import pytest

from elasticflow.cli.main import main
from elasticflow.cluster.pack import MANIFEST, pack
from elasticflow.errors import ConfigError

AS_PACKED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
"""Python 3.10 and 3.11 know filters from some release on."""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """With a package, a script, and a package that is installed where it is developed."""
    prefix = tmp_path / "env"
    venv.create(prefix, symlinks=True)
    packages = next(prefix.glob("lib/python3*/site-packages"))
    (packages / "installed.py").write_text("WHERE = __file__\n")
    (prefix / "bin" / "tool").write_text(f"#!{prefix}/bin/python\nimport installed; print(installed.WHERE)\n")
    (prefix / "bin" / "tool").chmod(0o755)
    source = tmp_path / "source" / "developed"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("WHERE = __file__\n")
    finder = (
        f"from __future__ import annotations\nMAPPING: dict[str, str] = {{'developed': {str(source)!r}}}\n"
    )
    (packages / "__editable___developed_1_finder.py").write_text(finder)
    (packages / "__editable__.developed-1.pth").write_text("import __editable___developed_1_finder\n")
    return prefix


def test_it_works_where_it_is_unpacked(
    environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, there = str(tmp_path / "env.tar.gz"), tmp_path / "elsewhere"
    assert main(["pack", file, "--python", str(environment)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{file}\n" and f"each node needs {Path(sys.executable).resolve()}" in told.err
    with tarfile.open(file) as tar:
        assert tar.next().name == MANIFEST  # type: ignore[union-attr]
        tar.extractall(there, **AS_PACKED)
    environment.rename(tmp_path / "gone")
    (tmp_path / "source").rename(tmp_path / "gone-too")
    path = {"PATH": f"{there}/bin:/usr/bin:/bin"}
    for command in (["tool"], ["python", "-c", "import developed; print(developed.WHERE)"]):
        said = subprocess.run(command, env=path, capture_output=True, text=True, check=True, cwd="/").stdout
        assert said.startswith(f"{there}/lib/")


def test_what_it_tells_of_itself(environment: Path, tmp_path: Path) -> None:
    packed = pack(str(tmp_path / "env.tar.gz"), str(environment))
    assert {"installed", "developed", "json"} <= set(packed.modules)
    assert packed.python.split(".")[0] == "3"


@pytest.mark.parametrize(
    ("file", "prefix", "text"),
    [
        ("env.zip", "env", r"env\.zip: YARN unpacks what is called \.tar\.gz"),
        ("there.tar.gz", "env", r"there\.tar\.gz: is there already"),
        ("env.tar.gz", "source", "source: is no virtual environment; run 'elasticflow pack' from one"),
        ("nowhere/env.tar.gz", "env", "cannot be written: No such file or directory"),
    ],
)
def test_what_is_refused(environment: Path, tmp_path: Path, file: str, prefix: str, text: str) -> None:
    (tmp_path / "there.tar.gz").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=text):
        pack(str(tmp_path / file), str(tmp_path / prefix))
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_does_not_come_along_is_refused(environment: Path, tmp_path: Path) -> None:
    packages = next(environment.glob("lib/python3*/site-packages"))
    (packages / "mine.pth").write_text(f"{tmp_path / 'source'}\n")
    with pytest.raises(ConfigError, match=r"mine\.pth: has Python look into .*source, which does not come"):
        pack(str(tmp_path / "env.tar.gz"), str(environment))
    assert not (tmp_path / "env.tar.gz").exists()


def test_what_links_lead_to_comes_along(environment: Path, tmp_path: Path) -> None:
    """As uv leaves packages that lie in its cache, or people do who link one from elsewhere."""
    packages = next(environment.glob("lib/python3*/site-packages"))
    cache = tmp_path / "cache"
    (cache / "linked" / "inner").mkdir(parents=True)
    (cache / "linked" / "inner" / "__init__.py").write_text("HERE = 7\n")
    (cache / "linked" / "__init__.py").write_text("")
    (cache / "one.py").write_text("HERE = 8\n")
    (packages / "linked").symlink_to(cache / "linked")
    (packages / "one.py").symlink_to(cache / "one.py")
    (packages / "gone.py").symlink_to(cache / "gone.py")
    (packages / "same.py").symlink_to("installed.py")
    file, there = tmp_path / "env.tar.gz", tmp_path / "elsewhere"
    packed = pack(str(file), str(environment))
    assert {"linked", "one", "same"} <= set(packed.modules)
    with tarfile.open(file) as tar:
        tar.extractall(there, **AS_PACKED)
    for path in (environment, cache):
        path.rename(tmp_path / f"{path.name}-moved")
    code = "import linked.inner, one, same; print(linked.inner.HERE, one.HERE, same.__file__)"
    said = subprocess.run([there / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"7 8 {there}/lib/")


def test_a_package_whose_source_is_gone_is_named(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "source").rename(tmp_path / "moved")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        ConfigError, match=r"source/developed: is to be packed as lib/.*cannot be read: No such"
    ):
        pack(str(tmp_path / "env.tar.gz"), str(environment))
    assert sorted(tmp_path.iterdir()) == before
