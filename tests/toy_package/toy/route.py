"""GET /v1/toy: the names of all networks, backwards."""

from typing import Any

from fastapi import APIRouter

from teal_serve.engine.backend import Backend


def routes(backend: Backend) -> APIRouter:
    """The routes of this package."""
    router = APIRouter()

    @router.get("/v1/toy")
    async def toy() -> dict[str, Any]:
        return {"names": [name[::-1] for name in await backend.names()]}

    return router
