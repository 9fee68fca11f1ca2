"""The updates in C, ``native.c``: there if a C compiler was when this was installed.

Without them the servers use NumPy, which gives the same bits several times slower.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticflow.embedding import Constant, Initializer, Uniform
from elasticflow.process.addresses import address_of
from elasticflow.process.compiled import library
from elasticflow.step.layout import Array
from elasticflow.step.rows import Grouped, Keys, Rows, Values
from elasticflow.step.rows import first_values as first_values_with_numpy
from elasticflow.step.rows import grouped as grouped_with_numpy

RULES = (
    "sgd", "momentum", "adam", "amsgrad", "adagrad", "ftrl", "rmsprop", "rmsprop_momentum",
    "rmsprop_centered", "rmsprop_centered_momentum", "adadelta", "adamax", "nadam", "lion",
)  # fmt: skip
DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float64))
MAX_SLOTS, MAX_NUMBERS = 3, 12

_UPDATE = struct.Struct(f"{3 + 2 * MAX_SLOTS}P{MAX_NUMBERS}dP")
"""``Update`` in C: where the arrays lie, the numbers, and a place for C's own use."""


_lib = library(Path(__file__).parent)
available = _lib is not None
"""Whether the updates in C are there."""

_rules: dict[tuple[str, np.dtype[Any]], Any] = {}
_add_squares: dict[np.dtype[Any], Any] = {}
_all_finite: dict[np.dtype[Any], Any] = {}
if _lib is not None:
    for _dtype in DTYPES:
        for _rule in RULES:
            _rules[_rule, _dtype] = _function = _lib[f"{_rule}_{_dtype}"]
            _function.argtypes, _function.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_int
        _add_squares[_dtype] = _function = _lib[f"add_squares_{_dtype}"]
        _function.argtypes = (ctypes.c_void_p, ctypes.c_size_t) * 2
        _function.restype = None
        _all_finite[_dtype] = _function = _lib[f"all_finite_{_dtype}"]
        _function.argtypes, _function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    assert _lib.update_bytes_float32() == _UPDATE.size
    _lib.copy_bytes.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _lib.copy_bytes.restype = None
    _lib.gather_windows.argtypes = (ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_size_t,) * 3)
    _lib.gather_windows.restype = None
    _lib.set_threads.argtypes, _lib.set_threads.restype = (ctypes.c_long,), ctypes.c_long


def set_threads(threads: int) -> int:
    """Shares each large span and copy among so many threads of this process, at first one; same bits.

    Returns how many there are: fewer if the system allows no more, one without ``available``. For the start
    of a process: after a fork the threads are the parent's, and the child does the work alone.
    """
    return 1 if _lib is None else int(_lib.set_threads(threads))


LARGE_BYTES = 1 << 20
"""As in native.c: what is smaller is not worth waking threads for."""


def copy(to: Array, array: Array) -> None:
    """Between contiguous arrays of as many bytes; a large one by all threads."""
    if _lib is None or to.nbytes <= LARGE_BYTES:  # which one thread copies, and NumPy sooner begins
        np.copyto(to, array.view(to.dtype))
    else:
        assert to.nbytes == array.nbytes
        _lib.copy_bytes(address_of(to), address_of(array), to.nbytes)


def windows_of(flat: Array, first: int, stride: int, size: int, num: int) -> Array:
    """Of bytes: ``size`` of them every ``stride``, from ``first`` on, ``num`` times: (num * size,)."""
    if _lib is None:
        return flat[: num * stride].reshape(num, stride)[:, first : first + size].reshape(-1)
    found = np.empty(num * size, np.uint8)
    _lib.gather_windows(address_of(found), address_of(flat) + first, stride, size, num)
    return found


def takes(*arrays: Array) -> bool:
    """Whether C can work on these arrays: of float32 or float64, contiguous, at any address."""
    return available and all(array.dtype in DTYPES and array.flags.c_contiguous for array in arrays)


