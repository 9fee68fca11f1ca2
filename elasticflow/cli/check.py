"""``elasticflow check``: loads a program and runs a slice of each size that will occur; no job."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from elasticflow import config
from elasticflow.api import Optimizer
from elasticflow.embedding import TableSpec
from elasticflow.fingerprint import environment
from elasticflow.layout import Layout, Rule
from elasticflow.program import parse
from elasticflow.schedule import Kind
from elasticflow.settings import MemberSettings
from elasticflow.worker.shapes import shapes_of

if TYPE_CHECKING:
    from elasticflow.worker.worker import Loaded

MARK = "ELASTICFLOW_CHECK"


def check(arguments: argparse.Namespace) -> int:
    """Prints what the program trains, and what one slice of it costs."""
    parse(arguments.program)
    names = ("batch_size", "slices", "drop_last", "seed", "threads", "data")
    options = {name: getattr(arguments, name) for name in names}
    chosen = config.make(arguments.config, {**options, "program": os.path.abspath(arguments.program)})
    if os.environ.get(MARK) != "1":  # the libraries read their settings when they are loaded
        variables = {**environment(chosen.threads), MARK: "1"}
        return subprocess.run(
            [sys.executable, "-m", "elasticflow.cli", *sys.argv[1:]], env=variables
        ).returncode
    from elasticflow.worker.worker import Loaded

    loaded = Loaded(
        MemberSettings(
            name="check", role="worker", host="", master="", run_dir="", program=chosen.program,
            data=chosen.data, seed=chosen.seed, threads=chosen.threads, batch_size=chosen.step_records,
            num_slices=chosen.num_slices, asynchronous=chosen.asynchronous, heartbeat_s=1, lost_s=2,
            encrypt_data=False, timeline=False, drop_last=chosen.drop_last,
        )
    )  # fmt: skip
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
