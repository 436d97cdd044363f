"""The routes of the API over a backend."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Awaitable
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.routing import Route
from starlette.types import Receive

from teal.serving.engine.backend import Backend, Sent
from teal.serving.engine.errors import ARROW, JSON, ZIP, ServiceError, overloaded, places_of_one
from teal.serving.engine.log import LOG
from teal.serving.engine.requests import (
    AllocationRequest,
    LinkChanges,
    MeasurementOptions,
    MeasurementRequest,
    NetworkSpec,
    Options,
    parsed,
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
from teal.serving.engine.solvers import beside
from teal.serving.engine.store import NAMES
from teal.serving.engine.wire import encoded
from teal.serving.http.metrics import Metrics
from teal.serving.http.recent import Recent

_ALLOCATIONS = "/v1/networks/{name}/allocations"
_MOST_OF_KEY = 255  # characters of an Idempotency-Key
_MOST_OF_ID = 200  # characters of an answer's id
_BEARER = HTTPBearer(auto_error=False, description="A token of --token-file.")
_Result = TypeVar("_Result")
_FAULTS: dict[int | str, str] = {
    400: "no valid HTTP, another host name, or the client has gone",
    401: "no valid token",
    403: "a page of another site",
    404: "no such network",
    406: "the answer is too large for JSON",
    408: "the body did not arrive in time",
    409: "the network cannot be used, or was replaced; another request had this key; or the "
    "network changed before the "
    "allocation was proved",
    411: "no Content-Length",
    413: "the body is too large",
    415: "no media type, or another one",
    422: "the request is not what it must be",
    503: "not ready, or too many requests; Retry-After says when to come back",
    507: "the disk is full",
}
FAULTS: dict[int | str, dict[str, Any]] = {
    code: {"description": text, "model": Fault} for code, text in _FAULTS.items()
}
_Name = Annotated[
    str, Path(json_schema_extra={"pattern": f"^{NAMES}$"}, description="Of the network.")
]
SENT_MODELS: tuple[type[BaseModel], ...] = (
    NetworkSpec,
    LinkChanges,
    AllocationRequest,
    MeasurementRequest,
)


def _body(model: type[BaseModel], options: type[BaseModel] | None = None) -> dict[str, Any]:
    """How OpenAPI describes a body that the route reads itself.

    Args:
        model: class of a body in JSON.
        options: parameters of the address beside a body in Arrow; None where there is none.
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
            "description": f"Beside a body in Arrow. {field.get('description', '')}",
            # Lists and maps are texts in an address: gold,silver and gold=30,silver=50.
            "schema": {"type": "string"} if field.get("type") in ("array", "object") else field,
        }
        for name, field in fields.items()
    ]
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}


# FastAPI would parse a body in Python: slowly, as deep as it is nested, and with text that no
# answer could repeat.


def _spec(body: bytes) -> dict[str, Any]:
    """The settings of a network."""
    return parsed(NetworkSpec, body).stored()


def _changes(body: bytes) -> dict[str, Any]:
    """Changes of links, written one by one: other threads wait while pydantic writes a list."""
    return {"links": [change.model_dump(mode="json") for change in parsed(LinkChanges, body).links]}


# What a description of a network need not say.
_NOT_SAID = {
    name: field.default
    for name, field in NetworkInfo.model_fields.items()
    if not field.is_required()
}
_VALUES_OF_LINK = 4


async def _described(info: dict[str, Any], status: int = 200) -> Response:
    """A :class:`NetworkInfo`.  FastAPI would look at every link of a large network on the event
    loop.
    """
    size = _VALUES_OF_LINK * len(info.get("links") or ())
    return _written((await beside(size, encoded, {**_NOT_SAID, **info})).encode(), status)


def _written(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type=JSON)


class MadeRoutes(NamedTuple):
    """The routes of the API.

    Attributes:
        router: all of them.
        allocations: the route of allocations a second time, to be asked before those of
            ``router``, where the first one serves for the description alone: FastAPI takes a third
            of a millisecond to find a route and to read its parameters.
    """

    router: APIRouter
    allocations: Route


