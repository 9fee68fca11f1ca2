"""No thread dies unseen: its process ends, with the error in its log. Each of ours is tried."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from elasticflow.process.guard import EXIT_BROKEN_THREAD, guarded_thread

ROOT = Path(__file__).parents[2]
SOURCES = [path for top in ("elasticflow", "ps", "slurm", "yarn") for path in (ROOT / top).rglob("*.py")]
BEGIN = """
import sys, threading
from pathlib import Path

def fail(*arguments, **more):
    raise RuntimeError("a defect")

"""
LINK = """
from elasticflow.cluster.finder import Finder
from elasticflow.wire.keys import make_keys
from elasticflow.cluster.member import MasterLink
from elasticflow.wire.messages import Heartbeat
finder = Finder("/nonexistent", 60.0)
keys = make_keys().of("worker-1")
link = MasterLink(keys, "tcp://127.0.0.1:9", heartbeat=fail, heartbeat_s=0.05, finder=finder)
link.start_heartbeats()
"""
GATE = """
import zmq
from elasticflow.wire import gate as gates
from elasticflow.wire.keys import make_keys
gates.Gate._answer = fail
context = zmq.Context()
gate = gates.admit_only_members(context, make_keys().of("worker-1"))
asks = context.socket(zmq.REQ)
asks.connect(gates.ZAP)
asks.send_multipart([b"1.0", b"1", b"", b"", b"", b"PLAIN"])
"""
CLERK = """
from elasticflow.cluster.clerk import Clerk
Clerk._do = fail
Clerk(ValueError).order(print, print)
"""
BACKGROUND = """
from elasticflow.storage.background import Background
background = Background(60.0)
background._tell = fail
background.submit(lambda: 1, print, print)
"""
FENCE = """
from elasticflow.master import fence
fence.newest = fail
fence.Fence(None, 1, 0.01, 60.0)
"""
NOTICE = """
import os, signal
from elasticflow.worker.notice import on_notice
on_notice(fail)
os.kill(os.getpid(), signal.SIGTERM)
"""
PAGE = """
from elasticflow.cli import page
page._Server.serve_forever = fail
page.start_page("/nonexistent", lambda address: None)
"""
LAST_WORDS = """
from elasticflow_yarn import container
container._write = fail
container._leave("{}", 1, "words")
"""
PORTER = """
from elasticflow.run.config import Config
from elasticflow.run.settings import MemberSettings
from elasticflow.worker import carrying
carrying.heard_end = fail
settings = MemberSettings.of(Config(), name="worker-1", role="worker", host="", master="", run_dir="/nowhere")
carrying.PorterProcess(settings, print).listen(print)
"""
LOOP = """
from elasticflow.frameworks.loop_thread import LoopThread
LoopThread._run = fail
LoopThread(print).go_on()
"""
TRACKING = """
from elasticflow.master import tracking
from elasticflow.run.config import Config
from elasticflow.run.folder import RunDir
class Drawing:
    wait = fail
tracking._started = lambda run: Drawing
tracking.begin_tracking(RunDir("/nowhere"), Config(track=["csv"]))
"""
CHECKPOINTS = """
import asyncio
from elasticflow.serving import reloading
reloading.suppress = fail
asyncio.run(reloading.aside(print))
"""
PLACES = {
    "master-link": LINK,
    "gate": GATE,
    "clerk": CLERK,
    "storage": BACKGROUND,
    "fence": FENCE,
    "notice": NOTICE,
    "page": PAGE,
    "last words": LAST_WORDS,
    "porter": PORTER,
    "loop": LOOP,
    "tracking": TRACKING,
    "checkpoints": CHECKPOINTS,
}


@pytest.mark.parametrize("name", PLACES)
def test_a_thread_that_raises_ends_its_process(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGIN + PLACES[name] + "\nthreading.Event().wait()\n")
    path = [str(ROOT), str(ROOT / "ps"), str(ROOT / "yarn"), str(ROOT / "slurm")]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == EXIT_BROKEN_THREAD, done.stderr
    assert f"the thread {name!r} of process" in done.stderr
    assert done.stderr.endswith("RuntimeError: a defect\n"), "a backend shows the last line of a log"


def test_every_thread_is_guarded() -> None:
    """All threads of the project begin in the guard, and each kind of them is tried above."""
    bare = [path for path in SOURCES if re.search(r"\bThread\(", path.read_text())]
    assert bare == [ROOT / "elasticflow" / "process" / "guard.py"]
    assert not [path for path in SOURCES if "start_new_thread" in path.read_text()]
    names = {
        found
        for path in SOURCES
        for found in re.findall(r'guarded_thread\([^,()]+, "([^"]+)"', path.read_text())
    }
    assert names == PLACES.keys()


def test_a_thread_that_ends_well_ends_nothing() -> None:
    broken = threading.Event()
    seen: list[int] = []
    thread = guarded_thread(seen.append, "good", 3, broken=broken.set)
    thread.start()
    thread.join(20)
    assert seen == [3] and not broken.is_set() and thread.daemon
