"""What is read of a request before it is answered: who still sends then hears of a reset alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")

from elasticflow.run.folder import RunDir
from elasticflow.serving.app import HEARD_OUT, ModelApp
from elasticflow.serving.settings import ServingSettings
from elasticflow.serving.waiting import FullError

MOST_BYTES, PIECE = 1000, 100


def answered(num_bytes: int, *, token: str = "", kind: str = "application/json", **more: Any) -> list[Any]:
    """What the app does, in order: each piece that it reads of so many bytes, and its answer's status."""

    async def ask(request: object) -> None:
        raise FullError

    done: list[Any] = []
    left = [PIECE] * (num_bytes // PIECE)

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.Event().wait()  # nothing comes any more
        done.append(left.pop())
        return {"type": "http.request", "body": b" " * PIECE, "more_body": bool(left) or "stalls" in more}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            done.append(message["status"])

    crew: Any = SimpleNamespace(ask=ask, waiting=3)
    counts: Any = SimpleNamespace(answered=lambda code, seconds: None)
    settings = ServingSettings(
        RunDir("run"), None, False, token=token, most_bytes=MOST_BYTES, patience_s=0.05
    )
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "headers": [(b"content-type", kind.encode())],
        "query_string": b"",
    }
    asyncio.run(ModelApp(crew, counts, settings).asgi(scope, receive, send))
    return done


@pytest.mark.parametrize(
    ("refused", "status"),
    [({"token": "x" * 20}, 401), ({"kind": "text/html"}, 415), ({}, 413)],
    ids=["without the token", "of another kind", "too much"],
)
def test_who_is_refused_is_heard_out_first(refused: dict[str, Any], status: int) -> None:
    assert answered(2 * MOST_BYTES, **refused) == [PIECE] * 20 + [status]


def test_who_has_said_all_is_answered_at_once() -> None:
    assert answered(MOST_BYTES) == [PIECE] * 10 + [503]


def test_who_sends_without_end_or_stalls_is_not_waited_for() -> None:
    *heard, status = answered(100 * MOST_BYTES)
    assert status == 413 and (HEARD_OUT + 2) * MOST_BYTES > sum(heard) > HEARD_OUT * MOST_BYTES
    assert answered(200, stalls=True) == [PIECE] * 2 + [408]
    assert answered(2 * MOST_BYTES, stalls=True)[-1] == 413