def update(
    rule: str,
    params: Array,
    grad: Array,
    out: Array,
    before: Sequence[Array],
    after: Sequence[Array],
    numbers: Sequence[float],
) -> bool:
    """``Kernel.apply_with_numpy`` in C, for arrays that it ``takes``. rule: one of ``RULES``."""
    none = (0,) * (MAX_SLOTS - len(before))
    to = [address_of(slot) for slot in after]
    places = [at if old is new else address_of(old) for old, new, at in zip(before, after, to, strict=True)]
    job = _UPDATE.pack(
        address_of(params),
        address_of(grad),
        address_of(out),
        *places,
        *none,
        *to,
        *none,
        *numbers,
        *(0,) * (MAX_NUMBERS - len(numbers)),
        0,
    )
    return bool(_rules[rule, params.dtype](job, params.size))


def add_squares(grad: Array, sums: npt.NDArray[np.float64]) -> None:
    """Adds the square of element i to ``sums[i % len(sums)]``, in the order of i."""
    _add_squares[grad.dtype](address_of(grad), grad.size, address_of(sums), sums.size)


def all_finite(values: Array) -> bool:
    """Whether all of an array that it ``takes`` are numbers, none NaN or infinite."""
    return bool(_all_finite[values.dtype](address_of(values), values.size))


# --- rows of embedding tables: rows.c -------------------------------------------------------------

Places = npt.NDArray[np.int64]
Seen = npt.NDArray[np.uint32]


class RowIndex(ctypes.Structure):
    """``Index`` in C, see there."""

    _fields_ = [("entries", ctypes.c_void_p)] + [
        (name, ctypes.c_uint64) for name in ("low", "buckets", "per_bucket", "used", "rows")
    ]
    low: int
    buckets: int
    per_bucket: int
    used: int
    rows: int


MAX_IDS = (1 << 31) - 1
"""So many ids can be grouped at a time."""
ENTRY_BYTES, GROUP_BYTES = 16, 16
"""Of an entry of the index, and of ``Group`` in C."""

_P, _N, _STEP, _REAL = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_float
_INDEX = ctypes.POINTER(RowIndex)
_PACKED = ctypes.c_char_p
_MOVED = struct.Struct(f"PNNNPN{1 + MAX_SLOTS}P")
_NEW = (_P, _N, _N, ctypes.c_uint64, _REAL, _REAL, _P)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "fit_index": (ctypes.c_int, (_INDEX, _P, _N)),
    "find_rows": (_N, (_INDEX, _P, _N, _STEP, _P)),
    "admit_rows": (_N, (_INDEX, _P, _N, _STEP, _STEP, ctypes.c_int32, _P, _P)),
    "put_rows": (None, (_INDEX, _P, _N, _P, _P, _P)),
    "list_rows": (_N, (_INDEX, _STEP, _P, _P, _P)),
    "rebuild_index": (None, (_INDEX, _STEP, _INDEX)),
    "close_gaps": (None, (_INDEX, _P, _N, _P)),
    "gather_rows": (None, (_PACKED,)),
    "scatter_rows": (None, (_PACKED,)),
    "update_rows": (ctypes.c_int, (_PACKED, _P, _P, _N, _P, _PACKED)),
    "merge_rows": (_N, (_P, _P, _N, _P, _P, _N, _N, _P, _P)),
    "group_ids": (_N, (_P, _N, _P, _P, _P, _P, _P, _P, ctypes.c_uint)),
    "uniform_rows": (None, _NEW),
    "normal_rows": (None, _NEW),
}

_in_c: Any = _lib
rows_available = _lib is not None and hasattr(_lib, "index_bytes")
"""Whether what follows is done in C. The index is there only if it is."""
_row_rules: dict[str, int | None] = {}
if rows_available:
    assert _in_c.index_bytes() == ctypes.sizeof(RowIndex) and _in_c.row_update_bytes() == _UPDATE.size
    assert _in_c.group_bytes() == GROUP_BYTES
    for _rule in RULES:
        _row_rules[_rule] = ctypes.cast(_rules[_rule, np.dtype(np.float32)], _P).value
    for _name, (_result, _arguments) in _SIGNATURES.items():
        _function = getattr(_in_c, _name)
        _function.restype, _function.argtypes = _result, _arguments


