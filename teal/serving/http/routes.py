"""HTTP routes of the API over a backend; :func:`make_router` builds them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.routing import Route
from starlette.types import Receive

from teal.serving.engine.backend import AllocationResponse, Backend, EncodedRequest
from teal.serving.engine.errors import ARROW, JSON, ZIP, ServiceError, overloaded, places_of_one
from teal.serving.engine.log import LOG
from teal.serving.engine.requests import (
    AllocationRequest,
    LinkChanges,
    MeasurementOptions,
    MeasurementRequest,
    NetworkSpec,
    Options,
    parse_content,
)
from teal.serving.engine.responses import (
    AllocationAnswer,
    Drawing,
    Fault,
    Health,
    MeasuredInfo,
    ModelInfo,
    NetworkInfo,
    NetworkNames,
    Readiness,
    RecentAllocations,
    Routes,
)
from teal.serving.engine.solvers import offload_if_large
from teal.serving.engine.store import NAME_PATTERN
from teal.serving.engine.wire import encode_json
from teal.serving.http.metrics import Metrics
from teal.serving.http.response_cache import ResponseCache

_ALLOCATIONS = "/v1/networks/{name}/allocations"
# Characters of an Idempotency-Key, and of an answer's id.
_MAX_KEY_LENGTH = 255
_MAX_ID_LENGTH = 200
_BEARER = HTTPBearer(auto_error=False, description="A token of --token-file.")
# The guard checks the token before a body is read; this only describes it.
_API: dict[str, Any] = {"dependencies": [Depends(_BEARER)]}
_Result = TypeVar("_Result")
_FAULTS: dict[int | str, str] = {
    400: "invalid HTTP, unknown host name, or client disconnected",
    401: "invalid token",
    403: "request from a page of another site",
    404: "unknown network",
    406: "answer too large for JSON",
    408: "body not received in time",
    409: "network unusable or replaced; Idempotency-Key used by another request; or "
    "network changed before the allocation was proved",
    411: "no Content-Length",
    413: "body too large",
    415: "missing or unsupported media type",
    422: "invalid request",
    503: "not ready or overloaded; Retry-After says when to retry",
    507: "disk full",
}
FAULTS: dict[int | str, dict[str, Any]] = {
    code: {"description": text, "model": Fault} for code, text in _FAULTS.items()
}
_Name = Annotated[
    str,
    Path(json_schema_extra={"pattern": f"^{NAME_PATTERN}$"}, description="Name of the network."),
]
REQUEST_MODELS: tuple[type[BaseModel], ...] = (
    NetworkSpec,
    LinkChanges,
    AllocationRequest,
    MeasurementRequest,
)


def _body_schema(model: type[BaseModel], options: type[BaseModel] | None = None) -> dict[str, Any]:
    """OpenAPI description of a body that the route parses itself.

    Args:
        model: model of the JSON body.
        options: model of the query parameters of an Arrow body; None without Arrow.
    """
    content: dict[str, Any] = {JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    if options is None:
        return {"requestBody": {"required": True, "content": content}}
    content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
    fields = options.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
    parameters = [
        {
            "name": name,
            "in": "query",
            "required": False,
            "description": f"With an Arrow body. {field.get('description', '')}",
            # Lists and maps are strings in a query: gold,silver and gold=30,silver=50.
            "schema": {"type": "string"} if field.get("type") in ("array", "object") else field,
        }
        for name, field in fields.items()
    ]
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


# FastAPI would parse a body in Python: slowly, as deep as it is nested, and with text that no
# answer could repeat.


def _parse_spec(body: bytes) -> dict[str, Any]:
    """Settings of a registration."""
    return parse_content(NetworkSpec, body).to_json()


def _parse_changes(body: bytes) -> dict[str, Any]:
    """Link changes, dumped one by one, since pydantic stops other threads while it dumps a list."""
    return {
        "links": [
            change.model_dump(mode="json") for change in parse_content(LinkChanges, body).links
        ]
    }


# Defaults of the optional fields of a network description.
_INFO_DEFAULTS = {
    name: field.default
    for name, field in NetworkInfo.model_fields.items()
    if not field.is_required()
}
_VALUES_PER_LINK = 4


async def _network_response(info: dict[str, Any], status: int = 200) -> Response:
    """Response with a :class:`NetworkInfo`, encoded here because FastAPI would validate every link
    on the event loop.
    """
    size = _VALUES_PER_LINK * len(info.get("links") or ())
    return _json_response(
        (await offload_if_large(size, encode_json, {**_INFO_DEFAULTS, **info})).encode(), status
    )


def _json_response(body: bytes, status: int = 200) -> Response:
    """Response with an encoded JSON body."""
    return Response(body, status, media_type=JSON)


class ApiRoutes(NamedTuple):
    """Routes of the API.

    Attributes:
        router: all routes.
        allocations: fast route of allocations, to be matched before ``router``, whose own one
            serves the description only: FastAPI takes a third of a millisecond to find a route and
            to parse its parameters.
    """

    router: APIRouter
    allocations: Route


@dataclasses.dataclass(frozen=True)
class _RouteContext:
    """Objects that the handlers of all routes share.

    Attributes:
        backend: implementation of the API calls.
        metrics: Prometheus metrics.
        cache: response cache.
    """

    backend: Backend
    metrics: Metrics
    cache: ResponseCache

    async def forget_removed(self) -> None:
        """Drop cached responses and metrics of networks that are gone."""
        for removed in self.cache.retain_only(await self.backend.names()):
            self.metrics.forget(removed)


def make_router(
    backend: Backend, metrics: Metrics, cache: ResponseCache, max_open: int
) -> ApiRoutes:
    """Build all routes of the API.

    Args:
        backend: implementation of the API calls.
        metrics: Prometheus metrics.
        cache: response cache.
        max_open: maximum number of concurrent allocations of a network. Further ones are refused
            here, at no cost to the solver; refusing a flood there would slow it tenfold.
    """
    router = APIRouter(responses=FAULTS)
    context = _RouteContext(backend, metrics, cache)
    # The OpenAPI description lists the routes in this order.
    allocations = _add_allocation(router, _AllocationHandler(context, max_open))
    _add_lists(router, context)
    _add_networks(router, context)
    _add_links_and_paths(router, context)
    _add_recent_allocations(router, context)
    _add_measurements(router, context)
    _add_map(router, context)
    _add_probes(router, context)
    _add_prometheus(router, context)
    return ApiRoutes(router, allocations)


class _AllocationHandler:
    """Handler of allocation requests: limits concurrency, repeats the answer to a request with the
    same Idempotency-Key, records and caches new answers.

    Args:
        context: backend, metrics and response cache.
        max_open: maximum number of concurrent allocations of a network.
    """

    def __init__(self, context: _RouteContext, max_open: int) -> None:
        self._context = context
        self._max_open = max_open
        self._in_flight: Counter[str] = Counter()

    async def respond(
        self, name: str, request: Request, idempotency_key: str | None, previous: str | None
    ) -> Response:
        """Respond to one allocation request.

        Args:
            name: network.
            request: request with its unread body.
            idempotency_key: header Idempotency-Key.
            previous: id of the installed answer.

        Raises:
            ServiceError: too many concurrent requests, an unknown network or answer, an invalid
                request, or a disconnected client.
        """
        backend = self._context.backend
        cache = self._context.cache
        # Resolve the installed answer.
        encoded_request = _encode_request(request, await request.body())
        if previous is not None:
            previous_answer = cache.answer(name, await backend.generation(name), previous)
            encoded_request = dataclasses.replace(
                encoded_request, previous=previous_answer, previous_id=previous
            )
        # Allocate, or repeat the answer to the same Idempotency-Key.
        with self._limit_concurrency(name, encoded_request.client):
            # Idempotency keys belong to a generation: a replaced network gives other answers.
            key = f"{await backend.generation(name)} {idempotency_key}" if idempotency_key else ""
            work = cache.answer_once(
                name, key, encoded_request, lambda: backend.allocate(name, encoded_request)
            )
            result, is_new = await _cancel_on_disconnect(request.receive, work)
        # Tell the log the deadline.
        request.scope.get("teal", {})["deadline_ms"] = result.summary["deadline_ms"]
        if is_new:
            await self._record(name, encoded_request.request_id, result)
        return Response(result.body, media_type=result.media_type)

    @contextlib.contextmanager
    def _limit_concurrency(self, name: str, client: str) -> Iterator[None]:
        """Count a request of a network and of a client as in flight.

        Raises:
            ServiceError: the network or the client has too many requests in flight.
        """
        client_key = f"{name} {client}"
        in_flight = self._in_flight
        if in_flight[name] >= self._max_open or in_flight[client_key] >= places_of_one(
            self._max_open
        ):
            raise overloaded()
        in_flight.update((name, client_key))
        try:
            yield
        finally:
            in_flight.subtract((name, client_key))
            # Remove zero counters, since callers choose the names.
            for counter_key in (name, client_key):
                if not in_flight[counter_key]:
                    del in_flight[counter_key]

    async def _record(self, name: str, request_id: str, result: AllocationResponse) -> None:
        """Record a new answer in the metrics and cache it; log failures to cache it."""
        context = self._context
        context.metrics.record_allocation(name, result.summary)
        try:
            generation = await context.backend.generation(name)
            if result.generation == generation and context.cache.add(name, request_id, result):
                await context.forget_removed()
        # Deleted meanwhile.
        except ServiceError:
            pass
        # Send the answer even if, for instance, an engine is ending.
        except Exception:
            LOG.exception("answer not cached", extra={"teal": {"request": request_id}})


def _encode_request(request: Request, body: bytes) -> EncodedRequest:
    """Undecoded request for the backend."""
    state = request.scope["teal"]
    query = dict(request.query_params)
    query.pop("previous", None)
    return EncodedRequest(
        body,
        state["media_type"],
        ", ".join(request.headers.getlist("accept")),
        query,
        state["number"],
        state["client"],
    )


def _add_allocation(router: APIRouter, handler: _AllocationHandler) -> Route:
    """Add the route that allocates, and return its fast route."""

    @router.post(
        _ALLOCATIONS,
        **_API,
        openapi_extra=_body_schema(AllocationRequest, Options),
        responses={200: {"model": AllocationAnswer, "content": {ARROW: {}}}},
    )
    async def allocate(
        name: _Name,
        request: Request,
        idempotency_key: Annotated[str | None, Header(max_length=_MAX_KEY_LENGTH)] = None,
        previous: Annotated[str | None, Query(max_length=_MAX_ID_LENGTH)] = None,
    ) -> Response:
        """Allocate one or many traffic matrices, JSON or Arrow. Options of an Arrow request are
        query parameters.

        Returns a feasible allocation by the deadline; status tells whether the gap was reached. A
        repeated request with the same Idempotency-Key and body gets the same answer without another
        solve. The parameter previous is the id of the installed answer, the reference of a churn
        limit.
        """
        return await handler.respond(name, request, idempotency_key, previous)

    async def allocate_fast(request: Request) -> Response:
        """Allocate as above, with the length limits of the OpenAPI description."""
        key = request.headers.get("idempotency-key")
        previous = request.query_params.get("previous")
        _check_length("Idempotency-Key", key, _MAX_KEY_LENGTH)
        _check_length("previous", previous, _MAX_ID_LENGTH)
        return await handler.respond(request.path_params["name"], request, key, previous)

    return Route(_ALLOCATIONS, allocate_fast, methods=["POST"])


def _check_length(field: str, value: str | None, max_length: int) -> None:
    """Check the length of a header or query parameter.

    Raises:
        ServiceError: it is longer than ``max_length`` characters.
    """
    if value is not None and len(value) > max_length:
        raise ServiceError(
            422,
            "invalid_request",
            f"{field}: at most {max_length} characters, not {len(value)}",
        )


def _add_lists(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes that list the networks and describe the loaded model."""
    backend = context.backend
    cache = context.cache

    @router.get("/v1/networks", **_API, response_model=NetworkNames)
    async def list_networks() -> Any:
        """Names of all registered networks."""
        names = await backend.names()
        last_used = cache.last_used()
        return {"networks": names, "last_used": last_used if last_used in names else None}

    @router.get("/v1/model", **_API, response_model=ModelInfo)
    async def get_model() -> Any:
        """Version of the loaded model, and why a newer one in its folder is not used.

        The answering replica's; replicas may differ for a second.
        """
        return await backend.model()


