"""What workers and servers tell each other goes through a relay that is slow and breaks: the same digest.

What a receiver does not take waits in its sender's queue, and must still be there when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from elasticflow.run.telling import LiveStatus
from tests.relay import Manner, Relay

from .conftest import Run, cli

# Not imported here: in one process TensorFlow and torch's compiler do not get along.
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
CONV_NET = str(Path(__file__).parents[2] / "benchmarks" / "programs" / "conv_torch.py")
CONV = ("--epochs", 1, "--batch-size", 32, "--slices", 16)
SMALL = ("--epochs", 1, "--batch-size", 64, "--slices", 8)
TENSORFLOW = ("--epochs", 1, "--batch-size", 32, "--slices", 4)
WIDE = ("--epochs", 1, "--batch-size", 32, "--slices", 4)
TABLES = ("--epochs", 1, "--batch-size", 50, "--slices", 8)
ANYWHERE = Manner(pieces=(1, 1 << 10, 1 << 16), delay_s=0.001)
"""Cuts heads and arrays anywhere."""
BYTES = Manner(pieces=(1,), until=3000)
"""One byte after the other, as long as that can be waited for."""
PAUSES = Manner(pause_every=2 << 20, pause_s=2.5, until=3 << 20)
"""Some, longer than ``suspect_s``; but that is of silence towards the master."""


def breaking(number: int) -> Manner:
    """Of the first connections every second one is reset, the later it was made the sooner."""
    return ANYWHERE._replace(reset=40_000 // (number + 1) if number < 12 and not number % 2 else None)


def config(folder: Path, *, shared: bool = False, overlap: bool = True, peers: int = 32) -> list[object]:
    path = folder / "throttled.yaml"
    switches = f"shared_memory: {str(shared).lower()}\noverlap: {str(overlap).lower()}\n"
    path.write_text(f"{switches}snapshot_s: 0.1\npeers: {peers}\n")
    return ["--config", path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The digest of a run that nothing and nobody disturbs; by default of one worker and one server."""
    known: dict[tuple[object, ...], str] = {}

    def digest(program: str, *options: object) -> str:
        key = (program, *options)
        if key not in known:
            with Run(tmp_path_factory.mktemp("alone") / "run", program, "--workers", 1, *options) as run:
                known[key] = run.digest()
        return known[key]

    return digest


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Relay]]:
    """Runs that are started from now on go through this relay, which must have been of use in the end."""
    relays: list[Relay] = []
    with ExitStack() as open_relays:

        def make(manner: Manner | Callable[[int], Manner]) -> Relay:
            relays.append(open_relays.enter_context(Relay(manner)))
            for name, value in relays[-1].environment.items():
                monkeypatch.setenv(name, value)
            return relays[-1]

        yield make
        for relay in relays:
            assert relay.connections and relay.handed_on, "nothing went through the relay"


@pytest.mark.parametrize("overlap", [False, True])
def test_large_and_small_arrays(
    start: Callable[..., Run],
    alone: Callable[..., str],
    through: Callable[..., Relay],
    tmp_path: Path,
    overlap: bool,
) -> None:
    """Six workers, with more sums than one each: the next is computed while the last waits to go out."""
    expected = alone(CONV_NET, *CONV)
    through(Manner(pieces=(1 << 10, 1 << 16), delay_s=0.002))
    run = start(CONV_NET, *CONV, *config(tmp_path, overlap=overlap), "--workers", 6)
    assert run.digest() == expected


def test_byte_by_byte(
    start: Callable[..., Run], alone: Callable[..., str], through: Callable[..., Relay], tmp_path: Path
) -> None:
    expected = alone("small_torch.py", *SMALL)
    through(BYTES)
    run = start("small_torch.py", *SMALL, *config(tmp_path), "--workers", 3, "--servers", 2)
    assert run.digest() == expected


@pytest.mark.parametrize("shared", [True, False])
def test_reset(
    start: Callable[..., Run],
    alone: Callable[..., str],
    through: Callable[..., Relay],
    tmp_path: Path,
    shared: bool,
) -> None:
    """All connections at once, in the middle of a step; arrays in memory, of which only words go by TCP."""
    expected = alone("wide_torch.py", *WIDE)
    relay = through(Manner(delay_s=0.001))
    options = (*WIDE, *config(tmp_path, shared=shared), "--workers", 3, "--servers", 2)
    run = start("wide_torch.py", *options, shut=["backward 5", "step 8"])
    run.wait_for_workers(3)
    run.held_at("backward 5")
    assert relay.reset() >= 8
    run.open("backward 5")
    run.wait_until(lambda status: status.generation >= 2 and not status.regrouping)
    run.open("step 8")
    assert run.digest() == expected


def test_reset_again_and_again(
    start: Callable[..., Run], alone: Callable[..., str], through: Callable[..., Relay], tmp_path: Path
) -> None:
    expected = alone("small_torch.py", *SMALL)
    relay = through(breaking)
    run = start("small_torch.py", *SMALL, *config(tmp_path, overlap=False), "--workers", 3, "--servers", 2)
    assert run.digest() == expected
    assert relay.resets


