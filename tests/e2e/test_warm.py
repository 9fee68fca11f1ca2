"""Runs that begin with the weights of others: the same digest whatever becomes of the file, and of the
processes."""

from __future__ import annotations

from collections.abc import Callable

from .conftest import PROGRAMS, Run, cli, digest_in

OPTIONS = ("--epochs", 2, "--batch-size", 64, "--slices", 4)


def test_the_same_digest_though_the_file_is_gone(start: Callable[..., Run]) -> None:
    first = start("small_torch.py", *OPTIONS, "--workers", 2)
    before = first.digest()
    weights = first.path.with_name("weights.npz")
    assert cli("export", first.path, weights).returncode == 0
    alone = start("small_torch.py", *OPTIONS, "--workers", 1, "--init-from", weights)
    expected = alone.digest()
    assert expected != before and "begin as in" in alone.output()
    of_run = start("small_torch.py", *OPTIONS, "--workers", 2, "--init-from", first.path, shut=["step 20"])
    status = of_run.wait_for_step(5)
    of_run.kill(status.workers[0].name)
    of_run.kill("server-0")
    first.path.rename(first.path.with_name("gone"))
    weights.unlink()
    of_run.stop("step 20")
    named = ("--init-from", first.path)  # as a script does that always calls the same
    again = cli("train", "--resume", "--run-dir", of_run.path, "--workers", 3, *named)
    assert digest_in(again.stdout + again.stderr) == expected
    refused = cli("train", "--resume", "--run-dir", of_run.path, "--init-from", alone.path)
    assert refused.returncode == 1 and "is for a run that begins" in refused.stderr
    assert "init {'from'" in cli("checkpoint", "show", of_run.path).stdout


def test_the_optimizer_goes_on_where_it_was(start: Callable[..., Run]) -> None:
    """Moments and number of updates: whoever computes, and across a resume."""
    first = start("small_torch.py", *OPTIONS, "--workers", 1)
    first.finish()
    more = ("--init-from", first.path, "--init-optimizer")
    alone = start("small_torch.py", *OPTIONS, "--workers", 1, *more)
    expected = alone.digest()
    assert "the optimizer goes on with its state of 7 of them, after 32 updates" in alone.output()
    run = start("small_torch.py", *OPTIONS, "--workers", 2, *more, shut=["step 20"])
    run.held_at("step 20")
    run.kill("server-0")
    run.stop("step 20")
    again = cli("train", "--resume", "--run-dir", run.path, "--workers", 4)
    assert digest_in(again.stdout + again.stderr) == expected
    weights_alone = start("small_torch.py", *OPTIONS, "--workers", 1, "--init-from", first.path)
    assert weights_alone.digest() != expected


def test_another_optimizer_is_refused_with_the_way(start: Callable[..., Run], tmp_path) -> None:
    run = start("small_torch.py", *OPTIONS, "--workers", 1)
    run.finish()
    program = tmp_path / "small_torch.py"
    program.write_text((PROGRAMS / "small_torch.py").read_text().replace("ef.Adam(", "ef.Adagrad("))
    (tmp_path / "gates.py").write_text((PROGRAMS / "gates.py").read_text())
    refused = cli("train", "--resume", "--run-dir", run.path, "--program", program, "--epochs", 3)
    assert refused.returncode == 1 and "--init-from" in refused.stderr
