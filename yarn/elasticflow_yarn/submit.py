"""``elasticflow submit --on yarn``: checks what can be checked here, and submits the application."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from elasticflow.cluster.folder import FolderBefore, advice
from elasticflow.cluster.missing import check_data
from elasticflow.cluster.scripts import as_yaml
from elasticflow.errors import ConfigError, ElasticFlowError, RunError
from elasticflow.leading import begin, check_folder
from elasticflow.process.retry import is_away
from elasticflow.program.copy import fetch, keep, take
from elasticflow.program.folder import pack_folder
from elasticflow.run.config import Config
from elasticflow.run.folder import UNKNOWN, HostJob, RunDir, RunPath, last_line, publish, replace
from elasticflow.storage.hadoop import HadoopConf
from elasticflow.storage.hdfs import HdfsPath
from elasticflow.storage.urls import is_url, split
from elasticflow_yarn import credentials, index, preflight
from elasticflow_yarn.cluster import ResourceManager
from elasticflow_yarn.config import PROGRAM, YarnConfig, read
from elasticflow_yarn.errors import YarnBusy, YarnError
from elasticflow_yarn.finder import SUBMIT_S
from elasticflow_yarn.java import skein_driver
from elasticflow_yarn.spec import application_name, specification

ARCHIVE = f"{PROGRAM}.tar.gz"
"""The program's folder, in the run's."""


def new_run_dir(chosen: Config) -> str:
    """Where the program's next run goes. Raises RunError if HDFS does not answer."""
    runs = index.home() / "runs"
    stem = Path(chosen.program).stem
    try:
        names = [path.name for path in runs.iterdir()]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise RunError(f"{runs}: cannot be read: {error}.") from error
    found = [re.fullmatch(rf"{re.escape(stem)}-(\d+)", name) for name in names]
    return str(runs / f"{stem}-{max((int(match[1]) for match in found if match), default=0) + 1}")


def become(section: dict[str, Any]) -> None:
    """Does all that follows as the user whom settings name in their section for YARN. Raises ConfigError."""
    _be(read(section).user)


def dry_run(chosen: Config, resume: bool) -> str:
    """What would be submitted, as YAML; nothing is asked for it."""
    run_dir = chosen.run_dir or str(index.home() / "runs" / f"{Path(chosen.program).stem}-N")
    return as_yaml(_specification(_inside(chosen), read(chosen.yarn), run_dir, resume))


def prepare(chosen: Config) -> FolderBefore:
    """The folder of a run that ``submit`` begins later, with ``resume``: the program as it is now is in it.

    Raises ConfigError, RunError, ProgramError; nothing is left behind then.
    """
    _be(read(chosen.yarn).user)
    run = RunDir(chosen.run_dir or new_run_dir(chosen))
    _check_url(run, chosen)
    folder = _before(run)
    check_folder(run, chosen, resume=False)
    archive = _pack(chosen.program)
    folder = _made(folder, chosen)
    inside = msgspec.structs.replace(_inside(chosen), run_dir=str(folder.path))
    try:
        ready, copy = take(inside, chosen.program)
        if copy:
            keep(folder.run, copy)
        folder.run.create(ready)
        replace(folder.path / ARCHIVE, archive)
    except BaseException as error:
        folder.put_back()
        if isinstance(error, OSError):
            raise _unwritable(folder.path, error) from error
        raise
    return folder


def _check_url(run: RunDir, chosen: Config) -> None:
    """Raises ConfigError."""
    if not isinstance(run.path, HdfsPath):
        raise ConfigError(
            f"--run-dir {chosen.run_dir}: a run on YARN has its folder on HDFS: write hdfs:///path, or leave "
            "it out."
        )


