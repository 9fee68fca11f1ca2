"""The man page, of what the command line knows of itself: ``python -m elasticflow.cli.manual``.

``make man`` writes it to ``docs/elasticflow.1``, which is installed with the package.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from elasticflow.cli.parser import Parser
from elasticflow.cli.verbs import VERBS, parser, verbs_of

_HEAD = """.\\" made by: make man
.TH ELASTICFLOW 1
.SH NAME
elasticflow \\- elastic deep\\-learning training: the same model, whatever happens
.SH SYNOPSIS
.B elasticflow
.I VERB
[options]
.SH DESCRIPTION
Trains a program that defines model() and forward(), in PyTorch or TensorFlow, on this machine, on SLURM,
YARN or Kubernetes, with as many workers as there are. They may come, go and die; the model that comes out
is the same bit for bit.
.SH VERBS
"""
_TAIL = """.SH EXIT STATUS
.TP
.B 0
done; of a run: finished
.TP
.B 1
an error, told on standard error; of a run: failed, or it could not begin
.TP
.B 2
wrong usage
.TP
.B 3
a run was stopped before its end; \\-\\-resume goes on
.TP
.B 4
a run diverged
.TP
.B 5
a run stalled
.TP
.B 75
a run, or its cluster, could not be asked just now: nothing follows from that
.TP
.B 130
interrupted by Ctrl\\-C
.SH ENVIRONMENT
.TP
.B ELASTICFLOW_LOG_FORMAT
json: lines of logs are JSON, of processes that have no settings of a run
.TP
.B NO_COLOR
no colours on a terminal
.TP
.B HADOOP_CONF_DIR, KRB5_CLIENT_KTNAME, AWS_PROFILE, KUBECONFIG, ...
are those of the clients by which HDFS, stores and clusters are reached
.SH FILES
.TP
.I RUN/
the folder of a run: settings, checkpoints, logs, report
.TP
.I ~/.elasticflow/
keys and the index of this user's runs
.SH SEE ALSO
.BR sbatch (1),
.BR kubectl (1)
"""


def text() -> str:
    """The page, as roff."""
    return _HEAD + "\n".join(_verbs()) + "\n" + _TAIL


def _verbs() -> Iterator[str]:
    for name, verb in verbs_of(parser()).items():
        yield f".SS {_escaped(name)}"
        yield _escaped(_sentence(VERBS[name].help))
        yield from _options(verb.fill_in())
        for below, each in verbs_of(verb).items():
            yield f".SS {_escaped(f'{name} {below}')}"
            yield from _options(each)


def _options(verb: Parser) -> Iterator[str]:
    form = verb._get_formatter()
    for action in verb._actions:
        if isinstance(action, (argparse._SubParsersAction, argparse._HelpAction)):
            continue
        if action.help is argparse.SUPPRESS:
            continue
        yield ".TP"
        yield f".B {_escaped(_called(action))}"
        yield _escaped(form._expand_help(action)) if action.help else "\\&"


def _called(action: argparse.Action) -> str:
    """Such as ``--follow, -f`` or ``--lines, -n N``."""
    values = "|".join(map(str, action.choices)) if action.choices else (action.metavar or action.dest)
    if not action.option_strings:
        return str(values)
    return ", ".join(action.option_strings) + (f" {values}" if action.nargs != 0 else "")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _escaped(words: str) -> str:
    found = " ".join(words.replace("\\", "\\e").replace("-", "\\-").split())
    return f"\\&{found}" if found.startswith((".", "'")) else found


if __name__ == "__main__":
    print(text(), end="")
