"""HTTP application of the service: routes, web page, error handlers and request guard.

:func:`make_app` builds the ASGI application :class:`Service` over a
:class:`teal_serve.engine.backend.Backend`. Allocation requests bypass FastAPI by a separate,
faster route. Independent of Ray.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from teal.app.web import network_map_js, plotly_js
from teal.spec import Registry
from teal_serve.engine.backend import Backend
from teal_serve.engine.errors import ServiceError
from teal_serve.http.metrics import Metrics
from teal_serve.http.middleware import GuardedApp, RequestGuard, fault_response
from teal_serve.http.response_cache import ResponseCache
from teal_serve.http.routes import REQUEST_MODELS, make_router

_ASSETS = Path(__file__).parent / "assets"
# Content security policy: Plotly needs inline styles; nothing else is inline or from other sites.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


# Routes that packages add by entry points: functions from the backend to a router. Token and limits
# apply to them, too.
ROUTES: Registry[Callable[[Backend], APIRouter]] = Registry(
    "routes of the service", "teal.service_routes"
)


def _asset_reader(name: str) -> Callable[[], str]:
    """Return a function that returns the text of a file of the web page."""
    return lambda: (_ASSETS / name).read_text(encoding="utf-8")


# Files of the web page: media type and reader, by name.
_ASSET_FILES = {
    "page.css": ("text/css", _asset_reader("page.css")),
    "page.js": ("text/javascript", _asset_reader("page.js")),
    "network_map.js": ("text/javascript", network_map_js),
    "plotly.js": ("text/javascript", plotly_js),
}


@functools.cache
def _gzipped_asset(name: str) -> bytes:
    """Return a file of the web page compressed by gzip; cached."""
    # Read the text by the reader of the file, and compress it at level 6, the default of zlib.
    return gzip.compress(_ASSET_FILES[name][1]().encode(), 6)


def add_page(app: FastAPI) -> None:
    """Add the routes of the web page and its files; these have no data and need no token."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """Return the web page, with a content security policy."""
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(
            (_ASSETS / "page.html").read_bytes(), media_type="text/html", headers=headers
        )

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        """Return a file of the web page, compressed if the client accepts gzip."""
        if name not in _ASSET_FILES:
            raise HTTPException(404, "no such file")
        body = await asyncio.to_thread(_gzipped_asset, name)
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=600"}
        # The cached file is compressed: decompress it for a client without gzip.
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = await asyncio.to_thread(gzip.decompress, body)
        return Response(
            body, media_type=_ASSET_FILES[name][0], headers={**headers, "Vary": "Accept-Encoding"}
        )


class Service:
    """ASGI application with a faster route for allocation requests.

    Args:
        api: FastAPI application with routes and OpenAPI description.
        allocation_route: route that is matched first, outside of FastAPI.
        guard: checks, limits and log of every request.
    """

    def __init__(self, api: FastAPI, allocation_route: Route, guard: RequestGuard) -> None:
        self._api = api
        self._allocation_route = allocation_route
        self._endpoint = request_response(allocation_route.endpoint)
        self._allocation_app = GuardedApp(self._answer_allocation, guard)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI entry point)."""
        app: ASGIApp = self._api
        # Allocation requests bypass FastAPI, which is slower.
        if scope["type"] == "http" and self._allocation_route.matches(scope)[0] is Match.FULL:
            app = self._allocation_app
        await app(scope, receive, send)

    async def _answer_allocation(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the faster route, with the exception handlers of the application."""
        # Set path parameters, route and handlers, as the router of Starlette would.
        scope.update(self._allocation_route.matches(scope)[1], route=self._allocation_route)
        scope["starlette.exception_handlers"] = (self._api.exception_handlers, {})
        await self._endpoint(scope, receive, send)

    @property
    def router(self) -> APIRouter:
        """Router of the FastAPI application, from which Ray Serve reads the names of routes."""
        return self._api.router

    @property
    def routes(self) -> list[BaseRoute]:
        """Routes of the FastAPI application, which Ray Serve reads."""
        return self._api.routes

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description of the API, as JSON data."""
        return self._api.openapi()


def make_app(
    backend: Backend,
    tokens: Sequence[str] = (),
    max_bytes: int = 64 << 20,
    hosts: Sequence[str] = (),
    max_open: int = 1024,
) -> Service:
    """Build the ASGI application of the service.

    Args:
        backend: implementation of the API calls.
        tokens: accepted bearer tokens, one per client; empty for open access.
        max_bytes: maximum body size; larger bodies are refused unread.
        hosts: accepted host names, which protect a service without tokens against DNS rebinding;
            empty for any.
        max_open: maximum number of concurrent allocation requests of a network.
    """
    # FastAPIOffline serves /docs without files from other sites.
    app = FastAPIOffline(
        title="Teal",
        version=version("teal-te"),
        description=(
            "Traffic engineering for wide-area networks: allocations with certified optimality "
            "gaps."
        ),
    )
    metrics = Metrics()
    api_routes = make_router(backend, metrics, ResponseCache(), max_open)
    app.include_router(api_routes.router)
    for name in ROUTES.names():
        app.include_router(ROUTES[name](backend))
    _complete_openapi(app, needs_token=bool(tokens))
    add_page(app)
    guard = RequestGuard(metrics, max_bytes, tuple(tokens), tuple(hosts))
    app.add_middleware(GuardedApp, guard=guard)
    # The guard counts refused requests by these routes; the application does not list the routes of
    # an included router under their paths.
    guard.routes = [*api_routes.router.routes, *app.routes]
    _add_exception_handlers(app, guard.routes)
    return Service(app, api_routes.allocations, guard)


def _add_exception_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Add the handlers that respond to errors in the format of the API.

    Args:
        app: application.
        routes: all its routes.
    """

    @app.exception_handler(ServiceError)
    async def respond_to_api_error(_: Request, error: ServiceError) -> JSONResponse:
        """Respond to an error of the API."""
        return fault_response(error)

    @app.exception_handler(RequestValidationError)
    async def respond_to_bad_parameter(_: Request, error: RequestValidationError) -> JSONResponse:
        """Respond to a parameter that FastAPI refuses with the first fault, as status 422."""
        # Parts of the location, such as query.after, name the parameter.
        first_fault = error.errors()[0]
        location = ".".join(str(part) for part in first_fault["loc"])
        return fault_response(
            ServiceError(422, "invalid_request", f"{location}: {first_fault['msg']}")
        )

    @app.exception_handler(HTTPException)
    async def respond_to_http_error(request: Request, error: HTTPException) -> JSONResponse:
        """Respond to an error of Starlette; list the allowed methods with status 405."""
        response = fault_response(ServiceError(error.status_code, "http", str(error.detail)))
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(_allowed_methods(request, routes))
        return response


def _allowed_methods(request: Request, routes: Sequence[BaseRoute]) -> list[str]:
    """Return the HTTP methods of all routes that match a request's path, for the header Allow.

    Starlette itself returns the methods of the first route only.

    Args:
        request: request with a method that no route of its path has.
        routes: all routes of the application.
    """
    matching_routes = [
        route for route in routes if route.matches(request.scope)[0] is not Match.NONE
    ]
    methods = {
        method for route in matching_routes for method in getattr(route, "methods", None) or ()
    }
    # The guard answers HEAD wherever GET is allowed.
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _complete_openapi(app: FastAPI, *, needs_token: bool) -> None:
    """Complete the OpenAPI description of the application.

    Adds the models of request bodies that routes parse themselves, and marks the token as optional
    if none is required.

    Args:
        app: application.
        needs_token: whether requests need a token.
    """
    default_openapi = app.openapi

    def openapi_with_bodies() -> dict[str, Any]:
        """Return the OpenAPI description, which the application builds once and caches."""
        if app.openapi_schema is None:
            schema = default_openapi()
            # Add the models of request bodies.
            _, schemas = models_json_schema(
                [(model, "validation") for model in REQUEST_MODELS],
                ref_template="#/components/schemas/{model}",
            )
            schema["components"]["schemas"] |= schemas["$defs"]
            # An empty alternative marks the token as optional.
            for operation in (
                item for path_item in schema["paths"].values() for item in path_item.values()
            ):
                if not needs_token and "security" in operation:
                    operation["security"].append({})
        return app.openapi_schema or {}

    app.openapi = openapi_with_bodies  # type: ignore[method-assign]