def submit(chosen: Config, resume: bool) -> tuple[str, RunPath]:
    """Submits a run; returns its application's id, and its folder.

    Raises ConfigError, RunError, of which YarnBusy may pass; nothing is left behind then.
    """
    yarn = read(chosen.yarn)
    _be(yarn.user)
    run = RunDir(chosen.run_dir or new_run_dir(chosen))
    _check_url(run, chosen)
    preflight.check_tools(os.environ)
    claimed = _claimed(run) if resume else contextlib.nullcontext()
    with claimed, _driver() as driver:  # takes seconds, while the rest is looked at
        folder = _before(run)
        if chosen.run_dir:
            check_folder(run, chosen, resume)
        first = preflight.check_cluster(ResourceManager.of(), chosen, yarn)
        check_data(chosen.data, here=False)
        program = "" if _is_inside(chosen) else chosen.program
        if yarn.environment:
            preflight.check_environment(yarn.environment, program)
        elif program and not yarn.python:
            preflight.check_imports(program)
        archive = _pack(program) if program else _kept_program(run, chosen)
        folder = _made(folder, chosen)
        before = run.host() if resume else None
        application = _begin(folder, _inside(chosen), program, archive, resume, first, driver)
        if before:
            _clear_after(before.id)
        return application, folder.path


@contextlib.contextmanager
def _claimed(run: RunDir) -> Iterator[None]:
    """Of several who go on with a run at the same time one does. Raises YarnBusy.

    HDFS has no locks: what stays of one who was killed counts for as long as a submission may take. So a
    service that was, and is begun again, has to try again, which is no failure of the run.
    """
    claim = run.path / "submitting"
    made_at: float | None = None
    with contextlib.suppress(OSError):
        if is_stale(claim.stat().st_mtime, time.time()):
            claim.rmdir()
    with contextlib.suppress(OSError):  # there is no such folder, or none to write in: that is said later
        try:
            claim.mkdir()
            made_at = claim.stat().st_mtime
        except FileExistsError as error:
            text = f"somebody else goes on with this run just now; try again in {SUBMIT_S / 60:.0f} minutes"
            raise YarnBusy(f"{run.path}: {text}, unless it is under way then.") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if claim.stat().st_mtime == made_at:  # after so long it may be another's
                claim.rmdir()


def is_stale(made_at: float, now_s: float) -> bool:
    """Whether who has made a claim then, by HDFS's clock, has not removed it, and will not any more."""
    return now_s - made_at > SUBMIT_S


def _begin(
    folder: FolderBefore,
    chosen: Config,
    program: str,
    archive: bytes,
    resume: bool,
    first: bool,
    driver: Future[Any],
) -> str:
    """From here on there is something to take back. program: the file here, if it is sent."""
    run, application = folder.run, ""
    try:
        spec = _specification(chosen, read(chosen.yarn), str(run.path), resume, first)
        begin(run, chosen, UNKNOWN, program)
        if archive:
            replace(run.path / ARCHIVE, archive)
        job = run.host()
        assert job is not None
        application = str(_ask(driver, lambda client: client.submit(spec)))
        publish(run.job, HostJob(job.backend, application, job.run))
    except BaseException as error:
        if application:
            with contextlib.suppress(YarnError):
                _ask(driver, lambda client: client.kill_application(application))
        folder.put_back()
        if isinstance(error, OSError):
            raise _unwritable(run.path, error) from error
        raise
    index.add(application, application_name(chosen, read(chosen.yarn)), str(run.path))
    return application


def _clear_after(application: str) -> None:
    """Removes Skein's folder of an application that died, or was killed: it holds the key to it, and nobody
    else would. What hinders that is no reason not to go on."""
    with contextlib.suppress(OSError, ElasticFlowError):
        if index.is_id(application):
            app = ResourceManager.of().application(application)
            if app is None or app.over:
                (index.home().parent / ".skein" / application).remove_tree()


def _specification(
    chosen: Config, yarn: YarnConfig, run_dir: str, resume: bool, first: bool = True
) -> dict[str, Any]:
    archive = f"{run_dir}/{ARCHIVE}"
    environment = [yarn.environment] if is_url(yarn.environment) else []
    places = dict.fromkeys(_file_system(url) for url in (run_dir, *environment))
    default = HadoopConf.load().default_fs.rstrip("/")
    others = [place for place in places if place and place != default]
    return specification(
        chosen, yarn, run_dir=run_dir, program=archive, resume=resume, file_systems=others, first=first
    )


