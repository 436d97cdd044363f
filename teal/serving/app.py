"""HTTP: routes, bearer token, limits, metrics.  Knows no Ray: a backend is anything with the methods of the solver."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Sequence
from importlib.metadata import version
from typing import Any, Protocol

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from teal.serving.errors import ServiceError, overloaded
from teal.serving.history import History
from teal.serving.metrics import Metrics
from teal.serving.middleware import Watched, fault_response
from teal.serving.page import add_page
from teal.serving.requests import AllocationRequest, LinkChanges, NetworkSpec
from teal.serving.wire import ARROW, JSON

_Answered = tuple[bytes, str, dict[str, Any]]  # body, media type, what it cost
_BEARER = HTTPBearer(auto_error=False, description="The token of --token-file.")


class Backend(Protocol):
    """What answers requests: a :class:`teal.serving.solver.Solver`, here or in another process."""

    async def names(self) -> list[str]:
        """All networks."""
        ...

    async def model(self) -> dict[str, Any]:
        """Which model is in use."""
        ...

    async def generation(self, name: str) -> str:
        """Which registration of its name a network is."""
        ...

    async def put(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Register a network."""
        ...

    async def info(self, name: str) -> dict[str, Any]:
        """Its state."""
        ...

    async def delete(self, name: str) -> None:
        """Forget it."""
        ...

    async def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change links."""
        ...

    async def paths(self, name: str) -> dict[str, Any]:
        """Its candidate paths."""
        ...

    async def map(self, name: str) -> dict[str, Any]:
        """Where to draw it."""
        ...

    async def allocate(
        self, name: str, body: bytes, content_type: str, accept: str, query: dict[str, str]
    ) -> tuple[bytes, str, dict[str, Any]]:
        """Answer a request."""
        ...


def make_app(
    backend: Backend,
    token: str = "",
    most_bytes: int = 64 << 20,
    hosts: Sequence[str] = (),
    most_open: int = 1024,
) -> FastAPI:
    """The application.

    Args:
        backend: answers.
        token: that requests must bear; "" for none.
        most_bytes: of a body; larger ones are refused before they are read.
        hosts: names that requests may be addressed to, so that no page of another site can reach a service without a
            token by a name that it points here; none for any.
        most_open: allocations of one network on their way at once.  Those beyond are turned away here, where it
            costs the engine nothing: refusing a flood itself would slow it tenfold.
    """
    app = FastAPIOffline(  # /docs loads nothing from elsewhere
        title="Teal",
        version=version("teal-te"),
        description="Traffic engineering for wide-area networks: allocations with certified optimality gaps.",
        responses={
            code: {"description": text, "content": {JSON: {"schema": _FAULT}}} for code, text in _FAULTS.items()
        },
    )
    metrics, history = Metrics(), History()
    on_their_way: Counter[str] = Counter()

    async def forget() -> None:
        """Drop what is known of networks that are gone, whoever deleted them."""
        for gone in history.forget_all_but(await backend.names()):
            with contextlib.suppress(KeyError):
                metrics.satisfied.remove(gone)

    # The token is checked before a body is read; this describes it.
    api: dict[str, Any] = {"dependencies": [Depends(_BEARER)]}

    @app.get("/v1/networks", **api)
    async def list_networks() -> dict[str, list[str]]:
        """Names of all registered networks."""
        return {"networks": await backend.names()}

    @app.get("/v1/model", **api)
    async def get_model() -> dict[str, Any]:
        """Version of the model that is in use, and why a newer one in its folder is not.

        Of the engine that answers: with several, one may be a second behind another.
        """
        return await backend.model()

    @app.put("/v1/networks/{name}", **api, responses={201: {"description": "registered"}})
    async def put_network(name: str, spec: NetworkSpec, response: Response) -> dict[str, Any]:
        """Register or replace a network. Its paths are computed in the background: GET says when it is ready."""
        said = await backend.put(name, spec.model_dump(mode="json"))
        response.status_code = 201 if said.pop("new") else 200
        return said

    @app.get("/v1/networks/{name}", **api)
    async def get_network(name: str) -> dict[str, Any]:
        """State (computing, ready, failed), nodes, links, capacities as registered and in force."""
        return await backend.info(name)

    @app.delete("/v1/networks/{name}", **api, status_code=204)
    async def delete_network(name: str) -> Response:
        """Forget a network; requests that wait for it get 404."""
        await backend.delete(name)
        await forget()
        return Response(status_code=204)

    @app.patch("/v1/networks/{name}/links", **api)
    async def patch_links(name: str, changes: LinkChanges) -> dict[str, Any]:
        """Change capacities, take links down or up: in force from the next request on, no path is computed anew."""
        return await backend.patch(name, changes.model_dump(mode="json"))

    @app.get("/v1/networks/{name}/paths", **api)
    async def get_paths(name: str) -> dict[str, Any]:
        """Pairs of nodes in the order of rates and splits, and the candidate paths of each, node by node."""
        return await backend.paths(name)

    @app.post("/v1/networks/{name}/allocations", **api, openapi_extra=_ALLOCATION_BODY)
    async def allocate(name: str, request: Request) -> Response:
        """Allocate one or many traffic matrices, JSON or Arrow. Of an Arrow request the options are in the query.

        Always a feasible allocation, by the deadline at the latest; status says whether the gap was reached.
        """
        if on_their_way[name] >= most_open:
            raise overloaded()
        body = await request.body()
        on_their_way[name] += 1
        try:
            sent, wanted = request.headers["content-type"], request.headers.get("accept", "")
            work = backend.allocate(name, body, sent, wanted, dict(request.query_params))
            found, kind, cost = await _unless_gone(request, work)
        finally:
            on_their_way[name] -= 1
            if not on_their_way[name]:  # names are the callers': none may stay behind
                del on_their_way[name]
        utilisation, generation = cost.pop("utilisation"), cost.pop("generation")
        metrics.allocated(name, cost)
        if history.add(name, generation, cost, utilisation):
            await forget()
        return Response(found, media_type=kind)

    @app.get("/v1/networks/{name}/allocations", **api)
    async def get_allocations(name: str, after: float = 0.0) -> dict[str, Any]:
        """What was allocated lately, the last thousand requests at most, and how full links were in the last one.

        Only what was answered after a moment, in seconds since 1970 as ``time`` has it.
        """
        return history.since(name, await backend.generation(name), after)

    @app.get("/v1/networks/{name}/map", **api)
    async def get_map(name: str) -> dict[str, Any]:
        """The network as a drawing: its coordinates where they are known, else a layout."""
        return await backend.map(name)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process answers."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> dict[str, Any]:
        """Whether the engine answers."""
        return {"status": "ready", "networks": len(await backend.names())}

    @app.get("/metrics", **api)
    async def prometheus() -> Response:
        """For Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(ServiceError)
    async def known_fault(_: Request, error: ServiceError) -> JSONResponse:
        return fault_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return fault_response(ServiceError(422, "invalid_request", f"{place}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def other_fault(_: Request, error: HTTPException) -> JSONResponse:
        return fault_response(ServiceError(error.status_code, "http", str(error.detail)))

    add_page(app)
    app.add_middleware(Watched, metrics=metrics, most_bytes=most_bytes, token=token, hosts=tuple(hosts))
    return app


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _Answered]) -> _Answered:
    """The result of ``work``, which is cancelled if the client goes: nobody waits for it then.

    Raises:
        ServiceError: the client has gone.
    """
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, going}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ServiceError(400, "disconnected", "the client has gone")
        return working.result()
    finally:
        working.cancel()
        going.cancel()


_FAULT = {
    "type": "object",
    "required": ["error", "message"],
    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
}
_FAULTS: dict[int | str, str] = {
    401: "no valid token",
    404: "no such network",
    411: "no Content-Length",
    413: "the body is too large",
    422: "the request is not what it must be",
    503: "not ready, or too many requests; Retry-After says when to come back",
}


def _whole(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema without references: its definitions have no place of their own in the description."""
    definitions = schema.get("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, list):
            return [inlined(each) for each in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return inlined(definitions[part["$ref"].rpartition("/")[2]])
        return {key: inlined(value) for key, value in part.items() if key != "$defs"}

    return dict(inlined(schema))


_ALLOCATION_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": _whole(AllocationRequest.model_json_schema())},
            ARROW: {"schema": {"type": "string", "format": "binary"}},
        },
    },
}
