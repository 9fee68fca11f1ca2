"""A worker's whole life as a process: load, join, train, and say why it ends."""

from __future__ import annotations

import gc
import os
import socket as sockets
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from elasticflow.checkpoint import write_frozen
from elasticflow.cluster.member import MasterLink, checked
from elasticflow.errors import ElasticFlowError, LoopError, ProgramError, ProtocolError
from elasticflow.process.available import available_memory
from elasticflow.process.fingerprint import PROBE, RECORDS, fingerprint
from elasticflow.process.gpus import lease_one
from elasticflow.process.parent import without_copies
from elasticflow.process.stacks import Activity
from elasticflow.program.loading import words_of
from elasticflow.run.settings import MemberSettings
from elasticflow.storage import Storage
from elasticflow.wire.keys import MemberKeys
from elasticflow.wire.messages import Assignment, Beat, Departing, Failed, Heartbeat, Join, Leaving, Quit
from elasticflow.worker.carrying import Carrying
from elasticflow.worker.loaded import Loaded
from elasticflow.worker.notice import on_notice
from elasticflow.worker.strategy import load_strategy
from elasticflow.worker.timeline import Timeline
from elasticflow.worker.trial import Nurse
from elasticflow.worker.whose_fault import OutsideError, die_of, is_of_files, is_of_kernel, lacks_memory
from elasticflow.worker.worker import Worker


def main(
    settings: MemberSettings,
    keys: MemberKeys,
    open_storage: Callable[[], Storage] | None = None,
    carrying: Carrying | None = None,
) -> int:
    """A worker's whole life; returns its exit code. open_storage: the run's, if it is needed.

    carrying: the processes beside it, if there are to be any.
    """
    running: list[Worker] = []
    opened = ExitStack()
    activity = Activity()

    def loading() -> Heartbeat:
        return Heartbeat(name=settings.name, tick=-1, activity=activity.look())

    link = MasterLink.of(
        settings,
        keys,
        lambda: running[0].heartbeat() if running else loading(),
        lambda: running[0].doing if running else "loads the program and its data",
        carrying.carry if carrying else lambda servers: None,
    )
    if carrying:
        carrying.begin(link.send)
    on_notice(lambda reason: link.send(Departing(name=settings.name, reason=reason)))
    try:
        link.start_heartbeats()  # the master answers them: whoever loads for long must not think it gone
        if settings.backend == "local" and settings.device != "cpu":
            # Until this process ends. Clusters say themselves who has which.
            visible, _ = lease_one(os.environ)
            os.environ.update(visible)
        loaded = Loaded(settings)
        join = join_of(loaded)
        if open_storage and (frozen := loaded.replica.frozen()):
            write_frozen(open_storage(), frozen)
        assignment, last_word = admitted(join, link), None
        if assignment:
            nurse = carrying.nurse if carrying else None
            _train(loaded, join, assignment, link, running, opened, nurse)
            last_word = running[0].last_word()
            link.send(last_word)
        if carrying:
            carrying.wait(link, last_word)
        return 0
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the master is told, whatever it is)
        # Kernels run later than they are asked for: that one has failed may come up anywhere.
        if not isinstance(error, ElasticFlowError) and is_of_kernel(error):
            die_of(error)
        own = isinstance(error, ElasticFlowError)
        text = str(error) if own else f"{type(error).__name__}: {words_of(error)}"
        if not running and settings.backend != "local" and is_of_files(error):
            text = f"{text} ({settings.name}, on {sockets.gethostname()})"  # others may have them
        trace = traceback.format_exc()
        for_all = isinstance(error, LoopError) or (isinstance(error, OutsideError) and error.for_all)
        kind = type(error).__name__
        traceback.print_exc()  # first: the master may have this process killed
        link.send(Failed(name=settings.name, kind=kind, text=text, traceback=trace, for_all=for_all))
        if carrying and not lacks_memory(error):  # that would be missing to whoever comes
            opened.close()
            carrying.wait(link, Leaving(name=settings.name, failed=True))
        return 1
    finally:
        try:
            opened.close()
        finally:
            link.close()  # which sees to it that the last words are sent


def join_of(loaded: Loaded) -> Join:
    """Who this is."""
    settings = loaded.settings
    records = loaded.records
    since_s = time.monotonic()
    with without_copies():
        spec = loaded.rehearse()
    try:
        checked(Join(name=settings.name, role="worker", host="", pid=0, spec=spec))
    except ProtocolError as error:
        raise ProgramError(
            f"{settings.program}: there is something in what it says of the model that cannot be: {error}."
        ) from error
    rehearsed_s = time.monotonic() - since_s
    return Join(
        name=settings.name,
        role="worker",
        host=sockets.gethostname(),
        pid=os.getpid(),
        fingerprint={
            **fingerprint(settings.threads, loaded.replica.facts),
            PROBE: loaded.probe,
            RECORDS: records,
        },
        spec=spec,
        rehearsed_s=rehearsed_s,
        available_bytes=available_memory(),
        num_slices=loaded.schedule.num_slices,
        slices_why=loaded.slices_why,
        began=(*loaded.began, ("first slice", rehearsed_s)),
    )


def admitted(join: Join, link: MasterLink) -> Assignment | None:
    """Tells the master who this is; None: it is not needed."""
    while True:
        link.send(join)
        answer = link.wait_for((Assignment, Quit, Beat))  # Beat: of another master
        if not isinstance(answer, Beat):
            return answer if isinstance(answer, Assignment) else None


def _train(
    loaded: Loaded,
    join: Join,
    assignment: Assignment,
    link: MasterLink,
    running: list[Worker],
    opened: ExitStack,
    nurse: Nurse | None,
) -> None:
    """opened: what an error leaves open until the master has heard of it.

    Else it hears first that connections were closed, and takes the worker for one that was lost without a
    word; to put a long error into words takes seconds.
    """
    settings = loaded.settings
    strategy_class = load_strategy(settings.strategy)
    strategy = strategy_class(settings, loaded.replica.state, link.wake_fd, loaded.replica.put)
    opened.callback(strategy.close)
    path = Path(settings.run_dir, "timelines", f"{settings.name}.jsonl") if settings.timeline else None
    timeline = Timeline(path, time.time() - settings.started_s)
    opened.callback(timeline.close)
    running.append(Worker(loaded, join, assignment, strategy, link, timeline, nurse))
    opened.callback(running[0].close)
    gc.freeze()  # what is there now stays; later collections need not look at it
    running[0].run()
    opened.close()
