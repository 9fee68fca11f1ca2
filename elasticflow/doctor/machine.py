"""This machine: Python, packages, compiler, memory, descriptors, ports, shared memory, clock."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import resource
import shutil
import socket as sockets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from elasticflow.doctor.finding import Diagnosis, broken, hurts, ok
from elasticflow.errors import ConfigError, ElasticFlowError
from elasticflow.process.available import available_memory
from elasticflow.process.network import LOOPBACK, own_address
from elasticflow.program.loading import foreign_imports
from elasticflow.run.config import Config
from elasticflow.storage.urls import is_hdfs

DISTRIBUTION = "elasticflow-trainer"
FRAMEWORKS = ("torch", "tensorflow", "keras", "lightning", "transformers")
STORES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "abfs": ("adlfs", "azure")}
"""By scheme, the package that speaks it, and the extra that brings it."""
LEAST_PYTHON = (3, 10)
PER_PROCESS = 64
"""Descriptors that a member needs, beside those for each other member."""
LEAST_DESCRIPTORS = 1024
LITTLE_MEMORY, LEAST_MEMORY = 2 << 30, 256 << 20
LEAST_PORTS = 1000
_UNSYNCHRONIZED = 5
"""What adjtimex returns while nothing keeps the clock right (TIME_ERROR)."""
_LEAST = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?\s*\(?[^;]*?>=\s*([\d.]+)")


def machine(config: Config) -> Iterator[Diagnosis]:
    """All of it, as far as these settings need it."""
    yield python_finding(sys.version_info[:3], sys.executable)
    yield from package_findings(wanted_packages(config), _minima())
    yield _compiler()
    yield memory_finding(available_memory())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield descriptors_finding(soft, hard, config.worker_range[1] + config.num_servers)
    yield from _ports()
    yield _shared_memory()
    yield _clock(config)


def python_finding(version: Sequence[int], executable: str) -> Diagnosis:
    """version: three numbers."""
    found = f"{'.'.join(map(str, version))} at {executable}"
    if tuple(version[:2]) < LEAST_PYTHON:
        return broken("python", found, "Install Python 3.10 or newer, and ElasticFlow into it.")
    return ok("python", found)


def wanted_packages(config: Config) -> dict[str, str]:
    """Packages that the settings and the program need, and how each is installed."""
    ours = f"pip install '{DISTRIBUTION}[%s]'"
    needed = ("numpy", "zmq", "h5py", "msgspec", "cryptography")
    found = dict.fromkeys(needed, f"pip install {DISTRIBUTION}")
    with suppress(ElasticFlowError, OSError):
        for name in foreign_imports(config.program) if config.program else []:
            top = name.partition(".")[0]
            if top in sys.stdlib_module_names or top in ("elasticflow", "elasticflow_ps"):
                continue
            extra = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}.get(top, "")
            extra = extra or ("adapters" if top in ("lightning", "transformers") else "")
            found[top] = ours % extra if extra else f"pip install {top}, which the program imports"
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = Path(config.program).read_text(encoding="utf-8") if config.program else ""
    if re.search(r"\b(Parquet|CSV)\(", text) or config.data.rstrip("/").endswith((".parquet", ".csv")):
        found["pyarrow"] = ours % "tables"
    if config.backend == "yarn":
        found["skein"] = found["hdfs"] = ours % "yarn"
    urls = (config.run_dir, config.data, config.checkpoint_dir)
    if any(map(is_hdfs, urls)) or "hdfs://" in text:
        found["hdfs"] = ours % "yarn"
    for scheme, (package, extra) in STORES.items():
        if any(url.startswith(f"{scheme}://") for url in urls) or f"{scheme}://" in text:
            found[package] = ours % extra
    return found


def package_findings(wanted: Mapping[str, str], minima: Mapping[str, tuple[int, ...]]) -> Iterator[Diagnosis]:
    """One of all that is well, and one of each that is not."""
    there = []
    for name, cure in wanted.items():
        if importlib.util.find_spec(name) is None:
            yield broken(f"package {name}", "is not installed", f"{cure}.")
            continue
        version = _version(name)
        least = minima.get(_project(name).lower())
        if least and version and _numbers(version) < least:
            yield broken(
                f"package {name}",
                f"{version}, older than {'.'.join(map(str, least))}",
                f"pip install -U {_project(name)}.",
            )
            continue
        there.append(f"{name} {version}".rstrip())
    yield ok("packages", ", ".join(there))


def _project(module: str) -> str:
    """What installs a module."""
    return {"zmq": "pyzmq"}.get(module, module)


def _version(module: str) -> str:
    names = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel")}
    for name in names.get(module, (_project(module),)):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ""


def _minima() -> dict[str, tuple[int, ...]]:
    """The oldest versions that will do, as ElasticFlow's packaging says; none where it is not installed."""
    found = {}
    with suppress(metadata.PackageNotFoundError):
        for line in metadata.requires(DISTRIBUTION) or ():
            if match := _LEAST.match(line):
                found[match[1].lower()] = _numbers(match[2])
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _compiler() -> Diagnosis:
    from elasticflow_ps import native

    if native.available:
        return ok("compiled updates", "are there")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    found = f"are not there, though {compiler} is" if compiler else "are not there, and no C compiler either"
    return hurts(
        "compiled updates",
        found,
        "Parameter servers then use NumPy, several times slower, for the same bits. Install a C compiler "
        f"(gcc), and then: pip install --force-reinstall --no-deps {DISTRIBUTION}.",
    )


