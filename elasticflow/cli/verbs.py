"""The verbs of the command line: what each is for, who knows its options, and who does it.

Only the verb that was asked for is imported: starting fast is part of training soon.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from elasticflow import __version__
from elasticflow.cli.parser import Parser


class Verb(NamedTuple):
    """help: one line. options, run: functions of modules here; they add options to a parser, and do it."""

    help: str
    options: str
    run: str


VERBS = {
    "train": Verb("train a program", "train.add_options", "train.train"),
    "submit": Verb(
        "have a cluster train a program; prints the job's id", "submit.add_submit_options", "submit.submit"
    ),
    "lead": Verb("in a cluster's job: be the master of a run", "submit.add_lead_options", "submit.lead"),
    "operate": Verb(
        "on Kubernetes: look after a namespace's ElasticFlowJobs",
        "options.add_operate_options",
        "submit.operate",
    ),
    "profile": Verb(
        "measure how fast a program is with 1, 2, 4, ... workers", "profile.add_options", "profile.profile"
    ),
    "sweep": Verb(
        "try values of a program's arguments; which are best", "sweep_options.add_options", "sweep.sweep"
    ),
    "pack": Verb(
        "make an archive of a virtual environment, for nodes that lack it",
        "options.add_pack_options",
        "pack.pack",
    ),
    "check": Verb(
        "load a program and run slices of all sizes; no job", "options.add_check_options", "check.check"
    ),
    "new": Verb("write a program to begin with", "options.add_new_options", "beginning.new"),
    "example": Verb(
        "copy an example here; without a name: which there are",
        "options.add_example_options",
        "beginning.example",
    ),
    "data": Verb("look at files of records", "options.add_data_options", "describing.describe_data"),
    "status": Verb("the state of a run", "options.add_status_options", "runs.status"),
    "jobs": Verb(
        "the runs that were submitted to clusters, the newest first", "jobs.add_options", "jobs.jobs"
    ),
    "serve": Verb(
        "share a cluster among runs with deadlines: what each gets, and when",
        "service_options.add_serve_options",
        "serve.serve",
    ),
    "cancel": Verb(
        "have a run of a service end with a checkpoint", "service_options.add_cancel_options", "serve.cancel"
    ),
    "replay": Verb(
        "a service's past in the simulator, and by another policy or size",
        "service_options.add_replay_options",
        "replay.replay",
    ),
    "runs": Verb(
        "all runs in a folder: when, what came of them, hours",
        "history_options.add_runs_options",
        "history.runs",
    ),
    "compare": Verb(
        "runs side by side: settings, metrics, digests",
        "history_options.add_compare_options",
        "comparing.compare",
    ),
    "report": Verb(
        "how a run went: seconds, faults and what they cost", "options.add_report_options", "report.report"
    ),
    "ui": Verb(
        "runs in a browser: curves, faults, sizes, side by side", "ui.options.add_options", "ui.command.ui"
    ),
    "metrics": Verb(
        "tell Prometheus of a run, or of a service", "metrics_options.add_options", "metrics.metrics"
    ),
    "track": Verb(
        "draw a run's curves: tensorboard, mlflow, wandb, csv", "track_options.add_options", "track.track"
    ),
    "attach": Verb(
        "show a run that is under way as 'train' does", "options.add_run_options", "attach.attach"
    ),
    "scale": Verb("go on with another number of workers", "options.add_scale_options", "runs.scale"),
    "stop": Verb("commit a checkpoint, then leave", "options.add_run_options", "runs.stop"),
    "logs": Verb("what a run's processes have written", "logs.add_options", "logs.logs"),
    "chaos": Verb("kill and freeze a run's processes, to see it go on", "chaos.add_options", "chaos.chaos"),
    "simulate": Verb(
        "what a scheduler would do with a trace of jobs", "simulate.add_options", "simulate.simulate"
    ),
    "checkpoint": Verb("look at checkpoints", "options.add_checkpoint_options", "checkpoints.look"),
    "export": Verb(
        "parameters and buffers by name, in one file", "options.add_export_options", "checkpoints.export"
    ),
    "predict": Verb(
        "what the program's predict() gives of data", "applying.add_predict_options", "applying.predict"
    ),
    "evaluate": Verb(
        "cost and metrics of a run's model over data", "applying.add_evaluate_options", "applying.evaluate"
    ),
    "serve-model": Verb(
        "answer requests over HTTP with a run's model", "serving_options.add_options", "serving.serve_model"
    ),
    "completion": Verb(
        "print what has a shell complete verbs, options and paths", "shells.add_options", "shells.completion"
    ),
    "doctor": Verb("what here will hurt a run, and what cures it", "doctor.add_options", "doctor.doctor"),
}


def parser() -> argparse.ArgumentParser:
    """Of all verbs; the options of one are looked up when it is there that something is parsed."""
    found = Parser(prog="elasticflow", description="Elastic training: the same model, whatever happens.")
    found.add_argument("--version", action="version", version=__version__)
    verbs = found.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        verbs.add_parser(name, help=verb.help).fill = partial(_call, verb.options)
    return found


def verbs_of(found: argparse.ArgumentParser) -> dict[str, Parser]:
    """Those of a parser, or of a verb, by name; their options are not filled in."""
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {name: each for name, each in action.choices.items() if isinstance(each, Parser)}
    return {}


def run(arguments: argparse.Namespace) -> int:
    """Does what was asked for; returns the exit code."""
    code: int = _call(VERBS[arguments.verb].run, arguments)
    return code


def _call(name: str, argument: Any) -> Any:
    module, _, function = name.rpartition(".")
    called: Callable[[Any], Any] = getattr(importlib.import_module(f"elasticflow.cli.{module}"), function)
    return called(argument)
