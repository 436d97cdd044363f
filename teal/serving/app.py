"""HTTP: routes, bearer token, limits, metrics.  Knows no Ray: a backend is anything with the methods of the solver."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as PrometheusCounter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from teal.serving.errors import ServiceError, overloaded
from teal.serving.history import History
from teal.serving.page import add_page
from teal.serving.requests import AllocationRequest, LinkChanges, NetworkSpec
from teal.serving.wire import ARROW, JSON

LOG = logging.getLogger("teal.serving")
_BEARER = HTTPBearer(auto_error=False, description="The token of --token-file.")


class JsonLines(logging.Formatter):
    """A record as a line of JSON: when, how grave, what, and what stands in its ``teal``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception's trace is a text in it."""
        said = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        said |= getattr(record, "teal", {})
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said)


def log_to(path: Path) -> None:
    """Append what the service has to say to a file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)


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


class Metrics:
    """What Prometheus sees; a registry of its own, so that several apps live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        shared: dict[str, Any] = {"registry": self.registry}
        fine = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
        self.requests = PrometheusCounter("teal_requests", "Answers by route and status", ["route", "status"], **shared)
        self.latency = Histogram("teal_request_seconds", "Time to answer", ["route"], buckets=fine, **shared)
        self.queue = Histogram("teal_queue_seconds", "Time that allocations waited", buckets=fine, **shared)
        self.solve = Histogram("teal_solve_seconds", "Time of the engine", buckets=fine, **shared)
        self.batch = Histogram("teal_batch_matrices", "Matrices solved together", buckets=(1, 2, 4, 8, 16), **shared)
        gaps = (1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 1)
        self.gap = Histogram("teal_gap", "Certified gap of answers, the widest of a request", buckets=gaps, **shared)
        self.satisfied = Gauge("teal_satisfied_demand", "Of the last answer, by network", ["network"], **shared)
        self.open = Gauge("teal_open_requests", "Requests being answered", **shared)

    def allocated(self, network: str, cost: dict[str, Any]) -> None:
        """Count an allocation."""
        self.queue.observe(cost["queue_ms"] / 1e3)
        self.solve.observe(cost["solve_ms"] / 1e3)
        self.batch.observe(cost["batch"])
        if cost["gap"] is not None:
            self.gap.observe(cost["gap"])
        if cost["satisfied_demand"] is not None:
            self.satisfied.labels(network).set(cost["satisfied_demand"])


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
        on_their_way[name] += 1
        try:
            body = await request.body()
            sent, wanted = request.headers.get("content-type", JSON), request.headers.get("accept", "")
            found, kind, cost = await backend.allocate(name, body, sent, wanted, dict(request.query_params))
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
        return _fault(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return _fault(ServiceError(422, "invalid_request", f"{place}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def other_fault(_: Request, error: HTTPException) -> JSONResponse:
        return _fault(ServiceError(error.status_code, "http", str(error.detail)))

    add_page(app)
    app.add_middleware(_Watched, metrics=metrics, most_bytes=most_bytes, token=token, hosts=tuple(hosts))
    return app


class _Watched:
    """ASGI around the application: limits bodies, counts and logs every request.

    Plain ASGI, because Starlette's middleware for functions costs a task and two streams a request.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, most_bytes: int, token: str, hosts: tuple[str, ...]) -> None:
        self._app, self._metrics, self._most_bytes = app, metrics, most_bytes
        self._token, self._hosts = token.encode(), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, number, status = time.perf_counter(), uuid.uuid4().hex[:12], 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        self._metrics.open.inc()
        try:
            fault = self._refused(scope)
            if fault is not None:
                await _fault(fault)(scope, receive, sent)
            else:
                await self._app(scope, receive, sent)
        except ServiceError as error:
            if status:
                raise
            await _fault(error)(scope, receive, sent)
        except Exception:
            LOG.exception("failed", extra={"teal": {"request": number}})
            if status:  # half of an answer is out: the connection must break
                raise
            await _fault(ServiceError(500, "internal", f"an error of ours, logged as {number}"))(scope, receive, sent)
        finally:
            self._metrics.open.dec()
            seconds = time.perf_counter() - begin
            route = getattr(scope.get("route"), "path", "other")  # not the path: names would fill the metrics
            self._metrics.requests.labels(route, status).inc()
            self._metrics.latency.labels(route).observe(seconds)
            if LOG.isEnabledFor(logging.INFO):
                entry = {"request": number, "method": scope["method"], "route": route, "status": status}
                LOG.info("answered", extra={"teal": {**entry, "ms": round(1e3 * seconds, 3)}})

    def _refused(self, scope: Scope) -> ServiceError | None:
        """What is wrong with a request before its body is read."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts and host.rpartition(":")[0 if host.rpartition(":")[2].isdigit() else 2] not in self._hosts:
            return ServiceError(400, "wrong_host", "this service has another name")
        private = scope["path"].startswith(("/v1/", "/metrics"))
        if self._token and private:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given, self._token):
                return ServiceError(401, "unauthorised", "a valid bearer token is required")
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return None
        declared = headers.get(b"content-length", b"")
        if not declared.isdigit():
            return ServiceError(411, "length_required", "a body needs a Content-Length")
        if int(declared) > self._most_bytes:
            return ServiceError(413, "too_large", f"a body has at most {self._most_bytes:,} bytes")
        return None


def _fault(error: ServiceError) -> JSONResponse:
    headers = {"Retry-After": str(max(1, round(error.retry_after_s)))} if error.retry_after_s else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    message = error.message.encode("utf-8", "replace").decode("utf-8")  # what came in may be no text at all
    return JSONResponse({"error": error.code, "message": message}, error.status, headers)


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
