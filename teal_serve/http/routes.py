"""HTTP routes of the API; :func:`make_router` builds them over a backend.

Docstrings of route functions are their descriptions in the OpenAPI document.
"""

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

from teal_serve.engine.backend import AllocationResponse, Backend, EncodedRequest
from teal_serve.engine.errors import (
    ARROW,
    JSON,
    ZIP,
    ServiceError,
    max_places_per_client,
    overloaded,
)
from teal_serve.engine.log import LOG
from teal_serve.engine.requests import (
    AllocationRequest,
    LinkChanges,
    MeasurementOptions,
    MeasurementRequest,
    NetworkSpec,
    Options,
    parse_content,
)
from teal_serve.engine.responses import (
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
from teal_serve.engine.solvers import offload_if_large
from teal_serve.engine.store import NAME_PATTERN
from teal_serve.engine.wire import encode_json
from teal_serve.http.metrics import Metrics
from teal_serve.http.response_cache import ResponseCache

_ALLOCATIONS = "/v1/networks/{name}/allocations"
# Maximum characters of an Idempotency-Key, and of an answer's id.
_MAX_KEY_LENGTH = 255
_MAX_ID_LENGTH = 200
_BEARER = HTTPBearer(auto_error=False, description="A token of --token-file.")
# Describes the token in the OpenAPI document; the request guard checks it before a body is read.
_TOKEN_DEPENDENCY: dict[str, Any] = {"dependencies": [Depends(_BEARER)]}
_Result = TypeVar("_Result")
_FAULT_TEXTS: dict[int | str, str] = {
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
    code: {"description": text, "model": Fault} for code, text in _FAULT_TEXTS.items()
}
_NetworkName = Annotated[
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
    """Return the OpenAPI description of a request body that the route parses itself.

    Args:
        model: model of the JSON body.
        options: model of the query parameters of an Arrow body; None without Arrow.
    """
    content: dict[str, Any] = {JSON: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    if options is None:
        return {"requestBody": {"required": True, "content": content}}
    content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
    # An Arrow body has its options in the query: describe each of them as a parameter.
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


# The routes parse bodies themselves: FastAPI's parser is slow, recurses into nested values, and
# accepts text that no response can encode.


def _parse_spec(body: bytes) -> dict[str, Any]:
    """Parse the settings of a registration, as JSON data."""
    return parse_content(NetworkSpec, body).to_json()


def _parse_changes(body: bytes) -> dict[str, Any]:
    """Parse link changes, as JSON data.

    They are dumped one by one, since pydantic blocks other threads while it dumps a list.
    """
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
# Number of values of a link in a network description, to estimate the size of the response.
_VALUES_PER_LINK = 4


async def _network_response(info: dict[str, Any], status: int = 200) -> Response:
    """Return the response with the description of a network.

    It is encoded here, since FastAPI would validate every link on the event loop.

    Args:
        info: fields of ``responses.NetworkInfo``.
        status: HTTP status.
    """
    # Encode a description of many links in another thread.
    size = _VALUES_PER_LINK * len(info.get("links") or ())
    return _json_response(
        (await offload_if_large(size, encode_json, {**_INFO_DEFAULTS, **info})).encode(), status
    )


def _json_response(body: bytes, status: int = 200) -> Response:
    """Return a response with an encoded JSON body."""
    return Response(body, status, media_type=JSON)


class ApiRoutes(NamedTuple):
    """Routes of the API.

    Attributes:
        router: all routes.
        allocations: route of allocation requests outside of FastAPI, to be matched before
            ``router``. FastAPI takes a third of a millisecond to match a route and to parse its
            parameters; its own route of allocations serves the OpenAPI document only.
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
        """Drop cached responses and metrics of networks that are no longer registered."""
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
        max_open: maximum number of concurrent allocation requests of a network; further ones are
            refused before they are parsed, so that a flood does not slow the solver.
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
    """Handler of allocation requests.

    It limits the concurrent requests, answers repeated requests with the same Idempotency-Key once,
    and records new answers in metrics and cache.

    Args:
        context: backend, metrics and response cache.
        max_open: maximum number of concurrent allocations of a network.
    """

    def __init__(self, context: _RouteContext, max_open: int) -> None:
        self._context = context
        self._max_open = max_open
        # Number of requests in flight, by network and by "network client".
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
        # Look up the installed answer, the reference of a churn limit.
        encoded_request = _encode_request(request, await request.body())
        if previous is not None:
            previous_answer = cache.answer(name, await backend.generation(name), previous)
            encoded_request = dataclasses.replace(
                encoded_request, previous=previous_answer, previous_id=previous
            )
        # Allocate, or repeat the answer to an earlier request with the same Idempotency-Key.
        with self._limit_concurrency(name, encoded_request.client):
            # The key includes the generation, since a replaced network gives other answers.
            key = f"{await backend.generation(name)} {idempotency_key}" if idempotency_key else ""
            pending_response = cache.answer_once(
                name, key, encoded_request, lambda: backend.allocate(name, encoded_request)
            )
            allocation_response, is_new = await _cancel_on_disconnect(
                request.receive, pending_response
            )
        # Add the deadline to the log entry of the request guard.
        request.scope.get("teal", {})["deadline_ms"] = allocation_response.summary["deadline_ms"]
        if is_new:
            await self._record(name, encoded_request.request_id, allocation_response)
        return Response(allocation_response.body, media_type=allocation_response.media_type)

    @contextlib.contextmanager
    def _limit_concurrency(self, name: str, client: str) -> Iterator[None]:
        """Count a request as in flight while the block runs, for its network and its client.

        Args:
            name: name of the network.
            client: client to which the request is charged.

        Raises:
            ServiceError: the network or the client has too many requests in flight.
        """
        client_key = f"{name} {client}"
        in_flight = self._in_flight
        if in_flight[name] >= self._max_open or in_flight[client_key] >= max_places_per_client(
            self._max_open
        ):
            raise overloaded()
        in_flight.update((name, client_key))
        try:
            yield
        finally:
            in_flight.subtract((name, client_key))
            # Remove zero counters: clients choose the names, so they would accumulate.
            for counter_key in (name, client_key):
                if not in_flight[counter_key]:
                    del in_flight[counter_key]

    async def _record(self, name: str, request_id: str, result: AllocationResponse) -> None:
        """Record a new answer in the metrics and cache it; failures are logged, not raised.

        Args:
            name: name of the network.
            request_id: identifier of the request.
            result: response with the answer.
        """
        context = self._context
        context.metrics.record_allocation(name, result.summary)
        try:
            generation = await context.backend.generation(name)
            if result.generation == generation and context.cache.add(name, request_id, result):
                await context.forget_removed()
        # The network was deleted during the request.
        except ServiceError:
            pass
        # Send the answer even if it cannot be cached, for example because an engine restarts.
        except Exception:
            LOG.exception("answer not cached", extra={"teal": {"request": request_id}})


def _encode_request(request: Request, body: bytes) -> EncodedRequest:
    """Return the undecoded request for the backend, without the query parameter ``previous``.

    Args:
        request: request whose scope has the identifier, client and media type of the guard.
        body: body of the request.
    """
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
    """Add the route of allocation requests; return the faster route outside of FastAPI.

    Args:
        router: router, whose route serves the OpenAPI document only.
        handler: handler of both routes.
    """

    @router.post(
        _ALLOCATIONS,
        **_TOKEN_DEPENDENCY,
        openapi_extra=_body_schema(AllocationRequest, Options),
        responses={200: {"model": AllocationAnswer, "content": {ARROW: {}}}},
    )
    async def allocate(
        name: _NetworkName,
        request: Request,
        idempotency_key: Annotated[str | None, Header(max_length=_MAX_KEY_LENGTH)] = None,
        previous: Annotated[str | None, Query(max_length=_MAX_ID_LENGTH)] = None,
    ) -> Response:
        """Allocate one or several traffic matrices, in JSON or Arrow.

        The options of an Arrow request are query parameters. Returns a feasible allocation by the
        deadline; status says whether the gap was reached. A repeated request with the same
        Idempotency-Key and body gets the same answer without another solve. The parameter previous
        is the id of the installed answer, the reference of a churn limit.
        """
        return await handler.respond(name, request, idempotency_key, previous)

    async def allocate_fast(request: Request) -> Response:
        """Allocate one or several traffic matrices; check the lengths of key and ``previous``."""
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
            f"{field}: {len(value)} characters are too long; use at most {max_length}",
        )


def _add_lists(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes that list the networks and describe the loaded model."""
    backend = context.backend
    cache = context.cache

    @router.get("/v1/networks", **_TOKEN_DEPENDENCY, response_model=NetworkNames)
    async def list_networks() -> Any:
        """Names of all registered networks."""
        names = await backend.names()
        last_used = cache.last_used()
        return {"networks": names, "last_used": last_used if last_used in names else None}

    @router.get("/v1/model", **_TOKEN_DEPENDENCY, response_model=ModelInfo)
    async def get_model() -> Any:
        """Version of the loaded model, and why a newer one in its folder is not used.

        Describes the replica that answers; replicas may differ for a second.
        """
        return await backend.model()


def _add_networks(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes that register, describe and delete a network."""
    backend = context.backend
    metrics = context.metrics

    @router.put(
        "/v1/networks/{name}",
        **_TOKEN_DEPENDENCY,
        openapi_extra=_body_schema(NetworkSpec),
        responses={
            200: {"model": NetworkInfo},
            201: {"description": "registered", "model": NetworkInfo},
        },
    )
    async def put_network(name: _NetworkName, request: Request) -> Response:
        """Register or replace a network.

        Its paths are computed in the background; GET returns its state.
        """
        body = await request.body()
        info, is_new = await backend.put(name, await offload_if_large(len(body), _parse_spec, body))
        return await _network_response(info, 201 if is_new else 200)

    @router.get("/v1/networks/{name}", **_TOKEN_DEPENDENCY, responses={200: {"model": NetworkInfo}})
    async def get_network(name: _NetworkName) -> Response:
        """State (computing, ready, failed), nodes, links, registered and current capacities."""
        return await _network_response(await backend.info(name))

    @router.delete("/v1/networks/{name}", **_TOKEN_DEPENDENCY, status_code=204)
    async def delete_network(name: _NetworkName) -> Response:
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
        **_TOKEN_DEPENDENCY,
        openapi_extra=_body_schema(LinkChanges),
        responses={200: {"model": NetworkInfo}},
    )
    async def patch_links(name: _NetworkName, request: Request) -> Response:
        """Change link capacities, or take links down or up.

        Effective from the next request on, without a path search.
        """
        body = await request.body()
        return await _network_response(
            await backend.patch(name, await offload_if_large(len(body), _parse_changes, body))
        )

    @router.get(
        "/v1/networks/{name}/paths", **_TOKEN_DEPENDENCY, responses={200: {"model": Routes}}
    )
    async def get_paths(name: _NetworkName) -> Response:
        """Candidate paths of all pairs of nodes as node lists, in the order of rates and splits."""
        return _json_response(await backend.paths(name))


def _add_recent_allocations(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes of recent answers and their proofs."""
    backend = context.backend
    cache = context.cache

    @router.get(
        "/v1/networks/{name}/allocations", **_TOKEN_DEPENDENCY, response_model=RecentAllocations
    )
    async def get_allocations(name: _NetworkName, after: float = 0.0) -> Any:
        """Figures of recent allocations, and the link utilisation of the last one.

        At most the last thousand requests; with after, only answers later than that time in seconds
        since 1970.
        """
        return cache.since(name, await backend.generation(name), after)

    @router.get(
        "/v1/networks/{name}/allocations/{number}",
        **_TOKEN_DEPENDENCY,
        responses={200: {"model": AllocationAnswer, "content": {ARROW: {}}}},
    )
    async def get_allocation(name: _NetworkName, number: str) -> Response:
        """A recent answer, unchanged; the last 64 MiB of answers of all networks are kept."""
        result = cache.answer(name, await backend.generation(name), number)
        return Response(result.body, media_type=result.media_type)

    @router.get(
        "/v1/networks/{name}/allocations/{number}/proof",
        **_TOKEN_DEPENDENCY,
        response_class=Response,
        responses={200: {"content": {ZIP: {}}}},
    )
    async def get_proof(name: _NetworkName, number: str) -> Response:
        """Proof of an answer to a request with prove, as a zip file; kept as long as the answer."""
        result = cache.answer(name, await backend.generation(name), number)
        if not result.proof:
            raise ServiceError(
                404,
                "no_proof",
                f"allocation {number[:80]!r} was requested without prove; request it with prove",
            )
        return Response(result.proof, media_type=ZIP)


def _add_measurements(router: APIRouter, context: _RouteContext) -> None:
    """Add the routes of measured traffic."""
    backend = context.backend
    metrics = context.metrics

    @router.post(
        "/v1/networks/{name}/measurements",
        **_TOKEN_DEPENDENCY,
        response_model=MeasuredInfo,
        openapi_extra=_body_schema(MeasurementRequest, MeasurementOptions),
    )
    async def measure(name: _NetworkName, request: Request) -> Any:
        """Send measured traffic: one or several matrices, in JSON or Arrow, or interface counters.

        With Arrow, time and interval_s are query parameters. The allocation for the next interval
        is computed at once; POST .../allocations with "for": "next" returns it. An estimate from
        counters that misses its deadline is answered by 503.
        """
        body = await request.body()
        info = await _cancel_on_disconnect(
            request.receive, backend.measure(name, _encode_request(request, body))
        )
        metrics.measured(name, info)
        return info

    @router.get(
        "/v1/networks/{name}/measurements", **_TOKEN_DEPENDENCY, response_model=MeasuredInfo
    )
    async def get_measured(name: _NetworkName) -> Any:
        """Number and times of the stored matrices."""
        return await backend.measured(name)

    @router.delete("/v1/networks/{name}/measurements", **_TOKEN_DEPENDENCY, status_code=204)
    async def forget_measured(name: _NetworkName) -> Response:
        """Delete all measured matrices and all state learnt from them."""
        await backend.forget_measured(name)
        metrics.measured(name, {"matrices": 0})
        return Response(status_code=204)


def _add_map(router: APIRouter, context: _RouteContext) -> None:
    """Add the route of the drawing of a network."""
    backend = context.backend

    @router.get("/v1/networks/{name}/map", **_TOKEN_DEPENDENCY, responses={200: {"model": Drawing}})
    async def get_map(name: _NetworkName) -> Response:
        """Drawing of the network: coordinates of the nodes if known, else a computed layout."""
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
    """Add the route of the metrics, which Prometheus scrapes."""
    backend = context.backend
    metrics = context.metrics

    @router.get(
        "/metrics",
        **_TOKEN_DEPENDENCY,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def prometheus() -> Response:
        """All metrics of the service, in the text format of Prometheus."""
        metrics.warnings.set(len(await backend.warnings()))
        metrics.set_queue_lengths(await backend.queued())
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _cancel_on_disconnect(receive: Receive, computation: Awaitable[_Result]) -> _Result:
    """Await ``computation`` and return its result; cancel it if the client disconnects.

    A second task waits for the disconnect message, and then cancels the calling task.

    Args:
        receive: ASGI receive; the next message after the body is the disconnect.
        computation: awaitable of the result, awaited in the calling task.

    Raises:
        ServiceError: the client has disconnected.
    """
    request_task = asyncio.current_task()
    assert request_task is not None
    is_disconnected = False

    async def cancel_when_gone() -> None:
        """Wait for the disconnect message, then cancel the calling task."""
        nonlocal is_disconnected
        # An unreadable connection counts as disconnected.
        with contextlib.suppress(Exception):
            await receive()
        is_disconnected = True
        request_task.cancel()

    # Await the computation while the second task waits for the disconnect.
    watcher = asyncio.ensure_future(cancel_when_gone())
    try:
        return await computation
    except asyncio.CancelledError:
        # Pass on a cancellation that has another cause than the disconnect.
        if not is_disconnected or request_task.cancelling() > 1:
            raise
        raise ServiceError(400, "disconnected", "the client has disconnected") from None
    finally:
        watcher.cancel()
        # The cancellation has been handled: undo its count (`Task.cancelling`).
        if is_disconnected:
            request_task.uncancel()
