"""JSON and MessagePack to values of our types, whichever thread is the first to ask for one.

msgspec works out what it must know of a type when that is first decoded, and keeps it in the type before it
is complete. Another thread that decodes one at that moment, on its own or in another, finds half of it, and
the process dies of it (SIGSEGV, msgspec 0.22). Here one thread at a time works types out.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
_lock = threading.Lock()


@overload
def from_json(data: bytes | str, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | str, kind: Any) -> Any: ...
def from_json(data: bytes | str, kind: Any) -> Any:
    """Raises msgspec.MsgspecError, and of odd bytes UnicodeDecodeError and RecursionError."""
    return json_decoder(kind).decode(data)


@overload
def from_msgpack(data: bytes, kind: type[T]) -> T: ...
@overload
def from_msgpack(data: bytes, kind: Any) -> Any: ...
def from_msgpack(data: bytes, kind: Any) -> Any:
    """Raises as ``from_json`` does."""
    return msgpack_decoder(kind).decode(data)


@overload
def converted(values: Any, kind: type[T]) -> T: ...
@overload
def converted(values: Any, kind: Any) -> Any: ...
def converted(values: Any, kind: Any) -> Any:
    """What was read already, as a value of that kind. Raises msgspec.MsgspecError."""
    json_decoder(kind)
    return msgspec.convert(values, kind)


@cache
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    with _lock:
        return msgspec.json.Decoder(kind)


@cache
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _lock:
        return msgspec.msgpack.Decoder(kind)
