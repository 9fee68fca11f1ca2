"""``elasticflow lead --on yarn``: inside of the ApplicationMaster, the master of a run and its supervisor.

YARN may start the ApplicationMaster anew elsewhere, and so come here again: then the run goes on from its
last checkpoint. How a run ended is left in its folder: where YARN could not be told at once, it starts other
attempts, which only say so again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from elasticflow.cli.led import settings_in_job, stem_of
from elasticflow.cli.resuming import new_program
from elasticflow.cluster.contract import MASTER
from elasticflow.cluster.missing import check_data
from elasticflow.errors import ConfigError, ElasticFlowError, ProgramError, RunError
from elasticflow.leading import begin, check_begun, check_resume, host, patiently
from elasticflow.master.log import say
from elasticflow.process.parent import end_with_parent
from elasticflow.run.config import Config
from elasticflow.run.folder import EXIT_CODES, UNKNOWN, HostJob, RunDir, publish
from elasticflow_yarn import ending, index
from elasticflow_yarn.config import read
from elasticflow_yarn.ending import Ending
from elasticflow_yarn.finishing import finish
from elasticflow_yarn.preflight import check_imports
from elasticflow_yarn.spec import application_name

WORDS = Path("last-words")
"""In the container's own folder: how the run ended, where that cannot be left in the run's, since it was
removed, say, or is out of reach. The master writes it, and its supervisor reads it."""


def lead(arguments: argparse.Namespace) -> int:
    """Returns the run's exit code, one of ``EXIT_CODES``. Raises ConfigError, RunError, ...

    YARN is told as well: SUCCEEDED, FAILED or KILLED, and in words.
    """
    application = application_id(os.environ)
    try:
        code, text = _lead(arguments, application)
    except ElasticFlowError as error:
        finish(1, str(error))
        raise
    if code in EXIT_CODES.values():
        finish(code, text)
    return code


def application_id(environ: Mapping[str, str]) -> str:
    """That of the application in whose ApplicationMaster this process is. Raises ConfigError."""
    if not (found := environ.get("SKEIN_APPLICATION_ID")):
        raise ConfigError(
            "elasticflow lead: this is no ApplicationMaster of Skein's. It is for specifications, such as "
            "yarn/digits.yaml; from a gateway use 'elasticflow submit'."
        )
    return found


def _lead(arguments: argparse.Namespace, application: str) -> tuple[int, str]:
    """The exit code, and how the run ended, if it did."""
    end_with_parent(signal.SIGTERM)
    if arguments.program:
        check_imports(arguments.program)
    run = _folder(arguments, application)
    if past := patiently(lambda: _past(run, application)):
        say(f"this run has ended before: {past.words}")
        return past.code, past.words
    settings = patiently(run.config)
    read(settings.yarn)
    if not arguments.program:
        _check_imports_of(run, settings.program)
    elif not arguments.resume and not patiently(run.journal.exists):
        check_data(settings.data, here=False)  # 'submit' looks itself
    code = host(
        run,
        settings.storage_patience_s,
        resume=arguments.resume,
        sign=partial(_sign, run, settings, application, submitted=not arguments.program),
        clear=partial(run.address.unlink, missing_ok=True),  # containers end with the application
        ended=partial(_leave, run),
    )
    return code, _words(run, application, code)


def _check_imports_of(run: RunDir, program: str) -> None:
    try:
        check_imports(program)
    except ProgramError as error:
        _leave(run, 1, str(error))
        raise


def _folder(arguments: argparse.Namespace, application: str) -> RunDir:
    """The run's folder: as 'submit' has made it, or made now; a next attempt finds its own again."""
    run = RunDir(_run_dir(arguments, application))
    if arguments.program is None:
        patiently(lambda: check_begun(run))
    known = patiently(run.host)
    # A leader that was lost while it made the folder has left whose it is, and no settings: it is made again.
    if known and known.id == application and (not arguments.program or patiently(run.settings.exists)):
        return run
    if known and arguments.program is None:
        if known.id != UNKNOWN:
            raise RunError(
                f"{run.path}: this run goes on in application {known.id}, and not in this one any more."
            )
        return run
    named, anew = arguments.program or "", arguments.new_program if new_program(arguments) else ""
    chosen = settings_in_job(run, arguments, named, anew, moves=True, backend="yarn", run_dir=str(run.path))
    read(chosen.yarn)
    if arguments.resume:
        check_resume(run, chosen)
    begin(run, chosen, application)
    return run


def _run_dir(arguments: argparse.Namespace, application: str) -> str:
    if arguments.run_dir:
        return str(arguments.run_dir)
    return str(index.home() / "runs" / f"{stem_of(arguments)}-{application}")


def _sign(run: RunDir, settings: Config, application: str, submitted: bool) -> None:
    """Has the run be found by its application. submitted: by 'elasticflow submit', which does so too."""
    known = run.host()
    assert known is not None
    if known.id != application:
        publish(run.job, HostJob("yarn", application, known.run))
    elif submitted:
        return
    index.add(application, application_name(settings, read(settings.yarn)), str(run.path))


def _leave(run: RunDir, code: int, text: str) -> None:
    """For the next attempt, if there is one: how the run ended, beside the ends of its members."""
    container = os.environ.get("CONTAINER_ID", "")
    left = Ending(code=code, words=text[: ending.WORDS], container=container, node=socket.gethostname())
    try:
        ending.write(run, MASTER, left)
    except OSError as error:
        say(f"warning: how the run ended could not be left in its folder: {error}")
        with contextlib.suppress(OSError):
            WORDS.write_text(f"{code} {left.words}", encoding="utf-8", errors="replace")


def _past(run: RunDir, application: str) -> Ending | None:
    """How the run ended in this application; None if it did not. Raises OSError."""
    left = ending.read(run, MASTER)
    ours = f"{application.removeprefix('application')}_"
    return left if left and ours in left.container else None


def _words(run: RunDir, application: str, code: int) -> str:
    """How the run ended just now; that it cannot be read makes it no other end."""
    with contextlib.suppress(OSError):
        if (past := _past(run, application)) and past.code == code:
            return past.words
    with contextlib.suppress(OSError):
        its_code, _, words = WORDS.read_text(encoding="utf-8").partition(" ")
        if its_code == str(code):
            return words
    state = next((state for state, number in EXIT_CODES.items() if number == code), "")
    return f"{state}, and left no word of why; its log may tell"