def _file_system(url: str) -> str:
    """``hdfs://authority``; "" for the default one."""
    scheme, authority, _ = split(url)
    return f"{scheme}://{authority}" if authority else ""


def _be(user: str) -> None:
    """Does all that follows as another user."""
    if not user:
        return
    if HadoopConf.load().is_secure:
        raise ConfigError(f"yarn.user: {user!r}: with Kerberos you are who your ticket says; leave it out.")
    os.environ["HADOOP_USER_NAME"] = user


# --- the program ----------------------------------------------------------------------------------


def _is_inside(chosen: Config) -> bool:
    """Whether the program is named as in the containers: that of a run that goes on, which has it."""
    return not os.path.isabs(chosen.program)


def _inside(chosen: Config) -> Config:
    """Settings that name the program as the containers have it."""
    return msgspec.structs.replace(chosen, program=f"{PROGRAM}/{Path(chosen.program).name}")


def _pack(program: str) -> bytes:
    return pack_folder(Path(program).resolve().parent)


def _kept_program(run: RunDir, chosen: Config) -> bytes:
    """The run's own copy of its program, as an archive, for a run that has none: one that somebody's own
    specification has begun. b"": it has one. Raises RunError, ProgramError."""
    if not chosen.program_sha256 or (run.path / ARCHIVE).exists():
        return b""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in sorted(fetch(run, chosen.program_sha256).files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


# --- the run's folder -----------------------------------------------------------------------------


def _before(run: RunDir) -> FolderBefore:
    return FolderBefore(run, run.path / ARCHIVE)


def _made(folder: FolderBefore, chosen: Config) -> FolderBefore:
    """The run's folder, which from now on is there: that one, or, where none was named and others have begun
    a run there meanwhile, the next."""
    while True:
        try:
            folder.make()
            return folder
        except FileExistsError as error:
            if chosen.run_dir:
                text = f"{folder.path}: somebody else begins a run there just now; choose another --run-dir."
                raise RunError(text) from error
            folder = _before(RunDir(new_run_dir(chosen)))
        except OSError as error:
            raise _unwritable(folder.path, error) from error


def _unwritable(path: RunPath, error: OSError) -> RunError:
    """YarnBusy where that passes, such as a NameNode that is in safe mode: no other folder would help."""
    if is_away(error):
        return YarnBusy(f"{path}: cannot be written just now: {error}; try again later.")
    return RunError(f"{path}: cannot be written: {error}; {advice(error)}.")


# --- Skein ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _driver() -> Iterator[Future[Any]]:
    """Skein's Java process, which starts while other things are done; it ends with this."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        log = Path(folder, "driver.log")
        _make_credentials()
        driver: Future[Any] = thread.submit(_start_driver, log)
        try:
            yield driver
        finally:
            if driver.exception() is None:
                driver.result().close()


def _start_driver(log: Path) -> Any:
    try:
        return skein_driver(str(log))
    except Exception as error:  # Skein lets through whatever its parts raise
        words = last_line(log)
        raise YarnError(f"Skein's driver does not start: {error}; its last words: {words}") from error


def _make_credentials() -> None:
    """Those by which Skein's parts know each other."""
    from skein.core import properties

    if told := credentials.ensure(Path(properties.config_dir)):
        print(told, file=sys.stderr)


def _ask(driver: Future[Any], act: Any) -> Any:
    """What Skein's driver answers. Raises YarnError."""
    client = driver.result()
    try:
        return act(client)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"yarn: Skein refuses this application: {error}") from error
    except Exception as error:  # so are its errors: its own, Python's, gRPC's
        raise YarnError(f"YARN does not take this application: {_without_trace(str(error))}") from error


def _without_trace(words: str) -> str:
    """In one line what Hadoop says, without where in its code that was: Java's frames, and all after them."""
    lines = itertools.takewhile(lambda line: not line.startswith("at "), map(str.strip, words.splitlines()))
    return " ".join(" ".join(lines).split()).rstrip(".") + "."