@pytest.mark.parametrize(("compression", "overlap"), [("none", False), ("bf16", True)])
def test_server_killed(
    start: Callable[..., Run],
    alone: Callable[..., str],
    through: Callable[..., Relay],
    tmp_path: Path,
    compression: str,
    overlap: bool,
) -> None:
    """Snapshots go to their keepers, and from there to the next server, through pauses of seconds."""
    options = (*WIDE, "--compression", compression)
    expected = alone("wide_torch.py", *options)
    through(PAUSES)
    many = ("--workers", 3, "--servers", 2)
    run = start(
        "wide_torch.py", *options, *config(tmp_path, overlap=overlap), *many, shut=["step 5", "step 8"]
    )
    run.wait_for_workers(3)
    run.open("step 5")
    run.wait_for_step(6)
    run.kill("server-1")
    run.wait_until(lambda status: status.generation >= 2 and not status.regrouping)
    run.open("step 8")
    assert run.digest() == expected


@pytest.mark.parametrize(("compression", "overlap"), [("none", True), ("bf16", False)])
def test_relays_between_workers_and_those_who_carry(
    start: Callable[..., Run],
    alone: Callable[..., str],
    through: Callable[..., Relay],
    tmp_path: Path,
    compression: str,
    overlap: bool,
) -> None:
    """Sums and versions are cut anywhere, twice on each way; one of those between is killed in the middle."""
    options = (*WIDE, "--compression", compression)
    expected = alone("wide_torch.py", *options)
    through(ANYWHERE)
    carried = ("--strategy", "all_reduce", "--places", 2, "--workers", 3)
    settings = config(tmp_path, overlap=overlap, peers=2)
    run = start("wide_torch.py", *options, *settings, *carried, shut=["step 5", "step 8"])

    def relayed(status: LiveStatus) -> bool:
        return sum(server.relay and server.state == "ready" for server in status.servers) == 4

    status = run.wait_until(relayed)
    run.open("step 5")
    run.wait_for_step(6)
    run.kill(next(server.name for server in status.servers if server.relay))
    run.open("step 8")
    assert run.digest() == expected


def test_the_largest_elements_alone(
    start: Callable[..., Run], alone: Callable[..., str], through: Callable[..., Relay], tmp_path: Path
) -> None:
    """What a worker has kept back depends on what it has computed: so there is one, here and there."""
    options = (*WIDE, "--compression", "top-k", "--servers", 2)
    expected = alone("wide_torch.py", *options)
    through(ANYWHERE)
    run = start("wide_torch.py", *options, *config(tmp_path), "--workers", 1)
    assert run.digest() == expected


def test_tables(
    start: Callable[..., Run], alone: Callable[..., str], through: Callable[..., Relay], tmp_path: Path
) -> None:
    """Rows are read and their gradients sent; all connections are reset between two reads of a slice."""
    expected = alone("tables_torch.py", *TABLES)
    relay = through(ANYWHERE)
    many = ("--workers", 3, "--servers", 2, "--checkpoint-every", 5)
    run = start("tables_torch.py", *TABLES, *config(tmp_path), *many, shut=["slice 8"])
    run.held_at("slice 8")
    assert relay.reset()
    run.open("slice 8")
    assert run.digest() == expected


@needs_tensorflow
@pytest.mark.parametrize(
    ("program", "overlap"), [("small_tensorflow.py", False), ("tables_tensorflow.py", True)]
)
def test_tensorflow(
    start: Callable[..., Run],
    alone: Callable[..., str],
    through: Callable[..., Relay],
    tmp_path: Path,
    program: str,
    overlap: bool,
) -> None:
    expected = alone(program, *TENSORFLOW)
    through(ANYWHERE._replace(pause_every=1 << 17, pause_s=0.5, until=1 << 18))
    options = (*TENSORFLOW, *config(tmp_path, overlap=overlap), "--workers", 2, "--servers", 2)
    assert start(program, *options).digest() == expected


@pytest.mark.parametrize("table", [False, True])
def test_asynchronous(
    start: Callable[..., Run],
    through: Callable[..., Relay],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: bool,
) -> None:
    """Each record counts once an epoch, though all connections are reset and a server is killed."""
    monkeypatch.setenv("WIDE", str(1 << 8))
    if table:
        monkeypatch.setenv("TABLE", "1")
    relay = through(ANYWHERE)
    path = tmp_path / "asynchronous.yaml"
    path.write_text("staleness_rule: none\nshared_memory: false\nsnapshot_s: 0.1\n")
    asynchronous = ("--mode", "async", "--staleness", 7, "--batch-size", 4, "--epochs", 2)
    many = ("--workers", 3, "--servers", 2, "--checkpoint-every", 3)
    options = (*asynchronous, *many, "--config", path)
    run = start("counting_async.py", *options, shut=["step 4", "step 8"])
    run.wait_for_workers(3)
    assert relay.reset()
    run.open("step 4")
    run.wait_for_step(5)
    run.kill("server-1")
    run.open("step 8")
    run.finish()
    counted = tmp_path / "counted.npz"
    assert cli("export", run.path, counted).returncode == 0
    with np.load(counted) as arrays:
        for name in ("seen", "rows.rows") if table else ("seen",):
            assert (arrays[name] == -2).all(), np.unique(arrays[name], return_counts=True)


def test_connections_that_never_last_end_the_run(
    start: Callable[..., Run], through: Callable[..., Relay], tmp_path: Path
) -> None:
    """Each is cut before the model is through, as by a firewall: that is told, and few workers are begun."""
    through(Manner(reset=40_000))
    options = config(tmp_path)
    with (tmp_path / "throttled.yaml").open("a") as file:
        file.write("heartbeat_s: 0.1\n")
    run = start(CONV_NET, *CONV, *options, "--workers", 1)
    code, output = run.wait()
    assert code == 1 and "lost its connection to server-0, which lives" in output
    assert len(list(run.path.glob("logs/worker-*.log"))) <= 25
