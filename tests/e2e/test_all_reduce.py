"""Workers that carry the servers: the digest of a run with parameter servers, whoever comes, goes or dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elasticflow.run.telling import LiveStatus

from .conftest import Run, cli, digest_in

OPTIONS = ("--epochs", 4, "--batch-size", 64, "--slices", 8)
CARRIED = (*OPTIONS, "--strategy", "all_reduce", "--places", 4)
STEPS = 4 * 16
MIDDLE, LATE = f"step {STEPS // 2}", f"step {STEPS - 14}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of one worker and one parameter server, left alone."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    with Run(path, "small_torch.py", *OPTIONS, "--workers", 1) as run:
        return run.digest()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 10 ms: what is done to the run is done in the middle of them."""
    monkeypatch.setenv("SLICE_S", "0.01")


def carriers(status: LiveStatus) -> dict[str, str]:
    """By server, the worker that carries it."""
    return {each.name: each.place.removeprefix("carried by ") for each in status.servers if each.place}


def settled(count: int) -> Callable[[LiveStatus], bool]:
    """So many workers are ready, and every one of them carries something that serves."""

    def is_so(status: LiveStatus) -> bool:
        ready = {worker.name for worker in status.workers if worker.state == "ready"}
        serve = all(server.state == "ready" for server in status.servers)
        return len(ready) == count and serve and set(carriers(status).values()) == ready

    return is_so


@pytest.mark.parametrize("workers", [3, 5])
def test_any_number_of_workers(start: Callable[..., Run], undisturbed: str, workers: int) -> None:
    assert start("small_torch.py", *CARRIED, "--workers", workers).digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_workers_are_killed_one_and_two_at_once(start: Callable[..., Run], undisturbed: str) -> None:
    """First the one that carries the leading place."""
    run = start("small_torch.py", *CARRIED, "--workers", 3, shut=[LATE])
    status = run.wait_until(settled(3))
    first = carriers(status)[min(status.servers, key=lambda each: int(each.name[7:])).name]
    run.kill(first)
    status = run.wait_until(lambda s: settled(3)(s) and first not in {w.name for w in s.workers})
    two = [worker.name for worker in status.workers][:2]
    for name in two:
        run.kill(name)
    run.wait_until(lambda s: settled(3)(s) and not {w.name for w in s.workers}.intersection(two))
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_from_one_worker_to_three_and_back(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *CARRIED, "--workers", 1, shut=[LATE])
    run.wait_until(settled(1))
    assert cli("scale", run.path, 3).returncode == 0
    run.wait_until(settled(3))
    assert cli("scale", run.path, 1).returncode == 0
    run.wait_until(settled(1))
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_a_server_alone_and_the_master_are_killed(start: Callable[..., Run], undisturbed: str) -> None:
    run = start("small_torch.py", *CARRIED, "--workers", 2, shut=[LATE])
    status = run.wait_until(settled(2))
    killed = status.servers[0].name
    run.kill(killed)
    run.wait_until(lambda s: settled(2)(s) and killed not in carriers(s))
    run.kill("master")
    run.wait_until(lambda s: settled(2)(s) and s.master.incarnation == 2)
    run.open(LATE)
    assert run.digest() == undisturbed


@pytest.mark.usefixtures("slow")
def test_a_run_goes_on_with_the_other_strategy(start: Callable[..., Run], undisturbed: str) -> None:
    """There, and back."""
    run = start("small_torch.py", *OPTIONS, "--servers", 2, "--workers", 2, name="run", shut=["step 20"])
    run.wait_for_step(8)
    assert run.stop("step 20").returncode == 0
    carried = ("--strategy", "all_reduce", "--servers", 1, "--resume")
    run = start("small_torch.py", *carried, name="run", shut=["step 40"])
    run.wait_for_step(28)
    assert run.stop("step 40").returncode == 0
    output = start("small_torch.py", "--strategy", "parameter_server", "--resume", name="run").finish()
    assert digest_in(output) == undisturbed


def test_who_holds_the_model_follows_from_the_program(start: Callable[..., Run], undisturbed: str) -> None:
    """Of a small one, servers; ``status`` and ``report`` say why, and a resume knows."""
    run = start(
        "small_torch.py", *OPTIONS, "--strategy", "auto", "--workers", 2, shut=["step 20"], name="run"
    )
    status = run.wait_for_step(8)
    why = "are little to exchange, and with a server a worker that dies costs no step"
    assert status.strategy == "parameter_server" and status.strategy_why.endswith(why)
    assert f"strategy: parameter_server: {status.strategy_why}" in cli("status", run.path).stdout
    assert not carriers(status) and run.stop("step 20").returncode == 0
    resumed = start("small_torch.py", "--resume", name="run")
    assert digest_in(resumed.finish()) == undisturbed
    assert resumed.report().strategy_why == status.strategy_why


RELAYED = (*OPTIONS, "--strategy", "all_reduce", "--places", 2, "--workers", 5)


def relayed(status: LiveStatus) -> bool:
    """Five workers in three groups, and for each of these and each of two places somebody stands between."""
    relays = [server for server in status.servers if server.relay and server.state == "ready"]
    return len(relays) == 6 and len([each for each in status.workers if each.state == "ready"]) == 5


@pytest.fixture
def few_peers(tmp_path: Path) -> tuple[object, ...]:
    """Nobody is to talk to more than two others."""
    settings = tmp_path / "settings.yaml"
    settings.write_text("peers: 2\n")
    return ("--config", settings)


@pytest.mark.usefixtures("slow")
def test_relays_between_many_workers_come_and_go(
    start: Callable[..., Run], undisturbed: str, few_peers: tuple[object, ...]
) -> None:
    """A relay is killed, then a worker with all it carries; at last there are too few workers for any."""
    run = start("small_torch.py", *few_peers, *RELAYED, shut=[MIDDLE, LATE])
    status = run.wait_until(relayed)
    relay = next(server for server in status.servers if server.relay)
    run.kill(relay.name)
    status = run.wait_until(lambda s: relayed(s) and relay.name not in {each.name for each in s.servers})
    carrier = next(server for server in status.servers if server.relay).place.removeprefix("carried by ")
    run.kill(carrier)
    run.wait_until(lambda s: relayed(s) and carrier not in {each.name for each in s.workers})
    assert cli("scale", run.path, 1).returncode == 0
    run.open(MIDDLE)  # who is drained leaves after the step in work, which may be the one that is held back
    run.wait_until(lambda s: len(s.workers) == 1 and not any(server.relay for server in s.servers))
    run.open(LATE)
    assert run.digest() == undisturbed
