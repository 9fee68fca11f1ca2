"""Arguments of the command line, and how errors leave it."""

from __future__ import annotations

import argparse
import contextlib
import sys

from elasticflow import __version__
from elasticflow.cli.parser import Parser
from elasticflow.cli.terminal import harmless_output, stand_in_for_closed
from elasticflow.errors import EXIT_UNKNOWN, ElasticFlowError, UnknownError
from elasticflow.process.retry import is_away
from elasticflow.process.texts import bear_any_text


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="elasticflow", description="Elastic training: the same model, whatever happens.")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    from elasticflow.cli.folders import add_run_argument
    from elasticflow.cli.train import add_options

    add_options(verbs.add_parser("train", help="train a program"))

    from elasticflow.cli.submit import add_lead_options, add_submit_options

    add_submit_options(verbs.add_parser("submit", help="have a cluster train a program; prints the job's id"))
    add_lead_options(verbs.add_parser("lead", help="in a cluster's job: be the master of a run"))

    from elasticflow.cli.profile import add_options as add_profile_options

    add_profile_options(
        verbs.add_parser("profile", help="measure how fast a program is with 1, 2, 4, ... workers")
    )

    from elasticflow.cli.sweep_options import add_options as add_sweep_options

    add_sweep_options(verbs.add_parser("sweep", help="try values of a program's arguments; which are best"))

    pack = verbs.add_parser("pack", help="make an archive of a virtual environment, for nodes that lack it")
    pack.add_argument("file", metavar="FILE", help="such as environment.tar.gz")
    pack.add_argument("--python", metavar="VENV", default="", help="its folder (default: the running one)")

    check = verbs.add_parser("check", help="load a program and run slices of all sizes; no job")
    check.add_argument("program", metavar="PROGRAM")
    for name in ("batch-size", "slices", "seed", "threads"):
        check.add_argument(f"--{name}", type=int, metavar="N")
    check.add_argument("--device", metavar="auto|cpu|cuda")
    check.add_argument("--drop-last", action="store_true", default=None)
    check.add_argument("--data", metavar="FILE")
    check.add_argument("--config", metavar="FILE")
    check.add_argument("--set", dest="set_args", action="append", metavar="NAME=VALUE")
    check.add_argument("--debug", action="store_true", help="one slice, here: print and breakpoint() work")

    fresh = verbs.add_parser("new", help="write a program to begin with")
    fresh.add_argument("kind", metavar="pytorch|keras", choices=("pytorch", "keras"))
    fresh.add_argument("file", metavar="FILE", nargs="?", default="program.py")

    example = verbs.add_parser("example", help="copy an example here; without a name: which there are")
    example.add_argument("name", metavar="NAME", nargs="?", default="")

    data = verbs.add_parser("data", help="look at files of records")
    whats = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    describe = whats.add_parser("describe", help="types, ranges, values, and what would not fit")
    describe.add_argument(
        "file", metavar="FILE", help="a file, a pattern, or a folder of Parquet; also on HDFS"
    )
    describe.add_argument("--json", action="store_true")
    text = "write the values of columns of texts there, for ef.data.vocabularies(OUT)"
    describe.add_argument("--vocabularies", metavar="OUT", help=text)

    status = verbs.add_parser("status", help="the state of a run")
    add_run_argument(status)
    status.add_argument("--json", action="store_true")
    status.add_argument("--watch", action="store_true", help="until the run is over")

    from elasticflow.cli.jobs import add_options as add_jobs_options

    add_jobs_options(
        verbs.add_parser("jobs", help="the runs that were submitted to clusters, the newest first")
    )

    from elasticflow.cli.service_options import add_cancel_options, add_replay_options, add_serve_options

    add_serve_options(
        verbs.add_parser("serve", help="share a cluster among runs with deadlines: what each gets, and when")
    )
    add_cancel_options(verbs.add_parser("cancel", help="have a run of a service end with a checkpoint"))
    add_replay_options(
        verbs.add_parser("replay", help="a service's past in the simulator, and by another policy or size")
    )

    from elasticflow.cli.history_options import add_compare_options, add_runs_options

    add_runs_options(verbs.add_parser("runs", help="all runs in a folder: when, what came of them, hours"))
    add_compare_options(verbs.add_parser("compare", help="runs side by side: settings, metrics, digests"))

    report = verbs.add_parser("report", help="how a run went: seconds, faults and what they cost")
    add_run_argument(report)
    report.add_argument("--json", action="store_true")

    from elasticflow.cli.ui.options import add_options as add_ui_options

    add_ui_options(verbs.add_parser("ui", help="runs in a browser: curves, faults, sizes, side by side"))

    from elasticflow.cli.metrics_options import add_options as add_metrics_options

    add_metrics_options(verbs.add_parser("metrics", help="tell Prometheus of a run, or of a service"))

    from elasticflow.cli.track_options import add_options as add_track_options

    add_track_options(verbs.add_parser("track", help="draw a run's curves: tensorboard, mlflow, wandb, csv"))

    attach = verbs.add_parser("attach", help="show a run that is under way as 'train' does")
    add_run_argument(attach)

    scale = verbs.add_parser("scale", help="go on with another number of workers")
    add_run_argument(scale)
    scale.add_argument("workers", metavar="N", type=int)

    stop = verbs.add_parser("stop", help="commit a checkpoint, then leave")
    add_run_argument(stop)

    from elasticflow.cli.logs import add_options as add_logs_options

    add_logs_options(verbs.add_parser("logs", help="what a run's processes have written"))

    from elasticflow.cli.chaos import add_options as add_chaos_options

    add_chaos_options(verbs.add_parser("chaos", help="kill and freeze a run's processes, to see it go on"))

    from elasticflow.cli.simulate import add_options as add_simulate_options

    add_simulate_options(verbs.add_parser("simulate", help="what a scheduler would do with a trace of jobs"))

    checkpoint = verbs.add_parser("checkpoint", help="look at checkpoints")
    nouns = checkpoint.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in {
        "list": "one line a checkpoint",
        "show": "what one holds",
        "verify": "read every byte of one, or of all",
        "digest": "one SHA-256 over all parameters, buffers and slots",
        "copy": "one to another place, as a run that can go on from it there",
    }.items():
        each = nouns.add_parser(action, help=text)
        add_run_argument(each, "dir")
        if action == "copy":
            each.add_argument("to", metavar="TO", help="a new folder, or URL on HDFS, for --resume --run-dir")
        if action != "list":
            each.add_argument("--step", type=int, metavar="N", help="default: the newest")

    export = verbs.add_parser("export", help="parameters and buffers by name, in one file")
    add_run_argument(export)
    export.add_argument(
        "file", metavar="FILE", help=".npz .safetensors .h5 .pt; .pt2 .onnx .keras .savedmodel, which compute"
    )
    export.add_argument("--step", type=int, metavar="N", help="default: the newest")
    export.add_argument("--best", action="store_true", help="the best checkpoint, see keep_best in a program")
    export.add_argument("--ema", action="store_true", help="parameters' moving averages in their place")

    from elasticflow.cli.applying import add_evaluate_options, add_predict_options

    add_predict_options(verbs.add_parser("predict", help="what the program's predict() gives of data"))
    add_evaluate_options(verbs.add_parser("evaluate", help="cost and metrics of a run's model over data"))

    from elasticflow.cli.doctor import add_options as add_doctor_options

    add_doctor_options(verbs.add_parser("doctor", help="what here will hurt a run, and what cures it"))
    return parser


