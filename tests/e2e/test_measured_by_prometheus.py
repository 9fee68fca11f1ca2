"""What Prometheus is told of real runs, and of a service, while they go on."""

from __future__ import annotations

import http.client
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clusters.processes import free_ports

from .conftest import PATIENCE_S, Run, cli
from .processes import wait_until_gone
from .serving import Served

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--checkpoint-every", 5)


def scraped(port: int, token: str = "") -> dict[str, float]:
    """By name and what tells samples apart. Waits until somebody listens there."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answered:
                text = answered.read().decode()
            break
        except urllib.error.HTTPError as error:
            error.close()
            raise
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.05)  # its process has just begun, or was killed in the middle of an answer
    found = {}
    for each in (each for family in text_string_to_metric_families(text) for each in family.samples):
        labels = [v for n, v in sorted(each.labels.items()) if n not in ("run", "service", "user")]
        found[" ".join([each.name, *labels])] = each.value
    return found


def until(port: int, what: Callable[[dict[str, float]], object]) -> dict[str, float]:
    deadline = time.monotonic() + PATIENCE_S
    while not what(told := scraped(port)):
        assert time.monotonic() < deadline, told
        time.sleep(0.1)  # figures are a second old at most
    return told


def test_of_a_run_through_its_masters(start: Callable[..., Run]) -> None:
    digest = start("small_torch.py", *OPTIONS).digest()
    (port,) = free_ports(1)
    run = start(
        "small_torch.py", *OPTIONS, "--metrics-port", port, "--deadline", "+8h", shut=["step 20", "step 30"]
    )
    run.held_at("step 20")
    evaluated = "elasticflow_evaluation accuracy"  # of the step before, and told after it
    told = until(port, lambda told: told.get("elasticflow_step_total", 0) >= 16 and evaluated in told)
    assert told["elasticflow_up"] == 1 and told["elasticflow_state running"] == 1
    assert told["elasticflow_steps_planned"] == 48 and told["elasticflow_workers"] == 2
    assert told["elasticflow_loss"] > 0 and told["elasticflow_learning_rate"] == 0.01
    assert 0 < told[evaluated] <= 1
    assert told["elasticflow_deadline_timestamp_seconds"] > time.time()
    assert "elasticflow_lost_seconds_total waiting" in told
    run.kill("master")
    told = until(port, lambda told: told.get("elasticflow_masters_total") == 2)
    run.open("step 20")
    run.held_at("step 30")
    told = until(port, lambda told: told.get("elasticflow_step_total", 0) >= 26)
    run.open("step 30")
    assert run.digest() == digest
    assert not wait_until_gone(run.environment)  # it ends with the run


def test_who_may_ask_from_elsewhere_has_a_token(start: Callable[..., Run], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"metrics_port: {port}\nmetrics_address: 0.0.0.0\n")
    run = start("small_torch.py", *OPTIONS, "--config", settings, shut=["step 20"])
    run.held_at("step 20")
    with pytest.raises(urllib.error.HTTPError) as error:
        scraped(port)
    assert error.value.code == 401
    token = (run.path / "keys" / "metrics.token").read_text()
    assert scraped(port, token)["elasticflow_up"] == 1
    assert token not in (run.dir.logs / "metrics.log").read_text() + run.dir.settings.read_text()
    for pid in Path("/proc").glob("[0-9]*"):
        try:
            assert token.encode() not in (pid / "cmdline").read_bytes()
        except OSError:
            continue
    run.open("step 20")
    run.finish()


def test_a_port_that_is_taken_is_told_and_costs_nothing(start: Callable[..., Run]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = start("small_torch.py", *OPTIONS, "--metrics-port", port, shut=["step 20"])
        log, deadline = run.dir.logs / "metrics.log", time.monotonic() + PATIENCE_S
        run.held_at("step 20")
        while "cannot be listened on: Address already in use" not in log.read_text():
            assert time.monotonic() < deadline and run.process.poll() is None
            time.sleep(0.05)  # its process may take longer to begin than the run to end
        run.open("step 20")
        run.finish()


def test_of_a_service(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Served(tmp_path, 2, f"metrics_port: {port}\n") as service:
        told = until(port, lambda told: told.get("elasticflow_service_up") == 1)
        assert told["elasticflow_service_workers"] == 2 and told["elasticflow_service_term_total"] == 1
        name = service.submit("first", "--deadline", "+20m")
        told = until(port, lambda told: told.get(f"elasticflow_task_step_total {name}", 0) > 0)
        assert told["elasticflow_service_workers_held"] >= 1
        service.kill()
        with pytest.raises(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5):
            pass
        service.start()
        until(port, lambda told: told.get("elasticflow_service_term_total") == 2)
        service.finish(name)


def test_of_nothing() -> None:
    refused = cli("metrics")
    assert refused.returncode == 1 and "of what?" in refused.stderr
