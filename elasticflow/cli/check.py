"""``elasticflow check``: loads a program and runs a slice of each size that will occur; no job."""

from __future__ import annotations

import argparse
import os
import pdb
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from elasticflow.cli.asking import formatted
from elasticflow.cli.checked import (
    Checked,
    CheckedSlice,
    CheckedSlicing,
    entries_of,
    groups_of,
    settings_of,
)
from elasticflow.cli.progress import scaled
from elasticflow.errors import ProgramError
from elasticflow.process.fingerprint import environment
from elasticflow.program.arguments import parsed
from elasticflow.program.loading import parse
from elasticflow.run import config
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Vector
from elasticflow.step.schedule import Kind
from elasticflow.training.advice import Advice
from elasticflow.worker.shapes import shapes_of

if TYPE_CHECKING:
    from elasticflow.worker.loaded import Loaded

MARK = "ELASTICFLOW_CHECK"


def check(arguments: argparse.Namespace) -> int:
    """Prints what the program trains, and what one slice of it costs."""
    parse(arguments.program)
    names = ("batch_size", "slices", "drop_last", "seed", "threads", "device", "data")
    options = {name: getattr(arguments, name) for name in names}
    if arguments.set_args:
        options["args"] = parsed(arguments.set_args)
    chosen = config.make(arguments.config, {**options, "program": os.path.abspath(arguments.program)})
    if arguments.debug:
        return _debug(chosen)
    if MARK not in os.environ:  # the libraries read their settings when they are loaded
        return _check_apart(chosen, sys.argv[1:])
    try:
        if not arguments.json:
            checked = _check_here(chosen, print)
        else:
            with _stdout_apart() as out:
                checked = _check_here(chosen, lambda line: None)
                print(formatted(checked), file=out)
        for warning in checked.warnings:
            print(f"Warning: {warning}", file=sys.stderr)
        return 0
    finally:  # which is not come to where the program ends the process
        os.write(int(os.environ[MARK]), b"\n")


