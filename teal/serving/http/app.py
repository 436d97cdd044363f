"""The HTTP application over a backend: routes, page, errors, and what stands around every request.
Knows no Ray.
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
from teal.serving.engine.backend import Backend
from teal.serving.engine.errors import ServiceError
from teal.serving.http.metrics import Metrics
from teal.serving.http.middleware import Watched, WatchedApp, fault_response
from teal.serving.http.recent import Recent
from teal.serving.http.routes import SENT_MODELS, make_router
from teal.spec import Registry

_ASSETS = Path(__file__).parent / "assets"
# Plotly writes style elements; nothing else may be inline, and nothing may come from elsewhere or
# go there.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


# Routes that packages add, by entry points: functions of the backend.  They stand behind the same
# token and limits.
ROUTES: Registry[Callable[[Backend], APIRouter]] = Registry(
    "routes of the service", "teal.service_routes"
)


def _asset(name: str) -> Callable[[], str]:
    return lambda: (_ASSETS / name).read_text(encoding="utf-8")


_FILES = {
    "page.css": ("text/css", _asset("page.css")),
    "page.js": ("text/javascript", _asset("page.js")),
    "network_map.js": ("text/javascript", network_map_js),
    "plotly.js": ("text/javascript", plotly_js),
}


@functools.cache
def _packed(name: str) -> bytes:
    """A file of the page, compressed once."""
    return gzip.compress(_FILES[name][1]().encode(), 6)


def add_page(app: FastAPI) -> None:
    """Serve the page and its files; they hold no data, so no token is asked for."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return Response(
            (_ASSETS / "page.html").read_bytes(), media_type="text/html", headers=headers
        )

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        if name not in _FILES:
            raise HTTPException(404, "there is no such file")
        body, headers = (
            await asyncio.to_thread(_packed, name),
            {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=600"},
        )
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = await asyncio.to_thread(gzip.decompress, body)
        return Response(
            body, media_type=_FILES[name][0], headers={**headers, "Vary": "Accept-Encoding"}
        )


class Service:
    """The application, as ASGI defines it.

    Args:
        api: routes and their description.
        first: route that is asked before them, and needs none of FastAPI's layers.
        watched: what stands around every request.
    """

    def __init__(self, api: FastAPI, first: Route, watched: Watched) -> None:
        self._api, self._first = api, first
        self._endpoint = request_response(first.endpoint)
        self._watched_first = WatchedApp(self._answer_first, watched)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app: ASGIApp = self._api
        if scope["type"] == "http" and self._first.matches(scope)[0] is Match.FULL:
            app = self._watched_first
        await app(scope, receive, send)

    async def _answer_first(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer by the first route, with the handlers of exceptions that all routes have."""
        scope.update(self._first.matches(scope)[1], route=self._first)
        scope["starlette.exception_handlers"] = (self._api.exception_handlers, {})
        await self._endpoint(scope, receive, send)

    @property
    def router(self) -> APIRouter:
        """The router of the API, from which Ray Serve takes the names of routes."""
        return self._api.router

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of the API, likewise."""
        return self._api.routes

    def openapi(self) -> dict[str, Any]:
        """The description of the API."""
        return self._api.openapi()


def make_app(
    backend: Backend,
    tokens: Sequence[str] = (),
    most_bytes: int = 64 << 20,
    hosts: Sequence[str] = (),
    most_open: int = 1024,
) -> Service:
    """The application.

    Args:
        backend: answers.
        tokens: tokens of which requests must bear one; none for everybody.  Each is a client of its
            own.
        most_bytes: size of a body; larger ones are refused before they are read.
        hosts: names that requests may be addressed to, so that no page of another site can reach a
            service without a token by a name that it points here; none for any.
        most_open: see :func:`teal.serving.http.routes.make_router`.
    """
    app = FastAPIOffline(  # /docs loads nothing from elsewhere
        title="Teal",
        version=version("teal-te"),
        description=(
            "Traffic engineering for wide-area networks: allocations with certified optimality "
            "gaps."
        ),
    )
    metrics = Metrics()
    made = make_router(backend, metrics, Recent(), most_open)
    app.include_router(made.router)
    for name in ROUTES.names():
        app.include_router(ROUTES[name](backend))
    _describe(app, needs_token=bool(tokens))

    @app.exception_handler(ServiceError)
    async def known_fault(_: Request, error: ServiceError) -> JSONResponse:
        return fault_response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return fault_response(ServiceError(422, "invalid_request", f"{place}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def other_fault(request: Request, error: HTTPException) -> JSONResponse:
        response = fault_response(ServiceError(error.status_code, "http", str(error.detail)))
        if (
            error.status_code == 405
        ):  # of all routes of the path: Starlette knows those of the first one
            here = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
            methods = {method for route in here for method in getattr(route, "methods", None) or ()}
            response.headers["Allow"] = ", ".join(
                sorted(methods | ({"HEAD"} if "GET" in methods else set()))
            )
        return response

    add_page(app)
    watched = Watched(metrics, most_bytes, tuple(tokens), tuple(hosts))
    app.add_middleware(WatchedApp, watched=watched)
    # Refused requests are counted by their route, which Watched looks for in these.  The routes of
    # an included router are not in those of the application under their own paths.
    watched.routes = routes = [*made.router.routes, *app.routes]
    return Service(app, made.allocations, watched)


def _describe(app: FastAPI, *, needs_token: bool) -> None:
    """Add to the description the models of bodies that routes read themselves, and whether a token
    is needed.
    """
    usual = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = usual()
            _, schemas = models_json_schema(
                [(model, "validation") for model in SENT_MODELS],
                ref_template="#/components/schemas/{model}",
            )
            schema["components"]["schemas"] |= schemas["$defs"]
            for operation in (
                one for of_path in schema["paths"].values() for one in of_path.values()
            ):
                if not needs_token and "security" in operation:
                    operation["security"].append({})
        return app.openapi_schema or {}

    app.openapi = described  # type: ignore[method-assign]
