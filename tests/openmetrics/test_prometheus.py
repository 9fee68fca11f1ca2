"""A real Prometheus (Debian's package) reads what we tell, and answers what dashboard and alerts ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticflow.process.network import LOOPBACK
from tests.clusters.processes import free_ports

from .test_figures import CONF, queries, samples, serving

PATIENCE_S = 60.0
PROMETHEUS, PROMTOOL = (shutil.which(name) for name in ("prometheus", "promtool"))
pytestmark = pytest.mark.skipif(
    not (PROMETHEUS and PROMTOOL) and not os.environ.get("ELASTICFLOW_REQUIRE_CLUSTERS"),
    reason="there is no Prometheus here: .ci/prometheus installs it",
)


def test_rules_and_settings_are_well_formed() -> None:
    assert PROMTOOL
    for words in (["rules", "prometheus-alerts.yml"], ["config", "prometheus.yml"]):
        done = subprocess.run(
            [PROMTOOL, "check", *words], cwd=CONF, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_names_are_as_prometheus_wants_them() -> None:
    assert PROMTOOL
    with serving(samples()) as address, urllib.request.urlopen(f"{address}/metrics", timeout=30) as answered:
        text = answered.read()
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one that has read our figures, and knows our rules."""
    folder = tmp_path_factory.mktemp("prometheus")
    token = "0123456789abcdef"
    with serving(samples(), token) as address:
        (port,) = free_ports(1)
        (folder / "token").write_text(token)
        (folder / "prometheus.yml").write_text(
            "scrape_configs: [{job_name: elasticflow, scrape_interval: 1s, "
            f"static_configs: [{{targets: ['{address.removeprefix('http://')}']}}], "
            f"authorization: {{credentials_file: {folder / 'token'}}}}}]\n"
            f"rule_files: ['{CONF / 'prometheus-alerts.yml'}']\n"
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(PROMETHEUS),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={LOOPBACK}:{port}",
                ],
                stdout=log,
                stderr=log,
            )
        try:
            where = f"http://{LOOPBACK}:{port}"
            deadline = time.monotonic() + PATIENCE_S
            while not result(where, "count_over_time(elasticflow_up[1m]) >= 2"):
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)  # it tells nobody when it has read
            yield where
        finally:
            process.terminate()
            process.wait()


def result(where: str, query: str) -> Any:
    """What it answers; nothing as long as it does not."""
    try:
        words = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{where}/api/v1/query?{words}", timeout=30) as answered:
            return json.load(answered)["data"]["result"]
    except OSError:
        return []


SILENT = (" < 0", "== 0", "== 1", "> 10", "server_memory", "time() >", "< 0.5")
"""In queries that a run without trouble, as ours, or without servers, answers with nothing."""


@pytest.mark.parametrize("query", [each for each in queries() if not each.startswith("label_values")])
def test_it_answers_every_query(prometheus: str, query: str) -> None:
    asked = query.replace("$__rate_interval", "1m").replace("$run", ".*")
    words = urllib.parse.urlencode({"query": asked})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query?{words}", timeout=30) as answered:
        told = json.load(answered)
    assert told["status"] == "success"
    assert told["data"]["result"] or any(words in query for words in SILENT), query


def test_it_has_our_alerts(prometheus: str) -> None:
    with urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=30) as answered:
        (group,) = json.load(answered)["data"]["groups"]
    assert all(rule["health"] in ("ok", "unknown") for rule in group["rules"])
    assert Path(group["file"]) == CONF / "prometheus-alerts.yml"
