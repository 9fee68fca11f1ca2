"""A step with NaNs ends the run before it is made, or is left out for all: no model ever has NaNs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import PROGRAMS, Run, cli, digest_in

TRAIN = ("--epochs", 2, "--batch-size", 32)
NAN = "100,7"
"""Two records, in two steps of each of the two epochs."""


@pytest.mark.parametrize("program", ["poisoned_torch.py", "poisoned_tensorflow.py"])
@pytest.mark.parametrize("extras", [(), ("TABLE",), ("TABLE", "CLIP")])
def test_a_step_that_is_left_out_is_so_for_all(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, program: str, extras: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NAN", NAN)
    for each in extras:
        monkeypatch.setenv(each, "1")
    digests = set()
    for workers, servers in ((1, 1), (3, 2)):
        run = start(program, *TRAIN, "--on-nan", "skip", "--workers", workers, "--servers", servers)
        output = run.finish()
        digests.add(digest_in(output))
        assert "skipped: 4 steps with NaN or infinite gradients" in output, output
        assert output.count("is left out") == 4, output
        report = run.report()
        assert (report.state, report.skipped, report.step) == ("finished", 4, 20)
        assert "4 steps with NaN" in cli("report", run.path).stdout
    assert len(digests) == 1


@pytest.mark.parametrize("workers, servers, extras", [(1, 1, ()), (3, 2, ("TABLE",)), (2, 2, ("CLIP",))])
def test_by_default_the_run_ends_before_the_step_is_made(
    start: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    servers: int,
    extras: tuple[str, ...],
) -> None:
    """It says where that began, whoever computed it; and goes on from what was good, to the same end."""
    monkeypatch.setenv("NAN", NAN)
    for each in extras:
        monkeypatch.setenv(each, "1")
    size = ("--workers", workers, "--servers", servers)
    run = start("poisoned_torch.py", *TRAIN, *size, "--checkpoint-every", 1, shut=["step 8"])
    run.wait_until(lambda status: status.checkpoint_step)
    run.open("step 8")
    code, output = run.wait()
    assert code == 4, output
    said = "Error: step 9 (epoch 1) is not made: the gradient of net.0.weight is not finite (NaN or infinite)"
    where = (
        "beginning in slice 5, whose cost is nan, first with record 7; the last checkpoint is that of step"
    )
    assert f"{said}, {where}" in output, output
    report = run.report()
    assert report.step in (8, 9), "the leading server may have made its part of the step"
    assert report.state == "diverged" and 1 <= report.checkpoint_step <= 8
    assert not report.quarantined and "is left out" not in output
    assert cli("checkpoint", "verify", run.path).returncode == 0
    again = start("poisoned_torch.py", "--resume", name="run-0")
    code, output = again.wait()
    assert code == 4 and said in output, output
    refused = cli(
        "train", PROGRAMS / "poisoned_torch.py", "--run-dir", run.path, "--resume", "--on-nan", "skip"
    )
    assert refused.returncode == 1 and "was made with on_nan stop, now it is skip" in refused.stderr


def test_after_too_many_the_run_ends_with_a_checkpoint(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAN", NAN)
    run = start("poisoned_torch.py", *TRAIN, "--on-nan", "skip", "--max-skipped-steps", 1)
    code, output = run.wait()
    assert code == 4, output
    assert "more than 1 steps had to be left out (max_skipped_steps), the last was step" in output
    report = run.report()
    assert report.state == "diverged" and report.checkpoint_step == report.step
    assert cli("checkpoint", "verify", run.path).returncode == 0


@pytest.mark.parametrize("program", ["poisoned_torch.py", "poisoned_tensorflow.py"])
def test_asynchronously_an_update_is_left_out_alone(
    start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("NAN", NAN)
    monkeypatch.setenv("TABLE", "1")
    options = ("--epochs", 2, "--mode", "async", "--batch-size", 8, "--staleness", 3, "--workers", 2)
    run = start(program, *options, "--servers", 2, "--on-nan", "skip")
    output = run.finish()
    assert "skipped: 4 updates with NaN or infinite gradients" in output, output
    assert "is left out: there are NaNs" in output
    code, output = start(program, *options).wait()
    assert code == 4, output
    assert "is not made: the gradient of" in output and "beginning in slice" in output


def test_no_record_is_named_where_it_is_so_with_all(start: Callable[..., Run], tmp_path: Path) -> None:
    """Its first step goes far astray, and no record gives numbers then."""
    program = tmp_path / "astray.py"
    program.write_text(
        """
import torch

import elasticflow as ef


def model():
    return {"w": torch.ones(3), "optimizer": ef.SGD(lr=1.0)}


def forward(x, y, params):
    return (x @ params["w"] - y).square().mean()


def data():
    return {"x": torch.arange(192.0).reshape(64, 3) * 1e12, "y": torch.zeros(64)}
"""
    )
    code, output = start(str(program), *TRAIN).wait()
    assert code == 4 and "beginning in slice 0, whose cost is inf; there is no checkpoint yet" in output, (
        output
    )
