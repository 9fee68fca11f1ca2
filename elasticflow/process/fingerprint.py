"""What, besides the program, decides a model's last bits: libraries, processor, threads, settings.

Workers whose fingerprints differ would compute different bits for the same slice, and the promise of
the same answer would be lost without a word; so a worker that differs from the first is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from elasticflow import __version__

SETTINGS = {
    # MKL's default chooses code paths by memory alignment, which differs from process to process.
    "MKL_CBWR": "AUTO,STRICT",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # The order of a set of texts, such as a vocabulary is made of, would be another in each process.
    "PYTHONHASHSEED": "0",
    # Also in threads of its own PyTorch compiles what follows from nothing but sizes: see torch_compiled.
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_SHAPES": "0",
    "TORCHINDUCTOR_DETERMINISTIC": "1",
    # Big arrays come and go at every step: do not hand their memory back to the system each time.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    # pyarrow, which pandas and scikit-learn import, and deltalake would start threads as they are imported,
    # and no process with threads can be forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
MATTERS = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")


def environment(threads: int) -> dict[str, str]:
    """Environment for a member's process: one setting of the libraries, the same everywhere.

    It must be there before the libraries are loaded. Settings that the user has made stay.
    """
    return {**library_settings(threads), **os.environ}


def library_settings(threads: int) -> dict[str, str]:
    """What it has to have beside all else."""
    return {**SETTINGS, **dict.fromkeys(THREAD_SETTINGS, str(threads))}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Has NumPy's libraries start no threads while they are loaded: those would not survive a fork."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREAD_SETTINGS, "1"))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _processor() -> str:
    """Model and instruction sets, as one short line."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in text.partition("\n\n")[0].splitlines() if ":" in line)
    values = {name.strip(): value.strip() for name, value in fields.items()}
    wide = {"avx", "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "fma", "asimd", "sve"}
    flags = wide & set(values.get("flags", values.get("Features", "")).split())
    return f"{values.get('model name', platform.machine())} [{' '.join(sorted(flags))}]"


OURS = "elasticflow"
"""Name of what tells this ElasticFlow from others, in a fingerprint."""
PROBE = "first slice"
"""Name of a hash of what the first slice gives, which tells what no list of versions does. It follows from
program, data and settings as well, so it is compared within one run, resumed ones too."""
RECORDS = "records in memory"
"""Name of a hash of what ``data()`` has put there. It is compared as ``PROBE`` is."""
BY_PROGRAM = (PROBE, RECORDS)
DECIDE_BITS = ("elasticflow", "elasticflow_ps")
"""Packages of ours that members run."""


@cache
def own_code() -> str:
    """The version of this ElasticFlow, and a hash of its source as it was installed when first asked.

    An environment that all share may be changed while a run goes on: who joins then loads another one.
    """
    digest = hashlib.blake2b(digest_size=6)
    for package in DECIDE_BITS:
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(path.read_bytes())
    return f"{__version__} ({digest.hexdigest()})"


def fingerprint(threads: int, device: Mapping[str, str]) -> dict[str, str]:
    """This process's fingerprint, of the libraries that are loaded by now. device: what is known of a GPU."""
    found = {
        "processor": _processor(),
        "python": platform.python_version(),
        OURS: own_code(),
        "threads": str(threads),
    }
    for name in ("numpy", "torch", "tensorflow", "keras"):
        if name in sys.modules:
            found[name] = str(getattr(sys.modules[name], "__version__", "?"))
    found.update({name: os.environ[name] for name in MATTERS if name in os.environ})
    return {**found, **device}


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """What tells two fingerprints apart, a line each; versions of Python's minor releases do not."""
    names = sorted({*first, *other})
    return [
        f"{name}: {first.get(name, 'not there')} / {other.get(name, 'not there')}"
        for name in names
        if first.get(name) != other.get(name)
    ]
