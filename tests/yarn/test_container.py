"""The process around a member, with real processes: what it starts, passes on, and leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from elasticflow.process import gpus as leases
from elasticflow.run.config import Config
from elasticflow.run.folder import Address, RunDir, publish
from elasticflow.wire.keys import make_keys
from elasticflow_yarn import gpus
from elasticflow_yarn.container import environment
from elasticflow_yarn.ending import NO_GPU, Ending, path, read

MEMBER = "import sys, os, json, signal, time; settings = json.loads(sys.argv[1])\n"
MAIN = "import os; from elasticflow_yarn import container; os._exit(container.main())"
TIMEOUT_S = 60.0


class Started(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def line(self, number: int = 0) -> str:
        """A line of its log, as soon as it is there."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while (text := self.log.read_text(errors="replace")).count("\n") <= number:
            assert time.monotonic() < deadline_s and self.process.poll() is None, text
            time.sleep(0.01)  # a file tells nobody that it grows
        return text.splitlines()[number]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


@pytest.fixture
def start(tmp_path: Path, run: RunDir) -> Iterator[Callable[..., Started]]:
    """Starts a container, as YARN does: a session of its own, and its output in a file.

    member: what there is instead of elasticflow.launch, in Python.
    """
    begun: list[Started] = []

    def begin(
        member: str = "", env: dict[str, str] | None = None, before: str = "", *arguments: str
    ) -> Started:
        if member:
            package = tmp_path / "member" / "elasticflow"
            package.mkdir(parents=True)
            real = Path(sys.modules["elasticflow"].__file__ or "").parent
            (package / "__init__.py").write_text(f"__path__.append({str(real)!r})\n__version__ = '0'\n")
            (package / "launch.py").write_text(MEMBER + member)
        paths = [str(tmp_path / "member"), *sys.path]
        settings = {"name": "worker-3", "run_dir": str(run.path), "role": "worker"}
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **environment(json.dumps(settings).encode(), 0, ""),
            "CONTAINER_ID": "container_1_0001_01_000002",
            "NM_HOST": "node-7",
            **(env or {}),
        }
        command = [sys.executable, "-m", "elasticflow_yarn.container", *arguments]
        if before:
            command = [sys.executable, "-c", f"{before}\n{MAIN}"]
        log = tmp_path / "worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=tmp_path, stdout=output, stderr=output, env=variables, start_new_session=True
            )
        begun.append(Started(process, log))
        return begun[-1]

    yield begin
    for each in begun:
        with_group = each.process.pid
        try:
            os.killpg(with_group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        each.process.wait()


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while is_alive(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)  # no child of this process


def test_the_member_is_started_with_its_settings_and_all_is_well(
    start: Callable[..., Started], run: RunDir
) -> None:
    started = start(
        "print(settings['name'], os.getpgid(0) == os.getppid(), 'ELASTICFLOW_MEMBER' in os.environ)"
    )
    assert started.wait() == 0
    assert started.log.read_text() == "worker-3 True False\n"
    assert read(run, "worker-3") is None and not path(run, "worker-3").parent.exists()


FIRST = {"ELASTICFLOW_MEMBER": "", "SKEIN_CONTAINER_ID": "worker_1"}
SHOW = """
def run(settings):
    print(settings.name, settings.role, settings.master, settings.seed)
    return 5
"""


def test_one_of_the_first_knows_who_it_is_and_waits_for_its_master(
    start: Callable[..., Started], run: RunDir
) -> None:
    publish(run.settings, Config(seed=7, backend="yarn"))
    started = start(f"print('waits', flush=True)\n{SHOW}", FIRST, "", str(run.path))
    assert started.line() == "waits"
    publish(run.address, Address("tcp://node-1:5000", "node-1", 1))
    run.keys_of("worker-2").parent.mkdir(parents=True)
    run.hand_out(make_keys().of("worker-2"))
    assert started.line(1) == "worker-2 worker tcp://node-1:5000 7"
    assert started.wait() == 5
    left = read(run, "worker-2")
    assert left is not None and left.code == 5


def test_in_a_later_attempt_the_first_end(start: Callable[..., Started], run: RunDir) -> None:
    started = start(SHOW, {**FIRST, "CONTAINER_ID": "container_e01_1_0001_02_000002"}, "", str(run.path))
    assert started.wait() == 0
    assert "not needed: the master of this attempt asks for" in started.log.read_text()


def test_the_last_words_of_one_that_failed(start: Callable[..., Started], run: RunDir) -> None:
    started = start("print('so far'); sys.stderr.write('no disk left\\n\\n'); sys.exit(3)")
    assert started.wait() == 3
    assert read(run, "worker-3") == Ending(3, "no disk left", "container_1_0001_01_000002", "node-7")


def test_a_signal_that_ends_the_member(start: Callable[..., Started], run: RunDir) -> None:
    started = start("print('computing', os.getpid(), flush=True); time.sleep(1000)")
    child = int(started.line().split()[1])
    os.kill(child, signal.SIGKILL)
    assert started.wait() == 128 + signal.SIGKILL
    left = read(run, "worker-3")
    assert left is not None and (left.code, left.words) == (137, f"computing {child}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_what_it_leads_to_is_no_failure(
    start: Callable[..., Started], run: RunDir, number: signal.Signals
) -> None:
    started = start(
        "signal.signal(settings_signal := int(os.environ['NUMBER']), lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\ntime.sleep(1000)",
        {"NUMBER": str(int(number))},
    )
    started.line()
    started.process.send_signal(number)
    assert started.wait() == 7
    assert read(run, "worker-3") is None


def test_a_signal_to_all_of_a_container_ends_it(start: Callable[..., Started], run: RunDir) -> None:
    started = start("print(os.getpid(), flush=True)\ntime.sleep(1000)")
    child = int(started.line())
    os.killpg(started.process.pid, signal.SIGTERM)
    assert started.wait() == 128 + signal.SIGTERM
    assert not is_alive(child) and read(run, "worker-3") is None


def test_the_member_dies_with_the_process_around_it(start: Callable[..., Started]) -> None:
    started = start("print(os.getpid(), flush=True)\ntime.sleep(1000)")
    child = int(started.line())
    started.process.kill()
    wait_until_gone(child)


def test_what_is_not_installed_is_told_in_one_line_with_the_python_that_lacks_it(
    start: Callable[..., Started], run: RunDir
) -> None:
    assert start("import no_such_framework").wait() == 1
    left = read(run, "worker-3")
    version = ".".join(map(str, sys.version_info[:3]))
    assert left is not None and left.words == (
        "ModuleNotFoundError: No module named 'no_such_framework' "
        f"(Python {version}, {sys.executable}: is the environment complete, and for this Python?)"
    )


def test_long_words_are_cut_and_garbage_is_no_trouble(start: Callable[..., Started], run: RunDir) -> None:
    text = "sys.stdout.buffer.write(b'\\xff' * 200_000 + b'\\n' + b'\\xfe' * 1000 + b'\\n'); sys.exit(1)"
    assert start(text).wait() == 1
    left = read(run, "worker-3")
    assert left is not None and left.words == "\ufffd" * 300


def test_a_storage_that_hangs_does_not_keep_the_container(start: Callable[..., Started], run: RunDir) -> None:
    hanging = (
        "from elasticflow_yarn import container, ending\nimport threading\n"
        "container.WRITE_S = 0.2\nending.write = lambda *_: threading.Event().wait()"
    )
    started = start("sys.exit(4)", before=hanging)
    assert started.wait() == 4
    assert "last words could not be left in the run's folder within 0.2 s" in started.log.read_text()


def test_a_storage_that_refuses_is_told_in_the_log(start: Callable[..., Started], run: RunDir) -> None:
    (run.path / "endings").write_text("in the way")  # type: ignore[union-attr]
    started = start("sys.exit(4)")
    assert started.wait() == 4
    assert "could not be left in the run's folder: FileExistsError" in started.log.read_text()
    assert read_or_none(run) is None


def test_a_folder_that_was_moved_is_not_made_anew(start: Callable[..., Started], run: RunDir) -> None:
    """On HDFS who moves it back would have it below what was made in its place."""
    run.folder.rmdir()
    started = start("sys.exit(4)")
    assert started.wait() == 4
    assert "could not be left in the run's folder: FileNotFoundError" in started.log.read_text()
    assert not run.folder.exists()


def read_or_none(run: RunDir) -> Ending | None:
    try:
        return read(run, "worker-3")
    except NotADirectoryError:
        return None


def test_its_gpus_are_its_own_until_it_has_ended(
    start: Callable[..., Started], run: RunDir, tmp_path: Path
) -> None:
    folder = str(tmp_path / "gpus")
    named = f"from elasticflow_yarn import gpus\ngpus.environment_of.__defaults__ = (120.0, {folder!r})"
    started = start(
        "environ = os.environ\n"
        "print(environ['CUDA_VISIBLE_DEVICES'], environ['CUDA_DEVICE_ORDER'], os.getpid(), flush=True)\n"
        "time.sleep(1000)",
        {gpus.COUNT: "1", gpus.DEVICES: "0,1"},
        named,
    )
    device, order, child = started.line().split()
    assert (device, order) == ("0", "PCI_BUS_ID")
    assert lease(folder) == ("1",)
    os.kill(int(child), signal.SIGKILL)
    started.wait()
    assert lease(folder) == ("0",)


def lease(folder: str) -> tuple[str, ...]:
    leased = leases.lease(1, ["0", "1"], patience_s=0.0, folder=folder)
    leased.release()
    return leased.devices


def test_no_gpu_comes_free_which_is_nobodys_fault(
    start: Callable[..., Started], run: RunDir, tmp_path: Path
) -> None:
    folder = str(tmp_path / "gpus")
    leased = leases.lease(1, ["0"], folder=folder)
    named = f"from elasticflow_yarn import gpus\ngpus.environment_of.__defaults__ = (0.0, {folder!r})"
    started = start("print('never')", {gpus.COUNT: "1", gpus.DEVICES: "0"}, named)
    assert started.wait() == NO_GPU
    leased.release()
    left = read(run, "worker-3")
    assert left is not None and left.no_gpu and left.code == NO_GPU
    assert left.words.startswith("GPU 0 of this host must be free, and others hold them: GPU 0 by process")
    assert "never" not in started.log.read_text()


def test_what_it_is_told_wrongly(start: Callable[..., Started]) -> None:
    started = start(env={"ELASTICFLOW_MEMBER": ""})
    assert started.wait() == 2
    assert started.log.read_text().startswith("Error: ELASTICFLOW_MEMBER is not set")


def test_what_it_is_told_passes_through_a_shell_script_between_double_quotes() -> None:
    """As YARN has it."""
    told = environment(b'{"name": "worker-3", "x": "$HOME `id` \\ \'"}', 2, "0,1")
    script = "".join(f'export {name}="{value}"\n' for name, value in told.items())
    script += f"exec {sys.executable} -c 'import os; print(dict(os.environ))'"
    heard = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    for name, value in told.items():
        assert f"{name!r}: {value!r}" in heard


def test_garbage_instead_of_settings(start: Callable[..., Started]) -> None:
    started = start(env={"ELASTICFLOW_MEMBER": "x"})
    assert started.wait() == 2
    assert started.log.read_text().startswith("Error: ELASTICFLOW_MEMBER cannot be read: ")


def test_wrong_settings_of_gpus(start: Callable[..., Started]) -> None:
    started = start(env={gpus.COUNT: "-1"})
    assert started.wait() == 2
    assert started.log.read_text() == "Error: ELASTICFLOW_GPUS: '-1' is no number of GPUs.\n"


def test_little_is_imported_before_the_member_runs() -> None:
    """It would make each member begin later."""
    text = "import sys; a = set(sys.modules); import elasticflow_yarn.container; print(*set(sys.modules) - a)"
    done = subprocess.run([sys.executable, "-S", "-c", text], capture_output=True, text=True, env=_paths())
    imported = set(done.stdout.split())
    assert "elasticflow_yarn.gpus" in imported, done.stderr
    assert not imported & {
        "json",
        "subprocess",
        "threading",
        "socket",
        "msgspec",
        "dataclasses",
    }


def _paths() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