def make_router(backend: Backend, metrics: Metrics, recent: Recent, most_open: int) -> MadeRoutes:
    """All routes of the API.

    Args:
        backend: answers.
        metrics: count allocations.
        recent: keeps answers.
        most_open: allocations of one network on their way at once.  Those beyond are turned away
            here, where it costs the engine nothing: refusing a flood itself would slow it tenfold.
    """
    router = APIRouter(responses=FAULTS)
    # The token is checked before a body is read; this describes it.
    api: dict[str, Any] = {"dependencies": [Depends(_BEARER)]}
    on_their_way: Counter[str] = Counter()

    async def forget() -> None:
        """Drop what is known of networks that are gone, whoever deleted them."""
        for gone in recent.forget_all_but(await backend.names()):
            metrics.forget(gone)

    def sent(request: Request, body: bytes) -> Sent:
        state = request.scope["teal"]
        query = dict(request.query_params)
        query.pop("previous", None)
        return Sent(
            body,
            state["media_type"],
            ", ".join(request.headers.getlist("accept")),
            query,
            state["number"],
            state["client"],
        )

    @router.post(
        _ALLOCATIONS,
        **api,
        openapi_extra=_body(AllocationRequest, Options),
        responses={200: {"model": AllocationAnswer, "content": {ARROW: {}}}},
    )
    async def allocate(
        name: _Name,
        request: Request,
        idempotency_key: Annotated[str | None, Header(max_length=_MOST_OF_KEY)] = None,
        previous: Annotated[str | None, Query(max_length=_MOST_OF_ID)] = None,
    ) -> Response:
        """Allocate one or many traffic matrices, JSON or Arrow. Of an Arrow request the options are
        in the query.

        Always a feasible allocation, by the deadline at the latest; status says whether the gap was
        reached. A request that is sent again with the same Idempotency-Key and body gets the same
        answer, and is not solved again. The parameter previous is the id of the answer that is in
        force, which a limit on what moves counts from.
        """
        sent_body = sent(request, await request.body())
        if previous is not None:
            in_force = recent.answer(name, await backend.generation(name), previous)
            sent_body = dataclasses.replace(sent_body, previous=in_force, previous_id=previous)
        client_key = f"{name} {sent_body.client}"
        if on_their_way[name] >= most_open or on_their_way[client_key] >= places_of_one(most_open):
            raise overloaded()
        on_their_way.update((name, client_key))
        try:
            # Of this registration of the name: another network gives other answers.
            key = f"{await backend.generation(name)} {idempotency_key}" if idempotency_key else ""
            work = recent.once(name, key, sent_body, lambda: backend.allocate(name, sent_body))
            result, is_new = await _unless_gone(request.receive, work)
        finally:
            on_their_way.subtract((name, client_key))
            for counted in (name, client_key):  # names are the callers': none may stay behind
                if not on_their_way[counted]:
                    del on_their_way[counted]
        request.scope.get("teal", {})["deadline_ms"] = result.summary["deadline_ms"]  # for the log
        if is_new:
            metrics.allocated(name, result.summary)
            try:
                if result.generation == await backend.generation(name) and recent.add(
                    name, sent_body.number, result
                ):
                    await forget()
            except ServiceError:  # deleted meanwhile
                pass
            except Exception:  # engines that end, say; the answer is there and goes out
                LOG.exception("answer not kept", extra={"teal": {"request": sent_body.number}})
        return Response(result.body, media_type=result.media_type)

    async def allocate_plainly(request: Request) -> Response:
        """As above, with the limits that FastAPI knows from the description."""
        key = request.headers.get("idempotency-key")
        previous = request.query_params.get("previous")
        for what, value, most in (
            ("Idempotency-Key", key, _MOST_OF_KEY),
            ("previous", previous, _MOST_OF_ID),
        ):
            if value is not None and len(value) > most:
                raise ServiceError(
                    422, "invalid_request", f"{what}: at most {most} characters, not {len(value)}"
                )
        return await allocate(request.path_params["name"], request, key, previous)

    @router.get("/v1/networks", **api, response_model=NetworkNames)
    async def list_networks() -> Any:
        """Names of all registered networks."""
        names, last = await backend.names(), recent.last_used()
        return {"networks": names, "last_used": last if last in names else None}

    @router.get("/v1/model", **api, response_model=ModelInfo)
    async def get_model() -> Any:
        """Version of the model that is in use, and why a newer one in its folder is not.

        Of the engine that answers: with several, one may be a second behind another.
        """
        return await backend.model()

    @router.put(
        "/v1/networks/{name}",
        **api,
        openapi_extra=_body(NetworkSpec),
        responses={
            200: {"model": NetworkInfo},
            201: {"description": "registered", "model": NetworkInfo},
        },
    )
    async def put_network(name: _Name, request: Request) -> Response:
        """Register or replace a network. Its paths are computed in the background: GET says when it
        is ready.
        """
        body = await request.body()
        info, new = await backend.put(name, await beside(len(body), _spec, body))
        return await _described(info, 201 if new else 200)

    @router.get("/v1/networks/{name}", **api, responses={200: {"model": NetworkInfo}})
    async def get_network(name: _Name) -> Response:
        """State (computing, ready, failed), nodes, links, capacities as registered and in force."""
        return await _described(await backend.info(name))

    @router.delete("/v1/networks/{name}", **api, status_code=204)
    async def delete_network(name: _Name) -> Response:
        """Forget a network; requests that wait for it get 404, and the search for its paths
        ends.
        """
        await backend.delete(name)
        metrics.forget(name)
        await forget()
        return Response(status_code=204)

    @router.patch(
        "/v1/networks/{name}/links",
        **api,
        openapi_extra=_body(LinkChanges),
        responses={200: {"model": NetworkInfo}},
    )
    async def patch_links(name: _Name, request: Request) -> Response:
        """Change capacities, take links down or up: in force from the next request on, no path is
        computed anew.
        """
        body = await request.body()
        return await _described(await backend.patch(name, await beside(len(body), _changes, body)))

    @router.get("/v1/networks/{name}/paths", **api, responses={200: {"model": Routes}})
    async def get_paths(name: _Name) -> Response:
        """Pairs of nodes in the order of rates and splits, and the candidate paths of each, node by
        node.
        """
        return _written(await backend.paths(name))

    @router.get("/v1/networks/{name}/allocations", **api, response_model=RecentAllocations)
    async def get_allocations(name: _Name, after: float = 0.0) -> Any:
        """List the allocations of lately, the last thousand requests at most, and how full links
        were in the last one.

        Only what was answered after a moment, in seconds since 1970 as ``time`` has it.
        """
        return recent.since(name, await backend.generation(name), after)

    @router.get(
        "/v1/networks/{name}/allocations/{number}",
        **api,
        responses={200: {"model": AllocationAnswer, "content": {ARROW: {}}}},
    )
    async def get_allocation(name: _Name, number: str) -> Response:
        """An answer that was given lately, as it was given; the last ones only, 64 MiB of all
        networks together.
        """
        result = recent.answer(name, await backend.generation(name), number)
        return Response(result.body, media_type=result.media_type)

    @router.get(
        "/v1/networks/{name}/allocations/{number}/proof",
        **api,
        response_class=Response,
        responses={200: {"content": {ZIP: {}}}},
    )
    async def get_proof(name: _Name, number: str) -> Response:
        """The proof of an answer to a request that asked for one, as a zip file; kept as long as
        the answer.
        """
        result = recent.answer(name, await backend.generation(name), number)
        if not result.proof:
            raise ServiceError(
                404, "no_proof", f"allocation {number[:80]!r} was made without prove"
            )
        return Response(result.proof, media_type=ZIP)

    @router.post(
        "/v1/networks/{name}/measurements",
        **api,
        response_model=MeasuredInfo,
        openapi_extra=_body(MeasurementRequest, MeasurementOptions),
    )
    async def measure(name: _Name, request: Request) -> Any:
        """Say what traffic was measured, one matrix or several, JSON or Arrow (time and interval_s
        in the query then).

        From these the allocation for the next interval is computed, at once: POST .../allocations
        with "for": "next". Counters wait for their estimate until their deadline, 503 then.
        """
        body = await request.body()
        info = await _unless_gone(request.receive, backend.measure(name, sent(request, body)))
        metrics.measured(name, info)
        return info

    @router.get("/v1/networks/{name}/measurements", **api, response_model=MeasuredInfo)
    async def get_measured(name: _Name) -> Any:
        """Which measured matrices are kept."""
        return await backend.measured(name)

    @router.delete("/v1/networks/{name}/measurements", **api, status_code=204)
    async def forget_measured(name: _Name) -> Response:
        """Delete all measured matrices, and what was learnt from them: wrong ones, say."""
        await backend.forget_measured(name)
        metrics.measured(name, {"matrices": 0})
        return Response(status_code=204)

    @router.get("/v1/networks/{name}/map", **api, responses={200: {"model": Drawing}})
    async def get_map(name: _Name) -> Response:
        """The network as a drawing: its coordinates where they are known, else a layout."""
        return _written(await backend.map(name))

    @router.get("/healthz", response_model=Health)
    async def healthz() -> Any:
        """Whether the process answers."""
        return {"status": "ok"}

    @router.get("/readyz", response_model=Readiness)
    async def readyz() -> Any:
        """Whether the engine answers, and a network is ready if any is registered."""
        await backend.check_ready()
        return {
            "status": "ready",
            "networks": len(await backend.names()),
            "warnings": await backend.warnings(),
        }

    @router.get(
        "/metrics",
        **api,
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def prometheus() -> Response:
        """For Prometheus."""
        metrics.warnings.set(len(await backend.warnings()))
        metrics.waiting(await backend.queued())
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return MadeRoutes(router, Route(_ALLOCATIONS, allocate_plainly, methods=["POST"]))


async def _unless_gone(receive: Receive, work: Awaitable[_Result]) -> _Result:
    """The result of ``work``, which is cancelled if the client goes: nobody waits for it then.

    Args:
        receive: see ASGI; after the body the next message says that the client has gone.
        work: awaited by the task that calls this.

    Raises:
        ServiceError: the client has gone.
    """
    working = asyncio.current_task()
    assert working is not None
    is_gone = False

    async def cancel_when_gone() -> None:
        nonlocal is_gone
        with contextlib.suppress(Exception):  # a connection that cannot be read has gone too
            await receive()
        is_gone = True
        working.cancel()

    watching = asyncio.ensure_future(cancel_when_gone())
    try:
        return await work
    except asyncio.CancelledError:
        if not is_gone or working.cancelling() > 1:  # somebody else has cancelled it as well
            raise
        raise ServiceError(400, "disconnected", "the client has gone") from None
    finally:
        watching.cancel()
        if is_gone:
            working.uncancel()
