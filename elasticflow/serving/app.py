"""What is asked over HTTP, and what is answered."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elasticflow.serving.counts import Counts
from elasticflow.serving.crew import ModelCrew
from elasticflow.serving.orders import ARROW, JSON, Request
from elasticflow.serving.waiting import DeadlyRequestError, FullError

STEP = "X-Model-Step"
"""Header of answers: of which checkpoint they are."""
STATUS = {"": 200, "request": 400, "program": 422}
"""By whose fault it is."""


class Refused(Exception):
    """status: of HTTP. text: what is wrong, and what to do."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


class ModelApp:
    """name: of the run. token: empty: everybody who reaches it may ask. most_bytes: of a request."""

    def __init__(
        self, crew: ModelCrew, counts: Counts, *, name: str, token: str, most_bytes: int, patience_s: float
    ) -> None:
        self._crew, self._counts, self._name = crew, counts, name
        self._token, self._most_bytes, self._patience_s = token, most_bytes, patience_s
        self.routes = Starlette(
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
                given = request.headers.get("authorization", "").encode()
                if self._token and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                    raise Refused(401, "a token is wanted: Authorization: Bearer TOKEN.")
                answered = await answer(request)
            except Refused as refused:
                answered = JSONResponse({"error": refused.text}, refused.status)
                if refused.status == 503:
                    answered.headers["Retry-After"] = "1"
            if request.url.path == "/predict":
                self._counts.answered(answered.status_code, time.monotonic() - begun_s)
            return answered

        return guarded

    async def _predict(self, request: HttpRequest) -> Response:
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, ARROW):
            raise Refused(415, f"Content-Type is {kind!r}. It can be {JSON} or {ARROW}.")
        accept = request.headers.get("accept", "*/*")
        wanted = ARROW if ARROW in accept or (kind == ARROW and JSON not in accept) else JSON
        body = await self._body(request)
        try:
            asked = self._crew.ask(Request(body, kind, wanted))
            answer, step = await asyncio.wait_for(asked, self._patience_s)
        except asyncio.TimeoutError:  # noqa: UP041  (another one in Python 3.10)
            raise Refused(504, f"there was no answer within {self._patience_s:g} s.") from None
        except FullError:
            raise Refused(503, f"{self._crew.waiting} requests wait already; try again soon.") from None
        except DeadlyRequestError as error:
            raise Refused(500, f"the process that computes this request dies of it: it {error}.") from None
        if answer.fault:
            raise Refused(STATUS[answer.fault], answer.body.decode())
        return Response(answer.body, media_type=wanted, headers={STEP: str(step)})

    async def _body(self, request: HttpRequest) -> bytes:
        parts, num_bytes = [], 0
        async for part in request.stream():
            num_bytes += len(part)
            if num_bytes > self._most_bytes:
                raise Refused(413, f"it has more than {self._most_bytes:,} bytes; send less at once.")
            parts.append(part)
        return b"".join(parts)

    async def _model(self, request: HttpRequest) -> Response:
        columns = [{"name": c.name, "dtype": c.dtype, "shape": list(c.shape)} for c in self._crew.columns]
        return JSONResponse({"run": self._name, "step": self._crew.step, "columns": columns})

    async def _health(self, request: HttpRequest) -> Response:
        ready = self._crew.ready
        told = {"processes": ready, "step": self._crew.step, "waiting": self._crew.waiting}
        return JSONResponse(told, 200 if ready else 503)

    async def _metrics(self, request: HttpRequest) -> Response:
        text, kind = self._counts.told()
        return Response(text, media_type=kind)
