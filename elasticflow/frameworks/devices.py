"""Where a PyTorch replica computes: on the processor, or on a GPU, whose work is done later than asked for.

A device has a queue. What is ``launch``ed, and copied, runs in order, and maybe long after the call returned;
``download`` and ``wait`` say when. ``Delayed`` is such a device without a GPU: what goes wrong by order alone
goes wrong there, and tests of this project run on it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import random
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
import torch

from elasticflow.errors import ProgramError
from elasticflow.frameworks.nvml import Nvml
from elasticflow.process.gpu_state import GpuState
from elasticflow.process.guard import guarded_thread
from elasticflow.step.layout import Array, Layout, Vector

Pair = tuple[Array, torch.Tensor]
"""Host memory, and as many elements of a device's."""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
LATE_S = 0.001
"""``Delayed`` begins what it is asked for up to so long after the call."""


class Device(ABC):
    """kind: as the setting ``device`` names it. where: as PyTorch does.

    apart: whether its memory is not the host's, so that a vector has a twin there.
    """

    kind: str
    where: torch.device
    apart = True

    @property
    def facts(self) -> Mapping[str, str]:
        """What of it decides the bits of a model, by name: part of a worker's fingerprint."""
        return {}

    def gpu_state(self) -> GpuState | None:
        """See ``Replica``."""
        return None

    def new_state(self, layout: Layout) -> Vector:
        """For values that are uploaded at every step."""
        return Vector(layout)

    def groups_of(self, vector: Vector) -> list[torch.Tensor]:
        """Memory of this device for each of a vector's groups; zeros, where it is ``apart``."""
        return [torch.zeros_like(torch.from_numpy(group), device=self.where) for group in vector.groups]

    def seed(self, seed: int) -> None:  # noqa: B027  (not all have some)
        """Of random numbers that are drawn on it, besides PyTorch's default generator."""

    @abstractmethod
    def take(self, column: Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of a column, on this device and on the host, maybe the same one. ``column`` is let go."""

    def begin(self) -> None:  # noqa: B027  (the processor keeps the order)
        """What was launched and sent comes before what the program asks for from now on."""

    @abstractmethod
    def launch(self, work: Callable[[], None]) -> None:
        """Queues operations on this device's memory."""

    @abstractmethod
    def upload(self, pairs: Sequence[Pair]) -> None:
        """Host to device. The host's memory may be written to once this returns."""

    @abstractmethod
    def send(self, pair: Pair) -> None:
        """As ``upload``, but returns at once: it is done before anything that follows ``begin``.

        Whoever writes to the host's memory before that must send it again.
        """

    def pin(self, vector: Vector) -> None:  # noqa: B027  (not all gain by it)
        """There will be downloads to a vector's memory."""

    @abstractmethod
    def download(self, pairs: Sequence[Pair], done: Callable[[], None]) -> None:
        """Device to host, once what was launched before is done; then calls ``done``, in another thread."""

    @abstractmethod
    def wait(self) -> None:
        """Until all downloads are done. Raises what a ``done`` raised."""


class Host(Device):
    """The processor: all is done at once, in the memory of the vectors themselves."""

    kind, where, apart = "cpu", torch.device("cpu"), False

    def groups_of(self, vector: Vector) -> list[torch.Tensor]:
        return [torch.from_numpy(group) for group in vector.groups]

    def take(self, column: Array) -> tuple[torch.Tensor, torch.Tensor]:
        # PyTorch aligns its own memory, and MKL's last bits depend on where an operand begins.
        copy = torch.from_numpy(column).clone()
        return copy, copy

    def launch(self, work: Callable[[], None]) -> None:
        work()

    def upload(self, pairs: Sequence[Pair]) -> None:
        raise NotImplementedError("it is the same memory")

    def send(self, pair: Pair) -> None:
        raise NotImplementedError("it is the same memory")

    def download(self, pairs: Sequence[Pair], done: Callable[[], None]) -> None:
        raise NotImplementedError("it is the same memory")

    def wait(self) -> None:
        pass


class _Line:
    """Does one thing after the other, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._error: BaseException | None = None
        guarded_thread(self._run, name).start()

    def put(self, work: Callable[[], None]) -> None:
        self._waiting.put(work)

    def wait(self) -> None:
        """Until all is done by now. Raises the first error there was."""
        done = threading.Event()
        self._waiting.put(done.set)
        done.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            work = self._waiting.get()
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
                self._error = self._error or error
            del work  # what it holds must not live until there is something else


class Cuda(Device):
    """An NVIDIA GPU: kernels in the current stream, deterministic ones alone, and downloads in another.

    Sources: PyTorch's notes on reproducibility; NVIDIA's cuBLAS manual, 2.1.4.
    """

    kind = "cuda"

    def __init__(self, number: int = 0) -> None:
        """number: of a GPU, modulo how many this process sees. Raises ProgramError if there is none."""
        os.environ.setdefault(WORKSPACE, ":4096:8")  # read when cuBLAS starts
        if not torch.cuda.is_available():
            raise ProgramError(
                "device: cuda: PyTorch finds no GPU here (torch.cuda.is_available() is False). Is there a "
                "driver, is this a build of PyTorch for CUDA, and does CUDA_VISIBLE_DEVICES name one? With "
                "device: cpu the processor computes; auto takes a GPU where there is one."
            )
        self.where = torch.device("cuda", number % torch.cuda.device_count())
        torch.cuda.set_device(self.where)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # the main cost
        # It would choose kernels, and so bits, by what was quickest just now.
        torch.backends.cudnn.benchmark = False
        torch.empty(0, device=self.where)  # generators are there once CUDA is
        self._generator = torch.cuda.default_generators[self.where.index]
        self._copies = torch.cuda.Stream(self.where)  # type: ignore[no-untyped-call]
        self._sends = torch.cuda.Stream(self.where)  # type: ignore[no-untyped-call]
        self._is_sending = False
        self._nvml = Nvml(str(getattr(torch.cuda.get_device_properties(self.where), "uuid", "")))
        self._line = _Line("downloads")
        self._pinned: weakref.WeakSet[Vector] = weakref.WeakSet()

    @property
    def facts(self) -> Mapping[str, str]:
        properties = torch.cuda.get_device_properties(self.where)
        tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        return {
            "device": f"{properties.name}, {properties.multi_processor_count} multiprocessors",
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "tf32": f"{tf32[0]} in products, {tf32[1]} in convolutions",
            WORKSPACE: os.environ[WORKSPACE],
        }

    def gpu_state(self) -> GpuState | None:
        return self._nvml.look()

    def new_state(self, layout: Layout) -> Vector:
        memory = torch.empty(max(1, layout.num_bytes), dtype=torch.uint8, pin_memory=True).zero_()
        return Vector(layout, memory.numpy())

    def seed(self, seed: int) -> None:
        self._generator.manual_seed(seed)  # Philox: this, and an offset, which begins at 0

    def take(self, column: Array) -> tuple[torch.Tensor, torch.Tensor]:
        pinned = torch.from_numpy(column).contiguous().pin_memory()
        return pinned.to(self.where, non_blocking=True), pinned  # PyTorch keeps it until that is over

    def begin(self) -> None:
        if self._is_sending:
            torch.cuda.current_stream(self.where).wait_stream(self._sends)
            self._is_sending = False

    def launch(self, work: Callable[[], None]) -> None:
        work()

    def upload(self, pairs: Sequence[Pair]) -> None:
        for source, target in pairs:
            target.copy_(torch.from_numpy(source), non_blocking=True)
        # The next kernels need all of it anyway, so nothing is lost by waiting.
        torch.cuda.current_stream(self.where).synchronize()

    def send(self, pair: Pair) -> None:
        source, target = pair
        # Kernels may be reading what was there.
        self._sends.wait_stream(torch.cuda.current_stream(self.where))
        with torch.cuda.stream(self._sends):
            target.copy_(torch.from_numpy(source), non_blocking=True)
        self._is_sending = True

    def pin(self, vector: Vector) -> None:
        """If it has pages of its own: none can be registered twice. Else its downloads are slow."""
        if vector in self._pinned or not vector.own_pages:
            return
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        first = vector.groups[0].ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        stop = vector.groups[-1].ctypes.data + vector.groups[-1].nbytes
        pages = -(-(stop - first) // mmap.PAGESIZE)
        torch.cuda.check_error(int(cudart.cudaHostRegister(first, pages * mmap.PAGESIZE, 0)))
        self._pinned.add(vector)
        weakref.finalize(vector, cudart.cudaHostUnregister, first).atexit = False

    def download(self, pairs: Sequence[Pair], done: Callable[[], None]) -> None:
        # Blocking: to wait for it takes no processor.
        copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        # Nothing else has the copies come after the kernels that make what is copied.
        self._copies.wait_stream(torch.cuda.current_stream(self.where))
        with torch.cuda.stream(self._copies):
            for target, source in pairs:
                torch.from_numpy(target).copy_(source, non_blocking=True)
            copied.record(self._copies)

        def tell() -> None:
            copied.synchronize()
            done()

        self._line.put(tell)

    def wait(self) -> None:
        self._line.wait()


def _driver() -> str:
    """The version of NVIDIA's driver, "" if it does not say."""
    with contextlib.suppress(OSError), open("/proc/driver/nvidia/version", encoding="ascii") as file:
        return next((word for word in file.readline().split() if word[:1].isdigit() and "." in word), "")
    return ""


class Delayed(Device):
    """The processor, as if it were a GPU: all that is launched or copied happens late, in another thread.

    Memory that is to be filled holds NaN until then.
    """

    kind, where = "delayed", torch.device("cpu")

    def __init__(self) -> None:
        self._line = _Line("delayed")
        self._random = random.Random(0)

    def take(self, column: Array) -> tuple[torch.Tensor, torch.Tensor]:
        host = torch.from_numpy(column).clone()
        there = torch.empty_like(host)
        _spoil(there.numpy())
        self.launch(lambda: there.copy_(host))
        return there, host

    def begin(self) -> None:
        self._line.wait()

    def launch(self, work: Callable[[], object]) -> None:
        late_s = self._random.uniform(0, LATE_S)

        def later() -> None:
            time.sleep(late_s)
            with torch.no_grad():
                work()

        self._line.put(later)

    def upload(self, pairs: Sequence[Pair]) -> None:
        for source, target in pairs:
            self.launch(lambda source=source, target=target: target.copy_(torch.from_numpy(source)))  # type: ignore[misc]
        self._line.wait()

    def send(self, pair: Pair) -> None:
        source, target = pair
        self.launch(lambda: target.copy_(torch.from_numpy(source)))

    def download(self, pairs: Sequence[Pair], done: Callable[[], None]) -> None:
        for target, _ in pairs:
            _spoil(target)

        def copy() -> None:
            for target, source in pairs:
                torch.from_numpy(target).copy_(source)
            done()

        self.launch(copy)

    def wait(self) -> None:
        self._line.wait()


def _spoil(array: Array) -> None:
    """Fills it with NaN, or else -1."""
    array.reshape(-1).view(np.uint8).fill(0xFF)


@cache
def open_device(kind: str, number: int) -> Device:
    """The device of this process. kind: a setting. number: of the GPU, of those there are, over again.

    Raises ProgramError where there is none.
    """
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return {"cpu": Host, "delayed": Delayed}[kind]() if kind != "cuda" else Cuda(number)
