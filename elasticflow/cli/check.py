"""``elasticflow check``: loads a program and runs a slice of each size that will occur; no job."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticflow.api import Optimizer
from elasticflow.embedding import TableSpec
from elasticflow.errors import ProgramError
from elasticflow.process.fingerprint import environment
from elasticflow.program.loading import parse
from elasticflow.run import config
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import Layout, Rule
from elasticflow.step.schedule import Kind
from elasticflow.worker.shapes import shapes_of

if TYPE_CHECKING:
    from elasticflow.worker.worker import Loaded

MARK = "ELASTICFLOW_CHECK"


def check(arguments: argparse.Namespace) -> int:
    """Prints what the program trains, and what one slice of it costs."""
    parse(arguments.program)
    names = ("batch_size", "slices", "drop_last", "seed", "threads", "device", "data")
    options = {name: getattr(arguments, name) for name in names}
    chosen = config.make(arguments.config, {**options, "program": os.path.abspath(arguments.program)})
    if MARK not in os.environ:  # the libraries read their settings when they are loaded
        return _check_apart(chosen, sys.argv[1:])
    try:
        return _check_here(chosen)
    finally:  # which is not come to where the program ends the process
        os.write(int(os.environ[MARK]), b"\n")


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
        drop_last=chosen.drop_last, on_nan=chosen.on_nan,
    )  # fmt: skip


def _check_here(chosen: config.Config) -> int:
    from elasticflow.worker.worker import Loaded

    loaded = Loaded(_settings_of(chosen))
    spec = loaded.rehearse()
    since_s = time.perf_counter()
    cost = loaded.cost_of_first_slice()
    slice_s = time.perf_counter() - since_s
    layout = Layout(spec.entries)
    tables = dict(zip(layout.tables, spec.tables, strict=True))
    for entry in layout.entries:
        if table := tables.get(entry):
            rows = "any number of" if table.rows is None else f"{table.rows:,}"
            print(f"{entry.name}  table  {rows} rows of {table.dim}  {entry.dtype}  {_rules(table)}")
        elif entry.rule is not Rule.REPORT:
            kind = "parameter" if entry.rule is Rule.UPDATE else "buffer"
            print(f"{entry.name}  {kind}  {list(entry.shape)}  {entry.dtype}  {entry.num_bytes:,} bytes")
    settings = _settings(spec.optimizer)
    trained = layout.of_rule(Rule.UPDATE)
    print(
        f"{spec.framework}: {sum(e.size for e in trained):,} parameters in {len(trained)} tensors, "
        f"{sum(e.num_bytes for e in trained):,} bytes; {settings}"
    )
    print(f"data: {spec.num_records:,} records to train on, {spec.num_test:,} to test with")
    num_records = chosen.step_records // chosen.num_slices
    print(f"one slice of {num_records} records: cost {cost:.4f}, {slice_s * 1000:.2f} ms")
    _try_all(loaded, num_records)
    warnings = list(spec.warnings)
    if chosen.compression == "top-k":
        warnings.append("with compression: top-k the same answer is not promised")
    for warning in warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    return 0


def _try_all(loaded: Loaded, num_tried: int) -> None:
    """All other sizes that will occur. Raises ProgramError if the program raises on one."""
    for shape in shapes_of(loaded.schedule):
        if (shape.kind, shape.num_records) != (Kind.TRAIN, num_tried):
            cost = loaded.try_out(shape)
            plural = "s" * (shape.num_records != 1)
            print(f"{shape.num_records} record{plural} at once, in {shape.where}: cost {cost:.4f}")
    if left_out := loaded.schedule.records_left_out:
        print(f"drop_last leaves out: {left_out:,} of {loaded.schedule.num_records:,} records of each epoch")


def _settings(optimizer: Optimizer) -> str:
    return ", ".join(f"{name} {value}" for name, value in optimizer.settings().items())


def _rules(table: TableSpec) -> str:
    """What rows are at first, which are kept, and how they are updated."""
    rules = [str(table.initializer)]
    rules += [f"min_count {table.min_count}"] if table.min_count > 1 else []
    rules += [f"evict_after_steps {table.evict_after_steps}"] if table.evict_after_steps else []
    return ", ".join([*rules, _settings(table.optimizer) if table.optimizer else "the model's optimizer"])
