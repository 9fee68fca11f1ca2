"""What is asked over HTTP, and what is answered."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elasticflow.serving.counts import ServingCounts
from elasticflow.serving.crew import ModelCrew
from elasticflow.serving.orders import ARROW, JSON, ModelRequest
from elasticflow.serving.settings import ServingSettings
from elasticflow.serving.waiting import DeadlyRequestError, FullError

STEP = "X-Model-Step"
"""Header of answers: of which checkpoint they are."""
GONE = 499
"""Whoever asked has gone before all of it had come; nobody reads that but in the figures."""
STATUS = {"": 200, "request": 400, "program": 422}
"""By whose fault it is."""


HEARD_OUT = 4
"""So many times what may be sent is read of a request that is refused."""


class RefusedRequest(Exception):
    """status: of HTTP. text: what is wrong, and what to do."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


class ModelApp:
    """settings: of the server."""

    def __init__(self, crew: ModelCrew, counts: ServingCounts, settings: ServingSettings) -> None:
        self._crew, self._counts, self._settings = crew, counts, settings
        self.asgi = Starlette(
            routes=[
                Route("/predict", self._guarded(self._predict), methods=["POST"]),
                Route("/model", self._guarded(self._model)),
                Route("/metrics", self._guarded(self._metrics)),
                Route("/health", self._health),
            ]
        )

    def _guarded(
        self, answer: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def guarded(request: HttpRequest) -> Response:
            begun_s = time.monotonic()
            try:
                given, token = request.headers.get("authorization", "").encode(), self._settings.token
                if token and not hmac.compare_digest(given, f"Bearer {token}".encode()):
                    raise RefusedRequest(401, "a token is wanted: Authorization: Bearer TOKEN.")
                answered = await answer(request)
            except RefusedRequest as refused:
                if refused.status != 408:  # who is too slow had its time
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._hear_out(request), self._settings.patience_s)
                answered = JSONResponse({"error": refused.text}, refused.status)
                if refused.status == 503:
                    answered.headers["Retry-After"] = "1"
            except ClientDisconnect:
                answered = Response(status_code=GONE)
            if request.url.path == "/predict":
                self._counts.answered(answered.status_code, time.monotonic() - begun_s)
            return answered

        return guarded

    async def _predict(self, request: HttpRequest) -> Response:
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, ARROW):
            raise RefusedRequest(415, f"Content-Type is {kind!r}. It can be {JSON} or {ARROW}.")
        accept = request.headers.get("accept", "*/*")
        wanted = ARROW if ARROW in accept or (kind == ARROW and JSON not in accept) else JSON
        patience_s = self._settings.patience_s
        try:
            body = await asyncio.wait_for(self._body(request), patience_s)
        except asyncio.TimeoutError:  # not the built-in one in Python 3.10
            raise RefusedRequest(408, f"not all of it has come within {patience_s:g} s.") from None
        try:
            asked = self._crew.ask(ModelRequest(body, kind, wanted))
            answer, step = await asyncio.wait_for(asked, patience_s)
        except asyncio.TimeoutError:
            raise RefusedRequest(504, f"there was no answer within {patience_s:g} s.") from None
        except FullError:
            text = f"{self._crew.waiting} requests wait already; try again soon."
            raise RefusedRequest(503, text) from None
        except DeadlyRequestError as error:
            text = f"the process that computes this request dies of it: it {error}."
            raise RefusedRequest(500, text) from None
        if answer.fault:
            raise RefusedRequest(STATUS[answer.fault], answer.body.decode())
        return Response(answer.body, media_type=wanted, headers={STEP: str(step)})

    async def _body(self, request: HttpRequest) -> bytes:
        parts, num_bytes = [], 0
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes > (most := self._settings.most_bytes):
                raise RefusedRequest(413, f"it has more than {most:,} bytes; send less at once.")
            parts.append(part)
        return b"".join(parts)

    async def _hear_out(self, request: HttpRequest) -> None:
        """Who still sends as it is answered would hear of a reset alone, and not of the answer."""
        num_bytes = 0
        with suppress(RuntimeError, ClientDisconnect):  # all of it was read; or nobody is there any more
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > HEARD_OUT * self._settings.most_bytes:
                    break

    async def _model(self, request: HttpRequest) -> Response:
        columns = [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape)} for c in self._crew.columns]
        return JSONResponse({"run": self._settings.name, "step": self._crew.step, "columns": columns})

    async def _health(self, request: HttpRequest) -> Response:
        ready = self._crew.ready
        told = {"processes": ready, "step": self._crew.step, "waiting": self._crew.waiting}
        return JSONResponse(told, 200 if ready else 503)

    async def _metrics(self, request: HttpRequest) -> Response:
        text, kind = self._counts.told()
        return Response(text, media_type=kind)
