"""Whose fault an error is that comes up in a slice: the record's, the place's, or the program's.

Only for records on which the *program raises* may others go on without them. A full disk, a lost file, too
little memory or a network that is down says nothing of the record that was being read just then: to leave it
out would make another model, and hide what is wrong.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from enum import Enum
from typing import NoReturn

from elasticflow.errors import BrokenError, DataError, ElasticFlowError, LoopError, UnreadableError
from elasticflow.program.loading import describe, words_of


class Culprit(Enum):
    """Ordered by what is believed where an error has several causes: the later beats the earlier."""

    RECORD = 0
    """The program raises on it, and may do so on this record alone."""
    PLACE = 1
    """This machine or process has run out of something, or cannot reach it: another one may do better."""
    PROGRAM = 2
    """The same everywhere, whatever the record: nobody need try again."""


TOLD_AS_THEY_ARE = (UnreadableError, BrokenError, LoopError)
"""Our own, which say themselves what is wrong, and are never a record's."""
ABOUT_ARGUMENTS = frozenset(
    {
        errno.EINVAL,
        errno.EDOM,
        errno.ERANGE,
        errno.EOVERFLOW,
        errno.EILSEQ,
        errno.ENAMETOOLONG,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ESPIPE,
        errno.EBADMSG,
        errno.ENOTSUP,
    }
)
"""What the system says of something that it was asked for, which may have come from the record. Any other
refusal is about the place."""
TRIED_FIRST = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST, errno.EAGAIN})
"""Programs try whether something is there, and go another way if not: that such an error was handled when
another one was raised makes it no cause of that. (``raise ... from`` does.)"""
NETWORK = frozenset(
    {"urllib", "urllib3", "http", "requests", "socket", "ssl", "aiohttp", "httpx", "botocore"}
)
"""Packages whose errors are of the network, also where they have no number."""
OUT_OF_SOMETHING = frozenset({"OutOfMemoryError", "ResourceExhaustedError", "AcceleratorError"})
"""What the frameworks call it, which need not be loaded."""
COMPILERS = frozenset({"InvalidCxxCompiler", "CppCompileError", "TritonMissing"})
"""``torch.compile`` finds none on this machine, or one that does not do."""
TOO_MANY_KERNELS = frozenset({"FailOnRecompileLimitHit", "FailOnCacheLimitHit"})
"""``torch.compile``, however often it is tried: see ``torch_compiled``."""
FEWER_KERNELS = (
    ". torch.compile has made too many kernels of one function, since sizes, or numbers that it is called "
    "with, are others from slice to slice. Give fewer sizes, such as by ef.data.Pad(multiple=64), have one "
    "kernel for all by torch.compile(..., dynamic=True), or leave it out"
)
OUT_OF_REACH = frozenset(
    {"NotFoundError", "PermissionDeniedError", "UnavailableError", "DeadlineExceededError"}
)
"""TensorFlow's, of files and of other machines."""
WORDS = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "can't start new thread",
    "too many open files",
    "no space left on device",
    "CUDA error",
)
"""In the text of a RuntimeError, which is all that PyTorch and Python say it by."""
OUT_OF_MEMORY = WORDS[:4]
OF_KERNELS = (
    "device-side assert triggered",
    "an illegal memory access was encountered",
    "misaligned address",
    "invalid program counter",
    "operation not supported on global/shared address space",
)
"""What CUDA says of kernels that were given what cannot be, such as an index out of range. It takes no more
work from a process in which one has failed so."""


def whose_fault(error: BaseException) -> Culprit:
    """Of an error and all that it came from."""
    return max((_of_one(each, handled) for each, handled in _chain(error)), key=lambda fault: fault.value)


def cause_of(error: BaseException) -> BaseException:
    """The first in the chain of an error that is to blame for its class."""
    fault = whose_fault(error)
    return next(each for each, handled in _chain(error) if _of_one(each, handled) is fault)


