"""Leases of a host's GPUs, where nobody else says who may use which.

A lease is an flock on a file for each GPU, in a folder that all users of the host share. It lives as long as
a process holds the descriptor, the one that took it or a child of that: ``kill -9`` frees it at once, and a
container that outlives its lost node keeps what it computes on. The files are neither read nor written.

A container of YARN that counts GPUs but does not isolate them gets whole ones, or none (``lease``). Workers
that one host starts get one each, and share where there are more of them (``lease_one``).

This module starts with each container, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""By default CUDA has them in an order of its own."""
FOLDER = "/tmp/elasticflow-gpus"
DEV = "/dev"
PATIENCE_S = 120.0
"""A process that was told to end, or whose node is lost, may take as long to let go of its GPUs."""
LOOK_S = 0.25
"""Between two looks for a free GPU: the kernel can wait for one lock, not for any of several."""
TELL_S = 15.0
"""Whoever waits says this often for whom."""
_ODD = re.compile(r"[^A-Za-z0-9-]")
"""In names of parts of GPUs (MIG), and not to be in one of a file."""
MOST_HOLDERS = 64
"""So many may share a GPU."""


class NoGpu(Exception):
    """There are not as many free GPUs on this host as are wanted; that is nobody's fault here."""


class Lease:
    """GPUs that nobody else on this host leases, as long as a process has the descriptors."""

    def __init__(self, devices: Sequence[str], descriptors: Sequence[int]) -> None:
        self.devices, self._descriptors = tuple(devices), tuple(descriptors)

    def share(self) -> None:
        """Has programs that this process starts hold the lease, too."""
        for descriptor in self._descriptors:
            os.set_inheritable(descriptor, True)

    def release(self) -> None:
        """Lets go of it in this process."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()


def found() -> list[str]:
    """The GPUs of this host, as CUDA counts them: by their places, without gaps."""
    return [str(number) for number, _ in enumerate(nodes())]


def nodes() -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return [os.path.join(DEV, name) for name in os.listdir(DEV) if re.fullmatch(r"nvidia\d+", name)]
    return []


def lease(
    count: int,
    devices: Sequence[str],
    tell: Callable[[str], None] = lambda text: None,
    patience_s: float = PATIENCE_S,
    folder: str = FOLDER,
) -> Lease:
    """So many of these GPUs, all at once or none. tell: is told, every so often, what it waits for.

    Raises NoGpu if they do not come free in time, or there are not as many.
    """
    known = sorted(set(devices), key=lambda name: (len(name), name))
    if bad := [name for name in known if not re.fullmatch(r"[A-Za-z0-9-]+", name)]:
        raise ValueError(f"{bad[0]!r} is no number of a GPU.")
    if count > len(known):
        raise NoGpu(f"{count} GPUs are wanted, and this host has {len(known)}: {', '.join(known)}.")
    begun_s = time.monotonic()
    told_s = begun_s - TELL_S
    while True:
        if (taken := _try(count, known, folder)) is not None:
            return taken
        now_s = time.monotonic()
        wanted = f"{count} of GPU {', '.join(known)}" if len(known) > 1 else f"GPU {known[0]}"
        held = f"{wanted} of this host must be free, and others hold them: {_holders(folder)}"
        if now_s - begun_s >= patience_s:
            raise NoGpu(f"{held}; they did not come free in {patience_s:g} s.")
        if now_s - told_s >= TELL_S:
            told_s = now_s
            tell(f"waiting {begun_s + patience_s - now_s:.0f} s more for a GPU: {held}")
        time.sleep(LOOK_S * random.uniform(0.5, 1.5))  # so that two that want the same are not in step


def lease_one(environ: Mapping[str, str], folder: str = FOLDER) -> tuple[dict[str, str], Lease | None]:
    """What a program needs in its environment to find one of this host's GPUs, and a lease of it.

    The one that fewest have: the first of those that nobody leases, else of those that one does, and so on.
    None where there are none, or the folder cannot be used. environ: may name those that it may be.
    """
    named = environ.get(VISIBLE)
    devices = [each.strip() for each in (named or "").split(",") if each.strip()]
    devices, order = (found(), ORDER) if named is None else (devices, {})
    for holders in range(MOST_HOLDERS if found() and devices else 0):
        try:
            leased = _try(1, devices, folder, f".{holders}" if holders else "")
        except NoGpu:
            break
        if leased:
            return {**order, VISIBLE: leased.devices[0]}, leased
    return {}, None


def visible(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment says which GPUs a program finds."""
    return {name: environ[name] for name in (VISIBLE, *ORDER) if name in environ}


