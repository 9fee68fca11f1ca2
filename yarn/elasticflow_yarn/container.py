"""``python -m elasticflow_yarn.container RUN``: what runs in a container of a worker or server.

A small process around the member's own. Its environment says what to do:

ELASTICFLOW_MEMBER       MemberSettings as JSON, in hexadecimal digits; there is no secret among them
ELASTICFLOW_GPUS         how many GPUs YARN has given to the container; unset: nothing is done about GPUs
ELASTICFLOW_GPU_DEVICES  which of the host's GPUs it may take, such as "0,1"; "": those that are there

Where the first is not there, this is one of the first containers: it knows its part by itself, and RUN, the
run's folder, tells the rest (``elasticflow_yarn.first``).

It leases the GPUs, starts the member by ``python -m``, and waits. If that ends badly, it leaves the last
words in the run's folder (``elasticflow_yarn.ending``), where the master finds them: Skein tells of an end,
but not even with which exit code. Its own exit code is the member's, 128 + n if signal n ended it.

YARN ends a container by a signal to all of its processes, others may signal this one alone, so it passes
signals on. A member may hear of its end twice, which it takes as once.

The member starts later by what is imported here, so that is next to nothing; the rest comes after its end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys

from elasticflow.process.gpus import NoGpu
from elasticflow_yarn import first, gpus

MEMBER = "ELASTICFLOW_MEMBER"
WRITE_S = 5.0
"""So long it may take to leave the last words; a storage that is away must not keep a container."""
LAST_WORDS_BYTES = 1 << 16
USAGE, CANNOT_START = 2, 127
"""Exit codes, as shells have them."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_NOT_INSTALLED = ("ModuleNotFoundError:", "ImportError:")


def environment(settings: bytes, count: int, devices: str) -> dict[str, str]:
    """What a member's container gets. settings: MemberSettings as JSON. count, devices: of GPUs.

    In digits: YARN writes it into a shell script, between double quotes and as it is.
    """
    return {MEMBER: settings.hex(), gpus.COUNT: str(count), gpus.DEVICES: devices}


def main() -> int:
    """See the module's docstring."""
    try:
        member = bytes.fromhex(os.environ.get(MEMBER, "")).decode()
    except ValueError as error:
        return _say(f"Error: {MEMBER} cannot be read: {error}", USAGE)
    module = "elasticflow.launch"
    if not member:
        if not sys.argv[1:]:
            return _say(
                f"Error: {MEMBER} is not set; a run's master starts this, with what a member has to do. Is "
                "'instances' of its service 0?",
                USAGE,
            )
        module, member = "elasticflow_yarn.first", first.member(sys.argv[1], os.environ)
        if not member:
            return _say("not needed: the master of this attempt asks for containers of its own", 0)
    _end_with_parent(signal.SIGTERM)
    try:
        devices, lease = gpus.environment_of(os.environ, lambda text: print(text, flush=True))
    except NoGpu as error:
        _say(f"Error: {error}", 0)
        return _leave(member, None, str(error))
    except ValueError as error:
        return _say(f"Error: {error}", USAGE)
    others = {name: value for name, value in os.environ.items() if name != MEMBER}
    code, was_told = _run(module, member, {**others, **devices})
    if lease:
        lease.release()
    return _leave(member, code, _last_words()) if code and not was_told else code


def _run(module: str, member: str, environment: dict[str, str]) -> tuple[int, bool]:
    """The exit code of the member's process, and whether it was told to end."""
    awaited = {*PASSED_ON, signal.SIGCHLD}
    # Whoever has started this may ignore it: then no child leaves an exit code.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Before the fork: the end of a child that ends at once waits for ``sigwait`` then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    here, was_told = os.getpid(), False
    child = os.fork()
    if not child:
        try:
            _end_with_parent(signal.SIGKILL)
            # The parent may have died before that was asked for.
            if os.getppid() == here:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                os.execve(sys.executable, [sys.executable, "-m", module, member], environment)
        except OSError as error:
            _say(f"Error: {sys.executable}: cannot be started: {error.strerror}.", 0)
        finally:
            os._exit(CANNOT_START)
    while True:
        number = signal.sigwait(awaited)
        if number == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return (code if code >= 0 else 128 - code), was_told
        else:
            was_told = True
            os.kill(child, number)


def _end_with_parent(number: int) -> None:
    """Has this process get a signal when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _say(text: str, code: int) -> int:
    print(text, file=sys.stderr, flush=True)
    return code


def _last_words() -> str:
    """The last line of what was written to this container's log; "" where its output is no file."""
    for descriptor in (2, 1):
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            with open(f"/proc/self/fd/{descriptor}", "rb") as log:  # anew: it may be open for writing alone
                log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            continue
        if words := next((line.strip() for line in reversed(lines) if line.strip()), ""):
            return words
    return ""


def explained(words: str) -> str:
    """What is missing, and where: on a cluster it is seldom clear which Python that is."""
    if not words.startswith(_NOT_INSTALLED):
        return words
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{words} (Python {version}, {sys.executable}: is the environment complete, and for this Python?)"


def _leave(member: str, code: int | None, words: str) -> int:
    """Leaves the last words of a member, in a bounded time; returns its exit code. None: it had no GPU."""
    from elasticflow.process.guard import guarded_thread

    writer = guarded_thread(_write, "last words", member, code, words)
    writer.start()
    writer.join(WRITE_S)
    if writer.is_alive():
        _say(f"Warning: the last words could not be left in the run's folder within {WRITE_S:g} s.", 0)
    return gpus.NO_GPU if code is None else code


def _write(member: str, code: int | None, words: str) -> None:
    try:
        import json
        import socket

        from elasticflow.run.folder import RunDir
        from elasticflow_yarn import ending

        settings = json.loads(member)
        left = ending.Ending(
            code=gpus.NO_GPU if code is None else code,
            words=explained(words)[: ending.WORDS],
            container=os.environ.get("CONTAINER_ID", ""),
            node=os.environ.get("NM_HOST") or socket.gethostname(),
            no_gpu=code is None,
        )
        ending.write(RunDir(settings["run_dir"]), settings["name"], left)
    except Exception as error:  # noqa: BLE001  (an environment may lack anything; the exit code is told anyhow)
        _say(
            f"Warning: the last words could not be left in the run's folder: {type(error).__name__}: {error}",
            0,
        )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread may be stuck in a storage that is away