@contextmanager
def _stdout_apart() -> Iterator[TextIO]:
    """The stream of stdout for what is asked for; what the program prints meanwhile goes to stderr."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        yield out


def _debug(chosen: config.Config) -> int:
    """One slice in a process that has the terminal: what it prints is seen, and ``breakpoint()`` stops."""
    if MARK not in os.environ:
        variables = {**environment(chosen.threads), MARK: "debug"}
        os.execve(sys.executable, [sys.executable, "-m", "elasticflow.cli", *sys.argv[1:]], variables)
    from elasticflow.worker.loaded import Loaded

    loaded = Loaded(_settings_of(chosen))
    batches, work = loaded.batches(loaded.schedule), loaded.schedule.at(0)
    batch = batches.of_rows(Kind.TRAIN, batches.rows(work, 0))
    out = Vector(loaded.replica.layout)
    try:
        loaded.replica.compute(batch, 0, 1.0, out)
    except Exception:  # noqa: BLE001  (whatever the user's program raises)
        traceback.print_exc()
        if sys.stdin.isatty():
            pdb.post_mortem()
        return 1
    print(f"one slice: cost {scaled(float(out.groups[-1][0]))}")
    return 0


def _check_apart(chosen: config.Config, argv: Sequence[str]) -> int:
    """In a process that may die of it. Raises ProgramError if it does."""
    ended, end = os.pipe()
    with os.fdopen(ended, "rb") as told:
        variables = {**environment(chosen.threads), MARK: str(end)}
        command = [sys.executable, "-m", "elasticflow.cli", *argv]
        status = subprocess.run(command, env=variables, pass_fds=(end,)).returncode
        os.close(end)
        os.set_blocking(ended, False)  # it may have left others behind, who hold the other end
        if told.read():
            return status
    from elasticflow.worker.trial import how_it_ended, try_first_slice

    how = how_it_ended(status)
    print(f"the process that ran the program {how}; its first slice is tried again ...", file=sys.stderr)
    deadly = try_first_slice(_settings_of(chosen), environment(chosen.threads))
    if deadly is None:
        raise ProgramError(
            f"{chosen.program}: the process {how}, but not when its first slice was tried again."
        )
    rows = ", ".join(map(str, deadly.rows))
    where = f"row {rows} of the training data" if rows else "its first slice, though from each row alone"
    raise ProgramError(f"{chosen.program}: forward() does not come back from {where}: {deadly.text}.")


def _settings_of(chosen: config.Config) -> MemberSettings:
    return MemberSettings(
        name="check", role="worker", host="", master="", run_dir="", program=chosen.program,
        data=chosen.data, seed=chosen.seed, threads=chosen.threads, device=chosen.device,
        batch_size=chosen.step_records, num_slices=chosen.num_slices, asynchronous=chosen.asynchronous,
        heartbeat_s=chosen.heartbeat_s, lost_s=chosen.lost_s, encrypt_data=False, timeline=False,
        drop_last=chosen.drop_last, on_nan=chosen.on_nan, args=chosen.args, free_slices=chosen.free_slices,
        strict=chosen.fingerprint == "strict",
    )  # fmt: skip


def _check_here(chosen: config.Config, tell: Callable[[str], None]) -> Checked:
    """What is found; each line of it is told as soon as it is."""
    from elasticflow.worker.loaded import Loaded
    from elasticflow.worker.slicing import advice, costs_of
    from elasticflow.worker.summed import looks_summed

    loaded = Loaded(_settings_of(chosen))
    spec = loaded.rehearse()
    since_s = time.perf_counter()
    cost = loaded.cost_of_first_slice()
    slice_s = time.perf_counter() - since_s
    num_slices = loaded.schedule.num_slices
    num_records = chosen.step_records // num_slices
    checked = Checked(
        framework=spec.framework, optimizer=settings_of(spec.optimizer), groups=list(groups_of(spec)),
        entries=list(entries_of(spec)), num_records=spec.num_records, num_test=spec.num_test,
        num_slices=num_slices, slice_s=slice_s, records_left_out=loaded.schedule.records_left_out,
        slices=[CheckedSlice(num_records=num_records, where="a batch", cost=cost)],
        warnings=list(spec.warnings),
    )  # fmt: skip
    for line in checked.model_lines():
        tell(line)
    for one in _try_others(loaded, num_records):
        checked.slices.append(one)
        tell(one.line)
    if checked.records_left_out:
        of_all = f"{checked.records_left_out:,} of {loaded.schedule.num_records:,}"
        tell(f"drop_last leaves out: {of_all} records of each epoch")
    if summed := looks_summed(loaded):
        checked.warnings.append(summed)
    if not chosen.asynchronous:
        costs = costs_of(loaded, chosen.batch_size)
        checked.slicing = [CheckedSlicing(num_slices=count, batch_s=batch_s) for count, batch_s in costs]
        for line in advice(costs, num_slices):
            tell(line)
    if loaded.program.on_epoch is not None:
        from elasticflow.worker.advising import try_out

        checked.on_epoch = told_of(try_out(loaded, cost))
        tell(f"on_epoch(), of an epoch with cost and metrics {scaled(cost)}: {checked.on_epoch}")
    if chosen.compression == "top-k":
        checked.warnings.append("with compression: top-k the same answer is not promised")
    return checked


def told_of(advice: Advice) -> str:
    """What ``on_epoch`` has said, for people."""
    if advice.stop:
        return f"the run would end: {advice.stop}"
    rate = f"times {advice.lr_scale:g}" if advice.lr_scale != 1.0 else ""
    rate = rate if advice.lr is None else f"{advice.lr:g}"
    return f"it would go on, with a learning rate {rate}" if rate else "it would go on"


def _try_others(loaded: Loaded, num_tried: int) -> Iterator[CheckedSlice]:
    """All other sizes that will occur. Raises ProgramError if the program raises on one."""
    for shape in shapes_of(loaded.schedule):
        if (shape.kind, shape.num_records) != (Kind.TRAIN, num_tried):
            cost = loaded.try_out(shape)
            yield CheckedSlice(num_records=shape.num_records, where=shape.where, cost=cost)