def _try(count: int, devices: Sequence[str], folder: str, place: str = "") -> Lease | None:
    """A lease, if there are so many free GPUs just now. place: of those that share one; "": the first's."""
    root = _open_folder(folder)
    taken: dict[str, int] = {}
    try:
        # systemd removes nothing old from a folder that somebody has locked, and locks it alone for a moment;
        # who holds that lock for long hangs, and is waited for no longer than for a GPU.
        fcntl.flock(root, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for device in devices:
            name = _ODD.sub("_", device) + place
            if len(taken) < count and (descriptor := _locked(name, root)) is not None:
                taken[device] = descriptor
        if len(taken) == count:
            return Lease(list(taken), [root, *taken.values()])
    except BlockingIOError:
        pass
    except BaseException:
        Lease([], [root, *taken.values()]).release()
        raise
    Lease([], [root, *taken.values()]).release()
    return None


def _open_folder(folder: str) -> int:
    try:
        with _modes_as_named(), contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o1777)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NoGpu(
            f"{folder}: GPUs cannot be leased: {error.strerror}; it must be a folder that everybody may use "
            "(mode 1777); remove what is there, or make it so."
        ) from error


@contextlib.contextmanager
def _modes_as_named() -> Iterator[None]:
    """What is made within has the mode that is asked for, whatever this process' mask."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _locked(device: str, root: int) -> int | None:
    """A descriptor that holds the GPU; None if another does."""
    name = f"gpu-{device}"
    descriptor = _open(name, root)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=root, follow_symlinks=False)):
            return descriptor  # and nobody has put another file in its place
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _open(name: str, root: int) -> int:
    """Without O_CREAT where it exists: the kernel denies that for others' files in a folder like this."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(name, flags, dir_fd=root)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError), _modes_as_named():  # another container may be first
                os.close(os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=root))
            descriptor = os.open(name, flags, dir_fd=root)
    except OSError as error:
        raise NoGpu(f"{name}: this GPU's lock cannot be opened: {error.strerror}.") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NoGpu(f"{name}: is no file, as a GPU's lock must be; remove it.")


def _holders(folder: str) -> str:
    """Processes that hold GPUs of this host, and since when they run, as far as the kernel tells."""
    inodes = {}
    with contextlib.suppress(OSError):
        inodes[os.stat(folder).st_ino] = ""
        for entry in os.scandir(folder):
            inodes[entry.inode()] = entry.name.removeprefix("gpu-")
    held = []
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            kind, pid, inode = (words := line.split())[1], words[4], words[5].rpartition(":")[2]
            if kind == "FLOCK" and int(inode) in inodes:
                gpu = inodes[int(inode)]
                if gpu or words[3] == "WRITE":
                    what = f"GPU {gpu}" if gpu else f"the folder {folder}"
                    held.append(f"{what} by process {pid}{_about(int(pid))}")
    return ", ".join(sorted(held)) or "unknown processes"


def _about(pid: int) -> str:
    """What is known of a process: its name, its state, and for how long it has run."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")
        fields = tail.split()
        with open("/proc/uptime", encoding="ascii") as file:
            ran_s = float(file.read().split()[0]) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        name, state = head.partition("(")[2], _STATES.get(fields[0], "")
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - ran_s))
        return f" ({name}, {state}since {since})"
    return ""


_STATES = {"T": "stopped, ", "D": "stuck in the kernel, ", "Z": "dead, "}
"""Of processes that will let go of nothing soon."""
