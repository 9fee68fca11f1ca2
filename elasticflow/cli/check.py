"""``elasticflow check``: loads a program and runs a slice of each size that will occur; no job."""

from __future__ import annotations

import argparse
import os
import pdb
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from elasticflow.api import Optimizer
from elasticflow.cli.progress import scaled
from elasticflow.embedding import TableSpec
from elasticflow.errors import ProgramError
from elasticflow.process.fingerprint import environment
from elasticflow.program.arguments import parsed
from elasticflow.program.loading import parse
from elasticflow.run import config
from elasticflow.run.settings import MemberSettings
from elasticflow.step.layout import PASSING, Layout, Rule, Vector
from elasticflow.step.schedule import Kind
from elasticflow.training.advice import Advice
from elasticflow.training.freezing import Toggles, told
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
        return _check_here(chosen)
    finally:  # which is not come to where the program ends the process
        os.write(int(os.environ[MARK]), b"\n")


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
    )  # fmt: skip


def _check_here(chosen: config.Config) -> int:
    from elasticflow.worker.loaded import Loaded
    from elasticflow.worker.slicing import advice, costs_of

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
        elif entry.rule not in PASSING:
            kind = "parameter" if entry.rule is Rule.UPDATE else "buffer"
            print(f"{entry.name}  {kind}  {list(entry.shape)}  {entry.dtype}  {entry.num_bytes:,} bytes")
    for each in spec.frozen:
        print(f"{each.name}  not trained  {list(each.shape)}  {each.dtype}")
    settings = _settings(spec.optimizer)
    for number, other in enumerate(spec.others, 1):
        names = ", ".join(entry.name for entry in layout.entries if entry.part == number)
        print(f"group {number}: {names or 'of no parameter'}; {_settings(other)}")
    for line in _when(layout):
        print(line)
    trained = layout.of_rule(Rule.UPDATE)
    print(
        f"{spec.framework}: {sum(e.size for e in trained):,} parameters in {len(trained)} tensors, "
        f"{sum(e.num_bytes for e in trained):,} bytes; {settings}"
    )
    print(f"data: {spec.num_records:,} records to train on, {spec.num_test:,} to test with")
    num_slices = loaded.schedule.num_slices
    num_records = chosen.step_records // num_slices
    print(f"one slice of {num_records} records: cost {scaled(cost)}, {slice_s * 1000:.2f} ms")
    _try_all(loaded, num_records)
    if not chosen.asynchronous:
        for line in advice(costs_of(loaded, chosen.batch_size), num_slices):
            print(line)
    if loaded.program.on_epoch is not None:
        from elasticflow.worker.advising import try_out

        said = told_of(try_out(loaded, cost))
        print(f"on_epoch(), of an epoch with cost and metrics {scaled(cost)}: {said}")
    warnings = list(spec.warnings)
    if chosen.compression == "top-k":
        warnings.append("with compression: top-k the same answer is not promised")
    for warning in warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    return 0


def told_of(advice: Advice) -> str:
    """What ``on_epoch`` has said, for people."""
    if advice.stop:
        return f"the run would end: {advice.stop}"
    rate = f"times {advice.lr_scale:g}" if advice.lr_scale != 1.0 else ""
    rate = rate if advice.lr is None else f"{advice.lr:g}"
    return f"it would go on, with a learning rate {rate}" if rate else "it would go on"


def _try_all(loaded: Loaded, num_tried: int) -> None:
    """All other sizes that will occur. Raises ProgramError if the program raises on one."""
    for shape in shapes_of(loaded.schedule):
        if (shape.kind, shape.num_records) != (Kind.TRAIN, num_tried):
            cost = loaded.try_out(shape)
            plural = "s" * (shape.num_records != 1)
            print(f"{shape.num_records} record{plural} at once, in {shape.where}: cost {scaled(cost)}")
    if left_out := loaded.schedule.records_left_out:
        print(f"drop_last leaves out: {left_out:,} of {loaded.schedule.num_records:,} records of each epoch")


def _when(layout: Layout) -> Iterator[str]:
    """Of ``trainable``: what is not trained in each epoch."""
    by_toggles: dict[Toggles, list[str]] = {}
    for entry in layout.entries:
        by_toggles.setdefault(entry.toggles, []).append(entry.name)
    for toggles, names in by_toggles.items():
        if toggles:
            yield f"{told(toggles)}: {', '.join(names)}"


def _settings(optimizer: Optimizer) -> str:
    return ", ".join(f"{name} {value}" for name, value in optimizer.settings().items())


def _rules(table: TableSpec) -> str:
    """What rows are at first, which are kept, and how they are updated."""
    rules = [str(table.initializer)]
    rules += [f"min_count {table.min_count}"] if table.min_count > 1 else []
    rules += [f"evict_after_steps {table.evict_after_steps}"] if table.evict_after_steps else []
    return ", ".join([*rules, _settings(table.optimizer) if table.optimizer else "the model's optimizer"])