def _add_networks(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes that register, describe and delete a network."""
    backend = context.backend
    metrics = context.metrics

    @router.put(
        "/v1/networks/{name}",
        **_API,
        openapi_extra=_body_schema(NetworkSpec),
        responses={
            200: {"model": NetworkInfo},
            201: {"description": "registered", "model": NetworkInfo},
        },
    )
    async def put_network(name: _Name, request: Request) -> Response:
        """Register or replace a network. Its paths are computed in the background; GET tells when
        it is ready.
        """
        body = await request.body()
        info, is_new = await backend.put(name, await offload_if_large(len(body), _parse_spec, body))
        return await _network_response(info, 201 if is_new else 200)

    @router.get("/v1/networks/{name}", **_API, responses={200: {"model": NetworkInfo}})
    async def get_network(name: _Name) -> Response:
        """State (computing, ready, failed), nodes, links, registered and current capacities."""
        return await _network_response(await backend.info(name))

    @router.delete("/v1/networks/{name}", **_API, status_code=204)
    async def delete_network(name: _Name) -> Response:
        """Delete a network; its queued requests get 404, and its path search ends."""
        await backend.delete(name)
        metrics.forget(name)
        await context.forget_removed()
        return Response(status_code=204)


def _add_links_and_paths(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes of link changes and of candidate paths."""
    backend = context.backend

    @router.patch(
        "/v1/networks/{name}/links",
        **_API,
        openapi_extra=_body_schema(LinkChanges),
        responses={200: {"model": NetworkInfo}},
    )
    async def patch_links(name: _Name, request: Request) -> Response:
        """Change capacities, take links down or up; effective from the next request on, without a
        path search.
        """
        body = await request.body()
        return await _network_response(
            await backend.patch(name, await offload_if_large(len(body), _parse_changes, body))
        )

    @router.get("/v1/networks/{name}/paths", **_API, responses={200: {"model": Routes}})
    async def get_paths(name: _Name) -> Response:
        """Pairs of nodes in the order of rates and splits, and the candidate paths of each, node by
        node.
        """
        return _json_response(await backend.paths(name))


def _add_recent_allocations(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes of recent answers and their proofs."""
    backend = context.backend
    cache = context.cache

    @router.get("/v1/networks/{name}/allocations", **_API, response_model=RecentAllocations)
    async def get_allocations(name: _Name, after: float = 0.0) -> Any:
        """Figures of recent allocations, at most the last thousand requests, and the link
        utilisation of the last one.

        Only answers after a time in seconds since 1970, as in ``time``.
        """
        return cache.since(name, await backend.generation(name), after)

    @router.get(
        "/v1/networks/{name}/allocations/{number}",
        **_API,
        responses={200: {"model": AllocationAnswer, "content": {ARROW: {}}}},
    )
    async def get_allocation(name: _Name, number: str) -> Response:
        """A recent answer, unchanged; the last ones only, 64 MiB of all networks together."""
        result = cache.answer(name, await backend.generation(name), number)
        return Response(result.body, media_type=result.media_type)

    @router.get(
        "/v1/networks/{name}/allocations/{number}/proof",
        **_API,
        response_class=Response,
        responses={200: {"content": {ZIP: {}}}},
    )
    async def get_proof(name: _Name, number: str) -> Response:
        """The proof of an answer to a request with prove, as a zip file; kept as long as the
        answer.
        """
        result = cache.answer(name, await backend.generation(name), number)
        if not result.proof:
            raise ServiceError(
                404, "no_proof", f"allocation {number[:80]!r} was requested without prove"
            )
        return Response(result.proof, media_type=ZIP)


def _add_measurements(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes of measured traffic."""
    backend = context.backend
    metrics = context.metrics

    @router.post(
        "/v1/networks/{name}/measurements",
        **_API,
        response_model=MeasuredInfo,
        openapi_extra=_body_schema(MeasurementRequest, MeasurementOptions),
    )
    async def measure(name: _Name, request: Request) -> Any:
        """Send measured traffic, one matrix or several, JSON or Arrow (then time and interval_s are
        query parameters).

        The allocation for the next interval is computed from them at once: POST .../allocations
        with "for": "next". Counters wait for their estimate until their deadline, then 503.
        """
        body = await request.body()
        info = await _cancel_on_disconnect(
            request.receive, backend.measure(name, _encode_request(request, body))
        )
        metrics.measured(name, info)
        return info

    @router.get("/v1/networks/{name}/measurements", **_API, response_model=MeasuredInfo)
    async def get_measured(name: _Name) -> Any:
        """Number and times of the stored matrices."""
        return await backend.measured(name)

    @router.delete("/v1/networks/{name}/measurements", **_API, status_code=204)
    async def forget_measured(name: _Name) -> Response:
        """Delete all measured matrices and all state learnt from them, for instance wrong ones."""
        await backend.forget_measured(name)
        metrics.measured(name, {"matrices": 0})
        return Response(status_code=204)


def _add_map(router: APIRouter, context: _RouteContext) -> None:
    """Add the route of the drawing of a network."""
    backend = context.backend

    @router.get("/v1/networks/{name}/map", **_API, responses={200: {"model": Drawing}})
    async def get_map(name: _Name) -> Response:
        """Drawing of the network: its coordinates if known, else a layout."""
        return _json_response(await backend.map(name))


def _add_probes(router: APIRouter, context: _RouteContext) -> None:
    """Add the liveness and readiness probes."""
    backend = context.backend

    @router.get("/healthz", response_model=Health)
    async def healthz() -> Any:
        """Whether the process responds."""
        return {"status": "ok"}

    @router.get("/readyz", response_model=Readiness)
    async def readyz() -> Any:
        """Whether the solver responds, and a network is ready if any is registered."""
        await backend.check_ready()
        return {
            "status": "ready",
            "networks": len(await backend.names()),
            "warnings": await backend.warnings(),
        }


def _add_prometheus(router: APIRouter, context: _RouteContext) -> None:
    """Add the route that Prometheus scrapes."""
    backend = context.backend
    metrics = context.metrics

    @router.get(
        "/metrics",
        **_API,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        metrics.warnings.set(len(await backend.warnings()))
        metrics.set_queue_lengths(await backend.queued())
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _cancel_on_disconnect(receive: Receive, work: Awaitable[_Result]) -> _Result:
    """Result of ``work``; cancel it if the client disconnects.

    Args:
        receive: ASGI receive; the next message after the body is the disconnect.
        work: awaited in the calling task.

    Raises:
        ServiceError: the client has disconnected.
    """
    request_task = asyncio.current_task()
    assert request_task is not None
    is_gone = False

    async def cancel_when_gone() -> None:
        nonlocal is_gone
        # An unreadable connection counts as disconnected.
        with contextlib.suppress(Exception):
            await receive()
        is_gone = True
        request_task.cancel()

    watcher = asyncio.ensure_future(cancel_when_gone())
    try:
        return await work
    except asyncio.CancelledError:
        # Cancelled by someone else, too.
        if not is_gone or request_task.cancelling() > 1:
            raise
        raise ServiceError(400, "disconnected", "the client has disconnected") from None
    finally:
        watcher.cancel()
        if is_gone:
            request_task.uncancel()
