"""What doctor says of a real YARN and HDFS; and predictions of records that lie there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from elasticflow.storage.hdfs import HdfsPath
from tests.clusters.hadoop import HadoopCluster
from tests.e2e.conftest import Run, cli
from tests.e2e.processes import CLI


def doctor(folder: Path, **settings: Any) -> dict[str, dict[str, str]]:
    """Findings by subject."""
    conf = folder / "conf.yaml"
    conf.write_text(yaml.safe_dump({"backend": "yarn", **settings}))
    command = [*CLI, "doctor", str(conf), "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    return {each["subject"]: each for each in json.loads(done.stdout)}


def test_doctor_of_a_real_hadoop(hadoop: HadoopCluster, url: str, tmp_path: Path) -> None:
    found = doctor(tmp_path, run_dir=f"{url}/run", yarn={"queue": "train"})
    for subject in ("yarn tools", "yarn", "hdfs", "hdfs writes", "clock of YARN"):
        assert found[subject]["health"] == "ok", found[subject]
    assert {"log aggregation", "attempts", "preemption"} <= found.keys()
    left = [path.name for path in HdfsPath(f"{hadoop.hdfs_url}/user/{hadoop.user}").iterdir()]
    assert not [name for name in left if "doctor" in name]


def test_doctor_of_a_folder_that_may_not_be_written(
    hadoop: HadoopCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = HdfsPath(f"{hadoop.hdfs_url}/user/{hadoop.user}/locked")
    folder.mkdir(mode=0o500, parents=True)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    found = doctor(tmp_path, run_dir=f"{folder}/run")
    assert found["hdfs writes"]["health"] == "broken" and "stranger" in found["hdfs writes"]["cure"]


def test_records_on_hdfs_are_predicted(hadoop: HadoopCluster, url: str, tmp_path: Path) -> None:
    with Run(tmp_path / "run", "applied_torch.py", "--epochs", 1, "--workers", 1) as run:
        run.finish()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    x[:, 0] = np.arange(300)
    np.savez(tmp_path / "new.npz", x=x, word=np.arange(300) % 7)
    folder = HdfsPath(url)
    folder.mkdir(parents=True)
    (folder / "new.npz").replace_bytes((tmp_path / "new.npz").read_bytes())
    outs = []
    for data in (f"{url}/new.npz", tmp_path / "new.npz"):
        outs.append(tmp_path / f"{len(outs)}.npz")
        done = cli("predict", tmp_path / "run", "--data", data, "--out", outs[-1], "--part-records", 64)
        assert done.returncode == 0, done.stderr
    assert outs[0].read_bytes() == outs[1].read_bytes()