def memory_finding(available: Mapping[str, int]) -> Diagnosis:
    """available: bytes, by what grants them."""
    if not available:
        return hurts("memory", "cannot be told", "See /proc/meminfo: doctor could not read it.")
    name, count = min(available.items(), key=lambda pair: pair[1])
    found = f"{count / (1 << 30):.1f} GB are left, by {name}"
    if count < LEAST_MEMORY:
        return broken("memory", found, "Give it more: a worker takes 0.3 GB before it has any data.")
    if count < LITTLE_MEMORY:
        return hurts(
            "memory", found, "Use fewer workers here, or give it more: each takes 0.3 GB and its data."
        )
    return ok("memory", found)


def descriptors_finding(soft: int, hard: int, members: int) -> Diagnosis:
    """soft, hard: limits. members: of a run, at most."""
    needed = max(LEAST_DESCRIPTORS, PER_PROCESS + 8 * members)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    found = f"a process may have {'any number' if soft == sys.maxsize else format(soft, ',')}"
    if soft >= needed:
        return ok("file descriptors", found)
    how = (
        f"ulimit -n {needed}"
        if hard >= needed
        else f"raise the hard limit ({hard:,}) in limits.conf to {needed}"
    )
    verdict = broken if soft < PER_PROCESS + 4 * members else hurts
    return verdict("file descriptors", f"{found}, of which {members} members want {needed:,}", f"{how}.")


def _ports() -> Iterator[Diagnosis]:
    try:
        address = own_address()
    except ConfigError as error:
        yield broken("address", str(error), "Give this machine a network interface.")
        return
    if address == LOOPBACK:
        yield hurts(
            "address",
            f"the name {platform.node()} stands for no address that others reach",
            "Fine on one machine. On a cluster: give the machine an interface, and its name in DNS or "
            "/etc/hosts.",
        )
    else:
        yield ok("address", f"{address}, of {platform.node()}")
    with suppress(OSError, ValueError):
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        if high - low < LEAST_PORTS:
            cure = "sysctl -w net.ipv4.ip_local_port_range='32768 60999'."
            yield hurts("ports", f"only {low} to {high} are given to who asks for any", cure)
    try:
        with (
            sockets.create_server((address, 0)) as server,
            sockets.create_connection(server.getsockname()[:2], 5),
        ):
            port = server.getsockname()[1]
    except OSError as error:
        cure = "Members listen at ports that the system chooses: let firewall and limits allow that."
        yield broken("ports", f"{address} cannot be listened at, and reached: {error}", cure)
    else:
        yield ok(
            "ports", f"one was given ({port}), and could be reached from here; other machines were not asked"
        )


def _shared_memory() -> Diagnosis:
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return hurts("/dev/shm", f"{error.strerror}", "Only programs that use it themselves need it.")
    size, free = (count * found.f_frsize for count in (found.f_blocks, found.f_bavail))
    text = f"{free / (1 << 20):,.0f} of {size / (1 << 20):,.0f} MB free"
    if free < 64 << 20:
        return hurts(
            "/dev/shm",
            text,
            "ElasticFlow does not need it, but programs may (DataLoader's workers): --shm-size of a "
            "container.",
        )
    return ok("/dev/shm", text)


def _clock(config: Config) -> Diagnosis:
    with suppress(OSError, AttributeError):
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # modes 0: it only asks
        if state == _UNSYNCHRONIZED and config.backend != "local":
            return hurts(
                "clock",
                "the kernel knows of nothing that keeps it right",
                "Run chronyd or systemd-timesyncd: deadlines are moments of the wall clock, and Kerberos "
                "wants it to within 5 minutes.",
            )
        if state >= 0:
            return ok(
                "clock",
                "kept right" if state != _UNSYNCHRONIZED else "not kept right, which one machine bears",
            )
    return ok("clock", "the kernel does not say whether it is kept right")
