"""The routes."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from runtime import __version__
from runtime.server.admission import no_such_model, refuse_unless_served, request_of
from runtime.server.chat import PromptReader
from runtime.server.config import ServerConfig
from runtime.server.faults import ApiError, answer_api_error, answer_crash, answer_invalid
from runtime.server.gate import Gate
from runtime.server.jobs import Delta, Event, Failed
from runtime.server.metrics import Metrics
from runtime.server.page import HEADERS, read_page
from runtime.server.schemas import ChatRequest, CompletionRequest
from runtime.server.shapes import Shape, model_of
from runtime.server.sse import DONE, EventStream, event
from runtime.server.ticket import Ticket
from runtime.server.worker import Worker


@dataclass(frozen=True)
class Service:
    """What the routes use.

    Attributes:
        config: How the server is run.
        worker: The device.
        metrics: Where everything is counted.
        reader: Makes token ids.
        context_tokens: Longest sequence of prompt and text.
        eos_ids: Tokens that end a text.
        fingerprint: Of weights and policy.
        created: Unix time of the start.
        info: What is served, for the page.
        reading: The one thread that makes token ids; more would wait for each other, and each keeps memory of its own.
    """

    config: ServerConfig
    worker: Worker
    metrics: Metrics
    reader: PromptReader
    context_tokens: int
    eos_ids: frozenset[int]
    fingerprint: str
    created: int
    info: Mapping[str, Any]
    reading: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "specpilot-reader"))

    async def answer(self, body: ChatRequest | CompletionRequest, request: Request) -> Response:
        """Answer a chat or a text, whole or as a stream.

        Raises:
            ApiError: If it is refused, or fails before its first token.
        """
        refuse_unless_served(body, self.config.model)
        chat = isinstance(body, ChatRequest)
        prompt_ids = await asyncio.get_running_loop().run_in_executor(self.reading, self._read, body)
        name = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        asked = request_of(body, name, prompt_ids, self.context_tokens, self.config.max_tokens, self.eos_ids)
        shape = Shape(name, self.config.model, int(time.time()), self.fingerprint, chat)
        traced = body.specpilot is not None and body.specpilot.trace
        client = str(request.state.client)
        with ExitStack() as stack:
            ticket = stack.enter_context(
                Ticket(self.worker, asked, client, traced, self.config.timeout_s, request.receive)
            )
            if not body.stream:
                return JSONResponse(await _whole(ticket, shape, traced))
            events = aiter(ticket)
            first = await anext(events)
            if isinstance(first, Failed):
                raise first.error
            wants_usage = body.stream_options is not None and body.stream_options.include_usage
            parts = _parts(first, events, shape, wants_usage)
            return EventStream(parts, self.config.write_timeout_s, stack.pop_all())

    def _read(self, body: ChatRequest | CompletionRequest) -> list[int]:
        return self.reader.chat(body.messages) if isinstance(body, ChatRequest) else self.reader.text(body.prompt)


async def _whole(ticket: Ticket, shape: Shape, traced: bool) -> dict[str, Any]:
    texts: list[str] = []
    steps: list[Mapping[str, Any]] = []
    async for one in ticket:
        if isinstance(one, Failed):
            raise one.error
        if not isinstance(one, Delta):
            return shape.whole("".join(texts), one.reason, one.usage, steps if traced else None)
        texts.append(one.text)
        if one.trace is not None:
            steps.append(one.trace)
    raise AssertionError("a ticket ends with Finished or Failed")


async def _parts(first: Event, events: AsyncIterator[Event], shape: Shape, wants_usage: bool) -> AsyncIterator[bytes]:
    """A stream as bytes."""
    opening = shape.first(wants_usage)
    if opening is not None:
        yield event(opening)
    one = first
    while isinstance(one, Delta):
        yield event(shape.delta(one.text, wants_usage, one.trace))
        one = await anext(events)
    if isinstance(one, Failed):
        yield event(one.error.body())
        return
    yield event(shape.last(one.reason, wants_usage))
    if wants_usage:
        yield event(shape.usage(one.usage))
    yield DONE


class StrictRequest(Request):
    """Reads a body that is JSON as the standard has it, or refuses it with one sentence."""

    async def json(self) -> Any:
        try:
            data = json.loads(await self.body(), parse_constant=_refuse_constant)
            json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise ApiError(400, f"the request body is not valid JSON: {reason}", "invalid_json") from None
        return data


class StrictRoute(APIRoute):
    """A route whose body must be JSON and say so; a page elsewhere cannot send that without being asked (CORS)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and kind != "application/json":
                raise ApiError(415, "expected a body of 'Content-Type: application/json'", "unsupported_media_type")
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def create_app(service: Service) -> FastAPI:
    """The application over a service."""
    app = FastAPI(
        title="specpilot",
        version=__version__,
        summary="One model with a trained controller of speculative decoding, as the OpenAI API speaks it",
        docs_url=None,  # they would fetch scripts from elsewhere
        redoc_url=None,
    )
    app.include_router(_api(service))
    app.include_router(_around(service))
    app.add_middleware(Gate, config=service.config, metrics=service.metrics)
    if service.config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    app.add_exception_handler(HTTPException, answer_api_error)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(Exception, answer_crash)
    return app


def _api(service: Service) -> APIRouter:
    """What the OpenAI API has."""
    api = APIRouter(prefix="/v1", route_class=StrictRoute)
    model = model_of(service.config.model, service.created, service.context_tokens)

    @api.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @api.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name != service.config.model:
            raise no_such_model(name)
        return model

    @api.post("/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await service.answer(body, request)

    @api.post("/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await service.answer(body, request)

    return api


def _around(service: Service) -> APIRouter:
    """Health, metrics, what is in memory, and the page."""
    around, page = APIRouter(), read_page()

    @around.get("/health", response_model=None)
    async def health() -> Response:
        healthy = service.worker.healthy
        return JSONResponse({"status": "ok" if healthy else "closing"}, 200 if healthy else 503)

    @around.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @around.get("/state")
    async def state() -> dict[str, Any]:
        worker = service.worker
        return {**service.info, "waiting": len(worker.room), "idle": worker.idle, "memory": dict(worker.state)}

    def shown(name: str) -> Callable[[], Coroutine[Any, Any, Response]]:
        asset = page[name]

        async def show() -> Response:
            return Response(asset.content, media_type=asset.media_type, headers=HEADERS)

        return show

    for path, name in (("/", "index.html"), ("/page/style.css", "style.css"), ("/page/app.js", "app.js")):
        around.add_api_route(path, shown(name), methods=["GET"], include_in_schema=False, response_model=None)
    return around
