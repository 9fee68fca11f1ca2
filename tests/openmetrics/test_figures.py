"""What Prometheus is told, by whom, and that dashboard and alerts ask for what there is."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from elasticflow.errors import ConfigError, RunError
from elasticflow.openmetrics import of_run, of_service
from elasticflow.openmetrics.exposing import Figures, MetricsServer
from elasticflow.openmetrics.figures import Sample
from elasticflow.openmetrics.of_run import figures_of
from elasticflow.openmetrics.of_service import figures_of_service
from elasticflow.process.gpu_state import GpuState
from elasticflow.run.config import make
from elasticflow.run.telling import Status, ToldBest
from elasticflow.service.talk import ServiceAnswer, ToldTask
from elasticflow.wire.tokens import is_local, token_for
from tests.telling import Told

CONF = Path(__file__).parents[2] / "conf"
FIGURES = {**of_run.FIGURES, **of_service.FIGURES}
NAMES = {figure.queried: figure for figure in FIGURES.values()}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def status() -> Status:
    """Of a run of which everything is known."""
    told = Told()
    told.state.has("worker-1", "worker-2")
    told.state.workers[0].gpu = GpuState(
        name="H100", busy=0.98, memory_bytes=61, power_w=640.0, trouble="Xid 79"
    )
    told.fault("worker-3")
    told.progress(11, loss=0.5, lr=0.1, evaluations=((10, (1.5, 0.75)),))
    return msgspec.structs.replace(
        told.status(),
        deadline_at=5000.0,
        eta_at=4000.0,
        eta_s=100.0,
        records_per_s=10.0,
        goodput=0.5,
        checkpoint_step=10,
        best=ToldBest("accuracy", 0.75, 10),
    )


def task(name: str, standing: str = "promised", eta_at: float | None = 90.0) -> ToldTask:
    return ToldTask(
        name=name, run=f"/runs/{name}", user="ann", standing=standing, state="running", said="", why="",
        workers=2, held=3, step=7, steps=70, rates={}, handed_at=1.0, deadline_at=100.0, promised_at=2.0,
        ended_at=None, eta_at=eta_at, earliest_at=None,
    )  # fmt: skip


def answer() -> ServiceAnswer:
    return ServiceAnswer(
        term=2, capacity=8, tasks=[task("1-a"), task("2-b", "best effort", None)], away={"n": ""}
    )


def samples() -> list[Sample]:
    return [*figures_of("digits-1", status()), *figures_of_service("default", answer())]


@contextmanager
def serving(given: Iterable[Sample], token: str = "") -> Iterator[str]:
    server = MetricsServer("127.0.0.1", 0, token, Figures(lambda: given))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(address: str, **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answered:
        return answered.headers["Content-Type"], answered.read().decode()


def code(address: str, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as error:
        asked(address, **headers)
    with error.value:
        return error.value.code


def values(told: Iterable[Sample]) -> dict[str, float]:
    """By name and labels, but for whose they are."""
    found = {}
    for each in told:
        labels = [v for n, v in sorted(each.labels.items()) if n not in ("run", "service", "user")]
        found[" ".join([each.figure.queried, *labels])] = each.value
    return found


def test_what_a_run_tells() -> None:
    told = values(figures_of("digits-1", status()))
    assert told["elasticflow_step_total"] == 10 and told["elasticflow_records_total"] == 100
    assert told["elasticflow_workers"] == 2 and told["elasticflow_state running"] == 1
    assert told["elasticflow_deadline_slack_seconds"] == 1000 and told["elasticflow_loss"] == 0.5
    assert told["elasticflow_evaluation accuracy"] == 0.75 and told["elasticflow_best accuracy"] == 0.75
    assert told["elasticflow_learning_rate"] == 0.1 and told["elasticflow_faults_total"] == 1
    causes = {name.split()[1] for name in told if name.startswith("elasticflow_lost_seconds_total")}
    assert causes == {"redone", "duplicated", "starting", "waiting", "recovering", "checkpointing"}
    silent = values(figures_of("digits-1", None))
    assert silent == {"elasticflow_up": 0}


def test_what_is_not_known_is_not_told() -> None:
    told = values(figures_of("new", Told().status()))
    assert "elasticflow_deadline_slack_seconds" not in told and "elasticflow_loss" not in told


def test_what_a_gpu_does_not_know_is_not_told() -> None:
    told = Told()
    told.state.has("worker-1")
    told.state.workers[0].gpu = GpuState(name="A2", busy=0.0, slowed="by heat")
    found = {each.figure.name: each.value for each in figures_of("digits-1", told.status())}
    gpu = {name: value for name, value in found.items() if "_gpu_" in name}
    assert gpu == {
        "elasticflow_gpu_busy_ratio": 0,
        "elasticflow_gpu_trouble": 0,
        "elasticflow_gpu_slowed": 1,
    }


def test_what_a_service_tells() -> None:
    told = values(figures_of_service("default", answer()))
    assert (
        told["elasticflow_service_workers_held"] == 6 and told["elasticflow_service_tasks best_effort"] == 1
    )
    assert told["elasticflow_task_deadline_slack_seconds 1-a"] == 10
    assert "elasticflow_task_deadline_slack_seconds 2-b" not in told
    assert told["elasticflow_task_step_total 1-a"] == 7 and told["elasticflow_service_term_total"] == 2
    assert values(figures_of_service("default", None)) == {"elasticflow_service_up": 0}


def test_all_families_are_told_with_their_labels() -> None:
    told = {each.figure.name: each for each in samples()}
    assert set(told) | {"elasticflow_server_memory_bytes"} == set(FIGURES)
    for each in told.values():
        assert set(each.labels) - {"run", "service"} == set(each.figure.labels), each


def test_the_format_is_openmetrics_and_conventional() -> None:
    with serving(samples()) as address:
        kind, text = asked(f"{address}/metrics", Accept=OPENMETRICS)
        old_kind, old = asked(f"{address}/metrics")
    assert kind.startswith("application/openmetrics-text") and old_kind.startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.name: family.type for family in families.values()} == {
        name: FIGURES[name].kind for name in families
    }
    assert set(families) | {"elasticflow_server_memory_bytes"} == set(FIGURES)
    assert 'elasticflow_step_total{run="digits-1"} 10.0' in old
    for name, figure in FIGURES.items():
        assert re.fullmatch(r"elasticflow(_[a-z]+)+", name) and figure.help.endswith(".")
        assert not name.endswith(("_total", "_info", "_count", "_sum", "_bucket"))


def test_odd_names_are_escaped() -> None:
    with serving(figures_of('a"b\\c\nd', status())) as address:
        _, text = asked(f"{address}/metrics", Accept=OPENMETRICS)
    families = list(text_string_to_metric_families(text))
    assert families[0].samples[0].labels["run"] == 'a"b\\c\nd'


def test_who_may_ask() -> None:
    with serving(samples(), token="a" * 20) as address:
        assert code(f"{address}/metrics") == 401
        assert code(f"{address}/metrics", Authorization="Bearer " + "b" * 20) == 401
        assert code(f"{address}/metrics", Authorization="Bearer \xff") == 401
        assert code(f"{address}/other", Authorization="Bearer " + "a" * 20) == 404
        assert "elasticflow_up" in asked(f"{address}/metrics", Authorization="Bearer " + "a" * 20)[1]
    with serving(samples()) as address:
        assert code(f"{address}/") == 404


def test_it_is_asked_once_a_second_however_many_ask() -> None:
    count = 0

    def ask() -> list[Sample]:
        nonlocal count
        count += 1
        return samples()

    figures = Figures(ask)
    assert figures.now() is figures.now() and count == 1


def test_a_token_is_asked_for_wherever_others_are(tmp_path: Path) -> None:
    own = tmp_path / "metrics.token"
    assert token_for("metrics_token_file", "127.0.0.1", "", own) == ("", None) and not own.exists()
    assert is_local("::1") and is_local("localhost") and not is_local("0.0.0.0") and not is_local("10.0.0.1")
    token, path = token_for("metrics_token_file", "0.0.0.0", "", own)
    assert path == own and len(token) > 40 and own.stat().st_mode & 0o777 == 0o600
    assert token_for("metrics_token_file", "0.0.0.0", "", own) == (token, own)
    given = tmp_path / "given"
    given.write_text("0123456789abcdef\n")
    given.chmod(0o600)
    assert token_for("metrics_token_file", "127.0.0.1", str(given), own) == ("0123456789abcdef", given)
    given.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        token_for("metrics_token_file", "0.0.0.0", str(given), own)
    given.chmod(0o600)
    given.write_text("short")
    with pytest.raises(ConfigError, match="5 characters; 16 or more"):
        token_for("metrics_token_file", "0.0.0.0", str(given), own)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="of no use without metrics_port"):
        make(None, {"metrics_address": "0.0.0.0"})
    with pytest.raises(RunError, match=r"metrics_port: 80 of 192\.0\.2\.1 cannot be listened on"):
        MetricsServer("192.0.2.1", 80, "", Figures(list))


# --- dashboard and alerts ------------------------------------------------------------------------


def queries() -> list[str]:
    """All that dashboard and alerts ask."""
    dashboard = json.loads((CONF / "grafana-dashboard.json").read_text())
    rules = yaml.safe_load((CONF / "prometheus-alerts.yml").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [
        variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable
    ]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("query", queries())
def test_every_query_names_figures_and_labels_that_there_are(query: str) -> None:
    found = re.findall(r"\b(elasticflow_\w+)(?:\{([^}]*)\})?", query)
    assert found
    for name, labels in found:
        assert name in NAMES, name
        known = {*NAMES[name].labels, "run", "service"}
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels)) <= known
    grouped = re.findall(r"\b(?:by|on) \((\w+)\)", query)
    every = {"run", "service"}.union(*(NAMES[name].labels for name, _ in found))
    assert set(grouped) <= every


def test_counters_are_asked_for_as_such_and_words_in_alerts_are_labels() -> None:
    rules = yaml.safe_load((CONF / "prometheus-alerts.yml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        (name, *_) = re.findall(r"elasticflow_\w+", rule["expr"])
        told = {*NAMES[name].labels, "service" if "service" in name or "task" in name else "run"}
        words = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", words)) <= told, rule["alert"]
    rated = [found for query in queries() for found in re.findall(r"(?:rate|increase)\((\w+)", query)]
    assert rated and all(NAMES[name].kind == "counter" for name in rated)


def test_panels_lie_beside_each_other_with_numbers_of_their_own() -> None:
    dashboard = json.loads((CONF / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places) and max(x for x, _ in places) < 24
    assert os.path.getsize(CONF / "grafana-dashboard.json") < 100_000