def lacks_memory(error: BaseException) -> bool:
    """Whether a computation that wants less of it may do."""
    return any(_is_of_memory(each) for each, _ in _chain(error))


def is_of_files(error: BaseException) -> bool:
    """Whether it is of files, which may be as they should on another machine."""
    return any(isinstance(each, (OSError, DataError)) for each, handled in _chain(error) if not handled)


def is_of_kernel(error: BaseException) -> bool:
    """Whether a GPU takes no more work from this process, since a kernel of it has failed."""
    texts = [words_of(each) for each, _ in _chain(error) if isinstance(each, RuntimeError)]
    return any("CUDA error" in text and any(words in text for words in OF_KERNELS) for text in texts)


def die_of(error: BaseException) -> NoReturn:
    """Ends this process as a record would that it does not survive: so the record is looked for."""
    traceback.print_exception(error)
    print("a GPU takes no more work from a process in which a kernel has failed: it ends", flush=True)
    os.abort()


def _is_of_memory(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or names & {"OutOfMemoryError", "ResourceExhaustedError"}:
        return True
    text = words_of(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in OUT_OF_MEMORY)


class OutsideError(ElasticFlowError, RuntimeError):
    """A slice could not be computed, and none of its records is to blame.

    for_all: no other worker would be spared.
    """

    def __init__(self, text: str, for_all: bool) -> None:
        super().__init__(text)
        self.for_all = for_all


def spare_records(error: BaseException, path: str) -> None:
    """Raises OutsideError, which names the cause, unless ``error`` may be a record's fault."""
    if isinstance(error, TOLD_AS_THEY_ARE):
        raise error
    fault = whose_fault(error)
    if fault is Culprit.RECORD:
        return
    who = "this worker's machine" if fault is Culprit.PLACE else "the program"
    cause = cause_of(error)
    text = (
        describe(error, path) if cause is error else f"{describe(error, path)}, from {describe(cause, path)}"
    )
    advice = FEWER_KERNELS if type(cause).__name__ in TOO_MANY_KERNELS else ""
    raise OutsideError(
        f"{text}: no record is to blame for that, but {who}{advice}", fault is Culprit.PROGRAM
    ) from error


def _chain(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """An error and those below, and whether each was merely being handled when the one above was raised."""
    seen: set[int] = set()
    each: BaseException | None = error
    handled = False
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each, handled
        inner = getattr(each, "inner_exception", None)  # PyTorch's compiler raises its own "from None"
        if not isinstance(inner, BaseException):
            inner = each.__cause__
        handled = handled or inner is None
        each = inner or (None if each.__suppress_context__ else each.__context__)


def _of_one(error: BaseException, handled: bool) -> Culprit:
    if group := getattr(error, "exceptions", ()):  # an ExceptionGroup, where Python has them
        return max((whose_fault(each) for each in group), key=lambda fault: fault.value)
    if isinstance(error, (ImportError, SystemExit)):
        return Culprit.RECORD if handled else Culprit.PROGRAM
    if type(error).__name__ in TOO_MANY_KERNELS:
        return Culprit.PROGRAM
    return Culprit.PLACE if _is_of_place(error, handled) else Culprit.RECORD


def _is_of_place(error: BaseException, handled: bool) -> bool:
    if isinstance(error, (*TOLD_AS_THEY_ARE, MemoryError, KeyboardInterrupt, ConnectionError)):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in ABOUT_ARGUMENTS and not (handled and error.errno in TRIED_FIRST)
    if isinstance(error, TimeoutError):
        return True
    kinds = type(error).__mro__
    if any(kind.__module__.partition(".")[0] in NETWORK for kind in kinds):
        return True
    names = {kind.__name__ for kind in kinds}
    if names & (OUT_OF_SOMETHING | COMPILERS):
        return True
    if names & OUT_OF_REACH and any(kind.__module__.startswith("tensorflow") for kind in kinds):
        return not handled
    text = words_of(error).lower()
    return isinstance(error, RuntimeError) and any(words.lower() in text for words in WORDS)