def _run(arguments: argparse.Namespace) -> int:
    """Each verb imports what it needs: starting fast is part of training soon."""
    if arguments.verb == "train":
        from elasticflow.cli.train import train

        return train(arguments)
    if arguments.verb in ("submit", "lead"):
        from elasticflow.cli import submit

        return submit.submit(arguments) if arguments.verb == "submit" else submit.lead(arguments)
    if arguments.verb == "profile":
        from elasticflow.cli.profile import profile

        return profile(arguments)
    if arguments.verb == "sweep":
        from elasticflow.cli.sweep import sweep

        return sweep(arguments)
    if arguments.verb == "pack":
        from elasticflow.cli.pack import pack

        return pack(arguments)
    if arguments.verb in ("new", "example"):
        from elasticflow.cli import beginning

        return {"new": beginning.new, "example": beginning.example}[arguments.verb](arguments)
    if arguments.verb == "check":
        from elasticflow.cli.check import check

        return check(arguments)
    if arguments.verb == "data":
        from elasticflow.cli.describing import describe_data

        return describe_data(arguments)
    if arguments.verb in ("status", "scale", "stop"):
        from elasticflow.cli import runs

        return {"status": runs.status, "scale": runs.scale, "stop": runs.stop}[arguments.verb](arguments)
    if arguments.verb == "jobs":
        from elasticflow.cli.jobs import jobs

        return jobs(arguments)
    if arguments.verb in ("serve", "cancel"):
        from elasticflow.cli import serve

        return serve.serve(arguments) if arguments.verb == "serve" else serve.cancel(arguments)
    if arguments.verb == "replay":
        from elasticflow.cli.replay import replay

        return replay(arguments)
    if arguments.verb == "report":
        from elasticflow.cli.report import report

        return report(arguments)
    if arguments.verb == "runs":
        from elasticflow.cli.history import runs as all_runs

        return all_runs(arguments)
    if arguments.verb == "compare":
        from elasticflow.cli.comparing import compare

        return compare(arguments)
    if arguments.verb == "ui":
        from elasticflow.cli.ui.command import ui

        return ui(arguments)
    if arguments.verb == "metrics":
        from elasticflow.cli.metrics import metrics

        return metrics(arguments)
    if arguments.verb == "track":
        from elasticflow.cli.track import track

        return track(arguments)
    if arguments.verb == "attach":
        from elasticflow.cli.attach import attach

        return attach(arguments)
    if arguments.verb == "logs":
        from elasticflow.cli.logs import logs

        return logs(arguments)
    if arguments.verb == "chaos":
        from elasticflow.cli.chaos import chaos

        return chaos(arguments)
    if arguments.verb == "simulate":
        from elasticflow.cli.simulate import simulate

        return simulate(arguments)
    if arguments.verb == "doctor":
        from elasticflow.cli.doctor import doctor

        return doctor(arguments)
    if arguments.verb in ("predict", "evaluate"):
        from elasticflow.cli import applying

        return {"predict": applying.predict, "evaluate": applying.evaluate}[arguments.verb](arguments)
    from elasticflow.cli import checkpoints as ck

    actions = {"list": ck.list_, "show": ck.show, "verify": ck.verify, "digest": ck.digest, "copy": ck.copy}
    return ck.export(arguments) if arguments.verb == "export" else actions[arguments.action](arguments)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    0: done. 1: an error, told after ``Error:``. 2: wrong usage. 3: a run was stopped before its end.
    75: a run could not be asked now, so that nothing is known of it.
    """
    stand_in_for_closed()
    bear_any_text()
    with harmless_output():
        return _told(argv)


def _told(argv: list[str] | None) -> int:
    try:
        return _run(_parser().parse_args(argv))
    except ElasticFlowError as error:
        with contextlib.suppress(OSError):  # nobody reads it any more
            print(f"Error: {error}", file=sys.stderr)
        return EXIT_UNKNOWN if isinstance(error, UnknownError) else 1
    except BrokenPipeError:
        return 1
    except OSError as error:  # a storage that is away
        with contextlib.suppress(OSError):
            print(f"Error: {error}", file=sys.stderr)
        return EXIT_UNKNOWN if is_away(error) else 1
    except KeyboardInterrupt:
        return 130
