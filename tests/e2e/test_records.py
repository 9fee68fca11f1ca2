"""Records of different lengths, made by chance, mixed and collated: the same digest whoever reads them."""

from __future__ import annotations

from collections.abc import Callable

from .conftest import PROGRAMS, Run, cli, digest_in

OPTIONS = ("--epochs", 3, "--batch-size", 64, "--slices", 4)


def test_whoever_reads_them_is_killed_and_resumed(start: Callable[..., Run]) -> None:
    alone = start("records_torch.py", *OPTIONS, "--workers", 1)
    expected = alone.digest()
    run = start("records_torch.py", *OPTIONS, "--workers", 2, shut=["step 12"])
    status = run.wait_for_step(4)
    run.kill(status.workers[0].name)
    run.stop("step 12")
    again = cli("train", PROGRAMS / "records_torch.py", "--resume", "--run-dir", run.path, "--workers", 4)
    assert digest_in(again.stdout + again.stderr) == expected
