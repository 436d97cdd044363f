"""The HTTP application over a backend: routes, page, errors, and what stands around every request.  Knows no Ray."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from teal.serving.engine.backend import Backend
from teal.serving.engine.errors import ServiceError
from teal.serving.http.metrics import Metrics
from teal.serving.http.middleware import Watched, fault_response
from teal.serving.http.page import add_page
from teal.serving.http.recent import Recent
from teal.serving.http.routes import SENT_MODELS, make_router


def make_app(
    backend: Backend,
    tokens: Sequence[str] = (),
    most_bytes: int = 64 << 20,
    hosts: Sequence[str] = (),
    most_open: int = 1024,
) -> FastAPI:
    """The application.

    Args:
        backend: answers.
        tokens: of which requests must bear one; none for everybody.  Each is a client of its own.
        most_bytes: of a body; larger ones are refused before they are read.
        hosts: names that requests may be addressed to, so that no page of another site can reach a service without a
            token by a name that it points here; none for any.
        most_open: see :func:`teal.serving.http.routes.make_router`.
    """
    app = FastAPIOffline(  # /docs loads nothing from elsewhere
        title="Teal",
        version=version("teal-te"),
        description="Traffic engineering for wide-area networks: allocations with certified optimality gaps.",
    )
    metrics = Metrics()
    router = make_router(backend, metrics, Recent(), most_open)
    app.include_router(router)
    _describe_bodies(app)

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
    routes = [*router.routes, *app.routes]  # an included router does not say its routes' paths
    app.add_middleware(
        Watched, metrics=metrics, most_bytes=most_bytes, tokens=tuple(tokens), hosts=tuple(hosts), routes=routes
    )
    return app


def _describe_bodies(app: FastAPI) -> None:
    """Add the models of bodies that routes read themselves to the description."""
    usual = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = usual()
            _, schemas = models_json_schema(
                [(model, "validation") for model in SENT_MODELS], ref_template="#/components/schemas/{model}"
            )
            schema["components"]["schemas"] |= schemas["$defs"]
        return app.openapi_schema or {}

    app.openapi = described  # type: ignore[method-assign]