def fit_index(index: RowIndex, keys: Keys) -> bool:
    """Whether keys are ascending, each once, all of this index's buckets: only such may be given to it."""
    return bool(_in_c.fit_index(index, address_of(keys), len(keys)))


def find_rows(index: RowIndex, keys: Keys, oldest: int, places: Places) -> int:
    """Writes the numbers of the rows seen from step ``oldest`` on, -1 for other keys; returns how many."""
    return int(_in_c.find_rows(index, address_of(keys), len(keys), oldest, address_of(places)))


def admit_rows(
    index: RowIndex, keys: Keys, step: int, oldest: int, min_count: int, places: Places, fresh: Places
) -> int:
    """Counts a step for each key; writes the numbers of their rows, -1 for candidates, and which are new.

    Returns how many are. Without bounds, as the next one: see that there is room.
    """
    at, count = address_of(keys), len(keys)
    number = _in_c.admit_rows(
        index, at, count, step, oldest, min_count, address_of(places), address_of(fresh)
    )
    return int(number)


def put_rows(index: RowIndex, keys: Keys, seen: Seen, counts: Seen | None, places: Places) -> None:
    """Makes keys those of rows, whose numbers it writes, or of candidates."""
    at = None if counts is None else address_of(counts)
    _in_c.put_rows(index, address_of(keys), len(keys), address_of(seen), at, address_of(places))


def list_rows(index: RowIndex, oldest: int, keys: Keys, places: Places, seen: Seen) -> int:
    """Writes all that was seen from step ``oldest`` on; returns how many these are."""
    return int(_in_c.list_rows(index, oldest, address_of(keys), address_of(places), address_of(seen)))


def rebuild_index(index: RowIndex, oldest: int, to: RowIndex) -> None:
    """Moves all that was seen from step ``oldest`` on to another index, or closer together in the same."""
    _in_c.rebuild_index(index, oldest, to)


def close_gaps(index: RowIndex, rows: Values) -> None:
    """Moves rows to numbers that no key has any more, so that numbers are below the number of rows."""
    taken = np.zeros(index.rows, np.bool_)
    _, pieces, dim = rows.shape
    _in_c.close_gaps(index, address_of(rows), 4 * pieces * dim, address_of(taken))


def _rows(rows: Values, places: Places, parts: Sequence[Values], pieces: int) -> bytes:
    """``Rows`` in C, see there."""
    dim = rows.shape[2]
    assert all(part.shape == (len(places), dim) for part in parts)
    none = (0,) * (1 + MAX_SLOTS - len(parts))
    sizes = rows.strides[0], 4 * dim, pieces, address_of(places), len(places)
    return _MOVED.pack(address_of(rows), *sizes, *map(address_of, parts), *none)


def gather(rows: Values, places: Places, parts: Sequence[Values]) -> None:
    """Writes ``rows[places, i]`` to ``parts[i]``, but for places that are negative.

    rows: (n, pieces, dim). places: (k,). parts: (k, dim) each, of the first pieces or all.
    """
    if rows_available and takes(rows, *parts):
        _in_c.gather_rows(_rows(rows, places, parts, len(parts)))
        return
    known = places >= 0
    for number, part in enumerate(parts):
        part[known] = rows[places[known], number]


def scatter(rows: Values, places: Places, parts: Sequence[Values]) -> None:
    """Writes ``parts[i]`` to ``rows[places, i]``: the reverse of ``gather``."""
    if rows_available and takes(rows, *parts):
        _in_c.scatter_rows(_rows(rows, places, parts, len(parts)))
        return
    known = places >= 0
    for number, part in enumerate(parts):
        rows[places[known], number] = part[known]


def update_rows(
    rule: str,
    rows: Values,
    places: Places,
    grads: Values,
    before: Values,
    blocks: Values,
    numbers: Sequence[float],
) -> bool:
    """``update`` of ``rows[places]``, (n, 1 + slots, dim), where they are. Only if ``rows_available``.

    before: (k, dim), of what the values were. blocks: (1 + slots, some, dim), to work in.
    """
    assert grads.shape == before.shape and len(blocks) == rows.shape[1] and takes(grads, before, blocks)
    job = _rows(rows, places, [before], len(blocks))
    packed = struct.pack(f"{MAX_NUMBERS}d", *numbers, *(0,) * (MAX_NUMBERS - len(numbers)))
    at, length = address_of(blocks), blocks.shape[1]
    return bool(_in_c.update_rows(job, address_of(grads), at, length, _row_rules[rule], packed))


def merge(left: Rows, right: Rows) -> Rows:
    """``left.plus(right)``."""
    if not (rows_available and len(left.keys) and len(right.keys)):
        return left.plus(right)
    most, dim = len(left.keys) + len(right.keys), left.values.shape[1]
    keys, values = np.empty(most, np.uint64), np.empty((most, dim), np.float32)
    mine = address_of(left.keys), address_of(left.values), len(left.keys)
    others = address_of(right.keys), address_of(right.values), len(right.keys)
    number = _in_c.merge_rows(*mine, *others, dim, address_of(keys), address_of(values))
    return Rows(keys[:number], values[:number])


def grouped(ids: npt.NDArray[np.int64]) -> Grouped:
    """``elasticflow.step.rows.grouped``."""
    n = len(ids)
    if not rows_available or not n or n > MAX_IDS:
        return grouped_with_numpy(ids)
    bits = (n + n // 2).bit_length()
    ids = np.ascontiguousarray(ids, np.int64)
    keys, order, starts, places = np.empty(n, np.uint64), *np.empty((3, n), np.int64)
    groups, slots = np.empty(n * GROUP_BYTES, np.uint8), np.zeros((1 << bits) + n, np.int32)
    found = address_of(keys), address_of(order), address_of(starts), address_of(places)
    count = _in_c.group_ids(address_of(ids), n, *found, address_of(groups), address_of(slots), bits)
    return Grouped(keys[:count], order, starts[:count], places)


def first_values(initializer: Initializer, seed: int, keys: Keys, dim: int) -> Values:
    """``elasticflow.step.rows.first_values``."""
    if not rows_available or isinstance(initializer, Constant):
        return first_values_with_numpy(initializer, seed, keys, dim)
    values = np.empty((len(keys), dim), np.float32)
    if isinstance(initializer, Uniform):
        low = np.float32(initializer.low)
        fill, numbers = _in_c.uniform_rows, (low, np.float32(initializer.high) - low)
    else:
        scale = np.float32(2.0**-21 * initializer.std)
        fill, numbers = _in_c.normal_rows, (np.float32(initializer.mean), scale)
    fill(address_of(keys), len(keys), dim, seed, *map(float, numbers), address_of(values))
    return values


# --- arrays rounded to bfloat16: packing.c --------------------------------------------------------

_rounds = _lib is not None and hasattr(_lib, "round_to_bfloat16")
if _rounds:
    for _name in ("to_bfloat16", "from_bfloat16"):
        _function = getattr(_in_c, _name)
        _function.restype, _function.argtypes = None, (_P, _N, _P)
    _in_c.round_to_bfloat16.restype, _in_c.round_to_bfloat16.argtypes = None, (_P, _N)


def rounds(*arrays: Array) -> bool:
    """Whether what follows can be done to these arrays."""
    return _rounds and all(array.flags.c_contiguous for array in arrays)


def to_bfloat16(values: Array, packed: Array) -> None:
    """See ``elasticflow_ps.packing``, and so below; for arrays that it ``rounds``."""
    _in_c.to_bfloat16(address_of(values), values.size, address_of(packed))


def from_bfloat16(packed: Array, values: Array) -> None:
    """Writes to ``values``, (n,)."""
    _in_c.from_bfloat16(address_of(packed), packed.size, address_of(values))


def round_to_bfloat16(values: Array) -> None:
    """In place."""
    _in_c.round_to_bfloat16(address_of(values), values.size)
